"""How long a worker waits before it reports, so that attempts that end at about the same time share a commit.

    short attempts  ─▶ others end sooner than a commit would: waiting for them saves their commits
    all others      ─▶ are reported at once

The worker never waits longer than the last commit took, nor for attempts that take much longer than usual.
"""

from __future__ import annotations

from pointsman.world import Clock

SLACK = 1.5
"""An attempt that takes this many times longer than usual is not waited for."""
MEMORY = 4
"""The usual time is a moving average; the last attempt has a weight of one in this many."""
LONGEST_SECONDS = 1.0
"""Longer attempts count as this long, so that the average adapts quickly; above half of it, the worker never waits."""


class Pace:
    """How long attempts and commits of this worker usually take."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started: dict[tuple[str, int], float] = {}
        """By attempt that has not ended."""
        self._usual_seconds = LONGEST_SECONDS
        self._commit_seconds = 0.0
        self._first_end: float | None = None
        """When the first unreported attempt ended."""

    def start(self, key: tuple[str, int]) -> None:
        self._started[key] = self._clock.monotonic()

    def end(self, key: tuple[str, int]) -> None:
        """It has ended, or is not waited for any more."""
        started = self._started.pop(key, None)
        if started is None:
            return
        now = self._clock.monotonic()
        self._usual_seconds += (min(now - started, LONGEST_SECONDS) - self._usual_seconds) / MEMORY
        if self._first_end is None:
            self._first_end = now

    def hand_over(self) -> float:
        """All ended attempts are reported now; returns the time, for `committed`."""
        self._first_end = None
        return self._clock.monotonic()

    def committed(self, handed_over: float) -> None:
        self._commit_seconds = self._clock.monotonic() - handed_over

    def patience(self) -> float:
        """How many seconds to wait for others; 0 if there is nothing to report."""
        if self._first_end is None:
            return 0.0
        until = self._first_end + self._commit_seconds
        usual = self._usual_seconds
        awaited = [started for started in self._started.values() if started + usual < until]
        if not awaited or usual > LONGEST_SECONDS / 2:
            return 0.0
        return max(min(until, max(awaited) + SLACK * usual) - self._clock.monotonic(), 0.0)
