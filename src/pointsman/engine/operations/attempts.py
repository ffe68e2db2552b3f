"""Operations of workers on their attempts. Only the attempt that holds a task may report; nothing of an older one counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Struct

from pointsman.engine import breakers, budgets, checks, claims, plain, submit, tasks, workers
from pointsman.engine.budgets import Usage
from pointsman.engine.fields import INLINE, Amount, Epoch, ExitCode, Instant, Json, TaskId, Text, Tokens
from pointsman.engine.operation import Caller, Needs, Operation
from pointsman.engine.people import check_worker
from pointsman.engine.submit import NewTask
from pointsman.engine.tasks import Report
from pointsman.engine.work import Cause, Work
from pointsman.errors import LeaseLost, PointsmanError, Problem, StoreError
from pointsman.kernel.machine import Outcome, Phase
from pointsman.store.rows import ZERO_USD, PlainReport, Task

LONGEST_REASON = 500
WITHOUT_ERROR = ("complete", "ask", "skip", "checks_passed")
"""Signals of which no error is kept; what comes with them goes into the audit trail only."""
INTERRUPT = "interrupt"
"""A person has stopped the worker, or its tool has reached a usage limit. The process has ended; the attempt does not count."""
GIVE_BACK = "give_back"
"""The worker has run out of memory or disk, and the process has ended: it counts as a reclaim, as if the worker had died."""


class AttemptReport(Struct, frozen=True, kw_only=True):
    """Everything that an attempt can report beside its signal."""

    output: Annotated[Json, "What it produced; any JSON."] = None
    error: Annotated[Text | None, "What went wrong; of a skipped task, why."] = None
    tail: Annotated[Text | None, "The end of what it wrote, kept with its error."] = None
    retryable: Annotated[bool, "Whether another attempt could succeed."] = True
    usage_limit_until: Annotated[
        Instant | None,
        "With interrupt: the usage limit of its tool ends then. Neither the task nor others of the tool start before.",
    ] = None
    question: Annotated[Text | None, "What its agent wants to know before it goes on."] = None
    cost_usd: Annotated[Amount, "Spent since the last report."] = ZERO_USD
    cost_is_estimated: Annotated[bool, "The cost was not reported by the tool, but estimated from a price table."] = False
    tokens_in: Annotated[Tokens, "Tokens that a model has read since the last report, from a cache or not."] = 0
    tokens_out: Annotated[Tokens, "Tokens that a model has written since the last report."] = 0
    exit_code: Annotated[ExitCode | None, "Of its process."] = None
    session_id: Annotated[Text | None, "The session that a later attempt can continue."] = None
    log_path: Annotated[Text | None, "Where its log is."] = None
    subtasks: Annotated[Sequence[NewTask], "Added to its run in the same commit, unless they are there already."] = ()


NOTHING = AttemptReport()


class ReportAttempt(Operation[Task], frozen=True):
    """Report what became of an attempt, or what it has cost while it goes on."""

    task_id: Annotated[TaskId, "The task that was claimed."]
    epoch: Annotated[Epoch, "The epoch of the claim."]
    signal: Annotated[
        Text | None,
        "complete, fail, ask, expire, cancel, skip, overspend, checks_passed, checks_failed, interrupt or give_back; null "
        "while the attempt goes on.",
    ] = None
    report: Annotated[AttemptReport, INLINE] = NOTHING

    @property
    def needs(self) -> Needs:
        return Needs(task_ids=(self.task_id,), adds_work=bool(self.report.subtasks))

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        if not found and self.signal == "ask" and not self.report.question:
            yield Problem("question", "It is missing. Give the question with the signal.")
        if not found and self.report.usage_limit_until and self.signal != INTERRUPT:
            yield Problem("usage_limit_until", f"It goes with the signal {INTERRUPT} only. Give it with that one.")

    def decide(self, work: Work) -> Callable[[], Task]:
        task = self.decide_for(work, self.caller)
        return lambda: task

    def decide_for(self, work: Work, caller: Caller) -> Task:
        task = work.task(caller.tenant, self.task_id)
        if self.signal is not None:
            check_worker(self.signal)
        check_epoch(task, self.epoch)
        _check_key(work, task, caller.key_id)
        if self.signal is None:
            self._note(work, task)
        else:
            self._signal(work, task, self.signal, _as_report(self.signal, self.report))
        return task

    def _note(self, work: Work, task: Task) -> None:
        """The attempt goes on, unless it has spent too much."""
        tasks.note_attempt(work, task, _as_report(None, self.report))
        if reason := budgets.explain_overspending(task, work.runs.rows[task.run_id], work.accounts.get(task.tenant)):
            claims.overspend(work, task, reason)

    def _signal(self, work: Work, task: Task, signal: str, report: Report) -> None:
        if signal == INTERRUPT and report.usage_limit_until:
            workers.meet_usage_limit(work, task, self._cause(task), report, report.usage_limit_until)
            return
        if signal == INTERRUPT:
            workers.interrupt(work, task, self._cause(task), report)
            return
        if signal == GIVE_BACK:
            workers.give_back(work, task, self._cause(task), report)
            return
        plan = submit.plan_subtasks(work, task, self.report.subtasks) if self.report.subtasks else None
        if plan and plan.new:
            report = replace(report, adds_subtasks=True)
        decided = tasks.check(work, task, signal, report)
        if self._tell_breaker(work, task, signal):
            decided = tasks.check(work, task, signal, report)
        if plan and plan.new:
            submit.add_subtasks(work, task, plan)
        tasks.take(work, task, decided, self._cause(task), report)
        self._close(work, task)

    def _close(self, work: Work, task: Task) -> None:
        """A run that has been canceled meanwhile leaves no task to a person or to another attempt."""
        run = work.runs.rows[task.run_id]
        is_open = task.phase not in (Phase.ACTIVE, Phase.DONE)
        if is_open and run.outcome == Outcome.CANCELED:
            tasks.withdraw(work, task, Cause(reason=f"the run is {run.state}"))

    def _cause(self, task: Task) -> Cause:
        """Whose attempt it is; a try that does not count says so in the audit trail."""
        metadata = None
        if self.signal == INTERRUPT:
            metadata = {"usage_limit": True} if self.report.usage_limit_until else {"interrupted": True}
        error = self.report.error
        reason = " ".join(error.split())[:LONGEST_REASON] if error else None
        return Cause(task.attempt_worker_id or "worker", reason, metadata)

    def _tell_breaker(self, work: Work, task: Task, signal: str) -> bool:
        """The tool has answered: that counts before the task asks whether its circuit is open."""
        if work.tool_of(task) is None:
            return False
        if signal == "complete":
            breakers.succeeded(work, task)
        elif signal == "fail":
            breakers.failed(work, task)
        return True


class ReportAttempts(Operation[list[Any]], frozen=True):
    """Report several attempts at once; each is accepted or refused on its own."""

    reports: Annotated[Sequence[ReportAttempt], "At least one report, of one tenant."]

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        if found:
            return
        if not self.reports:
            yield Problem("reports", "Must have at least one report.")
        if self.request_id or any(report.request_id for report in self.reports):
            yield Problem("request_id", "The epoch makes a report safe to repeat. Leave the key out, or report one by one.")
        for index, report in enumerate(self.reports):
            yield from (Problem(f"reports[{index}].{each.path}", each.message) for each in report.check(()))

    @property
    def needs(self) -> Needs:
        task_ids = tuple(report.task_id for report in self.reports)
        adds_work = any(report.report.subtasks for report in self.reports)
        reports = tuple(filter(None, map(_as_plain, self.reports)))
        return Needs(task_ids=task_ids, reports=reports, adds_work=adds_work)

    def decide(self, work: Work) -> Callable[[], list[PointsmanError | None]]:
        ended = work.ended_plain
        answers = [None if report.task_id in ended else self._decide_one(work, report) for report in self.reports]
        return lambda: answers

    def _decide_one(self, work: Work, report: ReportAttempt) -> PointsmanError | None:
        try:
            report.decide_for(work, self.caller)
        except StoreError:
            raise
        except PointsmanError as error:
            return error
        return None


def check_epoch(task: Task, epoch: int) -> None:
    """Only the attempt that holds a task may report about it."""
    if task.current_attempt == epoch and not task.lease_expired:
        return
    if epoch > task.epoch:
        why = f"the last attempt was {task.epoch}"
    elif task.lease_expired and task.current_attempt == epoch:
        why = "its lease has expired"
    elif task.current_attempt is None:
        why = f"its task is {task.state}"
    else:
        why = f"attempt {task.current_attempt} has taken over"
    raise LeaseLost(task.id, epoch, why)


def _check_key(work: Work, task: Task, key_id: str | None) -> None:
    """Only the key of the worker that holds a task may report about it. That key never changes, so no lock is needed."""
    if key_id is not None and task.attempt_worker_id is not None:
        held_by = work.transaction.find_worker(task.tenant, task.attempt_worker_id)
        assert held_by, "the law has checked that it serves the tenant"
        workers.check_key(held_by, key_id)


def _as_plain(report: ReportAttempt) -> PlainReport | None:
    """A report that the short way can take, if its task is plain."""
    told = report.report
    if report.signal != "complete" or told.exit_code or told.error is not None or told.subtasks or _usage_of(told):
        return None
    output = checks.encode(told.output)
    if output is not None and len(output) > plain.MOST_CHARACTERS:
        return None
    return PlainReport(report.task_id, report.epoch, output, told.exit_code, told.session_id, told.log_path)


def _as_report(signal: str | None, report: AttemptReport) -> Report:
    return Report(
        output=checks.encode(report.output),
        error=None if signal is None or signal in WITHOUT_ERROR else _as_error(signal, report),
        retryable=report.retryable and signal != "cancel",
        usage_limit_until=report.usage_limit_until,
        interrupted=signal == INTERRUPT,
        timed_out=signal == "expire",
        question=report.question,
        usage=_usage_of(report),
        exit_code=report.exit_code,
        session_id=report.session_id,
        log_path=report.log_path,
    )


def _usage_of(report: AttemptReport) -> Usage:
    return Usage(report.cost_usd, report.tokens_in, report.tokens_out, report.cost_is_estimated and bool(report.cost_usd))


def _as_error(signal: str, report: AttemptReport) -> str:
    details = {"exit_code": report.exit_code, "tail": report.tail}
    return tasks.as_error(report.error or signal, **{name: value for name, value in details.items() if value is not None})
