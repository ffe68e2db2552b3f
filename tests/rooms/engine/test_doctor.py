"""The doctor finds what is stuck, says why and what would help, and puts right what needs no person (document 001, 1 to 4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import apsw
import psycopg
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
)
from tests.system.faults.prompt import Prompt, prompt

from pointsman.engine.doctor import Diagnosis
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import TransitionRefused
from pointsman.store.rows import Run, Worker

FOREVER = 1_000_000.0


async def diagnose(engine: Engine, subject: str) -> list[Diagnosis]:
    return [each for each in await engine.diagnose() if each.subject == subject]


async def work_off(engine: Engine, worker: Worker) -> None:
    """Complete whatever can be claimed, until nothing can."""
    while claims := await engine.claim_tasks(worker.id):
        for claim in claims:
            await engine.complete_task(claim.task_id, claim.epoch)


# health


async def test_an_empty_database_is_well(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        assert await engine.diagnose() == []
        assert await engine.repair() == []


@pytest.mark.parametrize("lifecycle", ["standard", "pipeline", "approval"])
async def test_work_that_was_done_is_well(database_url: str, clock: ManualClock, lifecycle: str) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)), lifecycle=lifecycle)
        assert await engine.diagnose() == []
        await work_off(engine, await register(engine))
        assert (await engine.get_run(run.id)).outcome == "success"
        assert await engine.diagnose() == []
        assert await engine.repair() == []


async def test_work_in_progress_and_work_that_waits_for_somebody_is_well(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, slots=10)
        names = ("running", "checked", "asked", "tried again", "reviewed")
        options: dict[str, dict[str, Any]] = {
            "checked": {"checks": True},
            "reviewed": {"review": True},
            "tried again": {"max_retries": 1},
        }
        claims = {}
        for name in names:
            await submit(engine, NewTask(name=name, **options.get(name, {})), NewTask(name="after", depends_on=(name,)))
            claims[name] = await claim_one(engine, worker)
        await submit(engine, NewTask(name="gate", gate=True), NewTask(name="after", depends_on=("gate",)))
        await submit(engine, NewTask(name="announced"), task_count=2)
        paused = await submit(engine, NewTask(name="paused"))
        await engine.signal_run(paused.id, "pause")
        for name in ("checked", "reviewed"):
            await engine.complete_task(claims[name].task_id, claims[name].epoch)
        await engine.report_attempt(claims["asked"].task_id, claims["asked"].epoch, "ask", AttemptReport(question="why?"))
        await engine.fail_task(claims["tried again"].task_id, claims["tried again"].epoch, AttemptReport(error="no luck"))
        before = await engine.list_transitions()
        assert await engine.diagnose() == []
        assert await engine.repair() == []
        assert await engine.list_transitions() == before


# recovery 1: runs that are under way for too long, or stand still


async def test_a_run_that_is_under_way_for_too_long_is_found(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), lifecycle="pipeline")
        await claim_one(engine, await register(engine, lease_seconds=FOREVER))
        await pass_time(engine, clock, 3600)
        assert await diagnose(engine, "overstayed") == []
        await pass_time(engine, clock, 300)
        (found,) = await diagnose(engine, "overstayed")
        assert (found.kind, found.entity_id) == ("run", run.id)
        assert "S_RUNNING for 65m" in found.finding
        assert "cancel" in found.advice
        assert not found.repairable
        await engine.signal_run(run.id, "cancel")
        assert await diagnose(engine, "overstayed") == []


async def test_tasks_and_workers_can_stay_too_long_as_well(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await submit(engine, NewTask(name="a", checks=True))
        claim = await claim_one(engine, await register(engine, lease_seconds=FOREVER))
        await engine.complete_task(claim.task_id, claim.epoch)
        clock.advance(16 * 60)
        (found,) = await diagnose(engine, "overstayed")
        assert (found.kind, found.entity_id) == ("task", claim.task_id)
        assert "VALIDATING for 16m" in found.finding


async def test_a_run_that_stands_still_follows_its_tasks(database_url: str, clock: ManualClock) -> None:
    """Somebody has called off, at a prompt, what everything else waits for."""
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a", priority=1), NewTask(name="b"), NewTask(name="c", depends_on=("b",)))
        claim = await claim_one(engine, await register(engine))
        await engine.complete_task(claim.task_id, claim.epoch)
        with prompt(database_url) as somebody:
            somebody.ask("UPDATE task SET state = 'CANCELED' WHERE name = 'b'")
        (found,) = await diagnose(engine, "stalled")
        assert found.entity_id == run.id
        assert found.repairable
        assert "none of its tasks can move" in found.finding
        assert found in await engine.repair()
        assert await diagnose(engine, "stalled") == []
        assert await state_of(engine, run) in ("WAITING", "FAILED")


@pytest.mark.parametrize("begun", [True, False])
async def test_a_run_whose_last_task_was_skipped_at_a_prompt_is_found_and_ended(
    database_url: str,
    clock: ManualClock,
    begun: bool,  # noqa: FBT001 - a case of the test
) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a", priority=1), NewTask(name="b"))
        if begun:
            claim = await claim_one(engine, await register(engine))
            await engine.complete_task(claim.task_id, claim.epoch)
        with prompt(database_url) as somebody:
            somebody.ask("UPDATE task SET state = 'SKIPPED' WHERE state = 'QUEUED'")
        assert run.id in [each.entity_id for each in await engine.diagnose()]
        await engine.repair()
        assert await state_of(engine, run) == "SUCCEEDED"
        assert await engine.diagnose() == []


async def test_a_run_that_waits_for_its_last_checks_is_not_called_stalled(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), checks=True)
        await work_off(engine, await register(engine))
        assert await state_of(engine, run) == "VALIDATING"
        assert await engine.diagnose() == []
        assert await engine.repair() == []
        assert await state_of(engine, run) == "VALIDATING"


async def test_a_run_that_waits_for_checks_that_it_has_not_is_ended(database_url: str, clock: ManualClock) -> None:
    """Older versions left runs of document 002 so."""
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), lifecycle="orchestrated", checks=True)
        claim = await claim_one(engine, await register(engine))
        for signal in ("complete", "checks_passed"):
            await engine.report_attempt(claim.task_id, claim.epoch, signal)
        with prompt(database_url) as somebody, somebody.lawless("run"):
            somebody.ask("UPDATE run SET has_checks = (1 = 0)")
        assert await state_of(engine, run) == "validating"
        (found,) = await diagnose(engine, "stalled")
        assert (found.entity_id, found.repairable) == (run.id, True)
        await engine.repair()
        assert await state_of(engine, run) == "completed"
        assert await engine.diagnose() == []


# recovery 2: failed steps, and why nobody tries them again


@dataclass
class Failure:
    task: dict[str, Any]
    words: str
    failures: int = 1
    report: dict[str, Any] | None = None


FAILURES = {
    "retries used up": Failure(
        {"max_retries": 2, "backoff": Backoff(base_seconds=0)}, "it has used up its retries (2)", failures=3
    ),
    "no retries": Failure({}, "it has used up its retries (0)"),
    "attempts used up": Failure({"max_retries": 5, "max_attempts": 1}, "it has used up its attempts (1)"),
    "retry_on_failure is false": Failure({"max_retries": 2, "retry_on_failure": False}, "retry_on_failure is false"),
    "breaker open": Failure({"max_retries": 2, "tool": "compiler"}, "the circuit of compiler is open"),
    "not retryable": Failure({"max_retries": 2}, "not one that a retry could mend", report={"retryable": False}),
}


@pytest.mark.parametrize("lifecycle", ["pipeline", "standard"])
@pytest.mark.parametrize("case", FAILURES)
async def test_a_failed_step_says_why_it_is_not_tried_again(
    database_url: str, clock: ManualClock, case: str, lifecycle: str
) -> None:
    failure = FAILURES[case]
    if lifecycle == "standard" and case == "breaker open":
        pytest.skip("there a task waits in the queue while its circuit is open")
    async with open_engine(database_url, clock) as engine:
        await engine.declare_tool("compiler", failure_threshold=1)
        await submit(engine, NewTask(name="build", **failure.task), lifecycle=lifecycle, max_retries=1)
        worker = await register(engine, lease_seconds=FOREVER)
        for _ in range(failure.failures):
            await pass_time(engine, clock, 1)
            claim = await claim_one(engine, worker)
            await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck", **(failure.report or {})))
        (found,) = await diagnose(engine, "unretried")
        assert (found.kind, found.entity_id) == ("task", claim.task_id)
        assert found.finding.startswith("build is ")
        assert failure.words in found.finding
        assert "skip" in found.advice
        assert not found.repairable


@pytest.mark.parametrize(("signal", "lifecycle"), [("retry", "standard"), ("skip", "standard"), ("reset", "pipeline")])
async def test_the_advice_helps(database_url: str, clock: ManualClock, signal: str, lifecycle: str) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="build"), lifecycle=lifecycle, max_retries=1)
        worker = await register(engine, lease_seconds=FOREVER)
        claim = await claim_one(engine, worker)
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
        (found,) = await diagnose(engine, "unretried")
        assert signal in found.advice
        await engine.signal_task(claim.task_id, signal, reason="the doctor said so")
        await pass_time(engine, clock, 60)
        assert await diagnose(engine, "unretried") == []
        await work_off(engine, worker)
        assert (await engine.get_run(run.id)).outcome == "success"


async def test_a_rejected_gate_can_only_be_skipped(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="gate", gate=True))
        (gate,) = await engine.list_tasks(run.id)
        await engine.signal_task(gate.id, "reject")
        (found,) = await diagnose(engine, "unretried")
        assert found.finding == "gate is FAILED and is not retried: a person rejected it, or nobody decided in time."
        assert found.advice == "A person can skip it."
        for signal in ("retry", "resume"):
            with pytest.raises(TransitionRefused):
                await engine.signal_task(gate.id, signal)
        await engine.signal_task(gate.id, "skip")
        assert await engine.diagnose() == []


async def test_what_failed_with_another_task_is_retried_with_it(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await submit(engine, NewTask(name="first"), NewTask(name="second", depends_on=("first",)), lifecycle="agent")
        claim = await claim_one(engine, await register(engine))
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
        advice = {each.entity_id: each.advice for each in await diagnose(engine, "unretried")}
        assert advice.pop(claim.task_id) == "A person can retry it."
        assert list(advice.values()) == ["Retry the task that it depends on; that retries this one as well."]
        await engine.signal_task(claim.task_id, "retry")
        assert await engine.diagnose() == []


async def test_what_failed_in_a_run_that_was_called_off_is_nobodys_concern(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a", priority=1), NewTask(name="b"), max_retries=1)
        claim = await claim_one(engine, await register(engine))
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
        assert await diagnose(engine, "unretried")
        await engine.signal_run(run.id, "cancel")
        assert await engine.diagnose() == []


# recovery 3: breakers


async def trip(engine: Engine) -> Worker:
    await engine.declare_tool("compiler", failure_threshold=1, cooldown_seconds=60)
    await submit(engine, NewTask(name="a", tool="compiler"))
    worker = await register(engine, lease_seconds=FOREVER)
    claim = await claim_one(engine, worker)
    await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
    return worker


async def test_an_open_breaker_says_for_how_long(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await trip(engine)
        clock.advance(20)
        (found,) = await diagnose(engine, "circuit")
        assert found.kind == "breaker"
        assert found.finding == "compiler circuit is open, retry in 40 seconds"
        assert "reset the breaker" in found.advice
        await engine.reset_breaker("compiler")
        assert await diagnose(engine, "circuit") == []


async def test_a_half_open_breaker_says_what_it_waits_for(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await trip(engine)
        await pass_time(engine, clock, 60)
        (found,) = await diagnose(engine, "circuit")
        assert found.finding == "compiler circuit is half open: its next task is the probe"
        await submit(engine, NewTask(name="probe", tool="compiler"))
        claim = await claim_one(engine, worker)
        (found,) = await diagnose(engine, "circuit")
        assert found.finding == "compiler circuit is half open: one probe is under way"
        await engine.complete_task(claim.task_id, claim.epoch)
        assert await diagnose(engine, "circuit") == []


# recovery 4: what somebody has changed at a prompt


@dataclass
class Scene:
    """One task in the hands of a worker, one that depends on it, and somebody at a prompt."""

    engine: Engine
    somebody: Prompt
    worker: Worker
    run: Run
    first_id: str
    second_id: str

    async def can_go_on(self) -> bool:
        """Whether the run can be brought to its end by whoever works."""
        await work_off(self.engine, self.worker)
        return (await self.engine.get_run(self.run.id)).outcome == "success"


async def prepare(engine: Engine, somebody: Prompt, **options: Any) -> Scene:
    run = await submit(engine, NewTask(name="first"), NewTask(name="second", depends_on=("first",)), **options)
    worker = await register(engine, slots=5, lease_seconds=FOREVER)
    await claim_one(engine, worker)
    first, second = await engine.list_tasks(run.id)
    return Scene(engine, somebody, worker, run, first.id, second.id)


async def count_too_many(scene: Scene) -> str:
    scene.somebody.ask("UPDATE task SET open_dependencies = 7 WHERE id = :id", id=scene.second_id)
    await scene.engine.complete_task(scene.first_id, 1)
    return "Open_dependencies is 6, but 0 of its dependencies are open."


async def count_too_few(scene: Scene) -> str:
    """The law refuses only a count that would let the task start."""
    joined = NewTask(name="fifth", depends_on=("third", "fourth"))
    scene.run = await submit(scene.engine, NewTask(name="third"), NewTask(name="fourth"), joined)
    scene.somebody.ask("UPDATE task SET open_dependencies = 1 WHERE name = 'fifth'")
    return "Open_dependencies is 1, but 2 of its dependencies are open."


async def drop_the_timer(scene: Scene) -> str:
    """Without it, the task would wait for ever."""
    backoff = Backoff(base_seconds=60, jitter=0)
    scene.run = await submit(scene.engine, NewTask(name="third", max_retries=1, backoff=backoff))
    claim = await claim_one(scene.engine, scene.worker)
    await scene.engine.fail_task(claim.task_id, claim.epoch)
    scene.somebody.ask("DELETE FROM timer")
    return "It waits for an instant, but has no timer."


async def skip_what_another_waits_for(scene: Scene) -> str:
    run = await submit(scene.engine, NewTask(name="third"), NewTask(name="fourth", depends_on=("third",)))
    scene.run = run
    scene.somebody.ask("UPDATE task SET state = 'SKIPPED' WHERE name = 'third'")
    return "Open_dependencies is 1, but 0 of its dependencies are open."


REPAIRABLE = [count_too_many, count_too_few, drop_the_timer, skip_what_another_waits_for]


@pytest.mark.parametrize("plant", REPAIRABLE, ids=lambda plant: plant.__name__)
async def test_what_was_counted_wrongly_is_found_and_counted_anew(
    database_url: str, clock: ManualClock, plant: Callable[[Scene], Awaitable[str]]
) -> None:
    async with open_engine(database_url, clock) as engine:
        with prompt(database_url) as somebody:
            scene = await prepare(engine, somebody)
            assert await engine.diagnose() == []
            words = await plant(scene)
            found = await diagnose(engine, "disagreement")
            assert words in [each.finding for each in found]
            assert all(each.repairable and "by hand" in each.advice for each in found)
            repaired = await engine.repair()
            assert [each for each in repaired if each.subject == "disagreement"] == found
            assert await diagnose(engine, "disagreement") == [], "what was repaired is well"
            assert await engine.repair() == []
            await pass_time(engine, clock, 60)
            assert await scene.can_go_on()


async def two_steps(engine: Engine, **options: Any) -> tuple[Run, Worker]:
    run = await submit(engine, NewTask(name="s1"), NewTask(name="s2", depends_on=("s1",)), lifecycle="pipeline", **options)
    return run, await register(engine, lease_seconds=FOREVER)


async def test_a_run_that_was_called_a_success_is_put_back_and_follows_its_steps(database_url: str, clock: ManualClock) -> None:
    """Document 001, recovery 4: some steps failed, so the workstream is not S_SUCCESS."""
    async with open_engine(database_url, clock) as engine:
        run, worker = await two_steps(engine)
        claim = await claim_one(engine, worker)
        with prompt(database_url) as somebody, somebody.lawless("run"):
            values = "state = 'S_SUCCESS', phase = 'done', outcome = 'success', completed_at = entered_at"
            somebody.ask(f"UPDATE run SET {values} WHERE id = :id", id=run.id)
        (found,) = [each for each in await engine.diagnose() if each.subject in ("contradiction", "disagreement")]
        assert (found.subject, found.kind, found.entity_id) == ("contradiction", "run", run.id)
        assert found.finding == "The run is S_SUCCESS, but its task s1 is S_RUNNING."
        assert "S_RUNNING, and lets it follow its tasks" in found.advice
        assert await engine.repair() == [found]
        assert await engine.diagnose() == []
        assert await state_of(engine, run) == "S_RUNNING"
        await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
        assert await path_of(engine, run.id) == ["S_PENDING", "S_RUNNING", "S_FAILED", "S_ABANDONED"]
        assert (await engine.audit()).findings == []


FAIL_SECOND = """
    UPDATE task_state SET state = 'S_FAILED', outcome = 'failure'
     WHERE number = (SELECT number FROM task_spec WHERE name = 's2')
