"""The inputs of a run: values from the command line or from Python, checked against the flow."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pointsman.engine.checks import brief
from pointsman.errors import Problem, RequestInvalid, suggest
from pointsman.flows.model import Flow, Input

_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_KINDS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "string": ("text", str),
    "integer": ("a whole number", int),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", bool),
    "list": ("a list, as JSON or separated by commas", (list, tuple)),
    "object": ("an object, as JSON", dict),
}


def check_inputs(flow: Flow, given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every input, converted to its declared type; RequestInvalid with every problem."""
    problems = [
        Problem(f"inputs.{name}", f"The flow {flow.name} has no input '{name}'. {suggest(name, flow.inputs)}")
        for name in given
        if name not in flow.inputs
    ]
    values: dict[str, Any] = {}
    for name, declared in flow.inputs.items():
        if name in given:
            value, problem = _read(given[name], declared)
        elif declared.required:
            value, problem = None, f"It is required. Pass `-i {name}=…`."
        else:
            value, problem = declared.default, None
        values[name] = value
        if problem:
            about = f" ({declared.description})" if declared.description else ""
            problems.append(Problem(f"inputs.{name}", f"{problem}{about}"))
    if problems:
        raise RequestInvalid(problems)
    return values


def explain_misfit(value: Any, declared: Input) -> str | None:
    """Why a value is invalid for this input; None if it is valid."""
    wanted, kinds = _KINDS[declared.type]
    truth = isinstance(value, bool) and declared.type != "boolean"
    if truth or not isinstance(value, kinds) or (isinstance(value, float) and not math.isfinite(value)):
        return f"It is {brief(value)}, but must be {wanted}."
    if declared.choices is not None and value not in declared.choices:
        return f"It is {brief(value)}, but must be one of {', '.join(map(brief, declared.choices))}."
    return None


def _read(given: Any, declared: Input) -> tuple[Any, str | None]:
    value = given
    if isinstance(given, str) and declared.type != "string":
        try:
            value = _parse(given.strip(), declared.type)
        except (ValueError, KeyError, RecursionError):
            return None, f"It is {brief(given)}, but must be {_KINDS[declared.type][0]}."
    if value is None and not declared.required and declared.default is None:
        return None, None
    return value, explain_misfit(value, declared)


def _parse(text: str, kind: str) -> Any:
    match kind:
        case "integer":
            return int(text)
        case "number":
            return float(text) if not text.lstrip("+-").isdigit() else int(text)
        case "boolean":
            return _TRUTHS[text.lower()]
        case "list" if not text.startswith(("[", "{")):
            return [word.strip() for word in text.split(",")] if text else []
        case _:
            return json.loads(text)
