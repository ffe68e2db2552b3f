"""What can be asked about runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

from pointsman.engine import budgets, runs, submit, tasks
from pointsman.engine.command import Needs, Request
from pointsman.engine.people import check_person
from pointsman.engine.submit import NewRun, NewTask
from pointsman.engine.work import Cause, Work
from pointsman.errors import Problem, RequestInvalid
from pointsman.kernel.machine import Kind, Machine, Phase
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Run, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRun:
    answer_type: ClassVar[Any] = Run
    tenant: str
    request: Request | None
    new: NewRun
    cause: Cause

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.new.parent_run_id,) if self.new.parent_run_id else ())

    def decide(self, work: Work) -> Callable[[], Run]:
        lifecycle = work.machines.lifecycle(self.new.lifecycle)
        machine = lifecycle.of_kind(Kind.TASK)
        submit.check_gates(self.new.tasks, machine)
        submit.check_tools(work, self.tenant, self.new.tasks)
        work.ensure_tenant(self.tenant)
        run = submit.build_run(work, self.new, lifecycle, self.tenant, self.cause)
        is_open = runs.is_open(run, work.machine(run).initial)
        submit.add_tasks(work, run, self.new.tasks, machine, self.cause, is_open=is_open, ordered=self.new.ordered)
        runs.make_ready(work, run)
        return lambda: run


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTasks:
    answer_type: ClassVar[Any] = list[Task]
    tenant: str
    request: Request | None
    run_id: str
    new: tuple[NewTask, ...]
    cause: Cause

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run_id,))

    def decide(self, work: Work) -> Callable[[], list[Task]]:
        run = work.run(self.tenant, self.run_id)
        work.flush()  # others may have added some in this transaction
        known = work.transaction.find_task_names(run.id)
        work.load(task_ids=known.values())
        if run.phase == Phase.DONE and not self._are_parts(work, run, known):
            raise RequestInvalid([Problem("run_id", f"{run.name} has ended ({run.state}). Submit a new run.")])
        if run.phase == Phase.ACTIVE and not work.takes(run, "complete"):
            message = f"{run.name} is {run.state}: its tasks are done, and only its checks are left. Submit a new run."
            raise RequestInvalid([Problem("run_id", message)])
        problems = submit.check_tasks(self.new, {name: work.tasks.rows[task_id].depth for name, task_id in known.items()})
        if problems:
            raise RequestInvalid(problems)
        machine = self._find_machine(work, run, known.values())
        submit.check_gates(self.new, machine)
        submit.check_tools(work, self.tenant, self.new)
        is_open = runs.is_open(run, work.machine(run).state(run.state))
        rows = submit.add_tasks(work, run, self.new, machine, self.cause, is_open=is_open, ordered=False, known=known)
        if run.missing_tasks:
            run.missing_tasks = max(run.missing_tasks - len(self.new), 0)
            work.runs.change(run)
            runs.make_ready(work, run)
            runs.tell_tasks(work, run)
        return lambda: rows

    def _are_parts(self, work: Work, run: Run, known: Mapping[str, str]) -> bool:
        """Whether all belong to tasks that are at work: these go on to their end when their run has failed, which may be tried
        again.
        """
        parents = [work.tasks.rows.get(known.get(task.parent or "", "")) for task in self.new]
        return work.takes(run, "retry") and all(parent and parent.phase == Phase.ACTIVE for parent in parents)

    def _find_machine(self, work: Work, run: Run, known: Iterable[str]) -> Machine:
        """The one that the other tasks of the run follow, which may be unknown here but for what the database has of it."""
        for task_id in known:
            return work.machine(work.tasks.rows[task_id])
        return work.machines.lifecycle(run.lifecycle).of_kind(Kind.TASK)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRun:
    """A person wants something of a run, or a worker reports how its final checks went."""

    answer_type: ClassVar[Any] = Run
    tenant: str
    request: Request | None
    run_id: str
    signal: str
    cause: Cause
    error: str | None = None
    output: str | None = None

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run_id,))

    def decide(self, work: Work) -> Callable[[], Run]:
        run = work.run(self.tenant, self.run_id)
        check_person(work, run, Kind.RUN, self.signal)
        runs.send(work, run, self.signal, self.cause, error=self.error, output=self.output)
        return lambda: run


@dataclass(frozen=True, slots=True, kw_only=True)
class SetBudget:
    """A person gives a run more to spend, or less."""

    answer_type: ClassVar[Any] = Run
    tenant: str
    request: Request | None
    run_id: str
    budget_usd: Decimal | None

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run_id,))

    def decide(self, work: Work) -> Callable[[], Run]:
        run = work.run(self.tenant, self.run_id)
        committed = run.spent_usd + run.reserved_usd
        if self.budget_usd is not None and run.reserved_usd and self.budget_usd < committed:
            message = f"{committed} USD of it are spent or reserved. Give at least that, or wait until its tasks have ended."
            raise RequestInvalid([Problem("budget_usd", message)])
        run.budget_usd = self.budget_usd
        budgets.cover(run)
        work.runs.change(run)
        work.wakeups |= Wakeup.TASKS
        return lambda: run


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproveRun:
    """A person lets every open gate of a run through; with none open, nothing happens (document 003)."""

    answer_type: ClassVar[Any] = Run
    tenant: str
    request: Request | None
    run_id: str
    cause: Cause

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
