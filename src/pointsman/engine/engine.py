"""The engine: everything that can be asked of it, each a coroutine that returns when its effect is durable.

    Engine ── for_tenant("acme", actor="ada") ──▶ TenantEngine ── submit_run(…), list_runs(…) ──▶ that tenant's

The operations are declared in `engine/operations/`; a method here is one of them, with the fields as its parameters.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import structs
from msgspec.structs import replace

from pointsman.engine import checks
from pointsman.engine.audit import AuditReport, audit, find_settled, take_seal
from pointsman.engine.authentication import Authentication, KeyHolder, Ticket
from pointsman.engine.claims import Claim
from pointsman.engine.doctor import Diagnosis, diagnose, is_contradiction
from pointsman.engine.duties import Duties, Duty, DutyMetrics
from pointsman.engine.figures import (
    FAILING_FOR,
    Figures,
    TenantFigures,
    measure_tenants,
    take_figures,
    tally_transitions,
)
from pointsman.engine.hooks import Hook
from pointsman.engine.machines import Machines
from pointsman.engine.operation import ANYBODY, DEFAULT_TENANT, Caller, Operation, Receipt, RemoteCaller, validate
from pointsman.engine.operations.attempts import NOTHING, AttemptReport, ReportAttempt, ReportAttempts
from pointsman.engine.operations.keys import CreateKey, RevokeKey, RotateKey
from pointsman.engine.operations.lifecycles import AddLifecycle
from pointsman.engine.operations.outbox import RetryNotifications
from pointsman.engine.operations.runs import AddTasks, ApproveRun, SetBudget, SignalRun, SignalRuns, StartRun, SubmitRun
from pointsman.engine.operations.tasks import DeleteTask, SignalTask
from pointsman.engine.operations.templates import StoreTemplate
from pointsman.engine.operations.tenants import AddTenant, SetQuotas, SetTenantBudget
from pointsman.engine.operations.tools import DeclareTool, ResetBreaker, TripBreaker
from pointsman.engine.operations.transition import RequestTransition
from pointsman.engine.operations.upkeep import (
    ExpireWorkers,
    FireTimers,
    NoteDuty,
    PurgeKeys,
    Repair,
    Restore,
    StoreSeal,
    Upkeep,
)
from pointsman.engine.operations.workers import (
    ClaimTasks,
    GiveUpTasks,
    HeartbeatReply,
    RegisterWorker,
    SendHeartbeat,
    SignalWorker,
)
from pointsman.engine.outbox import Outbox
from pointsman.engine.pages import check_limit
from pointsman.engine.queries import LONGEST_PAUSE_SECONDS, PAGE, Core, Queries
from pointsman.engine.timekeeper import Attendance
from pointsman.engine.timers import BATCH
from pointsman.engine.wakeups import WaitingLine
from pointsman.engine.writer import MAX_QUEUE, CommitMetrics
from pointsman.errors import EngineClosed, PointsmanError, RequestError, StoreBusy, StoreFull, StoreGone, StoreUnavailable
from pointsman.kernel.machine import Lifecycle
from pointsman.store.contract import Reader, Store, Wakeup
from pointsman.store.rows import ApiKey, DutyFailure, Task, Tenant, Transition, TransitionTally
from pointsman.tracing import read_traceparent
from pointsman.world import World

TURNS_IN_A_LEASE = 3
PURGE_SECONDS = 60.0
SEAL_SECONDS = 600.0
SEAL_REST_SECONDS = 5.0
"""A transition is sealed so much later at most, while any process keeps house."""

log = logging.getLogger(__name__)
P = ParamSpec("P")
Answer = TypeVar("Answer")
Op = TypeVar("Op", bound=Operation[Any])


def _performs(operation: Callable[P, Operation[Answer]]) -> Callable[Concatenate[TenantEngine, P], Coroutine[Any, Any, Answer]]:
    """A method that performs an operation; its parameters are the fields."""

    def method(self: TenantEngine, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Answer]:
        return self.perform(operation(*args, **kwargs))

    method.__doc__ = operation.__doc__
    return method


class TenantEngine(Queries):
    """What one tenant can ask of the engine."""

    submit_run = _performs(SubmitRun)
    add_tasks = _performs(AddTasks)
    signal_run = _performs(SignalRun)
    signal_runs = _performs(SignalRuns)
    approve_run = _performs(ApproveRun)
    start_run = _performs(StartRun)
    set_budget = _performs(SetBudget)
    signal_task = _performs(SignalTask)
    delete_task = _performs(DeleteTask)
    store_template = _performs(StoreTemplate)
    add_lifecycle = _performs(AddLifecycle)
    request_transition = _performs(RequestTransition)
    register_worker = _performs(RegisterWorker)
    signal_worker = _performs(SignalWorker)
    report_attempt = _performs(ReportAttempt)
    declare_tool = _performs(DeclareTool)
    reset_breaker = _performs(ResetBreaker)
    trip_breaker = _performs(TripBreaker)
    set_tenant_budget = _performs(SetTenantBudget)
    set_quotas = _performs(SetQuotas)
    add_tenant = _performs(AddTenant)
    create_key = _performs(CreateKey)
    rotate_key = _performs(RotateKey)
    revoke_key = _performs(RevokeKey)
    retry_notifications = _performs(RetryNotifications)

    @property
    def outbox(self) -> Outbox:
        """Notifications on their way."""
        return Outbox(self._core, self._caller)

    async def perform(self, operation: Operation[Answer]) -> Answer:
        """Any operation, for this tenant."""
        operation = self._address(operation)
        validate(operation)
        return await self._submit(operation)

    async def perform_valid(self, operation: Operation[Answer]) -> Answer:
        """An operation that was validated: `read_operation` has read it, or `validate` has let it pass."""
        return await self._submit(self._address(operation))

    async def _submit(self, operation: Operation[Answer]) -> Answer:
        """Commit a valid operation."""
        answer: Answer = await self._core.submit(operation)
        return answer

    def _address(self, operation: Op) -> Op:
        if operation.caller is not ANYBODY and operation.caller != self._caller:
            raise TypeError("for_tenant(…) says who calls; leave `caller` out.")
        return operation if self._caller == ANYBODY else replace(operation, caller=self._caller)

    def of_tenant(self, tenant: str) -> TenantEngine:
        """The same caller, for another tenant."""
        checks.refuse(checks.name("tenant", tenant))
        return TenantEngine(self._core, replace(self._caller, tenant=tenant))

    # attempts

    async def complete_task(
        self, task_id: str, epoch: int, report: AttemptReport = NOTHING, *, request_id: str | None = None
    ) -> Task:
        """The attempt has done its work."""
        return await self.report_attempt(task_id, epoch, "complete", report, request_id=request_id)

    async def fail_task(
        self, task_id: str, epoch: int, report: AttemptReport = NOTHING, *, request_id: str | None = None
    ) -> Task:
        """The attempt has failed; the report says why."""
        return await self.report_attempt(task_id, epoch, "fail", report, request_id=request_id)

    async def report_attempts(self, reports: Iterable[ReportAttempt]) -> list[PointsmanError | None]:
        """Several reports at once, which cost little more than one: for each nothing, or why it was refused.

        A claim that is begun before this is awaited shares its commit:

            refusals, claims = await asyncio.gather(engine.report_attempts(done), engine.claim_tasks(worker_id, len(done)))
        """
        answers: list[PointsmanError | None] = []
        valid: dict[int, ReportAttempt] = {}
        for index, report in enumerate(reports):
            answers.append(None)
            try:
                validate(report)
            except RequestError as error:
                answers[index] = error
            else:
                valid[index] = report
        if valid:
            operation = self._address(ReportAttempts(tuple(valid.values())))
            refusals = await self._submit(operation)
            for index, refusal in zip(valid, refusals, strict=True):
                answers[index] = refusal
        return answers

    # workers

    async def send_heartbeat(self, worker_id: str, attempts: Iterable[tuple[str, int]] = ()) -> HeartbeatReply:
        """Renew the lease of a worker, with all attempts that it knows to hold; the answer says which to end."""
        reply = await self.perform(SendHeartbeat(worker_id, tuple(attempts)))
        if reply.unknown:
            await self.perform(GiveUpTasks(worker_id, reply.unknown))
        return reply

    async def claim_tasks(
        self,
        worker_id: str,
        limit: int = 1,
        *,
        wait_seconds: float = 0.0,
        run_id: str | None = None,
        line: WaitingLine | None = None,
    ) -> list[Claim]:
        """Claim tasks for a worker, of any run or of one, up to its free slots; when there are none, wait for some.

        To wait here is a sign of life. A worker that holds tasks sends heartbeats as well. Workers that wait in a `line` are
        woken in turns; without one, each wake-up is for all of them.
        """
        operation = self._address(ClaimTasks(worker_id, limit, run_id))
        validate(operation)
        if wait_seconds == 0:
            return (await self._submit(operation))[0]
        checks.refuse(checks.number("wait_seconds", wait_seconds, 0, checks.MAX_SECONDS))
        wakeups = self._around.wakeups
        line = line or WaitingLine(partial(wakeups.expect, Wakeup.TASKS), wakeups.forget)
        over, expected = wakeups.pause(wait_seconds), line.expect()
        try:
            claimed, lease_seconds = await self._submit(operation)
            while not claimed and not over.done():
                early = await self._wait_to_claim(operation, expected, over, lease_seconds / TURNS_IN_A_LEASE)
                if early:
                    claimed, lease_seconds = await early
                else:
                    line.forget(expected)
                    expected = line.expect()
                    claimed, lease_seconds = await self._submit(operation)
            return claimed
        finally:
            over.cancel()
            line.forget(expected)

    async def _wait_to_claim(
        self, operation: ClaimTasks, expected: asyncio.Future[Any], over: asyncio.Future[None], seconds: float
    ) -> asyncio.Future[Any] | None:
        """Until a wake-up, the end of the wait, or the time for another claim, which renews the lease.

        An operation that begins work may take the claim along: then this is its answer.
        """
        turn = self._around.wakeups.pause(seconds)
        early = asyncio.get_running_loop().create_future()
        self._around.waiting_claims[early] = operation
        try:
            await asyncio.wait({expected, over, turn, early}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if early.done():
                early.result().cancel()  # as for any claim that is canceled while it commits
            raise
        finally:
            turn.cancel()
            del self._around.waiting_claims[early]
        return early.result() if early.done() else None

    def listen(self, wakeup: Wakeup, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` at every such wake-up, until what is returned is called.

        `Wakeup.TASKS`: some task may be claimed. `Wakeup.WORKERS`: an attempt was canceled, paused or lost, or a worker was
        told to do something; a heartbeat has the details.
        """
        return self._around.wakeups.listen(wakeup, heard)


