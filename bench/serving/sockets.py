"""Many WebSockets in one process, as clients that only listen: a loop over `epoll` that notes when each message arrived.

A client library would need more of the processor for each message than the server, and so measure itself.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PATIENCE_SECONDS = 30.0
TEXT, PING, PONG = 1, 9, 10
MASK = bytes(4)


@dataclass(slots=True)
class Client:
    """One of them."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    messages: list[tuple[bytes, float]] = field(default_factory=list)
    """Each with when it arrived."""


class Clients:
    def __init__(self, url: str, path: str, count: int) -> None:
        self._poll = select.epoll()
        self.all: list[Client] = []
        self.last_arrival = time.time()
        self._by_descriptor: dict[int, Client] = {}
        parts = urlsplit(url)
        for _ in range(count):
            client = Client(socket.create_connection((parts.hostname or "", parts.port or 80), timeout=PATIENCE_SECONDS))
            client.socket.sendall(HANDSHAKE.format(path=path).encode())
            while b"\r\n\r\n" not in client.received:
                client.received += client.socket.recv(1 << 16)
            head, _, rest = bytes(client.received).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 "), head
            client.received = bytearray(rest)
            client.socket.setblocking(False)  # noqa: FBT003 - the name of the method says it
            self._poll.register(client.socket, select.EPOLLIN)
            self.all.append(client)
            self._by_descriptor[client.socket.fileno()] = client

    def listen(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            for descriptor, _ in self._poll.poll(0.1):
                client = self._by_descriptor[descriptor]
                arrived = client.socket.recv(1 << 18)
                if not arrived:
                    raise RuntimeError("The server has closed a WebSocket.")
                client.received += arrived
                self.last_arrival = time.time()
                _take_frames(client, self.last_arrival)

    def close(self) -> None:
        for client in self.all:
            client.socket.close()
        self._poll.close()


def _take_frames(client: Client, now: float) -> None:
    """Frames of a server are not masked."""
    data = client.received
    while len(data) >= 2:
        kind, size, begin = data[0] & 15, data[1], 2
        if size > 125:
            wide = 2 if size == 126 else 8
            size, begin = int.from_bytes(data[2 : 2 + wide], "big"), 2 + wide
        if len(data) < begin + size:
            return
        content = bytes(data[begin : begin + size])
        del data[: begin + size]
        if kind == TEXT:
            client.messages.append((content, now))
        elif kind == PING:
            client.socket.send(bytes((128 | PONG, 128 | size)) + MASK + content)
