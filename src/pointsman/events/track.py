"""The machines that a log's entities follow, laid out for one look-up a line."""

from __future__ import annotations

from typing import NamedTuple

from pointsman.errors import UnknownName
from pointsman.events.entities import Entities
from pointsman.events.event import Event
from pointsman.kernel.machine import Kind, Lifecycle, Machine, Outcome, Phase, Transition
from pointsman.lifecycles import load_lifecycle

DEPENDENCIES_MET = "dependencies_met"
ALL_TASKS_SUCCEEDED = "all_tasks_succeeded"
COUNT_RETRY = "count_retry"
FAIL = "fail"


class Move(NamedTuple):
    """A declared transition, and what the invariants want to know of it."""

    transition: Transition
    severity: str
    waits: bool
    """It is open only to a task whose dependencies have succeeded."""
    completes: bool
    """It is open only to a run whose tasks have all succeeded."""
    fails: bool
    retries: bool

    @classmethod
    def of(cls, transition: Transition) -> Move:
        guards = {guard.name for guard in transition.guards}
        return cls(
            transition,
            transition.severity.value,
            waits=DEPENDENCIES_MET in guards,
            completes=ALL_TASKS_SUCCEEDED in guards,
            fails=transition.signal == FAIL,
            retries=COUNT_RETRY in transition.effects,
        )


class Track:
    """One machine, the entities that follow it, and the tracks of their workers and runs."""

    def __init__(self, machine: Machine, entities: Entities) -> None:
        self.machine = machine
        self.kind = machine.kind
        self.initial = machine.initial.name
        self.states = {state.name: state for state in machine.states}
        self.held_by_worker = frozenset(state.name for state in machine.states if "worker" in state.needs)
        self.succeeded = frozenset(state.name for state in machine.states if state.outcome is Outcome.SUCCESS)
        self.failed = frozenset(state.name for state in machine.states if state.outcome is Outcome.FAILURE)
        self.active = frozenset(state.name for state in machine.states if state.phase is Phase.ACTIVE)
        self.moves: dict[tuple[str, str], dict[str, Move]] = {}
        for move in machine.transitions:
            self.moves.setdefault((move.from_state, move.to_state), {})[move.trigger] = Move.of(move)
        self.entities = entities
        self.workers: Track | None = None
        self.runs: Track | None = None

    def is_over(self, state: str) -> bool:
        return state in self.states and self.states[state].phase is Phase.DONE


class Tracks:
    """Finds the track of an event: by the machine that it names, else by its type in the log's lifecycle."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.overfull: list[Entities] = []
        self._by_machine: dict[str, Track] = {}
        self._by_type = {event_type(track.machine): track for track in self._lay(lifecycle)}

    def find(self, event: Event) -> Track:
        """Raises UnknownName where no machine answers to the event."""
        name = event.metadata.machine
        if name is None:
            track = self._by_type.get(event.event_type)
            if track is None:
                raise UnknownName("event_type in this lifecycle", event.event_type, self._by_type)
            return track
        track = self._by_machine.get(name)
        if track is None:
            self._lay(load_lifecycle(name.partition(".")[0]))
            track = self._by_machine.get(name)
        if track is None or event.event_type not in (event_type(track.machine), f"{track.kind}_state_transition"):
            raise UnknownName(f"event of machine {name}", event.event_type, map(event_type, self._machines()))
        return track

    def _machines(self) -> list[Machine]:
        return [track.machine for track in self._by_machine.values()]

    def _lay(self, lifecycle: Lifecycle) -> list[Track]:
        """A track for each machine of a lifecycle; a machine shared by several lifecycles has one track."""
        tracks: dict[Kind, Track] = {}
        for machine in (*lifecycle.machines, *lifecycle.borrowed):
            if machine.name not in self._by_machine:
                self._by_machine[machine.name] = Track(machine, Entities(self.overfull))
            tracks[machine.kind] = self._by_machine[machine.name]
        for track in tracks.values():
            track.workers = tracks.get(Kind.WORKER)
            track.runs = tracks.get(Kind.RUN)
        return list(tracks.values())


def event_type(machine: Machine) -> str:
    """What the events of a machine are called: `task_state_transition` for `orchestrated.task`."""
    return machine.name.partition(".")[2] + "_state_transition"
