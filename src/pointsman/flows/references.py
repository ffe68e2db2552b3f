"""The expressions of a flow: whether they can be parsed, and whether what they refer to will exist."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Set

from msgspec import Struct

from pointsman.errors import ExpressionFailed, suggest
from pointsman.flows.document import Path
from pointsman.flows.expressions import OPENING, Expression, split_text
from pointsman.flows.findings import Reporter
from pointsman.flows.items import list_items
from pointsman.flows.model import Flow, FlowTask
from pointsman.flows.results import RUN_FIELDS
from pointsman.flows.templates import Text, has_references, list_texts
from pointsman.flows.values import Content

TASK_FIELDS = ("outputs", "skipped")


class _Scope(Struct, frozen=True):
    """What the expressions of one task may refer to."""

    owner: str
    """The task; empty for the flow and its defaults."""
    tasks: Set[str] | None
    """The tasks that have ended by then; None where tasks cannot be referred to."""
    inputs: Set[str] | None
    """The declared inputs; None where they could not be read."""
    has_items: bool = False
    has_run: bool = True
    """Whether the run exists by then."""
    complete: bool = True
    """Whether `tasks` follows from needs that could all be read."""


def check_references(flow: Flow, damaged: Set[Path], report: Reporter) -> None:
    """Report every expression that cannot be parsed or refers to something that will not exist."""
    damaged_inputs = {str(path[1]) for path in damaged if len(path) > 1 and path[0] == "inputs"}
    inputs = None if ("inputs",) in damaged else {*flow.inputs, *damaged_inputs}
    common = _Scope("", None, inputs)
    env = (Text(("env", name), value, Content.TEXT) for name, value in flow.env.items())
    for text in (*env, *list_texts(flow.defaults, ("defaults",))):
        _Check(flow, report, text, common).run()
    description = Text(("task_description",), flow.task_description, Content.TEXT)
    _Check(flow, report, description, _Scope("", None, inputs, has_run=False)).run()
    for text in list_texts(flow.worktree, ("worktree",)) if flow.worktree else ():
        _Check(flow, report, text, common).run()
    if flow.final_task:
        final = _Scope("", {*flow.tasks}, inputs, complete=("tasks",) not in damaged)
        for text in list_texts(flow.final_task):
            _Check(flow, report, text, final).run()
    links = {name: tuple(_meant(need, flow, report) for need in needs) for name, needs in flow.links.items()}
    damaged_needs = {str(path[1]) for path in damaged if len(path) > 1 and path[0] == "tasks" and path[2:3] in ((), ("needs",))}
    for name, task in flow.tasks.items():
        texts = list(list_texts(task, ("tasks", name)))
        before = _Ancestors(name, links)
        has_items = task.foreach is not None or ("tasks", name, "foreach") in damaged
        scope = _Scope(name, before, inputs, has_items, complete=not damaged_needs or damaged_needs.isdisjoint({name, *before}))
        found = len(report)
        for text in texts:
            _Check(flow, report, text, scope).run()
        if task.foreach is not None and len(report) == found:
            _check_items(report, name, task)


def _check_items(report: Reporter, name: str, task: FlowTask) -> None:
    """The items of a `foreach` that refers to nothing are known already."""
    if has_references(task, "foreach"):
        return
    try:
        list_items(task.foreach, {})
    except ExpressionFailed as error:
        report("expression", ("tasks", name, "foreach"), *split_advice(str(error)))


def split_advice(problem: str) -> tuple[str, str]:
    """The message of a problem, and what to do: its last sentence, if it has several."""
    message, stop, advice = problem.rpartition(". ")
    return (f"{message}.", advice) if stop else (problem, "Fix the expression.")


def _meant(need: str, flow: Flow, report: Reporter) -> str:
    """The nearest task for a misspelt need, which is reported elsewhere."""
    return need if need in flow.tasks else next(iter(report.nearest(need, flow.tasks)), need)


class _Ancestors(Set[str]):
    """The tasks that a task waits for, searched only as far as a question needs: most expressions refer to a direct need."""

    def __init__(self, name: str, links: Mapping[str, tuple[str, ...]]) -> None:
        self._name, self._links = name, links

    def __contains__(self, wanted: object) -> bool:
        is_direct = wanted != self._name and wanted in self._links[self._name]
        return is_direct or any(wanted == found for found in self)

    def __iter__(self) -> Iterator[str]:
        """The nearest ones first."""
        found = {self._name}
        waiting = deque(self._links[self._name])
        while waiting:
            if (need := waiting.popleft()) not in found:
                found.add(need)
                yield need
                waiting += self._links.get(need, ())

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Check(Struct, frozen=True):
    """The check of one text."""

    flow: Flow
    report: Reporter
    text: Text
    scope: _Scope

    def run(self) -> None:
        text = self.text.text
        if OPENING not in text:
            if self.text.bare:
                self._check_expression(text, text.strip())
            return
        from pointsman.flows.shell import doubtful, explain_doubt  # late: most flows have no values in scripts

        try:
            parts = split_text(text)
            doubts = dict(doubtful(text)) if self.text.content is Content.SHELL else {}
        except ExpressionFailed as error:
            self._report(str(error), OPENING)
            return
        for part in parts:
            if part.is_expression:
                snippet = text[part.start : part.end]
                self._check_expression(part.text, snippet)
                if part.start in doubts:
                    self._report(explain_doubt(doubts[part.start]), snippet)

    def _check_expression(self, source: str, snippet: str) -> None:
        try:
            expression = Expression(source)
        except ExpressionFailed as error:
            self._report(str(error), snippet)
            return
        for root, first in sorted(expression.names()):
            if problem := self._explain_reference(root, first):
                self._report(problem, snippet)
        try:
            expression.check_constants()
        except ExpressionFailed as error:
            self._report(str(error), snippet)
        for task, field in sorted(expression.task_fields()):
            if field not in TASK_FIELDS:
                self._report(f"`tasks.{task}` has no `{field}`. {suggest(field, TASK_FIELDS)}", snippet)

    def _explain_reference(self, root: str, first: str) -> str | None:
        flow, scope = self.flow, self.scope
        match root:
            case "inputs" if first and scope.inputs is not None and first not in scope.inputs:
                return f"The flow has no input '{first}'. {suggest(first, flow.inputs)}"
            case "run" if not scope.has_run:
                return "The run does not exist yet. Refer to `inputs` only."
            case "run" if first not in RUN_FIELDS:
                return f"`run` has only {', '.join(f'`run.{field}`' for field in RUN_FIELDS)}. Use one of them."
            case "item" | "index" if not scope.has_items:
                return f"`{root}` exists only in a task with `foreach`. Add `foreach`, or remove it."
            case "item" | "index" if not self.text.per_item:
                return (
                    f"`{root}` does not exist yet: `when` and `foreach` are evaluated once, before there are items. Remove it."
                )
            case "tasks":
                return self._explain_task(first)
            case _:
                return None

    def _explain_task(self, first: str) -> str | None:
        flow, scope = self.flow, self.scope
        if scope.tasks is None:
            return "A value for every task cannot refer to one of them. Refer to `inputs` and `run` only."
        if not first:
            return 'The name of the task must be written out. Write `tasks.NAME` or `tasks["NAME"]`.'
        if first in scope.tasks or not scope.complete:
            return None
        if first == scope.owner:
            return f"Task {first} refers to itself. Refer to tasks that it needs."
        if first in flow.tasks:
            order = "comes later" if flow.ordered else "is not among its needs"
            advice = "Move it up." if flow.ordered else f"Add `{first}` to the `needs` of {scope.owner}."
            return f"Task {scope.owner} refers to {first}, which {order}. {advice}"
        meant = self.report.nearest(first, flow.tasks)
        hint = self.report.suggest(first, flow.tasks)
        if meant and not meant[0].isidentifier():
            hint = f'Did you mean `tasks["{meant[0]}"]`?'
        return f"There is no task '{first}'. {hint}"

    def _report(self, problem: str, snippet: str) -> None:
        self.report("expression", self.text.path, *split_advice(problem), snippet=snippet)
