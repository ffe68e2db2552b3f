"""Programs that share a database with the test, and can be killed, stopped and woken; each is gone when its test is over."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_SECONDS = 30
ROOT = Path(__file__).parents[3]


class Program:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read_line(self) -> str:
        """What it says next; empty when it has ended, or says nothing for too long and is ended for that."""
        assert self._process.stdout
        alarm = threading.Timer(PATIENCE_SECONDS, self._process.kill)
        alarm.start()
        try:
            return self._process.stdout.readline().rstrip("\n")
        finally:
            alarm.cancel()

    async def hear(self) -> str:
        return await asyncio.to_thread(self.read_line)

    def read_rest(self) -> list[str]:
        """All that it said before it ended; a line that was cut off is no word given."""
        assert self._process.stdout
        text = self._process.stdout.read()
        return [line.rstrip("\n") for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def tell(self, line: str = "go") -> None:
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """-9, and wait until it is gone."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def wait(self) -> int:
        return self._process.wait(PATIENCE_SECONDS)


@contextmanager
def run(code: str, *arguments: str, under: tuple[str, ...] = ()) -> Iterator[Program]:
    """A program in Python, under another one if need be."""
    command = [*under, sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield Program(process)
        finally:
            process.kill()
