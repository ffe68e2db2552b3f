"""One attempt at a task, as a pipeline: claimed → prepared → started → watched → judged → recorded.

    Claim ─ prepare ─▶ Job ─ start ─▶ Running ─ watch ─▶ Ending ─ judge ─▶ Verdict ─ record ─▶ the engine
                 └──── nothing to be run: skipped, spread over items, wrong ────────▲

Whatever happens on the way becomes a verdict, so that every attempt ends with a report; only one that no longer counts ends
without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, repeat
from typing import Any, TypeVar

from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.engine.submit import NewTask
from pointsman.errors import LeaseLost, PointsmanError, RequestError, RequestInvalid, StoreError, TransitionRefused
from pointsman.kernel.machine import Phase
from pointsman.store.rows import ZERO_USD
from pointsman.worker.checks import run_checks
from pointsman.worker.pace import Pace
from pointsman.worker.prepare import Preparation
from pointsman.worker.records import Record
from pointsman.worker.reports import Reports
from pointsman.worker.runner import Ending, Job, Runner, Running
from pointsman.worker.runners.command import CommandRunner
from pointsman.worker.runners.python import PythonRunner
from pointsman.worker.verdict import (
    Canceled,
    Checked,
    Completed,
    Expired,
    Failed,
    Nothing,
    Skipped,
    Spread,
    Stop,
    Verdict,
    clean,
    is_retried,
    judge,
)
from pointsman.world import World

PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Between one try to reach a database that is away and the next; the last one again and again."""

LOOK_SECONDS = 1.0
"""Between two looks at what work has spent that has a budget; or at work that has limits, but none for now: it is suspended, or
being ended.
"""
UNTOLD = Failed("It failed, and why cannot be recorded.", retryable=False)
Answer = TypeVar("Answer")
Note = Callable[[Claim, Verdict | None], None]
"""Called when an attempt begins, and again with its verdict when that is recorded."""


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """What every attempt of a worker works with."""

    engine: Engine
    world: World
    preparation: Preparation
    reports: Reports
    record: Record
    commands: CommandRunner
    functions: PythonRunner
    grace_seconds: float
    say: Callable[[str], None]
    """To people."""
    note: Note
    tell: Callable[[StoreError | None], None]
    """What is wrong with the database, or that it answers."""
    pace: Pace


