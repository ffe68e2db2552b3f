"""The expressions of a flow: whether they can be read, and whether what they refer to will be there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from pointsman.errors import ExpressionFailed, nearest, suggest
from pointsman.flows.expressions import OPENING, Expression, split_text
from pointsman.flows.model import Check, Defaults, Flow, FlowTask
from pointsman.flows.remark import Path, Remark
from pointsman.flows.shell import doubtful, explain_doubt

RUN_FIELDS = ("id", "name")
TASK_FIELDS = ("outputs", "skipped")


@dataclass(frozen=True, slots=True)
class Written:
    """A text of a flow that may hold expressions."""

    path: Path
    text: str
    bare: bool = False
    """May be an expression without the braces."""
    is_shell: bool = False
    each: bool = True
    """Rendered once for each item, where there are items."""


@dataclass(frozen=True, slots=True)
class _Reach:
    """What expressions may refer to in one place."""

    owner: str
    tasks: Set[str] | None
    """The tasks that have ended by then; None where tasks cannot be referred to at all."""
    inputs: Set[str] | None
    """The declared inputs; None where they are not known for certain."""
    items: bool
    certain: bool = True
    """Whether the needs that it was told from are whole."""


def check_references(flow: Flow, damaged: Set[Path]) -> Iterator[Remark]:
    """Every expression that cannot be read or refers to something that will not be there."""
    hurt_inputs = {str(path[1]) for path in damaged if len(path) > 1 and path[0] == "inputs"}
    inputs = None if ("inputs",) in damaged else {*flow.inputs, *hurt_inputs}
    everywhere = _Reach("", None, inputs, items=False)
    for name, value in flow.env.items():
        yield from _check_text(flow, Written(("env", name), value), everywhere)
    for written in list_texts(flow.defaults, ("defaults",)):
        yield from _check_text(flow, written, everywhere)
    links = {name: tuple(_meant(need, flow) for need in needs) for name, needs in flow.links.items()}
    hurt = {str(path[1]) for path in damaged if len(path) > 1 and path[0] == "tasks" and path[2:3] in ((), ("needs",))}
    for name, task in flow.tasks.items():
        texts = list(list_texts(task, ("tasks", name)))
        # To follow the needs of each of many tasks takes long, and most refer to none.
        before = _ancestors(name, links) if any("tasks" in written.text for written in texts) else set()
        certain = hurt.isdisjoint({name, *before})
        for written in texts:
            has_items = written.each and (task.foreach is not None or ("tasks", name, "foreach") in damaged)
            yield from _check_text(flow, written, _Reach(name, before, inputs, items=has_items, certain=certain))


def _meant(need: str, flow: Flow) -> str:
    """A misspelt need is reported as such, and taken for the nearest here."""
    return need if need in flow.tasks else next(iter(nearest(need, flow.tasks)), need)


def _ancestors(name: str, links: Mapping[str, tuple[str, ...]]) -> set[str]:
    found: set[str] = set()
    waiting = list(links[name])
    while waiting:
        need = waiting.pop()
        if need not in found:
            found.add(need)
            waiting += links.get(need, ())
    return found - {name}


def list_texts(task: Defaults, path: Path) -> Iterator[Written]:
    """Every text of a task in which expressions are looked for."""
    for name, value in task.env.items():
        yield Written((*path, "env", name), value)
    if task.cwd is not None:
        yield Written((*path, "cwd"), task.cwd)
    if task.outputs is not None and task.outputs.file is not None:
        yield Written((*path, "outputs", "file"), task.outputs.file)
    for index, check in enumerate(task.checks):
        yield from _texts_of_check(check, (*path, "checks", index))
    if not isinstance(task, FlowTask):
        return
    if task.run is not None:
        yield Written((*path, "run"), task.run, is_shell=True)
    for index, argument in enumerate(task.command or ()):
        yield Written((*path, "command", index), argument)
    yield from _texts_within(task.with_, (*path, "with"))
    if task.when is not None:
        yield Written((*path, "when"), task.when, bare=True, each=False)
    yield from _texts_of_items(task.foreach, (*path, "foreach"))


def _texts_of_check(check: Check, path: Path) -> Iterator[Written]:
    for key in ("file", "glob", "output"):
        if (value := getattr(check, key)) is not None:
            yield Written((*path, key), value)
    if check.json_schema is not None:
        yield Written((*path, "json_schema", "file"), check.json_schema.file)
    if check.run is not None:
        yield Written((*path, "run"), check.run, is_shell=True)
    for index, argument in enumerate(check.command or ()):
        yield Written((*path, "command", index), argument)


def _texts_of_items(foreach: Any, path: Path) -> Iterator[Written]:
    if isinstance(foreach, str):
        yield Written(path, foreach, bare=True, each=False)
    elif isinstance(foreach, Mapping):
        for name, axis in foreach.items():
            yield from _texts_of_items(axis, (*path, name))
    elif foreach is not None:
        yield from (Written(each.path, each.text, each=False) for each in _texts_within(foreach, path))


def _texts_within(value: Any, path: Path) -> Iterator[Written]:
    if isinstance(value, str):
        yield Written(path, value)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts_within(each, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _texts_within(each, (*path, index))


def _check_text(flow: Flow, written: Written, reach: _Reach) -> Iterator[Remark]:
    if OPENING not in written.text:
        if written.bare:
            yield from _check_source(flow, written, written.text, written.text.strip(), reach)
        return
    try:
        parts = split_text(written.text)
        doubts = dict(doubtful(written.text)) if written.is_shell else {}
    except ExpressionFailed as error:
        yield _remark(written.path, str(error), OPENING)
        return
    for part in parts:
        if part.is_expression:
            snippet = written.text[part.start : part.end]
            yield from _check_source(flow, written, part.text, snippet, reach)
            if part.start in doubts:
                yield _remark(written.path, explain_doubt(doubts[part.start]), snippet)


def _check_source(flow: Flow, written: Written, source: str, snippet: str, reach: _Reach) -> Iterator[Remark]:
    try:
        expression = Expression(source)
    except ExpressionFailed as error:
        yield _remark(written.path, str(error), snippet)
        return
    for root, first in sorted(expression.names()):
        problem = _explain_reference(flow, root, first, reach, each=written.each)
        if problem:
            yield _remark(written.path, problem, snippet)
    for task, field in sorted(expression.task_fields()):
        if field not in TASK_FIELDS:
            advice = suggest(field, TASK_FIELDS)
            yield _remark(written.path, f"`tasks.{task}` has no `{field}`. {advice}", snippet)


def _explain_reference(flow: Flow, root: str, first: str, reach: _Reach, *, each: bool) -> str | None:
    match root:
        case "inputs" if first and reach.inputs is not None and first not in reach.inputs:
            return f"The flow has no input '{first}'. {suggest(first, flow.inputs)}"
        case "run" if first not in RUN_FIELDS:
            return f"`run` has only {' and '.join(f'`run.{field}`' for field in RUN_FIELDS)}. Use one of them."
        case "item" | "index" if not reach.items:
            if reach.owner and not each and flow.tasks[reach.owner].foreach is not None:
                return (
                    f"`{root}` is not known yet: `when` and `foreach` are settled once, before there are items. Leave it out."
                )
            return f"`{root}` is known only in a task with `foreach`. Add `foreach`, or leave it out."
        case "tasks":
            return _explain_task(flow, first, reach)
        case _:
            return None


def _explain_task(flow: Flow, first: str, reach: _Reach) -> str | None:
    if reach.tasks is None:
        return "What holds for every task cannot refer to one of them. Refer to `inputs` and `run` only."
    if not first:
        return 'It must be plain which task is meant. Write `tasks.NAME` or `tasks["NAME"]`.'
    if first in reach.tasks or not reach.certain:
        return None
    if first == reach.owner:
        return f"Task {first} refers to itself. Refer to tasks that it needs."
    if first in flow.tasks:
        order = "comes later" if flow.ordered else "is not among its needs"
        advice = "Move it up." if flow.ordered else f"Add `{first}` to the `needs` of {reach.owner}."
        return f"Task {reach.owner} refers to {first}, which {order}. {advice}"
    meant = nearest(first, flow.tasks)
    hint = f'Did you mean `tasks["{meant[0]}"]`?' if meant and not meant[0].isidentifier() else suggest(first, flow.tasks)
    return f"There is no task '{first}'. {hint}"


def _remark(path: Path, problem: str, snippet: str) -> Remark:
    message, stop, advice = problem.rpartition(". ")
    if not stop:
        message, advice = problem.rstrip("."), "Mend the expression."
    return Remark("expression", path, f"{message}.", advice, snippet=snippet)
