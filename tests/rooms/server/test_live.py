"""Live events inside of a process: what a transition becomes, frames, heartbeats, one reader for all clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from pointsman import app
from pointsman.engine.engine import Engine, TenantEngine
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import CallRefused
from pointsman.kernel.machine import Machine
from pointsman.kernel.machine import Transition as Declared
from pointsman.lifecycles import SHIPPED, load_lifecycle
from pointsman.server import events, live
from pointsman.server.auth import Holder
from pointsman.server.events import Event, StreamQuery, write_frames
from pointsman.server.live import Ending, Live
from pointsman.store.rows import Transition
from pointsman.world import World

HOLDER = Holder("default", "ada")
EVERYTHING = StreamQuery()


def make_move(machine: Machine, declared: Declared) -> Transition:
    return Transition(
        position="1",
        tenant="default",
        kind=machine.kind,
        entity_id="x",
        revision=1,
        run_id="run_x",
        machine_id=1,
        from_state=declared.from_state,
        to_state=declared.to_state,
        trigger=declared.trigger,
        severity="info",
        reason=None,
        actor=None,
        metadata=None,
        at=datetime(2026, 1, 1, tzinfo=UTC),
        seconds_in_state=None,
    )


def states_where(machine: Machine, is_so: Callable[[Machine, Transition], bool]) -> set[str]:
    moves = [make_move(machine, each) for each in machine.transitions]
    return {each.to_state for each in moves if is_so(machine, each)}


def test_an_agent_task_completes_and_asks_as_the_document_says() -> None:
    machine = load_lifecycle("agent").machine("task")
    expected = {"READY", "COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED", "BUDGET_EXCEEDED", "BLOCKED"}
    assert states_where(machine, events._completes) == expected
    asking = [each for each in machine.transitions if events._asks(machine, make_move(machine, each))]
    assert [str(each) for each in asking] == ["RUNNING -> BLOCKED : ask [has_session]"]


@pytest.mark.parametrize("name", SHIPPED)
def test_under_every_lifecycle_each_end_completes_a_task_and_nothing_that_goes_on_by_itself_does(name: str) -> None:
    for machine in load_lifecycle(name).machines:
        if machine.kind != "task":
            continue
        completing = states_where(machine, events._completes)
        entered = {each.to_state for each in machine.transitions}
        assert {state.name for state in machine.states if state.phase == "done" and state.name in entered} <= completing
        assert not any(machine.state(each).phase in ("queued", "active") for each in completing)


def event(position: int, text: str = "{}") -> Event:
    return Event("default", position, "transition", "task", None, "standard", "X", text)


def test_frames_are_cut_between_transitions_and_have_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LARGEST_FRAME", 10)
    found = list(write_frames([event(1, '"aaaa"'), event(2, '"bbbb"'), event(2, '"cccc"'), event(3, '"dddd"')], 9))
    assert [frame.cursor for frame in found] == [1, 2, 9]
    assert [msgspec.json.decode(frame.text)["events"] for frame in found] == [["aaaa"], ["bbbb", "cccc"], ["dddd"]]
    assert list(write_frames([], 9)) == []


async def act(engine: TenantEngine, count: int = 1) -> None:
    for _ in range(count):
        await engine.submit_run(NewRun(name="x", tasks=[NewTask(name="a")], lifecycle="approval"))


async def take(served: Live, stream: live.Stream, until: int) -> list[Any]:
    """Frames up to a position."""
    found: list[Any] = []
    async with asyncio.timeout(20):
        while not found or int(found[-1]["cursor"]) < until:
            found += [msgspec.json.decode(frame.text) for frame in await served.next_frames(stream)]
    return found


def positions(frames: list[Any]) -> list[int]:
    return [int(each["position"]) for frame in frames for each in frame["events"] if each["type"] == "transition"]


async def last(engine: Engine) -> int:
    return int(await engine.last_position() or 0)


async def test_many_clients_share_one_reader_and_each_gets_everything_behind_its_cursor(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.open(database_url, keeps=False) as engine:
        await act(engine, 5)
        served, looks = Live(engine, World()), 0
        read = engine.list_all_transitions

        async def count(**given: Any) -> list[Transition]:
            nonlocal looks
            looks += 1
            return await read(**given)

        monkeypatch.setattr(engine, "list_all_transitions", count)
        streams = [await served.join(HOLDER, StreamQuery(after=str(after))) for after in range(4) for _ in range(25)]
        foreign = await served.join(Holder("globex", "bob"), StreamQuery(after="0"))
        await act(engine, 5)
        await act(engine.for_tenant("globex"))
        end = await last(engine)
        everything = [int(each.position) for each in await engine.list_transitions()]
        for stream, frames in zip(streams, await asyncio.gather(*(take(served, each, end) for each in streams)), strict=True):
            assert positions(frames) == [each for each in everything if each > streams.index(stream) // 25]
        assert positions(await take(served, foreign, end)) == [
            int(each.position) for each in await engine.for_tenant("globex").list_transitions()
        ]
        assert looks < 20
        for stream in (*streams, foreign):
            served.leave(stream)


async def test_a_heartbeat_moves_the_cursor_over_what_a_filter_leaves_out(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.05)
    async with app.open(sqlite_url, keeps=False) as engine:
        served = Live(engine, World())
        stream = await served.join(HOLDER, StreamQuery(type="task_question", lifecycle="agent"))
        await act(engine, 3)
        frames = await take(served, stream, await last(engine))
        assert positions(frames) == []
        served.leave(stream)


async def test_recent_batches_are_bounded_and_a_client_that_is_older_reads_pages(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "RECENT_EVENTS", 3)
    monkeypatch.setattr(live, "PAGE", 2)
    async with app.open(sqlite_url, keeps=False) as engine:
        served = Live(engine, World())
        slow, quick = [await served.join(HOLDER, EVERYTHING) for _ in range(2)]
        for _ in range(5):
            await act(engine, 2)
            await take(served, quick, await last(engine))
        assert len(served._recent) == 1
        everything = [int(each.position) for each in await engine.list_transitions()]
        assert positions(await take(served, slow, everything[-1])) == everything
        served.close()
        assert await served.next_frames(slow) == ()
        assert slow.ending is Ending.STOPPING
        served.leave(slow)
        served.leave(quick)


async def test_the_number_of_streams_of_a_tenant_is_bounded_and_others_are_not_affected(sqlite_url: str) -> None:
    async with app.open(sqlite_url, keeps=False) as engine:
        served = Live(engine, World(), streams_per_tenant=2)
        first, second = [await served.join(HOLDER, EVERYTHING) for _ in range(2)]
        with pytest.raises(CallRefused, match="2 streams"):
            await served.join(HOLDER, EVERYTHING)
        other = await served.join(Holder("globex", "bob"), EVERYTHING)
        served.leave(first)
        again = await served.join(HOLDER, EVERYTHING)
        for stream in (second, other, again):
            served.leave(stream)
