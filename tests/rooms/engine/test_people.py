"""People in the loop: who may decide a gate and how many have to, what is an answer, and what a person starts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.rooms.engine.harness import (
    ManualClock,
    claim_one,
    open_engine,
    pass_time,
    path_of,
    register,
    state_of,
    submit,
    task_of,
)
from tests.rooms.engine.test_standard import claim_and_complete, claim_nothing, complete_all, proved_engine, states_of

from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.questions import MAX_ANSWER
from pointsman.engine.submit import NewTask
from pointsman.errors import NotAllowed, RequestInvalid, TransitionRefused
from pointsman.kernel.machine import Kind
from pointsman.store.rows import Run

WITH_GATES = ("standard", "approval")
QUESTION = '{"text": "Which one?", "choices": ["left", 2], "default": "left"}'
ABOUT_A_NUMBER = '{"text": "How many?", "schema": {"type": "integer", "minimum": 1}}'


async def submit_gate(engine: Engine, lifecycle: str = "standard", **options: Any) -> Run:
    return await submit(
        engine, NewTask(name="gate", gate=True, **options), NewTask(name="after", depends_on=("gate",)), lifecycle=lifecycle
    )


async def say(engine: Engine, actor: str, run: Run, signal: str, **words: Any) -> str:
    task = await task_of(engine, run, "gate")
    return (await engine.for_tenant(actor=actor).signal_task(task.id, signal, **words)).state


# gates


@pytest.mark.parametrize("lifecycle", WITH_GATES)
async def test_only_those_decide_whom_a_gate_names(database_url: str, clock: ManualClock, lifecycle: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_gate(engine, lifecycle, approvers=("ada", "ben"))
        for signal in ("approve", "reject", "skip"):
            with pytest.raises(NotAllowed, match=r"eve may not decide about gate\. It is up to ada or ben\."):
                await say(engine, "eve", run, signal)
        with pytest.raises(NotAllowed):
            await engine.for_tenant(actor="eve").approve_run(run.id)
        await engine.for_tenant(actor="ben").approve_run(run.id, reason="go")
        passed = await task_of(engine, run, "gate")
        assert (passed.state, passed.actor, passed.reason) == ("SUCCEEDED", "ben", "go")


async def test_a_person_who_may_not_approve_every_open_gate_approves_none(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        gates = [NewTask(name=name, gate=True, approvers=approvers) for name, approvers in (("a", ("ada",)), ("b", ("ben",)))]
        run = await submit(engine, *gates)
        with pytest.raises(NotAllowed, match="ada may not decide about b"):
            await engine.for_tenant(actor="ada").approve_run(run.id)
        assert {(await task_of(engine, run, name)).state for name in "ab"} == {"WAITING_APPROVAL"}


async def test_a_quorum_needs_different_people_and_the_trail_has_each_of_them(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit_gate(engine, quorum=2)
        assert await say(engine, "ada", run, "approve", reason="looks good") == "WAITING_APPROVAL"
        assert await say(engine, "ada", run, "approve") == "WAITING_APPROVAL"
        await engine.for_tenant(actor="ada").approve_run(run.id)
        await claim_nothing(engine, worker)
        assert await say(engine, "ben", run, "approve") == "SUCCEEDED"
        history = await engine.list_history((await task_of(engine, run, "gate")).id)
        approvals = [(move.actor, move.reason, move.details["approved_by"]) for move in history if move.trigger == "approve"]
        assert approvals == [("ada", "looks good", ["ada"]), ("ben", None, ["ada", "ben"])]
        assert await complete_all(engine, worker) == ["after"]


async def test_approvals_that_arrive_together_are_all_counted(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_gate(engine, quorum=3)
        gate = await task_of(engine, run, "gate")
        people = ("ada", "ben", "cid")
        await asyncio.gather(*(engine.for_tenant(actor=name).signal_task(gate.id, "approve") for name in people))
        moves = [move for move in await engine.list_history(gate.id) if move.trigger == "approve"]
        assert [move.to_state for move in moves] == ["WAITING_APPROVAL", "WAITING_APPROVAL", "SUCCEEDED"]
        assert sorted(moves[-1].details["approved_by"]) == ["ada", "ben", "cid"]


async def test_one_rejection_is_enough(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit_gate(engine, quorum=2)
        await say(engine, "ada", run, "approve")
        assert await say(engine, "ben", run, "reject", reason="not today") == "FAILED"
        assert await state_of(engine, run) == "FAILED"


@pytest.mark.parametrize(
    ("lifecycle", "on_expiry", "state"),
    [
        ("standard", None, "FAILED"),
        ("standard", "approve", "SUCCEEDED"),
        ("standard", "cancel", "CANCELED"),
        ("standard", "skip", "SKIPPED"),
        ("approval", None, "CANCELED"),
        ("approval", "approve", "SUCCEEDED"),
    ],
)
async def test_a_gate_expires_once_counted_from_its_opening(
    sqlite_url: str, clock: ManualClock, lifecycle: str, on_expiry: str | None, state: str
) -> None:
    quorum = 2 if lifecycle == "standard" else 1
    async with proved_engine(sqlite_url, clock) as engine:
        run = await submit_gate(engine, lifecycle, approval_seconds=60, on_expiry=on_expiry, quorum=quorum)
        await pass_time(engine, clock, 40)
        if quorum > 1:
            await say(engine, "ada", run, "approve")
        await pass_time(engine, clock, 19)
        assert await state_of(engine, run, "gate") == "WAITING_APPROVAL"
        await pass_time(engine, clock, 1)
        assert await state_of(engine, run, "gate") == state
        moves = len(await path_of(engine, (await task_of(engine, run, "gate")).id))
        await pass_time(engine, clock, 600)
        assert len(await path_of(engine, (await task_of(engine, run, "gate")).id)) == moves
        with pytest.raises(TransitionRefused):
            await say(engine, "ben", run, "approve")


@pytest.mark.parametrize(
    ("lifecycle", "options", "problem"),
    [
        ("pipeline", {}, "tasks[0].gate: pipeline.step has no gates"),
        ("approval", {"quorum": 2}, "tasks[0].quorum: `quorum` has no effect: approval.step passes a gate"),
        ("approval", {"on_expiry": "reject"}, "tasks[0].on_expiry: A gate of approval.step does not take `reject`"),
    ],
)
async def test_a_gate_that_its_machine_cannot_keep_is_refused(
    sqlite_url: str, clock: ManualClock, lifecycle: str, options: dict[str, Any], problem: str
) -> None:
    async with proved_engine(sqlite_url, clock) as engine:
        with pytest.raises(RequestInvalid) as refused:
            await submit_gate(engine, lifecycle, **options)
        assert str(refused.value).startswith(problem)


# questions


@pytest.mark.parametrize(
    ("question", "wrong", "right"),
    [
        (QUESTION, "right", "2"),
        (ABOUT_A_NUMBER, "0", "3"),
        (ABOUT_A_NUMBER, "many", "1"),
        ("Why?", "x" * (MAX_ANSWER + 1), "y"),
    ],
)
async def test_an_answer_fits_its_question_and_is_kept_with_it(
    database_url: str, clock: ManualClock, question: str, wrong: str, right: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, "ask", AttemptReport(question=question))
        with pytest.raises(RequestInvalid):
            await engine.signal_task(claim.task_id, "answer", answer=wrong)
        assert await state_of(engine, run, "a") == "BLOCKED"
        await engine.for_tenant(actor="ada").signal_task(claim.task_id, "answer", answer=right)
        again = await claim_one(engine, worker)
        assert (again.epoch, again.answer, again.question) == (2, right, None)
        answered = next(move for move in await engine.list_history(claim.task_id) if move.trigger == "answer")
        assert (answered.actor, answered.details["answer"]) == ("ada", right)
        assert answered.details["question"] in ("Which one?", "How many?", "Why?")


async def test_a_gate_that_needs_two_is_not_passed_by_one_who_asks_for_its_state(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="gate", gate=True, quorum=2))
        gate = await task_of(engine, run, "gate")
        asked = await engine.for_tenant(actor="ada").request_transition(Kind.TASK, gate.id, to_state="SUCCEEDED")
        assert (asked.success, await state_of(engine, run, "gate")) == (False, "WAITING_APPROVAL")
        assert (await engine.get_task(gate.id)).revision == gate.revision, "a refusal changes nothing"
        await engine.for_tenant(actor="ada").signal_task(gate.id, "approve")
        asked = await engine.for_tenant(actor="ben").request_transition(Kind.TASK, gate.id, to_state="SUCCEEDED")
        assert (asked.success, asked.to_state) == (True, "SUCCEEDED")


async def test_a_late_answer_to_one_question_is_none_to_the_next(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        await submit(engine, NewTask(name="a"))
        for question in ("East or west?", "Really?"):
            claim = await claim_one(engine, worker)
            await engine.report_attempt(claim.task_id, claim.epoch, "ask", AttemptReport(question=question))
            if claim.epoch == 1:
                await engine.signal_task(claim.task_id, "answer", answer="east", epoch=1)
        with pytest.raises(RequestInvalid, match=r"about attempt 1, but a is BLOCKED after attempt 2"):
            await engine.signal_task(claim.task_id, "answer", answer="west", epoch=1)
        await engine.signal_task(claim.task_id, "answer", answer="yes", epoch=2)
        assert (await claim_one(engine, worker)).answer == "yes"


# starting


@pytest.mark.parametrize("lifecycle", ["standard", "agent", "orchestrated"])
async def test_a_person_starts_a_run_and_what_follows_starts_itself(
    database_url: str, clock: ManualClock, lifecycle: str
) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        tasks = (NewTask(name="a"), NewTask(name="b", depends_on=("a",)))
        run = await submit(engine, *tasks, lifecycle=lifecycle, autostart=False)
        await claim_nothing(engine, worker)
        started = await engine.for_tenant(actor="ada").start_run(run.id, reason="go")
        assert started.phase != "held"
        first = await task_of(engine, run, "a")
        assert (first.phase, first.actor, first.reason) == ("queued", "ada", "go")
        claim = await claim_and_complete(engine, worker)
        if lifecycle == "agent":
            await engine.signal_task(claim.task_id, "accept")
        elif lifecycle == "orchestrated":
            assert (await states_of(engine, run))["a"] == "validating"
            await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")
        assert (await claim_one(engine, worker)).name == "b"
        before = await path_of(engine, run.id)
        await engine.start_run(run.id)
        assert await path_of(engine, run.id) == before


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
async def test_what_a_started_run_adds_starts_itself(database_url: str, clock: ManualClock, lifecycle: str) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        final = NewTask(name="checks", checks=True)
        run = await submit(engine, NewTask(name="a"), lifecycle=lifecycle, autostart=False, final_task=final)
        await engine.start_run(run.id)
        parts = (NewTask(name="a/1", parent="a"), NewTask(name="a/2", parent="a", depends_on=("a/1",)))
        claim = await claim_one(engine, worker)
        await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(subtasks=parts, session_id="s-1"))
        assert [(await claim_and_complete(engine, worker)).name for _ in parts] == ["a/1", "a/2"]
        if lifecycle == "agent":
            await engine.signal_task(claim.task_id, "accept")
        assert (await claim_one(engine, worker)).name == "checks"


async def test_what_failed_with_a_task_is_retried_with_it(database_url: str, clock: ManualClock) -> None:
    async with proved_engine(database_url, clock) as engine:
        worker = await register(engine)
        tasks = (NewTask(name="a"), NewTask(name="b", depends_on=("a",)), NewTask(name="c", depends_on=("b",)))
        run = await submit(engine, *tasks, lifecycle="agent")
        claim = await claim_one(engine, worker)
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no"))
        assert await states_of(engine, run) == dict.fromkeys("abc", "FAILED")
        await engine.signal_task(claim.task_id, "retry")
        assert await states_of(engine, run) == dict.fromkeys("abc", "QUEUED")


async def test_subtasks_are_refused_where_no_task_waits_for_them(sqlite_url: str, clock: ManualClock) -> None:
    async with proved_engine(sqlite_url, clock) as engine:
        worker = await register(engine)
        await submit(engine, NewTask(name="a"), lifecycle="pipeline")
        claim = await claim_one(engine, worker)
        report = AttemptReport(subtasks=(NewTask(name="a/part", parent="a"),))
        with pytest.raises(RequestInvalid, match=r"Tasks of pipeline.step cannot have subtasks"):
            await engine.complete_task(claim.task_id, claim.epoch, report)


# races: whoever comes second is told, and nothing is lost or done twice


async def decide(engine: Engine, task_id: str, signal: str) -> bool:
    """Whether the decision counted. Nobody tells a timer that it came too late."""
    try:
        if signal == "expire":
            await engine.tend()
        else:
            await engine.signal_task(task_id, signal, answer="this" if signal == "answer" else None)
    except TransitionRefused:
        return False
    return True


@pytest.mark.parametrize(
    ("one", "other", "states"),
    [
        ("approve", "reject", {"approve": "SUCCEEDED", "reject": "FAILED"}),
        ("approve", "expire", {"approve": "SUCCEEDED", "reject": "FAILED"}),
        ("accept", "reject", {"accept": "SUCCEEDED", "ready": "QUEUED"}),
        ("answer", "cancel", {"cancel": "CANCELED"}),
    ],
)
async def test_of_two_decisions_one_wins_and_the_other_is_told(
    database_url: str, clock: ManualClock, one: str, other: str, states: dict[str, str]
) -> None:
    async with open_engine(database_url, clock) as first, open_engine(database_url, clock, seed=2) as second:
        worker = await register(first, slots=10, lease_seconds=3600)
        options: dict[str, Any] = {"gate": True, "approval_seconds": 60} if one == "approve" else {"review": True}
        run = await submit(first, *(NewTask(name=f"t{number}", critical=False, **options) for number in range(10)))
        for claim in await first.claim_tasks(worker.id, 10):
            signal, question = ("ask", "which?") if one == "answer" else ("complete", None)
            await first.report_attempt(claim.task_id, claim.epoch, signal, AttemptReport(question=question))
        tasks = await first.list_tasks(run.id)
        clock.advance(60 if other == "expire" else 0)
        told = await asyncio.gather(
            *(asyncio.gather(decide(first, task.id, one), decide(second, task.id, other)) for task in tasks)
        )
        for task, (one_counted, other_counted) in zip(tasks, told, strict=True):
            history = await first.list_history(task.id)
            triggers = [move.trigger for move in history]
            after = next(move for move in reversed(history) if move.trigger != "skip")
            assert after.to_state == states[after.trigger], triggers
            assert triggers.count(one) == one_counted
            if one == "answer":
                assert other_counted, "whatever was answered, it can be canceled"
                assert (await first.get_task(task.id)).answer == ("this" if one_counted else None)
            else:
                assert one_counted != ("reject" in triggers)


async def test_no_task_takes_the_name_of_the_final_checks(database_url: str, clock: ManualClock) -> None:
    """The run would take it for its checks, and succeed without them."""
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), final_task=NewTask(name="checks", checks=True))
        with pytest.raises(RequestInvalid, match="another task called 'checks'"):
            await engine.add_tasks(run.id, [NewTask(name="checks")])
        await engine.add_tasks(run.id, [NewTask(name="b")])
