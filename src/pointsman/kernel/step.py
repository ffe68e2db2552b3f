"""The only function that decides transitions: pure and total."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from pointsman.kernel.machine import Machine, Refusal, Transition


class Snapshot(Struct, frozen=True):
    """The state of an entity, and when it was entered."""

    state: str
    entered_at: datetime


class Step(Struct, frozen=True):
    """The result of a signal: the next snapshot, the transitions taken, and the effects to carry out."""

    snapshot: Snapshot
    taken: tuple[Transition, ...]
    effects: tuple[str, ...]


def step(machine: Machine, snapshot: Snapshot, signal: str, facts: Any, now: datetime) -> Step | Refusal:
    """Decide what `signal` does to an entity, automatic transitions included.

    `signal` may also be a trigger's own name. `facts` is the argument of the guards.
    """
    state = snapshot.state
    for move in machine.moves_on.get((state, signal), ()):
        for guard in move.guards:
            if not guard.holds(facts):
                break
        else:
            if move.to_state not in machine.automatic_exits:
                return Step(Snapshot(move.to_state, now), (move,), move.effects)
            return _follow_automatic(machine, move, facts, now)
    return _refuse(machine, state, signal, facts)


def _follow_automatic(machine: Machine, move: Transition, facts: Any, now: datetime) -> Step:
    """Continue along the automatic transitions whose guards hold; cycles of them are refused when a file is loaded."""
    taken = [move]
    following: Transition | None = move
    while following:
        exits = machine.automatic_exits.get(taken[-1].to_state, ())
        following = next((each for each in exits if all(guard.holds(facts) for guard in each.guards)), None)
        if following:
            taken.append(following)
    effects = tuple(effect for each in taken for effect in each.effects)
    return Step(Snapshot(taken[-1].to_state, now), tuple(taken), effects)


def _refuse(machine: Machine, state: str, signal: str, facts: Any) -> Refusal:
    moves = machine.moves(state, signal)
    unmet = tuple(" and ".join(str(guard) for guard in move.guards if not guard.holds(facts)) for move in moves)
    stands_for = next((name for name in machine.followed(signal) if name in machine.signals), signal)
    leads_here = any(move.to_state == state for move in machine.transitions if stands_for in (move.signal, move.trigger))
    return machine.refuse(state, signal, already_there=leads_here and not moves, unmet=unmet)
