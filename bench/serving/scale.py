"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass

from bench.contenders import Pace


@dataclass(frozen=True)
class Scale:
    name: str
    pace: Pace
    clients: int
    """WebSockets that follow the live events."""
    live_seconds: float
    waiting: int
    """Long polls of remote workers that have nothing to do."""
    starts: int
    idle_seconds: float
