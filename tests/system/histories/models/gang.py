"""The workers of a tenant and the jobs that want some for themselves: each job gets all that it asks for, or none.

Who belongs to a job is learnt when it shows: by a claim, or by a list of the workers. Until then only their number is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.system.histories.model import Operation, key_of
from tests.system.histories.models.facts import Facts, gather
from tests.system.histories.record import Record

STAGES = {"SUBMITTED": "waiting", "PENDING": "waiting", "RUNNING": "running"}
"""Every other state of a job is an end."""


@dataclass(frozen=True, slots=True)
class Job:
    size: int
    open_tasks: int
    stage: str = "waiting"
    members: frozenset[str] = frozenset()
    """Those that are known."""
    lost: int = 0
    """How many of its workers were lost and not replaced yet."""

    @property
    def strength(self) -> int:
        return self.size - self.lost if self.stage == "running" else 0

    def end(self) -> Job:
        return replace(self, stage="ended", members=frozenset(), lost=0)


@dataclass(frozen=True, slots=True)
class GangState:
    workers: tuple[tuple[str, float], ...] = ()
    """Those who are there, with their last sign of life."""
    jobs: tuple[tuple[str, Job], ...] = ()
    keys: frozenset[Any] = frozenset()
    not_before: float = -math.inf

    def __str__(self) -> str:
        jobs = [f"{run_id} {job.stage} {job.strength}/{job.size} {sorted(job.members)}" for run_id, job in self.jobs]
        return f"{len(self.workers)} workers, {self.free} free; {'; '.join(jobs)}"

    @property
    def free(self) -> int:
        return len(self.workers) - sum(job.strength for _, job in self.jobs)

    def job(self, run_id: str) -> Job | None:
        return dict(self.jobs).get(run_id)

    def with_job(self, run_id: str, job: Job) -> GangState:
        return replace(self, jobs=tuple(sorted((dict(self.jobs) | {run_id: job}).items())))

    def heard_of(self, worker_id: str, instant: float) -> GangState:
        workers = dict(self.workers)
        workers[worker_id] = max(instant, workers.get(worker_id, instant))
        return replace(self, workers=tuple(sorted(workers.items())))

    def without(self, worker_id: str) -> GangState:
        return replace(self, workers=tuple(each for each in self.workers if each[0] != worker_id))

    def owner_of(self, worker_id: str) -> str | None:
        return next((run_id for run_id, job in self.jobs if worker_id in job.members), None)


@dataclass(frozen=True, slots=True)
class GangModel:
    subject: str
    operations: Sequence[Operation]
    leases: Mapping[str, float]
    start: GangState = field(default_factory=GangState)

    def not_before(self, state: GangState) -> float:
        return state.not_before

    def take(self, state: GangState, operation: Operation, *, heard: bool) -> Iterable[GangState]:  # noqa: ARG002
        key = key_of(operation.record)
        if key is not None and key in state.keys:
            return [state]
        moved = self._move(state, operation)
        return moved if key is None else [replace(each, keys=each.keys | {key}) for each in moved]

    def _move(self, state: GangState, operation: Operation) -> list[GangState]:
        details = operation.details
        match operation.act:
            case "register_worker" | "heartbeat":
                return [state.heard_of(details["worker_id"], operation.invoked_at)]
            case "submit_run":
                return [state.with_job(details["run_id"], Job(details["size"], details["tasks"]))]
            case "claim_tasks":
                return self._claim(state, details)
            case "complete_task":
                return self._finish(state, details["run_id"], 1)
            case "end":
                return self._finish(state, details["run_id"], math.inf)
            case "get_run":
                job = state.job(details["run_id"])
                return [state] if job and job.stage == details["stage"] else []
            case "list_workers":
                return self._compare(state, details["run_of"])
            case _:
                return list(self._lose(state, details["worker_id"]))

    def _claim(self, state: GangState, details: Mapping[str, Any]) -> list[GangState]:
        """Only who belongs to a job gets its tasks."""
        worker_id, run_id = details["worker_id"], details["run_id"]
        job = state.job(run_id)
        if job is None or job.stage != "running" or state.owner_of(worker_id) not in (None, run_id):
            return []
        members = job.members | {worker_id}
        return [state.with_job(run_id, replace(job, members=members))] if len(members) <= job.strength else []

    def _finish(self, state: GangState, run_id: str, tasks: float) -> list[GangState]:
        job = state.job(run_id)
        if job is None or job.stage == "ended":
            return [state]
        if tasks >= job.open_tasks:
            return [state.with_job(run_id, job.end())]
        return [state.with_job(run_id, replace(job, open_tasks=job.open_tasks - int(tasks)))]

    def _compare(self, state: GangState, run_of: Mapping[str, str | None]) -> list[GangState]:
        """A list of all workers shows exactly who belongs to whom."""
        for run_id, job in state.jobs:
            shown = frozenset(worker_id for worker_id, owner in run_of.items() if owner == run_id)
            if len(shown) != job.strength or not job.members <= shown <= {worker_id for worker_id, _ in state.workers}:
                return []
            state = state.with_job(run_id, replace(job, members=shown))
        return [state]

    def _lose(self, state: GangState, worker_id: str) -> Iterator[GangState]:
        """A worker is gone; where nobody knew whose it was, it may have been anybody's."""
        if worker_id not in dict(state.workers):
            yield state
            return
        gone = state.without(worker_id)
        owner = state.owner_of(worker_id)
        if owner is None and state.free > 0:
            yield gone
        for run_id, job in state.jobs:
            if run_id == owner or (owner is None and len(job.members) < job.strength):
                yield gone.with_job(run_id, replace(job, members=job.members - {worker_id}, lost=job.lost + 1))

    def drift(self, state: GangState) -> Iterator[GangState]:
        for run_id, job in state.jobs:
            if job.stage == "waiting" and state.free >= job.size:
                yield state.with_job(run_id, replace(job, stage="running"))
            if job.lost and state.free > 0:
                yield state.with_job(run_id, replace(job, lost=job.lost - 1))
        for worker_id, heard_of in state.workers:
            over = max(state.not_before, heard_of + self.leases.get(worker_id, 0))
            yield from (replace(each, not_before=over) for each in self._lose(state, worker_id))


