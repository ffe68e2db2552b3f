"""The queries as statements: for transactions that have their runs for themselves, and for turns that share them with others.

    usual      runs FOR NO KEY UPDATE, and says that it waits   whatever it asks stays true below a locked run
    sharing    runs FOR SHARE, tasks FOR NO KEY UPDATE          only what is in SHARED; it writes no run

PostgreSQL lets those who share a run pass those who wait for it, for ever. So a transaction that waits holds a lock that tells
others, and one that is about to share looks for that lock first.
"""

from __future__ import annotations

import re

from pointsman.store.postgres.statements import Statement
from pointsman.store.postgres.values import DIALECT
from pointsman.store.scripts import read_queries

WAITING = "hashtext(current_schema()), 1"
"""The key of the lock of those who wait for a run. One of two numbers is never a key of `stream_lock`."""
STOP_WAITING = Statement(f"SELECT pg_advisory_unlock_shared({WAITING})")
NO_WAITER = f"CASE WHEN pg_try_advisory_lock({WAITING}) THEN pg_advisory_unlock({WAITING}) ELSE false END"
"""Takes the lock for a moment, so that those who share do not look as if they waited."""
START_COLUMNS = (
    "pg_current_xact_id()::text",
    "pg_postmaster_start_time()::text",
    "(SELECT count(*) FROM lane)",
    "EXISTS (SELECT FROM quota)",
    "now()",
    "(SELECT id FROM clock_offset) AS correction",
    "(SELECT revision FROM clock_offset)",
    "(SELECT offset_seconds FROM clock_offset)",
    "(SELECT corrected_at FROM clock_offset)",
)
"""What a transaction has to know when it begins."""
_SAYS_THAT_IT_WAITS = re.compile(r"   AND \(SELECT \(pg_try.*IS NOT NULL\)\n", re.DOTALL)
_EACH_ITS_OWN = "LIMIT :limit) AS first", "LIMIT :limit FOR NO KEY UPDATE OF task_state SKIP LOCKED) AS first"
"""Each transaction gets other tasks. What another one has begun since the statement began is locked as well; then the WHERE of
the UPDATE leaves it out."""
_TEXTS = read_queries(__package__)


def _share(query: str, *changes: tuple[str, str]) -> Statement:
    """The same query with other locks."""
    text = _SAYS_THAT_IT_WAITS.sub("", _TEXTS[query])
    for old, new in changes:
        assert old in text, f"{query}: {old}"
        text = text.replace(old, new)
    return Statement(DIALECT.write(text))


QUERIES = {name: Statement(DIALECT.write(text)) for name, text in _TEXTS.items()}
assert _TEXTS["lock_runs"].count(f"pg_try_advisory_lock_shared({WAITING})") == 2
QUERIES["lock_runs"].then = STOP_WAITING
SHARED = {name: QUERIES[name] for name in ("end_plain_tasks", "lock_workers", "count_held", "set_timers", "drop_timers")} | {
    "lock_runs": _share("lock_runs", ("FOR NO KEY UPDATE", "FOR SHARE")),
    "begin_plain_tasks": _share("begin_plain_tasks", _EACH_ITS_OWN, ("FOR NO KEY UPDATE OF run", "FOR SHARE OF run")),
    "begin_plain_tasks_of_run": _share("begin_plain_tasks_of_run", _EACH_ITS_OWN),
}
"""All that a turn that shares its runs may ask."""
