"""Operations on runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Annotated, ClassVar

from pointsman.engine import budgets, checks, gates, runs, submit, tasks
from pointsman.engine.fields import INLINE, Amount, Json, RunId, Text
from pointsman.engine.operation import Needs, Recorded
from pointsman.engine.operations.tasks import approve_gate
from pointsman.engine.people import check_person, list_signals
from pointsman.engine.submit import NewRun, NewTask
from pointsman.engine.work import Work
from pointsman.errors import Problem, RequestInvalid
from pointsman.kernel.machine import Kind, Phase
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Run, Task


class SubmitRun(Recorded[Run], frozen=True):
    """Submit a run with its tasks."""

    key_lasts_seconds: ClassVar[float | None] = None  # one key, one run (document 003)

    run: Annotated[NewRun, INLINE]

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run.parent_run_id,) if self.run.parent_run_id else ())

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        return submit.check_run(self.run, [problem.path for problem in found])

    def decide(self, work: Work) -> Callable[[], Run]:
        lifecycle = work.machines.lifecycle(self.run.lifecycle)
        machine = lifecycle.of_kind(Kind.TASK)
        submit.check_gates(self.run.tasks, machine, self.caller.actor)
        submit.check_workers(self.run, lifecycle.of_kind(Kind.RUN))
        submit.check_final_task(self.run, lifecycle.of_kind(Kind.RUN))
        submit.check_tools(work, self.tenant, self.run.tasks)
        work.ensure_tenant(self.tenant)
        run = submit.build_run(work, self.run, lifecycle, self.tenant, self.cause)
        is_open = runs.is_open(run, work.machine(run).initial)
        submit.add_tasks(work, run, self.run.tasks, machine, self.cause, is_open=is_open, ordered=self.run.ordered)
        runs.make_ready(work, run)
        return lambda: run


class AddTasks(Recorded[list[Task]], frozen=True):
    """Add tasks to a run that has not ended; they may depend on, and be subtasks of, those that it has."""

    run_id: Annotated[RunId, "The run to add to."]
    tasks: Annotated[Sequence[NewTask], "At least one task."]

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run_id,))

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        # How they hang together is checked when the tasks of the run are at hand.
        if not found and not self.tasks:
            yield Problem("tasks", "Must have at least one task.")

    def decide(self, work: Work) -> Callable[[], list[Task]]:
        run = work.run(self.tenant, self.run_id)
        rows = submit.extend_run(work, run, self.tasks, submit.check_addition(work, run, self.tasks), self.cause)
        return lambda: rows


class SignalRun(Recorded[Run], frozen=True):
    """Send a run what a person decides (cancel, pause, resume, retry), or how its final checks went."""

    run_id: Annotated[RunId, "The run."]
    signal: Annotated[Text, list_signals(Kind.RUN)]
    output: Annotated[Json, "The result of the run; any JSON."] = None

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run_id,))

    def decide(self, work: Work) -> Callable[[], Run]:
        run = work.run(self.tenant, self.run_id)
        check_person(work, run, Kind.RUN, self.signal)
        if self.signal == "cancel" and run.phase == Phase.DONE and runs.cancel_running(work, run, self.cause):
            return lambda: run
        error = tasks.as_error(self.reason or f"{self.signal} by {self.caller.actor}")
        runs.send(work, run, self.signal, self.cause, error=error, output=checks.encode(self.output))
        return lambda: run


class StartRun(Recorded[Run], frozen=True):
    """Start every task of a run that waits to be started; with none, nothing happens."""

    run_id: Annotated[RunId, "The run."]

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run_id,))

    def decide(self, work: Work) -> Callable[[], Run]:
        run = work.run(self.tenant, self.run_id)
        for task in work.transaction.select_run_tasks(run.id, (Phase.HELD.value,)):
            work.tasks.hold([task])
            if run.phase != Phase.DONE and work.takes(task, "ready"):
                tasks.try_send(work, work.tasks.rows[task.id], "ready", self.cause)
        return lambda: run


class SetBudget(Recorded[Run], frozen=True):
    """Give a run more to spend, or less. That moves nothing, so a notice keeps who did it, and why."""

    run_id: Annotated[RunId, "The run."]
    budget_usd: Annotated[Amount | None, "What all its tasks together may spend; null for no limit."]

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run_id,))

    def decide(self, work: Work) -> Callable[[], Run]:
        run = work.run(self.tenant, self.run_id)
        committed: Decimal = run.spent_usd + run.reserved_usd
        if self.budget_usd is not None and run.reserved_usd and self.budget_usd < committed:
            spent = f"{budgets.show(committed)} USD of it are spent or reserved"
            message = f"{spent}. Give at least that, or wait until its tasks have ended."
            raise RequestInvalid([Problem("budget_usd", message)])
        before, run.budget_usd = run.budget_usd, self.budget_usd
        change = f"The budget is {budgets.show_limit(run.budget_usd)}. It was {budgets.show_limit(before)}."
        work.give_notice(run, Kind.RUN.value, run.id, subject="budget", message=self.cause.sign(change))
        budgets.cover(run)
        work.runs.change(run)
        work.wakeups |= Wakeup.TASKS
        return lambda: run


class ApproveRun(Recorded[Run], frozen=True):
    """Approve every open gate of a run that has not ended; with none open, nothing happens (document 003)."""

    run_id: Annotated[RunId, "The run."]

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run_id,))

    def decide(self, work: Work) -> Callable[[], Run]:
        run = work.run(self.tenant, self.run_id)
        found = work.transaction.select_run_tasks(run.id, (Phase.HELD.value,))
        work.tasks.hold(found)
        for task in (work.tasks.rows[task.id] for task in found if task.is_gate and work.takes(task, "approve")):
            gates.check_decider(task, run, "approve", self.caller.actor)
            tasks.refuse(approve_gate(work, task, self.cause))
        return lambda: run
