"""`pointsman breakers`: the circuits of the tools; reset and trip them."""

from __future__ import annotations

from datetime import datetime

import click

from pointsman.cli.describe import show_json
from pointsman.cli.group import Collection
from pointsman.cli.notifier import deliver_unattended
from pointsman.cli.output import LONGEST_NAME, cut, echo, show_seconds, show_state, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.cli.steer import Decision, Sentence, decision_options, explain_refusal, show_change
from pointsman.errors import NothingYet, TransitionRefused
from pointsman.kernel.grammar import format_duration, parse_duration
from pointsman.kernel.machine import Phase, Refusal
from pointsman.store.rows import Breaker
from pointsman.views.find import find_tool
from pointsman.views.tools import list_breakers, make_breaker_view
from pointsman.views.values import BreakerView

tool_argument = click.argument("tool", metavar="TOOL")


def read_duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds is None:
        raise click.BadParameter(f"'{text}' is not a time. Write for example: 90s, 10m or 2h.")
    return seconds


@click.group(cls=Collection, default="list")
def command() -> None:
    """List the tools with their circuits, and reset or trip one of them.

    While the circuit of a tool is open, none of its tasks starts. Without a command, this lists them.

    \b
    Examples:
      pointsman breakers
      pointsman breakers reset curl --reason "the service is back"
      pointsman breakers trip curl --for 2h --reason "maintenance"
    """


@command.command("list")
@project_options
def list_(*, asked: Asked) -> None:
    """List the tools: the state of each circuit, its failures in a row, and the limits.

    \b
    Examples:
      pointsman breakers
      pointsman breakers list --json
    """
    try:
        in_project(asked, lambda project: show_breakers(project, as_json=asked.as_json))
    except NothingYet as nothing:
        echo("[]") if asked.as_json else echo(str(nothing), err=True)


@command.command()
@tool_argument
@decision_options
@project_options
def reset(tool: str, *, decision: Decision, asked: Asked) -> None:
    """Close the circuit of TOOL at once, and forget its failures: when the tool is well again.

    \b
    Examples:
      pointsman breakers reset curl --reason "the service is back"
    """
    in_project(asked, lambda project: reset_breaker(project, tool, decision, as_json=asked.as_json))


@command.command()
@tool_argument
@click.option("--for", "seconds", metavar="TIME", type=read_duration, help="How long (default: the cooldown of the tool).")
@decision_options
@project_options
def trip(tool: str, seconds: float | None, *, decision: Decision, asked: Asked) -> None:
    """Open the circuit of TOOL, as if it had failed too often. None of its tasks starts; those that run go on.

    After its cooldown, or the TIME of --for, one task is let through as a probe. Its success closes the circuit.

    \b
    Examples:
      pointsman breakers trip curl --reason "it answers with nonsense"
      pointsman breakers trip curl --for 2h --reason "maintenance"
    """
    in_project(asked, lambda project: trip_breaker(project, tool, seconds, decision, as_json=asked.as_json))


async def show_breakers(project: Project, *, as_json: bool) -> None:
    now = await project.engine.now()
    breakers = await list_breakers(project.engine)
    if as_json:
        echo(show_json(breakers))
    elif not breakers:
        echo("There are no tools. Runs and workers declare the tools of the settings when they start.", err=True)
    else:
        rows = [
            (
                cut(each.name, LONGEST_NAME),
                show_state(each.state, each.phase, each.outcome),
                f"{each.failure_count}/{each.failure_threshold}",
                show_retry(each, now),
                show_limits(each),
                each.reason or "",
            )
            for each in breakers
        ]
        show_table(("tool", "circuit", "failures", "retry", "limits", "why"), rows, fits=True)


def show_retry(breaker: BreakerView, now: datetime) -> str:
    if breaker.phase == Phase.ACTIVE:
        return "probing" if breaker.probe_task_id else "with the next task"
    return f"in {show_seconds(max((breaker.retry_at - now).total_seconds(), 0))}" if breaker.retry_at else ""


def show_limits(breaker: BreakerView) -> str:
    limits = [f"{breaker.max_concurrent} at once"] if breaker.max_concurrent is not None else []
    if breaker.rate_count is not None:
        limits.append(f"{breaker.rate_count} in {format_duration(breaker.rate_seconds or 0)}")
    return ", ".join(limits)


async def reset_breaker(project: Project, name: str, decision: Decision, *, as_json: bool) -> None:
    before = await find_tool(project.engine, name)
    try:
        await project.engine.for_tenant(actor=decision.actor).reset_breaker(
            before.tool, reason=decision.reason, request_id=decision.request_id
        )
    except TransitionRefused as refused:
        raise _in_words(project, refused, before, "trip") from None
    await show_result(project, before, "Its tasks may start again.", as_json=as_json)


async def trip_breaker(project: Project, name: str, seconds: float | None, decision: Decision, *, as_json: bool) -> None:
    before = await find_tool(project.engine, name)
    try:
        await project.engine.for_tenant(actor=decision.actor).trip_breaker(
            before.tool, seconds, reason=decision.reason, request_id=decision.request_id
        )
    except TransitionRefused as refused:
        raise _in_words(project, refused, before, "reset") from None
    reset = project.hint("breakers", "reset", before.tool)
    await show_result(project, before, f"None of its tasks starts. To close the circuit: {reset}", as_json=as_json)
    await deliver_unattended(project)


async def show_result(project: Project, before: Breaker, follows: str, *, as_json: bool) -> None:
    after = await project.engine.get_breaker(before.tool)
    if as_json:
        echo(show_json(make_breaker_view(after)))
        return
    retry = show_retry(make_breaker_view(after), await project.engine.now())
    echo(f"{after.tool}: {show_change(before, after)}" + (f", retry {retry}" if retry else ""))
    echo(follows, err=True)


def _in_words(project: Project, refused: TransitionRefused, breaker: Breaker, instead: str) -> TransitionRefused:
    if not isinstance(refused.refusal, Refusal):
        return refused
    ways = [project.hint("breakers", instead, breaker.tool)]
    return TransitionRefused(Sentence(explain_refusal(refused.refusal, breaker.tool, ways)))
