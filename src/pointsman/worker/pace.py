"""How long a worker waits before it reports, so that what ends at about the same time shares a commit.

    short work     ─▶ its neighbours end within less time than a commit takes: to wait for them saves theirs
    everything else ─▶ is reported at once

It never waits longer than the last commit took, and not for what has been running for much longer than is usual.
"""

from __future__ import annotations

from pointsman.world import Clock

SLACK = 1.5
"""What has taken so many times as long as usual is not waited for any more."""
MEMORY = 4
"""The usual time is an average, in which the last one counts for one of so many."""
LONGEST_SECONDS = 1.0
"""All that takes longer is alike: it is soon forgotten when short work comes again. Where half of it is usual, nobody waits."""


class Pace:
    """What attempts of this worker usually take, and what a commit does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: dict[tuple[str, int], float] = {}
        """Of those that have not come to their end."""
        self._usual_seconds = LONGEST_SECONDS
        self._commit_seconds = 0.0
        self._first_end: float | None = None
        """When the first of those that are to be reported came to its end."""

    def begin(self, key: tuple[str, int]) -> None:
        self._began[key] = self._clock.monotonic()

    def end(self, key: tuple[str, int]) -> None:
        """It has come to its end, or is not to be counted on."""
        began = self._began.pop(key, None)
        if began is None:
            return
        now = self._clock.monotonic()
        self._usual_seconds += (min(now - began, LONGEST_SECONDS) - self._usual_seconds) / MEMORY
        if self._first_end is None:
            self._first_end = now

    def hand_over(self) -> float:
        """What has ended so far is reported now; when that is, for `committed`."""
        self._first_end = None
        return self._clock.monotonic()

    def committed(self, handed_over: float) -> None:
        self._commit_seconds = self._clock.monotonic() - handed_over

    def patience(self) -> float:
        """For how many seconds it is worth to wait for others; nothing when there is nothing to report."""
        if self._first_end is None:
            return 0.0
        until = self._first_end + self._commit_seconds
        usual = self._usual_seconds
        awaited = [began for began in self._began.values() if began + usual < until]
        if not awaited or usual > LONGEST_SECONDS / 2:
            return 0.0
        return max(min(until, max(awaited) + SLACK * usual) - self._clock.monotonic(), 0.0)
