"""Actions on all runs that fulfill a filter: what happens to each, what a dry run foresees, and how much is done at once."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.rooms.engine.harness import ManualClock, claim_one, open_engine, register

from pointsman.engine.engine import Engine
from pointsman.engine.filters import RunFilter
from pointsman.engine.operations import runs as operations
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.operations.runs import SignaledRuns
from pointsman.engine.pages import RunPlace, write_cursor
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import KeyReused, RequestInvalid
from pointsman.store.rows import Run

NIGHTLY = RunFilter(name="nightly")


async def submit(engine: Engine, *tasks: NewTask, name: str = "nightly") -> Run:
    return await engine.submit_run(NewRun(name=name, tasks=tasks))


async def states(engine: Engine) -> dict[str, str]:
    return {run.id: run.state for run in await engine.list_runs()}


def results(signaled: SignaledRuns) -> list[tuple[str, str, str, bool]]:
    return [(item.run_id, item.from_state, item.to_state, item.success) for item in signaled.items]


async def test_each_run_of_the_filter_is_moved_or_refused_and_a_dry_run_foresees_it(database_url: str) -> None:
    async with open_engine(database_url, ManualClock()) as engine:
        waiting = await submit(engine, NewTask(name="a"))
        worker = await register(engine)
        await claim_one(engine, worker)
        done = await submit(engine, NewTask(name="a"))
        await engine.signal_run(done.id, "cancel")
        other = await submit(engine, NewTask(name="a"), name="weekly")
        foreign = await engine.for_tenant("globex").submit_run(NewRun(name="nightly", tasks=(NewTask(name="a"),)))
        before = await states(engine)
        expected = [(done.id, "CANCELED", "CANCELED", False), (waiting.id, "RUNNING", "PAUSED", True)]
        foreseen = await engine.signal_runs(action="pause", filter=NIGHTLY, dry_run=True)
        assert (results(foreseen), foreseen.dry_run, foreseen.next) == (expected, True, None)
        assert await states(engine) == before
        signaled = await engine.signal_runs(action="pause", filter=NIGHTLY, reason="snow")
        assert (signaled.items, signaled.dry_run) == (foreseen.items, False)
        assert signaled.items[0].error
        assert await states(engine) == {**before, waiting.id: "PAUSED"}
        assert (await engine.get_run(waiting.id)).reason == "snow"
        assert (await engine.get_run(other.id)).state == before[other.id]
        assert (await engine.for_tenant("globex").get_run(foreign.id)).phase != "held"
        again = await engine.signal_runs(action="pause", filter=NIGHTLY)
        assert [item.success for item in again.items] == [False, False]


async def test_a_dry_run_and_the_action_agree_on_every_action_and_state(database_url: str) -> None:
    async with open_engine(database_url, ManualClock()) as engine:
        worker = await register(engine, slots=9)
        for action in ("cancel", "pause", "resume", "retry"):
            name = f"to {action}"
            wanted = RunFilter(name=name)
            _, paused, canceled, running = [await submit(engine, NewTask(name="a"), name=name) for _ in range(4)]
            claims = {claim.run_id: claim for claim in await engine.claim_tasks(worker.id, limit=4)}
            await engine.signal_run(paused.id, "pause")
            await engine.signal_run(canceled.id, "cancel")
            failed = claims[running.id]
            await engine.fail_task(failed.task_id, failed.epoch, AttemptReport(error="boom", retryable=False))
            foreseen = await engine.signal_runs(action=action, filter=wanted, dry_run=True)
            assert len(foreseen.items) == 4
            signaled = await engine.signal_runs(action=action, filter=wanted)
            assert [item.success for item in foreseen.items] == [item.success for item in signaled.items], action
            assert any(item.success for item in signaled.items), action
            assert not all(item.success for item in signaled.items), action


async def test_one_key_is_one_effect_even_when_other_runs_fulfill_the_filter_by_then(database_url: str) -> None:
    async with open_engine(database_url, ManualClock()) as engine:
        first = await submit(engine, NewTask(name="a"))
        answer = await engine.signal_runs(action="cancel", filter=NIGHTLY, request_id="k")
        late = await submit(engine, NewTask(name="a"))
        assert await engine.signal_runs(action="cancel", filter=NIGHTLY, request_id="k") == answer
        assert results(answer)[0][0] == first.id
        assert (await engine.get_run(late.id)).outcome is None
        with pytest.raises(KeyReused):
            await engine.signal_runs(action="cancel", filter=RunFilter(name="weekly"), request_id="k")


def cursor_of(run_id: str) -> str:
    return write_cursor(RunPlace, RunPlace(run_id))


async def test_more_runs_than_the_limit_are_left_for_the_next_call(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_engine(database_url, ManualClock()) as engine:
        names = [NewTask(name=name) for name in "abc"]
        ids = [(await submit(engine, *names, name="nightly")).id for _ in range(5)][::-1]
        first = await engine.signal_runs(action="cancel", filter=NIGHTLY, limit=2)
        assert ([item.run_id for item in first.items], first.next) == (ids[:2], cursor_of(ids[1]))
        monkeypatch.setattr(operations, "MOST_TASKS", 6)
        second = await engine.signal_runs(action="cancel", filter=NIGHTLY, after=first.next)
        assert ([item.run_id for item in second.items], second.next) == (ids[2:4], cursor_of(ids[3]))
        monkeypatch.setattr(operations, "MOST_TASKS", 1)
        third = await engine.signal_runs(action="cancel", filter=NIGHTLY, after=second.next)
        assert ([item.run_id for item in third.items], third.next) == (ids[4:], None)
        assert set((await states(engine)).values()) == {"CANCELED"}


async def test_a_cursor_that_is_none_is_refused(database_url: str) -> None:
    async with open_engine(database_url, ManualClock()) as engine:
        run = await submit(engine, NewTask(name="a"), name="nightly")
        with pytest.raises(RequestInvalid, match="no cursor of this list"):
            await engine.signal_runs(action="cancel", filter=NIGHTLY, after=run.id)
        assert (await engine.get_run(run.id)).outcome is None


async def test_without_a_condition_or_with_a_wrong_one_nothing_is_done(database_url: str) -> None:
    async with open_engine(database_url, ManualClock()) as engine:
        run = await submit(engine, NewTask(name="a"))
        wrong: dict[str, object] = {"filter": RunFilter(), "filter.phase": replace(NIGHTLY, phase="x")}
        for path, given in wrong.items():
            with pytest.raises(RequestInvalid) as refused:
                await engine.signal_runs(action="cancel", filter=given)  # type: ignore[arg-type]
            assert [problem.path for problem in refused.value.problems] == [path]
        with pytest.raises(RequestInvalid):
            await engine.signal_runs(action="ready", filter=NIGHTLY)  # type: ignore[arg-type]
        assert (await engine.get_run(run.id)).outcome is None


async def test_two_actions_at_once_move_every_run_once(database_url: str) -> None:
    async with open_engine(database_url, ManualClock()) as one, open_engine(database_url, ManualClock(), seed=2) as two:
        ids = {(await submit(one, NewTask(name="a"))).id for _ in range(20)}
        wanted = RunFilter(name="nightly", phase="queued")
        answers = await asyncio.gather(*(engine.signal_runs(action="pause", filter=wanted) for engine in (one, two) * 2))
        moved = [item.run_id for answer in answers for item in answer.items if item.success]
        assert sorted(moved) == sorted(ids)
        assert all(item.success for answer in answers for item in answer.items), (
            "what no longer fulfills the filter is left out"
        )
