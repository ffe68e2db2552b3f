"""Events: what a notification says about a transition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import msgspec

from pointsman.engine.engine import Engine, TenantEngine
from pointsman.engine.operation import DEFAULT_TENANT
from pointsman.errors import NotFound
from pointsman.kernel.machine import Kind, Outcome, Phase
from pointsman.notify.target import RUN_ENDED
from pointsman.store.rows import Run, Transition
from pointsman.views.inbox import InboxItem, find_items
from pointsman.views.runs import view_run
from pointsman.views.values import RunView, first_line

PERSON_NEEDED = "person_needed"
BREAKER_OPENED = "breaker_opened"
ASKS = ("answer", "approve", "accept")
"""Signals of people: a task that is held and takes one of them may wait for a person."""
LONGEST_TEXT = 10_000
LONGEST_ERROR = 2_000
MOST_TASKS = 10


class Commands(Protocol):
    """The commands that a reader of a notification may want, each with what it does."""

    def for_item(self, item: InboxItem) -> Sequence[tuple[str, str]]: ...
    def for_run(self, run: RunView) -> Sequence[tuple[str, str]]: ...
    def for_tool(self, tool: str) -> Sequence[tuple[str, str]]: ...


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A transition that may be worth a notification: what kind of event it is, before anything else is read."""

    transition: Transition
    event: str
    outcome: Outcome | None = None

    @property
    def tenant(self) -> str:
        return self.transition.tenant

    @property
    def run_id(self) -> str | None:
        return self.transition.entity_id if self.transition.kind == Kind.RUN else self.transition.run_id


@dataclass(frozen=True, slots=True)
class Message:
    """An event in words, for people and programs."""

    subject: str
    data: dict[str, Any] = field(default_factory=dict)


async def list_occurrences(engine: Engine, transitions: Iterable[Transition]) -> list[Occurrence]:
    """What these transitions mean. Of several with which a task came to wait, only the last counts."""
    found: dict[str, Occurrence] = {}
    for transition in transitions:
        if occurrence := await _classify(engine, transition):
            key = transition.entity_id if occurrence.event == PERSON_NEEDED else transition.position
            found.pop(key, None)
            found[key] = occurrence
    return list(found.values())


async def _classify(engine: Engine, transition: Transition) -> Occurrence | None:
    machine = await engine.get_machine(transition)
    state = machine.state(transition.to_state)
    match transition.kind:
        case Kind.RUN if state.phase is Phase.DONE:
            return Occurrence(transition, RUN_ENDED, state.outcome)
        case Kind.TASK if any(machine.moves(state.name, signal) for signal in ASKS):
            return Occurrence(transition, PERSON_NEEDED)
        case Kind.BREAKER if transition.from_state and machine.state(transition.from_state).phase is Phase.QUEUED:
            return Occurrence(transition, BREAKER_OPENED)  # one whose probe has failed was open before
        case _:
            return None


async def describe(engine: TenantEngine, occurrence: Occurrence, run: Run | None, commands: Commands) -> Message | None:
    """What to say; None if nobody needs to hear it any more, because a person has decided."""
    match occurrence.event:
        case "person_needed" if run is not None:
            items = await find_items(engine, run, {occurrence.transition.entity_id}, await engine.now())
            return _describe_item(items[0], commands) if items else None
        case "run_ended" if run is not None:
            return _describe_run(occurrence, await view_run(engine, run.id, await engine.now()), commands)
        case "breaker_opened":
            return await _describe_breaker(engine, occurrence, commands)
        case _:
            return None


def _describe_item(item: InboxItem, commands: Commands) -> Message:
    waiting = item.waiting
    data = {
        "run": {"id": item.run_id, "name": item.run},
        "task": {"id": item.task_id, "name": item.task, "description": item.description, "attempts": item.attempts},
        "kind": waiting.kind,
        "reason": waiting.reason,
        "text": _cut(item.text, LONGEST_TEXT),
        "choices": item.choices,
        "by": item.by,
        "until": waiting.until,
        "commands": _list_commands(commands.for_item(item)),
    }
    return Message(f"{item.run}: {item.task} {waiting.reason}", data)


def _describe_run(occurrence: Occurrence, run: RunView, commands: Commands) -> Message:
    state, outcome = occurrence.transition.to_state, occurrence.outcome
    failed = run.failed_tasks if outcome is Outcome.FAILURE else ()
    error = run.error or occurrence.transition.reason
    data = {
        "run": {"id": run.id, "name": run.name, "state": state, "outcome": outcome},
        "error": _cut(error, LONGEST_ERROR) if error and outcome is not Outcome.SUCCESS else None,
        "failed_tasks": [{"name": task.name, "error": _cut(task.error or "", LONGEST_ERROR)} for task in failed[:MOST_TASKS]],
        "commands": _list_commands(commands.for_run(run)),
    }
    return Message(f"{run.name}: {state}", data)


async def _describe_breaker(engine: TenantEngine, occurrence: Occurrence, commands: Commands) -> Message:
    move = occurrence.transition
    breaker = next((each for each in await engine.list_breakers() if each.id == move.entity_id), None)
    if breaker is None:
        raise NotFound("tool", move.entity_id)
    data = {
        "tool": {"name": breaker.tool, "state": move.to_state, "retry_at": breaker.retry_at},
        "reason": _cut(move.reason or "", LONGEST_ERROR),
        "commands": _list_commands(commands.for_tool(breaker.tool)),
    }
    return Message(f"{breaker.tool}: {move.to_state}" + (f", {first_line(move.reason)}" if move.reason else ""), data)


def write_body(event: str, at: datetime, tenant: str, data: Mapping[str, Any]) -> str:
    """What a target gets."""
    of_tenant = {} if tenant == DEFAULT_TENANT else {"tenant": tenant}
    return msgspec.json.encode({"type": event, "timestamp": at, "data": {**of_tenant, **data}}).decode()


def _list_commands(commands: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"command": command, "what": effect} for command, effect in commands]


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
