"""What a program can do from inside a task: ask a person, and add subtasks. It only reads and writes files of its attempt.

This module imports nothing of Pointsman, so that a task starts quickly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def ask(
    text: str, *, choices: Sequence[Any] | None = None, default: Any = None, schema: Mapping[str, Any] | None = None
) -> Any:
    """The answer of a person to a question.

    The first attempt ends here, and the task is blocked until a person answers. The next attempt starts from its beginning and
    gets the answer here, so ask before the work that should not be repeated. Each question of a task needs its own text.
    """
    answers = _read_answers()
    if text in answers:
        return _as_value(answers[text], choices, schema)
    question = {"text": text, "choices": choices and list(choices), "default": default, "schema": schema}
    _write("POINTSMAN_QUESTION", json.dumps({key: value for key, value in question.items() if value is not None}), "w")
    raise SystemExit(0)


def add_task(name: str, **keys: Any) -> None:
    """Add a subtask with the keys of a task in a flow: `add_task("part", run="make part", retries=2)`.

    Subtasks start when this task has succeeded. It is blocked until they have ended. `needs` names other subtasks of this task.
    """
    _write("POINTSMAN_SUBTASKS", json.dumps({"name": name, **keys}) + "\n", "a")


def _read_answers() -> dict[str, str]:
    path = os.environ.get("POINTSMAN_ANSWERS")
    return dict(json.loads(Path(path).read_text("utf-8"))) if path else {}


def _as_value(answer: str, choices: Sequence[Any] | None, schema: Mapping[str, Any] | None) -> Any:
    """The choice that was meant, the JSON value that a schema describes, or the text."""
    if choices is not None:
        return next((choice for choice in choices if answer in (choice, json.dumps(choice))), answer)
    if schema is None:
        return answer
    try:
        return json.loads(answer)
    except ValueError:
        return answer


def _write(variable: str, text: str, mode: str) -> None:
    path = os.environ.get(variable)
    if path is None:
        raise RuntimeError(f"This is no process of a task: ${variable} is not set. A function in a thread has no such file.")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, mode, encoding="utf-8") as file:  # noqa: PTH123 - the mode is a variable
        file.write(text)
