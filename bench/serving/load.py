"""A load generator: HTTP/1.1 over a number of connections that are kept alive, each with one request at a time.

It is a loop over `epoll` and sockets, and reads of an answer no more than its status and its length, so that it is not what
is measured. It runs beside the server, on the same machine: what it takes of the processor, both sides of a ratio lose.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

PATIENCE_SECONDS = 60.0
HEAD_END = b"\r\n\r\n"
BUSY = b"HTTP/1.1 503 "

MakeRequest = Callable[[int], bytes]


@dataclass(frozen=True)
class Load:
    """What became of a number of requests."""

    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds


@dataclass(slots=True)
class _Connection:
    address: tuple[str, int]
    poll: select.epoll
    descriptor: int = -1
    request: bytes = b""
    received: bytes = b""
    began: float = 0.0
    _socket: socket.socket | None = None

    def open(self) -> None:
        self.close()
        self._socket = socket.create_connection(self.address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)  # noqa: FBT003 - the name of the method says it
        self.descriptor = self._socket.fileno()
        self.poll.register(self._socket, select.EPOLLIN)

    def close(self) -> None:
        if self._socket:
            self._socket.close()

    def ask(self, request: bytes, now: float) -> None:
        self.request, self.began = request, now
        self._send()

    def receive(self) -> bytes | None:
        """The answer, when it is there as a whole."""
        assert self._socket
        try:
            received = self._socket.recv(1 << 16)
        except ConnectionResetError:
            received = b""
        if not received:
            self.open()
            self._send()
            return None
        self.received += received
        if not _is_complete(self.received):
            return None
        if self.received.startswith(BUSY):
            self._send()
            return None
        return self.received

    def _send(self) -> None:
        assert self._socket
        self.received = b""
        self._socket.send(self.request)


def write_request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """A request as it goes over the wire."""
    named = ["Host: 127.0.0.1", *headers]
    if body:
        named += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *named, "", ""]).encode() + body


class Generator:
    """Sends requests to one server."""

    def __init__(self, url: str, connections: int) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._connections = connections

    def run(self, count: int, request: MakeRequest, status: int = 200) -> Load:
        """Send that many requests, until each has an answer with this status.

        What is refused with 503 is sent again, and so is what was sent over a connection that breaks, as clients do.
        """
        with ExitStack() as stack:
            poll = stack.enter_context(select.epoll())
            connections = [_Connection(self._address, poll) for _ in range(min(self._connections, count))]
            for connection in connections:
                stack.callback(connection.close)
                connection.open()
            return _exchange(poll, connections, count, request, f"HTTP/1.1 {status} ".encode())


def _exchange(
    poll: select.epoll, connections: Sequence[_Connection], count: int, request: MakeRequest, expected: bytes
) -> Load:
    latencies: list[float] = []
    clock = time.perf_counter
    began = clock()
    for sent, connection in enumerate(connections):
        connection.ask(request(sent), clock())
    sent = len(connections)
    while len(latencies) < count:
        ready = poll.poll(PATIENCE_SECONDS)
        if not ready:
            raise RuntimeError(f"The server has not answered for {PATIENCE_SECONDS:g} seconds.")
        answered = {connection.descriptor: connection for connection in connections}
        for descriptor, _ in ready:
            connection = answered[descriptor]
            answer = connection.receive()
            if answer is None:
                continue
            if not answer.startswith(expected):
                raise RuntimeError(f"Not the answer that was expected: {answer[:2000]!r}")
            now = clock()
            latencies.append(now - connection.began)
            if sent < count:
                connection.ask(request(sent), now)
                sent += 1
    return Load(clock() - began, latencies)


def _is_complete(received: bytes) -> bool:
    """Whether an answer is there as a whole. Each of those that are measured says how long it is."""
    end = received.find(HEAD_END)
    if end < 0:
        return False
    head = received[:end].lower()
    begin = head.find(b"content-length: ") + 16
    length = head[begin : begin + 12].partition(b"\r")[0]
    return len(received) >= end + len(HEAD_END) + int(length)
