"""One task of the standard lifecycle, as LIFECYCLES.md has it: what may be heard of it, and what that makes of it.

PENDING ─▶ QUEUED ─claim: epoch + 1─▶ RUNNING ─▶ VALIDATING ─▶ READY ─▶ SUCCEEDED
             ▲          lease lost       │  fail ─▶ RETRYING, FAILED     ask ─▶ BLOCKED
             └───────────────────────────┘  cancel, from wherever it has not ended ─▶ CANCELED
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from tests.system.histories.model import Operation, is_without_effect, key_of
from tests.system.histories.models.facts import LOST_CLAIMS, Facts, gather, tasks_seen
from tests.system.histories.record import Record

HELD_BY_AN_ATTEMPT = ("RUNNING", "VALIDATING")
ENDED = ("SUCCEEDED", "SKIPPED", "FAILED", "TIMED_OUT", "BUDGET_EXCEEDED", "CANCELED")
TO_BE_RETRIED = ("FAILED", "TIMED_OUT", "BUDGET_EXCEEDED")
SKIPPABLE = ("PENDING", "QUEUED", "RETRYING", "WAITING_APPROVAL", "FAILED", "TIMED_OUT", "BUDGET_EXCEEDED")
OF_AN_ATTEMPT = ("complete_task", "fail_task", "ask", "signal_attempt", "note_attempt")
LIFECYCLES = ("standard", "supervised")
"""Those whose tasks follow standard.task."""
NOBODY: Mapping[str, Any] = {"actor": "user", "answer": None}
"""Who decides without saying who."""
EXPIRED = {None: "FAILED", "reject": "FAILED", "approve": "SUCCEEDED", "cancel": "CANCELED", "skip": "SKIPPED"}
"""By what a gate asks for: where it is when nobody has decided in time."""
RETRIES = {"supervised": 2}
"""Document 000 gives a task three attempts."""


@dataclass(frozen=True, slots=True)
class TaskState:
    state: str | None = None
    """None: not submitted yet."""
    epoch: int = 0
    holder: str | None = None
    heard_of_holder: float = -math.inf
    """Its last sign of life did not come before this instant."""
    begun: float = -math.inf
    retries: int = 0
    reclaims: int = 0
    said: str | None = None
    """The answer to its question."""
    output: str | None = None
    approved_by: frozenset[str] = frozenset()
    """Who has approved it, while it asks for more people."""
    keys: frozenset[Any] = frozenset()
    """Idempotency keys that have had their effect."""
    not_before: float = -math.inf

    def __str__(self) -> str:
        if self.state is None:
            return "not submitted"
        held = f", held by {self.holder}" if self.state in HELD_BY_AN_ATTEMPT else ""
        return f"{self.state}, epoch {self.epoch}{held}, {self.retries} retries, {self.reclaims} reclaims"

    def is_held_by(self, epoch: int) -> bool:
        return self.state in HELD_BY_AN_ATTEMPT and self.epoch == epoch


@dataclass(frozen=True, slots=True)
class TaskModel:
    subject: str
    operations: Sequence[Operation]
    agreed: Mapping[str, Any]
    """What was submitted, as far as it is known."""
    run: Mapping[str, Any]
    leases: Mapping[str, float]
    may_appear: bool
    """It may have been submitted by somebody who never heard of it."""
    is_known: bool = True
    """What was agreed is known."""
    start: TaskState = field(default_factory=TaskState)

    def not_before(self, state: TaskState) -> float:
        return state.not_before

    # what clients see

    def take(self, state: TaskState, operation: Operation, *, heard: bool) -> Iterable[TaskState]:
        key = key_of(operation.record)
        if heard and operation.is_refused:
            return [state] if self._explains(state, operation) and key not in state.keys else []
        if operation.act == "look":
            return [state] if self._looks_like(state, operation.details) else []
        if key is not None and key in state.keys:
            return [state]
        moved = self._move(state, operation, heard=heard)
        return moved if key is None else [replace(each, keys=each.keys | {key}) for each in moved]

    def _explains(self, state: TaskState, operation: Operation) -> bool:
        """Whether a refusal is to be expected here."""
        error = operation.record.error
        if is_without_effect(operation.record):
            return True
        if error == "NotFound":
            return state.state is None
        if operation.act in OF_AN_ATTEMPT:
            holds = state.is_held_by(operation.details["epoch"])
            if error == "LeaseLost":
                return not holds
            return error == "TransitionRefused" and holds and not self._move(state, operation, heard=True)
        if error == "NotAllowed":
            return not self._may_decide(operation.details)
        if operation.act == "signal_task":
            # Whether a run that has ended takes another try of its task is not for the task to say.
            depends_on_run = operation.details["signal"] in ("retry", "resume", "ready")
            return error == "TransitionRefused" and (depends_on_run or not self._move(state, operation, heard=True))
        return True

    def _looks_like(self, state: TaskState, row: Mapping[str, Any]) -> bool:
        if state.state is None or row["state"] != state.state or row["epoch"] != state.epoch:
            return False
        if row["current_attempt"] != (state.epoch if state.state in HELD_BY_AN_ATTEMPT else None):
            return False
        if state.state in HELD_BY_AN_ATTEMPT and state.holder != row["worker_id"]:
            return False
        if row["retry_count"] != state.retries:
            return False
        output = row.get("output")
        return output is None or state.output is None or msgspec.json.decode(output) == msgspec.json.decode(state.output)

    def _move(self, state: TaskState, operation: Operation, *, heard: bool) -> list[TaskState]:
        details = operation.details
        match operation.act:
            case "submit_run" | "add_tasks":
                return [replace(state, state="PENDING")] if state.state is None else []
            case "claim_tasks":
                return self._claim(state, operation, heard=heard)
            case "heartbeat":
                return self._beat(state, operation)
            case "give_up":
                if state.is_held_by(details["epoch"]) and state.holder == details["worker_id"]:
                    # The answer to its claim might still have been under way, but not after a whole lease.
                    lease = self.leases.get(state.holder or "", 0)
                    return [self._later(each, state.begun + lease) for each in self._lose_lease(state)]
                return [state]  # somebody else was quicker
            case "signal_worker":
                return self._lose_worker(state, operation)
            case "signal_task":
                return self._obey(state, details["signal"], details)
            case "signal_run" | "approve_run":
                return self._follow_run(state, details["signal"], details)
            case _:
                return self._report(state, operation) if state.is_held_by(details["epoch"]) else []

    def _claim(self, state: TaskState, operation: Operation, *, heard: bool) -> list[TaskState]:
        """Each claim has the next epoch; it goes with what was answered to the last question."""
        details = operation.details
        if state.state != "QUEUED":
            return []
        if heard and not operation.is_unknown and (details["epoch"] != state.epoch + 1 or details["answer"] != state.said):
            return []
        instant = operation.invoked_at
        worker = details["worker_id"]
        return [replace(state, state="RUNNING", epoch=state.epoch + 1, holder=worker, heard_of_holder=instant, begun=instant)]

    def _beat(self, state: TaskState, operation: Operation) -> list[TaskState]:
        details = operation.details
        if state.is_held_by(details["epoch"]) == details["lost"]:
            return []
        if details["lost"] or state.holder != details["worker_id"]:
            return [state]
        return [replace(state, heard_of_holder=max(state.heard_of_holder, operation.invoked_at))]

    def _report(self, state: TaskState, operation: Operation) -> list[TaskState]:
        """What the attempt that holds the task says of it."""
        details = operation.details
        running = state.state == "RUNNING"
        match details["signal"]:
            case "complete" if running:
                done = replace(state, output=details.get("output"))
                return [replace(done, state=name) for name in self._after_complete()]
            case "checks_passed" if not running:
                return [replace(state, state=name) for name in self._after_checks()]
            case "checks_failed" if not running:
                return self._fail(state, details, "FAILED")
            case "fail":
                return self._fail(state, details, "FAILED")
            case "expire":
                return self._fail(state, details, "TIMED_OUT" if running else "FAILED")
            case "ask" if running:
                return [replace(state, state="BLOCKED", said=None)]
            case "skip" if running:
                return [replace(state, state="SKIPPED")]
            case "overspend" if running:
                return [replace(state, state="BUDGET_EXCEEDED")]
            case "interrupt":
                return [replace(state, state="QUEUED"), *self._cancel(state)[1:]]
            case "cancel":
                return [replace(state, state="CANCELED")]
            case "note":
                return [state, *([replace(state, state="BUDGET_EXCEEDED")] if running and self._has_budget() else [])]
            case _:
                return []

    def _after_complete(self) -> Iterable[str]:
        if not self.is_known:
            return ("VALIDATING", "BLOCKED", "READY", "SUCCEEDED")
        return ("VALIDATING",) if self.agreed.get("checks") else self._after_checks()

    def _after_checks(self) -> Iterable[str]:
        if not self.is_known:
            return ("BLOCKED", "READY", "SUCCEEDED")
        end = "READY" if self.agreed.get("review") else "SUCCEEDED"
        return ("BLOCKED", end) if self._has_parts() else (end,)

    def _fail(self, state: TaskState, details: Mapping[str, Any], end: str) -> list[TaskState]:
        again = replace(state, state="RETRYING", retries=state.retries + 1)
        over = replace(state, state=end)
        if not self.is_known or self.agreed.get("max_attempts") is not None:
            return [again, over]
        retryable = details.get("retryable", True) and self.agreed.get("retry_on_failure", True)
        default = RETRIES.get(self.run.get("lifecycle", "standard"), 0)
        most = default if self.agreed.get("max_retries") is None else self.agreed["max_retries"]
        return [again] if retryable and state.retries < most else [over]

    def _lose_lease(self, state: TaskState) -> list[TaskState]:
        """Back to the queue; but a task that keeps losing its workers ends."""
        most = self.agreed.get("max_reclaims", 3)
        again = replace(state, state="QUEUED", reclaims=min(state.reclaims + 1, most))
        over = replace(state, state="FAILED")
        if not self.is_known or self.agreed.get("max_attempts") is not None:
            return [again, over]
        return [again] if state.reclaims < most else [over]

    def _lose_worker(self, state: TaskState, operation: Operation) -> list[TaskState]:
        if state.state in HELD_BY_AN_ATTEMPT and state.holder == operation.details["worker_id"]:
            return self._lose_lease(state)
        return [state]

    def _may_decide(self, details: Mapping[str, Any]) -> bool:
        """A gate may name the people who decide it."""
        decides = details["signal"] in ("approve", "reject", "skip")
        return not (decides and self.agreed.get("approvers") and details["actor"] not in self.agreed["approvers"])

    def _approve(self, state: TaskState, actor: str) -> list[TaskState]:
        """As many different people approve as the gate asks for; it knows whom it has counted."""
        approved_by = state.approved_by | {actor}
        enough, more = replace(state, state="SUCCEEDED"), replace(state, approved_by=approved_by)
        if not self.is_known:
            return [enough, more]
        return [enough if len(approved_by) >= self.agreed.get("quorum", 1) else more]

    def _obey(self, state: TaskState, signal: str, details: Mapping[str, Any] = NOBODY) -> list[TaskState]:
        """What people want of a task."""
        is_gate = bool(self.agreed.get("gate"))
        if is_gate and not self._may_decide({**details, "signal": signal}):
            return []
        match signal, state.state:
            case "approve", "WAITING_APPROVAL":
                return self._approve(state, details["actor"])
            case "reject", "WAITING_APPROVAL":
                return [replace(state, state="FAILED")]
            case "accept", "READY":
                return [replace(state, state="SUCCEEDED")]
            case "reject", "READY":
                return [replace(state, state="PENDING")]
            case "answer", "BLOCKED":
                return [replace(state, state="QUEUED", said=details["answer"])]
            case "retry", name if name in TO_BE_RETRIED and not is_gate:
                return [replace(state, state="QUEUED", retries=0, reclaims=0)]
            case "resume", name if name in TO_BE_RETRIED and not is_gate:
                return [replace(state, state="QUEUED")]
            case "skip", name if name in SKIPPABLE:
                return [replace(state, state="SKIPPED")]
            case "ready", "PENDING":
                return [replace(state, state="WAITING_APPROVAL" if is_gate else "QUEUED")]
            case "cancel", name if name is not None and name not in ENDED:
                return self._cancel(state)
            case _:
                return []

    def _cancel(self, state: TaskState) -> list[TaskState]:
        """The worker of a job first ends the process of a running task, and reports that then."""
        canceled = replace(state, state="CANCELED")
        waits = self.run.get("lifecycle") == "supervised" and state.state in HELD_BY_AN_ATTEMPT
        return [state, canceled] if waits else [canceled]

    def _follow_run(self, state: TaskState, signal: str, details: Mapping[str, Any]) -> list[TaskState]:
        """What people want of a run happens to those of its tasks that it concerns."""
        match signal, state.state:
            case (("cancel" | "approve"), _):
                return self._obey(state, signal, details) or [state]
            case "retry", name if name in TO_BE_RETRIED:
                return [state, *self._obey(state, "retry")]
            case _:
                return [state]

    # what happens unseen

    def drift(self, state: TaskState) -> Iterator[TaskState]:
        match state.state:
            case None:
                if self.may_appear:
                    yield replace(state, state="PENDING")
            case "PENDING":
                yield from self._get_ready(state)
            case "RETRYING":
                yield replace(state, state="QUEUED")
            case "RUNNING" | "VALIDATING":
                yield from self._run_out(state)
            case "QUEUED" | "BLOCKED" | "WAITING_APPROVAL":
                yield from self._end_waiting(state)
            case "FAILED" | "TIMED_OUT" | "BUDGET_EXCEEDED":
                yield from self._get_over(state)
            case _:
                pass
        if self.agreed.get("parent") is not None and state.state in SKIPPABLE:
            yield replace(state, state="SKIPPED")  # with its parent
        if self.run.get("lifecycle") == "supervised" and state.state is not None:
            yield from self._obey(state, "cancel")  # when its job has failed, or took too long

    def _get_ready(self, state: TaskState) -> Iterator[TaskState]:
        is_gate = bool(self.agreed.get("gate"))
        if not is_gate:
            yield replace(state, state="QUEUED")
        if is_gate or not self.is_known:
            yield replace(state, state="WAITING_APPROVAL")

    def _end_waiting(self, state: TaskState) -> Iterator[TaskState]:
        """Subtasks have ended, nobody has answered in time, or what it waits for cannot be."""
        if state.state == "BLOCKED" and self._has_parts():
            yield from (replace(state, state=name) for name in ("READY", "SUCCEEDED", "FAILED"))
        if state.state == "WAITING_APPROVAL" and self._limit("approval_seconds") is not None:
            yield from (replace(state, state=name) for name in self._after_expiry())
        if state.state == "QUEUED" and (self.agreed.get("on_open_circuit") == "fail" or self._has_budget()):
            tried = replace(state, epoch=state.epoch + 1)
            yield from (replace(tried, state=name) for name in ("FAILED", "BUDGET_EXCEEDED"))
            yield from self._fail(tried, {}, "FAILED")

    def _after_expiry(self) -> Iterable[str]:
        return EXPIRED.values() if not self.is_known else (EXPIRED[self.agreed.get("on_expiry")],)

    def _get_over(self, state: TaskState) -> Iterator[TaskState]:
        """What is not critical is passed over, and a run that has another try gives its tasks one."""
        if not self.agreed.get("critical", True):
            yield replace(state, state="SKIPPED")
        if self.run.get("max_retries"):
            yield from self._obey(state, "retry")

    def _run_out(self, state: TaskState) -> Iterator[TaskState]:
        """A lease or a limit is over, which takes its time."""
        over = state.heard_of_holder + self.leases.get(state.holder or "", 0)
        yield from (self._later(each, over) for each in self._lose_lease(state))
        if (limit := self._limit("reclaim_after_seconds")) is not None:
            yield from (self._later(each, state.begun + limit) for each in self._lose_lease(state))
        if (limit := self._limit("timeout_seconds")) is not None:
            end = "TIMED_OUT" if state.state == "RUNNING" else "FAILED"
            yield from (self._later(each, state.begun + limit) for each in self._fail(state, {}, end))

    def _limit(self, name: str) -> float | None:
        limit: float | None = self.agreed.get(name) if self.is_known else 0.0
        return limit

    def _later(self, state: TaskState, instant: float) -> TaskState:
        return replace(state, not_before=max(state.not_before, instant))

    def _has_parts(self) -> bool:
        parts = (task.get("parent") for task in self.run.get("tasks", ()))
        return not self.is_known or self.agreed.get("name") in parts or self.run.get("task_count") is not None

    def _has_budget(self) -> bool:
        return not self.is_known or (self.agreed.get("budget_usd") or self.run.get("budget_usd")) is not None


# from records to operations


def task_models(records: Sequence[Record]) -> Iterator[TaskModel]:
    facts = gather(records)
    for task_id, identity in facts.tasks.items():
        run, agreed = facts.run_of(task_id), facts.agreed(task_id)
        if run.get("lifecycle", "standard") not in LIFECYCLES:
            continue
        yield TaskModel(
            subject=f"task {task_id} ({identity.name})",
            operations=list(_operations(facts, task_id)),
            agreed=agreed or {},
            run=run,
            leases=facts.leases,
            may_appear=facts.may_miss_submissions,
            is_known=agreed is not None,
        )


def _operations(facts: Facts, task_id: str) -> Iterator[Operation]:
    run_id = facts.tasks[task_id].run_id
    claims = [record for record in facts.about(task_id, LOST_CLAIMS) if record.operation == "claim_tasks"]
    holders = {record.arguments["worker_id"] for record in claims}
    for record in facts.about(task_id, run_id, LOST_CLAIMS, *holders):
        if operation := _operation(record, facts, task_id, run_id, holders):
            yield operation
            looks = record.operation not in ("claim_tasks", "list_tasks", "get_task")
            row = next((task for task in tasks_seen(record) if task["task_id"] == task_id), None)
            # Twins get the answer of the first, whatever has become of the task since; that they agree is looked at elsewhere.
            if looks and row and facts.uses_of_keys[key_of(record)] <= 1:
                yield Operation(record, "look", row, after=operation)


def _operation(record: Record, facts: Facts, task_id: str, run_id: str, holders: set[str]) -> Operation | None:
    """What a record means to the task, if anything."""
    arguments = record.arguments
    match record.operation:
        case "submit_run" if task_id not in facts.additions:
            return Operation(record, "submit_run")
        case "add_tasks" if facts.additions.get(task_id) is record:
            return Operation(record, "add_tasks")
        case "claim_tasks":
            return _claim(record, task_id)
        case "heartbeat":
            return _heartbeat(record, task_id, holders)
        case "signal_worker" if arguments["worker_id"] in holders and record.fate != "refused":
            if arguments["signal"] in ("terminate", "fail"):
                return Operation(record, "signal_worker", {"worker_id": arguments["worker_id"]})
        case "signal_run" | "approve_run" if arguments["run_id"] == run_id and record.fate != "refused":
            return Operation(record, record.operation, _decision_of(record))
        case "signal_task" if arguments["task_id"] == task_id:
            return Operation(record, "signal_task", _decision_of(record))
        case "get_task" | "list_tasks":
            if row := next((task for task in tasks_seen(record) if task["task_id"] == task_id), None):
                return Operation(record, "look", row)
        case operation if operation in OF_AN_ATTEMPT and arguments["task_id"] == task_id:
            return Operation(record, operation, _report_of(record))
        case _:
            pass
    return None


def _decision_of(record: Record) -> dict[str, Any]:
    arguments = record.arguments
    signal = arguments.get("signal", "approve")
    return {"signal": signal, "answer": arguments.get("answer"), "actor": arguments.get("actor", NOBODY["actor"])}


def _claim(record: Record, task_id: str) -> Operation | None:
    worker = {"worker_id": record.arguments["worker_id"]}
    if record.fate == "unknown":
        return Operation(record, "claim_tasks", worker)
    for task in tasks_seen(record):
        if task["task_id"] == task_id:
            return Operation(record, "claim_tasks", worker | {"epoch": task["epoch"], "answer": task["answer"]})
    return None


def _heartbeat(record: Record, task_id: str, holders: set[str]) -> Operation | None:
    """It renews the lease, or says that it is lost; of tasks that the worker should know of and does not, it lets go."""
    worker = record.arguments["worker_id"]
    known = dict(record.arguments.get("attempts", ()))
    if record.fate == "answered" and task_id in known:
        lost = [task_id, known[task_id]] in record.answer["lost"]
        return Operation(record, "heartbeat", {"epoch": known[task_id], "lost": lost, "worker_id": worker})
    if record.fate == "answered":
        epochs = [epoch for name, epoch in record.answer["unknown"] if name == task_id]
        return Operation(record, "give_up", {"epoch": epochs[0], "worker_id": worker}) if epochs else None
    if record.fate == "unknown" and task_id not in known and worker in holders:
        return Operation(record, "signal_worker", {"worker_id": worker})
    return None


def _report_of(record: Record) -> dict[str, Any]:
    named = {"complete_task": "complete", "fail_task": "fail", "ask": "ask", "note_attempt": "note"}
    arguments = record.arguments
    output = arguments.get("output")
    return {
        "epoch": arguments["epoch"],
        "signal": named.get(record.operation) or arguments["signal"],
        "retryable": arguments.get("retryable", True),
        "output": None if output is None else msgspec.json.encode(output).decode(),
    }
