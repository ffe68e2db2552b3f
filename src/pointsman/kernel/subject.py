"""A machine as the verification rules see it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from pointsman.errors import nearest
from pointsman.kernel.draft import MachineDraft, MoveDraft, StateDraft
from pointsman.kernel.machine import follow
from pointsman.kernel.vocabulary import Signals, Vocabulary

MOST_GUARDS = 12
"""The largest number of guards whose combinations are all tried."""


class Subject:
    """The draft of a machine, the words that it may use, and its graph."""

    def __init__(self, draft: MachineDraft, vocabulary: Vocabulary) -> None:
        self.draft = draft
        self.kind = draft.kind
        self.vocabulary = vocabulary
        self.known = vocabulary.signals[draft.kind] if draft.kind else Signals(required={}, optional={})
        self.states: dict[str, StateDraft] = {}
        for state in draft.states:
            self.states.setdefault(state.state.name, state)
        self.moves = [move for move in draft.moves if move.from_state.text in self.states and move.to_state.text in self.states]
        self.fallbacks = {signal.text: target.text for signal, target in draft.fallbacks}
        known = frozenset(self.known)
        self.pulled: dict[int, tuple[str, ...]] = {id(move): tuple(draft.signals_of(move, known)) for move in draft.moves}
        self.taken = {signal for signals in self.pulled.values() for signal in signals}
        """The signals that some transition handles, without fallbacks."""

    def signals(self, move: MoveDraft) -> tuple[str, ...]:
        return self.pulled[id(move)]

    def exits(self, state: str) -> list[MoveDraft]:
        return [move for move in self.draft.moves if move.from_state.text == state]

    def taken_by(self, state: str, signal: str) -> list[MoveDraft]:
        """The moves that a signal may cause in a state, fallbacks included."""
        for name in self.followed(signal):
            if moves := [move for move in self.exits(state) if name in self.signals(move)]:
                return moves
        return []

    def answers(self, signal: str) -> bool:
        """Whether a signal has an effect in some state, fallbacks included."""
        return not self.taken.isdisjoint(self.followed(signal))

    def followed(self, signal: str) -> tuple[str, ...]:
        return follow(signal, self.fallbacks)

    def edges(self, *, backwards: bool = False, automatic_only: bool = False) -> dict[str, set[str]]:
        """The successors of each state. A misspelt state counts as the nearest one, so that a typo is reported only once."""
        edges: dict[str, set[str]] = {name: set() for name in self.states}
        for move in self.draft.moves:
            source, target = self._meant(move.from_state.text), self._meant(move.to_state.text)
            if source and target and (move.automatic or not automatic_only):
                edges[target if backwards else source].add(source if backwards else target)
        return edges

    def _meant(self, state: str) -> str | None:
        return state if state in self.states else next(iter(nearest(state, self.states)), None)


def exhaustive(moves: list[MoveDraft]) -> bool:
    """Whether one of the moves is taken for all facts."""
    names = sorted({condition.name.text for move in moves for condition in move.conditions})
    if len(names) > MOST_GUARDS:
        return any(not move.conditions for move in moves)
    worlds = (dict(zip(names, truth, strict=True)) for truth in product((False, True), repeat=len(names)))
    return all(any(_open(move, world) for move in moves) for world in worlds)


def _open(move: MoveDraft, world: Mapping[str, bool]) -> bool:
    return all(world[condition.name.text] is not condition.negated for condition in move.conditions)
