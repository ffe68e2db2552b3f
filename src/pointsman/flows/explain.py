"""What is wrong with the shape of a flow, in words: the models say it for programs, this says it for people."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from pointsman.engine.checks import brief
from pointsman.errors import nearest, suggest
from pointsman.flows.model import LATER, Backoff, Check, Defaults, Flow, FlowTask, Input, JsonSchemaCheck, Outputs
from pointsman.flows.remark import Path, Remark

INTERNAL = frozenset(("item", "index"))
_ELSEWHERE = {
    "needs": ("depends_on", "dependencies", "requires", "after"),
    "command": ("cmd", "argv"),
    "run": ("script", "shell", "bash"),
    "call": ("python", "function"),
    "with": ("args", "arguments", "kwargs"),
    "env": ("environment",),
    "cwd": ("working_directory", "workdir", "dir"),
    "when": ("if", "condition", "only_if"),
    "foreach": ("matrix", "for_each", "loop", "with_items"),
    "retries": ("retry", "max_retries", "attempts"),
    "outputs": ("output",),
    "expected_exit_codes": ("exit_codes",),
    "needs_capabilities": ("capabilities", "tags", "labels"),
    "budget_usd": ("budget",),
    "tasks": ("steps", "jobs"),
    "inputs": ("params", "parameters", "vars", "variables"),
    "ordered": ("sequential",),
    "description": ("title",),
}
_HABITS = {habit: key for key, habits in _ELSEWHERE.items() for habit in habits}
"""What other tools call it."""
_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_MAPPINGS = frozenset(kind for kind, words in _KINDS.items() if words == "a mapping")
_BOUNDS = {"greater_than_equal": ("ge", "at least"), "less_than_equal": ("le", "at most")}
_MODELS: dict[str, type[BaseModel]] = {
    "defaults": Defaults,
    "backoff": Backoff,
    "outputs": Outputs,
    "json_schema": JsonSchemaCheck,
}


def find_meant(path: Path) -> str | None:
    """The key that somebody who wrote an unknown one will have meant."""
    key, known = str(path[-1]), _keys_of(_model_at(path[:-1]))
    return next((name for name in (_HABITS.get(key, ""), *nearest(key, known)) if name in known), None)


def explain_key(path: Path) -> Remark:
    """An unknown key."""
    key, above = str(path[-1]), path[:-1]
    if meant := find_meant(path):
        advice = f"Did you mean {meant}?"
    elif above == ("defaults",) and key in _keys_of(FlowTask):
        advice = "Say it in the task itself."
    else:
        advice = suggest(key, _keys_of(_model_at(above)))
    return Remark("structure", path, f"`{key}` is not a key of {_owner(above)}.", advice, of_key=True)


def explain_internal(task: str, key: str) -> Remark:
    """A key that only the engine may set."""
    advice = f"`{key}` is what expressions of a task with `foreach` can use. Remove it here."
    return Remark("structure", ("tasks", task, key), f"`{key}` is not a key of task {task}.", advice, of_key=True)


def explain_missing(path: Path) -> Remark:
    """A key that is not there and must be."""
    owner = _owner(path[:-1])
    message = f"{owner[:1].upper()}{owner[1:]} has no `{path[-1]}`."
    return Remark("structure", path[:-1], message, f"Add `{path[-1]}:` to it.", of_key=True)


def explain_error(details: ErrorDetails, path: Path) -> Remark:
    """A value that is none for its key."""
    must, advice = _expectation(details)
    if path and path[-1] in LATER:
        return Remark("later", path, f"{must}.", advice, of_key=True)
    given = details["input"]
    was = "is empty" if given is None else f"is {brief(given)}"
    subject = _subject(path)
    if details["type"] in _MAPPINGS:
        advice = _advise_indent(path, given) or advice
    message = f"{subject} {was}, and {must}." if must.startswith("must") else f"{subject} {must}."
    return Remark("structure", path, message, advice)


def _advise_indent(path: Path, given: object) -> str:
    """Where a mapping is missing, what belongs into it mostly stands too far to the left."""
    match path:
        case ("tasks", str(name)) if given is None:
            return f"Write what belongs to {name} below it, and indent it further than `{name}:`."
        case ("tasks", str(name)) if name in _keys_of(FlowTask):
            return f"`{name}` is a key of a task: indent it further than the name of its task."
        case (*_, str(key)) if given is None:
            return f"Write what belongs to `{key}` below it, and indent it further than `{key}:`."
        case _:
            return ""


def _expectation(details: ErrorDetails) -> tuple[str, str]:
    """What a value must be, and what to do."""
    kind, context, given = details["type"], details.get("ctx", {}), details["input"]
    if kind == "value":
        return str(context["must"]), str(context["advice"])
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}", f"Write {_KINDS[kind]} here."
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"must be {words} {context[bound]}", "Write another number here."
    if kind == "literal_error":
        known = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        return f"must be one of {', '.join(known)}", suggest(str(given), known)
    return f"cannot be read: {details['msg'].lower()}", "Write another value here."


def _subject(path: Path) -> str:
    match path:
        case ():
            return "The file"
        case ("tasks", name):
            return f"Task {name}"
        case ("inputs", name):
            return f"Input {name}"
    at = max(index for index, step in enumerate(path) if isinstance(step, str))
    entry = "An entry of " if at < len(path) - 1 else ""
    return f"{entry}`{path[at]}`" + (f" of {_owner(path[:at])}" if at else "")


def _owner(path: Path) -> str:
    match path:
        case ("tasks", name):
            return f"task {name}"
        case ("inputs", name):
            return f"input {name}"
        case ("defaults",):
            return "defaults"
        case (*above, "checks", int()):
            return f"a check of {_owner(tuple(above))}"
        case (*above, str(key)):
            return f"`{key}` of {_owner(tuple(above))}"
        case (*above, int()):
            return _owner(tuple(above))
        case _:
            return "the flow"


def _model_at(path: Path) -> type[BaseModel]:
    match path:
        case ("tasks", _):
            return FlowTask
        case ("inputs", _):
            return Input
        case (*_, "checks", int()):
            return Check
        case (*_, key):
            return _MODELS.get(str(key), Flow)
        case _:
            return Flow


def _keys_of(model: type[BaseModel]) -> tuple[str, ...]:
    keys = (info.serialization_alias or name for name, info in model.model_fields.items())
    return tuple(key for key in keys if key not in INTERNAL and key not in LATER and not (model is Outputs and key == "from"))
