"""The elements of the drawing: arrows, chips and hubs, and the level of each state.

Parallel transitions become one arrow. A trigger that leads to one state from many (`cancel`) becomes a hub: a chip in each
source and a single stub at the target, instead of a bundle of long arrows that hides everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pointsman.kernel.machine import Machine, Severity, Transition

HUB_SOURCES = 4
"""From so many states on, a trigger that leads to one target is drawn as a hub."""
CROWDED = 24
"""With more arrows than this, hubs begin one source earlier."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a label."""

    text: str
    condition: bool = False
    severity: Severity = Severity.INFO


@dataclass(frozen=True, slots=True)
class Arrow:
    """All transitions from one state to another that are drawn as one arrow."""

    from_state: str
    to_state: str
    moves: tuple[Transition, ...]
    back: bool = False
    """Leads towards the beginning, so it is drawn upwards."""

    @property
    def automatic(self) -> bool:
        return all(move.automatic for move in self.moves)


@dataclass(frozen=True, slots=True)
class Chip:
    """A move that is written into the box of its state: part of a hub, or one that leads back to the same state."""

    from_state: str
    to_state: str
    trigger: str
    conditions: tuple[str, ...]
    """Empty where the hub's stub says them for all."""

    @property
    def text(self) -> str:
        return f"{self.trigger} [{', '.join(self.conditions)}]" if self.conditions else self.trigger

    @property
    def loops(self) -> bool:
        return self.from_state == self.to_state


@dataclass(frozen=True, slots=True)
class Hub:
    """One trigger that leads to one state from many."""

    target: str
    trigger: str
    moves: tuple[Transition, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(move.from_state for move in self.moves))

    @property
    def shared_conditions(self) -> tuple[str, ...]:
        """The conditions, where all its moves have the same."""
        first = self.moves[0].conditions
        return first if all(move.conditions == first for move in self.moves) else ()

    @property
    def lines(self) -> tuple[Line, ...]:
        conditions = self.shared_conditions
        severity = max((move.severity for move in self.moves), key=list(Severity).index)
        guard = (Line(f"[{', '.join(conditions)}]", condition=True),) if conditions else ()
        return (Line(self.trigger, severity=severity), *guard, Line(f"from {len(self.sources)} states", condition=True))


@dataclass(frozen=True, slots=True)
class Graph:
    """Everything to draw, and the level of each state (0 is the top)."""

    arrows: tuple[Arrow, ...]
    chips: Mapping[str, tuple[Chip, ...]]
    hubs: tuple[Hub, ...]
    levels: Mapping[str, int]


def build_graph(machine: Machine) -> Graph:
    """Decide what is drawn as an arrow, what as a chip, and the level of each state."""
    moves = tuple(move for move in machine.transitions if move.from_state != move.to_state)
    hubs = _find_hubs(moves, HUB_SOURCES)
    if len({(move.from_state, move.to_state) for move in _without(moves, hubs)}) > CROWDED:
        hubs = _find_hubs(moves, HUB_SOURCES - 1)
    back = _back_pairs(machine)
    pairs: dict[tuple[str, str], list[Transition]] = {}
    for move in _without(moves, hubs):
        pairs.setdefault((move.from_state, move.to_state), []).append(move)
    arrows = tuple(Arrow(*pair, tuple(among), back=pair in back) for pair, among in pairs.items())
    return Graph(arrows, _chips(machine, hubs), hubs, _levels(machine, arrows, hubs))


def label_lines(moves: Iterable[Transition], width: int) -> tuple[Line, ...]:
    """An arrow's label: triggers that share their conditions stand together, and nothing is wider than it must be."""
    groups: dict[tuple[tuple[str, ...], Severity], list[str]] = {}
    for move in moves:
        triggers = groups.setdefault((move.conditions, move.severity), [])
        if move.trigger not in triggers:
            triggers.append(move.trigger)
    lines: list[Line] = []
    for (conditions, severity), triggers in groups.items():
        lines += (Line(text, severity=severity) for text in wrap(triggers, width))
        lines += (Line(text, condition=True, severity=severity) for text in wrap(conditions, width, ("[", "]")))
    return tuple(lines)


def wrap(words: Sequence[str], width: int, brackets: tuple[str, str] = ("", "")) -> list[str]:
    """Words with commas between them, in lines of about `width` characters."""
    if not words:
        return []
    opening, closing = brackets
    parts = [f"{word}," for word in words[:-1]] + [words[-1] + closing]
    lines = [opening + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 1 + len(part) <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines


def _find_hubs(moves: Sequence[Transition], sources: int) -> tuple[Hub, ...]:
    groups: dict[tuple[str, str], list[Transition]] = {}
    for move in moves:
        groups.setdefault((move.to_state, move.trigger), []).append(move)
    hubs = (Hub(target, trigger, tuple(among)) for (target, trigger), among in groups.items())
    return tuple(hub for hub in hubs if len(hub.sources) >= sources)


def _without(moves: Iterable[Transition], hubs: Iterable[Hub]) -> list[Transition]:
    taken = {(hub.target, hub.trigger) for hub in hubs}
    return [move for move in moves if (move.to_state, move.trigger) not in taken]


def _chips(machine: Machine, hubs: Iterable[Hub]) -> dict[str, tuple[Chip, ...]]:
    shared = {(hub.target, hub.trigger): hub.shared_conditions for hub in hubs}
    chips: dict[str, tuple[Chip, ...]] = {}
    for state in machine.states:
        found: dict[Chip, None] = {}
        for move in machine.exits(state.name):
            key = (move.to_state, move.trigger)
            if key in shared or move.to_state == state.name:
                conditions = () if shared.get(key) else move.conditions
                found[Chip(state.name, move.to_state, move.trigger, conditions)] = None
        chips[state.name] = tuple(found)
    return chips


def _back_pairs(machine: Machine) -> set[tuple[str, str]]:
    """The moves that close a circle, seen from the initial state in the order of the file."""
    back: set[tuple[str, str]] = set()
    finished: set[str] = set()
    for root in (machine.initial.name, *(state.name for state in machine.states)):
        if root in finished:
            continue
        path = {root: iter(machine.allowed(root))}
        while path:
            here = next(reversed(path))
            there = next(path[here], None)
            if there is None:
                del path[here]
                finished.add(here)
            elif there in path:
                back.add((here, there))
            elif there not in finished:
                path[there] = iter(machine.allowed(there))
    return back


def _levels(machine: Machine, arrows: Sequence[Arrow], hubs: Sequence[Hub]) -> dict[str, int]:
    """Levels that keep arrows short: from the longest path, then each state moves to where its arrows pull it."""
    names = [state.name for state in machine.states]
    above: dict[str, list[str]] = {name: [] for name in names}
    below: dict[str, list[str]] = {name: [] for name in names}
    for arrow in arrows:
        upper, lower = (arrow.to_state, arrow.from_state) if arrow.back else (arrow.from_state, arrow.to_state)
        above[lower].append(upper)
        below[upper].append(lower)
    levels = dict.fromkeys(names, 0)
    for _ in names:
        for name in names:
            levels[name] = max((levels[upper] + 1 for upper in above[name]), default=0)
    for _ in names:
        for name in names:
            if len(below[name]) > len(above[name]):
                levels[name] = min(levels[lower] for lower in below[name]) - 1
    bottom = max(levels.values())
    for hub in hubs:
        if not below[hub.target] and machine.is_terminal(hub.target):
            levels[hub.target] = bottom
    return levels
