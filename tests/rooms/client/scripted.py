"""A scripted server, for what no real one can be brought to do at will."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pointsman.client.transport import Transport

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Name: Value\r\n\r\nok"
CUT = b""
"""Close the connection instead of an answer."""


def name_url(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


class Server:
    """Answers as it is told, one answer for each request."""

    def __init__(self, listening: socket.socket, connections: Sequence[Sequence[bytes]]) -> None:
        self.requests: list[bytes] = []
        self.accepted = 0
        self._listening, self._connections = listening, connections
        self.url = name_url(listening)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for answers in self._connections:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._answer, args=(connected, answers), daemon=True).start()

    def _answer(self, connected: socket.socket, answers: Sequence[bytes]) -> None:
        """The connection is closed behind the last answer."""
        with connected:
            for answer in answers:
                if self._read(connected):
                    connected.sendall(answer)

    def _read(self, connected: socket.socket) -> bool:
        request = b""
        while (missing := _count_missing(request)) != 0:
            block = connected.recv(missing or 1 << 16)
            if not block:
                return False
            request += block
        self.requests.append(request)
        return True


def _count_missing(request: bytes) -> int | None:
    """How many bytes are still to come; None before its head has arrived."""
    if request.startswith(b"\x16"):  # of TLS
        return 0
    head, found, body = request.partition(b"\r\n\r\n")
    if not found:
        return None
    length = re.search(rb"Content-Length: (\d+)", head)
    return max(int(length[1]) - len(body), 0) if length and int(length[1]) < 1 << 20 else 0


@contextmanager
def serve(*connections: Sequence[bytes], timeout_seconds: float = 20) -> Iterator[tuple[Transport, Server]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(listening, connections)
        transport = Transport(server.url, timeout_seconds=timeout_seconds)
        try:
            yield transport, server
        finally:
            transport.close()
