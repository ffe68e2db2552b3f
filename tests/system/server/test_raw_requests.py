"""Requests that no client library sends, byte for byte: each gets an answer or loses its connection, and harms nobody else."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.system.server.harness import PATIENCE_SECONDS, Client, Reply, start

from pointsman.server.message import MAX_BODY_BYTES

HEAD = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNK = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
IN_THE_AIR = 8 << 20
"""So many bytes may be in the buffers of the connection when the server has stopped to read."""


@contextmanager
def connect(client: Client) -> Iterator[socket.socket]:
    parts = urlsplit(client.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE_SECONDS) as connection:
        yield connection


def ask(client: Client, *sent: bytes) -> bytes:
    """Everything that the server answers until it closes the connection, or stops to say anything."""
    with connect(client) as connection:
        for part in sent:
            with suppress(ConnectionError):
                connection.sendall(part)
        with suppress(OSError):  # it may be closed already
            connection.shutdown(socket.SHUT_WR)
        return receive_all(connection)


def receive_all(connection: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            received += part
    return received


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def send_until_answered(connection: socket.socket, parts: Iterable[bytes]) -> tuple[int, bytes]:
    """How many bytes the server took before it answered, and the answer."""
    answers: list[bytes] = []
    listening = threading.Thread(target=lambda: answers.append(receive_all(connection)))
    listening.start()
    sent = 0
    with suppress(ConnectionError):
        for part in parts:
            if not listening.is_alive():
                break
            connection.sendall(part)
            sent += len(part)
    listening.join(PATIENCE_SECONDS)
    return sent, answers[0] if answers else b""


def test_a_body_without_a_length_is_refused_when_it_is_over_the_limit(client: Client) -> None:
    with connect(client) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        sent, answer = send_until_answered(connection, iter(lambda: CHUNK, b""))
    assert answer == b"" or status_of(answer) == 413, answer
    assert MAX_BODY_BYTES <= sent <= MAX_BODY_BYTES + IN_THE_AIR


def test_an_announced_body_over_the_limit_is_refused_although_the_client_waits_to_be_told(client: Client) -> None:
    answer = ask(client, HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
    assert status_of(answer) == 413
    assert b"100 Continue" not in answer


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", {0, 400, 422}),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n", {0, 400}),
        (b"Content-Length: -1\r\n", {0, 400}),
        (b"Content-Length: 2, 2\r\n", {0, 201, 400, 422}),
        (b"Content-Length: 1_0\r\n", {0, 400}),
        (b"Content-Length: " + b"9" * 400 + b"\r\n", {0, 400, 413}),
        (b"Transfer-Encoding: gzip, chunked\r\n", {0, 400, 501}),
        (b"Transfer-Encoding: identity\r\n", {0, 400, 501}),
        (b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n", {0, 400, 415}),
        (b"Content-Encoding: br\r\n", {415}),
        (b" folded: x\r\n", {0, 400, 422}),
        (b"no colon\r\n", {0, 400}),
        (b"a: \x00\r\n", {0, 400}),
        (b"a: " + b"x" * 1_000_000 + b"\r\n", {0, 400, 431}),
        (b"".join(b"h%d: x\r\n" % number for number in range(10_000)), {0, 400, 422, 431}),
        (b"".join(b"h%d: x\r\n" % number for number in range(100_000)), {0, 400, 431}),
        (b"Idempotency-Key: \xff\xfe\r\n", {201, 400, 422}),
        (b"Authorization: Bearer \xff\r\n", {401}),
        (b"Pointsman-Actor: \x80\r\n", {400, 422}),
    ],
)
def test_odd_headers_are_refused(client: Client, headers: bytes, statuses: set[int]) -> None:
    answer = ask(client, HEAD + headers + b"\r\n{}")
    assert status_of(answer) in statuses, answer
    assert b"Traceback" not in answer
    assert client.get("/healthz").status == 200


@pytest.mark.parametrize(
    "line",
    [
        b"GET",
        b"GET /runs",
        b"GET /runs HTTP/1.1 x",
        b"get /runs HTTP/1.1",
        b"GET  /runs HTTP/1.1",
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1",
        b"GET /\xff\xfe HTTP/1.1",
        b"GET http://example.org/runs HTTP/1.1",
        b"CONNECT example.org:443 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"TRACE /runs HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_odd_request_lines_are_refused(client: Client, line: bytes) -> None:
    answer = ask(client, line + b"\r\nHost: localhost\r\n\r\n")
    assert status_of(answer) in (0, 400, 403, 404, 405, 505), answer[:200]
    assert client.get("/healthz").status == 200


def test_a_request_without_a_host_is_refused(client: Client) -> None:
    assert status_of(ask(client, b"GET /runs HTTP/1.1\r\n\r\n")) == 400
    assert status_of(ask(client, b"GET /runs HTTP/1.0\r\n\r\n")) == 403
    assert status_of(ask(client, b"GET /runs HTTP/1.1\r\nHost: localhost\r\nHost: example.org\r\n\r\n")) == 400


def test_requests_that_are_sent_at_once_are_answered_in_order(client: Client) -> None:
    paths = [f"/runs/run_{number}" for number in range(200)]
    sent = b"".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths[:-1])
    sent += f"GET {paths[-1]} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    with connect(client) as connection:
        connection.sendall(sent)
        answer = receive_all(connection)
    assert re.findall(rb"'(run_\d+)'", answer) == [path.rpartition("/")[2].encode() for path in paths]


def test_a_client_that_has_said_everything_still_gets_its_answers(client: Client) -> None:
    """It closes its half of the connection, as `nc -N` does."""
    request = b"GET /runs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert status_of(ask(client, request)) == 200
    assert ask(client, request * 5).count(b"HTTP/1.1 200") == 5
    assert ask(client, request, b"GET /runs HTTP/1.1\r\nHost:").count(b"HTTP/1.1 200") <= 1


def test_what_a_client_leaves_unfinished_changes_nothing(client: Client) -> None:
    flow = "name: unfinished\ntasks: {a: {run: 'true'}}"
    body = json.dumps({"flow": flow}).encode()
    for length in (0, 1, len(body) - 1):
        with connect(client) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:length])
    assert client.get("/runs?name=unfinished").json["runs"] == []
    with connect(client) as connection:  # the client goes away, but has said everything
        connection.sendall(HEAD + b"Idempotency-Key: left\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    again = client.post("/runs", {"flow": flow}, idempotency_key="left")
    assert again.status == 201
    assert len(client.get("/runs?name=unfinished").json["runs"]) == 1


def test_connections_that_say_nothing_keep_nobody_from_being_answered(tmp_path: Path, sqlite_url: str) -> None:
    with start("serve", tmp_path, sqlite_url) as (client, process):
        silent = []
        parts = urlsplit(client.url)
        try:
            for number in range(500):
                silent.append(socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE_SECONDS))
                silent[-1].sendall((b"", b"GET /runs HT", HEAD)[number % 3])
            assert client.get("/runs").status == 200
            before = count_files(process.pid)
        finally:
            for connection in silent:
                connection.close()
        assert before >= 500
        client.until("/healthz", lambda _: count_files(process.pid) < before - 490)


def count_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_a_header_of_a_request_never_becomes_one_of_the_answer(client: Client) -> None:
    for path in ("/runs/%0d%0aSet-Cookie:%20a=b", "/api/v1/machines/%0aX:%20y", "/%0d%0aX:y"):
        reply: Reply = client.send("GET", path)
        assert reply.status == 404
        assert not {"set-cookie", "x"} & set(reply.headers)
