"""Submissions of flows: a flow as text, or its tasks as JSON, becomes a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pointsman.engine.fields import JsonObject, Name, Text
from pointsman.engine.operations.runs import SubmitRun
from pointsman.engine.submit import NewRun
from pointsman.errors import NotFound, Problem, RequestInvalid, suggest
from pointsman.flows.build import build_run
from pointsman.flows.document import read_document
from pointsman.flows.load import TEXT, load_with_lifecycle
from pointsman.flows.model import Flow
from pointsman.flows.plan import write_plan
from pointsman.kernel.machine import Lifecycle
from pointsman.lifecycles import DEFAULT, SHIPPED
from pointsman.server.route import Call
from pointsman.settings import FOLDER, Settings
from pointsman.store.rows import Run, Template

log = logging.getLogger(__name__)


class NewFlowRun(Struct, frozen=True, kw_only=True):
    """A run of a flow."""

    template: Annotated[Name | None, "The name of a stored template; or send a `flow`."] = None
    flow: Annotated[Text | None, "The flow, as the text of a flow file (YAML or JSON); or name a `template`."] = None
    inputs: Annotated[JsonObject | None, "The inputs of the flow, by name."] = None
    reason: Annotated[Text | None, "Why; kept in the audit trail."] = None
    request_id: Annotated[Name | None, "An idempotency key, like the header Idempotency-Key."] = None


async def submit_flow(call: Call, new: NewFlowRun) -> Run:
    """Check a flow, and submit a run of it."""
    if (new.template is None) == (new.flow is None):
        raise RequestInvalid([Problem("template", "Name a `template`, or send a `flow`: one of them.")])
    text = (await _find_template(call, new.template)).text if new.template is not None else str(new.flow)
    return await submit_text(call, text, new.inputs or {}, new.reason)


async def _find_template(call: Call, name: str) -> Template:
    try:
        return await call.engine.get_template(name)
    except NotFound:
        known = [template.name for template in await call.engine.list_templates()]
        raise RequestInvalid([Problem("template", f"There is no template '{name}'. {suggest(name, known)}")]) from None


async def submit_text(
    call: Call, text: str, inputs: Mapping[str, Any], reason: str | None, parent_run_id: str | None = None
) -> Run:
    settings = call.site.settings
    flow, new = await asyncio.to_thread(build, settings, text, inputs)
    await call.site.declare_tools(call.engine, [tool for name in flow.tasks if (tool := flow.task(name).tool_name)])
    operation = SubmitRun(replace(new, parent_run_id=parent_run_id), reason=reason, request_id=call.request_id)
    run = await call.engine.perform(operation)
    try:
        await asyncio.to_thread(write_plan, flow, settings.directory / FOLDER / "runs" / run.id)
    except OSError as error:  # the run is submitted, and goes on without the files that describe it
        log.warning("the plan of run %s cannot be written: %s", run.id, error)
    return run


def build(settings: Settings, text: str, inputs: Mapping[str, Any]) -> tuple[Flow, NewRun]:
    flow, lifecycle = load_text(text, settings)
    new = build_run(flow, inputs, directory=str(settings.directory), tools=settings.all_tools, lifecycle=lifecycle)
    return flow, new


def load_text(text: str, settings: Settings) -> tuple[Flow, Lifecycle]:
    """Load a flow that a client has sent. It may follow a shipped lifecycle, but not name a file of this machine."""
    document = read_document(f"{text}\n", TEXT)
    named = document.value.get("lifecycle", DEFAULT) if isinstance(document.value, dict) else DEFAULT
    if named not in SHIPPED:
        message = f"A flow that is sent follows a shipped lifecycle: {', '.join(SHIPPED)}."
        raise RequestInvalid([Problem("flow.lifecycle", message)])
    return load_with_lifecycle(f"{text}\n", tools=settings.all_tools)


def write_flow(**keys: object) -> str:
    """A flow as text, from its keys; those that are None are left out. JSON is YAML."""
    given = {name: value for name, value in keys.items() if value is not None}
    return msgspec.json.format(msgspec.json.encode(given), indent=1).decode()
