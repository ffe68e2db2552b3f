"""What a reviewer has to see of the changes in a work tree: those of a task, and those of its subtasks."""

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
    parts = list(_list_parts(task, records))
    for name, diff in parts:
        lines += [f"{name}:", *diff.splitlines()]
    more = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], f"… {more} more lines"] if parts and more > 0 else lines)


def _list_parts(task: Task, records: RunRecords) -> Iterator[tuple[str, str]]:
    """The name and the changes of each subtask, and of its subtasks, oldest first."""
    since = max((each.started_at for each in records.attempts.get(task.id, ())), default=None)
    for subtask in records.subtasks.get(task.id, ()):
        if since is None or (subtask.completed_at is not None and subtask.completed_at >= since):
            if diff := str(read_output(subtask).get("diff") or ""):
                yield subtask.name, diff
            yield from _list_parts(subtask, records)
