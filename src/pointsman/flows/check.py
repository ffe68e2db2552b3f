"""Whether a flow makes sense: everything that its shape alone does not say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter

from pointsman.engine import checks
from pointsman.errors import Finding, LifecycleError, LifecycleInvalid, suggest
from pointsman.flows.inputs import explain_misfit
from pointsman.flows.lifecycle import find_lifecycle, has_subtasks
from pointsman.flows.model import ACTIONS, CHECK_KINDS, LATER, Check, Flow, FlowTask
from pointsman.flows.references import check_references
from pointsman.flows.remark import Path, Remark

MOST_CIRCLES = 10
MAX_NAME = 100
_TASK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
_RESERVED = "POINTSMAN_"


def check_flow(flow: Flow) -> list[Finding]:
    """Every finding in a flow that was built in Python; each names its path, since there are no lines."""
    return [remark.finding() for remark in find_remarks(flow)]


def find_remarks(flow: Flow, damaged: Set[Path] = frozenset()) -> Iterator[Remark]:
    """Everything that is wrong; what follows only from the `damaged` parts, which were left out, is not said."""
    yield from _check_lifecycle(flow, damaged)
    yield from _check_inputs(flow)
    yield from _check_env(("env",), flow.env)
    yield from _check_env(("defaults", "env"), flow.defaults.env)
    yield from _check_checks(("defaults", "checks"), flow.defaults.checks, damaged)
    if not flow.name.isprintable() or len(flow.name) > MAX_NAME or any(checks.name("", flow.name)):
        message, advice = "The name of the flow is too long, or not one line of text.", f"Give it {MAX_NAME} letters at most."
        yield Remark("name", ("name",), message, advice)
    if not flow.tasks and not any(path[:1] == ("tasks",) for path in damaged):
        yield Remark("no-tasks", ("tasks",), "The flow has no tasks.", "Add one: `tasks: {hello: {run: echo hello}}`.")
    for name, task in flow.tasks.items():
        yield from _check_task(name, task, damaged)
    yield from _check_threads(flow)
    yield from _check_budgets(flow)
    yield from _check_needs(flow, damaged)
    yield from check_references(flow, damaged)


def check_tools(flow: Flow, tools: Collection[str]) -> Iterator[Remark]:
    """Tools that the settings do not describe; one that comes from the defaults is named there, and once."""
    if flow.defaults.tool is not None and any("tool" not in task.model_fields_set for task in flow.tasks.values()):
        yield from _check_tool(("defaults", "tool"), flow.defaults.tool, tools)
    for name, task in flow.tasks.items():
        if task.tool is not None:
            yield from _check_tool(("tasks", name, "tool"), task.tool, tools)


def _check_tool(path: Path, tool: str, tools: Collection[str]) -> Iterator[Remark]:
    if tool not in tools:
        meant = f"{suggest(tool, tools)} " if tools else ""
        advice = f"{meant}Describe it in the pointsman.toml of the project, under [tools.{tool}]; -C names another project."
        yield Remark("tool", path, f"There is no tool '{tool}'.", advice)


def _check_lifecycle(flow: Flow, damaged: Set[Path]) -> Iterator[Remark]:
    if ("lifecycle",) in damaged:
        return
    try:
        lifecycle = find_lifecycle(flow)
    except LifecycleInvalid as error:
        first = str(error.findings[0]).splitlines()[0]
        advice = f"`pointsman machine check {flow.lifecycle}` says more."
        yield Remark("lifecycle", ("lifecycle",), f"The lifecycle {flow.lifecycle} is not sound: {first}", advice)
        return
    except LifecycleError as error:
        message, _, advice = str(error).partition(". ")
        advice = advice or "`pointsman machine list` has those that are shipped."
        yield Remark("lifecycle", ("lifecycle",), f"{message.rstrip('.')}.", advice)
        return
    if has_subtasks(lifecycle):
        return
    for name, task in flow.tasks.items():
        if task.foreach is not None:
            message = f"Tasks of the lifecycle {lifecycle.name} cannot have subtasks, and `foreach` makes them."
            yield Remark("foreach", ("tasks", name, "foreach"), message, "Use the lifecycle standard.", of_key=True)


def _check_inputs(flow: Flow) -> Iterator[Remark]:
    for name, declared in flow.inputs.items():
        path = ("inputs", name)
        if not _INPUT_NAME.fullmatch(name):
            advice = "Use letters, digits, `_` and `-`, 100 at most, and begin with a letter."
            yield Remark("name", path, f"'{name}' cannot be the name of an input.", advice, of_key=True)
        for index, choice in enumerate(declared.choices or ()):
            if problem := explain_misfit(choice, declared.model_copy(update={"choices": None})):
                yield Remark(
                    "input", (*path, "choices", index), f"A choice of {name} does not fit. {problem}", _fitting(problem)
                )
        if not declared.required and declared.default is not None and (problem := explain_misfit(declared.default, declared)):
            yield Remark("input", (*path, "default"), f"The default of {name} does not fit. {problem}", _fitting(problem))


def _fitting(problem: str) -> str:
    if "must be text" in problem:
        return "Put it in quotes, or change the type."
    return "Change the default, or the choices." if "one of" in problem else "Change the value, or the type."


def _check_env(path: Path, env: Mapping[str, str]) -> Iterator[Remark]:
    for name in env:
        if not name or "=" in name or "\0" in name:
            yield Remark(
                "env", (*path, name), f"'{name}' cannot be the name of a variable.", "Leave `=` out of it.", of_key=True
            )
        elif name.startswith(_RESERVED):
            advice = "Give it another name; the worker sets those that begin so."
            yield Remark("env", (*path, name), f"The variable {name} is Pointsman's own.", advice, of_key=True)


def _check_task(name: str, task: FlowTask, damaged: Set[Path]) -> Iterator[Remark]:
    path: Path = ("tasks", name)
    if not _TASK_NAME.fullmatch(name):
        advice = "Use letters, digits, `_`, `-` and `.`, 100 at most, and begin with a letter or a digit."
        yield Remark("name", path, f"'{name}' cannot be the name of a task.", advice, of_key=True)
    yield from _check_action(name, task, damaged)
    yield from _check_env((*path, "env"), task.env)
    yield from _check_checks((*path, "checks"), task.checks, damaged)
    for problem in checks.json("", {"with": task.with_, "foreach": task.foreach, "text": [task.run, task.command, task.env]}):
        yield Remark(
            "too-large", path, f"Task {name} cannot be kept. {problem.message}", "Put large things into a file.", of_key=True
        )


def _check_action(name: str, task: FlowTask, damaged: Set[Path]) -> Iterator[Remark]:
    path: Path = ("tasks", name)
    given = [key for key in ACTIONS if getattr(task, key) is not None]
    hurt = any((*path, key) in damaged or any(at[:3] == (*path, key) for at in damaged) for key in (*ACTIONS, *LATER))
    if not given and not hurt:
        advice = "Give it a `command` (a list), a `run` (a shell script) or a `call` (a Python function)."
        yield Remark("action", path, f"Task {name} does nothing.", advice, of_key=True)
    for extra in given[1:]:
        message = f"Task {name} has `{extra}` beside `{given[0]}`."
        yield Remark("action", (*path, extra), message, "Keep one of them, and make the other a task of its own.", of_key=True)
    if task.call is None and not hurt:
        for key, field in (("with", "with_"), ("mode", "mode")):
            if field in task.model_fields_set:
                message = f"Task {name} has `{key}`, which belongs to `call`."
                yield Remark("action", (*path, key), message, "Remove it, or call a Python function.", of_key=True)
    if task.command is not None and not task.command and task.tool is None:
        yield Remark("action", (*path, "command"), f"The command of {name} is empty.", "Name a program: `[echo, hello]`.")


def _check_threads(flow: Flow) -> Iterator[Remark]:
    """What a function in a thread has to share with its worker cannot be its own."""
    for name, task in flow.tasks.items():
        if task.call is not None and flow.task(name).mode == "thread":
            for key in ("env", "cwd", "budget_usd"):
                if key in task.model_fields_set:
                    message = f"Task {name} has `{key}`, which has no effect on a function in a thread."
                    advice = "Hand the value over in `with`, or let it run in a process: `mode: process`."
                    yield Remark("action", ("tasks", name, key), message, advice, of_key=True)


def _check_budgets(flow: Flow) -> Iterator[Remark]:
    for name in flow.tasks:
        budget = flow.task(name).budget_usd
        if flow.budget_usd is not None and budget is not None and budget > flow.budget_usd:
            own = "budget_usd" in flow.tasks[name].model_fields_set
            path: Path = ("tasks", name, "budget_usd") if own else ("defaults", "budget_usd")
            message = f"Task {name} may spend {budget} USD, more than the whole flow: it could never begin."
            yield Remark("budget", path, message, f"Give it less, or the flow more than {flow.budget_usd}.")


def _check_checks(path: Path, given: tuple[Check, ...], damaged: Set[Path]) -> Iterator[Remark]:
    for index, check in enumerate(given):
        at = (*path, index)
        kinds = check.kinds
        if len(kinds) > 1:
            message = f"A check has {' and '.join(f'`{kind}`' for kind in kinds)} at once."
            yield Remark("check", (*at, kinds[1]), message, "Make them two entries of `checks`.", of_key=True)
        elif not kinds and not any(hurt[: len(at)] == at for hurt in damaged):
            yield Remark("check", at, "A check checks nothing.", f"Give it one of {', '.join(CHECK_KINDS)}.")
        if check.at_least is not None and check.glob is None:
            yield Remark(
                "check", (*at, "at_least"), "`at_least` belongs to `glob`.", "Remove it, or add a `glob`.", of_key=True
            )
        if check.command is not None and not check.command:
            yield Remark("check", (*at, "command"), "The command of a check is empty.", "Name a program: `[test, -s, FILE]`.")


def _check_needs(flow: Flow, damaged: Set[Path]) -> Iterator[Remark]:
    known = {*flow.tasks, *(str(path[1]) for path in damaged if len(path) == 2 and path[0] == "tasks")}
    for name, task in flow.tasks.items():
        path: Path = ("tasks", name, "needs")
        if flow.ordered and task.needs:
            message = f"Task {name} has `needs`, but the flow is ordered: each task waits for the one before it."
            yield Remark("ordered", path, message, "Remove `needs`, or remove `ordered` and let needs say it all.", of_key=True)
            continue
        for index, need in enumerate(task.needs):
            if need not in known:
                message = f"Task {name} needs {need}, which there is not."
                yield Remark(
                    "unknown-task", (*path, index), message, suggest(need, [other for other in flow.tasks if other != name])
                )
            elif need in task.needs[:index]:
                yield Remark("needs", (*path, index), f"Task {name} needs {need} twice.", "Name it once.")
    if not flow.ordered:
        yield from _find_circles(flow)


def _find_circles(flow: Flow) -> Iterator[Remark]:
    """Every circle, task by task; each is cut at one link to find the next."""
    links = {name: [need for need in task.needs if need in flow.tasks] for name, task in flow.tasks.items()}
    order = {name: at for at, name in enumerate(flow.tasks)}
    for _ in range(MOST_CIRCLES):
        try:
            TopologicalSorter(links).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1]  # each is needed by the one behind it
        else:
            return
        around = circle[-1:0:-1]  # now each needs the one behind it
        first = min(range(len(around)), key=lambda at: order[around[at]])
        circle = [*around[first:], *around[:first], around[first]]
        name, need = circle[:2]
        links[name].remove(need)
        path: Path = ("tasks", name, "needs", flow.tasks[name].needs.index(need))
        message = f"Task {name} needs itself." if name == need else f"These wait in a circle: {' needs '.join(circle)}."
        yield Remark("circle", path, message, "Remove one of these needs.")
