"""A task with the values of its expressions put in, and what they refer to: for whoever is about to do it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pointsman.flows.expressions import OPENING, Expression, Reference, Scope, render_shell, split_text
from pointsman.flows.functions import as_text
from pointsman.flows.items import render_value
from pointsman.flows.model import Check, FlowTask, JsonSchemaCheck, Outputs

BARE = frozenset(("when", "foreach"))
"""These are expressions also without braces."""
REFERRING = BARE | {"run", "command", "env", "cwd", "with_", "outputs", "checks"}
"""The fields in which expressions may stand."""


def refers_to(task: FlowTask) -> set[str]:
    """The names of the tasks whose results its expressions ask for."""
    return {first for root, first in _references(task) if root == "tasks" and first}


def render_task(task: FlowTask, scope: Scope) -> FlowTask:
    """The task without any expression left; ExpressionFailed where one has no value."""
    changes: dict[str, Any] = {}
    if task.run is not None:
        changes["run"] = render_shell(task.run, scope)
    if task.command is not None:
        changes["command"] = tuple(render_text(each, scope) for each in task.command)
    if task.cwd is not None:
        changes["cwd"] = render_text(task.cwd, scope)
    if task.env:
        changes["env"] = {name: render_text(value, scope) for name, value in task.env.items()}
    if task.with_:
        changes["with_"] = render_value(task.with_, scope)
    if task.outputs is not None and task.outputs.file is not None:
        changes["outputs"] = task.outputs.model_copy(update={"file": render_text(task.outputs.file, scope)})
    if task.checks:
        changes["checks"] = tuple(_render_check(check, scope) for check in task.checks)
    return task.model_copy(update=changes) if changes else task


def render_text(text: str, scope: Scope) -> str:
    """A text with the values put in, also where it is one expression and nothing else."""
    value = render_value(text, scope)
    return value if isinstance(value, str) else as_text(value)


def _render_check(check: Check, scope: Scope) -> Check:
    changes: dict[str, Any] = {}
    for field in ("file", "glob", "output"):
        if (text := getattr(check, field)) is not None:
            changes[field] = render_text(text, scope)
    if check.command is not None:
        changes["command"] = tuple(render_text(each, scope) for each in check.command)
    if check.run is not None:
        changes["run"] = render_shell(check.run, scope)
    if check.json_schema is not None:
        changes["json_schema"] = check.json_schema.model_copy(update={"file": render_text(check.json_schema.file, scope)})
    return check.model_copy(update=changes)


def _references(task: FlowTask) -> Iterator[Reference]:
    for field in REFERRING & task.model_fields_set:
        value = getattr(task, field)
        if field in BARE and isinstance(value, str) and OPENING not in value:
            yield from Expression(value).names()
        else:
            yield from _references_in(value)


def _references_in(value: Any) -> Iterator[Reference]:
    match value:
        case str():
            for part in split_text(value) if OPENING in value else ():
                if part.is_expression:
                    yield from Expression(part.text).names()
        case Mapping():
            for each in value.values():
                yield from _references_in(each)
        case list() | tuple():
            for each in value:
                yield from _references_in(each)
        case Check() | Outputs() | JsonSchemaCheck():
            yield from _references_in(dict(value))
        case _:
            pass
