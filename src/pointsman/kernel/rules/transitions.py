"""In every state at most one transition applies, and every transition can be taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from pointsman.errors import Finding, Place
from pointsman.kernel.draft import MoveDraft
from pointsman.kernel.subject import Subject, exhaustive


def duplicate_transition(subject: Subject) -> Iterator[Finding]:
    first: dict[tuple[str, str, str], MoveDraft] = {}
    for move in subject.moves:
        key = (move.from_state.text, move.to_state.text, move.trigger.text)
        if first.setdefault(key, move) is not move:
            message = f"{move} is declared twice; first on line {first[key].place.line}."
            yield Finding(
                "duplicate-transition", move.place, message, "Keep one of the two; all guards of a transition must hold."
            )


def ambiguous_transition(subject: Subject) -> Iterator[Finding]:
    reported: set[tuple[int, int]] = set()
    for asked, moves in _choices(subject):
        for earlier, later in combinations(moves, 2):
            pair = (id(earlier), id(later))
            if earlier.to_state.text == later.to_state.text and earlier.trigger.text == later.trigger.text:
                continue  # reported as a duplicate
            if later.otherwise or _exclusive(earlier, later) or pair in reported:
                continue
            reported.add(pair)
            message = f"Both {earlier} (line {earlier.place.line}) and {later} may be taken on {asked}."
            advice = "Make their guards exclude each other (`[x]` and `[not x]`), or order them with `[else …]`."
            yield Finding("ambiguous-transition", later.place, message, advice)


def shadowed_transition(subject: Subject) -> Iterator[Finding]:
    reported: set[int] = set()
    for asked, moves in _choices(subject):
        for position, move in enumerate(moves):
            if not move.otherwise or id(move) in reported:
                continue
            if position == 0:
                reported.add(id(move))
                message = f"{move} has `else`, but no transition comes before it on {asked}."
                yield Finding("stray-else", move.place, message, "Remove `else`, or put the other transition before it.")
            elif exhaustive(moves[:position]) or any(_implies(move, earlier) for earlier in moves[:position]):
                reported.add(id(move))
                message = f"{move} can never be taken: an earlier one always is."
                yield Finding("shadowed-transition", move.place, message, "Guard the earlier one, or remove this one.")
    for name, state in subject.states.items():
        exits = subject.exits(name)
        # Entities start in the initial state without a move, and automatic transitions only follow a move.
        if state.state.initial or not exhaustive([move for move in exits if move.automatic]):
            continue
        for move in exits:
            if not move.automatic and id(move) not in reported:
                message = f"{move} can never be taken: an automatic transition leaves {name} at once."
                yield Finding("shadowed-transition", move.place, message, "Guard the automatic transition, or remove this one.")


def contradictory_guards(subject: Subject) -> Iterator[Finding]:
    reported: set[Place] = set()
    for move in subject.draft.moves:
        wanted = {condition.name.text for condition in move.conditions if not condition.negated}
        for condition in move.conditions:
            name = condition.name
            if condition.negated and name.text in wanted and name.place not in reported:
                reported.add(name.place)
                message = f"{move} requires {name} and not {name}."
                yield Finding("contradictory-guards", name.place, message, "Remove one of the two.")


def automatic_cycle(subject: Subject) -> Iterator[Finding]:
    edges = subject.edges(automatic_only=True)
    reported: set[str] = set()
    for move in subject.moves:
        if not move.automatic or move.from_state.text in reported:
            continue
        way = _way(edges, move.to_state.text, move.from_state.text)
        if way:
            reported |= {move.from_state.text, *way}
            message = f"Automatic transitions form a cycle: {' -> '.join([move.from_state.text, *way])}."
            yield Finding("automatic-cycle", move.place, message, "Let a signal cause at least one of them.")


def _choices(subject: Subject) -> Iterator[tuple[str, list[MoveDraft]]]:
    """Every group of moves of which at most one may apply, with the signal or event."""
    for state in subject.states:
        exits = subject.exits(state)
        groups: dict[str, list[MoveDraft]] = {}
        for move in exits:
            names = ("becoming " + state,) if move.automatic else dict.fromkeys((*subject.signals(move), move.trigger.text))
            for name in names:
                groups.setdefault(name, []).append(move)
        yield from groups.items()


def _way(edges: Mapping[str, set[str]], start: str, end: str) -> list[str]:
    """The states on a shortest path, both ends included; empty if there is none."""
    ways = {start: [start]}
    frontier = [start]
    for state in frontier:
        if state == end:
            return ways[state]
        for following in sorted(edges[state] - ways.keys()):
            ways[following] = [*ways[state], following]
            frontier.append(following)
    return []


def _implies(later: MoveDraft, earlier: MoveDraft) -> bool:
    """Whether `later` has all the guards of `earlier`."""
    asked = {(condition.name.text, condition.negated) for condition in later.conditions}
    return all((condition.name.text, condition.negated) in asked for condition in earlier.conditions)


def _exclusive(one: MoveDraft, other: MoveDraft) -> bool:
    """Whether the two have contradicting guards."""
    wanted = {(condition.name.text, condition.negated) for condition in one.conditions}
    return any((condition.name.text, not condition.negated) in wanted for condition in other.conditions)
