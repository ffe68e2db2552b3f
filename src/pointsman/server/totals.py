"""Totals of the audit trail, which grow with it: each transition is read once by each server that is scraped.

    position 0 ──first scrape: in pages──▶ now ──each further scrape: only what is new──▶ now

So every server has the same totals, from the first transition of the database on, and a restart resets nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pointsman.engine.engine import Engine
from pointsman.kernel.machine import Kind
from pointsman.store.rows import SECONDS_BOUNDS, TransitionTally

PAGE = 200_000
"""Positions that one query counts. Other queries go on between two pages, and what was counted stays counted."""


class Move(NamedTuple):
    tenant: str
    machine: str
    from_state: str | None
    to_state: str
    trigger: str


@dataclass(slots=True)
class Stay:
    """How long a state lasted, of everything that has left it."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BOUNDS) + 1))
    """By bucket, the last of which is for what is longer than all bounds."""
    seconds: float = 0.0


@dataclass(slots=True)
class Totals:
    """Of one process, for all its scrapes."""

    engine: Engine
    moves: dict[Move, int] = field(default_factory=lambda: defaultdict(int))
    stays: dict[tuple[str, str, str], Stay] = field(default_factory=lambda: defaultdict(Stay))
    """By tenant, machine and state."""
    _position: int = 0
    _claims: dict[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    """By machine: the states and triggers of claims."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def catch_up(self) -> None:
        """Count what has been committed since the last time; one scrape at a time."""
        async with self._lock:
            while True:
                end, tallies = await self.engine.tally_transitions(self._position, PAGE)
                if end == self._position:
                    break
                self._add(tallies)
                self._position = end
            if any(move.machine not in self._claims for move in self.moves):
                self._claims = {
                    machine.name: frozenset(
                        (state.name, move.trigger) for state in machine.states for move in machine.moves(state.name, "claim")
                    )
                    if machine.kind is Kind.TASK
                    else frozenset()
                    for machine in await self.engine.list_machines()
                }

    def _add(self, tallies: Iterable[TransitionTally]) -> None:
        for each in tallies:
            self.moves[Move(each.tenant, each.machine, each.from_state, each.to_state, each.trigger)] += each.count
            if each.from_state is not None and each.bucket >= 0:
                stay = self.stays[each.tenant, each.machine, each.from_state]
                stay.counts[each.bucket] += each.count
                stay.seconds += each.seconds

    def is_claim(self, move: Move) -> bool:
        return (move.from_state, move.trigger) in self._claims.get(move.machine, ())
