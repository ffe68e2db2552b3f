"""Operations on runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Annotated

from pointsman.engine import budgets, checks, runs, submit, tasks
from pointsman.engine.fields import INLINE, Amount, Json, RunId, Text
from pointsman.engine.operation import Needs, Operation, Recorded
from pointsman.engine.people import check_person, list_signals
from pointsman.engine.submit import NewRun, NewTask
from pointsman.engine.work import Work
from pointsman.errors import Problem, RequestInvalid
from pointsman.kernel.machine import Kind, Phase
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Run, Task


class SubmitRun(Recorded[Run], frozen=True):
    """Submit a run with its tasks."""

    run: Annotated[NewRun, INLINE]

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run.parent_run_id,) if self.run.parent_run_id else ())

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        return submit.check_run(self.run, [problem.path for problem in found])

    def decide(self, work: Work) -> Callable[[], Run]:
        lifecycle = work.machines.lifecycle(self.run.lifecycle)
        machine = lifecycle.of_kind(Kind.TASK)
        submit.check_gates(self.run.tasks, machine)
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
        rows = submit.extend_run(work, work.run(self.tenant, self.run_id), self.tasks, self.cause)
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
        error = tasks.as_error(self.reason or f"{self.signal} by {self.caller.actor}")
        runs.send(work, run, self.signal, self.cause, error=error, output=checks.encode(self.output))
        return lambda: run


class SetBudget(Operation[Run], frozen=True):
    """Give a run more to spend, or less."""

    run_id: Annotated[RunId, "The run."]
    budget_usd: Annotated[Amount | None, "What all its tasks together may spend; null for no limit."]

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run_id,))

    def decide(self, work: Work) -> Callable[[], Run]:
        run = work.run(self.tenant, self.run_id)
        committed: Decimal = run.spent_usd + run.reserved_usd
        if self.budget_usd is not None and run.reserved_usd and self.budget_usd < committed:
            message = f"{committed} USD of it are spent or reserved. Give at least that, or wait until its tasks have ended."
            raise RequestInvalid([Problem("budget_usd", message)])
        run.budget_usd = self.budget_usd
        budgets.cover(run)
        work.runs.change(run)
        work.wakeups |= Wakeup.TASKS
        return lambda: run


class ApproveRun(Recorded[Run], frozen=True):
    """Approve every open gate of a run; with none open, nothing happens (document 003)."""

    run_id: Annotated[RunId, "The run."]

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run_id,))

    def decide(self, work: Work) -> Callable[[], Run]:
        run = work.run(self.tenant, self.run_id)
        for task in work.transaction.select_run_tasks(run.id, (Phase.HELD.value,)):
            if task.is_gate:
                work.tasks.hold([task])
                tasks.try_send(work, work.tasks.rows[task.id], "approve", self.cause)
        return lambda: run
