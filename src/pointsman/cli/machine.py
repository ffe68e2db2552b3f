"""`pointsman machine`: list, show, check and draw machines."""

from __future__ import annotations

import json
import sys

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
    show_state,
    show_table,
)
from pointsman.errors import Finding, LifecycleError, LifecycleInvalid
from pointsman.kernel.draw import FORMATS, draw
from pointsman.kernel.grammar import format_duration
from pointsman.kernel.machine import Lifecycle, Severity, State
from pointsman.lifecycles import SCHEMA, SHIPPED, load_lifecycle, load_machine

SEVERITY_COLORS = {Severity.WARNING: "yellow", Severity.ERROR: "red", Severity.CRITICAL: "red"}

machine_argument = click.argument("machine", metavar="MACHINE")


@click.group(cls=Commands)
def command() -> None:
    """List, show, check and draw the machines of lifecycles.

    MACHINE is a shipped one (`standard.task`) or one from your own file (`my-lifecycle.yaml:task`).
    """


@command.command("list")
@json_option
def list_machines(*, as_json: bool) -> None:
    """List the shipped lifecycles and their machines.

    \b
    Example:
      pointsman machine list
    """
    lifecycles = [load_lifecycle(name) for name in SHIPPED]
    if as_json:
        echo(json.dumps([describe_lifecycle(lifecycle) for lifecycle in lifecycles], indent=2))
        return
    for lifecycle in lifecycles:
        echo(f"{click.style(lifecycle.name, bold=True)}  {lifecycle.title}")
        for machine in lifecycle.machines:
            size = f"{len(machine.states):>2} states  {len(machine.transitions):>2} transitions"
            echo(f"  {machine.name:<24} {machine.kind:<8} {size}")
        for machine in lifecycle.borrowed:
            echo(click.style(f"  {machine.name:<24} {machine.kind:<8} borrowed", dim=True))


@command.command()
@machine_argument
@json_option
def show(machine: str, *, as_json: bool) -> None:
    """Show the states and transitions of MACHINE.

    \b
    Examples:
      pointsman machine show orchestrated.task
      pointsman machine show standard.task --json
    """
    loaded = load_machine(machine)
    if as_json:
        from pointsman.cli.describe import show_json
        from pointsman.views.machines import make_machine_view

        echo(show_json(make_machine_view(loaded)))
        return
    echo(f"{click.style(loaded.name, bold=True)}  {loaded.kind}, version {loaded.version}\n")
    show_table(("state", "phase", "", "needs", "at most"), [state_row(state) for state in loaded.states])
    echo()
    rows = [
        (
            *(move.from_state, move.to_state, move.trigger, move.signal or ""),
            *(", ".join(move.conditions), severity(move.severity), ", ".join(move.effects)),
        )
        for move in loaded.transitions
    ]
    show_table(("from", "to", "trigger", "signal", "when", "severity", "effects"), rows)
    for signal, fallback in loaded.fallbacks.items():
        echo(f"\nWhere a state has no transition for {signal}, it counts as {fallback}.", nl=False)
    echo()


@command.command()
@click.argument("sources", metavar="[FILE]...", nargs=-1)
@json_option
def check(sources: tuple[str, ...], *, as_json: bool) -> int:
    """Verify lifecycle files, or the shipped ones if you name none.

    Every finding has its line and column, and says what to do. Exit code 0: valid, 1: findings, 2: a file cannot be read.

    \b
    Examples:
      pointsman machine check
      pointsman machine check my-lifecycle.yaml
    """
    worst = 0
    reports = []
    for source in sources or SHIPPED:
        findings: tuple[Finding, ...] = ()
        error = None
        try:
            lifecycle = load_lifecycle(source)
        except LifecycleInvalid as invalid:
            findings = invalid.findings
            worst = max(worst, 1)
        except LifecycleError as unreadable:
            error = str(unreadable)
            worst = 2
        if as_json:
            reports.append({"file": source, "error": error, "findings": [describe_finding(each) for each in findings]})
        elif error:
            fail(error)
        elif findings:
            for finding in findings:
                show_finding(finding)
            echo(f"{source}: {count(len(findings), 'finding')}", err=True)
        else:
            echo(f"{click.style('valid', fg='green')}  {source}: {', '.join(each.name for each in lifecycle.machines)}")
    if as_json:
        echo(json.dumps(reports, indent=2))
    return worst


@command.command("draw")
@machine_argument
@format_option(FORMATS)
@click.option("--state", "-s", help="Highlight this state, and dim states that cannot be reached from it.")
@click.option("--output", "-o", help="Write to this file (- for stdout).")
@json_option
def draw_machine(machine: str, form: str | None, state: str | None, output: str | None, *, as_json: bool) -> None:
    """Draw MACHINE as text, SVG, a Mermaid diagram or a Markdown table.

    \b
    Examples:
      pointsman machine draw supervised.job
      pointsman machine draw orchestrated.workstream --state executing
      pointsman machine draw standard.task -o task.svg
    """
    output = None if output == "-" else output
    form = choose_form(form, output, FORMATS)
    terminal = sys.stdout is not None and sys.stdout.isatty()
    color = terminal and output is None and not as_json and wants_color() is not False
    loaded = load_machine(machine)
    drawing = draw(loaded, form, state=state, color=color)
    hand_out(drawing, output, {"name": loaded.name, "format": form, "state": state} if as_json else None)


@command.command()
@click.option("--json", is_flag=True, expose_value=False, help="No effect: the output is JSON anyway.")
def schema() -> None:
    """Print the JSON Schema of lifecycle files, for editors.

    \b
    Example:
      pointsman machine schema > lifecycle.schema.json
    and as the first line of your file:
      # yaml-language-server: $schema=lifecycle.schema.json
    """
    echo(SCHEMA.read_text("utf-8").rstrip("\n"))


def describe_lifecycle(lifecycle: Lifecycle) -> dict[str, object]:
    return {
        "name": lifecycle.name,
        "version": lifecycle.version,
        "title": lifecycle.title,
        "machines": [machine.name for machine in lifecycle.machines],
        "borrowed": [machine.name for machine in lifecycle.borrowed],
    }


def state_row(state: State) -> tuple[str, ...]:
    phase = f"{state.phase} ({state.outcome})" if state.outcome else str(state.phase)
    flags = [name for name in ("initial", "terminal", "sealed") if getattr(state, name)]
    stay = format_duration(state.longest_stay_seconds) if state.longest_stay_seconds is not None else ""
    return show_state(state.name, state.phase, state.outcome), phase, " ".join(flags), ", ".join(state.needs), stay


def severity(level: Severity) -> str:
    return "" if level is Severity.INFO else click.style(level, fg=SEVERITY_COLORS[level])
