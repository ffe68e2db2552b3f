"""What expressions see of their run (`run.name`) and of other tasks (`tasks.NAME.outputs`, `tasks.NAME.skipped`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pointsman.store.rows import Result

RUN_FIELDS = ("id", "name", "task_description")


def describe_run(run_id: str, name: str, payload: Any) -> dict[str, str]:
    """The fields of `run`. Only a job has a description of its task."""
    return dict(zip(RUN_FIELDS, (run_id, name, describe_job(payload) or ""), strict=True))


def describe_job(payload: Any) -> str | None:
    """What a job is to do, from the payload of its run."""
    return payload.get("task_description") if isinstance(payload, Mapping) else None


def describe_result(name: str, results: Sequence[Result]) -> dict[str, Any]:
    """`outputs` and `skipped` of a task; the outputs of a task with subtasks for items are a list."""
    own = next((result for result in results if result.name == name and result.parent is None), None)
    own = own or next((result for result in results if result.name == name), None)
    subtasks = [_read(result) for result in results if result.parent == name]
    if own is None:
        return {"outputs": None, "skipped": False}
    output = _read(own)
    # When a person skips a task, the tasks that need it still run.
    skipped = output.get("skipped", False) or (own.trigger == "skip" and own.by_worker)
    outputs = [subtask.get("outputs") for subtask in subtasks] if "items" in output else output.get("outputs")
    return {"outputs": outputs, "skipped": bool(skipped)}


def _read(result: Result) -> dict[str, Any]:
    output = msgspec.json.decode(result.output) if result.output else None
    return output if isinstance(output, dict) else {"outputs": output}
