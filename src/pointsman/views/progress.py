"""The progress of a run while it is watched: the states of its tasks and how many are done, from the event stream."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from msgspec import Struct, field

from pointsman.engine.engine import TenantEngine
from pointsman.kernel.machine import Machine, Outcome, Phase, State
from pointsman.store.rows import Transition

SKIP = "skip"
CHILD_FAILED = "child_failed"
LEASE_LOST = "lease_lost"


class Line(Struct):
    """One task."""

    task_id: str
    name: str
    state: State
    since: datetime
    key: str = ""
    """How it is counted."""
    attempts: int = 0
    worker_id: str | None = None
    """The one that began its last attempt."""
    took: float | None = None
    """The seconds that the attempt took which has just ended; None if its worker was lost: nobody knows when it ended."""
    reason: str | None = None
    position: int = 0


class Change(Struct):
    """A transition, with the name of its task."""

    transition: Transition
    line: Line | None
    """None for a transition of the run itself."""
    state: State
    machine: str
    is_needless: bool = False
    """A worker found that the task need not run: it never began any work."""


class Progress(Struct):
    """A run and its tasks, as far as their transitions have been read."""

    engine: TenantEngine
    run_id: str
    run_state: State | None = None
    started_at: datetime | None = None
    """When the run first started."""
    lines: dict[str, Line] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """How many tasks there are in each phase, or with each outcome if they are done."""
    active: dict[str, Line] = field(default_factory=dict)
    _names: dict[str, tuple[str, int]] = field(default_factory=dict)

    async def take(self, transition: Transition) -> Change | None:
        """Take one transition in; None if it is neither of the run nor of a task."""
        machine = await self.engine.get_machine(transition)
        state = machine.state(transition.to_state)
        if transition.kind == "run":
            self.run_state = state
            if state.phase is Phase.ACTIVE:
                self.started_at = self.started_at or transition.at
            return Change(transition, None, state, machine.name)
        if transition.kind != "task":
            return None
        line = self.lines.get(transition.entity_id)
        if line is None:
            name, position = await self._find_name(transition.entity_id)
            line = self.lines[transition.entity_id] = Line(transition.entity_id, name, state, transition.at, position=position)
        else:
            self.counts[line.key] -= 1
        was_active = self._move(line, transition, machine, state)
        return Change(transition, line, state, machine.name, is_needless=was_active and transition.trigger == SKIP)

    def _move(self, line: Line, transition: Transition, machine: Machine, state: State) -> bool:
        """Whether an attempt held it before."""
        was_active = transition.from_state is not None and machine.state(transition.from_state).phase is Phase.ACTIVE
        is_active = state.phase is Phase.ACTIVE
        if is_active and (not was_active or transition.from_state == transition.to_state):
            line.attempts += 1
            line.worker_id = transition.actor
        has_ended = was_active and not is_active and not _is_lost(machine, transition, line)
        line.took = (transition.at - line.since).total_seconds() if has_ended else None
        if is_active != was_active or transition.from_state == transition.to_state:
            line.since = transition.at
        line.state, line.key, line.reason = state, _key(machine, transition, state), _reason(transition)
        self.counts[line.key] += 1
        _put(self.active, transition.entity_id, line, wanted=is_active)
        return was_active

    @property
    def total(self) -> int:
        return len(self.lines)

    @property
    def done(self) -> int:
        """Succeeded or skipped."""
        return self.count(Outcome.SUCCESS)

    def count(self, key: Phase | Outcome) -> int:
        return self.counts[key.value]

    async def _find_name(self, task_id: str) -> tuple[str, int]:
        """Names are read all at once, since many tasks are added together."""
        if task_id not in self._names:
            self._names = {task.id: (task.name, task.position) for task in await self.engine.list_tasks_in_brief(self.run_id)}
        return self._names.get(task_id, (task_id, 0))


def _put(lines: dict[str, Line], task_id: str, line: Line, *, wanted: bool) -> None:
    if wanted:
        lines[task_id] = line
    else:
        lines.pop(task_id, None)


def _key(machine: Machine, transition: Transition, state: State) -> str:
    """How a task is counted: by its outcome or its phase; one that failed because a subtask did is only not done."""
    moves = machine.transitions if state.outcome is Outcome.FAILURE else ()
    if any(move.signal == CHILD_FAILED and move.trigger == transition.trigger for move in moves):
        return Phase.HELD.value
    return state.outcome.value if state.outcome else state.phase.value


def _is_lost(machine: Machine, transition: Transition, line: Line) -> bool:
    """Whether somebody else than its worker ended an attempt, because that worker was lost."""
    moves = machine.moves(transition.from_state, LEASE_LOST) if transition.from_state else ()
    return transition.actor != line.worker_id and any(move.trigger == transition.trigger for move in moves)


def _reason(transition: Transition) -> str | None:
    if transition.reason:
        return transition.reason
    error = transition.details.get("error")
    return error if isinstance(error, str) else None
