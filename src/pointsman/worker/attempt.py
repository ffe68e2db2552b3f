"""One attempt at a task, as a pipeline: claimed → prepared → started → watched → judged → recorded.

    Claim ─ prepare ─▶ Job ─ start ─▶ Running ─ watch ─▶ Ending ─ judge ─▶ Verdict ─ record ─▶ the engine
                 └──── nothing to run: skipped, fan-out, invalid ───────────────────▲

Everything that happens on the way becomes a verdict, so every attempt ends with a report, unless it has lost its lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, TypeVar

from msgspec.structs import replace

from pointsman.engine.budgets import NO_USAGE, Usage
from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.engine.questions import write_question
from pointsman.engine.submit import NewTask
from pointsman.errors import (
    LeaseLost,
    LeaseUncertain,
    PointsmanError,
    RequestError,
    RequestInvalid,
    StoreError,
    TransitionRefused,
)
from pointsman.kernel.machine import Phase
from pointsman.worker.attempt_socket import AttemptSocket
from pointsman.worker.checks import run_checks
from pointsman.worker.enter import enter_worktree
from pointsman.worker.lease import Lease
from pointsman.worker.pace import Pace
from pointsman.worker.prepare import Preparation
from pointsman.worker.records import Record
from pointsman.worker.reports import Reports
from pointsman.worker.runner import Ending, Job, Runners, Running, find_session
from pointsman.worker.shipping import Receiver, Shipment
from pointsman.worker.shortage import PAUSE_SECONDS, Shortage, is_shortage
from pointsman.worker.tools import declare_missing
from pointsman.worker.verdict import (
    Asked,
    Canceled,
    Checked,
    Completed,
    Expired,
    Failed,
    FanOut,
    Interrupted,
    Limited,
    Nothing,
    Overspent,
    Skipped,
    Stop,
    Verdict,
    clean,
    is_retried,
    judge,
)
from pointsman.worker.work_tree import WorkTree
from pointsman.world import World

PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""The delays between attempts to reach an unavailable database; the last one repeats."""

