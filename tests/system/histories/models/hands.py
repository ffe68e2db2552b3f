"""The hands of one worker: it never holds more tasks than it said it could."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.system.histories.model import Operation
from tests.system.histories.models.facts import Facts, gather
from tests.system.histories.record import Record

Attempt = tuple[str, int]
REPORTS = ("complete_task", "fail_task", "ask")
"""With these an attempt ends, where nothing is to be checked afterwards."""
OTHERWISE = ("signal_attempt", "note_attempt", "signal_task", "signal_run", "approve_run", "signal_worker", "transition")
"""With these it may end as well."""
LIMITS = ("checks", "timeout_seconds", "reclaim_after_seconds")


@dataclass(frozen=True, slots=True)
class Hands:
    held: frozenset[Attempt] = frozenset()
    heard_of: float = -math.inf
    not_before: float = -math.inf

    def __str__(self) -> str:
        return f"holds {sorted(self.held)}"


@dataclass(frozen=True, slots=True)
class HandsModel:
    subject: str
    operations: Sequence[Operation]
    room: int
    lease_seconds: float
    start: Hands = field(default_factory=Hands)

    def not_before(self, state: Hands) -> float:
        return state.not_before

    def take(self, state: Hands, operation: Operation, *, heard: bool) -> Iterable[Hands]:  # noqa: ARG002
        attempts: frozenset[Attempt] = operation.details["attempts"]
        if operation.act in REPORTS:
            return [replace(state, held=state.held - attempts)]
        heard_of = max(state.heard_of, operation.invoked_at)
        if operation.act == "heartbeat":  # it lets go of what it does not know of
            return [replace(state, held=state.held - attempts, heard_of=heard_of)]
        held = state.held | attempts
        return [replace(state, held=held, heard_of=heard_of)] if len(held) <= self.room else []

    def drift(self, state: Hands) -> Iterator[Hands]:
        if state.held:
            over = max(state.not_before, state.heard_of + self.lease_seconds)
            yield replace(state, held=frozenset(), not_before=over)


def hands_models(records: Sequence[Record]) -> Iterator[HandsModel]:
    """Of workers that lose nothing but by their reports and with their lease."""
    facts = gather(records)
    by_worker: dict[str, list[Record]] = {}
    for record in records:
        if "worker_id" in record.arguments:
            by_worker.setdefault(record.arguments["worker_id"], []).append(record)
    for record in records:
        if record.operation != "register_worker" or record.fate != "answered":
            continue
        worker_id, told = record.answer["id"], by_worker.get(record.answer["id"], [])
        operations = [
            Operation(each, each.operation, {"attempts": _attempts(each)}) for each in told if each.fate == "answered"
        ]
        claimed = {attempt for each in operations if each.act == "claim_tasks" for attempt in each.details["attempts"]}
        if _is_known(told) and all(_is_plain(facts, task_id) for task_id, _ in claimed):
            operations += _reports(facts, claimed)
            room = record.arguments.get("max_concurrent_tasks", 1)
            yield HandsModel(f"hands of {worker_id}", operations, room, record.answer["lease_seconds"])


def _attempts(record: Record) -> frozenset[Attempt]:
    """What a claim brings, and what a heartbeat takes away."""
    if record.operation == "claim_tasks":
        return frozenset((claim["task_id"], claim["epoch"]) for claim in record.answer)
    unknown: Iterable[Attempt] = record.answer["unknown"] if record.operation == "heartbeat" else ()
    return frozenset((task_id, epoch) for task_id, epoch in unknown)


def _is_known(told: Iterable[Record]) -> bool:
    return all(each.operation in ("claim_tasks", "heartbeat") and each.fate != "unknown" for each in told)


def _is_plain(facts: Facts, task_id: str) -> bool:
    run: Mapping[str, Any] = facts.run_of(task_id)
    agreed = facts.agreed(task_id)
    if agreed is None or run.get("lifecycle", "standard") != "standard" or run.get("timeout_seconds"):
        return False
    about = facts.about(task_id, facts.tasks[task_id].run_id)
    return not any(agreed.get(limit) for limit in LIMITS) and not any(record.operation in OTHERWISE for record in about)


def _reports(facts: Facts, claimed: set[Attempt]) -> Iterator[Operation]:
    for task_id in sorted({task_id for task_id, _ in claimed}):
        for record in facts.about(task_id):
            if record.operation in REPORTS and record.fate != "refused":
                attempt = (task_id, record.arguments["epoch"])
                if attempt in claimed:
                    yield Operation(record, record.operation, {"attempts": frozenset({attempt})})
