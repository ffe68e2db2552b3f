"""Live events over real connections: WebSockets and Server-Sent Events of real servers, some of which are killed."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from tests.system.server.harness import PATIENCE_SECONDS, Client, start, until
from tests.system.server.test_keys import EVERY, create_keys, revoke, with_key
from tests.system.server.test_tasks_004 import ASKS, create, reach
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.engine.submit import NewRun, NewTask
from pointsman.server.live import STREAMS_PER_TENANT

PATH = "/api/v1/events"
BAD_QUERIES = {
    "after=x": 422,
    "after=-1": 422,
    "after=%00": 422,
    "after=99999999999999999999999999": 422,
    "after=999999999999": 422,
    "after=1&after=2": 422,
    "type=nonsense": 422,
    "type=": 422,
    "type=transition,": 422,
    "kind=moon": 422,
    "state=": 422,
    "lifecycle=nonsense": 422,
    "run_id=run_1": 404,
    "run_id=../../etc": 404,
    "colour=red": 422,
}


@contextmanager
def follow(client: Client, **query: str) -> Iterator[ClientConnection]:
    url = client.url.replace("http", "ws") + PATH + (f"?{urlencode(query)}" if query else "")
    with connect(url, additional_headers=client.headers, open_timeout=PATIENCE_SECONDS, max_size=None) as connection:
        yield connection


def receive(connection: ClientConnection) -> Any:
    return json.loads(connection.recv(PATIENCE_SECONDS))


def refuse(client: Client, query: str = "", **headers: str) -> tuple[int, str]:
    """The status and the type of the problem with which a handshake is refused."""
    url = f"{client.url.replace('http', 'ws')}{PATH}?{query}"
    with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers={**client.headers, **headers}):
        pass
    response = refused.value.response
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, json.loads(response.body)["type"].removeprefix("/problems/")


def list_positions(client: Client, after: str) -> list[str]:
    found: list[str] = []
    while items := client.get(f"{PATH}?after={after}&limit=1000").json["items"]:
        found += [item["position"] for item in items]
        after = found[-1]
    return found


def test_tasks_tell_all_clients_when_they_ask_wait_for_a_review_or_have_ended(client: Client) -> None:
    with ExitStack() as stack:
        both = [stack.enter_context(follow(client, type="task_completed,task_question")) for _ in range(2)]
        for connection in both:
            assert receive(connection)["events"] == []
        path = create(client, run=ASKS)
        task_id = path.removeprefix("/api/tasks/")
        client.post(f"{path}/run")
        reach(client, path, "BLOCKED")
        told = [[next_of(connection, task_id) for _ in range(2)] for connection in both]
        assert told[0] == told[1]
        completed, question = told[0]
        assert (completed["type"], completed["state"], completed["outcome"]) == ("task_completed", "BLOCKED", None)
        assert (question["type"], question["position"]) == ("task_question", completed["position"])
        assert question["question"]["choices"] == ["sqlite", "postgres"]
        client.post(f"{path}/answer", {"answer": "sqlite"})
        reach(client, path, "READY")
        client.post(f"{path}/accept")
        for connection in both:
            assert [next_of(connection, task_id)["state"] for _ in range(2)] == ["READY", "COMPLETED"]


_LEFT: dict[int, list[Any]] = {}


def next_of(connection: ClientConnection, task_id: str) -> Any:
    """The next event about a task; the frame may have more."""
    left = _LEFT.setdefault(id(connection), [])
    while not left:
        left += [event for event in receive(connection)["events"] if event["task_id"] == task_id]
    return left.pop(0)


def test_every_frame_fits_the_openapi_document_and_filters_do_what_they_say(client: Client) -> None:
    flow = "name: filtered\nlifecycle: standard\ntasks: {a: {run: 'true'}}"
    run_id = client.post("/runs", {"flow": flow}).json["id"]
    client.until(f"/runs/{run_id}", lambda run: run["status"] == "SUCCEEDED")
    schema = client.openapi["paths"][f"{PATH}/stream"]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]

    def collect(**query: str) -> list[Any]:
        events: list[Any] = []
        with follow(client, after="0", run_id=run_id, **query) as connection:
            while True:
                frame = receive(connection)
                client.validate(schema, frame)
                if not frame["events"]:
                    return events
                events += frame["events"]

    everything = collect()
    assert [each for each in everything if each["type"] == "transition"] == [
        {**each, "type": "transition", "lifecycle": "standard"} for each in client.get(f"{PATH}?run_id={run_id}").json["items"]
    ]
    assert [each["state"] for each in collect(type="task_completed")] == ["SUCCEEDED"]
    assert {each["kind"] for each in collect(kind="run")} == {"run"}
    assert {each["to_state"] for each in collect(state="RUNNING", type="transition")} == {"RUNNING"}
    assert collect(lifecycle="agent") == []


def produce(url: str, stop: threading.Event) -> None:
    """Moves from several engines at once, so that on PostgreSQL they commit out of their order."""

    async def one(engine: Engine) -> None:
        while not stop.is_set():
            run = await engine.submit_run(NewRun(name="x", tasks=[NewTask(name="a")], lifecycle="approval"))
            await engine.signal_run(run.id, "cancel")

    async def all_of_them() -> None:
        async with app.open(url, keeps=False) as first, app.open(url, keeps=False) as second:
            await asyncio.gather(*(one(engine) for engine in (first, second, first, second)))

    asyncio.run(all_of_them())


def test_a_cursor_misses_and_repeats_nothing_when_servers_are_killed(tmp_path: Path, database_url: str) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    seen: list[str] = []
    stop = threading.Event()
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        servers = [stack.enter_context(start("serve", folder, database_url)) for folder in folders]
        with follow(servers[0][0]) as connection:
            cursor = first = receive(connection)["cursor"]
        stack.callback(stop.set)
        producing = pool.submit(produce, database_url, stop)
        for turn in range(4):
            client, process = servers[turn % 2]
            with follow(client, after=cursor, type="transition") as connection, suppress(ConnectionClosed):
                for number in range(6 if turn < 2 else 4):
                    if turn >= 1 and number == 2:
                        process.kill()  # frames may be on their way
                    frame = receive(connection)
                    cursor = frame["cursor"]
                    seen += [event["position"] for event in frame["events"]]
            if turn == 1:
                servers[1] = stack.enter_context(start("serve", folders[1], database_url))
        stop.set()
        producing.result(PATIENCE_SECONDS)
        client, _ = stack.enter_context(start("serve", folders[0], database_url))
        expected = list_positions(client, first)
        with follow(client, after=cursor, type="transition") as connection:
            while len(seen) < len(expected):
                seen += [event["position"] for event in receive(connection)["events"]]
        assert seen == expected
        assert len(expected) > 50


def test_server_sent_events_continue_behind_the_last_event_id(client: Client) -> None:
    with follow(client) as others:  # as other clients do, so that the reader of the server may be behind its database
        start_at = receive(others)["cursor"]
        first = client.post("/api/jobs", {"task_description": "one"}).json["id"]
        with listen(client, f"{PATH}/stream?after={start_at}&kind=run") as lines:
            cursor, _ = read_until(lines, first)
        second = client.post("/api/jobs", {"task_description": "two"}).json["id"]
        with listen(client, f"{PATH}/stream?after={start_at}&kind=run", **{"Last-Event-ID": cursor}) as lines:
            _, ids = read_until(lines, second)
            assert first not in ids


def read_until(lines: http.client.HTTPResponse, run_id: str) -> tuple[str, list[str]]:
    """Frames up to the first one with an event of a run: its cursor, and whom the events of all of them are about.

    A running transaction of another database holds the stream back on PostgreSQL, so a heartbeat may come first.
    """
    ids: list[str] = []
    for _ in range(3):
        cursor, frame = read_event(lines)
        assert frame["cursor"] == cursor
        ids += [event["id"] for event in frame["events"]]
        if run_id in ids:
            return cursor, ids
    raise AssertionError((run_id, ids))


def test_an_empty_first_frame_says_that_nothing_was_there_to_send(client: Client) -> None:
    """Also while others follow: then the reader of the server may be behind its database."""

    def is_first(run_id: str, start_at: str) -> bool:
        until(lambda: run_id in client.get(f"{PATH}?after={start_at}").text.decode())
        with follow(client, after=start_at, kind="run") as connection:
            return run_id in {event["id"] for event in receive(connection)["events"]}

    with follow(client) as others:
        receive(others)
        for _ in range(5):
            start_at = receive_now(client)
            assert is_first(client.post("/api/jobs", {"task_description": "one"}).json["id"], start_at)


def receive_now(client: Client) -> str:
    """The cursor of a client that joins now."""
    with follow(client) as connection:
        return str(receive(connection)["cursor"])


@contextmanager
def listen(client: Client, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(client.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path, headers={**client.headers, **headers})
        response = connection.getresponse()
        assert (response.status, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        yield response
    finally:
        connection.close()


def read_event(lines: http.client.HTTPResponse) -> tuple[str, Any]:
    cursor, data, end = (lines.readline().decode().rstrip("\n") for _ in range(3))
    assert (cursor[:4], data[:6], end) == ("id: ", "data: ", "")
    return cursor[4:], json.loads(data[6:])


def test_a_stream_needs_a_key_or_a_ticket_and_shows_its_tenant_only(tmp_path: Path, database_url: str) -> None:
    ada, bob, blind = create_keys(
        database_url, [("acme", "ada", EVERY), ("globex", "bob", EVERY), ("acme", "blind", ("submit",))]
    )
    with start("serve", tmp_path, database_url) as (client, _):
        acme, globex = with_key(client, ada), with_key(client, bob)
        assert refuse(client) == (401, "unauthenticated")
        assert client.get(f"{PATH}/stream").problem == "unauthenticated"
        assert refuse(with_key(client, blind)) == (403, "forbidden")
        assert with_key(client, blind).post("/api/v1/tickets").problem == "forbidden"
        assert refuse(acme, Origin="https://example.org") == (403, "origin-refused")
        run_id = acme.post("/runs", {"flow": "name: secret\ntasks: {a: {run: 'true'}}"}).json["id"]
        assert refuse(globex, f"run_id={run_id}") == (404, "not-found")
        with follow(globex, after="0") as theirs, follow(acme, after="0") as ours:
            assert run_id in json.dumps(receive(ours))
            assert receive(theirs)["events"] == []
            globex.post("/api/jobs", {"task_description": "own"})
            frame = receive(theirs)
            assert frame["events"]
            assert run_id not in json.dumps(frame)
        check_tickets(client, acme, globex, run_id)
        with follow(acme) as connection:
            receive(connection)
            revoke(acme, acme.get("/api/v1/keys").json["items"], "ada")
            with pytest.raises(ConnectionClosed) as closed:
                connection.recv(PATIENCE_SECONDS)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008


def check_tickets(client: Client, acme: Client, globex: Client, run_id: str) -> None:
    ticket = acme.post("/api/v1/tickets").json["ticket"]
    forged = ticket[:-1] + ("0" if ticket[-1] != "0" else "1")
    for wrong in (forged, "", "pmt_", ada_as_bob(ticket, globex), "x" * 5000):
        assert refuse(client, urlencode({"ticket": wrong})) == (401, "unauthenticated")
    assert refuse(client, urlencode({"ticket": ticket}), Origin="http://example.org") == (403, "origin-refused")
    assert client.get(f"/runs?ticket={ticket}").problem == "unauthenticated", "it is good for streams only"
    with follow(client, after="0", ticket=ticket) as connection:
        assert run_id in json.dumps(receive(connection))
    assert refuse(client, urlencode({"ticket": ticket})) == (401, "unauthenticated")
    ticket = acme.post("/api/v1/tickets").json["ticket"]
    with listen(client, f"{PATH}/stream?after=0&ticket={ticket}", Origin=client.url) as lines:
        assert run_id in json.dumps(read_event(lines))


def ada_as_bob(ticket: str, globex: Client) -> str:
    """The ticket of one key with the id of another."""
    parts, others = ticket.split("_"), globex.post("/api/v1/tickets").json["ticket"].split("_")
    return "_".join((parts[0], others[1], *parts[2:]))


def test_bad_cursors_and_filters_are_problems_of_the_handshake(client: Client) -> None:
    for query, status in BAD_QUERIES.items():
        assert refuse(client, query)[0] == status, query
        assert client.send("GET", f"{PATH}/stream?{query}").status == status, query
    assert client.send("GET", f"{PATH}/stream", headers={"Last-Event-ID": "x"}).status == 422
    assert refuse(client, Origin="http://example.org") == (403, "origin-refused")
    parts = urlsplit(client.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as raw, pytest.raises(InvalidStatus) as refused:
        connect(f"ws://example.org{PATH}", sock=raw)
    assert json.loads(refused.value.response.body)["type"] == "/problems/host-refused"


GARBAGE = {
    "not a frame": b"\xff" * 100,
    "a frame without a mask": b"\x81\x05hello",
    "a text that is not UTF-8": b"\x81\x82\0\0\0\0\xff\xfe",
    "a message of a terabyte": b"\x82\xff" + struct.pack("!Q", 1 << 40) + b"\0\0\0\0",
    "a reserved opcode": b"\x83\x80\0\0\0\0",
    "a message": b"\x81\x82\0\0\0\0hi",
    "a fragment and another beginning": b"\x01\x81\0\0\0\0a\x01\x81\0\0\0\0b",
    "a ping too long": b"\x89\xfe\x00\xff" + b"\0" * 259,
    "half a header": b"\x81",
    "a continuation of nothing": b"\x80\x80\0\0\0\0",
}


def open_raw(client: Client, query: str = "after=0", receive_buffer: int | None = None) -> socket.socket:
    """A WebSocket without a library, behind the answer to its handshake."""
    parts = urlsplit(client.url)
    raw = socket.socket()
    if receive_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.settimeout(PATIENCE_SECONDS)
    raw.connect((parts.hostname, parts.port))
    raw.sendall(
        f"GET {PATH}?{query} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += raw.recv(1)
    assert head.startswith(b"HTTP/1.1 101"), head
    return raw


CLOSED = struct.pack("!H", 1003) + b"This stream takes no messages."


def receive_raw(raw: socket.socket) -> bytes:
    try:
        return raw.recv(65536)
    except ConnectionResetError:
        return b""


def test_garbage_ends_its_own_connection_and_no_other(client: Client) -> None:
    with follow(client) as healthy:
        receive(healthy)
        for name, garbage in GARBAGE.items():
            with open_raw(client) as raw:
                raw.sendall(garbage)
                said = b""
                while name != "half a header" and CLOSED not in said[-200:] and (chunk := receive_raw(raw)):
                    said += chunk
                assert name != "a message" or CLOSED in said
        job_id = client.post("/api/jobs", {"task_description": "still there"}).json["id"]
        while job_id not in json.dumps(receive(healthy)):
            pass


def test_a_reader_that_stands_still_is_dropped_and_continues_with_its_cursor(tmp_path: Path, database_url: str) -> None:
    async def fill() -> None:
        async with app.open(database_url, keeps=False) as engine:
            for _ in range(300):
                run = await engine.submit_run(NewRun(name="x", tasks=[NewTask(name="a")], lifecycle="approval"))
                await engine.signal_run(run.id, "cancel", reason="x" * 100_000)

    asyncio.run(fill())
    with start("serve", tmp_path, database_url) as (client, process):
        with open_raw(client, receive_buffer=4096) as stalled, follow(client) as healthy:
            receive(healthy)
            until(lambda: count_connections(process) == 1)
            cursor, seen = read_frames(stalled)
            job_id = client.post("/api/jobs", {"task_description": "y"}).json["id"]
            assert job_id in json.dumps(receive(healthy))
        expected = list_positions(client, "0")
        assert 0 < len(seen) < len(expected), "it was dropped amid the stream"
        with follow(client, after=cursor, type="transition") as connection:
            while len(seen) < len(expected):
                seen += [event["position"] for event in receive(connection)["events"]]
        assert seen == expected


def count_connections(process: subprocess.Popen[str]) -> int:
    """Established TCP connections of a process."""
    links = []
    for each in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(str(each.readlink()))
    inodes = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:")}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port = {int(line[1].split(":")[1], 16) for line in lines if line[3] == "0A" and line[9] in inodes}
    return sum(line[3] == "01" and line[9] in inodes and int(line[1].split(":")[1], 16) in port for line in lines)


def read_frames(raw: socket.socket) -> tuple[str, list[str]]:
    """All whole frames that have arrived before the connection broke: the last cursor, and the positions."""
    data = b""
    with suppress(ConnectionResetError):
        while chunk := raw.recv(1 << 20):
            data += chunk
    cursor, seen = "0", []
    while len(data) >= 10:
        size, begin = data[1] & 0x7F, 2
        if size == 126:
            size, begin = struct.unpack("!H", data[2:4])[0], 4
        elif size == 127:
            size, begin = struct.unpack("!Q", data[2:10])[0], 10
        if len(data) < begin + size:
            break
        frame = json.loads(data[begin : begin + size]) if data[0] == 0x81 else None
        data = data[begin + size :]
        if frame:
            cursor = frame["cursor"]
            seen += [event["position"] for event in frame["events"] if event["type"] == "transition"]
    return cursor, seen


def test_a_flood_of_connections_is_bounded(tmp_path: Path, sqlite_url: str) -> None:
    with start("serve", tmp_path, sqlite_url) as (client, _), ExitStack() as stack:
        for _ in range(STREAMS_PER_TENANT):
            stack.enter_context(open_raw(client))
        assert refuse(client) == (429, "too-many-streams")
        refused = client.get(f"{PATH}/stream")
        assert (refused.problem, refused.headers["retry-after"]) == ("too-many-streams", "10")
        assert client.get("/runs").status == 200
        stack.close()
        connection = until(lambda: try_to_follow(client))
        assert connection is not None
        with connection:
            assert receive(connection)["cursor"]


def try_to_follow(client: Client) -> ClientConnection | None:
    try:
        return connect(client.url.replace("http", "ws") + PATH)
    except InvalidStatus:
        return None


def test_a_server_that_stops_closes_its_streams(tmp_path: Path, sqlite_url: str) -> None:
    with ExitStack() as stack:
        client, process = stack.enter_context(start("serve", tmp_path, sqlite_url))
        connection = stack.enter_context(follow(client))
        lines = stack.enter_context(listen(client, f"{PATH}/stream"))
        receive(connection)
        read_event(lines)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(PATIENCE_SECONDS)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        assert lines.read() == b""
        assert process.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "serve.txt").read_text().count("\n") == 1, "it says only that it stops"
