"""Submissions of flows: a flow as text, or its tasks as JSON, becomes a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pointsman.engine.fields import JsonObject, Name, Text, Words
from pointsman.engine.operations.runs import SubmitRun
from pointsman.errors import NotFound, Problem, RequestInvalid, suggest
from pointsman.server.route import Call
from pointsman.store.rows import Run, Template


class NewFlowRun(Struct, frozen=True, kw_only=True):
    """A run of a flow."""

    template: Annotated[Name | None, "The name of a stored template; or send a `flow`."] = None
    flow: Annotated[Text | None, "The flow, as the text of a flow file (YAML or JSON); or name a `template`."] = None
    inputs: Annotated[JsonObject | None, "The inputs of the flow, by name."] = None
    tags: Annotated[Words, "Words by which lists of runs can be filtered, besides those of the flow."] = ()
    reason: Annotated[Text | None, "Why; kept in the audit trail."] = None
    request_id: Annotated[Name | None, "An idempotency key, like the header Idempotency-Key."] = None


async def submit_flow(call: Call, new: NewFlowRun) -> Run:
    """Check a flow, and submit a run of it."""
    if (new.template is None) == (new.flow is None):
        raise RequestInvalid([Problem("template", "Name a `template`, or send a `flow`: one of them.")])
    text = (await _find_template(call, new.template)).text if new.template is not None else str(new.flow)
    return await submit_text(call, text, new.inputs or {}, new.reason, tags=new.tags)


async def _find_template(call: Call, name: str) -> Template:
    try:
        return await call.engine.get_template(name)
    except NotFound:
        known = [template.name for template in await call.engine.list_templates()]
        raise RequestInvalid([Problem("template", f"There is no template '{name}'. {suggest(name, known)}")]) from None


async def submit_text(
    call: Call,
    text: str,
    inputs: Mapping[str, Any],
    reason: str | None,
    parent_run_id: str | None = None,
    tags: Collection[str] = (),
) -> Run:
    flows = call.site.flows
    sent = await flows.load(text)
    new = await flows.build(sent, inputs)
    if tools := sent.tools:
        await call.site.declare_tools(call.engine, tools)
    operation = SubmitRun(new, reason=reason, request_id=call.request_id)
    if parent_run_id is not None or tags:
        new = replace(new, parent_run_id=parent_run_id, tags=(*new.tags, *tags))
        run = await call.engine.perform(replace(operation, run=new))
    else:
        run = await call.engine.perform_valid(operation)
    await flows.write_plan(sent, run.id)
    return run


def write_flow(**keys: object) -> str:
    """A flow as text, from its keys; those that are None are left out. JSON is YAML."""
    given = {name: value for name, value in keys.items() if value is not None}
    return msgspec.json.format(msgspec.json.encode(given), indent=1).decode()
