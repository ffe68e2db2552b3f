"""What an attempt leaves for its worker: a question for a person ($POINTSMAN_QUESTION), and subtasks ($POINTSMAN_SUBTASKS)."""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace
from pydantic import ValidationError

from pointsman.engine.json_schema import explain_invalid
from pointsman.engine.questions import Question
from pointsman.engine.submit import NewTask
from pointsman.errors import suggest
from pointsman.flows.build import Tool, build_subtask
from pointsman.flows.check import is_name
from pointsman.flows.explain import INTERNAL
from pointsman.flows.model import Expects, read_task
from pointsman.flows.shape import explain_task
from pointsman.worker.runner import read_file
from pointsman.worker.transcript import printable
from pointsman.worker.worktrees import Place

MAX_SUBTASKS = 10_000
NOTHING: Mapping[str, Any] = MappingProxyType({})
UNUSABLE = INTERNAL | {"worktree"}
"""A subtask works in the worktree of its task."""


def read_question(path: str, expects: Expects | None) -> tuple[Question | None, str | None]:
    """The question in a file (None if there is none), and what is wrong with it."""
    content, problem = read_file(path)
    if problem or content is None:
        return None, problem
    text = content.decode("utf-8", "replace").strip()
    try:
        question = _parse(text)
    except msgspec.ValidationError as error:
        return None, f"its question is invalid: {error}"
    return check_question(question, expects)


def check_question(question: Question, expects: Expects | None) -> tuple[Question | None, str | None]:
    """A question with what its task expects of the answer; or what is wrong with it."""
    if not question.text.strip():
        return None, "its question has no text"
    offered = [*question.options, *([question.suggestion] if question.suggestion is not None else [])]
    if any(printable(each) != each for each in offered):
        return None, "a choice or the default of its question has control characters, which no person can see or type"
    question = replace(question, text=printable(question.text))
    if expects is not None:
        question = replace(
            question,
            choices=question.choices if question.choices is not None or not expects.choices else tuple(expects.choices),
            default=question.default if question.default is not None else expects.default,
            schema=question.schema or expects.schema_,
        )
    invalid = explain_invalid(question.schema) if question.schema is not None else None
    return (None, f"its question has an invalid schema at {invalid}") if invalid else (question, None)


def _parse(text: str) -> Question:
    """A JSON object or text; anything else is the text of the question itself."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return Question(text)
    return msgspec.convert(value, Question) if isinstance(value, dict) else Question(value if isinstance(value, str) else text)


def read_subtasks(
    path: str, parent: str, tools: Mapping[str, Tool], place: Place | None = None, shared: Mapping[str, Any] = NOTHING
) -> tuple[tuple[NewTask, ...], str | None]:
    """The subtasks in a file, one JSON object per line, and what is wrong with them; all of them get the `shared` keys."""
    content, problem = read_file(path)
    if problem or content is None:
        return (), problem
    lines = [line for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
    if len(lines) > MAX_SUBTASKS:
        return (), f"it added {len(lines):,} subtasks, and at most {MAX_SUBTASKS:,} are allowed"
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        try:
            keys = json.loads(line)
        except ValueError as error:
            return (), f"line {number} of its subtasks ({path}) is not JSON: {error}"
        if wrong := explain_subtask(keys) or explain_place(keys, found):
            return (), f"line {number} of its subtasks ({path}) is invalid: {wrong}"
        found[keys.pop("name")] = keys
    return tuple(_build(found, parent, tools, {**shared, **_share(place)})), None


def explain_subtask(keys: Any) -> str | None:
    """Why an object is no subtask."""
    if not isinstance(keys, dict) or not isinstance(name := keys.get("name"), str):
        return "it is no object with a `name`"
    if not is_name(name):
        return f"'{name}' is not a valid name for a task"
    given = {key: value for key, value in keys.items() if key != "name"}
    if unusable := sorted(given.keys() & UNUSABLE):
        return f"`{unusable[0]}` is not a key of a subtask"
    try:
        task = read_task(given)
    except ValidationError as error:
        finding = explain_task(name, given, error)
        return f"{finding.message} {finding.advice}".strip().removesuffix(".")
    return "it does nothing; give it a program, a script or a function" if task.kind is None else None


def explain_tool(keys: Mapping[str, Any], tools: Collection[str]) -> str | None:
    """Why a subtask cannot use its tool."""
    tool = keys.get("tool")
    return None if tool is None or tool in tools else f"there is no tool '{tool}'. {suggest(str(tool), tools)}".strip()


def as_sentence(wrong: str) -> str:
    """What is wrong with something that an attempt leaves, for the one who wrote it."""
    return f"{wrong[0].upper()}{wrong[1:]}{'' if wrong.endswith(('.', '?')) else '.'}"


def list_added(path: str) -> set[str]:
    """The names of the subtasks in a file; lines that are no subtasks are left to `read_subtasks`."""
    content, _ = read_file(path)
    names: set[str] = set()
    for line in (content or b"").decode("utf-8", "replace").splitlines():
        try:
            keys = json.loads(line)
        except ValueError:
            continue
        if isinstance(keys, dict) and isinstance(name := keys.get("name"), str):
            names.add(name)
    return names


def explain_place(keys: Mapping[str, Any], found: Container[str]) -> str | None:
    """Why a subtask does not fit to those before it."""
    if keys["name"] in found:
        return f"there is another subtask '{keys['name']}'"
    unknown = [need for need in _list_needs(keys) if need not in found]
    return f"it needs '{unknown[0]}', but no subtask before it has that name" if unknown else None


def _list_needs(keys: Mapping[str, Any]) -> tuple[str, ...]:
    """Numbers are names, too, as in a flow."""
    needs = keys.get("needs", ())
    return tuple(map(str, needs if isinstance(needs, list | tuple) else (needs,)))


def _build(
    found: Mapping[str, dict[str, Any]], parent: str, tools: Mapping[str, Tool], shared: Mapping[str, Any]
) -> Iterator[NewTask]:
    for name, keys in found.items():
        full = [f"{parent}/{need}" for need in _list_needs(keys)]
        yield build_subtask(f"{parent}/{name}", read_task({**keys, **shared, "needs": full}), parent, tools)


def _share(place: Place | None) -> dict[str, Any]:
    """Subtasks work where their task does: in its worktree, which is merged when they are done."""
    if place is None or place.task is None:
        return {}
    keys = {"base": place.base, "branch": place.branch, "merge": place.merge}
    return {"worktree": {key: value for key, value in keys.items() if value is not None}, "worktree_of": place.task}
