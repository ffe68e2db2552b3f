"""Operations on runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Struct

from pointsman.engine import budgets, checks, gates, runs, submit, tasks
from pointsman.engine.fields import INLINE, Amount, Json, RunId, Text, whole
from pointsman.engine.filters import EVERY_RUN, RunFilter
from pointsman.engine.operation import Needs, Recorded
from pointsman.engine.operations.tasks import approve_gate
from pointsman.engine.pages import Cursor, RunPlace, read_place, write_cursor
from pointsman.engine.people import check_person, list_signals
from pointsman.engine.submit import NewRun, NewTask
from pointsman.engine.work import Work
from pointsman.errors import Problem, RequestInvalid, TransitionRefused
from pointsman.kernel.machine import Kind, Phase, Refusal
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Run, Task

MOST_TASKS = 10_000
"""Of all runs that one action moves at once, since it is one transaction."""


class SubmitRun(Recorded[Run], frozen=True):
    """Submit a run with its tasks."""

    begins_work: ClassVar[bool] = True
    key_lasts_seconds: ClassVar[float | None] = None  # one key, one run (document 003)

    run: Annotated[NewRun, INLINE]

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run.parent_run_id,) if self.run.parent_run_id else (), adds_work=True)

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        return submit.check_run(self.run, [problem.path for problem in found])

    def decide(self, work: Work) -> Callable[[], Run]:
        lifecycle = work.machines.lifecycle(self.run.lifecycle, work.transaction)
        machine = lifecycle.of_kind(Kind.TASK)
        submit.check_gates(self.run.tasks, machine, self.caller.actor)
        submit.check_workers(self.run, lifecycle.of_kind(Kind.RUN))
        submit.check_final_task(self.run, lifecycle.of_kind(Kind.RUN))
        submit.check_tools(work, self.tenant, self.run.tasks)
        work.ensure_tenant(self.tenant)
        run = submit.build_run(work, self.run, lifecycle, self.tenant, self.cause, self.caller.traceparent)
        is_open = runs.is_open(run, work.machine(run).initial)
        submit.add_tasks(work, run, self.run.tasks, machine, self.cause, is_open=is_open, ordered=self.run.ordered)
        runs.make_ready(work, run)
        return lambda: run


class AddTasks(Recorded[list[Task]], frozen=True):
    """Add tasks to a run that has not ended; they may depend on, and be subtasks of, those that it has."""

    begins_work: ClassVar[bool] = True

    run_id: Annotated[RunId, "The run to add to."]
    tasks: Annotated[Sequence[NewTask], "At least one task."]

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.run_id,), adds_work=True)

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


class SignaledRun(Struct, frozen=True, kw_only=True):
    """What an action on many runs did to one of them, or would do."""

    run_id: str
    name: str
    from_state: str
    to_state: str
    """The same as before if the action was refused."""
    success: bool
    error: str | None = None
    """Why it was refused."""


class SignaledRuns(Struct, frozen=True, kw_only=True):
    """What an action did to each run that fulfills a filter, newest first; of a dry run, what it would do."""

    dry_run: bool
    items: tuple[SignaledRun, ...]
    next: str | None
    """There are more runs: give it as `after` to go on; null if these were the last."""


class SignalRuns(Recorded[SignaledRuns], frozen=True, kw_only=True):
    """Send all runs that fulfill a filter what a person decides. One that does not take it is left as it is."""

    shares_transaction: ClassVar[bool] = False

    action: Annotated[Literal["cancel", "pause", "resume", "retry"], "What to do with each run."]
    filter: Annotated[RunFilter, "Which runs: at least one condition."]
    dry_run: Annotated[bool, "Say what would happen to each run, and change nothing."] = False
    limit: Annotated[int, whole(1, 1000), f"At most so many runs, with at most {MOST_TASKS:,} unfinished tasks together."] = 100
    after: Annotated[Cursor | None, "`next` of the answer before."] = None

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        if not found and self.filter == EVERY_RUN:
            yield Problem("filter", "It has no condition. Name at least one, so that not all runs are meant by mistake.")
        if self.after is not None and isinstance(problem := read_place(RunPlace, self.after), Problem):
            yield problem

    def decide(self, work: Work) -> Callable[[], SignaledRuns]:
        found = self._find(work)
        chosen = self._choose(work, found)
        last = write_cursor(RunPlace, chosen[-1]) if len(chosen) < len(found) else None
        if self.dry_run:
            expected = tuple(self._foresee(work, run) for run in chosen)
            return lambda: SignaledRuns(dry_run=True, items=expected, next=last)
        work.lock_runs([run.id for run in chosen])
        work.load_workers(work.transaction.find_run_workers([run.id for run in chosen if run.allocates]))
        present = {run.id for run in self._find(work)}  # another transaction may have moved some before they were locked
        locked = [work.runs.rows[run.id] for run in chosen if run.id in present]
        before = {run.id: run.state for run in locked}
        errors = {run.id: self._signal(work, run) for run in locked}
        return lambda: SignaledRuns(
            dry_run=False, items=tuple(_tell(run, before[run.id], run.state, errors[run.id]) for run in locked), next=last
        )

    def _find(self, work: Work) -> list[Run]:
        conditions = msgspec.structs.asdict(self.filter)
        after = None if self.after is None else read_place(RunPlace, self.after).id
        return work.transaction.list_runs(self.tenant, after=after, limit=self.limit + 1, **conditions)

    def _choose(self, work: Work, found: Sequence[Run]) -> list[Run]:
        """As many as one transaction may move; at least one."""
        chosen = list(found[: self.limit])
        unfinished: Counter[str] = Counter()
        for run_id, phase, _, count, _ in work.transaction.count_tasks(self.tenant, [run.id for run in chosen]):
            unfinished[run_id] += count if phase != Phase.DONE else 0
        sums = accumulate(unfinished[run.id] for run in chosen)
        return [run for index, (run, total) in enumerate(zip(chosen, sums, strict=True)) if index == 0 or total <= MOST_TASKS]

    def _signal(self, work: Work, run: Run) -> str | None:
        try:
            SignalRun(run.id, self.action, reason=self.reason, caller=self.caller).decide(work)
        except TransitionRefused as refused:
            return str(refused)
        return None

    def _foresee(self, work: Work, run: Run) -> SignaledRun:
        if self.action == "cancel" and run.phase == Phase.DONE and runs.find_running(work, run):
            return _tell(run, run.state, run.state, None)
        decided = work.decide(run, self.action, runs.facts_of(run, runs.assess(work, run)))
        if isinstance(decided, Refusal):
            return _tell(run, run.state, run.state, decided.message)
        return _tell(run, run.state, decided[-1].to_state, None)


def _tell(run: Run, before: str, after: str, error: str | None) -> SignaledRun:
    return SignaledRun(run_id=run.id, name=run.name, from_state=before, to_state=after, success=error is None, error=error)


class StartRun(Recorded[Run], frozen=True):
    """Start every task of a run that waits to be started; with none, nothing happens."""

    begins_work: ClassVar[bool] = True

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
        opened = [work.tasks.rows[task.id] for task in found if task.is_gate and work.takes(task, "approve")]
        for task in opened:  # all of them before any is approved: a refusal changes nothing
            gates.check_decider(task, run, "approve", self.caller.actor)
        for task in opened:
            tasks.refuse(approve_gate(work, task, self.cause))
        return lambda: run
