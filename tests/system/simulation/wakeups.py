"""Whoever sleeps is woken: what a commit has made possible was in its news.

Engines sleep until there is news for them. Simulated workers look anyway, so nobody else here would miss it.
What may be claimed and what is due first is read from the database after every commit, and nothing is asked of the engine.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import apsw
from tests.system.simulation.promises import keep

from pointsman.store.contract import Wakeup

PROMISE = "whoever sleeps is woken"
CLAIMABLE = """
SELECT id FROM task
 WHERE run_open = 1 AND (max_attempts IS NULL OR attempt_count < max_attempts)
   AND (lease_expired = 1 OR (phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND is_gate = 0))
"""
AVAILABLE = "SELECT id FROM worker WHERE phase IN ('queued', 'active') AND drain_wanted = 0 AND missing = 0"
OFFERED = f"""
SELECT worker.id, task.id
  FROM task JOIN worker ON worker.tenant = task.tenant OR worker.serves = '"all"'
                        OR EXISTS (SELECT 1 FROM json_each(worker.serves) WHERE value = task.tenant)
       JOIN lane ON lane.id = task.lane_id JOIN run ON run.id = task.run_id
       LEFT JOIN breaker ON breaker.tenant = task.tenant AND breaker.tool = lane.tool
 WHERE task.id IN ({CLAIMABLE}) AND worker.id IN ({AVAILABLE})
   AND worker.run_id IS CASE WHEN task.allocated = 1 AND task.lease_expired = 0 THEN task.run_id END
   AND NOT EXISTS (SELECT value FROM json_each(lane.capabilities) EXCEPT SELECT value FROM json_each(worker.capabilities))
   AND (breaker.id IS NULL OR lane.fails_fast = 1 OR breaker.phase = 'queued'
        OR (breaker.phase = 'active' AND breaker.probe_task_id IS NULL))
   AND (run.budget_usd IS NULL OR task.budget_usd IS NULL OR run.spent_usd >= run.budget_usd
        OR run.budget_usd - run.spent_usd - max(task.budget_usd - task.cost_usd, 0) NOT BETWEEN 0 AND run.reserved_usd - 1)
   AND worker.max_concurrent_tasks > (SELECT count(*) FROM task AS held WHERE held.attempt_worker_id = worker.id
                                         AND held.current_attempt IS NOT NULL AND held.lease_expired = 0)
"""
"""Which worker would get which task, or end it where no budget can ever have room for it."""
EARLIEST = """
SELECT min(instant) FROM (SELECT due_at AS instant FROM timer
                          UNION ALL SELECT heartbeat_at + lease_seconds * 1e6 FROM worker WHERE phase <> 'done' AND missing = 0)
"""


class Seen(NamedTuple):
    """What somebody could have waited for."""

    claimable: frozenset[str]
    available: frozenset[str]
    """Workers. Nobody waits as another one: who may not work is refused, and who waits is heard of, and so not missing."""
    offered: frozenset[tuple[str, str]]
    earliest: float
    position: int


class Wakeups:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._seen = self._look()
        self._missed: list[str] = []

    def note(self, news: Wakeup) -> None:
        """Somebody has committed, and told this. What is missing is said later: who commits would take it for its own error."""
        before, self._seen = self._seen, self._look()
        self._missed += [f"{what} without {name.name}" for name, what in _compare(before, self._seen) if name not in news]

    def check(self) -> None:
        keep(PROMISE, not self._missed, "; ".join(self._missed))

    def _look(self) -> Seen:
        return Seen(
            claimable=frozenset(row[0] for row in self._rows(CLAIMABLE)),
            available=frozenset(row[0] for row in self._rows(AVAILABLE)),
            offered=frozenset(self._rows(OFFERED)),
            earliest=self._rows(EARLIEST)[0][0] or math.inf,
            position=self._rows("SELECT coalesce(max(position), 0) FROM transition")[0][0],
        )

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query).fetchall()


def _compare(before: Seen, after: Seen) -> list[tuple[Wakeup, str]]:
    """What is possible now and was not before, and the news that must say so. Time alone changes none of it."""
    found: list[tuple[Wakeup, str]] = []
    if claimable := after.claimable - before.claimable:
        found.append((Wakeup.TASKS, f"{min(claimable)} and {len(claimable) - 1} more became claimable"))
    if offered := {pair for pair in after.offered - before.offered if pair[0] in before.available}:
        worker, task = min(offered)
        found.append((Wakeup.TASKS, f"{worker} can claim {task}, and {len(offered) - 1} more such pairs"))
    if after.earliest < before.earliest:
        found.append((Wakeup.TIMERS, f"something is due at {after.earliest:.0f} instead of {before.earliest:.0f}"))
    if after.position > before.position:
        found.append((Wakeup.EVENTS, f"{after.position - before.position} moves were made"))
    return found
