"""One transaction for a batch of operations: load what they need, decide each, apply what follows, answer together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from pointsman.engine import plain
from pointsman.engine.follow import settle
from pointsman.engine.foresight import Foresight
from pointsman.engine.hooks import Hooks, KeysChecked, LeasesLost
from pointsman.engine.machines import Machines
from pointsman.engine.operation import Needs, Operation, RemoteCaller, Request, Stage, answer_type
from pointsman.engine.operations.upkeep import Allocate
from pointsman.engine.work import Lanes, Work
from pointsman.errors import Conflict, KeyReused, PointsmanError, StoreError
from pointsman.store.contract import Foresee, Transaction
from pointsman.store.rows import Entity, StoredResponse
from pointsman.world import World

Answer = Callable[[], Any]
NEVER = datetime(9999, 12, 31, tzinfo=UTC)
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Decider:
    """Decides batches; between them it keeps only what never changes."""

    machines: Machines
    world: World
    hooks: Hooks = field(default_factory=Hooks)
    lanes: Lanes = field(default_factory=Lanes)
    tenants: set[str] = field(default_factory=set)
    allocations: dict[str, str] = field(default_factory=dict)
    """By worker: the run that it was allocated to when it was last seen here. It only says what to lock first."""
    passed_over: set[str] = field(default_factory=set)
    """Runs that wait for workers, and for another transaction; what the last batches have left to do."""
    foresees: bool = False
    """Whether there is a network, so that it pays to ask in advance."""
    foresight: Foresight = field(init=False)
    _needs: tuple[Sequence[Operation[Any]], list[Needs]] = ((), [])
    """Those of the batch that is about to be decided."""

    def __post_init__(self) -> None:
        self.foresight = Foresight(self.machines)

    def foresee(self, operations: Sequence[Operation[Any]]) -> Foresee | None:
        """What a batch will probably ask of its transaction."""
        if self.allocations or not self.foresees:
            return None
        return self.foresight.foresee(operations, self._needs_of(operations))

    def decide(self, transaction: Transaction, operations: Sequence[Operation[Any]]) -> list[Any]:
        """The answer to each operation, or the error that it met; commits, and raises only for errors of the database."""
        work = Work(transaction, self.machines, self.world, self.lanes, self.tenants)
        _load(work, operations, self._needs_of(operations), self.allocations)
        outcomes = _decide_all(work, operations)
        work.accounts.write()
        transaction.commit(work.wakeups)
        self.lanes.add(work.new_lanes.values())
        self.tenants |= work.new_tenants
        self._remember_allocations(work)
        if self.foresees:
            self.foresight.learn(work)
        self.passed_over |= work.passed_over
        if work.key_hits or work.key_misses:
            self.hooks.emit(KeysChecked(work.key_hits, work.key_misses))
        if work.leases_lost:
            self._report_losses(work)
        return outcomes

    def _needs_of(self, operations: Sequence[Operation[Any]]) -> list[Needs]:
        if self._needs[0] is not operations:
            self._needs = operations, [operation.needs for operation in operations]
        return self._needs[1]

    def _remember_allocations(self, work: Work) -> None:
        for worker in work.workers.rows.values():
            if worker.run_id:
                self.allocations[worker.id] = worker.run_id
            else:
                self.allocations.pop(worker.id, None)

    def follow_up(self) -> Operation[Any] | None:
        """What the last batch could not do without waiting for another transaction."""
        passed_over, self.passed_over = self.passed_over, set()
        return Allocate(run_ids=tuple(sorted(passed_over))) if passed_over else None

    def _report_losses(self, work: Work) -> None:
        self.hooks.emit(LeasesLost(len(work.leases_lost)))
        for run_id, task_id, epoch, worker_id in work.leases_lost:
            where = {"run": run_id, "task": task_id, "attempt": epoch, "worker": worker_id}
            log.info("an attempt lost its lease", extra=where)


def _load(work: Work, operations: Sequence[Operation[Any]], needs: Sequence[Needs], allocations: Mapping[str, str]) -> None:
    """Everything in the order in which it is locked: quotas, runs with their tasks, then workers."""
    work.quotas.lock({operation.tenant for operation, each in zip(operations, needs, strict=True) if each.adds_work})
    worker_ids = {worker_id for each in needs for worker_id in each.worker_ids}
    task_ids = [task_id for each in needs for task_id in each.task_ids]
    run_ids = {run_id for each in needs for run_id in each.run_ids}
    if allocations:
        run_ids |= {allocations[worker_id] for worker_id in worker_ids if worker_id in allocations}
    held_by = sorted({worker_id for each in needs for worker_id in each.held_by})
    if held_by:
        held = work.transaction.find_held_tasks(held_by)
        task_ids += [task_id for _, task_id, _ in held]
        run_ids |= {run_id for _, _, run_id in held}
    work.lock_runs(run_ids, of_tasks=task_ids)
    for caller, reports in plain.find_reports(operations, needs):
        plain.end(work, caller, reports)
    task_ids = [task_id for task_id in task_ids if task_id not in work.ended_plain]
    work.read_tasks(task_ids)
    if with_workers := [run.id for run in work.runs.rows.values() if run.allocates]:
        worker_ids |= set(work.transaction.find_run_workers(with_workers))  # the end of a run releases them
    work.load_workers(sorted(worker_ids))
    if tasks := work.tasks.rows.values():
        for tenant in sorted({task.tenant for task in tasks}):
            tools = {work.tool_of(task) for task in tasks if task.tenant == tenant}
            work.load_breakers(tenant, sorted(tool for tool in tools if tool))
        work.load_subtasks(sorted(task.id for task in tasks if task.has_subtasks))


def _decide_all(work: Work, operations: Sequence[Operation[Any]]) -> list[Any]:
    """Decide stage by stage, and apply what follows after each."""
    answers: list[Answer | PointsmanError | None] = [None] * len(operations)
    requests: dict[tuple[str, str, str], tuple[str, int]] = {}
    claims_follow = any(operation.stage is Stage.CLAIMS for operation in operations)
    for stage in Stage:
        for index, operation in enumerate(operations):
            if operation.stage is stage:
                answers[index] = _decide_one(work, operation, index, requests, answers)
        settle(work, claims_follow=claims_follow and stage is not Stage.CLAIMS)
    outcomes = [_answer(answer) for answer in answers]
    for _, index in requests.values():
        if not isinstance(outcomes[index], PointsmanError):
            _remember(work, operations[index], outcomes[index])
    return outcomes


def _decide_one(
    work: Work,
    operation: Operation[Any],
    index: int,
    requests: dict[tuple[str, str, str], tuple[str, int]],
    answers: Sequence[Answer | PointsmanError | None],
) -> Answer | PointsmanError:
    try:
        request = operation.request
        if request is None:
            return operation.decide(work)
        key = (operation.tenant, request.endpoint, request.key)
        if key in requests:
            request_hash, twin = requests[key]
            if request_hash != request.request_hash:
                raise KeyReused(request.key)
            answer = answers[twin]
            assert answer is not None
            _note_repetition(work, operation, is_repeated=True)
            return answer
        stored = work.transaction.find_response(*key)
        if stored and stored.expires_at > work.now:
            repeated = _repeat(operation, request, stored)
            _note_repetition(work, operation, is_repeated=True)
            return repeated
        _note_repetition(work, operation, is_repeated=False)
        requests[key] = (request.request_hash, index)
        return operation.decide(work)
    except StoreError:
        raise
    except PointsmanError as error:
        return error


def _note_repetition(work: Work, operation: Operation[Any], *, is_repeated: bool) -> None:
    """Count it, and tell a remote caller; of several tries, the last one counts."""
    work.key_hits += is_repeated
    work.key_misses += not is_repeated
    if isinstance(operation.caller, RemoteCaller):
        operation.caller.receipt.is_repeated = is_repeated


def _repeat(operation: Operation[Any], request: Request, stored: StoredResponse) -> Answer:
    if stored.request_hash != request.request_hash:
        raise KeyReused(request.key)
    answer = msgspec.json.decode(stored.body, type=answer_type(type(operation)))
    return lambda: answer


def _answer(answer: Answer | PointsmanError | None) -> Any:
    assert answer is not None
    if isinstance(answer, PointsmanError):
        return answer
    outcome = answer()
    return copy(outcome) if isinstance(outcome, Entity) else outcome


def _remember(work: Work, operation: Operation[Any], outcome: Any) -> None:
    """Store the answer with its effect. If another process has stored one for the same key first, this batch is retried."""
    request = operation.request
    assert request
    stored = StoredResponse(
        tenant=operation.tenant,
        endpoint=request.endpoint,
        key=request.key,
        request_hash=request.request_hash,
        status=200,
        body=msgspec.json.encode(operation.redact(outcome)).decode(),
        created_at=work.now,
        expires_at=NEVER if request.lasts_seconds is None else work.now + timedelta(seconds=request.lasts_seconds),
    )
    if not work.transaction.insert_response(stored):
        raise Conflict(f"Another request with the key '{request.key}' was quicker.")
