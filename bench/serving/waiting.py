"""Idle remote workers: what 10,000 long polls cost the server, and what a new task costs it.

    10,000 connections of this process, each with `GET /api/v1/wakeups` for tasks and workers ──▶ `pointsman serve`

Each client asks again as soon as it is answered, as remote workers do, and claims first if it was told of tasks. The requests
time out after 25 seconds, as theirs do. All claim as one worker with many slots: 10,000 rows of workers change nothing here.
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
REST_SECONDS = 1.0
"""Nobody has claimed for so long: all rest."""
FLOW = "name: woken\ntasks: {a: {run: exit}}\n"
PATH = "/api/v1/wakeups"


class Waiters:
    """Connections with one long poll each."""

    def __init__(self, url: str, count: int, worker_id: str) -> None:
        parts = urlsplit(url)
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._received: dict[int, bytes] = {}
        self._heard: dict[int, str] = {}
        """By connection that claims: what it will ask next."""
        self._tasks: dict[int, int] = {}
        """By connection: how many wake-ups for tasks it has heard of."""
        self._head = f"Host: {parts.netloc}\r\n"
        self._claims_path = f"/api/v1/workers/{worker_id}/claims"
        self.answers = 0
        self.claims = 0
        self.claimed = 0
        self.last_claim_at = time.monotonic()
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
        connection.sendall(f"GET {PATH}{query} HTTP/1.1\r\n{self._head}\r\n".encode())

    def _claim(self, connection: socket.socket) -> None:
        body = f"Content-Type: application/json\r\nContent-Length: 2\r\nIdempotency-Key: {self.claims}\r\n\r\n{{}}"
        connection.sendall(f"POST {self._claims_path} HTTP/1.1\r\n{self._head}{body}".encode())

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
        answer = json.loads(body)
        if descriptor in self._heard:
            self.last_claim_at = time.monotonic()
            self.claimed += len(answer["items"])
            self._ask(connection, self._heard.pop(descriptor))
            return
        self.answers += 1
        tasks = answer["tasks"]
        query = f"?process={answer['process']}&tasks={tasks}&workers={answer['workers']}&wait_seconds={WAIT_SECONDS}"
        is_woken = self._tasks.get(descriptor, tasks) != tasks
        self._tasks[descriptor] = tasks
        if is_woken:
            self.claims += 1
            self.last_claim_at = time.monotonic()
            self._heard[descriptor] = query
            self._claim(connection)
        else:
            self._ask(connection, query)


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
        worker = server.call("POST", "/api/v1/workers", {"name": "w", "max_concurrent_tasks": 100, "lease_seconds": 3600})
        waiters = Waiters(server.url, count, worker["id"])
        try:
            first = read_memory(server.pid)
            percent = _wait_a_round(waiters, server, count)
            waiting = read_memory(server.pid)
            seconds, used, claims = _wake(waiters, server)
            woken = read_memory(server.pid)
        finally:
            waiters.close()
    each = (waiting - before) / count / 1e3
    figures = [f"{size / 1e6:.0f} MB" for size in (before, first, woken)]
    return [
        Row(
            f"{database.name}: memory of the server",
            f"{waiting / 1e6:.0f} MB, {each:.0f} kB for each",
            (waiting / 1e6,),
            note=f"{figures[0]} without them, {figures[1]} in their first round, {figures[2]} after a new task",
        ),
        Row(
            f"{database.name}: processor of the server",
            f"{percent:.0f}% of a core",
            (percent,),
            note=f"each asks again after {WAIT_SECONDS} s",
        ),
        Row(
            f"{database.name}: until a new task is claimed and all rest again",
            f"{seconds:.2f} s",
            (seconds,),
            note=f"{claims:,} workers were woken and claimed; {used:.2f} s of a core",
        ),
    ]


def _wait_a_round(waiters: Waiters, server: Served, count: int) -> float:
    """Until each has been answered once more and waits again; the percentage of a core that this took."""
    began, used = time.monotonic(), read_processor_seconds(server.pid)
    goal = waiters.answers + count
    waiters.serve_until(lambda: waiters.answers >= goal and time.monotonic() > began + WAIT_SECONDS)
    return (read_processor_seconds(server.pid) - used) / (time.monotonic() - began) * 100


def _wake(waiters: Waiters, server: Served) -> tuple[float, float, int]:
    """One run with one task: the seconds and the seconds of a core until nobody moves any more, and how many claimed."""
    claims, claimed, used = waiters.claims, waiters.claimed, read_processor_seconds(server.pid)
    waiters.last_claim_at = began = time.monotonic()
    server.call("POST", "/runs", {"flow": FLOW})
    waiters.serve_until(lambda: waiters.claimed > claimed and time.monotonic() > waiters.last_claim_at + REST_SECONDS)
    return waiters.last_claim_at - began, read_processor_seconds(server.pid) - used, waiters.claims - claims