def gang_models(records: Sequence[Record]) -> Iterator[GangModel]:
    facts = gather(records)
    lost_words = [record for record in records if record.operation == "register_worker" and record.fate == "unknown"]
    if facts.may_miss_submissions or lost_words:
        return  # how many workers and jobs there are is not known
    jobs = {
        run_id: submissions[0]
        for run_id, submissions in facts.submissions.items()
        if submissions[0].arguments["run"].get("lifecycle") == "supervised"
    }
    if jobs:
        operations = [operation for record in records for operation in _operations(record, facts, jobs)]
        yield GangModel("workers and their jobs", operations, facts.leases)


def _operations(record: Record, facts: Facts, jobs: Mapping[str, Record]) -> Iterator[Operation]:
    """What a record means to jobs and workers; refusals say nothing about them."""
    arguments = record.arguments
    if record.fate == "refused":
        return
    answered = record.fate == "answered"
    task = facts.tasks.get(arguments.get("task_id", ""))
    match record.operation:
        case "register_worker" | "heartbeat":
            worker_id = arguments["worker_id"] if record.operation == "heartbeat" else record.answer["id"]
            yield Operation(record, record.operation, {"worker_id": worker_id})
        case "submit_run" if answered and record.answer["id"] in jobs:
            yield from _submit(record)
        case "claim_tasks":
            yield from _claim(record, jobs)
        case "complete_task" if task and task.run_id in jobs:
            yield Operation(record, "complete_task", {"run_id": task.run_id})
        case "fail_task" if task and task.run_id in jobs and (not answered or record.answer["outcome"]):
            yield Operation(record, "end", {"run_id": task.run_id})
        case "signal_run" if arguments["run_id"] in jobs and arguments["signal"] == "cancel":
            yield Operation(record, "end", {"run_id": arguments["run_id"]})
        case "signal_worker" if arguments["signal"] in ("terminate", "fail"):
            yield Operation(record, "signal_worker", {"worker_id": arguments["worker_id"]})
        case "get_run" | "list_workers" if answered:
            yield from _looks(record, jobs)
        case _:
            pass


def _claim(record: Record, jobs: Mapping[str, Record]) -> Iterator[Operation]:
    """Whoever waits for a task is heard of first, may be given to the job of that task only then, and is heard of again."""
    worker_id = record.arguments["worker_id"]
    sign_of_life = Operation(record, "heartbeat", {"worker_id": worker_id})
    yield sign_of_life
    if record.arguments.get("wait_seconds"):
        for _ in range(2):
            yield Operation(record, "heartbeat", {"worker_id": worker_id}, after=sign_of_life, may_be_missing=True)
    runs = {claim["run_id"] for claim in record.answer} & jobs.keys() if record.fate == "answered" else set()
    for run_id in sorted(runs):
        yield Operation(record, "claim_tasks", {"worker_id": worker_id, "run_id": run_id}, after=sign_of_life)


def _looks(record: Record, jobs: Mapping[str, Record]) -> Iterator[Operation]:
    if record.operation == "list_workers":
        yield Operation(record, "list_workers", {"run_of": {row["id"]: row["run_id"] for row in record.answer}})
    elif record.arguments["run_id"] in jobs:
        yield Operation(record, "get_run", _look(record))


def _submit(record: Record) -> Iterator[Operation]:
    new = record.arguments["run"]
    details = {"run_id": record.answer["id"], "size": new.get("worker_count", 1), "tasks": len(new["tasks"])}
    submission = Operation(record, "submit_run", details)
    yield submission
    if key_of(record) is None:
        yield Operation(record, "get_run", _look(record), after=submission)


def _look(record: Record) -> dict[str, str]:
    return {"run_id": record.answer["id"], "stage": STAGES.get(record.answer["state"], "ended")}
