"""The time of the database: what its clock shows, and a correction for the steps that this clock has made.

    wall clock     12:00:00  12:00:01  13:00:02  13:00:03 …  one step of an hour
    offset                0         0     -1:00     -1:00 …  stored by the first process that notices the step; shrinks slowly
    database time  12:00:00  12:00:01  12:00:02  12:00:03 …  agrees with the wall clock again after 20 hours

Leases and timers go by the database time, and so does the audit trail.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import copysign

from msgspec import Struct

SLEW = 0.05
"""How much of the elapsed time a correction shrinks by: one of an hour is gone after 20 hours. No lease notices 5 %."""
NEVER = datetime(1970, 1, 1, tzinfo=UTC)


class DatabaseTime(Struct, frozen=True):
    """One reading of the clock, with the correction that the database stores."""

    wall: datetime
    """What the clock shows."""
    revision: int = 0
    """How many corrections there were."""
    offset_seconds: float = 0.0
    corrected_at: datetime = NEVER
    """What the clock showed when it was corrected."""

    @property
    def now(self) -> datetime:
        """The time that counts."""
        return self.wall + timedelta(seconds=self._offset_at(self.wall))

    @property
    def steady(self) -> float:
        """Seconds as steady as those of any clock, from one correction to the next. Each begins at the time that counts."""
        return self.wall.timestamp() + self.offset_seconds

    def correct(self, step_seconds: float) -> DatabaseTime:
        """The same reading when the clock has stepped by so much: `now` is what it would have been."""
        offset = self._offset_at(self.wall - timedelta(seconds=step_seconds)) - step_seconds
        return DatabaseTime(self.wall, self.revision + 1, offset, self.wall)

    def _offset_at(self, wall: datetime) -> float:
        if not self.offset_seconds:
            return 0.0
        elapsed = max((wall - self.corrected_at).total_seconds(), 0.0)
        return copysign(max(abs(self.offset_seconds) - SLEW * elapsed, 0.0), self.offset_seconds)
