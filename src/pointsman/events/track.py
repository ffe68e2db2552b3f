"""The machines of a log, indexed for one lookup per line."""

from __future__ import annotations

from typing import NamedTuple

from pointsman.errors import UnknownName
from pointsman.events.entities import Entities
from pointsman.events.event import Event
from pointsman.kernel.machine import Kind, Lifecycle, Machine, Outcome, Phase, Transition
from pointsman.lifecycles import load_lifecycle, machine_names

# The words of the vocabulary that the invariants use.
DEPENDENCIES_MET = "dependencies_met"
ALL_TASKS_SUCCEEDED = "all_tasks_succeeded"
COUNT_RETRY = "count_retry"
RESET_RETRIES = "reset_retries"
FAIL = "fail"
READY = "ready"
CLAIM = "claim"


class Move(NamedTuple):
    """A declared transition with the properties that the invariants need; without a transition, an undeclared move."""

    transition: Transition | None = None
    severity: str = ""
    waits: bool = False
    """Only a task whose dependencies have succeeded may take it."""
    completes: bool = False
    """Only a run whose tasks have all succeeded may take it."""
    fails: bool = False
    retries: bool = False
    resets_retries: bool = False
    matters_to_run: bool = True
    """It changes the counts of the run: the task starts, succeeds or fails."""


UNDECLARED = Move()


def _index_moves(machine: Machine) -> dict[tuple[str, str], dict[str, Move]]:
    """By from-state and to-state, then by trigger: every declared move."""
    guarded = any(DEPENDENCIES_MET in _guards(transition) for transition in machine.transitions)
    starts = READY if READY in machine.signals else CLAIM
    moves: dict[tuple[str, str], dict[str, Move]] = {}
    for transition in machine.transitions:
        guards = _guards(transition)
        moves.setdefault((transition.from_state, transition.to_state), {})[transition.trigger] = Move(
            transition,
            transition.severity.value,
            waits=DEPENDENCIES_MET in guards if guarded else transition.signal == starts,
            completes=ALL_TASKS_SUCCEEDED in guards,
            fails=transition.signal == FAIL,
            retries=COUNT_RETRY in transition.effects,
            resets_retries=RESET_RETRIES in transition.effects,
            matters_to_run=_standing(machine, transition.from_state) != _standing(machine, transition.to_state),
        )
    return moves


def _standing(machine: Machine, state: str) -> tuple[Outcome | None, bool]:
    return machine.state(state).outcome, machine.state(state).phase is Phase.ACTIVE


def _guards(transition: Transition) -> set[str]:
    return {guard.name for guard in transition.guards}


class Track:
    """One machine, the entities that follow it, and the tracks of their workers and runs."""

    def __init__(self, machine: Machine, entities: Entities, *, whole: bool) -> None:
        self.whole = whole
        self.machine = machine
        self.kind = machine.kind
        self.initial = machine.initial.name
        self.states = {state.name: state for state in machine.states}
        self.held_by_worker = frozenset(state.name for state in machine.states if "worker" in state.needs)
        self.succeeded = frozenset(state.name for state in machine.states if state.outcome is Outcome.SUCCESS)
        self.failed = frozenset(state.name for state in machine.states if state.outcome is Outcome.FAILURE)
        self.active = self._in_phase(Phase.ACTIVE)
        self.queued = self._in_phase(Phase.QUEUED)
        self.done = self._in_phase(Phase.DONE)
        self.moves = _index_moves(machine)
        self.entities = entities
        self.workers: Track | None = None
        self.runs: Track | None = None

    def _in_phase(self, phase: Phase) -> frozenset[str]:
        return frozenset(state.name for state in self.machine.states if state.phase is phase)


class Tracks:
    """Finds the track of an event: by its machine, or by its type in the lifecycle of the log."""

    def __init__(self, lifecycle: Lifecycle, *, whole: bool) -> None:
        self._whole = whole
        self.overfull: list[Entities] = []
        self._by_machine: dict[str, Track] = {}
        self._by_type = {event_type(track.machine): track for track in self._add_tracks(lifecycle)}

    def find(self, event: Event) -> Track:
        """Raises UnknownName if no machine matches."""
        name = event.metadata.machine
        if name is None:
            track = self._by_type.get(event.event_type)
            if track is None:
                raise UnknownName("event_type in this lifecycle", event.event_type, self._by_type)
            return track
        if name not in self._by_machine and name in machine_names():
            self._add_tracks(load_lifecycle(name.partition(".")[0]))
        track = self._by_machine.get(name)
        if track is None:
            raise UnknownName("machine", name, (*self._by_machine, *machine_names()))
        if event.event_type not in (types := (event_type(track.machine), f"{track.kind}_state_transition")):
            raise UnknownName(f"event_type of machine {name}", event.event_type, dict.fromkeys(types))
        return track

    def close(self) -> None:
        """Remove the scratch files."""
        for track in self._by_machine.values():
            track.entities.close()

    def _add_tracks(self, lifecycle: Lifecycle) -> list[Track]:
        """A track for each machine of a lifecycle; a machine shared by several lifecycles has one track."""
        tracks: dict[Kind, Track] = {}
        for machine in (*lifecycle.machines, *lifecycle.borrowed):
            if machine.name not in self._by_machine:
                self._by_machine[machine.name] = Track(machine, Entities(self.overfull), whole=self._whole)
            tracks[machine.kind] = self._by_machine[machine.name]
        for track in tracks.values():
            track.workers = tracks.get(Kind.WORKER)
            track.runs = tracks.get(Kind.RUN)
        return list(tracks.values())


def event_type(machine: Machine) -> str:
    """The event type of a machine: `task_state_transition` for `orchestrated.task`."""
    return machine.name.partition(".")[2] + "_state_transition"
