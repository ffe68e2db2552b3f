"""What workers ask, and people ask of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from pointsman.engine import claims, tasks, workers
from pointsman.engine.claims import Claim
from pointsman.engine.command import Needs, Request
from pointsman.engine.people import check_person
from pointsman.engine.work import Cause, Work
from pointsman.kernel.machine import Kind, Phase
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Task, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterWorker:
    answer_type: ClassVar[Any] = Worker
    tenant: str
    request: Request | None
    name: str
    lifecycle: str
    capabilities: tuple[str, ...]
    max_concurrent_tasks: int
    lease_seconds: float

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, work: Work) -> Callable[[], Worker]:
        machine = work.machines.lifecycle(self.lifecycle).of_kind(Kind.WORKER)
        work.ensure_tenant(self.tenant)
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
            capabilities=msgspec.json.encode(sorted(set(self.capabilities))).decode(),
            max_concurrent_tasks=self.max_concurrent_tasks,
            lease_seconds=self.lease_seconds,
            heartbeat_at=work.now,
        )
        worker.metadata = msgspec.json.encode({"max_concurrent_tasks": self.max_concurrent_tasks}).decode()
        work.workers.add(worker)
        if work.takes(worker, "register"):
            workers.send(work, worker, "register", Cause(worker.id))
        work.allocation_wanted = True
        work.wakeups |= Wakeup.TIMERS  # its lease has begun
        return lambda: worker


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalWorker:
    """A person wants something of a worker, or it reports an error of its own."""

    answer_type: ClassVar[Any] = Worker
    tenant: str
    request: Request | None
    worker_id: str
    signal: str
    cause: Cause
    error: str | None = None
    retryable: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(worker_ids=(self.worker_id,), held_by=(self.worker_id,))

    def decide(self, work: Work) -> Callable[[], Worker]:
        worker = work.worker(self.tenant, self.worker_id)
        check_person(work, worker, Kind.WORKER, self.signal)
        if self.signal == "drain":
            self._drain(work, worker)
        else:
            workers.send(work, worker, self.signal, self.cause, retryable=self.retryable, error=self.error)
        return lambda: worker

    def _drain(self, work: Work, worker: Worker) -> None:
        """A machine without a state for it drains when the last task has ended; until then it may claim nothing."""
        refusal = workers.try_send(work, worker, "drain", self.cause)
        if refusal and not (work.takes(worker, "drain") and workers.count_held(work, worker)):
            tasks.refuse(refusal)
        worker.drain_wanted = True
        work.workers.change(worker)


class HeartbeatReply(Struct, frozen=True, kw_only=True):
    """What a worker hears when it sends a heartbeat."""

    worker: Worker
    lost: tuple[tuple[str, int], ...] = ()
    """Attempts that no longer count: end their processes."""
    cancelled: tuple[tuple[str, int], ...] = ()
    """Attempts that somebody wants to be cancelled: end their processes, and report `cancel`."""
    paused: tuple[tuple[str, int], ...] = ()
    """Attempts whose run lets nothing begin for now: they may go on, or be suspended."""
    unknown: tuple[tuple[str, int], ...] = ()
    """Tasks that it holds and does not know of, because the answer to its claim was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    answer_type: ClassVar[Any] = HeartbeatReply
    tenant: str
    request: Request | None
    worker_id: str
    attempts: tuple[tuple[str, int], ...]
    """All that it knows to hold."""

    @property
    def needs(self) -> Needs:
        return Needs(worker_ids=(self.worker_id,))

    def decide(self, work: Work) -> Callable[[], HeartbeatReply]:
        worker = work.worker(self.tenant, self.worker_id)
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
            if task is None or task.tenant != self.tenant or task.current_attempt != epoch or task.lease_expired:
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpTasks:
    """A worker does not know of these attempts, although it holds them: their tasks go to others."""

    answer_type: ClassVar[Any] = int
    tenant: str
    request: Request | None
    worker_id: str
    attempts: tuple[tuple[str, int], ...]

    @property
    def needs(self) -> Needs:
        return Needs(task_ids=tuple(task_id for task_id, _ in self.attempts))

    def decide(self, work: Work) -> Callable[[], int]:
        """Only what it still holds: somebody else may have taken a task over meanwhile."""
        given_up = 0
        for task_id, epoch in self.attempts:
            task = work.tasks.rows.get(task_id)
            if task is None or task.tenant != self.tenant or task.current_attempt != epoch:
                continue
            if task.attempt_worker_id == self.worker_id:
                workers.lose_lease(work, task, Cause(reason="its worker never got to know of it"))
                given_up += 1
        return lambda: given_up


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTasks:
    answer_type: ClassVar[Any] = tuple[list[Claim], float]
    tenant: str
    request: Request | None
    worker_id: str
    limit: int
    run_id: str | None = None
    """The only run to take tasks of. It is locked with all that its batch needs, so nobody waits for it later on."""

    @property
    def needs(self) -> Needs:
        return Needs(worker_ids=(self.worker_id,), run_ids=(self.run_id,) if self.run_id else ())

    def decide(self, work: Work) -> Callable[[], tuple[list[Claim], float]]:
        """What it gets, and how long its lease is: whoever waits for more has to be heard of meanwhile."""
        worker = work.worker(self.tenant, self.worker_id)
        if self.run_id is not None:
            work.run(self.tenant, self.run_id)
        claimed = claims.claim(work, worker, self.limit, self.run_id)
        return lambda: (claims.describe(work, claimed), worker.lease_seconds)