class Engine(TenantEngine):
    """Carries runs through their life cycles; open one with `pointsman.app.open`. It speaks for the default tenant."""

    def __init__(self, store: Store, machines: Machines, world: World, *, max_queue: int = MAX_QUEUE) -> None:
        super().__init__(Core(store, machines, world, max_queue), ANYBODY)
        self._attendance = Attendance(world.clock)
        self._duties = Duties(self._core, self._note_duty)
        self._authentication = Authentication(self._core)

    def for_tenant(self, tenant: str = DEFAULT_TENANT, *, actor: str = "user", traceparent: str | None = None) -> TenantEngine:
        """The same engine for another tenant, or with another name in the audit trail. Attempts continue the trace."""
        checks.refuse([*checks.name("tenant", tenant), *checks.name("actor", actor)])
        return TenantEngine(self._core, Caller(tenant, actor, read_traceparent(traceparent)))

    def for_request(
        self,
        tenant: str,
        actor: str,
        endpoint: str,
        request_hash: str,
        traceparent: str | None = None,
        *,
        key_id: str | None = None,
    ) -> tuple[TenantEngine, Receipt]:
        """The same engine for one request to a route of a server. The receipt says whether its answer is a repeated one.

        An idempotency key counts for the `endpoint`, and stands for the request as it was sent: what the server makes of it may
        differ the next time.
        """
        checks.refuse([*checks.name("tenant", tenant), *checks.name("actor", actor)])
        receipt = Receipt()
        caller = RemoteCaller(tenant, actor, traceparent, key_id, endpoint=endpoint, request_hash=request_hash, receipt=receipt)
        return TenantEngine(self._core, caller), receipt

    def start(self, *, keeps: bool) -> None:
        """Begin to work; with `keeps` it also performs the duties, together with all other processes on the same database."""
        self._core.writer.start()
        if keeps:
            for duty in self._own_duties():
                self._duties.start(duty)

    async def close(self) -> None:
        """Finish what has been asked, and let go of the database."""
        core = self._core
        if core.is_closed:
            return
        core.is_closed = True
        await self._duties.stop()
        await asyncio.to_thread(core.writer.close)
        core.wakeups.close()
        core.store.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # figures

    @property
    def commit_metrics(self) -> CommitMetrics:
        return self._core.writer.metrics

    @property
    def duty_metrics(self) -> Mapping[str, DutyMetrics]:
        return self._duties.metrics

    @property
    def queue_length(self) -> int:
        """How many operations wait for the writer."""
        return self._core.writer.queue_length

    def attach(self, hook: Hook) -> Callable[[], None]:
        """Call `hook` with every event of the engine itself (`engine/hooks.py`); returns what detaches it."""
        return self._around.hooks.attach(hook)

    # the whole database, of all tenants

    async def authenticate(self, text: str) -> KeyHolder:
        """Whose API key this is. Any other text raises `AuthenticationFailed`, which does not say what is wrong with it."""
        return await self._authentication.authenticate(text)

    async def issue_ticket(self, key_id: str) -> Ticket:
        """A ticket that stands for an API key once, for some seconds."""
        return await self._authentication.issue_ticket(key_id)

    async def redeem_ticket(self, text: str) -> KeyHolder:
        """Whose ticket this is. It works once in a process; any other text raises `AuthenticationFailed`."""
        return await self._authentication.redeem_ticket(text)

    async def list_tenants(self) -> list[Tenant]:
        return await self._ask(lambda reader: reader.list_tenants())

    async def get_lifecycle(self, name: str) -> Lifecycle:
        """The one that a new run follows by this name: that of this engine, or else the last version in the database."""
        return await self._ask(lambda reader: self._core.machines.lifecycle(name, reader))

    async def measure_tenants(self) -> list[TenantFigures]:
        """The tenants, with what each may have and has: the count reads all that is unfinished."""
        return await self._ask(measure_tenants)

    async def list_all_keys(self) -> list[ApiKey]:
        """The API keys of all tenants, with those that are revoked or have expired."""
        return await self._ask(lambda reader: reader.list_all_keys())

    async def list_duty_failures(self) -> list[DutyFailure]:
        """Duties that fail at the moment, in any process on this database."""
        return await self._ask(lambda reader: reader.list_duty_failures(reader.now() - FAILING_FOR))

    async def list_all_transitions(self, *, after: str | None = None, limit: int = PAGE) -> list[Transition]:
        """The event stream of all tenants behind a position."""
        checks.refuse(check_limit(limit))
        return await self._ask(lambda reader: reader.list_all_transitions(after=after, limit=limit))

    def watch_all(self, *, after: str | None = None, pause_seconds: float = 0.0) -> AsyncGenerator[list[Transition]]:
        """The event stream of all tenants behind a position, page by page, and on and on as it grows."""
        return self._watch_pages(lambda position: self.list_all_transitions(after=position), after, pause_seconds)

    async def count_claimable(self, most: Mapping[str, int]) -> dict[str, int]:
        """How many tasks, up to `most`, wait for the workers of each tenant; those of the default one may serve all."""

        def count(reader: Reader) -> dict[str, int]:
            whole = {tenant: None if tenant == DEFAULT_TENANT else tenant for tenant in most}
            return {tenant: reader.count_claimable(whole[tenant], limit) for tenant, limit in most.items()}

        return await self._ask(count)

    async def take_figures(self) -> Figures:
        """How things stand in the whole database, in one snapshot."""
        return await self._ask(take_figures)

    async def tally_transitions(self, after: int, limit: int) -> tuple[int, list[TransitionTally]]:
        """Count the moves behind a position, of at most `limit` positions; the answer has the last of them."""
        return await self._ask(lambda reader: tally_transitions(reader, after, limit))

    async def diagnose(self) -> list[Diagnosis]:
        """What is stuck in the whole database, why, and what would help."""
        return await self._ask(lambda reader: diagnose(reader, self._core.machines, reader.now()))

    async def audit(self, expected_seal: str | None = None) -> AuditReport:
        """Whether the audit trail is what was written: its seals, each trail against its entity, and the rules of the machines.

        A report has the last seal. With an earlier one that was kept elsewhere, it also tells whether everything up to it is
        unchanged.
        """
        return await self._ask(lambda reader: audit(reader, expected_seal))

    # upkeep

    async def seal(self) -> int:
        """Seal all transitions that are settled; how many that were, unless another process seals them.

        Those that are made meanwhile are left to the next call, or a busy database would be sealed move by move.
        """
        sealed, end = 0, await self._ask(find_settled)
        while seal := await self._ask(lambda reader: take_seal(reader, reader.now(), end)):
            if not await self._core.writer.submit(StoreSeal(seal=seal)):
                break
            sealed += seal.position - seal.previous
        return sealed

    async def repair(self, *, actor: str = "user", reason: str | None = None, request_id: str | None = None) -> list[Diagnosis]:
        """Put right what can be put right without a person; what that was. A notice about each keeps who did it, and why."""
        checks.refuse([*checks.name("actor", actor), *(checks.text("reason", reason) if reason is not None else ())])
        checks.refuse(checks.name("request_id", request_id) if request_id is not None else ())
        found = tuple(diagnosis for diagnosis in await self.diagnose() if diagnosis.repairable)
        repair = Repair(diagnoses=found, caller=Caller(actor=actor), reason=reason, request_id=request_id)
        if request_id or any(map(is_contradiction, found)):
            await self._core.writer.submit(Restore(**structs.asdict(repair)))
        return await self._core.writer.submit(repair) if request_id or found else []

    async def tend(self) -> int:
        """Perform the duties of the engine once; how much there was to do."""
        return sum([await self._keep_up(each) for each in (FireTimers, ExpireWorkers, PurgeKeys)])

    def start_duty(self, duty: Duty) -> None:
        """Perform a duty of another room in the background of this engine, until it is closed."""
        self._duties.start(duty)

    def _own_duties(self) -> Iterable[Duty]:
        yield Duty(
            name="timers",
            perform=lambda: self._keep_up(FireTimers),
            interval_seconds=LONGEST_PAUSE_SECONDS,
            full_batch=BATCH,
            next_due=lambda: self._seconds_until(lambda reader, _now, _asked: reader.next_due()),
            wakes_on=Wakeup.TIMERS,
        )
        yield Duty(
            name="worker-expiry",
            perform=lambda: self._keep_up(partial(ExpireWorkers, since=self._attendance.since)),
            interval_seconds=LONGEST_PAUSE_SECONDS,
            full_batch=BATCH,
            next_due=self._seconds_until_silence,
            wakes_on=Wakeup.TIMERS,
        )
        yield Duty(name="key-purge", perform=lambda: self._keep_up(PurgeKeys), interval_seconds=PURGE_SECONDS, full_batch=BATCH)
        yield Duty(
            name="seal",
            perform=self.seal,
            interval_seconds=SEAL_SECONDS,
            full_batch=sys.maxsize,
            rest_seconds=SEAL_REST_SECONDS,
            wakes_on=Wakeup.EVENTS,
        )

    async def _keep_up(self, upkeep: Callable[..., Upkeep]) -> int:
        """All that is due; one that cannot be dealt with does not keep the others waiting."""
        try:
            return int(await self._core.writer.submit(upkeep()))
        except (EngineClosed, StoreBusy, StoreFull, StoreGone, StoreUnavailable):
            raise
        except Exception:  # noqa: BLE001 - the next try names the culprit
            return await self._keep_up_one_by_one(upkeep)

    async def _keep_up_one_by_one(self, upkeep: Callable[..., Upkeep]) -> int:
        """Each in a transaction of its own; the error of the culprit is raised when the others are done."""
        done, culprit, skip = 0, None, 0
        while skip < BATCH:
            try:
                dealt_with = int(await self._core.writer.submit(upkeep(limit=1, skip=skip)))
            except (EngineClosed, StoreBusy, StoreFull, StoreGone, StoreUnavailable):
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

    async def _seconds_until(self, instant_of: Callable[[Reader, datetime, float], datetime | None]) -> float:
        """By the clock that decides about leases and timers, which need not be this machine's. After a step of it: at once.

        Then the writer corrects the clock, and the next answer is right.
        """
        timekeeper, clock = self._core.timekeeper, self._core.world.clock

        def look(reader: Reader) -> float:
            asked = clock.boottime()
            time = reader.time()
            if timekeeper.find_step(time, asked):
                return 0.0
            instant = instant_of(reader, time.now, asked)
            return (instant - time.now).total_seconds() if instant else math.inf

        return await self._core.ask(look)

    async def _seconds_until_silence(self) -> float:
        """When the next lease expires. After a time at which this process could not look, each worker has a new one."""

        def next_silence(reader: Reader, now: datetime, asked: float) -> datetime | None:
            self._attendance.arrive(now, asked)
            return reader.next_silence(self._attendance.since)

        seconds = await self._seconds_until(next_silence)
        self._attendance.leave(min(seconds, LONGEST_PAUSE_SECONDS))
        return seconds

    async def _note_duty(self, name: str, error: Exception | None, failures: int) -> None:
        """Kept in the database, so that `status` shows it in any process; while the database is away, only the log has it."""
        try:
            await self._core.writer.submit(NoteDuty(name=name, error=str(error) if error else None, failures=failures))
        except Exception as trouble:  # noqa: BLE001 - the duty goes on, whether this is known or not
            log.info("the state of duty %s could not be stored: %s", name, trouble, extra={"duty": name})