class Attempt:
    """A claimed task on its way through the worker."""

    def __init__(self, claim: Claim, context: AttemptContext, free: Callable[[], None]) -> None:
        """`free` is called when its slot may be given to another one."""
        self.claim = claim
        self._context = context
        self._free = free
        self._job: Job | None = None
        self._running: Running | None = None
        self._stop: Stop | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._telling: asyncio.Future[None] | None = None
        """Of its costs, beside the watching, which must not wait for a database that is away."""
        self._going_since: float | None = None
        """When it began, or was last resumed; None while it is suspended."""
        self._costs_told = 0
        self._held_since = 0.0
        self._held_seconds = 0.0
        """How long it has been suspended, which does not count."""

    async def execute(self) -> None:
        verdict: Verdict = Nothing()
        try:
            self._context.note(self.claim, None)
            verdict = await self._carry_out()
            self._context.pace.end((self.claim.task_id, self.claim.epoch))
            verdict = await self._record(verdict)
        except LeaseLost:
            verdict = Nothing()  # somebody else has it by now, and nothing of this attempt counts
        except (StoreError, asyncio.CancelledError):
            if self._stop != "killed":
                raise
            verdict = Nothing("killed")
        finally:
            self._free()
            self._context.note(self.claim, verdict)

    @property
    def is_at_work(self) -> bool:
        """Whether something runs that it is to wait for."""
        return self._running is not None

    @property
    def last_line(self) -> str:
        return self._job.log.last_line() if self._job else ""

    # What others want of it

    def stop(self, why: Stop) -> None:
        """End its work and all that it has started; the first reason counts, but for being killed."""
        if why == "killed":
            self._stop = why
            if self._running:
                self._running.kill()
            if self._telling:
                self._telling.cancel()
        elif self._stop is None:
            self._stop = why
            if self._running:
                self._stopping = asyncio.ensure_future(self._running.stop(self._context.grace_seconds))

    def suspend(self, *, wanted: bool) -> None:
        """Hold its processes, or let them go on."""
        if self._running is None or wanted == (self._going_since is None):
            return
        now = self._context.world.clock.monotonic()
        if wanted:
            self._running.suspend()
            self._going_since, self._held_since = None, now
        else:
            self._running.resume()
            self._going_since = now
            self._held_seconds += now - self._held_since

    # The pipeline

    async def _carry_out(self) -> Verdict:
        try:
            job = await self._insist(lambda: self._context.preparation.prepare(self.claim))
            if not isinstance(job, Job):
                return job
            self._job = job
            if self._stop:
                return Canceled() if self._stop == "called off" else Nothing()
            ending = await self._run(job)
            verdict = judge(job, ending, self._stop)
            if isinstance(verdict, Completed) and self.claim.has_checks:
                return await self._check(job, ending, verdict)
        except LeaseLost:
            raise
        except PointsmanError as error:
            return Failed(str(error), retryable=isinstance(error, StoreError))
        except OSError as error:
            return Failed(f"The worker could not run it: {error}", retryable=True)
        except Exception as error:  # noqa: BLE001 - without a verdict it would be claimed again and again, for the same reason
            return Failed(f"The worker could not run it. {_defect(error)}", retryable=False)
        return verdict

    async def _run(self, job: Job) -> Ending:
        runner: Runner = self._context.functions if job.task.call else self._context.commands
        running = self._running = await runner.start(job)
        self._going_since = self._context.world.clock.monotonic()
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
            if running.pid is not None:  # a thread has no environment of its own that could name the cost_file
                job.cost_file.look(at_its_end=True)
            for problem in (job.log.problem, job.cost_file.problem):
                if problem:
                    self._context.say(problem)

    async def _watch(self, job: Job, running: Running) -> Ending:
        """Until it has ended, has taken or been silent for too long, or has spent too much."""
        if job.task.timeout is None and job.task.stall_timeout is None and job.ends_at is None and not job.has_budget:
            return await running.wait()
        now = self._context.world.clock.monotonic
        began = now()
        ended = asyncio.ensure_future(running.wait())
        while True:
            limits = self._limits(job, running, began)
            patience = max(min(limits.values()) - now(), 0.0) if limits else LOOK_SECONDS
            await asyncio.wait({ended}, timeout=min(patience, LOOK_SECONDS) if job.has_budget else patience)
            if ended.done():
                if self._telling:
                    with suppress(asyncio.CancelledError):  # it was killed, and nobody waits for the database
                        await self._telling
                return ended.result()
            if job.has_budget and self._stop is None and (self._telling is None or self._telling.done()):
                self._telling = asyncio.ensure_future(self._tell_cost(job))
            for why, limit in self._limits(job, running, began).items():  # anew: it may have said something meanwhile
                if now() >= limit:
                    self.stop(why)

    def _limits(self, job: Job, running: Running, began: float) -> dict[Stop, float]:
        """When it has to be ended, and why; nothing ends twice, and what is suspended cannot say anything."""
        limits: dict[Stop, float] = {}
        if self._stop is not None:
            return limits
        if job.task.timeout is not None and self._going_since is not None:
            limits["timeout"] = began + job.task.timeout + self._held_seconds
        if job.ends_at is not None:
            clock = self._context.world.clock
            limits["end of its run"] = clock.monotonic() + (job.ends_at - clock.now()).total_seconds()
        if job.task.stall_timeout is not None and self._going_since is not None:
            limits["stall"] = max(running.last_output_at, self._going_since) + job.task.stall_timeout
        return limits

    async def _tell_cost(self, job: Job) -> None:
        """What it has spent since the last look. When that is too much, the engine ends the attempt, and we end its work."""
        if not (cost := job.cost_file.look()):
            return
        request_id = f"{self.claim.task_id} {self.claim.epoch} cost {self._costs_told}"
        try:
            report = AttemptReport(cost_usd=cost)
            task = await self._insist(
                lambda: self._context.engine.report_attempt(
                    self.claim.task_id, self.claim.epoch, report=report, request_id=request_id
                )
            )
        except LeaseLost:
            self.stop("lost")
        except StoreError:
            pass  # it is killed, and nobody waits for the database
        else:
            self._costs_told += 1
            job.cost_file.tell(cost)
            if task.phase != Phase.ACTIVE:
                self.stop("overspent")

    async def _check(self, job: Job, ending: Ending, completed: Completed) -> Verdict:
        """The engine is told that the work is done, and then how its checks went."""
        task_id, epoch, cost = self.claim.task_id, self.claim.epoch, self._cost
        report = AttemptReport(output=completed.output, cost_usd=cost, exit_code=completed.exit_code, log_path=self._log_path)
        task = await self._insist(
            # The key lets it be sent again when the answer is lost.
            lambda: self._context.engine.complete_task(task_id, epoch, report, request_id=f"{task_id} {epoch}")
        )
        job.cost_file.tell(cost)
        if task.phase != Phase.ACTIVE:
            return Nothing()
        try:
            failures = await run_checks(job, ending, self._context.world, begun=self._begin_check)
        except Exception as error:  # noqa: BLE001 - as above, and by now the machine wants to hear of checks
            return Checked((f"The checks could not be made. {_defect(error)}",), retryable=False)
        finally:
            self._running = None
            job.cost_file.look(at_its_end=True)
        if self._stop:
            return judge(job, ending, self._stop)
        return Checked(tuple(map(str, failures)), retryable=is_retried(job, "checks"))

    def _begin_check(self, running: Running) -> bool:
        """A check that runs something can be ended like the work itself; whether it is to go on at all."""
        self._running = running
        return self._stop is None

    # The report

    async def _record(self, verdict: Verdict) -> Verdict:
        """What was recorded in the end."""
        try:
            await self._insist(lambda: self._report(verdict))
        except LeaseLost:
            raise
        except (RequestError, TransitionRefused) as error:
            if verdict == UNTOLD:
                raise
            told = Failed(f"What it came to cannot be recorded: {error}", retryable=False)
            return await self._record(UNTOLD if isinstance(verdict, Failed) else told)
        return verdict

    async def _insist(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask for as long as it takes while the database is away: nothing fails and nothing is done again for that."""
        try:
            return await ask()
        except StoreError as error:
            self._meet(error)
        for pause in chain(PAUSES_SECONDS, repeat(PAUSES_SECONDS[-1])):
            await self._context.world.sleep(pause)
            try:
                answer = await ask()
            except StoreError as error:
                self._meet(error)
            else:
                self._context.tell(None)
                return answer
        raise AssertionError("it is tried for ever")

    def _meet(self, error: StoreError) -> None:
        """The database is away: it is said, and waited for, unless the attempt is to end at once."""
        self._context.tell(error)
        if self._stop == "killed":
            raise error

    async def _report(self, verdict: Verdict) -> None:
        """What each verdict is to the engine."""
        match verdict:
            case Completed(output, exit_code):
                await self._send("complete", output=output, exit_code=exit_code)
            case Checked(failures=()):
                await self._send("checks_passed")
            case Checked(failures, retryable):
                await self._send("checks_failed", error=clean("\n".join(failures)), retryable=retryable)
            case Failed(message, retryable, exit_code):
                await self._send("fail", error=clean(message), retryable=retryable, exit_code=exit_code, tail=self._tail)
            case Expired(message, retryable):
                await self._send("expire", error=message, retryable=retryable, tail=self._tail)
            case Canceled():
                await self._send("cancel", error="canceled")
            case Skipped(reason):
                await self._skip(clean(reason))
            case Spread(items):
                await self._spread(items)
            case Nothing():
                self._free()

    async def _send(self, signal: str, **fields: Any) -> None:
        report = AttemptReport(cost_usd=self._cost, log_path=self._log_path, **fields)
        operation = ReportAttempt(self.claim.task_id, self.claim.epoch, signal, report)
        await self._context.reports.send(operation, self._free)

    async def _skip(self, reason: str) -> None:
        """Where the machine has no way to skip a task, it counts as done."""
        try:
            await self._send("skip", error=reason)
        except TransitionRefused:
            await self._send("complete", output={"outputs": None, "skipped": True})

    async def _spread(self, items: Sequence[NewTask]) -> None:
        """Add one subtask for each item and complete, in one commit; or cancel, when the run has ended meanwhile."""
        try:
            await self._send("complete", output={"outputs": None, "items": len(items)}, subtasks=items)
        except RequestInvalid:
            if (await self._context.engine.get_run(self.claim.run_id)).phase != Phase.DONE:
                raise
            await self._send("cancel", error="canceled")

    @property
    def _cost(self) -> Decimal:
        """What it has spent that the engine does not know of yet."""
        return self._job.cost_file.untold if self._job else ZERO_USD

    @property
    def _tail(self) -> str | None:
        return (self._job.log.tail() or None) if self._job else None

    @property
    def _log_path(self) -> str | None:
        return str(self._job.log.path) if self._job and self._job.log.bytes_seen else None


def _defect(error: Exception) -> str:
    return f"This is a defect of Pointsman, or of how it is installed: {type(error).__name__}: {error}"
