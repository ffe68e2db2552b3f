"""Whether a flow makes sense as a whole: everything that the models cannot express."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path as Location

from pointsman.engine import checks
from pointsman.engine.json_schema import explain_invalid
from pointsman.engine.questions import Question
from pointsman.errors import FlowInvalid, LifecycleError, LifecycleInvalid, suggest
from pointsman.flows import kinds
from pointsman.flows.callables import explain_missing
from pointsman.flows.document import Path
from pointsman.flows.expressions import OPENING
from pointsman.flows.findings import Reporter
from pointsman.flows.inputs import explain_misfit
from pointsman.flows.items import MAX_ITEMS
from pointsman.flows.lifecycle import find_lifecycle, find_misfits
from pointsman.flows.model import CHECK_KINDS, FINAL_TASK, Check, Expects, Flow, FlowTask
from pointsman.flows.references import check_references
from pointsman.flows.templates import has_references, template_fields
from pointsman.kernel.machine import Lifecycle
from pointsman.settings import explain_target, explain_url

MOST_CYCLES = 10
MAX_NAME = 100
_NAME_ADVICE = f"Use one line of at most {MAX_NAME} characters without `[` and `]`; start with a letter, a digit or `_`."
_INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
_NOT_IN_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]")
_RESERVED = "POINTSMAN_"
OF_A_PROCESS = frozenset(("exit_code", "output"))


def check_flow(flow: Flow, tools: Collection[str] | None = None) -> Lifecycle:
    """Check a flow that was built in Python; its lifecycle, or FlowInvalid with every finding."""
    reporter = Reporter()
    lifecycle = FlowCheck(flow, reporter, tools=tools).run()
    if reporter.findings or lifecycle is None:
        raise FlowInvalid(reporter.findings)
    return lifecycle


class FlowCheck:
    """The checks of one flow. Findings that only follow from `damaged` values, which were left out, are not reported."""

    def __init__(
        self,
        flow: Flow,
        report: Reporter,
        damaged: Set[Path] = frozenset(),
        tools: Collection[str] | None = None,
        stored: Lifecycle | None = None,
    ) -> None:
        self.flow, self.report, self.damaged, self.tools, self.stored = flow, report, damaged, tools, stored
        self._above_damage = {path[:depth] for path in damaged for depth in range(1, len(path) + 1)}
        self._lost_keys: dict[Path, set[str]] = {}
        """By task, its keys that were left out."""
        for path in damaged:
            if len(path) > 2:
                self._lost_keys.setdefault(path[:2], set()).add(str(path[2]))

    def run(self) -> Lifecycle | None:
        """Report every finding; the lifecycle of the flow, if it is valid."""
        flow, report = self.flow, self.report
        lifecycle = self._check_lifecycle() if ("lifecycle",) not in self.damaged else None
        self._check_inputs()
        self._check_env(("env",), flow.env)
        self._check_env(("defaults", "env"), flow.defaults.env)
        self._check_checks(("defaults", "checks"), flow.defaults.checks)
        self._check_final_checks()
        self._check_worktrees()
        self._check_notify()
        if not is_name(flow.name):
            report("name", ("name",), f"'{flow.name}' is not a valid name for a flow.", _NAME_ADVICE)
        if not flow.tasks and not any(path[:1] == ("tasks",) for path in self.damaged):
            report("no-tasks", ("tasks",), "The flow has no tasks.", "Add one: `tasks: {hello: {run: echo hello}}`.")
        for name, task in flow.tasks.items():
            self._check_task(name, task)
            self._check_budget(name)
        self._check_needs()
        if not flow.ordered:
            self._check_cycles()
        check_references(flow, self.damaged, report)
        if self.tools is not None:
            self._check_tools(self.tools)
        return lifecycle

    def _check_tools(self, tools: Collection[str]) -> None:
        """A tool that comes from the defaults is reported there, once."""
        flow = self.flow
        if flow.defaults.tool is not None and any("tool" not in task.model_fields_set for task in flow.tasks.values()):
            self._check_tool(("defaults", "tool"), flow.defaults.tool, tools)
        for name, task in flow.tasks.items():
            if task.tool is not None:
                self._check_tool(("tasks", name, "tool"), task.tool, tools)
            elif (tool := flow.task(name).tool_name) not in (None, flow.defaults.tool) and tool not in tools:
                advice = f"{suggest(str(tool), tools)} Or define it in pointsman.toml of the project, under [agents.{tool}]."
                self.report("agent", ("tasks", name, "agent"), f"There is no agent '{tool}'.", advice)

    def _check_tool(self, path: Path, tool: str, tools: Collection[str]) -> None:
        if tool not in tools:
            meant = f"{suggest(tool, tools)} " if tools else ""
            advice = f"{meant}Define it in pointsman.toml of the project, under [tools.{tool}]; -C selects another project."
            self.report("tool", path, f"There is no tool '{tool}'.", advice)

    def _check_lifecycle(self) -> Lifecycle | None:
        flow, report, path = self.flow, self.report, ("lifecycle",)
        try:
            lifecycle = find_lifecycle(flow, self.stored)
        except LifecycleInvalid as error:
            first = str(error.findings[0]).splitlines()[0]
            advice = f"Run `pointsman machine check {flow.lifecycle}` for details."
            report("lifecycle", path, f"The lifecycle {flow.lifecycle} is invalid: {first}", advice)
            return None
        except LifecycleError as error:
            message, _, advice = str(error).partition(". ")
            report("lifecycle", path, f"{message.rstrip('.')}.", advice or "`pointsman machine list` shows the shipped ones.")
            return None
        for rule, key, message, advice in find_misfits(flow, lifecycle):
            report(rule, key, message, advice, of_key=True)
        return lifecycle

    def _check_inputs(self) -> None:
        for name, declared in self.flow.inputs.items():
            path = ("inputs", name)
            if not _INPUT_NAME.fullmatch(name):
                advice = "Use at most 100 letters, digits, `_` and `-`, and start with a letter."
                self.report("name", path, f"'{name}' is not a valid name for an input.", advice, of_key=True)
            for index, choice in enumerate(declared.choices or ()):
                if problem := explain_misfit(choice, declared.model_copy(update={"choices": None})):
                    message = f"A choice of {name} is invalid. {problem}"
                    self.report("input", (*path, "choices", index), message, _advise_value(problem))
            if (
                not declared.required
                and declared.default is not None
                and (problem := explain_misfit(declared.default, declared))
            ):
                message = f"The default of {name} is invalid. {problem}"
                self.report("input", (*path, "default"), message, _advise_value(problem))

    def _check_env(self, path: Path, env: Mapping[str, str]) -> None:
        for name in env:
            if not name or "=" in name or "\0" in name:
                message = f"'{name}' is not a valid name for a variable."
                self.report("env", (*path, name), message, "Remove the `=`.", of_key=True)
            elif name.startswith(_RESERVED):
                advice = f"Rename it; the worker sets the variables that start with {_RESERVED}."
                self.report("env", (*path, name), f"The variable {name} is reserved.", advice, of_key=True)

    def _check_task(self, name: str, task: FlowTask) -> None:
        path: Path = ("tasks", name)
        if not is_name(name):
            self.report("name", path, f"'{name}' is not a valid name for a task.", _NAME_ADVICE, of_key=True)
        if task.kind is None and not self._lost_its_kind(path):
            advice = (
                "Add a `command` (a list), a `run` (a shell script), a `call` (a Python function), an `agent` or an `approval`."
            )
            self.report("action", path, f"Task {name} does nothing.", advice, of_key=True)
        for key, message, advice in self.flow.task(name).check(task.model_fields_set):
            self.report("action", (*path, key), f"Task {name}: {message}", advice, of_key=True)
        if isinstance(function := getattr(task, "call", None), str):
            self._check_function("action", (*path, "call"), function)
        if "on_open_circuit" in task.model_fields_set and self.flow.task(name).tool_name is None:
            message = f"Task {name}: `on_open_circuit` has no effect without `tool`, which has the circuit."
            self.report("tool", (*path, "on_open_circuit"), message, "Add `tool`, or remove it.", of_key=True)
        self._check_env((*path, "env"), task.env)
        self._check_checks((*path, "checks"), task.checks)
        if task.expects is not None:
            self._check_expects((*path, "expects"), task.expects)
        for problem in checks.json("", [getattr(task, field) for field, _, content in template_fields(type(task)) if content]):
            message = f"Task {name} cannot be stored. {problem.message}"
            self.report("too-large", path, message, "Put large values into a file.", of_key=True)

    def _check_expects(self, path: Path, expects: Expects) -> None:
        question = Question("", tuple(expects.choices) if expects.choices else None, expects.default, expects.schema_)
        if question.schema is not None and (problem := explain_invalid(question.schema)):
            self.report("expects", (*path, "schema"), f"The schema is invalid at {problem}.", "Fix the JSON Schema.")
        elif question.suggestion is not None and (problem := question.explain_misfit(question.suggestion)):
            self.report("expects", path, problem, "Change the default, the choices or the schema.")

    def _lost_its_kind(self, path: Path) -> bool:
        """Whether the key that selects the kind was left out because its value is invalid."""
        return any(kinds.find_runner(key) for key in self._lost_keys.get(path, ()))

    def _check_budget(self, name: str) -> None:
        flow, budget = self.flow, self.flow.task(name).budget_usd
        if flow.budget_usd is not None and budget is not None and budget > flow.budget_usd:
            own = "budget_usd" in flow.tasks[name].model_fields_set
            path: Path = ("tasks", name, "budget_usd") if own else ("defaults", "budget_usd")
            message = f"Task {name} has a budget of {budget} USD, more than the whole flow: it could never start."
            self.report("budget", path, message, f"Lower it, or raise the budget of the flow above {flow.budget_usd}.")

    def _check_checks(self, path: Path, given: tuple[Check, ...]) -> None:
        for index, check in enumerate(given):
            at = (*path, index)
            given_kinds = check.kinds
            if len(given_kinds) > 1:
                message = f"A check has {' and '.join(f'`{kind}`' for kind in given_kinds)} at once."
                self.report("check", (*at, given_kinds[1]), message, "Make them two entries of `checks`.", of_key=True)
            elif not given_kinds and at not in self._above_damage:
                self.report("check", at, "A check checks nothing.", f"Add one of {', '.join(CHECK_KINDS)}.")
            if check.at_least is not None and check.glob is None:
                message = "`at_least` belongs to `glob`."
                self.report("check", (*at, "at_least"), message, "Remove it, or add a `glob`.", of_key=True)
            if check.command is not None and not check.command:
                self.report(
                    "check", (*at, "command"), "The command of a check is empty.", "Name a program: `[test, -s, FILE]`."
                )
            if check.call is not None:
                self._check_function("check", (*at, "call"), check.call)
            if check.json_schema is not None and not isinstance(check.json_schema.schema_, str):
                self._check_schema((*at, "json_schema", "schema"), check.json_schema.schema_)

    def _check_function(self, rule: str, path: Path, function: str) -> None:
        """The worker looks for modules in the folder of the project, which may be that of the flow or the current one."""
        folders = [Location(self.flow.file).parent] if self.flow.file else []
        if missing := explain_missing(function, [*folders, Location.cwd()]):
            self.report(rule, path, *missing)

    def _check_schema(self, path: Path, schema: object) -> None:
        if problem := explain_invalid(schema):
            self.report("check", path, f"The schema is invalid at {problem}.", "Fix the JSON Schema.")

    def _check_final_checks(self) -> None:
        """They follow no process of their own, and run as a task with a name of its own."""
        flow = self.flow
        self._check_checks(("checks",), flow.checks)
        for index, check in enumerate(flow.checks):
            for kind in OF_A_PROCESS.intersection(check.kinds):
                message = f"`{kind}` checks the process of a task, but this check is about the whole run."
                self.report("check", ("checks", index, kind), message, "Move it to the task.", of_key=True)
        if flow.checks and FINAL_TASK in flow.tasks:
            message = f"The checks of the whole run appear as the task `{FINAL_TASK}`, and this task has the same name."
            self.report("name", ("tasks", FINAL_TASK), message, "Rename it.", of_key=True)

    def _check_worktrees(self) -> None:
        flow = self.flow
        if flow.worktree is not None:
            self._check_branch(("worktree", "branch"), flow.worktree.branch)
        for name, task in flow.tasks.items():
            path: Path = ("tasks", name, "worktree")
            own = flow.worktree_of(name)
            if own is None:
                continue
            if flow.run_worktree is not None:
                message = f"Task {name} has a `worktree`, but the flow has one, in which all its tasks work."
                self.report("worktree", path, message, "Remove one of them.", of_key=True)
            self._check_branch((*path, "branch"), own.branch)
            if task.foreach is not None and own.branch is not None and not has_references(task, "worktree"):
                message = f"Task {name} has one worktree for each item, but the same branch for all of them."
                self.report("worktree", (*path, "branch"), message, "Add the item to its name: `fix-${{ index }}`.")

    def _check_branch(self, path: Path, branch: str | None) -> None:
        """A branch with expressions is checked when it is made."""
        if branch is not None and OPENING not in branch and not is_branch(branch):
            advice = "Use letters, digits, `-`, `_`, `.` and `/`, as in `fix/login`."
            self.report("worktree", path, f"'{branch}' is not a name that git accepts for a branch.", advice)

    def _check_notify(self) -> None:
        names: set[str] = set()
        for index, entry in enumerate(self.flow.notify):
            path: Path = ("notify", index)
            if path not in self._above_damage:
                for message, advice in explain_target(entry.model_fields_set):
                    self.report("notify", path, message, advice)
                if not entry.on:
                    self.report("notify", (*path, "on"), "It names no event.", "Add one: `on: run_ended`.")
            if entry.webhook is not None and (problem := explain_url(entry.webhook)):
                self.report("notify", (*path, "webhook"), f"`webhook` {problem}.", "Write a URL: https://example.org/hook")
            if entry.command is not None and not entry.command:
                self.report("notify", (*path, "command"), "The command is empty.", "Name a program: `[notify-send, done]`.")
            if (name := entry.name or str(index)) in names:
                self.report("notify", (*path, "name"), f"Another entry is called '{name}'.", "Rename it.")
            names.add(name)

    def _check_needs(self) -> None:
        flow, report = self.flow, self.report
        known = {*flow.tasks, *(str(path[1]) for path in self.damaged if len(path) == 2 and path[0] == "tasks")}
        for name, task in flow.tasks.items():
            path: Path = ("tasks", name, "needs")
            if flow.ordered and task.needs:
                message = f"Task {name} has `needs`, but the flow is ordered: each task waits for the one before it."
                report("ordered", path, message, "Remove `needs`, or remove `ordered` from the flow.", of_key=True)
                continue
            named: set[str] = set()
            for index, need in enumerate(task.needs):
                if need not in known:
                    message = f"Task {name} needs '{need}', but no task has that name."
                    advice = report.suggest(need, (other for other in flow.tasks if other != name))
                    report("unknown-task", (*path, index), message, advice)
                elif need in named:
                    report("needs", (*path, index), f"Task {name} needs {need} twice.", "Name it once.")
                named.add(need)

    def _check_cycles(self) -> None:
        """Every cycle; each is cut at one link to find the next."""
        flow = self.flow
        links = {name: [need for need in task.needs if need in flow.tasks] for name, task in flow.tasks.items()}
        order = {name: at for at, name in enumerate(flow.tasks)}
        for _ in range(MOST_CYCLES):
            try:
                TopologicalSorter(links).prepare()
            except CycleError as error:
                cycle: list[str] = error.args[1]  # each is needed by the next
            else:
                return
            reverse = cycle[-1:0:-1]  # each needs the next
            first = min(range(len(reverse)), key=lambda at: order[reverse[at]])
            cycle = [*reverse[first:], *reverse[:first], reverse[first]]
            name, need = cycle[:2]
            links[name].remove(need)
            path: Path = ("tasks", name, "needs", flow.tasks[name].needs.index(need))
            message = (
                f"Task {name} needs itself." if name == need else f"These tasks wait for each other: {' needs '.join(cycle)}."
            )
            self.report("circle", path, message, "Remove one of these needs.")


def is_name(name: str) -> bool:
    """One rule for flows and tasks. Subtasks have the name of their task and an index in brackets, and must fit as well."""
    fits = len(name) <= MAX_NAME and not any(checks.name("", f"{name}[{MAX_ITEMS}]"))
    begins = name[:1].isalnum() or name[:1] == "_"
    return fits and begins and name.isprintable() and name == name.strip() and not {*"[]"} & {*name}


def is_branch(name: str) -> bool:
    """Whether git accepts the name for a branch (git-check-ref-format)."""
    parts = name.split("/")
    if name.startswith("-") or name in ("@", "HEAD") or name.endswith(".") or ".." in name or "@{" in name:
        return False
    return not _NOT_IN_BRANCH.search(name) and all(
        part and not part.startswith(".") and not part.endswith(".lock") for part in parts
    )


def _advise_value(problem: str) -> str:
    if "must be text" in problem:
        return "Put it in quotes, or change the type."
    return "Change the default, or the choices." if "one of" in problem else "Change the value, or the type."
