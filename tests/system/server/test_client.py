"""The Python client, sync and async, with real servers."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.system.server.harness import Client as HttpClient
from tests.system.server.harness import start, until
from tests.system.server.test_front import make_certificate
from tests.system.server.test_keys import EVERY, create_keys

from pointsman.client import AsyncClient, Client, NewTask, RunFilter, TaskCompleted, TransitionEvent
from pointsman.errors import (
    AlreadyExists,
    AuthenticationFailed,
    CallRefused,
    EngineClosed,
    FlowInvalid,
    KeyReused,
    NotFound,
    OutcomeUnknown,
    RequestInvalid,
    ServerUnavailable,
    TransitionRefused,
)

FLOW = "name: greeting\ntasks:\n  greet: {run: 'echo hello; echo world'}\n"
GATED = (
    "name: gated\nlifecycle: approval\nordered: true\ntasks:\n  APPROVAL: {approval: {prompt: Go?}}\n  SEND: {run: 'true'}\n"
)
SLOW = "name: slow\ntasks:\n  a: {run: 'echo one; until [ -e %s ]; do sleep 0.05; done; echo two'}\n"

RESTART_SECONDS = 300
"""How long a client waits for a server that starts on a busy machine."""


@pytest.fixture
def user(client: HttpClient) -> Iterator[Client]:
    with Client(client.url, actor="Zoë") as user:
        yield user


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def find_task(user: Client, run_id: str) -> str:
    return user.list_run_tasks(run_id).items[0].id


def test_a_flow_is_submitted_and_waited_for(user: Client) -> None:
    checked = user.check_flow(flow=FLOW)
    assert (checked.valid, checked.tasks) == (True, ("greet",))
    run = user.run_flow(flow=FLOW, reason="Grüße", request_id="grüße-1")
    assert user.run_flow(flow=FLOW, reason="Grüße", request_id="grüße-1").id == run.id
    with pytest.raises(KeyReused) as reused:
        user.run_flow(flow=FLOW, request_id="grüße-1")
    assert reused.value.key == "grüße-1"
    ended = user.wait_for_run(run.id)
    assert (ended.outcome, ended.spent_usd) == ("success", Decimal(0))
    task_id = find_task(user, run.id)
    assert user.read_log(task_id, 1) == b"hello\nworld\n"
    assert user.read_log(task_id, 1, start=6) == b"world\n"
    assert user.read_log(task_id, 1, start=-3) == b"ld\n"
    assert user.read_log(task_id, 1, start=1, end=3) == b"el"
    assert user.read_log(task_id, 1, start=99) == b""
    assert user.list_run_history(run.id).items[0].actor == "Zoë"
    assert user.view_run(run.id).tasks[0].log_path is not None


def test_an_approval_is_found_and_given(user: Client) -> None:
    run = user.run_flow(flow=GATED)
    (waiting,) = until(lambda: [each for each in user.list_inbox().items if each.run_id == run.id])
    assert "Go?" in (waiting.text or "")
    with pytest.raises(TimeoutError, match="has not ended within"):
        user.wait_for_run(run.id, timeout_seconds=0.1)
    assert user.approve_run(run.id, reason="read it").id == run.id
    assert user.wait_for_run(run.id).outcome == "success"


def test_lists_are_read_page_by_page(user: Client) -> None:
    runs = {user.submit_run(name="paged", tasks=[NewTask(name="a", gate=True)]).id for _ in range(5)}
    assert len(user.list_runs(name="paged", limit=2).items) == 2
    assert {run.id for run in user.iterate_runs(name="paged")} == runs
    page = user.list_runs(name="paged", limit=2)
    assert {run.id for run in user.iterate_runs(name="paged", after=page.next)} == runs - {run.id for run in page.items}
    moved = user.signal_runs(action="cancel", filter=RunFilter(name="paged"), dry_run=True)
    assert ({each.run_id for each in moved.items}, moved.dry_run) == (runs, True)
    events = list(user.iterate_events(run_id=next(iter(runs))))
    assert [each.position for each in events] == sorted((each.position for each in events), key=int)


def test_problems_are_the_exceptions_of_the_engine(user: Client) -> None:
    with pytest.raises(NotFound) as missing:
        user.get_run("run_1")
    assert (missing.value.kind, missing.value.name) == ("run", "run_1")
    with pytest.raises(FlowInvalid) as invalid:
        user.run_flow(flow="name: x\ntasks:\n  a: {run: 'true', needs: b}\n")
    assert "b" in invalid.value.findings[0].message
    with pytest.raises(RequestInvalid) as wrong:
        user.submit_run(name="", tasks=[])
    assert [problem.path for problem in wrong.value.problems] == ["name"]
    run = user.submit_run(name="ends", tasks=[NewTask(name="a", gate=True)])
    user.signal_run(run.id, signal="cancel")
    with pytest.raises(TransitionRefused) as refused:
        user.signal_run(run.id, signal="pause")
    assert refused.value.refusal.message == str(refused.value)
    for odd in ("..", ".", "ü", "%2e", "a?b#c", " ", "a/b", "../a"):
        with pytest.raises((NotFound, RequestInvalid)):
            user.get_template(odd)
    with pytest.raises(TypeError):
        user.submit_run(name="x", tasks=[NewTask(name="a", payload=object())])


def test_a_log_is_followed_while_it_is_written(user: Client, tmp_path: Path) -> None:
    task_id = find_task(user, user.run_flow(flow=SLOW % (tmp_path / "go")).id)
    until(lambda: user.list_attempts(task_id).items)
    with user.follow_log(task_id, 1) as log:
        assert next(log) == b"one\n"
        (tmp_path / "go").touch()
        assert b"".join(log) == b"two\n"
        assert list(log) == []
    assert b"".join(user.follow_log(task_id, 1)) == b"one\ntwo\n"


def test_events_begin_when_the_stream_is_entered(user: Client) -> None:
    with user.events(types=["task_completed", "transition"]) as events:
        run = user.run_flow(flow=FLOW)
        ended = user.wait_for_run(run.id)
        seen = []
        for event in events:
            if isinstance(event, TransitionEvent) and (event.id, event.to_state) == (run.id, ended.state):
                break
            seen.append(event)
    assert [event.run_id for event in seen if isinstance(event, TaskCompleted)].count(run.id) == 1


def test_events_continue_behind_each_cursor(user: Client) -> None:
    run = user.wait_for_run(user.run_flow(flow=FLOW).id)
    with user.events(after="0", run_id=run.id) as events:
        first = [next(events)]
        cursors = [events.cursor]
        while not (isinstance(first[-1], TransitionEvent) and first[-1].to_state == run.state and first[-1].id == run.id):
            first.append(next(events))
            cursors.append(events.cursor)
    for number, (event, cursor) in enumerate(zip(first, cursors, strict=True)):
        same = [each for each in first if each.position == event.position]
        with user.events(after=cursor, run_id=run.id) as rest:
            expected = first[number + 1 :] if event is same[-1] else first[first.index(same[0]) :]
            assert [next(rest) for _ in expected] == expected


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_events_over_a_restart_of_the_server_are_complete_and_come_once(
    tmp_path: Path, database_url: str, how: signal.Signals
) -> None:
    port = str(find_port())
    seen: list[str] = []
    submitted: list[str] = []
    with start("up", tmp_path, database_url, "--port", port) as (http, process):
        user = Client(http.url, retry_seconds=RESTART_SECONDS)
        events = user.events(types=["transition"])
        with events:
            submitted += [user.run_flow(flow=FLOW).id for _ in range(3)]
            seen += [next(events).position for _ in range(4)]
            process.send_signal(how)
            process.wait()
            reading = ThreadPoolExecutor(1)
            following = reading.submit(lambda: [next(events).position for _ in range(4)])
            with start("up", tmp_path, database_url, "--port", port):
                seen += following.result()
                submitted += [user.run_flow(flow=FLOW).id for _ in range(3)]
                for run_id in submitted:
                    user.wait_for_run(run_id)
                first = int(seen[0])
                there = [each.position for each in user.iterate_events() if int(each.position) >= first]
                while len(seen) < len(there):
                    seen.append(next(events).position)
                assert seen == there
            reading.shutdown()
            user.close()


def test_a_killed_server_does_each_change_once(tmp_path: Path, database_url: str) -> None:
    port = str(find_port())
    user = Client(f"http://127.0.0.1:{port}", retry_seconds=RESTART_SECONDS)
    with ThreadPoolExecutor(4) as threads:
        with start("serve", tmp_path, database_url, "--port", port) as (_, process):

            def submit(number: int) -> str:
                try:
                    return user.submit_run(name=f"run {number}", tasks=[NewTask(name="a", gate=True)]).id
                finally:
                    if number == 10:
                        process.kill()  # amid the changes of the other threads

            submitting = [threads.submit(submit, number) for number in range(60)]
            process.wait()
        with start("serve", tmp_path, database_url, "--port", port):
            answered = Counter(each.result() for each in submitting)
            there = {run.id: run.name for run in user.iterate_runs()}
    assert set(answered.values()) == {1}
    assert sorted(there.values()) == sorted(f"run {number}" for number in range(60)), "nothing is missing, or there twice"
    assert set(there) == set(answered)
    user.close()


@contextmanager
def lose_answers(url: str) -> Iterator[tuple[str, list[bool]]]:
    """A proxy that loses every other answer to a change: it was carried out, and the client does not learn it."""
    lost: list[bool] = []

    class Losing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            reply = HttpClient(url).send("POST", self.path, content, dict(self.headers.items()))
            lost.append(not lost or not lost[-1])
            if lost[-1]:
                self.close_connection = True
                return
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.headers["content-type"])
            self.send_header("Content-Length", str(len(reply.text)))
            self.end_headers()
            self.wfile.write(reply.text)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Losing) as proxy:
        threading.Thread(target=proxy.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}", lost
        finally:
            proxy.shutdown()


def test_a_change_whose_answer_is_lost_is_done_once(client: HttpClient) -> None:
    with lose_answers(client.url) as (url, lost), Client(url) as user, Client(client.url) as direct:
        runs = [user.submit_run(name="lost", tasks=[NewTask(name="a", gate=True)]).id for _ in range(5)]
        assert {run.id for run in direct.iterate_runs(name="lost")} == set(runs)
        user.signal_run(runs[0], signal="cancel")
        assert [move.trigger for move in direct.list_run_history(runs[0]).items].count("cancel") == 1
        assert lost == [True, False] * 6
        user.close()
        with Client(url, retry_seconds=0) as hasty, pytest.raises(OutcomeUnknown):
            hasty.submit_run(name="lost", tasks=[NewTask(name="a", gate=True)])


def test_a_server_that_is_away_is_named_when_patience_ends(tmp_path: Path, sqlite_url: str) -> None:
    with start("serve", tmp_path, sqlite_url) as (http, _):
        user = Client(http.url, retry_seconds=0)
        user.list_runs()
    for act in (user.list_runs, user.issue_ticket):
        with pytest.raises(ServerUnavailable, match="Cannot connect to"):
            act()
    with pytest.raises(ServerUnavailable), user.events() as _:
        pass
    user.close()
    with pytest.raises(EngineClosed):
        user.list_runs()


def test_keys_and_scopes(tmp_path: Path, database_url: str) -> None:
    key, reader = create_keys(database_url, [("acme", "ada", EVERY), ("acme", "reader", ("read",))])
    with start("serve", tmp_path, database_url) as (http, _):
        wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
        for bad in (None, wrong, "pm_x"):
            with Client(http.url, key=bad) as user, pytest.raises(AuthenticationFailed) as raised:
                user.list_runs()
            assert key[:-1] not in str(raised.value)
            with Client(http.url, key=bad) as user, pytest.raises(AuthenticationFailed), user.events():
                pass
        with Client(http.url, key=reader) as user:
            assert user.list_runs().items == ()
            with pytest.raises(CallRefused, match="This needs the scope submit") as refused:
                user.run_flow(flow=FLOW)
            assert (refused.value.problem, refused.value.status, refused.value.members) == (
                "forbidden",
                403,
                {"scope": "submit"},
            )
        with Client(http.url, key=key) as user:
            issued = user.create_key(name="ci", scopes=["read"])
            assert issued.text is not None
            with pytest.raises(AlreadyExists):
                user.create_key(name="ci", scopes=["read"])
            with Client(http.url, key=issued.text) as ci:
                assert ci.list_runs().items == ()


def test_a_certificate_is_checked(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path)
    with start("serve", tmp_path, sqlite_url, "--tls-cert", str(certificate), "--tls-key", str(key)) as (http, _):
        with Client(http.url, retry_seconds=0) as user, pytest.raises(ServerUnavailable, match="SSL_CERT_FILE"):
            user.list_runs()
        with Client(http.url.replace("https", "http"), retry_seconds=0) as user, pytest.raises(ServerUnavailable):
            user.list_runs()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with Client(http.url) as user:
            run = user.submit_run(name="safe", tasks=[NewTask(name="a", gate=True)])
            with user.events(after="0", run_id=run.id) as events:
                assert next(events).run_id == run.id
                ended = threading.Thread(target=list, args=(events,))
                ended.start()
                events.close()
                ended.join()


async def test_the_async_client_does_the_same(client: HttpClient, tmp_path: Path) -> None:
    async with AsyncClient(client.url, actor="ada", threads=2) as user:
        async with user.events(types=["task_completed"]) as events:
            runs = await asyncio.gather(*(user.run_flow(flow=FLOW) for _ in range(6)))
            ended = await asyncio.gather(*(user.wait_for_run(run.id) for run in runs))
            assert {run.outcome for run in ended} == {"success"}
            wanted = {run.id for run in runs}
            async for event in events:
                wanted.discard(str(event.run_id))
                if not wanted:
                    break
            assert events.cursor is not None
        assert {run.id async for run in user.iterate_runs(name="greeting")} >= {run.id for run in runs}
        gated = await user.run_flow(flow=GATED)
        with pytest.raises(TimeoutError, match="has not ended within"):
            await user.wait_for_run(gated.id, timeout_seconds=0.1)
        with pytest.raises(NotFound):
            await user.wait_for_run("run_1")
        slow = await user.run_flow(flow=SLOW % (tmp_path / "go"))
        (task,) = (await user.list_run_tasks(slow.id)).items
        while not (await user.list_attempts(task.id)).items:
            pass
        async with user.follow_log(task.id, 1) as log:
            assert await anext(log) == b"one\n"
            (tmp_path / "go").touch()
            assert b"".join([block async for block in log]) == b"two\n"
        assert await user.read_log(task.id, 1, start=-4) == b"two\n"


async def test_what_is_no_longer_waited_for_is_not_lost(client: HttpClient) -> None:
    async with AsyncClient(client.url) as user, user.events(types=["task_completed"], kind="task") as events:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(events)
        run = await user.run_flow(flow=FLOW)
        event = await anext(events)
        while event.run_id != run.id:
            event = await anext(events)
        assert isinstance(event, TaskCompleted)


async def test_closing_the_async_client_ends_what_waits(client: HttpClient) -> None:
    user = AsyncClient(client.url)
    run = await user.run_flow(flow=GATED)
    waiting = [
        asyncio.create_task(user.wait_for_run(run.id)),
        asyncio.create_task(anext(user.events(kind="worker", state="none"))),
    ]
    await user.list_runs()
    await user.close()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, EngineClosed) for each in ended), ended
    with pytest.raises((EngineClosed, RuntimeError)):
        await user.list_runs()
