"""Operations of workers, and of people on workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, ClassVar

import msgspec
from msgspec import Struct

from pointsman.engine import claims, tasks, workers
from pointsman.engine.claims import Claim
from pointsman.engine.fields import HIDDEN, Attempts, Count, JsonObject, Name, RunId, Seconds, Tenants, Text, Words, WorkerId
from pointsman.engine.operation import Needs, Operation, Recorded, Stage
from pointsman.engine.people import check_person, list_signals
from pointsman.engine.policy import name_workspace
from pointsman.engine.work import Cause, Work
from pointsman.errors import NotFound, Problem
from pointsman.kernel.machine import Kind, Phase
from pointsman.lifecycles import DEFAULT
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Task, Worker


class RegisterWorker(Operation[Worker], frozen=True):
    """Register a worker, which may claim tasks from then on."""

    name: Annotated[Name, "What people call it."]
    capabilities: Annotated[Words, "What it can do; tasks that ask for more go to others."] = ()
    workspace_id: Annotated[Name | None, "The workspace that it belongs to; jobs of a workspace get only workers of it."] = None
    max_concurrent_tasks: Annotated[Count, "How many tasks it may hold at once."] = 1
    lease_seconds: Annotated[Seconds, "It is lost when it has been silent for so long."] = 30.0
    lifecycle: Annotated[Name, "The lifecycle that it follows; it may serve tasks of any."] = DEFAULT
    only_run_id: Annotated[RunId | None, "The only run that it works for."] = None
    metadata: Annotated[JsonObject | None, "What it says of itself, for people and programs; any JSON object."] = None
    serves: Annotated[Tenants, HIDDEN, 'Other tenants that it serves, or "all"; set by operators only.'] = ()

    @property
    def needs(self) -> Needs:
        return Needs(run_ids=(self.only_run_id,) if self.only_run_id else ())

    def decide(self, work: Work) -> Callable[[], Worker]:
        machine = work.machines.lifecycle(self.lifecycle, work.transaction).of_kind(Kind.WORKER)
        work.ensure_tenant(self.tenant)
        others = self.serves if self.serves == "all" else sorted({*self.serves} - {self.tenant})
        able = {*self.capabilities, *([] if self.workspace_id is None else [name_workspace(self.workspace_id)])}
        worker = Worker(
            id=work.world.ids.new("worker", work.now),
            tenant=self.tenant,
            machine_id=work.machines.number(machine),
            state=machine.initial.name,
            phase=machine.initial.phase.value,
            entered_at=work.now,
            created_at=work.now,
            name=self.name,
            lifecycle=self.lifecycle,
            serves=msgspec.json.encode(others).decode(),
            capabilities=msgspec.json.encode(sorted(able)).decode(),
            max_concurrent_tasks=self.max_concurrent_tasks,
            lease_seconds=float(self.lease_seconds),
            heartbeat_at=work.now,
            only_run_id=self.only_run_id,
            worker_metadata=msgspec.json.encode(self.metadata or {}).decode(),
            key_id=self.caller.key_id,
        )
        if self.only_run_id is not None:
            _check_run(work, worker, self.only_run_id)
        worker.metadata = msgspec.json.encode({"max_concurrent_tasks": self.max_concurrent_tasks}).decode()
        work.workers.add(worker)
        work.transaction.limit_idle(worker.lease_seconds / 3)
        if work.takes(worker, "register"):
            workers.send(work, worker, "register", Cause(worker.id))
        work.allocation_wanted = True
        work.wakeups |= Wakeup.TIMERS  # its lease has begun
        return lambda: worker


class SignalWorker(Recorded[Worker], frozen=True):
    """Send a worker what a person decides (pause, resume, drain, terminate), or report an error of its own (fail)."""

    worker_id: Annotated[WorkerId, "The worker."]
    signal: Annotated[Text, list_signals(Kind.WORKER)]
    retryable: Annotated[bool, "Of fail: the worker can go on."] = False
    suspend: Annotated[bool, "Of pause: also suspend its processes. Without that, its settings decide."] = False
    ended: Annotated[bool, "Of terminate: its processes are known to have ended. Without that, they are ended first."] = False

    @property
    def needs(self) -> Needs:
        return Needs(worker_ids=(self.worker_id,), held_by=(self.worker_id,))

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        if not found and self.suspend and self.signal != "pause":
            yield Problem("suspend", "Only a pause can suspend processes. Leave it out.")

    def decide(self, work: Work) -> Callable[[], Worker]:
        worker = work.worker(self.tenant, self.worker_id)
        check_person(work, worker, Kind.WORKER, self.signal)
        if self.signal == "drain":
            self._drain(work, worker)
        elif not self.ended and workers.may_run_processes(work, worker, self.signal):
            if not worker.terminate_wanted:
                self._keep_wish(work, worker, "It is to end its processes and leave.")
            worker.terminate_wanted = worker.drain_wanted = True
            work.workers.change(worker)
        elif self.ended and worker.phase != Phase.DONE and not work.takes(worker, "terminate"):
            workers.retire(work, worker, self.cause)
        else:
            cause = Cause(self.caller.actor, self.reason, workers.SUSPENDED if self.suspend else None)
            workers.send(work, worker, self.signal, cause, retryable=self.retryable, error=self.reason)
        work.wakeups |= Wakeup.WORKERS
        return lambda: worker

    def _drain(self, work: Work, worker: Worker) -> None:
        """A machine without a state for it drains when the last task has ended; until then it may claim nothing."""
        refusal = workers.try_send(work, worker, "drain", self.cause)
        if refusal and not (work.takes(worker, "drain") and workers.count_held(work, worker)):
            tasks.refuse(refusal)
        if refusal and not worker.drain_wanted:
            self._keep_wish(work, worker, "It is to leave when its tasks have ended.")
        worker.drain_wanted = True
        work.workers.change(worker)

    def _keep_wish(self, work: Work, worker: Worker, wish: str) -> None:
        """The worker moves later, by itself; who wanted that is kept now."""
        work.give_notice(worker, Kind.WORKER.value, worker.run_id, subject=self.signal, message=self.cause.sign(wish))


class HeartbeatReply(Struct, frozen=True, kw_only=True):
    """What the engine answers to a heartbeat."""

    worker: Worker
    lost: tuple[tuple[str, int], ...] = ()
    """Attempts that no longer count: end their processes."""
    cancelled: tuple[tuple[str, int], ...] = ()
    """Attempts that are to be canceled: end their processes, and report `cancel`."""
    paused: tuple[tuple[str, int], ...] = ()
    """Attempts whose run is paused: they may go on, or be suspended."""
    unknown: tuple[tuple[str, int], ...] = ()
    """Attempts that it holds and does not know of, because the answer to its claim was lost."""
    suspended: bool = False
    """A person wants all of its processes suspended."""


class SendHeartbeat(Operation[HeartbeatReply], frozen=True):
    """Renew the lease of a worker, and learn which of its attempts to end."""

    is_bounded: ClassVar[bool] = False

    worker_id: Annotated[WorkerId, "The worker."]
    attempts: Annotated[Attempts, "Pairs of task and epoch: all attempts that it knows to hold."] = ()

    @property
    def needs(self) -> Needs:
        return Needs(worker_ids=(self.worker_id,))

    def decide(self, work: Work) -> Callable[[], HeartbeatReply]:
        worker = workers.find_own(work, self.tenant, self.caller.key_id, self.worker_id)
        if worker.phase != Phase.DONE:
            workers.heard_of(work, worker)
        held = {task_id for _, task_id, _ in work.transaction.find_held_tasks([worker.id])}
        known = [task_id for task_id, _ in self.attempts]
        rows = {task.id: task for task in work.transaction.select_tasks([*known, *held])} if known or held else {}
        return lambda: self._answer(work, worker, rows, held)

    def _answer(self, work: Work, worker: Worker, rows: Mapping[str, Task], held: set[str]) -> HeartbeatReply:
        lost, cancelled, paused = [], [], []
        for task_id, epoch in self.attempts:
            task = rows.get(task_id)
            if task is None or task.attempt_worker_id != worker.id or task.current_attempt != epoch or task.lease_expired:
                lost.append((task_id, epoch))
            elif task.cancel_requested_at is not None:
                cancelled.append((task_id, epoch))
            elif not task.run_open:
                paused.append((task_id, epoch))
        # The answer to a claim may still be under way; after a whole lease it is not.
        patience = timedelta(seconds=worker.lease_seconds)
        strangers = [
            task_id
            for task_id in held - {task_id for task_id, _ in self.attempts}
            if rows[task_id].entered_at + patience < work.now
        ]
        return HeartbeatReply(
            worker=worker,
            lost=tuple(lost),
            cancelled=tuple(cancelled),
            paused=tuple(paused),
            unknown=tuple(sorted((task_id, rows[task_id].epoch) for task_id in strangers)),
            suspended=workers.is_suspended(worker),
        )


class GiveUpTasks(Operation[int], frozen=True):
    """Take attempts from a worker that does not know of them, so that others can claim their tasks; how many there were."""

    worker_id: Annotated[WorkerId, "The worker that holds them."]
    attempts: Annotated[Attempts, "Pairs of task and epoch."]

    @property
    def needs(self) -> Needs:
        return Needs(task_ids=tuple(task_id for task_id, _ in self.attempts), worker_ids=(self.worker_id,))

    def decide(self, work: Work) -> Callable[[], int]:
        """Only what it still holds: another worker may have taken a task over meanwhile."""
        worker = workers.find_own(work, self.tenant, self.caller.key_id, self.worker_id)
        given_up = 0
        for task_id, epoch in self.attempts:
            task = work.tasks.rows.get(task_id)
            if task and task.attempt_worker_id == worker.id and task.current_attempt == epoch:
                workers.lose_lease(work, task, Cause(reason="its worker never learned of it"))
                given_up += 1
        return lambda: given_up


class ClaimTasks(Operation[tuple[list[Claim], float]], frozen=True):
    """Claim tasks for a worker, up to its free slots; the answer has the length of its lease as well."""

    stage: ClassVar[Stage] = Stage.CLAIMS

    worker_id: Annotated[WorkerId, "The worker."]
    limit: Annotated[Count, "How many at most."] = 1
    run_id: Annotated[RunId | None, "The only run to claim tasks of."] = None

    @property
    def needs(self) -> Needs:
        # The run is locked with all that its batch needs, so no claim waits for it later on.
        return Needs(worker_ids=(self.worker_id,), run_ids=(self.run_id,) if self.run_id else ())

    def decide(self, work: Work) -> Callable[[], tuple[list[Claim], float]]:
        worker = workers.find_own(work, self.tenant, self.caller.key_id, self.worker_id)
        if self.run_id is not None:
            _check_run(work, worker, self.run_id)
        claimed = claims.claim(work, worker, self.limit, self.run_id)
        return lambda: (claims.describe(work, claimed), worker.lease_seconds)


def _check_run(work: Work, worker: Worker, run_id: str) -> None:
    run = work.runs.rows.get(run_id)
    if run is None or not workers.serves(worker, run.tenant):
        raise NotFound("run", run_id)
