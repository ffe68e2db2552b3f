"""The items of a `foreach`, evaluated when the task is claimed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any

from pointsman.errors import ExpressionFailed
from pointsman.flows.expressions import Scope, evaluate
from pointsman.flows.functions import describe
from pointsman.flows.templates import render_value

MAX_ITEMS = 10_000


def list_items(foreach: Any, scope: Scope) -> list[Any]:
    """A list, the list of an expression, or every combination of several lists by name."""
    if isinstance(foreach, Mapping):
        axes = {name: _list(axis, scope) for name, axis in foreach.items()}
        _check_count(prod(len(axis) for axis in axes.values()))
        return [dict(zip(axes, combination, strict=True)) for combination in product(*axes.values())]
    items = _list(foreach, scope)
    _check_count(len(items))
    return items


def _list(source: Any, scope: Scope) -> list[Any]:
    if not isinstance(source, str):
        return [render_value(item, scope) for item in source]
    value = evaluate(source, scope)
    if not isinstance(value, list | tuple):
        raise ExpressionFailed(f"`foreach` needs a list, but `{source}` is {describe(value)}. Use keys(), values() or [ … ].")
    return list(value)


def _check_count(count: int) -> None:
    if count > MAX_ITEMS:
        raise ExpressionFailed(
            f"`foreach` has {count:,} items; at most {MAX_ITEMS:,} are allowed. Give each subtask more work."
        )
