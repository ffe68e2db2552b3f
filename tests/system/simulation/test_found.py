"""What the simulation found, each as the shortest story that shows it (docs/decisions/0006)."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from tests.system.simulation.database import new_database, template
from tests.system.simulation.people import declare_tool, person_of
from tests.system.simulation.process import MOST_WORK, Process, Time

from pointsman.engine.claims import Claim
from pointsman.engine.doctor import diagnose
from pointsman.engine.operation import validate
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt, ReportAttempts
from pointsman.engine.operations.runs import AddTasks, SignalRun, SubmitRun
from pointsman.engine.operations.tasks import SignalTask
from pointsman.engine.operations.transition import RequestTransition
from pointsman.engine.operations.upkeep import ExpireWorkers, FireTimers, Repair
from pointsman.engine.operations.workers import ClaimTasks, RegisterWorker, SendHeartbeat
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import LeaseLost, NotAllowed, RequestInvalid, TransitionRefused
from pointsman.kernel.machine import Kind
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Run, Task

ACME = "acme"
LEASE_SECONDS = 10.0
ASKER = person_of(ACME)


class Scene:
    """One process, and short ways to say what happens in it."""

    def __init__(self) -> None:
        name, self._connection = new_database()
        self.time = Time()
        self.process = Process("p", name, self.time, Random(1), lambda *_: None, self._hear)
        self.told = Wakeup.NOTHING
        """What others were told of the last transaction."""

    def _hear(self, news: Wakeup) -> None:
        self.told = news

    def close(self) -> None:
        self.process.kill()
        self._connection.close()

    def do(self, *commands: Any) -> list[Any]:
        """All in one transaction."""
        splits = self.process.writer.metrics.splits
        outcomes = self.process.execute(commands)
        assert outcomes is not None
        assert self.process.work <= MOST_WORK, "it went on for ever"
        assert self.process.writer.metrics.splits == splits, self.process.last_error
        return outcomes

    def submit(self, *tasks: NewTask, lifecycle: str = "standard", budget_usd: Decimal | None = None) -> Run:
        new = NewRun(name="run", tasks=tasks, lifecycle=lifecycle, budget_usd=budget_usd)
        (run,) = self.do(SubmitRun(new, caller=ASKER))
        assert isinstance(run, Run)
        return run

    def register(self, *capabilities: str, slots: int = 1, lifecycle: str = "standard") -> str:
        register = RegisterWorker(
            caller=ASKER,
            name="worker",
            lifecycle=lifecycle,
            capabilities=capabilities,
            max_concurrent_tasks=slots,
            lease_seconds=LEASE_SECONDS,
        )
        return str(self.do(register)[0].id)

    def claim(self, worker_id: str, limit: int = 1) -> list[Claim]:
        ((claims, _),) = self.do(ClaimTasks(worker_id, limit, caller=ASKER))
        return list(claims)

    def lose(self, worker_id: str, *tasks: str) -> None:
        """A worker takes these tasks up, and is never heard of again."""
        assert [claim.name for claim in self.claim(worker_id, len(tasks))] == list(tasks)
        self.pass_time(LEASE_SECONDS + 1)

    def pass_time(self, seconds: float) -> None:
        self.time.advance(seconds)
        while sum(self.do(upkeep)[0] for upkeep in (FireTimers(), ExpireWorkers())):
            pass

    def task(self, run: Run, name: str) -> Task:
        with self.process.store.read() as reader:
            return next(task for task in reader.list_tasks(ACME, run.id) if task.name == name)

    def names(self, run: Run) -> list[str]:
        with self.process.store.read() as reader:
            return [task.name for task in reader.list_tasks(ACME, run.id)]

    def run(self, run: Run) -> Run:
        with self.process.store.read() as reader:
            found = reader.find_run(ACME, run.id)
        assert found
        return found


def complete(claim: Claim, epoch: int = 1, cost_usd: Decimal = Decimal(0)) -> ReportAttempt:
    return ReportAttempt(claim.task_id, epoch, "complete", AttemptReport(cost_usd=cost_usd), caller=ASKER)


def fail(claim: Claim) -> ReportAttempt:
    report = AttemptReport(error="it broke", retryable=False)
    return ReportAttempt(claim.task_id, claim.epoch, "fail", report, caller=ASKER)


def skip(task: Task) -> SignalTask:
    return SignalTask(task.id, "skip", caller=ASKER)


def cancel(run: Run) -> SignalRun:
    return SignalRun(run.id, "cancel", caller=ASKER)


def add(run: Run, *tasks: NewTask) -> AddTasks:
    return AddTasks(run.id, tasks, caller=ASKER)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


def test_a_task_added_behind_one_that_succeeds_in_the_same_commit_waits_for_the_others(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a"), NewTask(name="b"))
    scene.do(skip(scene.task(run, "a")), add(run, NewTask(name="c", depends_on=("a", "b"))))
    assert (scene.task(run, "c").state, scene.task(run, "c").open_dependencies) == ("PENDING", 1)
    scene.do(skip(scene.task(run, "b")), add(run, NewTask(name="d", depends_on=("b",))))
    assert (scene.task(run, "c").state, scene.task(run, "d").state) == ("QUEUED", "QUEUED")


def test_two_that_add_a_task_of_one_name_in_the_same_commit_do_not_hurt_their_neighbours(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a"))
    added, refused, other = scene.do(
        add(run, NewTask(name="b")), add(run, NewTask(name="b")), add(run, NewTask(name="c", depends_on=("b",)))
    )
    assert isinstance(refused, RequestInvalid)
    assert [task.name for task in added + other] == ["b", "c"]


def test_a_claim_ends_also_where_a_lost_task_has_to_wait_for_money(scene: Scene) -> None:
    three = Decimal(3)
    run = scene.submit(
        NewTask(name="lost", capabilities=("linux",), budget_usd=three),
        NewTask(name="runs", capabilities=("gpu",), budget_usd=three),
        lifecycle="approval",
        budget_usd=Decimal(5),
    )
    scene.lose(scene.register("linux"), "lost")
    assert [claim.name for claim in scene.claim(scene.register("gpu"))] == ["runs"]
    assert scene.claim(scene.register("linux")) == []
    assert scene.task(run, "lost").lease_expired


def test_a_worker_gets_no_more_than_it_has_room_for_when_some_are_passed_by(scene: Scene) -> None:
    scene.do(declare_tool(ACME, "compiler", 1, 1, 5.0))
    scene.submit(NewTask(name="opens it", tool="compiler"))
    (claim,) = scene.claim(scene.register())
    scene.do(fail(claim))
    scene.submit(*(NewTask(name=name, tool="compiler", priority=1) for name in ("probe", "waits")), *map(plain, range(3)))
    scene.pass_time(6)
    assert [claim.name for claim in scene.claim(scene.register(slots=2), 2)] == ["probe", "plain 0"]


def plain(number: int) -> NewTask:
    return NewTask(name=f"plain {number}")


@pytest.mark.parametrize("lost_first", [True, False])
def test_what_was_lost_ends_with_its_run(scene: Scene, lost_first: bool) -> None:  # noqa: FBT001
    run = scene.submit(
        NewTask(name="lost", capabilities=("linux",)), NewTask(name="fails", capabilities=("gpu",)), lifecycle="approval"
    )
    loser = scene.register("linux")
    if lost_first:
        scene.lose(loser, "lost")
    else:
        scene.claim(loser)
    (claim,) = scene.claim(scene.register("gpu"))
    scene.do(fail(claim))
    scene.pass_time(LEASE_SECONDS + 1)
    assert (scene.run(run).state, scene.task(run, "lost").state) == ("FAILED", "CANCELED")


def test_a_probe_that_was_lost_leaves_its_place_to_the_next(scene: Scene) -> None:
    scene.do(declare_tool(ACME, "compiler", 1, 1, 5.0))
    scene.submit(NewTask(name="opens it", tool="compiler"))
    (claim,) = scene.claim(scene.register())
    scene.do(fail(claim))
    scene.submit(NewTask(name="probe", tool="compiler"), lifecycle="approval")
    scene.pass_time(6)
    scene.lose(scene.register(), "probe")
    assert [claim.name for claim in scene.claim(scene.register())] == ["probe"]


def test_a_task_that_was_lost_does_not_wait_for_its_own_reservation(scene: Scene) -> None:
    run = scene.submit(NewTask(name="dear", budget_usd=Decimal(3)), lifecycle="approval", budget_usd=Decimal(5))
    scene.lose(scene.register(), "dear")
    assert scene.run(run).promised_usd == 0
    assert [claim.name for claim in scene.claim(scene.register())] == ["dear"]


@pytest.mark.parametrize(("epochs", "refused"), [((1, 1), 1), ((0, 1), 0), ((1, 0), 1)])
def test_two_reports_of_one_task_get_an_answer_each(scene: Scene, epochs: tuple[int, int], refused: int) -> None:
    scene.submit(NewTask(name="reported twice"))
    (claim,) = scene.claim(scene.register())
    (answers,) = scene.do(ReportAttempts(tuple(complete(claim, epoch) for epoch in epochs), caller=ASKER))
    assert [isinstance(answer, LeaseLost) for answer in answers] == [index == refused for index in range(2)]


def test_what_tasks_cost_that_end_together_is_counted_for_each(scene: Scene) -> None:
    run = scene.submit(*map(plain, range(20)))
    claims = scene.claim(scene.register(slots=20), 20)
    scene.do(ReportAttempts(tuple(complete(claim, cost_usd=Decimal(2)) for claim in claims), caller=ASKER))
    assert scene.run(run).spent_usd == 40


@pytest.mark.parametrize("lifecycle", ["pipeline", "approval"])
def test_whoever_waits_is_told_of_tasks_that_begin_in_the_queue(scene: Scene, lifecycle: str) -> None:
    run = scene.submit(NewTask(name="a"), lifecycle=lifecycle)
    assert Wakeup.TASKS in scene.told
    scene.do(add(run, NewTask(name="b")))
    assert Wakeup.TASKS in scene.told


def test_a_worker_that_had_no_room_and_waits_is_told_that_it_has_some(scene: Scene) -> None:
    scene.submit(*map(plain, range(3)))
    first, _ = scene.claim(scene.register(slots=2), 2)
    scene.do(complete(first))
    assert Wakeup.TASKS in scene.told


def test_a_worker_that_has_room_is_told_of_a_task_that_the_budget_can_never_cover_now(scene: Scene) -> None:
    """A claim ends such a task, and until then its run waits."""
    eight = Decimal(8)
    tasks = (NewTask(name="free"), NewTask(name="large", budget_usd=eight), NewTask(name="waits", budget_usd=eight))
    run = scene.submit(*tasks, budget_usd=Decimal(10))
    worker = scene.register(slots=5)
    free, _ = scene.claim(worker, 5)
    assert free.name == "free"
    scene.do(complete(free, cost_usd=Decimal(5)))
    assert Wakeup.TASKS in scene.told
    assert scene.claim(worker, 3) == []
    assert scene.task(run, "waits").state == "BUDGET_EXCEEDED"


def test_a_worker_whose_run_has_ended_is_told_of_the_tasks_of_others(scene: Scene) -> None:
    scene.register(lifecycle="supervised")
    run = scene.submit(NewTask(name="its own"), lifecycle="supervised")
    scene.do(cancel(run))
    assert Wakeup.TASKS in scene.told


def test_a_worker_that_takes_the_place_of_another_is_told_of_its_new_tasks(scene: Scene) -> None:
    scene.register(lifecycle="supervised")
    scene.submit(NewTask(name="wanted"), lifecycle="supervised")
    substitute = scene.register(lifecycle="supervised")
    scene.do(cancel(scene.submit(NewTask(name="earlier"), lifecycle="supervised")))
    scene.time.advance(LEASE_SECONDS - 1)
    scene.do(SendHeartbeat(substitute, caller=ASKER))
    scene.time.advance(2)
    scene.do(ExpireWorkers())
    assert Wakeup.TASKS in scene.told
    assert [claim.name for claim in scene.claim(substitute)] == ["wanted"]


def test_whoever_waits_is_told_of_tasks_that_the_doctor_has_freed(scene: Scene) -> None:
    scene.submit(NewTask(name="a"))
    scene.process.store.writer.execute("UPDATE task_state SET open_dependencies = 1")
    with scene.process.store.read() as reader:
        found = tuple(diagnose(reader, template()[1], reader.now()))
    scene.do(Repair(diagnoses=tuple(each for each in found if each.kind == "task")))
    assert Wakeup.TASKS in scene.told
    assert [claim.name for claim in scene.claim(scene.register())] == ["a"]


# people in the loop (docs/decisions/0019)


def signal(task: Task | Claim, signal: str, actor: str = "ada", **words: Any) -> SignalTask:
    task_id = task.task_id if isinstance(task, Claim) else task.id
    return SignalTask(task_id, signal, caller=person_of(ACME, actor), **words)


def plan(claim: Claim, *names: str, session_id: str | None = None) -> ReportAttempt:
    subtasks = tuple(NewTask(name=name, parent=claim.name) for name in names)
    report = AttemptReport(subtasks=subtasks, session_id=session_id)
    return ReportAttempt(claim.task_id, claim.epoch, "complete", report, caller=ASKER)


def ask(claim: Claim, question: str = "which?") -> ReportAttempt:
    report = AttemptReport(question=question, session_id="session")
    return ReportAttempt(claim.task_id, claim.epoch, "ask", report, caller=ASKER)


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
def test_a_task_that_waits_for_its_subtasks_takes_no_answer(scene: Scene, lifecycle: str) -> None:
    run = scene.submit(NewTask(name="a"), lifecycle=lifecycle)
    (claim,) = scene.claim(scene.register())
    scene.do(plan(claim, "a/1", session_id="session"))
    (refused,) = scene.do(signal(claim, "answer", answer="this"))
    assert isinstance(refused, TransitionRefused)
    assert "BLOCKED: 'answer' is not allowed from here. It would need: question" in str(refused)
    assert scene.task(run, "a").state == "BLOCKED"


def test_whoever_asks_for_a_state_does_not_answer_a_question_with_nothing(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a"))
    (claim,) = scene.claim(scene.register())
    scene.do(ask(claim))
    (refused,) = scene.do(RequestTransition(kind=Kind.TASK, entity_id=claim.task_id, to_state="QUEUED", caller=ASKER))
    assert isinstance(refused, RequestInvalid)
    assert scene.task(run, "a").question == "which?"


def test_an_answer_that_does_not_fit_does_not_try_a_failed_run_again(scene: Scene) -> None:
    run = scene.submit(NewTask(name="asks"), NewTask(name="fails"))
    asks, fails = scene.claim(scene.register(slots=2), 2)
    scene.do(ask(asks, '{"text": "red or blue?", "choices": ["red", "blue"]}'), fail(fails))
    (refused,) = scene.do(signal(asks, "answer", answer="green"))
    assert isinstance(refused, RequestInvalid)
    assert scene.run(run).state == "FAILED"


def test_a_report_that_is_refused_adds_no_subtasks(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a"), lifecycle="agent")
    (claim,) = scene.claim(scene.register())
    (refused,) = scene.do(plan(claim, "a/1"))
    assert isinstance(refused, TransitionRefused), "a task waits for its subtasks only with a session"
    assert scene.names(run) == ["a"]


def test_a_gate_has_no_subtasks_which_could_be_open_when_it_is_passed(scene: Scene) -> None:
    gate, part = NewTask(name="gate", gate=True), NewTask(name="part", parent="gate")
    run = scene.submit(gate)
    with pytest.raises(RequestInvalid, match=r"'gate' is a gate, which people decide: it has no subtasks"):
        validate(SubmitRun(NewRun(name="run", tasks=(gate, part)), caller=ASKER))
    (refused,) = scene.do(add(run, part))
    assert isinstance(refused, RequestInvalid)


def test_a_result_is_not_accepted_before_the_subtasks_are_done(scene: Scene) -> None:
    run = scene.submit(NewTask(name="a", review=True))
    worker = scene.register()
    (claim,) = scene.claim(worker)
    scene.do(complete(claim))
    _, refused = scene.do(add(run, NewTask(name="late", parent="a")), signal(claim, "accept"))
    assert isinstance(refused, TransitionRefused)
    assert "It would need: not open_subtasks" in str(refused)
    (late,) = scene.claim(worker)
    assert scene.task(run, "a").state == "READY"
    _, accepted = scene.do(complete(late), signal(claim, "accept"))
    assert accepted.state == "SUCCEEDED"


def test_whoever_skips_a_task_does_not_pass_a_gate_in_it_that_names_others(scene: Scene) -> None:
    gate = NewTask(name="gate", parent="a", gate=True, approvers=("bob",))
    run = scene.submit(NewTask(name="a"), gate)
    (refused,) = scene.do(signal(scene.task(run, "a"), "skip", actor="ada"))
    assert isinstance(refused, NotAllowed)
    assert (scene.task(run, "a").state, scene.task(run, "gate").state) == ("QUEUED", "WAITING_APPROVAL")
    scene.do(signal(scene.task(run, "a"), "skip", actor="bob"))
    assert (scene.task(run, "a").state, scene.task(run, "gate").state) == ("SKIPPED", "SKIPPED")
