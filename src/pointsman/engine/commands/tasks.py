"""What people can ask of a task, and workers report of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, ClassVar

from pointsman.engine import breakers, budgets, bulk, claims, runs, tasks
from pointsman.engine.command import Needs, Request
from pointsman.engine.people import check_person, check_worker
from pointsman.engine.tasks import Report
from pointsman.engine.work import Cause, Work
from pointsman.errors import LeaseLost, PointsmanError, StoreError
from pointsman.kernel.machine import Kind, Outcome, Phase
from pointsman.store.rows import ZERO_USD, Task, TaskKey


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalAttempt:
    """A worker reports about an attempt that it holds; nothing of an older one counts."""

    answer_type: ClassVar[Any] = Task
    tenant: str
    request: Request | None
    task_id: str
    epoch: int
    signal: str
    report: Report
    cause: Cause

    @property
    def needs(self) -> Needs:
        return Needs(task_ids=(self.task_id,), subtasks_of=(self.task_id,))

    def decide(self, work: Work) -> Callable[[], Task]:
        task = work.task(self.tenant, self.task_id)
        check_worker(self.signal)
        check_epoch(task, self.epoch)
        decided = tasks.check(work, task, self.signal, self.report)
        if self._tell_breaker(work, task):
            decided = tasks.check(work, task, self.signal, self.report)
        tasks.take(work, task, decided, self._cause(task), self.report)
        return lambda: task

    def _cause(self, task: Task) -> Cause:
        """Whose attempt it is; a try that does not count says so in the audit trail."""
        metadata = {"usage_limit": True} if self.report.usage_limit_until else None
        return Cause(task.attempt_worker_id or self.cause.actor, self.cause.reason, metadata)

    def _tell_breaker(self, work: Work, task: Task) -> bool:
        """The tool has answered: that counts before the task asks whether its breaker is open."""
        if work.tool_of(task) is None:
            return False
        if self.signal == "complete":
            breakers.succeeded(work, task)
        elif self.signal == "fail" and not self.report.usage_limit_until:
            breakers.failed(work, task)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalAttempts:
    """A worker reports about several attempts at once; each is accepted or refused on its own."""

    answer_type: ClassVar[Any] = list
    tenant: str
    request: None = None
    reports: tuple[SignalAttempt, ...]

    @property
    def needs(self) -> Needs:
        task_ids = tuple(report.task_id for report in self.reports)
        first = self.reports[0]
        same = all(report.signal == first.signal and report.report == first.report for report in self.reports)
        # What each has cost is counted with its run, one by one.
        same = same and not first.report.cost_usd
        together = tuple((report.task_id, report.epoch) for report in self.reports) if same else ()
        return Needs(task_ids=task_ids, subtasks_of=task_ids, together=together)

    def decide(self, work: Work) -> Callable[[], list[PointsmanError | None]]:
        followers = self._find_followers(work)
        answers = [None if report.task_id in followers else self._decide_one(work, report) for report in self.reports]
        return lambda: answers

    def _find_followers(self, work: Work) -> set[str]:
        """Tasks that go together with another one, which is decided."""
        followers: set[str] = set()
        report = self.reports[0]
        for group in work.groups:
            leader = work.tasks.rows[group[0].id]
            if self._are_alike(work, group) and bulk.lead(work, leader, group, report.signal, report.report):
                followers |= set(work.tasks.followers[leader.id])
            else:
                work.load(task_ids=[key.id for key in group])
        return followers

    def _are_alike(self, work: Work, group: Sequence[TaskKey]) -> bool:
        """Whether they still are: what came before in the same commit may have changed some of them."""
        first, *others = group
        is_as_it_was = work.tasks.is_untouched(first.id) and work.tasks.rows[first.id].revision == first.revision
        return first.tenant == self.tenant and is_as_it_was and not any(other.id in work.tasks.rows for other in others)

    def _decide_one(self, work: Work, report: SignalAttempt) -> PointsmanError | None:
        try:
            report.decide(work)
        except StoreError:
            raise
        except PointsmanError as error:
            return error
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteAttempt:
    """A worker tells what an attempt costs, or which session it has, while it goes on."""

    answer_type: ClassVar[Any] = Task
    tenant: str
    request: Request | None
    task_id: str
    epoch: int
    cost_usd: Decimal = ZERO_USD
    session_id: str | None = None
    log_path: str | None = None

    @property
    def needs(self) -> Needs:
        return Needs(task_ids=(self.task_id,))

    def decide(self, work: Work) -> Callable[[], Task]:
        task = work.task(self.tenant, self.task_id)
        check_epoch(task, self.epoch)
        tasks.note_attempt(work, task, Report(cost_usd=self.cost_usd, session_id=self.session_id, log_path=self.log_path))
        if reason := budgets.explain_overspending(work, task):
            claims.overspend(work, task, reason)
        return lambda: task


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalTask:
    """A person wants something of a task."""

    answer_type: ClassVar[Any] = Task
    tenant: str
    request: Request | None
    task_id: str
    signal: str
    report: Report
    cause: Cause

    @property
    def needs(self) -> Needs:
        return Needs(task_ids=(self.task_id,), subtasks_of=(self.task_id,))

    def decide(self, work: Work) -> Callable[[], Task]:
        task = work.task(self.tenant, self.task_id)
        check_person(work, task, Kind.TASK, self.signal)
        if self.signal == "cancel":
            tasks.refuse(tasks.cancel(work, task, self.cause))
        else:
            report = replace(self.report, process_ended=not tasks.may_run(task))
            self._reopen_run(work, task, report)
            tasks.send(work, task, self.signal, self.cause, report)
            tasks.grant_attempt(task)
            if work.runs.rows[task.run_id].phase != Phase.DONE:
                self._tell_relatives(work, task)
        return lambda: task

    def _tell_relatives(self, work: Work, task: Task) -> None:
        """Whoever passes over a task passes over its parts. And where a whole has failed with its part, another try of that, or
        going on without it, is another try of the whole.
        """
        if task.has_subtasks and task.outcome == Outcome.SUCCESS:
            self._skip_parts(work, task)
        while task.parent_task_id is not None:
            work.read_tasks([task.parent_task_id])
            task = work.tasks.rows[task.parent_task_id]
            if work.was_told(task, "child_failed"):
                tasks.try_again(work, task, self.cause)

    def _skip_parts(self, work: Work, task: Task) -> None:
        """All that have not succeeded, at any depth; what runs is not skipped, and ends as it may."""
        work.flush()
        wholes = {task.id}
        for row in sorted(work.transaction.select_run_tasks(task.run_id, tuple(Phase)), key=lambda row: row.depth):
            if row.parent_task_id in wholes:
                wholes.add(row.id)
                work.tasks.hold([row])
                part = work.tasks.rows[row.id]
                if part.outcome is None or part.outcome == Outcome.FAILURE:
                    report = Report(process_ended=not tasks.may_run(part))
                    tasks.try_send(work, part, self.signal, self.cause, report)

    def _reopen_run(self, work: Work, task: Task, report: Report) -> None:
        """Another try of a task whose run has ended is another try of the run, where its machine knows such a thing."""
        run = work.runs.rows[task.run_id]
        decided = tasks.check(work, task, self.signal, report)
        if run.phase != Phase.DONE:
            return
        state = work.machine(task).state(decided[-1].to_state)
        if state.phase is Phase.DONE and task.outcome != Outcome.FAILURE:
            return  # it is passed over before it was tried, and nothing of the run is tried again for that
        refusal = runs.try_send(work, run, "retry", self.cause, reopens=False)
        if state.phase is not Phase.DONE:
            tasks.refuse(refusal)


def check_epoch(task: Task, epoch: int) -> None:
    """Only the attempt that holds a task may say anything about it."""
    if task.current_attempt == epoch and not task.lease_expired:
        return
    if epoch > task.epoch:
        why = f"the last attempt was {task.epoch}"
    elif task.lease_expired and task.current_attempt == epoch:
        why = "its lease is over"
    elif task.current_attempt is None:
        why = f"its task is {task.state}"
    else:
        why = f"attempt {task.current_attempt} has taken over"
    raise LeaseLost(task.id, epoch, why)
