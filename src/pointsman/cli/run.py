"""`pointsman run`: run a flow from its file to its end, in this process."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pointsman.cli.output import count, echo
from pointsman.cli.project import Asked, Project, open_project, project_options, worker_options
from pointsman.cli.steer import Decision, decision_options
from pointsman.cli.streams import background_output, write_line
from pointsman.errors import Problem, RequestInvalid
from pointsman.kernel.machine import Phase
from pointsman.settings import FOLDER, Settings
from pointsman.tracing import TRACEPARENT
from pointsman.views.find import short

if TYPE_CHECKING:
    from pointsman.engine.submit import NewRun
    from pointsman.flows.model import Flow
    from pointsman.store.rows import Run


@click.command()
@click.argument("flow", metavar="FLOW.YAML")
@click.option("--input", "-i", "given", metavar="KEY=VALUE", multiple=True, help="An input of the flow; repeat for more.")
@click.option("--tag", "tags", metavar="WORD", multiple=True, help="A tag of the run, besides those of the flow. Repeatable.")
@click.option("--detach", is_flag=True, help="Only submit the run, for workers elsewhere, and print its id.")
@decision_options
@worker_options
@project_options
def command(
    flow: str,
    given: tuple[str, ...],
    tags: tuple[str, ...],
    *,
    detach: bool,
    decision: Decision,
    flags: dict[str, Any],
    asked: Asked,
) -> int:
    """Run a flow, and show its progress.

    The state of the run is stored in .pointsman/state.db of the project. If this process is killed or the machine goes down,
    `pointsman resume` continues the run without repeating tasks that succeeded.

    Ctrl-C stops the running tasks and keeps the run: `pointsman resume` continues it, `pointsman cancel` ends it. A second one
    kills the tasks at once. SIGTERM finishes running tasks and leaves the others for `pointsman resume`. After a
    `pointsman pause` this waits for `pointsman resume`.

    With --request-id, a repeated command continues the run that the first one has submitted, however much later.

    Exit code 0: succeeded, 1: failed or canceled, 2: could not do its work, 130: stopped by Ctrl-C, 143: ended by SIGTERM.

    \b
    Examples:
      pointsman run flow.yaml
      pointsman run release.yaml -i version=1.4.0 -i dry_run=true
      pointsman run nightly.yaml -j 8 --json > events.jsonl
      pointsman run nightly.yaml --request-id nightly-2026-11-18
    """
    with background_output(reserves_stdout=asked.as_json):
        inputs, settings = _read_inputs(given), asked.settings(**flags)
        return asyncio.run(_run(Path(flow), inputs, tags, decision, asked, settings, detach=detach))


async def _run(
    file: Path,
    inputs: dict[str, str],
    tags: tuple[str, ...],
    decision: Decision,
    asked: Asked,
    settings: Settings,
    *,
    detach: bool,
) -> int:
    from msgspec.structs import replace

    from pointsman.cli.detach import is_served
    from pointsman.cli.notifier import deliver_unattended
    from pointsman.cli.run_to_end import conclude, run_to_end
    from pointsman.cli.through_server import check_scope
    from pointsman.flows import build_run
    from pointsman.flows.load import load_with_lifecycle

    flow, lifecycle = load_with_lifecycle(file, tools=settings.all_tools)
    new = build_run(flow, inputs, directory=str(settings.directory), tools=settings.all_tools, lifecycle=lifecycle)
    new = replace(new, tags=(*new.tags, *tags))
    async with open_project(asked, settings=settings, creates=True, keeps=True, lifecycles=[lifecycle]) as project:
        if not detach:
            check_scope(project)
        after = await project.engine.last_position()  # a repeated request continues its run
        run = await submit(project, flow, new, decision)
        if detach:
            write_line(json.dumps({"run_id": run.id}).encode() + b"\n") if asked.as_json else echo(run.id)
            if run.phase != Phase.DONE and not await is_served(project, run):
                resume = project.hint("resume", short(run.id), "--detach")
                echo(f"No worker takes its tasks. To run it in the background: {resume}", err=True)
            await deliver_unattended(project, run)
            return 0
        if run.phase == Phase.DONE:
            return await conclude(project, run.id, as_json=asked.as_json)
        if not asked.as_json:
            tasks = count(len(new.tasks), "task")
            echo(f"{click.style(run.name, bold=True)}  {tasks}, run {short(run.id)}", err=True)
        return await run_to_end(project, run, after=after, as_json=asked.as_json)


async def submit(project: Project, flow: Flow, new: NewRun, decision: Decision) -> Run:
    """Submit the run of a flow; a repeated request is about the run that the first one has submitted."""
    from pointsman.flows.plan import describe_files, write_files

    await declare_tools(project, [tool for name in flow.tasks if (tool := flow.task(name).tool_name)])
    parent, attributes = os.environ.get(TRACEPARENT), {"pointsman.run.name": new.name}
    with project.world.tracing.begin("submit run", "producer", parent, attributes) as span:
        engine = project.engine.for_tenant(actor=decision.actor, traceparent=span.traceparent)
        run = await engine.submit_run(new, reason=decision.reason, request_id=decision.request_id)
        span.note({"pointsman.run.id": run.id})
    write_files(describe_files(flow), project.settings.directory / FOLDER / "runs" / run.id)
    return await engine.get_run(run.id)


async def declare_tools(project: Project, used: Iterable[str] = ()) -> None:
    """Declare the tools and the budgets of tenants of the settings, and tools that are used and need no settings."""
    from pointsman.worker.tools import declare_missing, declare_tool

    engine, settings = project.engine.for_tenant(), project.settings
    # An API key is about one tenant: the budgets of all are up to the project of the server.
    has_key = project.holder is not None and project.holder.has_key
    for tenant, budget_usd in () if has_key else settings.tenant_budgets.items():
        await project.engine.for_tenant(tenant).set_tenant_budget(budget_usd, reason="settings of the project")
    for tool in settings.tools.values():
        await declare_tool(engine, tool)
    await declare_missing(engine, used, settings.all_tools)


def _read_inputs(given: tuple[str, ...]) -> dict[str, str]:
    inputs: dict[str, str] = {}
    for each in given:
        key, separator, value = each.partition("=")
        if not separator or not key:
            raise RequestInvalid([Problem("--input", f"'{each}' is not KEY=VALUE. Write for example: -i version=1.4.0")])
        if key in inputs:
            raise RequestInvalid([Problem("--input", f"'{key}' is given twice. Give it once.")])
        inputs[key] = value
    return inputs
