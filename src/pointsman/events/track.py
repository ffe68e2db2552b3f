"""The machines of a log, indexed for one lookup per line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pointsman.errors import UnknownName
from pointsman.events.entities import Entities, Entity
from pointsman.events.event import Event, event_type
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
    """One machine, and all entities of its kind: events refer to each other's entities by id, without naming a machine."""

    def __init__(self, machine: Machine, tracks: Tracks, *, whole: bool) -> None:
        self.whole = whole
        self.machine = machine
        self.tracks = tracks
        self.entities = tracks.entities[machine.kind]
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

    def _in_phase(self, phase: Phase) -> frozenset[str]:
        return frozenset(state.name for state in self.machine.states if state.phase is phase)


class Tracks:
    """Finds the track of an event: by its machine, or by its type in the lifecycle of the log."""

    def __init__(self, lifecycle: Lifecycle, others: Sequence[Lifecycle], *, whole: bool) -> None:
        self._whole = whole
        self.overfull: list[Entities] = []
        self.entities = {kind: Entities(self.overfull) for kind in Kind}
        """Of all machines: an id stands for one entity among those of its kind."""
        self._by_machine: dict[str, Track] = {}
        for each in (lifecycle, *others):
            self._add_tracks(each)
        self._by_type = {event_type(machine.name): self._by_machine[machine.name] for machine in _machines(lifecycle)}

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
        if event.event_type != (expected := event_type(name)):
            raise UnknownName(f"event_type of machine {name}", event.event_type, [expected])
        return track

    def of(self, entity: Entity) -> Track:
        """The track that a known entity follows."""
        return self._by_machine[entity.machine]

    def close(self) -> None:
        """Remove the scratch files."""
        for entities in self.entities.values():
            entities.close()

    def _add_tracks(self, lifecycle: Lifecycle) -> None:
        for machine in _machines(lifecycle):
            if machine.name not in self._by_machine:
                self._by_machine[machine.name] = Track(machine, self, whole=self._whole)


def _machines(lifecycle: Lifecycle) -> tuple[Machine, ...]:
    return (*lifecycle.machines, *lifecycle.borrowed)
