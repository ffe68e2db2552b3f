"""Idle remote workers: what 10,000 long polls cost the server, and how long it takes to wake all of them.

    10,000 connections of this process, each with `GET /api/v1/wakeups` for tasks and workers ──▶ `pointsman serve`

Each client asks again as soon as it is answered, as remote workers do. The requests time out after 25 seconds, as theirs do.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from bench.databases import Database
from bench.flows.scene import tell
from bench.report import Row, Table
from bench.serving.process import read_memory, read_processor_seconds
from bench.serving.scale import Scale
from bench.serving.served import Served, served

SPARE_FILES = 200
"""What this process and the server need besides the connections."""
WAIT_SECONDS = 25
PATIENCE_SECONDS = 120.0
FLOW = "name: woken\ntasks: {a: {run: exit}}\n"
PATH = "/api/v1/wakeups"


class Waiters:
    """Connections with one long poll each."""

    def __init__(self, url: str, count: int) -> None:
        parts = urlsplit(url)
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._received: dict[int, bytes] = {}
        self._head = f"Host: {parts.netloc}\r\n\r\n"
        self.answers = 0
        for _ in range(count):
            connection = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=PATIENCE_SECONDS)
            self._sockets[connection.fileno()] = connection
            self._received[connection.fileno()] = b""
            self._poll.register(connection, select.EPOLLIN)
            self._ask(connection, "")
            self._take(connection.fileno())  # the first answer comes at once; the next request waits

    def serve_until(self, is_over: Callable[[], bool]) -> None:
        """Take answers, and ask again, until it is over."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while not is_over():
            assert time.monotonic() < limit, f"only {self.answers:,} answers"
            for descriptor, _ in self._poll.poll(0.05):
                self._take(descriptor)

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()
        self._poll.close()

    def _ask(self, connection: socket.socket, query: str) -> None:
        connection.sendall(f"GET {PATH}{query} HTTP/1.1\r\n{self._head}".encode())

    def _take(self, descriptor: int) -> None:
        connection = self._sockets[descriptor]
        received = self._received[descriptor] + connection.recv(1 << 16)
        head, end, body = received.partition(b"\r\n\r\n")
        if not end or not body.endswith(b"}"):
            assert received, "The server has closed a connection."
            self._received[descriptor] = received
            return
        assert head.startswith(b"HTTP/1.1 200 "), received
        self._received[descriptor] = b""
        self.answers += 1
        now = json.loads(body)
        heard = f"process={now['process']}&tasks={now['tasks']}&workers={now['workers']}"
        self._ask(connection, f"?{heard}&wait_seconds={WAIT_SECONDS}")


def measure(databases: Sequence[Database], scale: Scale) -> list[Table]:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # `main` has raised it as far as it goes
    count = min(scale.waiting, most - SPARE_FILES)
    rows = [row for database in databases for row in _measure_one(database, count)]
    fewer = "" if count == scale.waiting else f" (`ulimit -n` allows no more; {scale.waiting:,} were asked for)"
    return [Table(f"Idle remote workers: {count:,} long polls{fewer}", rows)]


def _measure_one(database: Database, count: int) -> list[Row]:
    tell(f"idle long polls: {database.name}")
    with served(database.new("pointsman_waiting")) as server:
        before = read_memory(server.pid)
        waiters = Waiters(server.url, count)
        try:
            first = read_memory(server.pid)
            percent = _wait_a_round(waiters, server, count)
            waiting = read_memory(server.pid)
            seconds = _wake_all(waiters, server, count)
            woken = read_memory(server.pid)
        finally:
            waiters.close()
    each = [(size - before) / count / 1e3 for size in (first, waiting, woken)]
    memory = f"{waiting / 1e6:.0f} MB, {each[1]:.0f} kB for each"
    figures = [f"{size / 1e6:.0f} MB" for size in (before, first, woken)]
    note = f"{figures[0]} without them, {figures[1]} in their first round, {figures[2]} after all were woken"
    return [
        Row(f"{database.name}: memory of the server", memory, (waiting / 1e6,), note=note),
        Row(
            f"{database.name}: processor of the server",
            f"{percent:.0f}% of a core",
            (percent,),
            note=f"each asks again after {WAIT_SECONDS} s",
        ),
        Row(f"{database.name}: until all are woken by a new task", f"{seconds:.1f} s", (seconds,)),
    ]


def _wait_a_round(waiters: Waiters, server: Served, count: int) -> float:
    """Until each has been answered once more and waits again; the percentage of a core that this took."""
    began, used = time.monotonic(), read_processor_seconds(server.pid)
    goal = waiters.answers + count
    waiters.serve_until(lambda: waiters.answers >= goal and time.monotonic() > began + WAIT_SECONDS)
    return (read_processor_seconds(server.pid) - used) / (time.monotonic() - began) * 100


def _wake_all(waiters: Waiters, server: Served, count: int) -> float:
    """One run with one task, which nobody claims."""
    goal = waiters.answers + count
    began = time.monotonic()
    server.call("POST", "/runs", {"flow": FLOW})
    waiters.serve_until(lambda: waiters.answers >= goal)
    return time.monotonic() - began
