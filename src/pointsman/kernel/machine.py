"""A state machine as a value: states, transitions, and queries about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from pointsman.errors import UnknownName


class Kind(StrEnum):
    """What a machine describes."""

    RUN = "run"
    TASK = "task"
    WORKER = "worker"
    BREAKER = "breaker"


class Phase(StrEnum):
    """The only property of a state that the engine uses."""

    HELD = "held"
    QUEUED = "queued"
    ACTIVE = "active"
    DONE = "done"


class Outcome(StrEnum):
    """How work in phase `done` ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELED = "canceled"


class Severity(StrEnum):
    """The log level of a transition."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class State:
    """A state of an entity."""

    name: str
    phase: Phase
    outcome: Outcome | None = None
    initial: bool = False
    terminal: bool = False
    """The work is over."""
    sealed: bool = False
    """Terminal, and no transition leaves it."""
    needs: tuple[str, ...] = ()
    """What an entity in this state must have (a worker, a session)."""
    longest_stay_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """A named condition on the facts of an entity, possibly negated."""

    name: str
    negated: bool
    holds: Callable[[Any], bool] = field(repr=False, compare=False)
    """The predicate registered under `name`, with the negation already applied."""

    @classmethod
    def on(cls, name: str, predicate: Callable[[Any], bool], *, negated: bool) -> Guard:
        def negation(facts: Any) -> bool:
            return not predicate(facts)

        return cls(name, negated, negation if negated else predicate)

    def __str__(self) -> str:
        return f"not {self.name}" if self.negated else self.name


@dataclass(frozen=True, slots=True)
class Transition:
    """A declared move from one state to another."""

    from_state: str
    to_state: str
    trigger: str
    signal: str | None = None
    """The signal of the engine that causes this trigger; None if only its own name, or no signal, does."""
    guards: tuple[Guard, ...] = ()
    otherwise: bool = False
    """Tried only if no earlier transition of the same state and trigger was taken (`else` in the file)."""
    automatic: bool = False
    """Taken right after another transition if its guards hold."""
    severity: Severity = Severity.INFO
    effects: tuple[str, ...] = ()

    @property
    def conditions(self) -> tuple[str, ...]:
        """The guards as the file writes them between its brackets: `else first`, `not second`."""
        guards = tuple(str(guard) for guard in self.guards)
        if not self.otherwise:
            return guards
        return (f"else {guards[0]}", *guards[1:]) if guards else ("else",)

    def __str__(self) -> str:
        conditions = f" [{', '.join(self.conditions)}]" if self.conditions else ""
        return f"{self.from_state} -> {self.to_state} : {self.trigger}{conditions}"


class Case(StrEnum):
    """The three reasons for a refusal."""

    ALREADY_THERE = "already_there"
    TERMINAL = "terminal"
    NOT_ALLOWED = "not_allowed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a machine did not move, and what it would accept now."""

    case: Case
    machine: str
    state: str
    asked: str
    """The signal, trigger or state that was asked for."""
    allowed: tuple[Transition, ...]
    unmet: tuple[str, ...] = ()
    """Guards that did not hold."""

    @property
    def message(self) -> str:
        match self.case:
            case Case.ALREADY_THERE:
                return f"{self.machine} is already {self.state}: '{self.asked}' changes nothing."
            case Case.TERMINAL:
                ways_out = f" The only ways out: {self._moves()}." if self.allowed else " Nothing leads out of it."
                return f"{self.machine} has ended in {self.state}: '{self.asked}' cannot move it.{ways_out}{self._why()}"
            case Case.NOT_ALLOWED:
                moves = (
                    f"Allowed from {self.state}: {self._moves()}." if self.allowed else f"No transition leaves {self.state}."
                )
                return f"{self.machine} is {self.state}: '{self.asked}' is not allowed from here.{self._why()} {moves}"

    def _why(self) -> str:
        return f" It would need: {', or '.join(self.unmet)}." if self.unmet else ""

    def _moves(self) -> str:
        return ", ".join(f"{move.trigger} -> {move.to_state}" for move in self.allowed)


Moves = Mapping[tuple[str, str], tuple[Transition, ...]]


