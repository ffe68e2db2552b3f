"""What a reviewer has to see of the work of a task and of its subtasks: what they wrote, and what they changed."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.store.rows import Task
from pointsman.views.sources import RunRecords
from pointsman.views.values import read_output

MOST_LINES = 200
"""Of all subtasks together; the worker has shortened each of them."""


def describe_changes(task: Task, records: RunRecords) -> str:
    """The changes of a task, then those of subtasks that have run since: an attempt that came later has shown them itself."""
    lines = str(read_output(task).get("diff") or "").splitlines()
    parts = [(each.name, diff) for each in _list_parts(task, records) if (diff := str(read_output(each).get("diff") or ""))]
    for name, diff in parts:
        lines += [f"{name}:", *diff.splitlines()]
    more = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], f"… {more} more lines"] if parts and more > 0 else lines)


def describe_output(task: Task, records: RunRecords) -> str:
    """The end of what a task wrote, then that of each subtask, every line with the name of the subtask."""
    lines = _read_tail(task)
    for subtask in _list_parts(task, records):
        lines += [f"{subtask.name} | {line}" for line in _read_tail(subtask)]
    return "\n".join(lines[-MOST_LINES:])


def _read_tail(task: Task) -> list[str]:
    return str(read_output(task).get("tail") or "").splitlines()


def _list_parts(task: Task, records: RunRecords) -> Iterator[Task]:
    """Each subtask that has run since the task itself, and its subtasks, oldest first."""
    since = max((each.started_at for each in records.attempts.get(task.id, ())), default=None)
    for subtask in records.subtasks.get(task.id, ()):
        if since is None or (subtask.completed_at is not None and subtask.completed_at >= since):
            yield subtask
            yield from _list_parts(subtask, records)
