"""Turns the validation errors of the models into findings for people."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from pointsman.engine.checks import brief
from pointsman.errors import nearest, suggest
from pointsman.flows import kinds
from pointsman.flows.document import Path
from pointsman.flows.findings import Reporter
from pointsman.flows.model import (
    Approval,
    Backoff,
    Check,
    Defaults,
    Expects,
    Flow,
    FlowTask,
    Input,
    JsonSchemaCheck,
    Notify,
    Outputs,
    Worktree,
)

OF_ITEMS = frozenset(("item", "index"))
INTERNAL = frozenset((*OF_ITEMS, *kinds.HIDDEN, "worktree_of", "shows_changes"))
"""Keys that only subtasks and hidden kinds of tasks have."""
_SYNONYMS = {
    "needs": ("depends_on", "dependencies", "requires", "after"),
    "env": ("environment",),
    "cwd": ("working_directory", "workdir", "dir"),
    "when": ("if", "condition", "only_if"),
    "foreach": ("matrix", "for_each", "loop", "with_items"),
    "retries": ("retry", "max_retries"),
    "max_attempts": ("attempts",),
    "outputs": ("output",),
    "expected_exit_codes": ("exit_codes",),
    "needs_capabilities": ("capabilities", "tags", "labels"),
    "budget_usd": ("budget",),
    "tasks": ("steps", "jobs"),
    "inputs": ("params", "parameters", "vars", "variables"),
    "ordered": ("sequential",),
    "description": ("title",),
}
"""Names that other tools give to the keys."""
_COMMON = {synonym: key for key, synonyms in _SYNONYMS.items() for synonym in synonyms}
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
    "approval": Approval,
    "defaults": Defaults,
    "backoff": Backoff,
    "expects": Expects,
    "outputs": Outputs,
    "json_schema": JsonSchemaCheck,
    "worktree": Worktree,
}


def find_meant(path: Path) -> str | None:
    """The key that was probably meant by an unknown one."""
    key, known = str(path[-1]), _keys_at(path[:-1])
    synonyms = {**_COMMON, **{name: meant for model in kinds.list_models().values() for name, meant in model.synonyms.items()}}
    return next((name for name in (synonyms.get(key, ""), *nearest(key, known)) if name in known), None)


def explain_key(report: Reporter, path: Path, siblings: Collection[str]) -> None:
    """Report an unknown key; `siblings` are the keys beside it."""
    key, above = str(path[-1]), path[:-1]
    if above[:-1] == ("tasks",) and key in _keys_at(above):
        _explain_kind(report, path, siblings)
        return
    if meant := find_meant(path):
        advice = f"Did you mean {meant}?"
    elif above == ("defaults",) and key in _keys_at(("tasks", "")):
        advice = "Set it in the tasks themselves."
    else:
        advice = suggest(key, _keys_at(above))
    report("structure", path, f"`{key}` is not a key of {_owner(above)}.", advice, of_key=True)


def _explain_kind(report: Reporter, path: Path, siblings: Collection[str]) -> None:
    """Report a key of another kind of task."""
    key, models = str(path[-1]), kinds.list_models()
    if key in models:
        chosen = kinds.find_model(siblings)
        message, advice = (
            f"has `{key}` beside `{chosen.kind if chosen else ''}`.",
            "Keep one of them, and move the other to a task of its own.",
        )
    else:
        kind = next(kind for kind, model in models.items() if key in kinds.keys_of(model))
        message, advice = f"has `{key}`, which belongs to `{kind}`.", f"Remove it, or use `{kind}`."
    report("action", path, f"Task {path[1]} {message}", advice, of_key=True)


def explain_internal(report: Reporter, task: str, key: str) -> None:
    """Report a key that only a subtask has."""
    advice = f"Expressions of a task with `foreach` can use `{key}`. Remove it here." if key in OF_ITEMS else "Remove it."
    report("structure", ("tasks", task, key), f"`{key}` is not a key of task {task}.", advice, of_key=True)


def explain_error(report: Reporter, details: ErrorDetails, path: Path) -> None:
    """Report a key that is missing, or a value that is invalid."""
    if details["type"] == "missing":
        above, key = tuple(details["loc"][:-1]), details["loc"][-1]
        owner = _owner(above)
        report("structure", above, f"{owner[:1].upper()}{owner[1:]} has no `{key}`.", f"Add `{key}:` to it.", of_key=True)
        return
    must, advice = _expectation(details)
    given = details["input"]
    was = "is empty" if given is None else f"is {brief(given)}"
    if details["type"] in _MAPPINGS:
        advice = _advise_indent(path, given) or advice
    subject = _subject(path)
    message = f"{subject} {was}, but {must}." if must.startswith("must") else f"{subject} {must}."
    report("structure", path, message, advice)


def _advise_indent(path: Path, given: object) -> str:
    """Where a mapping is missing, its content is usually not indented enough."""
    match path:
        case ("tasks", str(name)) if given is None:
            return f"Write the keys of {name} below it, indented further than `{name}:`."
        case ("tasks", str(name)) if name in _keys_at(path):
            return f"`{name}` is a key of a task: indent it further than the name of its task."
        case (*_, str(key)) if given is None:
            return f"Write the keys of `{key}` below it, indented further than `{key}:`."
        case _:
            return ""


def _expectation(details: ErrorDetails) -> tuple[str, str]:
    """What the value must be, and what to do."""
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
        case ("notify", int()):
            return "an entry of `notify`"
        case (*above, str(key)):
            return f"`{key}` of {_owner(tuple(above))}"
        case (*above, int()):
            return _owner(tuple(above))
        case _:
            return "the flow"


def _keys_at(path: Path) -> tuple[str, ...]:
    """The known keys of the mapping at a path."""
    models: list[type[BaseModel]] = [Flow]
    match path:
        case ("tasks", _):
            models = [FlowTask, *kinds.list_models().values()]
        case ("inputs", _):
            models = [Input]
        case (*_, "checks", int()):
            models = [Check]
        case ("notify", int()):
            models = [Notify]
        case (*_, key) if key in _MODELS:
            models = [_MODELS[str(key)]]
    hidden = {*INTERNAL, *(("from",) if models == [Outputs] else ()), "wanted"}
    return tuple(dict.fromkeys(key for model in models for key in kinds.keys_of(model) if key not in hidden))
