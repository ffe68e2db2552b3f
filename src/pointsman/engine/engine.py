"""The engine as a whole: everything that can be asked of it, each a coroutine that returns when its effect is durable."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from types import TracebackType
from typing import Any

import msgspec
from msgspec import Struct

from pointsman.engine import checks
from pointsman.engine.batch import Decider
from pointsman.engine.claims import Claim
from pointsman.engine.command import Command, Request
from pointsman.engine.commands.runs import AddTasks, ApproveRun, SetBudget, SignalRun, SubmitRun
from pointsman.engine.commands.tasks import NoteAttempt, SignalAttempt, SignalAttempts, SignalTask
from pointsman.engine.commands.tend import Repair, Tend
from pointsman.engine.commands.tools import DeclareTool, ResetBreaker
from pointsman.engine.commands.transition import RequestTransition, TransitionResult
from pointsman.engine.commands.workers import ClaimTasks, GiveUpTasks, Heartbeat, HeartbeatReply, RegisterWorker, SignalWorker
from pointsman.engine.doctor import Diagnosis
from pointsman.engine.machines import Machines
from pointsman.engine.queries import DEFAULT_TENANT, LONGEST_PAUSE_SECONDS, Answer, Queries
from pointsman.engine.submit import NewRun, NewTask, check_each_task, check_run
from pointsman.engine.tasks import Report, as_error
from pointsman.engine.timers import BATCH
from pointsman.engine.work import Cause
from pointsman.engine.writer import CommitMetrics, Writer
from pointsman.errors import EngineClosed, PointsmanError, Problem, RequestError, StoreBusy, StoreFull, StoreUnavailable
from pointsman.kernel.machine import Kind
from pointsman.store.contract import Reader, Store, Wakeup
from pointsman.store.rows import ZERO_USD, Breaker, Run, Task, Worker
from pointsman.world import World

SHORTEST_PAUSE_SECONDS = 0.02
KEY_LASTS_SECONDS = 3600.0
LONGEST_REASON = 500
TURNS_IN_A_LEASE = 3
SHORTEST_RATE_SECONDS = 0.001


class Completion(Struct, frozen=True, kw_only=True):
    """An attempt that has done what it should."""

    task_id: str
    epoch: int
    output: Any = None
    cost_usd: Decimal = ZERO_USD
    """Spent since the last report."""
    exit_code: int | None = None
    session_id: str | None = None
    log_path: str | None = None


class Engine(Queries):
    """Carries runs through their life cycles; open one with `pointsman.app.open`."""

    def __init__(self, store: Store, machines: Machines, world: World) -> None:
        super().__init__(store, machines, world)
        self._writer = Writer(store, Decider(machines, world).decide, world.clock, world.chance)
        self._keeper: asyncio.Task[None] | None = None

    def start(self, *, keeps: bool) -> None:
        """Begin to work; whoever `keeps` fires timers and looks after workers, for all processes at the same database."""
        self._writer.start()
        if keeps:
            self._keeper = asyncio.create_task(self._keep(), name="pointsman-keeper")

    async def close(self) -> None:
        """Finish what has been asked, and let go of the database."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._keeper:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        await asyncio.to_thread(self._writer.close)
        self._wakeups.close()
        self._store.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def commit_metrics(self) -> CommitMetrics:
        return self._writer.metrics

    # runs and tasks

    async def submit_run(
        self,
        new: NewRun,
        *,
        tenant: str = DEFAULT_TENANT,
        actor: str = "user",
        reason: str | None = None,
        request_id: str | None = None,
    ) -> Run:
        check_run(new)
        cause = _cause(actor, reason)
        request = _request("submit_run", request_id, new)
        return await self._do(SubmitRun(tenant=tenant, request=request, new=new, cause=cause))

    async def add_tasks(
        self,
        run_id: str,
        tasks: Sequence[NewTask],
        *,
        tenant: str = DEFAULT_TENANT,
        actor: str = "user",
        reason: str | None = None,
        request_id: str | None = None,
    ) -> list[Task]:
        """More tasks for a run that has not ended; they may depend on, and be parts of, those that it has."""
        checks.identity("run", run_id)
        if not isinstance(tasks, list | tuple) or not tasks:
            checks.refuse([Problem("tasks", f"It is {checks.brief(tasks)}, and must be a list of at least one task.")])
        new = tuple(tasks)
        # How they hang together is looked at when the tasks of the run are at hand.
        checks.refuse(check_each_task(new))
        cause = _cause(actor, reason)
        request = _request("add_tasks", request_id, (run_id, new))
        return await self._do(AddTasks(tenant=tenant, request=request, run_id=run_id, new=new, cause=cause))

    async def signal_task(
        self,
        task_id: str,
        signal: str,
        *,
        tenant: str = DEFAULT_TENANT,
        actor: str = "user",
        reason: str | None = None,
        answer: str | None = None,
        comment: str | None = None,
        request_id: str | None = None,
    ) -> Task:
        """What a person wants of a task: approve, reject, accept, answer, cancel, skip, reset, retry, resume, ready."""
        checks.identity("task", task_id)
        checks.refuse([*checks.text("signal", signal), *checks.texts(answer=answer, comment=comment)])
        if signal == "answer" and not answer:
            checks.refuse([Problem("answer", "It is missing. Give the answer with the signal.")])
        cause = _cause(actor, reason)
        report = Report(answer=answer, comment=comment, error=as_error(reason or f"{signal} by {actor}"))
        request = _request("signal_task", request_id, (task_id, signal, reason, answer, comment))
        return await self._do(
            SignalTask(
                tenant=tenant,
                request=request,
                task_id=task_id,
                signal=signal,
                report=report,
                cause=cause,
            )
        )

    async def signal_run(
        self,
        run_id: str,
        signal: str,
        *,
        tenant: str = DEFAULT_TENANT,
        actor: str = "user",
        reason: str | None = None,
        output: Any = None,
        request_id: str | None = None,
    ) -> Run:
        """What a person wants of a run: cancel, pause, resume, retry; or how its final checks went."""
        checks.identity("run", run_id)
        checks.refuse(checks.text("signal", signal))
        cause = _cause(actor, reason)
        result = _json("output", output)
        request = _request("signal_run", request_id, (run_id, signal, reason, output))
        return await self._do(
            SignalRun(
                tenant=tenant,
                request=request,
                run_id=run_id,
                signal=signal,
                cause=cause,
                error=as_error(reason or f"{signal} by {actor}"),
                output=result,
            )
        )

    async def approve_run(
        self,
        run_id: str,
        *,
        tenant: str = DEFAULT_TENANT,
        actor: str = "user",
        reason: str | None = None,
        request_id: str | None = None,
    ) -> Run:
        """Let every open gate of a run through; with none open, nothing happens."""
        checks.identity("run", run_id)
        cause = _cause(actor, reason)
        request = _request("approve_run", request_id, (run_id, reason))
        return await self._do(ApproveRun(tenant=tenant, request=request, run_id=run_id, cause=cause))

    async def set_budget(
        self, run_id: str, budget_usd: Decimal | None, *, tenant: str = DEFAULT_TENANT, request_id: str | None = None
    ) -> Run:
        checks.identity("run", run_id)
        if budget_usd is not None:
            checks.refuse(checks.amount("budget_usd", budget_usd))
        request = _request("set_budget", request_id, (run_id, budget_usd))
        return await self._do(SetBudget(tenant=tenant, request=request, run_id=run_id, budget_usd=budget_usd))

    async def transition(
        self,
        kind: Kind,
        entity_id: str,
        *,
        to_state: str | None = None,
        trigger: str | None = None,
        tenant: str = DEFAULT_TENANT,
        actor: str = "user",
        reason: str | None = None,
        request_id: str | None = None,
    ) -> TransitionResult:
        """Ask for a state or a trigger by its name, as document 000 does; the result says whether it was allowed."""
        if kind not in (Kind.RUN, Kind.TASK, Kind.WORKER) or not isinstance(kind, str):
            checks.refuse(
                [Problem("kind", f"{checks.brief(kind)} cannot be asked for a state. Use reset_breaker for a breaker.")]
            )
        if (to_state is None) == (trigger is None):
            checks.refuse([Problem("to_state", "Say either to_state or trigger.")])
        kind = Kind(kind)
        checks.identity(kind.value, entity_id)
        checks.refuse(checks.texts(to_state=to_state, trigger=trigger))
        cause = _cause(actor, reason)
        request = _request("transition", request_id, (kind, entity_id, to_state, trigger, reason))
        return await self._do(
            RequestTransition(
                tenant=tenant,
                request=request,
                kind=kind,
                entity_id=entity_id,
                to_state=to_state,
                trigger=trigger,
                cause=cause,
            )
        )

    # workers

    async def register_worker(
        self,
        name: str,
        *,
        capabilities: Iterable[str] = (),
        max_concurrent_tasks: int = 1,
        lease_seconds: float = 30.0,
        lifecycle: str = "standard",
        tenant: str = DEFAULT_TENANT,
        request_id: str | None = None,
    ) -> Worker:
        checks.refuse(
            [
                *checks.name("name", name),
                *checks.name("lifecycle", lifecycle),
                *checks.words("capabilities", capabilities),
                *checks.count("max_concurrent_tasks", max_concurrent_tasks),
                *checks.seconds("lease_seconds", lease_seconds),
            ]
        )
        words = tuple(capabilities)
        request = _request("register_worker", request_id, (name, words, max_concurrent_tasks, lease_seconds, lifecycle))
        return await self._do(
            RegisterWorker(
                tenant=tenant,
                request=request,
                name=name,
                lifecycle=lifecycle,
                capabilities=words,
                max_concurrent_tasks=max_concurrent_tasks,
                lease_seconds=float(lease_seconds),
            )
        )

    async def signal_worker(
        self,
        worker_id: str,
        signal: str,
        *,
        tenant: str = DEFAULT_TENANT,
        actor: str = "user",
        reason: str | None = None,
        retryable: bool = False,
        request_id: str | None = None,
    ) -> Worker:
        """What a person wants of a worker: pause, resume, drain, terminate; or that it met an error of its own: fail."""
        checks.identity("worker", worker_id)
        checks.refuse([*checks.text("signal", signal), *checks.truth("retryable", retryable)])
        cause = _cause(actor, reason)
        request = _request("signal_worker", request_id, (worker_id, signal, reason, retryable))
        return await self._do(
            SignalWorker(
                tenant=tenant,
                request=request,
                worker_id=worker_id,
                signal=signal,
                cause=cause,
                error=reason,
                retryable=retryable,
            )
        )

    async def heartbeat(
        self, worker_id: str, attempts: Iterable[tuple[str, int]] = (), *, tenant: str = DEFAULT_TENANT
    ) -> HeartbeatReply:
        """A sign of life, with the attempts (task, epoch) that the worker knows to hold; the answer says which to end."""
        checks.identity("worker", worker_id)
        known = tuple(attempts)
        for task_id, epoch in known:
            checks.identity("task", task_id)
            checks.refuse(checks.whole("epoch", epoch))
        beat = await self._do(Heartbeat(tenant=tenant, request=None, worker_id=worker_id, attempts=known))
        if beat.unknown:
            await self._do(GiveUpTasks(tenant=tenant, request=None, worker_id=worker_id, attempts=beat.unknown))
        return beat

    async def claim_tasks(
        self,
        worker_id: str,
        limit: int = 1,
        *,
        wait_seconds: float = 0.0,
        run_id: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Claim]:
        """Tasks for a worker, of any run or of one, up to its free slots; when there are none, wait for some, but no longer
        than that.

        To wait here is a sign of life; a worker that holds tasks sends heartbeats beside it.
        """
        checks.identity("worker", worker_id)
        checks.refuse([*checks.count("limit", limit), *checks.number("wait_seconds", wait_seconds, 0, checks.MAX_SECONDS)])
        if run_id is not None:
            checks.identity("run", run_id)
        command = ClaimTasks(tenant=tenant, request=None, worker_id=worker_id, limit=limit, run_id=run_id)
        over = self._wakeups.pause(wait_seconds)
        try:
            while True:
                expected = self._wakeups.expect(Wakeup.TASKS)
                claimed, lease_seconds = await self._do(command)
                if claimed or not wait_seconds or over.done():
                    return claimed
                await self._wait_in_turns(expected, over, lease_seconds / TURNS_IN_A_LEASE)
        finally:
            over.cancel()
            self._wakeups.forget(expected)

    def listen_for_tasks(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` whenever there may be something new to claim, until what is returned is called: for whoever would
        rather claim together with its reports than wait in a claim.
        """
        return self._wakeups.listen(Wakeup.TASKS, heard)

    async def _wait_in_turns(self, expected: asyncio.Future[None], over: asyncio.Future[None], seconds: float) -> None:
        """Until there is news, the time is over, or it is time to be heard of again: a claim is a sign of life, too."""
        turn = self._wakeups.pause(seconds)
        try:
            await asyncio.wait({expected, over, turn}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            turn.cancel()
            self._wakeups.forget(expected)

    # attempts

    async def complete_task(
        self,
        task_id: str,
        epoch: int,
        *,
        output: Any = None,
        cost_usd: Decimal = ZERO_USD,
        exit_code: int | None = None,
        session_id: str | None = None,
        log_path: str | None = None,
        tenant: str = DEFAULT_TENANT,
        request_id: str | None = None,
    ) -> Task:
        completion = Completion(
            task_id=task_id,
            epoch=epoch,
            output=output,
            cost_usd=cost_usd,
            exit_code=exit_code,
            session_id=session_id,
            log_path=log_path,
        )
        return await self._report(task_id, epoch, "complete", _read_completion(completion), tenant, request_id)

    async def complete_tasks(
        self, completions: Iterable[Completion], *, tenant: str = DEFAULT_TENANT
    ) -> list[PointsmanError | None]:
        """Several at once, which costs little more than one: for each nothing, or why it was refused.

        A claim that is begun before this is waited for shares its commit:

            refusals, claims = await asyncio.gather(engine.complete_tasks(done), engine.claim_tasks(worker_id, len(done)))
        """
        answers: list[PointsmanError | None] = []
        reports: dict[int, SignalAttempt] = {}
        for index, each in enumerate(completions):
            answers.append(None)
            try:
                reports[index] = _as_signal(each.task_id, each.epoch, "complete", _read_completion(each), tenant, None)
            except RequestError as error:
                answers[index] = error
        if reports:
            refusals = await self._do(SignalAttempts(tenant=tenant, reports=tuple(reports.values())))
            for index, refusal in zip(reports, refusals, strict=True):
                answers[index] = refusal
        return answers

    async def fail_task(
        self,
        task_id: str,
        epoch: int,
        error: str,
        *,
        retryable: bool = True,
        usage_limit_until: datetime | None = None,
        cost_usd: Decimal = ZERO_USD,
        exit_code: int | None = None,
        session_id: str | None = None,
        log_path: str | None = None,
        tail: str | None = None,
        tenant: str = DEFAULT_TENANT,
        request_id: str | None = None,
    ) -> Task:
        """It failed; `tail` is the end of what it wrote.

        With `usage_limit_until` it could not be tried at all: it is tried again then, and nothing is counted.
        """
        checks.refuse(
            [
                *checks.text("error", error),
                *checks.texts(tail=tail),
                *checks.truth("retryable", retryable),
                *checks.instant("usage_limit_until", usage_limit_until),
                *_exit_code(exit_code),
            ]
        )
        report = Report(
            error=_as_error(error, exit_code, tail),
            retryable=retryable,
            usage_limit_until=usage_limit_until,
            cost_usd=cost_usd,
            exit_code=exit_code,
            session_id=session_id,
            log_path=log_path,
        )
        return await self._report(task_id, epoch, "fail", report, tenant, request_id, _brief(error))

    async def ask(
        self,
        task_id: str,
        epoch: int,
        question: str,
        *,
        cost_usd: Decimal = ZERO_USD,
        exit_code: int | None = None,
        session_id: str | None = None,
        log_path: str | None = None,
        tenant: str = DEFAULT_TENANT,
        request_id: str | None = None,
    ) -> Task:
        """Its agent wants an answer before it goes on; the attempt is over, and the session waits."""
        checks.refuse(checks.text("question", question))
        report = Report(question=question, cost_usd=cost_usd, exit_code=exit_code, session_id=session_id, log_path=log_path)
        return await self._report(task_id, epoch, "ask", report, tenant, request_id)

    async def signal_attempt(
        self,
        task_id: str,
        epoch: int,
        signal: str,
        *,
        error: str | None = None,
        retryable: bool = True,
        cost_usd: Decimal = ZERO_USD,
        exit_code: int | None = None,
        session_id: str | None = None,
        log_path: str | None = None,
        tail: str | None = None,
        tenant: str = DEFAULT_TENANT,
        request_id: str | None = None,
    ) -> Task:
        """What else a worker reports: checks_passed, checks_failed, overspend, expire; cancel when its process has ended; skip
        when it is not to be done, with the reason for the audit trail as `error`.
        """
        checks.refuse(
            [
                *checks.text("signal", signal),
                *checks.texts(error=error, tail=tail),
                *checks.truth("retryable", retryable),
                *_exit_code(exit_code),
            ]
        )
        report = Report(
            error=None if signal in ("skip", "checks_passed") else _as_error(error or signal, exit_code, tail),
            retryable=retryable and signal != "cancel",
            cost_usd=cost_usd,
            exit_code=exit_code,
            session_id=session_id,
            log_path=log_path,
        )
        return await self._report(task_id, epoch, signal, report, tenant, request_id, _brief(error))

    async def note_attempt(
        self,
        task_id: str,
        epoch: int,
        *,
        cost_usd: Decimal = ZERO_USD,
        session_id: str | None = None,
        log_path: str | None = None,
        tenant: str = DEFAULT_TENANT,
        request_id: str | None = None,
    ) -> Task:
        """What an attempt has cost since the last report, and its session, while it goes on."""
        _check_attempt(task_id, epoch, cost_usd, session_id, log_path)
        return await self._do(
            NoteAttempt(
                tenant=tenant,
                request=_request("note_attempt", request_id, (task_id, epoch, cost_usd, session_id, log_path)),
                task_id=task_id,
                epoch=epoch,
                cost_usd=cost_usd,
                session_id=session_id,
                log_path=log_path,
            )
        )

    # tools

    async def declare_tool(
        self,
        tool: str,
        *,
        failure_threshold: int = 5,
        success_threshold: int = 1,
        cooldown_seconds: float = 60.0,
        max_concurrent: int | None = None,
        rate_count: int | None = None,
        rate_seconds: float | None = None,
        tenant: str = DEFAULT_TENANT,
        request_id: str | None = None,
    ) -> Breaker:
        """Make a tool known, with the breaker and the limits that all its tasks share; again to change their settings.

        At most `max_concurrent` attempts of it go on at once, and at most `rate_count` begin in any `rate_seconds`.
        """
        checks.refuse(
            [
                *checks.name("tool", tool),
                *checks.count("failure_threshold", failure_threshold),
                *checks.count("success_threshold", success_threshold),
                *checks.seconds("cooldown_seconds", cooldown_seconds),
                *_limits(max_concurrent, rate_count, rate_seconds),
            ]
        )
        settings = (failure_threshold, success_threshold, cooldown_seconds, max_concurrent, rate_count, rate_seconds)
        request = _request("declare_tool", request_id, (tool, *settings))
        return await self._do(
            DeclareTool(
                tenant=tenant,
                request=request,
                tool=tool,
                failure_threshold=failure_threshold,
                success_threshold=success_threshold,
                cooldown_seconds=float(cooldown_seconds),
                max_concurrent=max_concurrent,
                rate_count=rate_count,
                rate_seconds=None if rate_seconds is None else float(rate_seconds),
            )
        )

    async def reset_breaker(
        self,
        tool: str,
        *,
        tenant: str = DEFAULT_TENANT,
        actor: str = "user",
        reason: str | None = None,
        request_id: str | None = None,
    ) -> Breaker:
        checks.identity("tool", tool)
        cause = _cause(actor, reason)
        request = _request("reset_breaker", request_id, (tool, reason))
        return await self._do(ResetBreaker(tenant=tenant, request=request, tool=tool, cause=cause))

    # looking after things

    async def repair(self) -> list[Diagnosis]:
        """Put right what can be put right without asking anybody; what that was."""
        found = [diagnosis for diagnosis in await self.diagnose() if diagnosis.repairable]
        if found:
            await self._writer.submit(Repair(diagnoses=tuple(found)))
        return found

    async def tend(self) -> int:
        """Fire what is due and look after silent workers, once; how much there was to do."""
        try:
            done: int = await self._writer.submit(Tend())
        except (EngineClosed, StoreBusy, StoreFull, StoreUnavailable):
            raise
        except Exception:  # noqa: BLE001 - one that cannot be dealt with must not keep the others waiting
            return await self._tend_one_by_one()
        return done

    async def _tend_one_by_one(self) -> int:
        """Everything that is due, each in a transaction of its own; what the culprit met is raised when the others are done."""
        done, culprit, skip = 0, None, 0
        while skip < BATCH:
            try:
                dealt_with: int = await self._writer.submit(Tend(limit=1, skip=skip))
            except (EngineClosed, StoreBusy, StoreFull, StoreUnavailable):
                raise
            except Exception as error:  # noqa: BLE001
                culprit, skip = culprit or error, skip + 1
                continue
            done += dealt_with
            if not dealt_with:
                break
        if culprit and not done:
            raise culprit
        return done

    async def _keep(self) -> None:
        """Do so whenever something is due, sleeping in between until then or until an earlier timer is set."""
        while True:
            expected = self._wakeups.expect(Wakeup.TIMERS)
            try:
                if await self._seconds_to_next() <= 0 and await self.tend() >= BATCH:
                    self._wakeups.forget(expected)
                    continue
                pause = max(await self._seconds_to_next(), SHORTEST_PAUSE_SECONDS)
            except EngineClosed:
                return
            except Exception:  # noqa: BLE001 - whatever it is, the next round may go well, and somebody has to keep
                pause = 1.0
            await self._pause(expected, min(pause, LONGEST_PAUSE_SECONDS))

    async def _seconds_to_next(self) -> float:
        """By the clock that decides about leases and timers, which need not be this machine's."""

        def look(reader: Reader) -> float:
            upcoming = [instant for instant in (reader.next_due(), reader.next_silence()) if instant]
            return (min(upcoming) - reader.now()).total_seconds() if upcoming else math.inf

        return await self._ask(look)

    # the ways to the database

    async def _do(self, command: Command[Answer]) -> Answer:
        self._check_tenant(command.tenant)
        answer: Answer = await self._writer.submit(command)
        return answer

    async def _report(
        self,
        task_id: str,
        epoch: int,
        signal: str,
        report: Report,
        tenant: str,
        request_id: str | None,
        reason: str | None = None,
    ) -> Task:
        return await self._do(_as_signal(task_id, epoch, signal, report, tenant, request_id, reason))


def _read_completion(completion: Completion) -> Report:
    return Report(
        output=_json("output", completion.output),
        cost_usd=completion.cost_usd,
        exit_code=completion.exit_code,
        session_id=completion.session_id,
        log_path=completion.log_path,
    )


def _as_signal(
    task_id: str,
    epoch: int,
    signal: str,
    report: Report,
    tenant: str,
    request_id: str | None,
    reason: str | None = None,
) -> SignalAttempt:
    """What a worker reports of an attempt, checked."""
    _check_attempt(task_id, epoch, report.cost_usd, report.session_id, report.log_path)
    checks.refuse(_exit_code(report.exit_code))
    return SignalAttempt(
        tenant=tenant,
        request=_request(f"{signal}_attempt", request_id, (task_id, epoch, report, reason)),
        task_id=task_id,
        epoch=epoch,
        signal=signal,
        report=report,
        cause=Cause("worker", reason),
    )


def _brief(error: str | None) -> str | None:
    """What the audit trail has of an error: the beginning of it, in one line."""
    return " ".join(error.split())[:LONGEST_REASON] if error else None


def _cause(actor: str, reason: str | None) -> Cause:
    checks.refuse([*checks.name("actor", actor), *checks.texts(reason=reason)])
    return Cause(actor, reason)


def _limits(max_concurrent: int | None, rate_count: int | None, rate_seconds: float | None) -> Iterator[Problem]:
    if max_concurrent is not None:
        yield from checks.count("max_concurrent", max_concurrent)
    if (rate_count is None) != (rate_seconds is None):
        yield Problem("rate_count", "A rate is so many in so many seconds: say both rate_count and rate_seconds, or neither.")
    elif rate_count is not None:
        yield from checks.count("rate_count", rate_count)
        yield from checks.number("rate_seconds", rate_seconds, SHORTEST_RATE_SECONDS, checks.MAX_SECONDS)


def _as_error(message: str, exit_code: int | None, tail: str | None) -> str:
    details = {"exit_code": exit_code, "tail": tail}
    return as_error(message, **{name: value for name, value in details.items() if value is not None})


def _exit_code(exit_code: int | None) -> Iterator[Problem]:
    if exit_code is not None:
        yield from checks.count("exit_code", exit_code, -(2**31), 2**31 - 1)


def _check_attempt(task_id: str, epoch: int, cost_usd: Decimal, session_id: str | None, log_path: str | None) -> None:
    checks.identity("task", task_id)
    checks.refuse(
        [
            *checks.whole("epoch", epoch),
            *checks.amount("cost_usd", cost_usd),
            *checks.texts(session_id=session_id, log_path=log_path),
        ]
    )


def _request(endpoint: str, key: str | None, arguments: object) -> Request | None:
    """Called when the arguments have been checked, so that they can be written down."""
    if key is None:
        return None
    checks.refuse(checks.name("request_id", key))
    digest = hashlib.sha256(msgspec.json.encode(arguments)).hexdigest()
    return Request(endpoint, key, digest, KEY_LASTS_SECONDS)


def _json(path: str, value: Any) -> str | None:
    if value is None:
        return None
    written, problem = checks.write_json(value)
    if problem:
        checks.refuse([Problem(path, problem)])
    return written
