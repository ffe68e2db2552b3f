"""A lifecycle file as it was written: every word with its place, nothing believed yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pointsman.errors import Place
from pointsman.kernel.machine import Kind, Severity, State


@dataclass(frozen=True, slots=True)
class Word:
    """A name and where it stands."""

    text: str
    place: Place

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Condition:
    """A guard as it was written."""

    name: Word
    negated: bool


@dataclass(frozen=True, slots=True)
class StateDraft:
    """A state as it was written."""

    state: State
    place: Place
    needs: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class MoveDraft:
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


@dataclass(frozen=True, slots=True)
class Binding:
    """A signal bound to a trigger, in some states or in all."""

    signal: Word
    trigger: Word
    from_states: tuple[Word, ...]

    def applies_to(self, move: MoveDraft) -> bool:
        if move.trigger.text != self.trigger.text:
            return False
        return not self.from_states or move.from_state.text in {state.text for state in self.from_states}


@dataclass(slots=True)
class MachineDraft:
    """One machine of a lifecycle file."""

    name: Word
    kind: Kind | None = None
    same_as: Word | None = None
    states: list[StateDraft] = field(default_factory=list)
    moves: list[MoveDraft] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    by_name: list[Word] = field(default_factory=list)
    """Triggers that a person pulls by their own name."""
    fallbacks: list[tuple[Word, Word]] = field(default_factory=list)
    state_names: set[str] | None = None
    """Every state that is declared, readable or not; None where they could not be read at all."""
    moves_read: bool = True
    """False when transitions could not be read, so that their triggers are not known."""
    whole: bool = True
    """False when part of it could not be read or stands elsewhere (`same_as`), so that its graph says nothing."""

    def signals_of(self, move: MoveDraft, known: frozenset[str]) -> Iterator[str]:
        """The signals that pull a move: those bound to its trigger, else the one of the same name."""
        if move.automatic:
            return
        bound = dict.fromkeys(binding.signal.text for binding in self.bindings if binding.applies_to(move))
        if bound:
            yield from bound
        elif move.trigger.text in known and not any(binding.signal.text == move.trigger.text for binding in self.bindings):
            yield move.trigger.text


@dataclass(slots=True)
class LifecycleDraft:
    """A whole file."""

    name: Word
    version: int = 1
    title: str = ""
    machines: list[MachineDraft] = field(default_factory=list)
