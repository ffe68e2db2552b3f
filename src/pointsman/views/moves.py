"""Moves: what the machine of an entity lets a person do with it now, without a look at other rows."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from pointsman.engine.people import PEOPLE
from pointsman.kernel.machine import Machine, Transition
from pointsman.store.rows import Entity


class Move(Struct, frozen=True):
    """A transition that leaves the present state. Its guards, if it has any, are checked when it is asked for."""

    trigger: str
    signal: str | None
    to_state: str
    guards: tuple[str, ...] = ()


def list_moves(machine: Machine, entity: Entity) -> tuple[Move, ...]:
    """The transitions from the present state that a person may cause."""
    return make_moves(move for move in machine.exits(entity.state) if move.signal in PEOPLE[machine.kind])


def make_moves(transitions: Iterable[Transition]) -> tuple[Move, ...]:
    return tuple(Move(move.trigger, move.signal, move.to_state, move.conditions) for move in transitions if not move.automatic)
