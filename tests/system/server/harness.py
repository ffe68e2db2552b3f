"""A real server on a port of its own, and a client that holds every answer against the OpenAPI document."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import urlsplit

import jsonschema

PATIENCE_SECONDS = 20
Found = TypeVar("Found")


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    text: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def problem(self) -> str:
        """The name of the type of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return str(self.json["type"]).removeprefix("/problems/")


@dataclass
class Client:
    """Sends requests, each over a connection of its own."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    """What it trusts, for https."""
    _openapi: dict[str, Any] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Reply:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: object = None, **headers: str) -> Reply:
        return self.call("POST", path, body, **headers)

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """A request with a JSON body; `idempotency_key="1"` is the header `Idempotency-Key`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = None if body is None else json.dumps(body).encode()
        json_type = {} if content is None else {"Content-Type": "application/json"}
        reply = self.send(method, path, content, {**json_type, **named})
        self.check(method, path, reply)
        return reply

    def send(self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """A request as it is."""
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_SECONDS)
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE_SECONDS, context=self.tls)
        try:
            connection.request(method, path, content, {**self.headers, **(headers or {})})
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    @property
    def openapi(self) -> dict[str, Any]:
        if not self._openapi:
            self._openapi = self.send("GET", "/openapi.json").json
        return self._openapi

    def check(self, method: str, path: str, reply: Reply) -> None:
        """The document has this status for this route, and its schema fits the answer."""
        described = self.find_route(method, urlsplit(path).path)
        if described is None:
            assert reply.status in (404, 405), (method, path, reply)
            return
        assert str(reply.status) in described["responses"], (method, path, reply)
        answer = described["responses"][str(reply.status)]
        if "Location" in answer.get("headers", ()):
            assert reply.headers["location"].endswith(f"/{reply.json['id']}"), (method, path, reply)
        content = answer["content"]
        media_type = reply.headers["content-type"].partition(";")[0]
        assert media_type in content, (method, path, reply)
        if media_type.endswith("json"):
            self.validate(content[media_type]["schema"], reply.json)

    def validate(self, schema: dict[str, Any], value: object) -> None:
        whole = {**schema, "components": self.openapi["components"]}
        jsonschema.Draft202012Validator(whole).validate(value)

    def find_route(self, method: str, path: str) -> dict[str, Any] | None:
        for template, methods in sorted(self.openapi["paths"].items(), key=lambda each: each[0].count("{")):
            pattern = re.sub(r"\\{[^/]+?\\}", "[^/]+", re.escape(template))
            if re.fullmatch(pattern, path):
                found: dict[str, Any] | None = methods.get(method.lower())
                if found is not None:
                    return found
        return None

    def until(self, path: str, is_so: Callable[[Any], bool]) -> Any:
        """Ask again and again, and return the first answer that is as it should be."""

        def look() -> Any:
            answer = self.get(path).json
            return answer if is_so(answer) else None

        return until(look, lambda: self.get(path).json)


def until(look: Callable[[], Found], show: Callable[[], object] = lambda: None) -> Found:
    end = monotonic() + PATIENCE_SECONDS
    while not (found := look()):
        assert monotonic() < end, show()
        threading.Event().wait(0.02)
    return found


@dataclass
class Alternating(Client):
    """Sends each request to the next of several servers."""

    others: tuple[str, ...] = ()
    _turns: Iterator[int] = field(default_factory=count)

    def send(self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        urls = (self.url, *self.others)
        server = Client(urls[next(self._turns) % len(urls)], self.headers)
        return server.send(method, path, content, headers)


@contextmanager
def start(command: str, folder: Path, database_url: str, *arguments: str) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    """`pointsman serve` or `pointsman up` in a folder, gone when the block is left."""
    with start_process(command, folder, database_url, "--port", "0", *arguments) as (line, process):
        yield Client(json.loads(line)["url"]), process


@contextmanager
def start_worker(folder: Path, database_url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`pointsman worker` in a folder, with two slots, gone when the block is left."""
    with start_process("worker", folder, database_url, "--slots", "2", *arguments, is_silent=True) as (_, process):
        yield process


@contextmanager
def start_process(
    command: str, folder: Path, database_url: str, *arguments: str, is_silent: bool = False
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A command at work, with the first line that it prints, unless it is silent at first."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
    (folder / ".pointsman").mkdir(exist_ok=True)
    with (folder / f"{command}.txt").open("a") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "pointsman", command, "--json", "--store", database_url, *arguments],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    assert process.stdout is not None
    drain = threading.Thread(target=process.stdout.read, daemon=True)
    try:
        line = "" if is_silent else process.stdout.readline()
        assert line or is_silent, (folder / f"{command}.txt").read_text()
        drain.start()
        yield line, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
            process.wait()
            drain.join() if drain.ident else None
            process.stdout.close()
