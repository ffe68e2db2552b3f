"""`pointsman flow`: check, show and draw flow files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import click

from pointsman.cli.group import Commands, wants_color
from pointsman.cli.output import (
    choose_form,
    count,
    describe_finding,
    echo,
    fail,
    format_option,
    hand_out,
    json_option,
    show_finding,
    show_table,
)
from pointsman.errors import Finding, FlowInvalid, FlowUnreadable, SettingsInvalid
from pointsman.flows.draw import FORMATS, draw_flow
from pointsman.flows.load import load_flow
from pointsman.flows.model import Flow, FlowTask, Input
from pointsman.flows.plan import describe_action, describe_dag, describe_plan, find_stages
from pointsman.flows.schema import build_schema
from pointsman.kernel.grammar import format_duration
from pointsman.settings import load_settings

file_argument = click.argument("file", metavar="FILE")
directory_option = click.option(
    "--directory",
    "-C",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The project whose tools the flow uses (default: the one around the file).",
)


@click.group(cls=Commands)
def command() -> None:
    """Check, show and draw flow files."""


@command.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@directory_option
@json_option
def check(files: tuple[str, ...], *, directory: Path | None, as_json: bool) -> int:
    """Verify flow files.

    Every finding has its line and column, and says what to do. Tools must be declared in the settings of the project around
    the file. Exit code 0: valid, 1: findings, 2: a file cannot be read.

    \b
    Examples:
      pointsman flow check flow.yaml
      pointsman flow check flows/*.yaml --json
    """
    worst = 0
    reports = []
    for file in files:
        findings: tuple[Finding, ...] = ()
        error = None
        try:
            flow = load_flow(Path(file), tools=_find_tools(file, directory))
        except FlowInvalid as invalid:
            findings = invalid.findings
            worst = max(worst, 1)
        except (FlowUnreadable, SettingsInvalid) as unreadable:
            error = str(unreadable)
            worst = 2
        if as_json:
            reports.append({"file": file, "error": error, "findings": [describe_finding(each) for each in findings]})
        elif error:
            fail(error)
        elif findings:
            for finding in findings:
                show_finding(finding)
            echo(f"{file}: {count(len(findings), 'finding')}", err=True)
        else:
            size = f"{count(len(flow.tasks), 'task')} in {count(len(find_stages(flow)), 'stage')}"
            echo(f"{click.style('valid', fg='green')}  {file}: {flow.name}, {size}")
    if as_json:
        echo(json.dumps(reports, indent=2))
    return worst


@command.command()
@file_argument
@directory_option
@json_option
def show(file: str, *, directory: Path | None, as_json: bool) -> int:
    """Show the inputs and tasks of a flow, and the stages in which they run.

    \b
    Examples:
      pointsman flow show flow.yaml
      pointsman flow show flow.yaml --json
    """
    flow = _load(file, as_json=as_json)
    if flow is None:
        return 1
    if as_json:
        echo(json.dumps(describe_flow(flow), indent=2, default=str))
        return 0
    order = ", in the order of the file" if flow.ordered else ""
    echo(f"{click.style(flow.name, bold=True)}  lifecycle {flow.lifecycle}{order}")
    if flow.description:
        echo(flow.description)
    if flow.inputs:
        echo()
        show_table(("input", "type", "default", ""), [_input_row(name, declared) for name, declared in flow.inputs.items()])
    echo()
    links = flow.links
    tools = _find_tools(file, directory)
    rows = [
        _task_row(number, name, flow.task(name), links[name], tools or ())
        for number, stage in enumerate(find_stages(flow), start=1)
        for name in stage
    ]
    show_table(("stage", "task", "does", "needs", "how"), rows)
    return 0


@command.command("draw")
@file_argument
@format_option(FORMATS)
@click.option("--output", "-o", help="Write to this file (- for stdout).")
@json_option
def draw_file(file: str, form: str | None, output: str | None, *, as_json: bool) -> int:
    """Draw the tasks and their dependencies, as text, SVG or Mermaid.

    \b
    Examples:
      pointsman flow draw flow.yaml
      pointsman flow draw flow.yaml -o flow.svg
    """
    output = None if output == "-" else output
    form = choose_form(form, output, FORMATS)
    terminal = sys.stdout is not None and sys.stdout.isatty()
    color = terminal and output is None and not as_json and wants_color() is not False
    flow = _load(file, as_json=as_json)
    if flow is None:
        return 1
    drawing = draw_flow(flow, form, color=color, columns=get_terminal_size((100, 24)).columns if terminal else 100)
    hand_out(drawing, output, {"name": flow.name, "format": form} if as_json else None)
    return 0


@command.command()
@click.option("--json", is_flag=True, expose_value=False, help="No effect: the output is JSON anyway.")
def schema() -> None:
    """Print the JSON Schema of flow files, for editors.

    \b
    Example:
      pointsman flow schema > flow.schema.json
    and as the first line of your file:
      # yaml-language-server: $schema=flow.schema.json
    """
    echo(json.dumps(build_schema(), indent=2, ensure_ascii=False))


def describe_flow(flow: Flow) -> dict[str, Any]:
    """The JSON form, which programs rely on."""
    return {
        "name": flow.name,
        "description": flow.description,
        "file": flow.file,
        "lifecycle": flow.lifecycle,
        "ordered": flow.ordered,
        "inputs": {
            name: {
                "type": declared.type,
                "required": declared.required,
                "default": declared.default,
                "choices": declared.choices,
                "description": declared.description,
            }
            for name, declared in flow.inputs.items()
        },
        "plan": describe_plan(flow),
        "dag": describe_dag(flow),
    }


def _find_tools(file: str, directory: Path | None) -> Collection[str] | None:
    """The tools of the project around a flow file, or of `directory`; None if that folder does not exist."""
    return _load_tools(directory or Path(file).absolute().parent)


@cache
def _load_tools(folder: Path) -> Collection[str] | None:
    return load_settings(folder, {}, os.environ).all_tools if folder.is_dir() else None


def _load(file: str, *, as_json: bool) -> Flow | None:
    """The flow; None if it has findings, which are shown."""
    try:
        return load_flow(Path(file))
    except FlowInvalid as invalid:
        if as_json:
            echo(json.dumps({"file": file, "findings": [describe_finding(each) for each in invalid.findings]}, indent=2))
        else:
            for finding in invalid.findings:
                show_finding(finding)
        echo(f"{file}: {count(len(invalid.findings), 'finding')}", err=True)
        return None


def _input_row(name: str, declared: Input) -> tuple[str, ...]:
    default = click.style("required", fg="yellow") if declared.required else json.dumps(declared.default)
    choices = f"one of {', '.join(map(str, declared.choices))}" if declared.choices else ""
    return name, declared.type, default, "  ".join(part for part in (choices, declared.description) if part)


def _task_row(stage: int, name: str, task: FlowTask, needs: tuple[str, ...], tools: Collection[str]) -> tuple[str, ...]:
    foreach = task.foreach if isinstance(task.foreach, str) else "each of a list"
    notes = {
        f"for {foreach}": task.foreach is not None,
        f"when {task.when}": task.when is not None,
        f"{task.retries} {'retry' if task.retries == 1 else 'retries'}": task.retries,
        f"at most {format_duration(task.timeout or 0)}": task.timeout,
        f"tool {task.tool}" + ("" if task.tool in tools else " (not declared)"): task.tool,
        count(len(task.checks), "check"): task.checks,
        "may fail": not task.critical,
    }
    how = "; ".join(note for note, applies in notes.items() if applies)
    return str(stage), click.style(name, bold=True), describe_action(task), ", ".join(needs), how
