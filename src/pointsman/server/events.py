"""Events: what clients of the live stream get for each transition, which of them they want, and the frames they arrive in.

    transition ──▶ transition                                     every one
               ├─▶ task_completed   the task has ended, or its execution has and a person accepts, rejects or answers
               └─▶ task_question    the task asks

A frame has all events up to its cursor that a client wants: whoever has a frame has everything before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec
from msgspec import Struct

from pointsman.engine.engine import Engine
from pointsman.engine.fields import Name, RunId, Text
from pointsman.engine.questions import Question, read_question
from pointsman.errors import NotFound, Problem, RequestInvalid, UnknownName
from pointsman.kernel.machine import Kind, Machine, Phase
from pointsman.server.answers import TransitionAnswer, make_transition
from pointsman.store.contract import read_position
from pointsman.store.rows import Transition

EventType = Literal["transition", "task_completed", "task_question"]
TYPES: tuple[EventType, ...] = get_args(EventType)
VERDICTS = ("accept", "answer")
"""Signals of people about what an execution came to: a held task that takes one of them is as good as ended for its worker."""
ASKS = "store_question"
"""The effect of a transition with which a task asks."""
LARGEST_FRAME = 256 << 10
"""Characters of a frame, unless a single transition has more."""


class TransitionEvent(TransitionAnswer, frozen=True, kw_only=True, tag_field="type", tag="transition"):
    """A move of a run, a task, a worker or a circuit breaker."""

    lifecycle: str


class TaskCompleted(Struct, frozen=True, kw_only=True, tag_field="type", tag="task_completed"):
    """A task has ended, or its execution has ended and a person decides what follows."""

    position: str
    at: datetime
    task_id: str
    run_id: str | None
    lifecycle: str
    state: str
    phase: str
    outcome: str | None
    """Null if a person decides what follows."""
    reason: str | None


class TaskQuestion(Struct, frozen=True, kw_only=True, tag_field="type", tag="task_question"):
    """A task asks a person."""

    position: str
    at: datetime
    task_id: str
    run_id: str | None
    lifecycle: str
    state: str
    question: Question | None
    """Null if it has been answered already."""


class EventFrame(Struct, frozen=True, kw_only=True):
    """What a client gets at once: a message of a WebSocket, or an event of Server-Sent Events."""

    cursor: str
    """Give it as `after` to continue behind this frame, on any server of the database."""
    events: tuple[TransitionEvent | TaskCompleted | TaskQuestion, ...]
    """Empty in a heartbeat."""


class StreamQuery(Struct, frozen=True, kw_only=True):
    """Which events to send, and from where on."""

    after: Annotated[Text | None, "`cursor` of the last frame, or `next` of a page of events; without it, from now on."] = None
    type: Annotated[Text | None, "Only these types, separated by commas: transition, task_completed, task_question."] = None
    kind: Annotated[Literal["run", "task", "worker", "breaker"] | None, "Only transitions of such entities."] = None
    run_id: Annotated[RunId | None, "Only those of this run and its tasks."] = None
    lifecycle: Annotated[Name | None, "Only those of entities that follow this lifecycle."] = None
    state: Annotated[Name | None, "Only those into this state."] = None
    ticket: Annotated[Text | None, "A ticket instead of an API key, for browsers: POST /api/v1/tickets gives one."] = None


class Event(NamedTuple):
    """An event, encoded once for all who get it, with what filters look at."""

    tenant: str
    position: int
    type: EventType
    kind: str
    run_id: str | None
    lifecycle: str
    state: str
    text: str


class EventFilter(NamedTuple):
    """Which events a client wants. Clients with the same filter get the same frames."""

    tenant: str
    types: tuple[str, ...] = TYPES
    kind: str | None = None
    run_id: str | None = None
    lifecycle: str | None = None
    state: str | None = None

    def wants(self, event: Event) -> bool:
        return (
            event.tenant == self.tenant
            and event.type in self.types
            and self.kind in (None, event.kind)
            and self.run_id in (None, event.run_id)
            and self.lifecycle in (None, event.lifecycle)
            and self.state in (None, event.state)
        )


class Frame(NamedTuple):
    """An `EventFrame` as it is sent."""

    cursor: int
    text: str


async def read_filter(engine: Engine, tenant: str, query: StreamQuery) -> EventFilter:
    """The filter of a query; one that can never match is refused."""
    types = tuple(dict.fromkeys(query.type.split(","))) if query.type is not None else TYPES
    if unknown := [each for each in types if each not in TYPES]:
        raise RequestInvalid([Problem("type", f"{unknown[0][:50]!a} is no type of event. There are: {', '.join(TYPES)}.")])
    if query.run_id is not None:
        await engine.for_tenant(tenant).get_run(query.run_id)
    known = {machine.lifecycle for machine in await engine.list_machines()} if query.lifecycle else set()
    if query.lifecycle and query.lifecycle not in known:
        raise UnknownName("lifecycle", query.lifecycle, known)
    return EventFilter(tenant, types, query.kind, query.run_id, query.lifecycle, query.state)


def read_cursor(after: str | None) -> int | None:
    return None if after is None else read_position(after)


async def make_events(engine: Engine, transitions: Iterable[Transition]) -> list[Event]:
    """All events of transitions, of whichever tenants, in their order."""
    return [event for move in transitions for event in await _make_some(engine, move)]


async def _make_some(engine: Engine, move: Transition) -> list[Event]:
    machine = await engine.get_machine(move)
    found: list[TransitionEvent | TaskCompleted | TaskQuestion] = [
        TransitionEvent(**msgspec.structs.asdict(make_transition(move)), lifecycle=machine.lifecycle)
    ]
    if move.kind == Kind.TASK and _completes(machine, move):
        state = machine.state(move.to_state)
        found.append(
            TaskCompleted(
                position=move.position,
                at=move.at,
                task_id=move.entity_id,
                run_id=move.run_id,
                lifecycle=machine.lifecycle,
                state=state.name,
                phase=state.phase.value,
                outcome=state.outcome.value if state.outcome else None,
                reason=move.reason,
            )
        )
    if move.kind == Kind.TASK and _asks(machine, move):
        found.append(
            TaskQuestion(
                position=move.position,
                at=move.at,
                task_id=move.entity_id,
                run_id=move.run_id,
                lifecycle=machine.lifecycle,
                state=move.to_state,
                question=await _find_question(engine, move),
            )
        )
    return [_encode(move, machine, event) for event in found]


def _completes(machine: Machine, move: Transition) -> bool:
    """Whether an execution, or the task as a whole, is over with this move."""
    state = machine.state(move.to_state)
    if move.from_state == move.to_state:
        return False
    is_held = state.phase is Phase.HELD and any(machine.moves(state.name, signal) for signal in VERDICTS)
    return state.phase is Phase.DONE or is_held


def _asks(machine: Machine, move: Transition) -> bool:
    declared = machine.between(move.from_state, move.to_state) if move.from_state else ()
    return any(each.trigger == move.trigger and ASKS in each.effects for each in declared)


async def _find_question(engine: Engine, move: Transition) -> Question | None:
    try:
        task = await engine.for_tenant(move.tenant).get_task(move.entity_id)
    except NotFound:
        return None
    return read_question(task.question) if task.question is not None else None


def _encode(move: Transition, machine: Machine, event: TransitionEvent | TaskCompleted | TaskQuestion) -> Event:
    kind = event.__struct_config__.tag
    assert kind in TYPES
    run_id = {Kind.RUN: move.entity_id, Kind.TASK: move.run_id}.get(Kind(move.kind))  # as `list_transitions` of a run has it
    text = msgspec.json.encode(event).decode()
    return Event(move.tenant, int(move.position), kind, move.kind, run_id, machine.lifecycle, move.to_state, text)


def write_frames(events: Iterable[Event], end: int) -> Iterator[Frame]:
    """Frames of bounded size with all these events, the last of which has `end` as its cursor. None for no events.

    The events of one transition are in one frame, because a cursor cannot tell them apart.
    """
    texts: list[str] = []
    size = last = 0
    for event in events:
        if texts and event.position != last and size + len(event.text) > LARGEST_FRAME:
            yield write_frame(texts, last)
            texts, size = [], 0
        texts.append(event.text)
        size, last = size + len(event.text), event.position
    if texts:
        yield write_frame(texts, end)


def write_frame(texts: Iterable[str], cursor: int) -> Frame:
    return Frame(cursor, f'{{"cursor":"{cursor}","events":[{",".join(texts)}]}}')
