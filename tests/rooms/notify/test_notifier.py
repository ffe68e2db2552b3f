"""The notifier: which events become notifications, that each is delivered at least once, and what is tried again or dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.notify.receiver import Receiver
from tests.rooms.worker.shop import PATIENCE_SECONDS, Shop, open_shop
from tests.rooms.worker.test_people import say, until_asked

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.engine.filters import EVERY_NOTIFICATION, NotificationFilter
from pointsman.notify.notifier import ALL_RUNS, Notifier
from pointsman.settings import NotifyTarget, ToolProfile
from pointsman.store.rows import OutboxEntry, OutboxScope, Run
from pointsman.views.inbox import InboxItem
from pointsman.views.values import RunView
from pointsman.world import World

EVERYTHING = ("person_needed", "run_ended", "breaker_opened")
GATED = """
    name: gated
    lifecycle: {lifecycle}
    tasks:
      gate: {{approval: {{prompt: "Ship it?", by: [ada]}}}}
      work: {{needs: gate, run: {run}, retries: 0}}
    """
FAILING = "{name: failing, tasks: {work: {run: exit 3, retries: 0}}}"


class NoCommands:
    def for_item(self, item: InboxItem) -> Sequence[tuple[str, str]]:
        return [(f"decide {item.task}", "decides")]

    def for_run(self, run: RunView) -> Sequence[tuple[str, str]]:
        return [(f"look {run.name}", "looks")]

    def for_tool(self, tool: str) -> Sequence[tuple[str, str]]:
        return [(f"reset {tool}", "resets")]


def hook(receiver: Receiver, name: str = "ops", on: tuple[str, ...] = EVERYTHING, **keys: Any) -> dict[str, NotifyTarget]:
    return {name: NotifyTarget(name=name, on=on, webhook=receiver.url(f"/{name}"), allow_private=True, **keys)}


def make_notifier(shop: Shop, engine: Engine | None = None) -> Notifier:
    return Notifier(engine or shop.engine, shop.settings, World(), NoCommands())


async def open_notifier(shop: Shop) -> Notifier:
    notifier = make_notifier(shop)
    await notifier.open()
    return notifier


async def run_to_end(shop: Shop, text: str) -> Run:
    run = await shop.submit(text)
    async with shop.working(run):
        await shop.until_done(run)
    return run


async def entries(shop: Shop, wanted: NotificationFilter = EVERY_NOTIFICATION) -> list[OutboxEntry]:
    return await shop.engine.outbox.list_entries(wanted)


async def test_people_are_told_what_waits_for_them_and_how_a_run_has_ended(
    database_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    async with open_shop(database_url, tmp_path, notify=hook(receiver)) as shop:
        notifier = await open_notifier(shop)
        run = await shop.submit(GATED.format(lifecycle="standard", run="exit 3"))
        assert await notifier.flush() == 0
        async with shop.working(run):
            await say(shop, (await until_asked(shop, run, "gate"))["gate"], "approve")
            await shop.until_done(run)
        assert await notifier.flush() == 0
        assert await notifier.flush() == 0, "a second look finds nothing new"
        (ended, needed) = await entries(shop)
    asked, over = (got.message for got in receiver.received)
    assert (asked["type"], asked["data"]["task"]["name"], asked["data"]["text"]) == ("person_needed", "gate", "Ship it?")
    assert (asked["data"]["by"], asked["data"]["commands"]) == (["ada"], [{"command": "decide gate", "what": "decides"}])
    assert (over["type"], over["data"]["run"]["id"], over["data"]["run"]["outcome"]) == ("run_ended", run.id, "failure")
    assert over["data"]["failed_tasks"] == [{"name": "work", "error": "exited with code 3 (expected 0)"}]
    assert [got.headers["webhook-id"] for got in receiver.received] == [needed.id, ended.id]
    assert ended.delivered_at is not None
    assert needed.delivered_at is not None


@pytest.mark.parametrize(("flow", "told"), [(FAILING, True), (FAILING.replace("exit 3", "'true'"), False)])
async def test_a_target_gets_only_the_events_that_it_wants(
    database_url: str, tmp_path: Path, receiver: Receiver, flow: str, *, told: bool
) -> None:
    async with open_shop(database_url, tmp_path, notify=hook(receiver, on=("run_failed",))) as shop:
        notifier = await open_notifier(shop)
        await run_to_end(shop, flow)
        await notifier.flush()
    assert len(receiver.received) == told


async def test_nobody_is_told_of_what_was_decided_before_anyone_could_tell(
    database_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    async with open_shop(database_url, tmp_path, notify=hook(receiver, on=("person_needed",))) as shop:
        notifier = await open_notifier(shop)
        run = await shop.submit(GATED.format(lifecycle="standard", run="'true'"))
        await say(shop, (await until_asked(shop, run, "gate"))["gate"], "approve")
        await notifier.flush()
    assert receiver.received == []


async def test_an_open_circuit_is_told_once_with_the_time_of_its_next_try(
    database_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    tools = {"flaky": ToolProfile("flaky", failure_threshold=1)}
    async with open_shop(database_url, tmp_path, notify=hook(receiver), tools=tools) as shop:
        notifier = await open_notifier(shop)
        await run_to_end(shop, "{name: use, tasks: {work: {tool: flaky, command: ['false'], retries: 0}}}")
        await notifier.flush()
    opened = next(got.message["data"] for got in receiver.received if got.message["type"] == "breaker_opened")
    assert (opened["tool"]["name"], opened["commands"]) == ("flaky", [{"command": "reset flaky", "what": "resets"}])
    assert opened["tool"]["retry_at"] is not None
    assert "failure" in opened["reason"]
    assert sorted(got.message["type"] for got in receiver.received) == ["breaker_opened", "run_ended"]


async def test_a_flow_has_targets_of_its_own_which_reach_no_private_address_and_run_commands_only_where_they_may(
    database_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    flow = f"""
        name: telling
        notify:
          - {{name: inside, on: run_ended, webhook: "{receiver.url("/secret-path")}"}}
          - {{name: program, on: [run_ended], command: [sh, -c, "cat > told.json; env > env.txt"]}}
        tasks: {{work: {{run: "true"}}}}
        """
    async with open_shop(database_url, tmp_path, pass_env=("SEEN",)) as shop:
        notifier = await open_notifier(shop)
        run = await run_to_end(shop, flow)
        await notifier.flush()
        assert not (tmp_path / "told.json").exists()
        left = {entry.target: entry for entry in await entries(shop)}
        notifier.allow_commands("another run")
        await notifier.flush()
        assert not (tmp_path / "told.json").exists()
        notifier.allow_commands(run.id)
        assert await notifier.flush() == 0
    assert (left["program"].due_at is not None, left["inside"].dead_at is not None) == (True, True)
    assert "is at a private address (127.0.0.1), which is refused" in (left["inside"].error or "")
    assert "secret-path" not in (left["inside"].error or "")
    assert receiver.received == []
    assert json.loads((tmp_path / "told.json").read_text())["data"]["run"]["id"] == run.id
    variables = dict(line.split("=", 1) for line in (tmp_path / "env.txt").read_text().splitlines() if "=" in line)
    assert variables["POINTSMAN_EVENT"] == "run_ended"
    assert variables["POINTSMAN_EVENT_RUN_ID"] == run.id
    assert {name for name in variables if name.startswith("POINTSMAN_")} <= {
        f"POINTSMAN_EVENT{each}" for each in ("", "_ID", "_SUBJECT", "_RUN", "_RUN_ID", "_OUTCOME")
    }


async def test_what_fails_is_tried_again_later_and_dies_after_its_last_try_until_a_person_retries_it(
    database_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    receiver.answer = lambda _: 500
    async with open_shop(database_url, tmp_path, notify=hook(receiver, on=("run_ended",), tries=3)) as shop:
        notifier = await open_notifier(shop)
        await run_to_end(shop, FAILING)
        assert await notifier.flush() == 1
        (entry,) = await entries(shop)
        delays = [wait_of(entry, await shop.engine.now())]
        assert "answered 500 Internal Server Error" in (entry.error or "")
        assert await notifier.flush() == 1, "it is not due yet"
        assert len(receiver.received) == 1
        for _ in range(2):
            await make_due(shop, entry)
            await notifier.flush()
            (entry,) = await entries(shop)
            delays.append(wait_of(entry, await shop.engine.now()))
        assert (entry.tries, entry.dead_at is not None) == (3, True)
        assert await entries(shop, NotificationFilter(delivery="due")) == []
        assert delays[1] > 2 * delays[0] > timedelta(0)
        receiver.answer = lambda _: 200
        assert await notifier.flush() == 0
        assert len(receiver.received) == 3, "a dead one is not tried"
        assert await shop.engine.retry_notifications([entry.id]) == [entry.id]
        await notifier.flush()
        (entry,) = await entries(shop)
    assert (entry.delivered_at is not None, len(receiver.received)) == (True, 4)
    assert len({got.headers["webhook-id"] for got in receiver.received}) == 1, "every try has the same id"


def wait_of(entry: OutboxEntry, now: Any) -> timedelta:
    return entry.due_at - now if entry.due_at else timedelta(0)


async def make_due(shop: Shop, entry: OutboxEntry) -> None:
    """As if its delay were over: `retry` makes it due and forgets its tries, which are made again here."""
    await shop.engine.retry_notifications([entry.id])
    for _ in range(entry.tries):
        (claimed,) = await shop.engine.outbox.claim(OutboxScope(targets=(entry.target,)), 1, 60)
        await shop.engine.outbox.settle(claimed, "tried before", 0)


async def test_what_a_process_has_claimed_and_not_settled_is_delivered_by_another_one(
    database_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    async with open_shop(database_url, tmp_path, notify=hook(receiver, on=("run_ended",))) as shop:
        notifier = await open_notifier(shop)
        await run_to_end(shop, FAILING)
        await notifier.fill()
        (lost,) = await shop.engine.outbox.claim(notifier.scope, 10, lease_seconds=0)
        assert await notifier.flush() == 0
        assert len(receiver.received) == 1
        assert not await shop.engine.outbox.settle(lost, "too late", None), "its lease is over"
        (entry,) = await entries(shop)
    assert (entry.delivered_at is not None, entry.error, entry.tries) == (True, None, 2)


async def test_a_last_try_whose_process_ended_is_dead_and_says_so(
    database_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    async with open_shop(database_url, tmp_path, notify=hook(receiver, on=("run_ended",), tries=1)) as shop:
        notifier = await open_notifier(shop)
        await run_to_end(shop, FAILING)
        await notifier.fill()
        await shop.engine.outbox.claim(notifier.scope, 10, lease_seconds=0)
        await notifier.flush()
        (entry,) = await entries(shop, NotificationFilter(delivery="dead"))
    assert entry.error == "The process that made the last try ended before the receiver answered."


async def test_many_processes_deliver_each_notification_once(database_url: str, tmp_path: Path, receiver: Receiver) -> None:
    async with (
        open_shop(database_url, tmp_path, notify=hook(receiver, on=("run_ended",))) as shop,
        app.open(database_url) as second,
        app.open(database_url) as third,
    ):
        notifiers = [make_notifier(shop, engine) for engine in (shop.engine, second, third)]
        for notifier in notifiers:
            await notifier.open()
            notifier.start(commands_of=ALL_RUNS)
        runs = [await shop.submit("{name: many, tasks: {work: {run: 'true'}}}") for _ in range(12)]
        worker = shop.worker()
        working = asyncio.create_task(worker.work())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(receiver.received) < len(runs):  # noqa: ASYNC110 - the server is in another thread
                await asyncio.sleep(0.02)
        worker.drain()
        await working
        for notifier in notifiers:
            await notifier.flush()
    told = [got.message["data"]["run"]["id"] for got in receiver.received]
    assert sorted(told) == sorted(run.id for run in runs)


async def test_a_slow_receiver_delays_only_its_own_target(database_url: str, tmp_path: Path, receiver: Receiver) -> None:
    slow = NotifyTarget(name="slow", on=("run_ended",), command=("sh", "-c", "touch began; sleep 600"), timeout_seconds=300)
    async with open_shop(database_url, tmp_path, notify=hook(receiver) | {"slow": slow}) as shop:
        notifier = await open_notifier(shop)
        notifier.start(commands_of=ALL_RUNS)
        for _ in range(2):
            await run_to_end(shop, FAILING)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(receiver.received) < 2 or not (tmp_path / "began").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await notifier.flush(0.1) == 2


async def test_a_new_target_is_not_told_of_the_past(database_url: str, tmp_path: Path, receiver: Receiver) -> None:
    async with open_shop(database_url, tmp_path, notify=hook(receiver, "old")) as shop:
        await open_notifier(shop)
        await run_to_end(shop, FAILING)
        both = replace(shop.settings, notify=hook(receiver, "old") | hook(receiver, "new"))
        later = Shop(shop.engine, both)
        notifier = await open_notifier(later)
        await notifier.flush()
    assert [got.path for got in receiver.received] == ["/old"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("no-such-program",), "no-such-program cannot be started: No such file or directory"),
        (("sh", "-c", "echo it is $TOKEN; exit 7"), "sh exited with code 7: it is ***"),
        (("sh", "-c", "kill -9 $$"), "sh was killed by signal 9"),
        (("sh", "-c", "sleep 600"), "sh did not end within 0.2 seconds"),
        (("sh", "-c", "printf '\\033[31m%s\\0' red; exit 1"), "sh exited with code 1: \x1b[31mred"),
    ],
)
async def test_a_command_that_fails_says_why_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], message: str
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret-t0ken")
    target = NotifyTarget(
        name="program", on=("run_ended",), command=command, tries=1, timeout_seconds=0.2 if "600" in command[-1] else 60,
        pass_env=("TOKEN",),
    )  # fmt: skip
    async with open_shop(f"sqlite:///{tmp_path}/state.db", tmp_path, notify={"program": target}) as shop:
        notifier = await open_notifier(shop)
        await run_to_end(shop, FAILING)
        await notifier.flush(30)
        (entry,) = await entries(shop, NotificationFilter(delivery="dead"))
    assert entry.error == message


async def test_a_command_that_writes_without_end_and_reads_nothing_is_never_blocked(tmp_path: Path) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' x; touch done"
    target = NotifyTarget(name="loud", on=("run_ended",), command=("sh", "-c", script), timeout_seconds=60)
    async with open_shop(f"sqlite:///{tmp_path}/state.db", tmp_path, notify={"loud": target}) as shop:
        notifier = await open_notifier(shop)
        await run_to_end(shop, FAILING)
        assert await notifier.flush(60) == 0
    assert (tmp_path / "done").exists()