@dataclass(frozen=True, slots=True)
class Machine:
    """A verified state machine; build one with `pointsman.load_machine`."""

    name: str
    """`lifecycle.machine`."""
    lifecycle: str
    kind: Kind
    version: int
    states: tuple[State, ...]
    transitions: tuple[Transition, ...]
    fallbacks: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Signals that are treated as another one in states that do not handle them."""
    moves_on: Moves = field(init=False, repr=False, compare=False)
    """By state and signal, or trigger: the transitions to try, in order, fallbacks included."""
    automatic_exits: Mapping[str, tuple[Transition, ...]] = field(init=False, repr=False, compare=False)
    """By state: its automatic transitions, in order; states without any are omitted."""
    _states: dict[str, State] = field(init=False, repr=False, compare=False)
    _exits: dict[str, tuple[Transition, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        exits = {state.name: tuple(move for move in self.transitions if move.from_state == state.name) for state in self.states}
        automatic = {name: tuple(move for move in moves if move.automatic) for name, moves in exits.items()}
        automatic = {name: moves for name, moves in automatic.items() if moves}
        object.__setattr__(self, "fallbacks", MappingProxyType(dict(self.fallbacks)))
        object.__setattr__(self, "_states", {state.name: state for state in self.states})
        object.__setattr__(self, "_exits", exits)
        object.__setattr__(self, "automatic_exits", MappingProxyType(automatic))
        object.__setattr__(self, "moves_on", MappingProxyType(self._index_moves(exits)))

    @property
    def initial(self) -> State:
        return next(state for state in self.states if state.initial)

    @property
    def signals(self) -> tuple[str, ...]:
        """Every signal that this machine handles in some state, without fallbacks."""
        return tuple(dict.fromkeys(move.signal for move in self.transitions if move.signal))

    @property
    def triggers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(move.trigger for move in self.transitions))

    def state(self, name: str) -> State:
        try:
            return self._states[name]
        except KeyError:
            raise UnknownName(f"state of {self.name}", name, self._states) from None

    def exits(self, state: str) -> tuple[Transition, ...]:
        """The transitions that leave `state`, in the order of the file."""
        return self._exits[self.state(state).name]

    def moves(self, state: str, signal: str) -> tuple[Transition, ...]:
        """The transitions that a signal (or a trigger's own name) may cause in a state, in order."""
        return self.moves_on.get((self.state(state).name, signal), ())

    def followed(self, signal: str) -> tuple[str, ...]:
        """A signal and its chain of fallbacks."""
        return follow(signal, self.fallbacks)

    def allowed(self, state: str) -> tuple[str, ...]:
        """The states that a single transition leads to."""
        return tuple(dict.fromkeys(move.to_state for move in self.exits(state)))

    def is_terminal(self, state: str) -> bool:
        return self.state(state).terminal

    def may(self, from_state: str, to_state: str) -> bool:
        """Whether a transition between the two is declared."""
        return self.state(to_state).name in self.allowed(from_state)

    def between(self, from_state: str, to_state: str) -> tuple[Transition, ...]:
        """Every transition declared between the two."""
        self.state(to_state)
        return tuple(move for move in self.exits(from_state) if move.to_state == to_state)

    def explain(self, from_state: str, to_state: str) -> str:
        """Why the move is legal, or why it is not and what is, in one sentence."""
        moves = self.between(from_state, to_state)
        if not moves:
            return self.refuse(from_state, to_state, already_there=from_state == to_state).message
        ways = "; or ".join(_explain_move(move) for move in moves)
        return f"{self.name} may go from {from_state} to {to_state}: {ways}."

    def refuse(self, state: str, asked: str, *, already_there: bool, unmet: tuple[str, ...] = ()) -> Refusal:
        """The refusal of a request in `state`; document 000 defines the order of the three cases."""
        if already_there:
            case = Case.ALREADY_THERE
        elif self.is_terminal(state):
            case = Case.TERMINAL
        else:
            case = Case.NOT_ALLOWED
        allowed = tuple(move for move in self.exits(state) if not move.automatic)
        return Refusal(case, self.name, state, asked, allowed, unmet)

    def reachable(self, state: str) -> frozenset[str]:
        """Every state that can be reached from `state`, which is included."""
        return reach({self.state(state).name}, {name: {move.to_state for move in moves} for name, moves in self._exits.items()})

    def _index_moves(self, exits: Mapping[str, tuple[Transition, ...]]) -> dict[tuple[str, str], tuple[Transition, ...]]:
        """The transitions to try for each state and name of a signal or trigger."""
        moves: dict[tuple[str, str], list[Transition]] = {}
        for transition in self.transitions:
            if not transition.automatic:
                for name in dict.fromkeys((transition.signal, transition.trigger)):
                    if name:
                        moves.setdefault((transition.from_state, name), []).append(transition)
        index = {key: tuple(transitions) for key, transitions in moves.items()}
        for state in exits:
            for signal in self.fallbacks:
                taken = next((name for name in self.followed(signal) if (state, name) in moves), None)
                if taken:
                    index[state, signal] = index[state, taken]
        return index


@dataclass(frozen=True, slots=True)
class TaskDefaults:
    """What a task gets that does not say otherwise."""

    max_attempts: int = 1
    reclaim_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """A named set of machines, one for each kind of entity."""

    name: str
    version: int
    title: str
    machines: tuple[Machine, ...]
    """The machines that the file itself declares."""
    borrowed: tuple[Machine, ...] = ()
    """Machines of other lifecycles, for the kinds that this one does not declare."""
    defaults: TaskDefaults = TaskDefaults()
    text: str = field(default="", repr=False, compare=False)
    """The text of the file, which is stored with the machines."""

    def machine(self, name: str) -> Machine:
        """A machine by its full name or the part after the dot."""
        for machine in self.machines:
            if name in (machine.name, machine.name.partition(".")[2]):
                return machine
        raise UnknownName(f"machine in lifecycle {self.name}", name, (machine.name for machine in self.machines))

    def of_kind(self, kind: Kind) -> Machine:
        """The machine for entities of this kind, its own or borrowed."""
        return next(machine for machine in (*self.machines, *self.borrowed) if machine.kind == kind)


def follow(signal: str, fallbacks: Mapping[str, str]) -> tuple[str, ...]:
    """A signal and its chain of fallbacks; a cycle is followed once."""
    chain = [signal]
    while (following := fallbacks.get(chain[-1])) and following not in chain:
        chain.append(following)
    return tuple(chain)


def reach(starts: Iterable[str], onwards: Mapping[str, Set[str]]) -> frozenset[str]:
    """Every state that can be reached from `starts`, which are included."""
    seen = set(starts)
    frontier = list(seen)
    while frontier:
        fresh = onwards.get(frontier.pop(), frozenset()) - seen
        seen |= fresh
        frontier.extend(fresh)
    return frozenset(seen)


def _explain_move(move: Transition) -> str:
    how = f"automatically ({move.trigger})" if move.automatic else f"on {move.trigger}"
    signal = f" (signal {move.signal})" if move.signal and move.signal != move.trigger else ""
    conditions = ["no earlier transition applies"] * move.otherwise + [str(guard) for guard in move.guards]
    return f"{how}{signal}" + (f" when {' and '.join(conditions)}" if conditions else "")
