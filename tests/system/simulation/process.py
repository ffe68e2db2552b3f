"""A simulated process: the real store, decider and writer on a clock of its own; it can be killed and started again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from tests.system.simulation.database import Hear, SharedStore, Watch, template
from tests.system.simulation.faults import Crashed, Fault, FaultyStore

from pointsman.engine.batch import Decider
from pointsman.engine.operation import Operation
from pointsman.engine.timekeeper import Timekeeper
from pointsman.engine.writer import Writer
from pointsman.store.contract import Transaction
from pointsman.world import RandomIds, World

BEGINNING = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
MOST_WORK = 20_000
"""Statements for one batch."""


class Time:
    """The time that really passes; the clocks of the processes go by it, each a little wrong."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.stepped_seconds = 0.0
        """How far somebody has set the wall clock, which all processes share."""

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class SkewedClock:
    def __init__(self, time: Time) -> None:
        self._time = time
        self.skew_seconds = 0.0

    def now(self) -> datetime:
        return BEGINNING + timedelta(seconds=round(self._time.seconds + self._time.stepped_seconds + self.skew_seconds, 3))

    def monotonic(self) -> float:
        return self._time.seconds

    def boottime(self) -> float:
        return self.monotonic()


class Pause(threading.Event):
    """What a writer waits for between two tries: here time passes instead."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self._time = time

    def wait(self, timeout: float | None = None) -> bool:
        self._time.advance(timeout or 0.0)
        return False


class Process:
    def __init__(self, name: str, database: str, time: Time, chance: Random, watch: Watch, hear: Hear) -> None:
        self.name = name
        self.clock = SkewedClock(time)
        self._database = database
        self._time = time
        self._chance = chance
        self._watch = watch
        self._hear = hear
        self.is_alive = False
        self.work = 0
        """How many statements the commands at hand have taken."""
        self.last_error: Exception | None = None
        """What a batch met last: the writer splits it, and then nobody hears of it any more."""
        self.start()

    def start(self) -> None:
        """With nothing in mind but what the database knows."""
        ids = RandomIds(Random(self._chance.getrandbits(64)))
        world = World(clock=self.clock, ids=ids, chance=Random(self._chance.getrandbits(64)))
        self.store = SharedStore(self._database, clock=self.clock, ids=ids, watch=self._watch, hear=self._hear)
        self.store.writer.exec_trace = self._count_work
        self._faulty = FaultyStore(self.store)
        self._decider = Decider(template()[1], world)
        timekeeper = Timekeeper(self.clock)
        timekeeper.begin(self.store).rollback()  # as the duties of a process do at once
        self.writer = Writer(self._faulty, self._decide, self.clock, world.chance, timekeeper, _closing=Pause(self._time))
        self.is_alive = True

    def _count_work(self, *_: object) -> bool:
        """Whoever asks the database without end is stopped, so that a loop is a failure like any other."""
        self.work += 1
        return self.work <= MOST_WORK

    def _decide(self, transaction: Transaction, commands: Sequence[Operation[Any]]) -> list[Any]:
        try:
            return self._decider.decide(transaction, commands)
        except Exception as error:
            self.last_error = error
            raise

    def expect(self, fault: Fault | None) -> None:
        self._faulty.fault = fault

    def execute(self, commands: Sequence[Operation[Any]]) -> list[Any] | None:
        """The answers; none when the process was killed meanwhile."""
        self.work = 0
        try:
            return self.writer.execute(commands)
        except Crashed:
            self.kill()
            return None
        finally:
            if self.is_alive:
                self.expect(None)

    def kill(self) -> None:
        self.is_alive = False
        self.store.close()
