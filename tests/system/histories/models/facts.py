"""What a history says about tasks, runs and workers as a whole: who is who, and what was agreed when they were submitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.system.histories.model import key_of
from tests.system.histories.record import Record

ABOUT_A_TASK = ("complete_task", "fail_task", "ask", "signal_attempt", "note_attempt", "signal_task", "get_task")
"""Their answer is the task; whoever completes several at once hears nothing of them but that it was done."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Where a task belongs."""

    run_id: str
    name: str
    tool: str | None = None


@dataclass(slots=True)
class Facts:
    tasks: dict[str, Identity] = field(default_factory=dict)
    submissions: dict[str, list[Record]] = field(default_factory=dict)
    """By run: one, or several with the same idempotency key."""
    additions: dict[str, Record] = field(default_factory=dict)
    """By task: what added it to its run later."""
    leases: dict[str, float] = field(default_factory=dict)
    lost_claims: list[Record] = field(default_factory=list)
    """Claims of which nobody knows what they got."""
    may_miss_submissions: bool = False
    """Some submission has no answer, or tasks of an unknown run appear."""
    uses_of_keys: Counter[Any] = field(default_factory=Counter)
    _about: dict[str, dict[int, Record]] = field(default_factory=dict)
    """By the id of a task, a run or a worker: the records that concern it, by their place in the history."""

    def about(self, *ids: str) -> list[Record]:
        """The records that concern any of these, in the order of the history."""
        found: dict[int, Record] = {}
        for each in ids:
            found |= self._about.get(each, {})
        return [found[place] for place in sorted(found)]

    def note(self, place: int, record: Record) -> None:
        for each in _ids_in(record):
            self._about.setdefault(each, {})[place] = record

    def agreed(self, task_id: str) -> Mapping[str, Any] | None:
        """What was said about a task when it was submitted."""
        identity = self.tasks[task_id]
        if addition := self.additions.get(task_id):
            given = addition.arguments["tasks"]
        elif submissions := self.submissions.get(identity.run_id):
            given = submissions[0].arguments["run"]["tasks"]
        else:
            return None
        return next((task for task in given if task["name"] == identity.name), None)

    def run_of(self, task_id: str) -> Mapping[str, Any]:
        submissions = self.submissions.get(self.tasks[task_id].run_id)
        return submissions[0].arguments["run"] if submissions else {}


def gather(records: Sequence[Record]) -> Facts:
    facts = Facts()
    for place, record in enumerate(records):
        facts.note(place, record)
        if key := key_of(record):
            facts.uses_of_keys[key] += 1
        answered = record.fate == "answered"
        match record.operation:
            case "submit_run" if answered:
                facts.submissions.setdefault(record.answer["id"], []).append(record)
            case "submit_run" | "add_tasks" if record.fate == "unknown":
                facts.may_miss_submissions = True
            case "add_tasks" if answered:
                for task in record.answer:  # whoever asks again with the same key hears the same
                    facts.additions.setdefault(task["id"], record)
            case "register_worker" if answered:
                facts.leases[record.answer["id"]] = record.answer["lease_seconds"]
            case "claim_tasks" if record.fate == "unknown":
                facts.lost_claims.append(record)
            case _:
                pass
        for task in tasks_seen(record):
            known = facts.tasks.get(task["task_id"])
            tool = task.get("tool") or (known.tool if known else None)
            facts.tasks[task["task_id"]] = Identity(task["run_id"], task["name"], tool)
    facts.may_miss_submissions |= any(each.run_id not in facts.submissions for each in facts.tasks.values())
    return facts


LOST_CLAIMS = "lost claims"


def _ids_in(record: Record) -> Iterator[str]:
    """Whom a record may concern; a claim of which nobody knows what it got may concern anybody."""
    arguments = record.arguments
    for name in ("task_id", "run_id"):
        if name in arguments:
            yield arguments[name]
    if record.operation == "signal_worker" or (record.operation == "heartbeat" and record.fate == "unknown"):
        yield arguments["worker_id"]  # all that it holds may be lost; the rest of what it says is about this task or that
    yield from (task_id for task_id, _ in arguments.get("attempts", ()))
    yield from (task["task_id"] for task in tasks_seen(record))
    if record.operation == "submit_run" and record.fate == "answered":
        yield record.answer["id"]
    if record.operation == "heartbeat" and record.fate == "answered":
        yield from (task_id for task_id, _ in record.answer["unknown"])
    if record.operation == "claim_tasks" and record.fate == "unknown":
        yield LOST_CLAIMS


def tasks_seen(record: Record) -> Iterator[Mapping[str, Any]]:
    """Every task in an answer, each with its `task_id`."""
    if record.fate != "answered":
        return
    if record.operation == "claim_tasks":
        yield from record.answer
    elif record.operation in ABOUT_A_TASK and record.answer:
        yield record.answer | {"task_id": record.answer["id"]}
    elif record.operation in ("list_tasks", "add_tasks"):
        yield from (task | {"task_id": task["id"]} for task in record.answer)
