"""A run of the standard lifecycle and its tasks: it has SUCCEEDED as soon as all of them have, and not before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.system.histories.model import Operation
from tests.system.histories.models.facts import Facts, gather, tasks_seen
from tests.system.histories.record import Record

DONE = ("SUCCEEDED", "SKIPPED")
SPECIAL = ("checks", "task_count", "parent_run_id", "timeout_seconds")
"""Whatever has these may end otherwise than its tasks."""


@dataclass(frozen=True, slots=True)
class RunModel:
    """Either something is left to be done, or nothing is; whoever looks at the run sees the same as who looks at its tasks."""

    subject: str
    operations: Sequence[Operation]
    start: str = "open"

    def not_before(self, state: str) -> float:  # noqa: ARG002
        return -math.inf

    def take(self, state: str, operation: Operation, *, heard: bool) -> Iterable[str]:  # noqa: ARG002
        return [state] if operation.details["is_done"] == (state == "done") else []

    def drift(self, state: str) -> Iterator[str]:
        if state == "open":
            yield "done"


def run_models(records: Sequence[Record]) -> Iterator[RunModel]:
    """Of runs that end with their tasks."""
    facts = gather(records)
    for run_id, submissions in facts.submissions.items():
        new = submissions[0].arguments["run"]
        if new.get("lifecycle", "standard") == "standard" and _is_plain(new) and not _is_changed(facts, run_id):
            operations = [operation for record in facts.about(run_id) for operation in _looks(record)]
            yield RunModel(f"run {run_id} ({new['name']})", operations)


def _is_plain(new: Mapping[str, Any]) -> bool:
    return bool(new.get("tasks")) and not any(new.get(name) for name in SPECIAL)


def _is_changed(facts: Facts, run_id: str) -> bool:
    """Whoever pauses a run, or asks for more of it, makes it another one."""
    return any(record.operation in ("add_tasks", "signal_run") for record in facts.about(run_id))


def _looks(record: Record) -> Iterator[Operation]:
    if record.fate != "answered":
        return
    if record.operation == "get_run":
        yield Operation(record, "get_run", {"is_done": record.answer["state"] == "SUCCEEDED"})
    elif record.operation == "list_tasks":
        yield Operation(record, "look", {"is_done": all(task["state"] in DONE for task in tasks_seen(record))})
