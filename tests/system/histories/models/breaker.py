"""The breaker of one tool: CLOSED lets everything through, OPEN nothing, HALF_OPEN one probe at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.system.histories.model import Operation, key_of
from tests.system.histories.models.facts import Facts, gather, tasks_seen
from tests.system.histories.record import Record

ENDS_WITHOUT_A_VERDICT = ("ask", "signal_attempt", "signal_task", "signal_run", "signal_worker")


@dataclass(frozen=True, slots=True)
class Probe:
    task_id: str | None
    """None: whoever has it never heard of which."""
    worker_id: str
    heard_of: float


@dataclass(frozen=True, slots=True)
class BreakerState:
    state: str | None = None
    """None: not declared yet."""
    failure_threshold: int = 5
    success_threshold: int = 1
    cooldown_seconds: float = 60.0
    failures: int = 0
    successes: int = 0
    opened: float = -math.inf
    """It did not open before this instant."""
    probe: Probe | None = None
    keys: frozenset[Any] = frozenset()
    not_before: float = -math.inf

    def __str__(self) -> str:
        probe = f", probed by {self.probe.task_id} of {self.probe.worker_id}" if self.probe else ""
        return f"{self.state or 'not declared'}, {self.failures} failures{probe}"


@dataclass(frozen=True, slots=True)
class BreakerModel:
    subject: str
    operations: Sequence[Operation]
    leases: Mapping[str, float]
    has_limits: bool
    """Attempts may take too long, which counts as a failure."""
    start: BreakerState = field(default_factory=BreakerState)

    def not_before(self, state: BreakerState) -> float:
        return state.not_before

    def take(self, state: BreakerState, operation: Operation, *, heard: bool) -> Iterable[BreakerState]:
        key = key_of(operation.record)
        if heard and operation.is_refused:
            return [state] if operation.act != "reset_breaker" or state.state in (None, "CLOSED") else []
        if key is not None and key in state.keys:
            return [state]
        moved = self._move(state, operation)
        return moved if key is None else [replace(each, keys=each.keys | {key}) for each in moved]

    def _move(self, state: BreakerState, operation: Operation) -> list[BreakerState]:
        details = operation.details
        match operation.act:
            case "declare_tool":
                return [replace(state, state=state.state or "CLOSED", **details)]
            case "get_breaker":
                return [state] if self._looks_like(state, details) else []
            case "reset_breaker":
                closed = replace(state, state="CLOSED", failures=0, successes=0, probe=None)
                return [closed] if state.state in ("OPEN", "HALF_OPEN") else []
            case "claim_tasks":
                return self._admit(state, operation)
            case "heartbeat":
                if state.probe and state.probe.task_id == details["task_id"]:
                    return [replace(state, probe=replace(state.probe, heard_of=operation.invoked_at))]
                return [state]
            case "complete_task":
                return [self._succeed(state, details["task_id"])]
            case "fail_task":
                return [self._fail(state, details["task_id"], operation.invoked_at)]
            case "usage_limit":
                return [self._meet_usage_limit(state)]
            case _:
                return [self._free(state) if self._concerns_probe(state, details) else state]

    def _looks_like(self, state: BreakerState, row: Mapping[str, Any]) -> bool:
        task_id = state.probe.task_id if state.probe else None
        is_probed = (row["probe_task_id"] is not None) == (state.probe is not None)
        return row["state"] == state.state and is_probed and task_id in (None, row["probe_task_id"])

    def _admit(self, state: BreakerState, operation: Operation) -> list[BreakerState]:
        if state.state == "CLOSED":
            return [state]
        if state.state == "HALF_OPEN" and state.probe is None:
            details = operation.details
            return [replace(state, probe=Probe(details["task_id"], details["worker_id"], operation.invoked_at))]
        return []

    def _succeed(self, state: BreakerState, task_id: str) -> BreakerState:
        if state.state == "CLOSED":
            return replace(state, failures=0)
        if not self._is_probe(state, task_id):
            return state
        if state.successes + 1 >= state.success_threshold:
            return replace(state, state="CLOSED", failures=0, successes=0, probe=None)
        return replace(state, successes=state.successes + 1, probe=None)

    def _fail(self, state: BreakerState, task_id: str, instant: float) -> BreakerState:
        opened = replace(state, state="OPEN", opened=instant, successes=0, probe=None)
        if state.state == "CLOSED":
            failures = state.failures + 1
            return replace(opened if failures >= state.failure_threshold else state, failures=failures)
        return opened if self._is_probe(state, task_id) else state

    def _meet_usage_limit(self, state: BreakerState) -> BreakerState:
        """It opens, whoever says so; for how long is up to the tool, perhaps for a moment only."""
        if state.state not in ("CLOSED", "HALF_OPEN"):
            return state
        return replace(state, state="OPEN", opened=-math.inf, successes=0, probe=None)

    def _is_probe(self, state: BreakerState, task_id: str) -> bool:
        return state.state == "HALF_OPEN" and state.probe is not None and state.probe.task_id == task_id

    def _concerns_probe(self, state: BreakerState, details: Mapping[str, Any]) -> bool:
        if state.probe is None:
            return False
        return state.probe.task_id in details.get("task_ids", ()) or state.probe.worker_id == details.get("worker_id")

    def _free(self, state: BreakerState) -> BreakerState:
        return replace(state, probe=None)

    def drift(self, state: BreakerState) -> Iterator[BreakerState]:
        if state.state == "OPEN":
            over = state.opened + state.cooldown_seconds
            yield replace(state, state="HALF_OPEN", not_before=max(state.not_before, over))
        if state.probe is not None:
            lost = state.probe.heard_of + self.leases.get(state.probe.worker_id, 0)
            yield replace(self._free(state), not_before=max(state.not_before, lost))
        if self.has_limits and state.state == "HALF_OPEN" and state.probe:
            yield replace(state, state="OPEN", opened=state.not_before, successes=0, probe=None)
        if self.has_limits and state.state == "CLOSED" and state.failures < state.failure_threshold:
            yield self._fail(state, "", state.not_before)


def breaker_models(records: Sequence[Record]) -> Iterator[BreakerModel]:
    facts = gather(records)
    declared = {record.arguments["tool"] for record in records if record.operation == "declare_tool"}
    for tool in sorted(declared):
        operations = [operation for record in records for operation in _operations(record, facts, tool)]
        limited = any(task.get("timeout_seconds") is not None for record in records for task in _tasks_in(record))
        yield BreakerModel(f"breaker of {tool}", operations, facts.leases, limited)


def _tasks_in(record: Record) -> Sequence[Mapping[str, Any]]:
    """What was said about tasks when they were submitted, or added."""
    match record.operation:
        case "submit_run":
            tasks: Sequence[Mapping[str, Any]] = record.arguments["run"]["tasks"]
        case "add_tasks":
            tasks = record.arguments["tasks"]
        case _:
            tasks = ()
    return tasks


def _operations(record: Record, facts: Facts, tool: str) -> Iterator[Operation]:
    """What a record means to the breaker."""
    arguments = record.arguments
    task_id = arguments.get("task_id")
    match record.operation:
        case "declare_tool" if arguments["tool"] == tool:
            yield Operation(record, "declare_tool", {name: arguments[name] for name in arguments if name in _SETTINGS})
        case "reset_breaker" if arguments["tool"] == tool:
            yield Operation(record, "reset_breaker")
        case "get_breaker" if arguments["tool"] == tool and record.fate == "answered":
            yield Operation(record, "get_breaker", record.answer)
        case "claim_tasks":
            yield from _claim(record, facts, tool)
        case "heartbeat" if record.fate == "answered":
            yield from _heartbeat(record, facts, tool)
        case "complete_task" | "fail_task" if record.fate != "refused" and _uses(facts, task_id, tool):
            yield Operation(record, record.operation, {"task_id": task_id, "task_ids": [task_id]})
        case "signal_attempt" if arguments.get("usage_limit_until") and record.fate != "refused":
            if _uses(facts, task_id, tool):
                yield Operation(record, "usage_limit", {"task_ids": [task_id]})
        case operation if operation in ENDS_WITHOUT_A_VERDICT and record.fate != "refused":
            yield from _end(record, facts, tool)
        case _:
            pass


_SETTINGS = ("failure_threshold", "success_threshold", "cooldown_seconds")


def _uses(facts: Facts, task_id: str | None, tool: str) -> bool:
    return task_id in facts.tasks and facts.tasks[task_id].tool == tool


def _claim(record: Record, facts: Facts, tool: str) -> Iterator[Operation]:
    worker_id = record.arguments["worker_id"]
    if record.fate == "unknown":
        yield Operation(record, "claim_tasks", {"worker_id": worker_id, "task_id": None})
    for task in tasks_seen(record):
        if _uses(facts, task["task_id"], tool):
            yield Operation(record, "claim_tasks", {"worker_id": worker_id, "task_id": task["task_id"]})


def _heartbeat(record: Record, facts: Facts, tool: str) -> Iterator[Operation]:
    """Only a lease that is renewed matters; what is let go of frees the probe."""
    for task_id, epoch in record.arguments.get("attempts", ()):
        if _uses(facts, task_id, tool) and [task_id, epoch] not in record.answer["lost"]:
            yield Operation(record, "heartbeat", {"task_id": task_id})
    let_go = [task_id for task_id, _ in record.answer["unknown"] if _uses(facts, task_id, tool)]
    if let_go:
        yield Operation(record, "give_up", {"task_ids": let_go})


def _end(record: Record, facts: Facts, tool: str) -> Iterator[Operation]:
    """An attempt ends, or may end, without an answer about its tool."""
    arguments = record.arguments
    signal = arguments.get("signal")
    if record.operation == "signal_worker" and signal in ("terminate", "fail"):
        yield Operation(record, "signal_worker", {"worker_id": arguments["worker_id"]})
    concerned: Sequence[str] = ()
    if record.operation in ("ask", "signal_attempt") or (record.operation == "signal_task" and signal == "cancel"):
        concerned = (arguments["task_id"],)
    elif record.operation == "signal_run" and signal == "cancel":
        concerned = [task_id for task_id, each in facts.tasks.items() if each.run_id == arguments["run_id"]]
    task_ids = [task_id for task_id in concerned if _uses(facts, task_id, tool)]
    if task_ids:
        yield Operation(record, record.operation, {"task_ids": task_ids})
