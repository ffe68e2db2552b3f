"""Requests that are sent again, streams that continue, and answers that make no sense."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from tests.rooms.client.scripted import CUT, Server, serve

from pointsman.client import Client
from pointsman.errors import (
    CallRefused,
    EngineClosed,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    PointsmanError,
    RequestInvalid,
    ServerFailed,
    ServerUnavailable,
)

TICKET = {"ticket": "t", "ends_at": None}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(status: int, body: object, **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"HTTP/1.1 {status} Status\r\n{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content


def problem(name: str, status: int, **headers: str) -> bytes:
    body = {"type": f"/problems/{name}", "title": "", "status": status, "detail": "The detail.", "kind": "run", "name": "run_1"}
    return answer(status, body, content_type="application/problem+json", **headers).replace(
        b"Content-Type: application/json\r\n", b""
    )


@contextmanager
def connect(*connections: Sequence[bytes], retry_seconds: float = 20) -> Iterator[tuple[Client, Server]]:
    with serve(*connections) as (transport, server), Client(transport.url, retry_seconds=retry_seconds) as client:
        yield client, server


def find_keys(server: Server) -> list[bytes]:
    return [key for request in server.requests for key in re.findall(rb"Idempotency-Key: (\S+)", request)]


@pytest.mark.parametrize(
    "first",
    [
        CUT,
        answer(502, b"<h1>Bad Gateway</h1>"),
        problem("overloaded", 503),
        problem("stopping", 503),
        problem("rate-limited", 429),
    ],
    ids=["cut", "proxy", "overloaded", "stopping", "rate"],
)
def test_a_change_is_sent_again_with_the_same_key(first: bytes) -> None:
    with connect([first], [answer(201, TICKET)], [answer(201, TICKET)]) as (client, server):
        assert client.issue_ticket().ticket == "t"
        assert client.issue_ticket().ticket == "t"
        one, again, other = find_keys(server)
        assert one == again != other
        assert server.requests[0] == server.requests[1]


def test_a_change_keeps_a_key_of_its_own() -> None:
    with connect([CUT], [problem("not-found", 404)]) as (client, server):
        with pytest.raises(NotFound):
            client.signal_run("run_1", signal="cancel", request_id="nightly-1")
        assert find_keys(server) == [b"nightly-1"] * 2
        with pytest.raises(RequestInvalid, match="one line"):
            client.signal_run("run_1", signal="cancel", request_id="a\r\nX: y")


def test_what_is_wrong_is_not_sent_again() -> None:
    with connect([problem("not-found", 404), problem("forbidden", 403), problem("internal-error", 500)]) as (client, server):
        for expected in (NotFound, CallRefused, ServerFailed):
            with pytest.raises(expected):
                client.get_run("run_1")
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("connections", "request_id", "expected"),
    [
        ([[CUT]], None, OutcomeUnknown),
        ([[CUT]], "1", ServerUnavailable),
        ([[problem("outcome-unknown", 503)]], None, OutcomeUnknown),
        ([[problem("overloaded", 503, retry_after="60")]], None, Overloaded),
        ([[problem("rate-limited", 429, retry_after="60")]], None, CallRefused),
        ([[problem("stopping", 503)]], None, ServerUnavailable),
    ],
)
def test_when_patience_ends_it_is_said_whether_it_may_have_happened(
    connections: Sequence[Sequence[bytes]], request_id: str | None, expected: type[PointsmanError]
) -> None:
    with connect(*connections, retry_seconds=0) as (client, _), pytest.raises(expected) as raised:
        client.signal_run("run_1", signal="cancel", request_id=request_id)
    assert type(raised.value) is expected


def test_an_earlier_try_that_may_have_happened_is_not_forgotten() -> None:
    with connect([CUT], [problem("overloaded", 503, retry_after="60")]) as (client, _), pytest.raises(OutcomeUnknown):
        client.signal_run("run_1", signal="cancel")


def test_closing_ends_the_wait_for_the_next_try() -> None:
    with connect([problem("overloaded", 503, retry_after="15")], [CUT]) as (client, server):
        raised: list[Exception] = []

        def ask() -> None:
            try:
                client.list_runs()
            except EngineClosed as error:
                raised.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        while not server.requests:
            pass
        client.close()
        thread.join()
        assert len(raised) == 1


@pytest.mark.parametrize("body", [b"<h1>Welcome</h1>", b"\xff", {"ticket": 5}, []])
def test_an_answer_that_makes_no_sense_is_named(body: object) -> None:
    with connect([answer(200, body)]) as (client, _), pytest.raises(ServerFailed, match="is no TicketAnswer"):
        client.issue_ticket()


def write_chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def write_frame(cursor: int, *events: dict[str, object]) -> bytes:
    return f"id: {cursor}\ndata: {json.dumps({'cursor': str(cursor), 'events': events})}\n\n".encode()


def completed(position: int) -> dict[str, object]:
    given = dict.fromkeys(("at", "run_id", "lifecycle", "state", "phase", "outcome", "reason"))
    fixed = {"type": "task_completed", "position": str(position), "task_id": "task_1", "at": "2026-11-18T20:00:00Z"}
    return {**given, "lifecycle": "standard", "state": "", "phase": "done", **fixed}


def test_events_continue_behind_the_last_whole_frame() -> None:
    second = write_frame(9, completed(7), {"type": "of_later_servers"}, completed(8))
    connections = [
        [HEAD + write_chunk(write_frame(3)) + write_chunk(write_frame(5, completed(4), completed(5)) + second[:40])],
        [problem("too-many-streams", 429)],
        [CUT],
        [HEAD + b"".join(write_chunk(second[at : at + 7]) for at in range(0, len(second), 7)) + b"0\r\n\r\n"],
        [HEAD + write_chunk(write_frame(12, completed(12)))],
    ]
    with connect(*connections) as (client, server), client.events(kind="task", types=["task_completed"]) as events:
        assert events.cursor == "3"
        seen = [(next(events).position, events.cursor) for _ in range(5)]
        assert seen == [("4", "4"), ("5", "5"), ("7", "7"), ("8", "9"), ("12", "12")]
        paths = [request.split()[1].decode() for request in server.requests]
        assert [re.findall(r"after=(\d+)", path) for path in paths] == [[], ["5"], ["5"], ["5"], ["9"]]
        assert all("type=task_completed" in path and "kind=task" in path for path in paths)


def test_a_frame_that_makes_no_sense_is_named() -> None:
    for text in (b"data: {}\n\n", b"data: \xff\n\n", write_frame(3, {"type": "transition"})):
        with connect([HEAD + write_chunk(text)]) as (client, _), pytest.raises(ServerFailed, match="not as it should be"):
            next(client.events())


def test_a_log_continues_behind_what_was_read() -> None:
    attempt = dict.fromkeys(
        ("worker_id", "started_at", "ended_at", "ended_by", "exit_code", "error", "session_id", "log_path"),
    )
    attempt_of = {**attempt, "attempt": 1, "resumed": False, "cost_usd": "0", "cost_is_estimated": False, "tokens_in": 0}
    running = {"items": [{**attempt_of, "tokens_out": 0}], "next": None}
    ended = {"items": [{**attempt_of, "tokens_out": 0, "ended_at": "2026-11-18T20:00:00Z"}], "next": None}
    log = HEAD.replace(b"text/event-stream", b"text/plain")
    connections = [
        [log + write_chunk(b"one\n") + write_chunk(b"tw")],
        [log + write_chunk(b"one\nt") + write_chunk(b"wo\n") + b"0\r\n\r\n"],
        [answer(200, running), answer(200, ended)],
        [log + write_chunk(b"one\ntwo\nthree\n") + b"0\r\n\r\n"],
        [answer(206, b"four\n")],
    ]
    with connect(*connections) as (client, server), client.follow_log("task_1", 1) as stream:
        assert b"".join(stream) == b"one\ntwo\nthree\nfour\n"
        assert b"Range: bytes=14-\r\n" in server.requests[-1]


def test_a_log_that_has_nothing_more_ends() -> None:
    with connect([problem("range-not-satisfiable", 416)]) as (client, server):
        assert client.read_log("task_1", 1, start=5) == b""
        assert b"Range: bytes=5-\r\n" in server.requests[0]
    for start, end in ((-5, 3), (4, 4), (4, 2)):
        with connect() as (client, _), pytest.raises(ValueError, match="behind its start"):
            client.read_log("task_1", 1, start=start, end=end)