"""


async def test_a_step_that_was_called_a_failure_after_its_success_is_put_back(database_url: str, clock: ManualClock) -> None:
    """Document 001, recovery 4: all steps actually succeeded."""
    async with open_engine(database_url, clock) as engine:
        run, worker = await two_steps(engine)
        await work_off(engine, worker)
        assert await state_of(engine, run) == "S_SUCCESS"
        with prompt(database_url) as somebody, somebody.lawless("task"):
            somebody.ask(FAIL_SECOND)
        (found,) = await engine.diagnose()
        assert (found.subject, found.kind) == ("contradiction", "task")
        assert found.finding == "The run is S_SUCCESS, but its task s2 is S_FAILED."
        assert found.advice.endswith("where its audit trail ends: S_SUCCESS.")
        assert await engine.repair() == [found]
        assert await state_of(engine, run, "s2") == "S_SUCCESS"
        assert await engine.diagnose() == []
        assert (await engine.audit()).findings == []


async def test_a_contradiction_that_the_audit_trail_confirms_is_left_to_a_person(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        run, worker = await two_steps(engine)
        await work_off(engine, worker)
        with prompt(database_url) as somebody:
            with somebody.lawless("task"):
                somebody.ask(FAIL_SECOND)
            with somebody.lawless("trail"):
                failed = "SELECT min(id) FROM rule WHERE from_state = 'S_RUNNING' AND to_state = 'S_FAILED'"
                second = "SELECT id FROM task WHERE name = 's2'"
                last = f"SELECT position FROM transition WHERE to_state = 'S_SUCCESS' AND entity_id = ({second})"
                somebody.ask(f"UPDATE trail SET rule_id = ({failed}) WHERE position = ({last})")
        (found,) = await engine.diagnose()
        assert (found.subject, found.entity_id, found.repairable) == ("contradiction", run.id, False)
        assert "the audit trail confirms both" in found.advice
        assert await engine.repair() == []


async def test_a_run_whose_lifecycle_has_no_way_on_is_not_called_repairable(database_url: str, clock: ManualClock) -> None:
    """Document 002: a task that is not critical fails no workstream, and a workstream completes only with all of its tasks."""
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a", critical=False), NewTask(name="b"), lifecycle="orchestrated")
        worker = await register(engine, slots=2)
        for claim in await engine.claim_tasks(worker.id, 2):
            await engine.report_attempt(claim.task_id, claim.epoch, "fail" if claim.name == "a" else "complete")
            if claim.name == "b":
                await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")
        (found,) = await diagnose(engine, "stalled")
        assert (found.entity_id, found.repairable) == (run.id, False)
        assert "no way on from executing now that a is failed. A person can cancel the run." in found.advice
        assert await engine.repair() == []
        await engine.signal_run(run.id, "cancel")
        assert await diagnose(engine, "stalled") == []


async def test_a_state_that_the_audit_trail_does_not_know_is_found_and_left_to_a_person(
    database_url: str, clock: ManualClock
) -> None:
    """Only whoever owns the tables can do that, and only a person can say what is true."""
    async with open_engine(database_url, clock) as engine:
        with prompt(database_url) as somebody:
            scene = await prepare(engine, somebody)
            somebody.suspend_law("run")
            somebody.ask("UPDATE run SET state = 'WAITING', phase = 'held' WHERE id = :id", id=scene.run.id)
            (found,) = [each for each in await diagnose(engine, "disagreement") if not each.repairable]
            assert (found.kind, found.entity_id) == ("run", scene.run.id)
            assert found.finding == "It is WAITING, but its audit trail ends in RUNNING."
            assert "Repair" not in found.advice, "what cannot be repaired is not promised to be"


async def pause_and_resume(scene: Scene) -> None:
    """The run may go on, but its tasks have not been told."""
    await scene.engine.complete_task(scene.first_id, 1)
    await scene.engine.signal_run(scene.run.id, "pause")
    scene.somebody.ask("UPDATE run SET state = 'RUNNING' WHERE id = :id", id=scene.run.id)


async def cancel_what_reserved_the_budget(scene: Scene) -> None:
    run = await submit(
        scene.engine,
        NewTask(name="dear", budget_usd=Decimal(10), priority=1),
        NewTask(name="next", budget_usd=Decimal(10)),
        budget_usd=Decimal(10),
    )
    worker = await register(scene.engine, lease_seconds=FOREVER)
    claim = await claim_one(scene.engine, worker)
    assert claim.name == "dear"
    # By way of QUEUED, which a worker that is gone leads to.
    scene.somebody.ask("UPDATE task SET state = 'QUEUED' WHERE id = :id", id=claim.task_id)
    scene.somebody.ask("UPDATE task SET state = 'SKIPPED' WHERE id = :id", id=claim.task_id)
    scene.run, scene.worker = run, worker


async def take_the_probe_away(scene: Scene) -> None:
    engine = scene.engine
    await engine.declare_tool("compiler", failure_threshold=1, cooldown_seconds=60)
    await submit(engine, NewTask(name="a", tool="compiler"))
    worker = await register(engine, lease_seconds=FOREVER)
    claim = await claim_one(engine, worker)
    await engine.fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
    scene.somebody.ask("UPDATE breaker SET state = 'HALF_OPEN' WHERE tool = 'compiler'")
    scene.run = await submit(engine, NewTask(name="probe", tool="compiler"), NewTask(name="after", tool="compiler"))
    probe = await claim_one(engine, worker)
    scene.somebody.ask("UPDATE task SET state = 'QUEUED' WHERE id = :id", id=probe.task_id)
    scene.worker = worker


async def end_a_run_that_has_workers(scene: Scene) -> None:
    engine = scene.engine
    worker = await engine.register_worker("bob", lifecycle="supervised", lease_seconds=FOREVER)
    job = await submit(engine, NewTask(name="a"), lifecycle="supervised")
    holders = [each for each in await engine.list_workers() if each.run_id == job.id]
    assert len(holders) == 1
    scene.somebody.ask("UPDATE run SET state = 'CANCELED' WHERE id = :id", id=job.id)
    scene.worker = holders[0]
    scene.run = await submit(engine, NewTask(name="free"))
    if worker.id != scene.worker.id:  # so that nobody else does it
        await engine.signal_worker(worker.id, "terminate")


PROMPTED: list[Callable[[Scene], Awaitable[None]]] = [
    pause_and_resume,
    cancel_what_reserved_the_budget,
    take_the_probe_away,
    end_a_run_that_has_workers,
]


@pytest.mark.parametrize("plant", PROMPTED, ids=lambda plant: plant.__name__)
async def test_a_legal_move_at_a_prompt_leaves_nothing_stuck_for_good(
    database_url: str, clock: ManualClock, plant: Callable[[Scene], Awaitable[None]]
) -> None:
    """What the engine would have done with the move is missing: the doctor sees it, and does it."""
    async with open_engine(database_url, clock) as engine:
        with prompt(database_url) as somebody:
            scene = await prepare(engine, somebody)
            await plant(scene)
            if await scene.can_go_on():
                return
            assert [each for each in await engine.diagnose() if each.repairable], "it is stuck, and nobody knows"
            await engine.repair()
            assert await scene.can_go_on()


@pytest.mark.parametrize(
    ("table", "state"),
    [("run", "PAUSED"), ("run", "CANCELED"), ("task", "CANCELED"), ("worker", "PAUSED")],
)
async def test_a_legal_move_at_a_prompt_is_audited_and_disagrees_with_nothing(
    database_url: str, clock: ManualClock, table: str, state: str
) -> None:
    async with open_engine(database_url, clock) as engine:
        with prompt(database_url) as somebody:
            scene = await prepare(engine, somebody)
            name = {"run": scene.run.id, "task": scene.first_id, "worker": scene.worker.id}[table]
            somebody.ask(f"UPDATE {table} SET state = '{state}' WHERE id = :id", id=name)
            (*_, last) = await engine.list_history(name)
            assert (last.to_state, last.actor) == (state, "sql")
            trail = [each.finding for each in await diagnose(engine, "disagreement") if "audit trail" in each.finding]
            assert trail == []
            await engine.repair()
            assert await diagnose(engine, "disagreement") == []
            assert await path_of(engine, name) == [each.to_state for each in await engine.list_history(name)]


async def test_a_worker_cannot_be_ended_at_a_prompt_while_it_holds_a_task(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        with prompt(database_url) as somebody:
            scene = await prepare(engine, somebody)
            with pytest.raises((apsw.Error, psycopg.Error), match="pointsman: a worker ends only when it holds no task"):
                somebody.ask("UPDATE worker SET state = 'TERMINATED' WHERE id = :id", id=scene.worker.id)
            assert (await engine.get_worker(scene.worker.id)).phase == "active"


async def test_a_run_that_goes_on_after_a_typed_failure_is_ended(database_url: str, clock: ManualClock) -> None:
    """No constraint can move a run because a task was moved by hand: the doctor does."""
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, slots=2)
        run = await submit(engine, NewTask(name="a"), NewTask(name="b"), lifecycle="orchestrated")
        await claim_one(engine, worker)
        clock.advance(1)
        second = await claim_one(engine, worker)
        with prompt(database_url) as somebody:
            somebody.ask("UPDATE task SET state = 'failed' WHERE id = :id", id=second.task_id)
        (found,) = await diagnose(engine, "disagreement")
        assert (found.entity_id, found.repairable) == (run.id, True)
        assert found.finding == f"It goes on, although its critical task {second.name} has failed."
        await engine.repair()
        assert (await engine.get_run(run.id)).state == "failed"
        assert await diagnose(engine, "disagreement") == []


@pytest.mark.parametrize(
    ("lifecycle", "states", "left"),
    [
        ("orchestrated", ("executing", "failed"), {"a": "cancelled", "b": "cancelled"}),
        ("standard", ("CANCELED",), {"a": "CANCELED", "b": "CANCELED"}),
        ("standard", ("RUNNING", "FAILED"), {"a": "QUEUED", "b": "PENDING"}),
    ],
)
async def test_a_run_that_was_ended_at_a_prompt_ends_its_tasks_as_its_lifecycle_says(
    database_url: str, clock: ManualClock, lifecycle: str, states: Sequence[str], left: Mapping[str, str]
) -> None:
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), NewTask(name="b", depends_on=("a",)), lifecycle=lifecycle)
        with prompt(database_url) as somebody:
            for state in states:
                somebody.ask("UPDATE run SET state = :state WHERE id = :id", state=state, id=run.id)
        await engine.repair()
        assert {task.name: task.state for task in await engine.list_tasks(run.id)} == left
        assert await engine.diagnose() == []


async def test_the_doctor_looks_at_every_tenant(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        for tenant in ("acme", "globex"):
            await engine.for_tenant(tenant).declare_tool("compiler", failure_threshold=1)
            new = NewRun(name="a", tasks=(NewTask(name="a", tool="compiler"),))
            await engine.for_tenant(tenant).submit_run(new)
            worker = await engine.for_tenant(tenant).register_worker("bob")
            (claim,) = await engine.for_tenant(tenant).claim_tasks(worker.id)
            await engine.for_tenant(tenant).fail_task(claim.task_id, claim.epoch, AttemptReport(error="no luck"))
        assert [each.subject for each in await engine.diagnose()] == ["unretried", "unretried", "circuit", "circuit"]


async def test_a_task_that_was_put_back_without_an_attempt_left_holds_nobody_up(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine, lease_seconds=FOREVER)
        run = await submit(engine, NewTask(name="a", max_attempts=1, critical=False), NewTask(name="b", priority=-1))
        claim = await claim_one(engine, worker)
        with prompt(database_url) as somebody:
            somebody.ask("UPDATE task SET state = 'QUEUED' WHERE id = :id", id=claim.task_id)
        second = await claim_one(engine, worker)
        assert second.name == "b", "those behind it get their turn"
        await engine.complete_task(second.task_id, second.epoch)
        assert claim.task_id in [each.entity_id for each in await engine.diagnose() if "used up its attempts" in each.finding]
        await engine.repair()
        assert (await claim_one(engine, worker)).epoch == 2
        assert await engine.diagnose() == []
        assert await state_of(engine, run) == "RUNNING"