LOOK_SECONDS = 1.0
"""The longest wait between two reads of the cost file, and for work that has no limit for now: it is suspended or stopping."""
NO_WORK = Ending("exited", exit_code=0)
UNREPORTABLE = Failed("It failed, and the reason cannot be recorded.", retryable=False)
Answer = TypeVar("Answer")
Note = Callable[[Claim, Verdict | None], None]
"""Called when an attempt starts, and again with its verdict when that is recorded."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """What the attempts of a worker share."""

    engine: Engine
    world: World
    preparation: Preparation
    clear: Callable[[Claim], Awaitable[None]]
    """Ends what former attempts of a task have left running on this machine."""
    reports: Reports
    record: Record
    runners: Runners
    grace_seconds: float
    notify: Callable[[str], None]
    """Shows a message to the user."""
    note: Note
    on_store: Callable[[StoreError | None], None]
    """Called when the database fails, and with None when it answers."""
    pace: Pace
    shortage: Shortage
    socket: AttemptSocket
    receiver: Receiver | None = None
    """Takes logs and artifacts to the server, if that has the database."""


class Attempt:
    """One claimed task."""

    def __init__(self, claim: Claim, lease: Lease, context: AttemptContext, free: Callable[[], None]) -> None:
        """`free` is called when its slot is free."""
        self.claim = claim
        self.lease = lease
        self._context = context
        self._free = free
        self._job: Job | None = None
        self._running: Running | None = None
        self._stop: Stop | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._progress_report: asyncio.Future[None] | None = None
        """Concurrent with the watching, which must not wait for an unavailable database."""
        self._running_since: float | None = None
        """When it started or was last resumed; None while it is suspended."""
        self._progress_reports = 0
        self._reported_session: str | None = None
        self._overspending: str | None = None
        """Which budget the unreported costs exceed."""
        self._is_suspended = False
        self._suspended_at = 0.0
        self._suspended_seconds = 0.0
        """Does not count towards the timeout."""
        self._work_tree: WorkTree | None = None
        """What the reviewer of the result gets to see of the changes."""
        self._shipment: Shipment | None = None
        """The log and the artifacts on their way to the server."""

    async def execute(self) -> None:
        claim = self.claim
        attributes: dict[str, str | int] = {
            "pointsman.tenant": claim.tenant,
            "pointsman.run.id": claim.run_id,
            "pointsman.task.id": claim.task_id,
            "pointsman.task.name": claim.name,
            "pointsman.attempt": claim.epoch,
        }
        with self._context.world.tracing.begin("attempt", "consumer", claim.traceparent, attributes) as span:
            if span.traceparent != claim.traceparent:
                self.claim = replace(claim, traceparent=span.traceparent)
            verdict = await self._execute()
            span.note({"pointsman.verdict": type(verdict).__name__.lower()})
            if isinstance(verdict, Failed | Expired | Overspent):
                span.fail(verdict.message)

    async def _execute(self) -> Verdict:
        verdict: Verdict = Nothing()
        where = {"run": self.claim.run_id, "task": self.claim.task_id, "attempt": self.claim.epoch, "tenant": self.claim.tenant}
        log.info("attempt of %s begins", self.claim.name, extra=where)
        try:
            self._context.note(self.claim, None)
            verdict = await self._run_pipeline()
            await self._finish_shipment()
            self._context.pace.end((self.claim.task_id, self.claim.epoch))
            verdict = await self._record(verdict)
        except LeaseLost:
            verdict = Nothing()
        except (StoreError, asyncio.CancelledError):
            if self._stop != "killed":
                raise
            verdict = Nothing("killed")
        finally:
            if self._work_tree:
                self._work_tree.forget()
            if self._shipment:
                await self._shipment.stop()
            self._free()
            self._context.note(self.claim, verdict)
            log.info("attempt of %s ends: %s", self.claim.name, type(verdict).__name__.lower(), extra=where)
        return verdict

    @property
    def is_running(self) -> bool:
        """Whether work is running."""
        return self._running is not None

    @property
    def last_line(self) -> str:
        return self._job.log.headline or self._job.log.last_line() if self._job else ""

    # Control

    def stop(self, why: Stop) -> None:
        """Stop its work and all its processes; the first reason counts, except that `killed` overrides it."""
        self.lease.wake()
        if why == "killed":
            self._stop = why
            if self._running:
                self._running.kill()
            if self._progress_report:
                self._progress_report.cancel()
        elif self._stop is None:
            self._stop = why
            if self._running:
                grace = self._context.grace_seconds
                # What overspends goes on spending, so it gets hardly any time.
                self._stopping = asyncio.ensure_future(self._running.stop(min(grace, 0.5) if why == "overspent" else grace))

    def suspend(self, *, wanted: bool) -> None:
        """Suspend its processes, or resume them."""
        if self._running is None or wanted == self._is_suspended:
            return
        self._is_suspended = wanted
        now = self._context.world.clock.monotonic()
        if wanted:
            self._running.suspend()
            self._running_since, self._suspended_at = None, now
        else:
            self._running.resume()
            self._running_since = now
            self._suspended_seconds += now - self._suspended_at

    # The pipeline

    async def _run_pipeline(self) -> Verdict:
        try:
            job = await self._insist(lambda: self._context.preparation.prepare(self.claim, self.lease))
            if not isinstance(job, Job):
                return job
            self._take(job)
            if self.claim.epoch > 1:
                await self._insist(lambda: self._context.clear(self.claim))
            entered = await self._enter(job)
            if not isinstance(entered, Job):
                return entered or self._judge_stopped()
            self._job = job = entered
            ending = await self._do(job)
            if ending is None:
                return self._judge_stopped()
            if job.progress and self._stop is None:
                await self._compare_with_budgets(job.cost_file.unreported)
            verdict = self._judge(job, ending)
            if isinstance(verdict, Completed):
                verdict = self._context.preparation.take_subtasks(job, verdict)
            if isinstance(verdict, Completed) and self._work_tree:
                verdict = await self._add_changes(self._work_tree, verdict)
            if isinstance(verdict, Completed) and (self.claim.has_checks or job.task.checks):
                return await self._check(job, ending, verdict)
        except LeaseLost:
            raise
        except PointsmanError as error:
            return Failed(str(error), retryable=isinstance(error, StoreError))
        except OSError as error:
            return Failed(f"The worker could not run it: {error}", retryable=True)
        except Exception as error:  # noqa: BLE001 - without a verdict it would be claimed and fail again forever
            return Failed(f"The worker could not run it. {_defect(error)}", retryable=False)
        return verdict

    def _take(self, job: Job) -> None:
        self._job = job
        if receiver := self._context.receiver:
            claim = self.claim
            limits = self._context.preparation.settings.artifact_limits
            self._shipment = Shipment(receiver, claim.task_id, claim.epoch, job.log.path, limits, self._context.world.sleep)

    async def _finish_shipment(self) -> None:
        """What an attempt has written is complete before its task leaves the active state."""
        for problem in await self._shipment.finish(self._insist) if self._shipment else ():
            self._context.notify(problem)

    def _judge(self, job: Job, ending: Ending) -> Verdict:
        is_overspent = self._overspending and self._stop in (None, "overspent")
        return Overspent(self._overspending or "", ending.exit_code) if is_overspent else judge(job, ending, self._stop)

    async def _enter(self, job: Job) -> Job | Failed | None:
        """The job in its worktree, if it works in one; None if the attempt was stopped before."""
        if job.place is None:
            return job
        entered = await self._begin(lambda: enter_worktree(job, self._context.world, self._start_check))
        self._running = None
        return None if self._stop else entered

    async def _do(self, job: Job) -> Ending | None:
        """Do the work; None if the attempt was stopped before. The final task of a run has nothing but its checks."""
        if job.task.kind is None and job.task.checks:
            return NO_WORK
        if self.claim.is_reviewed or job.task.shows_changes:
            self._work_tree = WorkTree(job, self._context.world, self._start_check)
            await self._begin(self._work_tree.remember)
            self._running = None
        job = self._context.socket.admit(job, self._explain_refusal)
        try:
            running = await self._start(job)
            return await self._run(job, running) if running else None
        finally:
            self._context.socket.dismiss(job)

    def _explain_refusal(self) -> str | None:
        """Why the work may ask for nothing any more; None while the attempt holds its task."""
        if self._stop is not None:
            why = "it no longer holds its task" if self._stop == "lost" else self._stop
            return f"The worker is stopping this attempt: {why}. End your work."
        if self.lease.has_expired:
            return "The lease of this attempt has expired, and the worker cannot reach the database to renew it. Try again."
        return None

    async def _add_changes(self, work_tree: WorkTree, completed: Completed) -> Completed:
        """The verdict with what a reviewer has to see: the changes of the work tree, where there is one."""
        changes = await self._begin(work_tree.describe_changes)
        self._running = None
        return replace(completed, output={**completed.output, "diff": changes}) if changes else completed

    def _judge_stopped(self) -> Verdict:
        """The attempt was stopped before its work began."""
        match self._stop:
            case "canceled":
                return Canceled()
            case "killed" | "interrupted" | "out of memory" | "out of disk space" | "out of processes" as why:
                return Interrupted(why)
            case _:
                return Nothing()

    async def _start(self, job: Job) -> Running | None:
        """Start the work while the lease is certain; None if the attempt was stopped before.

        The worker may be frozen at any moment. Runners check the lease right before they start a process. Work that was started
        after the lease had expired all the same is killed at once, and started again only if a heartbeat confirms the attempt.
        """
        runner = self._context.runners.of(job.task)
        running = await self._begin(lambda: runner.start(job))
        while running is not None and self.lease.has_expired:
            running.kill()
            await running.wait()
            running = await self._begin(lambda: runner.start(job))
        return running

    async def _begin(self, start: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Start something as soon as the lease is certain and the machine can; None if the attempt was stopped before."""
        key = (self.claim.task_id, self.claim.epoch)
        answer: Answer | None = None
        try:
            while answer is None and await self._may_begin():
                try:
                    answer = await start()
                except LeaseUncertain:
                    pass  # the worker was frozen: ask
                except OSError as error:
                    if not is_shortage(error):
                        raise
                    self._context.shortage.add(key, error)
                    await self._context.world.sleep(PAUSE_SECONDS)
            return answer
        finally:
            self._context.shortage.discard(key, has_started=answer is not None)

    async def _may_begin(self) -> bool:
        """Whether work may begin: nothing has stopped the attempt, and its lease is certain, if need be after a heartbeat."""
        while self._stop is None and not self.lease.is_certain:
            await self.lease.answer()
        return self._stop is None

    async def _run(self, job: Job, running: Running) -> Ending:
        self._running, self._is_suspended = running, False
        self._running_since = self._context.world.clock.monotonic()
        if running.pid is not None:
            self._context.record.add(running.pid, running.started_ticks, self.claim.task_id, self.claim.epoch)
        try:
            return await self._watch(job, running)
        finally:
            if self._stopping:
                await self._stopping
            self._running = None
            self._context.record.remove(self.claim.task_id, self.claim.epoch)
            job.log.close()
            if running.pid is not None:  # a thread has no environment of its own that names the cost file
                job.cost_file.read(final=True)
            for problem in (job.log.problem, job.cost_file.problem, job.progress and job.progress.problem):
                if problem:
                    self._context.notify(problem)

    async def _watch(self, job: Job, running: Running) -> Ending:
        """Wait for the end; stop the work when it exceeds a limit."""
        is_free = job.task.timeout is None and job.task.stall_timeout is None and job.ends_by is None
        if is_free and not job.has_budget and job.progress is None:
            return await running.wait()
        now = self._context.world.clock.monotonic
        started = looked_at = now()
        ended = asyncio.ensure_future(running.wait())
        looks = job.has_budget or job.progress is not None
        while True:
            limits = self._limits(job, running, started)
            patience = max(min(limits.values()) - now(), 0.0) if limits else LOOK_SECONDS
            await self._wait_for_news(job, ended, min(patience, LOOK_SECONDS) if looks else patience)
            if ended.done():
                if self._progress_report:
                    with suppress(asyncio.CancelledError):  # the attempt was killed and does not wait for the database
                        await self._progress_report
                return ended.result()
            is_due = now() - looked_at >= LOOK_SECONDS or (job.progress is not None and job.progress.news.is_set())
            is_reporting = self._progress_report is not None and not self._progress_report.done()
            if looks and is_due and self._stop is None and not is_reporting:
                looked_at = now()
                self._progress_report = asyncio.ensure_future(self._report_progress(job))
            for why, limit in self._limits(job, running, started).items():  # again: it may have written output meanwhile
                if now() >= limit:
                    self.stop(why)

    async def _wait_for_news(self, job: Job, ended: asyncio.Future[Ending], seconds: float) -> None:
        """Wait until the work has ended, has something to report, or so much time has passed."""
        if job.progress is None or self._stop is not None:
            await asyncio.wait({ended}, timeout=seconds)
            return
        news = asyncio.ensure_future(job.progress.news.wait())
        # While a report is on its way, what is new waits for the next one.
        is_reporting = self._progress_report is not None and not self._progress_report.done()
        heard: set[asyncio.Future[Any]] = (
            {ended, self._progress_report} if is_reporting and self._progress_report else {ended, news}
        )
        try:
            await asyncio.wait(heard, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()

    def _limits(self, job: Job, running: Running, started: float) -> dict[Stop, float]:
        """When to stop the work, by reason; work that is suspended cannot write output."""
        limits: dict[Stop, float] = {}
        if self._stop is not None:
            return limits
        if job.task.timeout is not None and self._running_since is not None:
            limits["timeout"] = started + job.task.timeout + self._suspended_seconds
        if job.ends_by is not None:
            clock = self._context.world.clock
            limits["run timeout"] = clock.monotonic() + job.ends_by - clock.boottime()
        if job.task.stall_timeout is not None and self._running_since is not None:
            limits["stall"] = max(running.last_output_at, self._running_since) + job.task.stall_timeout
        return limits

    async def _report_progress(self, job: Job) -> None:
        """Report what is new: usage and the session. Work that exceeds a budget is stopped, and reported when it has ended.

        So what it uses until then is counted. If others have spent the money just now, the engine ends the attempt.
        """
        if job.progress:
            job.progress.news.clear()
        usage, session_id = job.cost_file.read(), self._new_session
        if not usage and session_id is None:
            # An agent that is silent may go on spending what others have spent meanwhile.
            if job.progress and job.has_budget and await self._compare_with_budgets(usage, always=True):
                self.stop("overspent")
            return
        if await self._compare_with_budgets(usage):
            self.stop("overspent")
            return
        request_id = f"{self.claim.task_id} {self.claim.epoch} progress {self._progress_reports}"
        try:
            report = AttemptReport(session_id=session_id, log_path=self._log_path, **_as_fields(usage))
            task = await self._insist(
                lambda: self._context.engine.report_attempt(
                    self.claim.task_id, self.claim.epoch, report=report, request_id=request_id
                )
            )
        except LeaseLost:
            self.stop("lost")
        except StoreError:
            pass  # the attempt was killed and does not wait for the database
        else:
            self._progress_reports += 1
            self._reported_session = session_id or self._reported_session
            job.cost_file.mark_reported(usage)
            if task.phase != Phase.ACTIVE:
                self.stop("overspent")

    async def _compare_with_budgets(self, usage: Usage, *, always: bool = False) -> bool:
        """Whether the costs that are not reported yet exceed a budget; or `always`, whether one is exceeded already."""
        if (usage.cost_usd or always) and self._overspending is None:
            engine = self._context.engine.for_tenant(self.claim.tenant)
            with suppress(StoreError):  # the attempt was killed and does not wait for the database
                self._overspending = await self._insist(lambda: engine.explain_overspending(self.claim.task_id, usage.cost_usd))
        return self._overspending is not None

    async def _check(self, job: Job, ending: Ending, completed: Completed) -> Verdict:
        """Run the checks; if the machine has a state for that, report first that the work is done."""
        if self.claim.has_checks and not await self._report_work(job, completed):
            return Nothing()
        try:
            failures = await run_checks(job, ending, self._context.world, begin=self._begin, started=self._start_check)
        except Exception as error:  # noqa: BLE001 - as above; by now the machine expects a result of the checks
            failures, retryable = [f"The checks could not be run. {_defect(error)}"], False
        else:
            retryable = is_retried(job, "checks")
        finally:
            self._running = None
            job.cost_file.read(final=True)
        if self._stop:
            return self._judge(job, ending)
        if self.claim.has_checks:
            return Checked(tuple(failures), retryable)
        return Failed("\n".join(failures), retryable, completed.exit_code) if failures else completed

    async def _report_work(self, job: Job, completed: Completed) -> bool:
        """Report that the work is done; whether the attempt goes on."""
        task_id, epoch, usage = self.claim.task_id, self.claim.epoch, self._usage
        report = AttemptReport(
            output=completed.output,
            exit_code=completed.exit_code,
            log_path=self._log_path,
            subtasks=completed.subtasks,
            session_id=self._session if completed.subtasks else self._new_session,
            **_as_fields(usage),
        )
        task = await self._insist(
            # The key lets it be sent again when the answer is lost.
            lambda: self._context.engine.complete_task(task_id, epoch, report, request_id=f"{task_id} {epoch}")
        )
        job.cost_file.mark_reported(usage)
        return task.phase == Phase.ACTIVE

    def _start_check(self, running: Running) -> bool:
        """The process of a check is stopped like the work itself; whether it may continue."""
        self._running, self._is_suspended = running, False
        return self._stop is None

    # The report

    async def _record(self, verdict: Verdict) -> Verdict:
        """Report the verdict; the one that was accepted."""
        try:
            await self._insist(lambda: self._report(verdict))
        except LeaseLost:
            raise
        except (RequestError, TransitionRefused) as error:
            if verdict == UNREPORTABLE:
                raise
            refused = Failed(f"The result cannot be recorded: {error}", retryable=False)
            return await self._record(UNREPORTABLE if isinstance(verdict, Failed) else refused)
        return verdict

    async def _insist(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat a request while the database is unavailable."""
        try:
            return await ask()
        except StoreError as error:
            self._on_store_error(error)
        for pause in chain(PAUSES_SECONDS, repeat(PAUSES_SECONDS[-1])):
            await self._context.world.sleep(pause)
            try:
                answer = await ask()
            except StoreError as error:
                self._on_store_error(error)
            else:
                self._context.on_store(None)
                return answer
        raise AssertionError("the loop is infinite")

    def _on_store_error(self, error: StoreError) -> None:
        """Note that the database is unavailable; give up if the attempt was killed."""
        self._context.on_store(error)
        if self._stop == "killed":
            raise error

    async def _report(self, verdict: Verdict) -> None:  # noqa: PLR0912 - one case for each verdict
        """Report a verdict to the engine."""
        match verdict:
            case Completed(output, exit_code, ()):
                await self._send("complete", output=output, exit_code=exit_code)
            case Completed(output, exit_code, subtasks):
                await self._add_subtasks(subtasks, output, exit_code)
            case Asked(question, exit_code):
                await self._send("ask", question=write_question(question), exit_code=exit_code, session_id=self._session)
            case Checked(failures=()):
                await self._send("checks_passed")
            case Checked(failures, retryable):
                await self._send("checks_failed", error=clean("\n".join(failures)), retryable=retryable)
            case Failed(message, retryable, exit_code):
                await self._send("fail", error=clean(message), retryable=retryable, exit_code=exit_code, tail=self._tail)
            case Expired(message, retryable):
                await self._send("expire", error=message, retryable=retryable, tail=self._tail, session_id=self._session)
            case Canceled():
                await self._send("cancel", error="canceled")
            case Skipped(reason):
                await self._skip(clean(reason))
            case FanOut(subtasks):
                await self._add_subtasks(subtasks, {"outputs": None, "items": len(subtasks)})
            case Limited(until, message, exit_code):
                await self._send(
                    "interrupt", error=clean(message), usage_limit_until=until, exit_code=exit_code, tail=self._tail
                )
            case Overspent(message, exit_code):
                await self._overspend(clean(message), exit_code)
            case Interrupted(why, counts):
                await self._send("give_back" if counts else "interrupt", error=why)
            case Nothing():
                self._free()

    async def _send(self, signal: str, **fields: Any) -> None:
        fields.setdefault("session_id", self._new_session)
        report = AttemptReport(log_path=self._log_path, **_as_fields(self._usage), **fields)
        operation = ReportAttempt(self.claim.task_id, self.claim.epoch, signal, report)
        await self._context.reports.send(operation, self._free)

    async def _skip(self, reason: str) -> None:
        """Where the machine has no way to skip a task, it counts as done."""
        try:
            await self._send("skip", error=reason)
        except TransitionRefused:
            await self._send("complete", output={"outputs": None, "skipped": True}, error=reason)

    async def _overspend(self, message: str, exit_code: int | None) -> None:
        """Where the machine has no state for that, it is a failure that is not retried."""
        try:
            await self._send("overspend", error=message, exit_code=exit_code, tail=self._tail)
        except TransitionRefused:
            await self._send("fail", error=message, retryable=False, exit_code=exit_code, tail=self._tail)

    async def _add_subtasks(self, subtasks: Sequence[NewTask], output: dict[str, Any], exit_code: int | None = None) -> None:
        """Add subtasks and complete, in one commit; or cancel, when the run has ended meanwhile."""
        tools = {task.tool for task in subtasks if task.tool is not None}
        if tools:
            engine = self._context.engine.for_tenant(self.claim.tenant)
            await declare_missing(engine, tools, self._context.preparation.tools)
        try:
            await self._send("complete", output=output, exit_code=exit_code, subtasks=subtasks, session_id=self._session)
        except RequestInvalid:
            if (await self._context.engine.get_run(self.claim.run_id)).phase != Phase.DONE:
                raise
            await self._send("cancel", error="canceled")

    @property
    def _session(self) -> str:
        """The session that a later attempt can continue: that of the agent, if it has told one."""
        seen = self._job.progress.session_id if self._job and self._job.progress else None
        return seen or find_session(self.claim)

    @property
    def _new_session(self) -> str | None:
        """A session that has not been reported yet."""
        seen = self._job.progress.session_id if self._job and self._job.progress else None
        return seen if seen != self._reported_session else None

    @property
    def _usage(self) -> Usage:
        """What has not been reported yet."""
        return self._job.cost_file.unreported if self._job else NO_USAGE

    @property
    def _tail(self) -> str | None:
        return (self._job.log.tail() or None) if self._job else None

    @property
    def _log_path(self) -> str | None:
        return str(self._job.log.path) if self._job and self._job.log.bytes_seen else None


def _as_fields(usage: Usage) -> dict[str, Any]:
    """Usage as fields of a report."""
    return {
        "cost_usd": usage.cost_usd,
        "cost_is_estimated": usage.is_estimated,
        "tokens_in": usage.tokens_in,
        "tokens_out": usage.tokens_out,
    }


def _defect(error: Exception) -> str:
    return f"This is a bug in Pointsman, or in its installation: {type(error).__name__}: {error}"
