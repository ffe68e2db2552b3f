"""Notices what happens to time: steps of the database's clock, and times at which this process did not run.

Every reading of the database's time is compared with the boot clock of this machine, which no step moves and which counts the
time for which the machine was suspended. Each reading is an interval: the database read its clock at some moment between the
question and the answer. So neither a slow network nor a frozen process looks like a step.
"""

from __future__ import annotations

import logging
import math
from datetime import datetime, timedelta
from typing import NamedTuple

from pointsman.store.clock import NEVER, SLEW, DatabaseTime
from pointsman.store.contract import Foresee, Store, Transaction
from pointsman.world import Clock

TOLERANCE_SECONDS = 0.5
"""Smaller steps are left alone: they cost no lease."""
DRIFT = 0.001
"""How much faster one clock may run than another."""
LATE_SECONDS = 2.0
"""A duty that sleeps for so much longer than it wanted to was not able to run."""
LONGEST_TURN_SECONDS = 30.0
"""On a busy machine or database, a duty may take as long: this is not a sign that others were not able to run either."""

log = logging.getLogger(__name__)


class _Reading(NamedTuple):
    """The time of the database, and the boot clock before and after it was read."""

    time: DatabaseTime
    asked: float
    answered: float

    def is_as_sharp_as(self, last: _Reading) -> bool:
        drift = DRIFT * (self.answered - last.answered)
        return self.answered - self.asked <= last.answered - last.asked + drift


class Step(NamedTuple):
    """By how many seconds the clock has stepped, and by how many more or fewer it may have been."""

    seconds: float
    doubt: float


class Timekeeper:
    """Begins the transactions of the writer, and corrects the clock of the database in the first one after a step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: _Reading | None = None

    def begin(self, store: Store, foresee: Foresee | None = None) -> Transaction:
        asked = self._clock.boottime()
        transaction = store.begin(foresee)
        try:
            if step := self.find_step(transaction.time(), asked):
                self._correct(transaction, step)
        except BaseException:
            transaction.rollback()
            raise
        return transaction

    def find_step(self, time: DatabaseTime, asked: float) -> Step | None:
        """By how much the clock has stepped since the last reading. `asked` is the boot clock before this one.

        A step that was found is found again, until a correction of it is committed.
        """
        new, last = _Reading(time, asked, self._clock.boottime()), self._last
        if last and (step := _find_step(last, new)):
            return step
        if last is None or last.time.revision != time.revision or new.is_as_sharp_as(last):
            self._last = new
        return None

    def _correct(self, transaction: Transaction, step: Step) -> None:
        """The clock is wrong, unless others have lived through the time that is missing here: then this machine stood still.

        A virtual machine that was paused does not count that time, and must not set the clock of all others back.
        """
        time = transaction.time()
        corrected = time.correct(step.seconds)
        if step.seconds > 0 and transaction.was_heard(corrected.now + timedelta(seconds=step.doubt), time.now):
            self._last = None
            return
        transaction.correct_clock(corrected)
        log.warning(
            "the clock of the database has stepped by %+.3f seconds; leases and timers go on by elapsed time",
            step.seconds,
            extra={"step_seconds": step.seconds, "offset_seconds": corrected.offset_seconds},
        )


def _find_step(last: _Reading, new: _Reading) -> Step | None:
    """By how much the time has moved more than any time that may have passed between two readings."""
    if last.time.revision == new.time.revision:
        moved, drift = new.time.steady - last.time.steady, DRIFT
    else:  # another process has corrected a step in between, at which both times agree, and there may have been another step
        moved, drift = new.time.steady - last.time.now.timestamp(), DRIFT + SLEW
    shortest, longest = new.asked - last.answered, new.answered - last.asked
    allowed = TOLERANCE_SECONDS + drift * longest
    if shortest - allowed <= moved <= longest + allowed:
        return None
    return Step(moved - (shortest + longest) / 2, doubt=(longest - shortest) / 2 + allowed)


class Attendance:
    """Notices that this process was not able to run or to reach the database. Then nobody else's silence means anything.

    A suspended machine, a stopped process and a database that was away look alike: the next look comes too late.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrived_at = 0.0
        self._expected_by = math.inf
        self.since: datetime = NEVER
        """The database time at which this process was last back."""

    def arrive(self, now: datetime, asked: float) -> None:
        """The database says that it is `now`. `asked` is the boot clock before the question: meanwhile, no more has passed."""
        self._arrived_at = self._clock.boottime()
        if self._arrived_at > self._expected_by:
            self.since = now + timedelta(seconds=self._arrived_at - asked)

    def leave(self, seconds: float) -> None:
        """The next look is so many seconds after this one at the latest; or, if something is due now, when that is done."""
        self._expected_by = self._arrived_at + (seconds + LATE_SECONDS if seconds > 0 else LONGEST_TURN_SECONDS)
