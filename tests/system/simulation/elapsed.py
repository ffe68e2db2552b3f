"""Leases and timers are held against the time that really passes, whatever the clock of the database shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
from tests.system.simulation.post import Message
from tests.system.simulation.process import Time
from tests.system.simulation.promises import Promises, keep

from pointsman.engine.operations.upkeep import ExpireWorkers, FireTimers

LEASES = "a lease lasts as long as it says"
TIMERS = "a timer fires when its time has passed"
SLACK = 0.06
"""A clock that was corrected gains or loses 5 % until it is right again."""
TOLERANCE_SECONDS = 1.0
"""Clocks of processes differ a little."""
MILLION = 1_000_000
WORKERS = "SELECT id, rowid, heartbeat_at, lease_seconds, missing FROM worker WHERE phase <> 'done' ORDER BY id"
TIMES = "SELECT entity_id, purpose, revision, due_at FROM timer ORDER BY entity_id, purpose"


class Elapsed:
    def __init__(self, connection: apsw.Connection, time: Time, promises: Promises) -> None:
        self._connection = connection
        self._time = time
        self._promises = promises
        self._written: dict[int, float] = {}
        """By row of a worker: when it was last written."""
        self._heard: dict[str, tuple[int, float]] = {}
        """By worker: its last heartbeat as stored, and when that was written."""
        self._leases: dict[str, float] = {}
        self._missing: set[str] = set()
        self._timers: dict[tuple[Any, ...], tuple[float, float]] = {}
        """By timer: when it was set, and for how long."""

    def note(self, table: str, row: int) -> None:
        if table == "worker":
            self._written[row] = self._time.seconds

    def silence_of(self, worker_id: str) -> float:
        """How long nobody has heard of a worker, in leases."""
        return (self._time.seconds - self._heard[worker_id][1]) / self._leases[worker_id]

    def check(self, batch: Sequence[Message], outcomes: Sequence[Any] | None) -> None:
        """Look at what a batch has left behind."""
        self._look_at_workers()
        self._look_at_timers()
        for message, outcome in zip(batch, outcomes or (), strict=False):
            if isinstance(outcome, int) and isinstance(message.command, ExpireWorkers):
                self._check_silent()
            elif isinstance(outcome, int) and isinstance(message.command, FireTimers):
                self._check_timers()

    def _look_at_workers(self) -> None:
        missing = set()
        for worker_id, row, heartbeat_at, lease_seconds, is_missing in self._rows(WORKERS):
            known = self._heard.get(worker_id)
            if known is None or known[0] != heartbeat_at:
                known = self._heard[worker_id] = (heartbeat_at, self._written[row])
            self._leases[worker_id] = lease_seconds
            if is_missing:
                missing.add(worker_id)
            if is_missing and worker_id not in self._missing:
                silence = self._written[row] - known[1]
                shortest = lease_seconds * (1 - SLACK) - TOLERANCE_SECONDS
                keep(LEASES, silence >= shortest, f"{worker_id} lost one of {lease_seconds:g} seconds after {silence:.3f}")
        self._missing = missing

    def _look_at_timers(self) -> None:
        before, self._timers = self._timers, {}
        for timer in self._rows(TIMES):
            entity_id, _, revision, due_at = timer
            trail = self._promises.trails[entity_id]
            if timer in before:
                self._timers[timer] = before[timer]
            elif revision == len(trail) - 1:
                self._timers[timer] = (self._time.seconds, (due_at - trail[-1].at) / MILLION)

    def _check_silent(self) -> None:
        """Somebody has looked for silent workers: none is left."""
        for worker_id, (_, heard_at) in self._heard.items():
            worker = self._promises.workers[worker_id]
            longest = worker.lease_seconds * (1 + SLACK) + TOLERANCE_SECONDS
            silence = self._time.seconds - heard_at
            is_noticed = worker.missing or worker.phase == "done"
            text = f"{worker_id} has one of {worker.lease_seconds:g} seconds after {silence:.3f}"
            keep(LEASES, is_noticed or silence <= longest, text)

    def _check_timers(self) -> None:
        """Somebody has fired what was due: nothing of it is left."""
        for timer, (set_at, seconds) in self._timers.items():
            elapsed = self._time.seconds - set_at
            longest = max(seconds, 0.0) * (1 + SLACK) + TOLERANCE_SECONDS
            keep(TIMERS, elapsed <= longest, f"{timer} was set for {seconds:.3f} seconds, and is left after {elapsed:.3f}")

    def _rows(self, query: str) -> list[Any]:
        return self._connection.execute(query).fetchall()
