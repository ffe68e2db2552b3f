"""Servers that are measured: each a process of its own, in a folder of its own, gone when the block is left."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from bench.contenders import ROOT
from bench.flows.scene import quiet_environment

PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Served:
    """A server that answers."""

    url: str
    pid: int
    ready_seconds: float
    """From the start of the process to its first answer that the database is there."""

    def call(self, method: str, path: str, body: object = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, content, {"Content-Type": "application/json"}, method=method)
        with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.loads(answer.read())


@contextmanager
def served(database_url: str, command: str = "serve") -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="pointsman-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder, ".pointsman").mkdir()
        arguments = [sys.executable, "-m", "pointsman", command, "--port", "0", "--json", "--store", database_url]
        began = time.perf_counter()
        with _running(arguments, Path(folder), quiet_environment()) as process:
            assert process.stdout
            url = json.loads(process.stdout.readline())["url"]
            with urlopen(f"{url}/readyz", timeout=PATIENCE_SECONDS) as answer:
                answer.read()
            yield Served(url, process.pid, time.perf_counter() - began)


@contextmanager
def empty(how: str) -> Iterator[str]:
    """The URL of FastAPI with one route that does nothing."""
    with _running([sys.executable, "-m", "bench.serving.empty", how], ROOT, quiet_environment()) as process:
        assert process.stdout
        yield process.stdout.readline().strip()


@contextmanager
def _running(arguments: list[str], folder: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(arguments, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout
        process.stdout.close()
