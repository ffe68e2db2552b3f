"""The fields of a task that may hold expressions: finding their texts, and putting values in.

A model marks such fields with a `Content`, so the keys of every kind of task are handled alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel

from pointsman.flows.document import Path
from pointsman.flows.expressions import OPENING, Expression, Scope, render, render_shell, split_text
from pointsman.flows.functions import as_text
from pointsman.flows.kinds import keys_of
from pointsman.flows.model import FlowTask, TaskOptions
from pointsman.flows.values import Content, content_of

Model = TypeVar("Model", bound=BaseModel)
_NESTED = ("outputs", "checks", "json_schema", "approval", "worktree")
"""Fields with models that have such fields."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that may hold expressions."""

    path: Path
    text: str
    content: Content
    bare: bool = False
    """It may be an expression without the braces."""

    @property
    def per_item(self) -> bool:
        """Whether it is rendered once for each item of a `foreach`."""
        return self.content is not Content.EXPRESSION


@cache
def template_fields(model: type[BaseModel]) -> tuple[tuple[str, str, Content | None], ...]:
    """The fields that may hold expressions, with their keys; no content for a field with a model of its own."""
    found = ((field, key, content_of(model.model_fields[field])) for key, field in keys_of(model).items())
    return tuple((field, key, content) for field, key, content in found if content or field in _NESTED)


def list_texts(model: BaseModel, path: Path = ()) -> Iterator[Text]:
    """Every text of a task, or of the defaults, that may hold expressions."""
    for field, key, content in template_fields(type(model)):
        value, at = getattr(model, field), (*path, key)
        if not value:
            continue
        if content is not None:
            yield from _texts_in(value, at, content, bare=content is Content.EXPRESSION)
        elif isinstance(value, BaseModel):
            yield from list_texts(value, at)
        else:
            for index, each in enumerate(value):
                yield from list_texts(each, (*at, index))


def _texts_in(value: Any, path: Path, content: Content, *, bare: bool = False) -> Iterator[Text]:
    if isinstance(value, str):
        yield Text(path, value, content, bare)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts_in(each, (*path, str(key)), content, bare=bare)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _texts_in(each, (*path, index), content)


def refers_to(task: TaskOptions) -> set[str]:
    """The names of the tasks whose results its expressions use."""
    sources = (source for text in list_texts(task) if "tasks" in text.text for source in _expressions(text))
    return {first for source in sources for root, first in Expression(source).names() if root == "tasks" and first}


def has_references(task: TaskOptions, key: str) -> bool:
    """Whether the expressions under a key refer to anything."""
    sources = (source for text in list_texts(task) if text.path[0] == key for source in _expressions(text))
    return any(Expression(source).names() for source in sources)


def _expressions(text: Text) -> Iterator[str]:
    if text.bare and OPENING not in text.text:
        yield text.text
    else:
        yield from (part.text for part in split_text(text.text) if part.is_expression)


def render_task(task: FlowTask, scope: Scope) -> FlowTask:
    """The task with the values of all expressions put in; ExpressionFailed where one has no value."""
    return _render_model(task, scope)


def _render_model(model: Model, scope: Scope) -> Model:
    changes: dict[str, Any] = {}
    for field, _, content in template_fields(type(model)):
        value = getattr(model, field)
        if not value or content is Content.EXPRESSION:
            continue
        if content is not None:
            changes[field] = _render(value, content, scope)
        elif isinstance(value, BaseModel):
            changes[field] = _render_model(value, scope)
        else:
            changes[field] = tuple(_render_model(each, scope) for each in value)
    return model.model_copy(update=changes) if changes else model


def _render(value: Any, content: Content, scope: Scope) -> Any:
    match value:
        case str():
            return render_shell(value, scope) if content is Content.SHELL else _render_text(value, content, scope)
        case tuple():
            return tuple(_render(each, content, scope) for each in value)
        case list():
            return [_render(each, content, scope) for each in value]
        case Mapping():
            return {key: _render(each, content, scope) for key, each in value.items()}
        case _:
            return value


def _render_text(text: str, content: Content, scope: Scope) -> Any:
    value = render(text, scope)
    return value if isinstance(value, str) or content is Content.DATA else as_text(value)


def render_text(text: str, scope: Scope) -> str:
    """A text with the values put in, also where it is a single expression."""
    return str(_render_text(text, Content.TEXT, scope))


def render_value(value: Any, scope: Scope) -> Any:
    """Any JSON with the values put into its texts; a text that is a single expression becomes its value."""
    return _render(list(value) if isinstance(value, tuple) else value, Content.DATA, scope)
