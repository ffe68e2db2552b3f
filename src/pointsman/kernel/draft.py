"""A lifecycle file as it was written: every word with its position, before verification."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from pointsman.errors import Place
from pointsman.kernel.machine import Kind, Severity, State, TaskDefaults


class Word(Struct, frozen=True):
    """A name and its position."""

    text: str
    place: Place

    def __str__(self) -> str:
        return self.text


class Condition(Struct, frozen=True):
    """A guard as it was written."""

    name: Word
    negated: bool


class StateDraft(Struct, frozen=True):
    """A state as it was written."""

    state: State
    place: Place
    needs: tuple[Word, ...]


class MoveDraft(Struct, frozen=True):
    """One transition from one state; a line with several sources makes several of them."""

    from_state: Word
    to_state: Word
    trigger: Word
    conditions: tuple[Condition, ...]
    otherwise: bool
    automatic: bool
    severity: Severity
    effects: tuple[Word, ...]

    @property
    def place(self) -> Place:
        return self.from_state.place

    def __str__(self) -> str:
        return f"{self.from_state} -> {self.to_state} : {self.trigger}"


class Binding(Struct, frozen=True):
    """A signal bound to a trigger, in some states or in all."""

    signal: Word
    trigger: Word
    from_states: tuple[Word, ...]

    def applies_to(self, move: MoveDraft) -> bool:
        if move.trigger.text != self.trigger.text:
            return False
        return not self.from_states or move.from_state.text in {state.text for state in self.from_states}


class MachineDraft(Struct):
    """One machine of a lifecycle file."""

    name: Word
    kind: Kind | None = None
    same_as: Word | None = None
    states: list[StateDraft] = field(default_factory=list)
    moves: list[MoveDraft] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    by_name: list[Word] = field(default_factory=list)
    """Triggers that only people send, by their own name."""
    fallbacks: list[tuple[Word, Word]] = field(default_factory=list)
    state_names: set[str] | None = None
    """Every declared state, even one that could not be read; None if `states` could not be read."""
    moves_read: bool = True
    """False if some transitions, and so their triggers, could not be read."""
    whole: bool = True
    """False if the machine could not be read completely, or is defined elsewhere (`same_as`): its graph is not checked."""

    def signals_of(self, move: MoveDraft, known: frozenset[str]) -> Iterator[str]:
        """The signals that cause a move: those bound to its trigger, or else the one with its name."""
        if move.automatic:
            return
        bound = dict.fromkeys(binding.signal.text for binding in self.bindings if binding.applies_to(move))
        if bound:
            yield from bound
        elif move.trigger.text in known and not any(binding.signal.text == move.trigger.text for binding in self.bindings):
            yield move.trigger.text


class LifecycleDraft(Struct):
    """A whole file."""

    name: Word
    version: int = 1
    title: str = ""
    defaults: TaskDefaults = field(default_factory=TaskDefaults)
    machines: list[MachineDraft] = field(default_factory=list)
