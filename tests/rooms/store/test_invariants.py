"""What must never be is impossible to store: each constraint of the schema, and the fourteen invariants of document 002.

The database keeps eleven of the fourteen by itself: all of tasks and workers, and Completion Requirement. Of Task State
Consistency it keeps that no workstream is validated before its tasks are complete. The rest of that, and Failure Propagation,
say that a row must move because another one has moved; no constraint can say that, so the engine does it in one commit, and
the doctor finds what was typed by hand. Archive Preservation is about files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import psycopg
import pytest
from msgspec.structs import replace
from tests.databases import postgres_database
from tests.rooms.store.outsider import NEVER, Outsider, Refused, kind_of, type_columns, type_row
from tests.rooms.store.store_fixture import ACME, AT, MACHINES, SECOND, StoreFixture, find, move, update

from pointsman.errors import Conflict, LawBroken
from pointsman.kernel.machine import Kind
from pointsman.store.columns import types_of
from pointsman.store.contract import Transaction
from pointsman.store.rows import Account, Breaker, Dependency, Entity, Run, StoredKey, StoredResponse, Task, Worker
from pointsman.store.scripts import read_migrations

ONE = Decimal(1)
MOVED = ("state", "phase", "outcome", "revision", "trigger", "entered_at", "completed_at")
BEFORE = AT - SECOND


@pytest.fixture
def db(shared_db: StoreFixture) -> StoreFixture:
    return shared_db


class Former(NamedTuple):
    """What constraints kept in schema 11, and the law keeps now, after the name of the table."""

    checks: set[str]
    references: set[str]


@pytest.fixture(scope="module")
def former() -> Former:
    asked = """
        SELECT contype::text, relname || ': ' || conname FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid
         WHERE contype IN ('c', 'f') AND relname IN ('run', 'task', 'worker', 'dependency')
    """
    found = []
    with postgres_database(migrated=False) as url, psycopg.connect(url, autocommit=True) as connection:
        migrations = read_migrations("pointsman.store.postgres")
        for part in migrations[:11], migrations[11:]:
            for migration in part:
                connection.execute(migration.sql.encode())
            found.append(set(connection.execute(asked).fetchall()))
    before, after = found
    return Former(*({name for kind, name in before - after if kind == which} for which in "cf"))


def made(db: StoreFixture, machine: str, state: str, **columns: Any) -> Entity:
    """A row in a state; one below the top level gets a parent."""
    row = replace(db.entity(machine), **columns)
    if isinstance(row, (Run, Task)) and row.depth:
        row = replace(row, **{f"parent_{kind_of(row)}_id": db.put(db.entity(machine)).id})
    return db.bring(db.put(row), state)


# Constraints on a single row.


IN_USE = {
    "run": ("standard.run", "CANCELED"),
    "task": ("standard.task", "RUNNING"),
    "worker": ("standard.worker", "IDLE"),
    "breaker": ("standard.breaker", "CLOSED"),
}
RATE: dict[str, Any] = {"rate_count": 1, "rate_seconds": 1.0}
UNTHINKABLE: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    # description: machine, state, columns at creation, and the columns that the database must refuse
    "a run in an unknown phase": ("standard.run", "PENDING", {}, {"phase": "walking"}),
    "a run with an unknown outcome": ("standard.run", "CANCELED", {}, {"outcome": "glory"}),
    "a run that is done without an outcome": ("standard.run", "CANCELED", {}, {"outcome": None}),
    "a run that is done without a time of completion": ("standard.run", "CANCELED", {}, {"completed_at": None}),
    "a run that is completed but not done": ("standard.run", "RUNNING", {}, {"completed_at": AT + 9 * SECOND}),
    "a run that started before it was created": ("standard.run", "PENDING", {}, {"started_at": BEFORE}),
    "a run that was completed before it started": ("standard.run", "FAILED", {}, {"completed_at": AT}),
    "a run that was completed before it was created": ("standard.run", "CANCELED", {}, {"completed_at": BEFORE}),
    "a run six levels deep": ("standard.run", "PENDING", {"depth": 5}, {"depth": 6}),
    "a run with a negative depth": ("standard.run", "PENDING", {"depth": 1}, {"depth": -1}),
    "a run below the top level without a parent": ("standard.run", "PENDING", {}, {"depth": 1}),
    "a run on the top level with a parent": ("standard.run", "PENDING", {"depth": 1}, {"depth": 0}),
    "a run with zero workers": ("standard.run", "PENDING", {}, {"worker_count": 0}),
    "a run with eleven workers": ("standard.run", "PENDING", {"worker_count": 10}, {"worker_count": 11}),
    "a run with a negative number of missing tasks": ("standard.run", "PENDING", {}, {"missing_tasks": -1}),
    "a run with too many retries": ("standard.run", "PENDING", {"max_retries": 2, "retry_count": 2}, {"retry_count": 3}),
    "a run with a negative number of retries": ("standard.run", "PENDING", {}, {"retry_count": -1}),
    "a run with fewer retries than it has had": (
        "standard.run",
        "PENDING",
        {"max_retries": 2, "retry_count": 2},
        {"max_retries": 1},
    ),
    "a run whose final task is not JSON": ("standard.run", "PENDING", {}, {"final_task": "check it"}),
    "a run whose tags are not a list": ("standard.run", "PENDING", {}, {"tags": '{"a": 1}'}),
    "a run whose policy is not JSON": ("standard.run", "PENDING", {}, {"policy": "be nice"}),
    "a run with a negative budget": ("standard.run", "PENDING", {}, {"budget_usd": -ONE}),
    "a run with a negative cost": ("standard.run", "PENDING", {}, {"spent_usd": -ONE}),
    "a run with a negative promise": ("standard.run", "PENDING", {}, {"promised_usd": -ONE}),
    "a run that has read less than no tokens": ("standard.run", "PENDING", {}, {"tokens_in": -1}),
    "a run that has written less than no tokens": ("standard.run", "PENDING", {}, {"tokens_out": -1}),
    "a run with a negative reservation": ("standard.run", "PENDING", {"budget_usd": ONE}, {"reserved_usd": -ONE}),
    "a run that reserves more than its budget has left": (
        "standard.run",
        "PENDING",
        {"budget_usd": Decimal(5), "spent_usd": Decimal(3), "reserved_usd": Decimal(2)},
        {"reserved_usd": Decimal("2.000001")},
    ),
    "a task in an unknown phase": ("standard.task", "PENDING", {}, {"phase": "walking"}),
    "a task with an unknown outcome": ("standard.task", "SKIPPED", {}, {"outcome": "glory"}),
    "a task that is done without an outcome": ("standard.task", "SKIPPED", {}, {"outcome": None}),
    "a task that is done without a time of completion": ("standard.task", "SKIPPED", {}, {"completed_at": None}),
    "a task that is completed but not done": ("standard.task", "QUEUED", {}, {"completed_at": AT + 9 * SECOND}),
    "a task that started before it was created": ("standard.task", "PENDING", {}, {"started_at": BEFORE}),
    "a task that was completed before it started": ("standard.task", "TIMED_OUT", {}, {"completed_at": AT}),
    "a task that was completed before it was created": ("standard.task", "SKIPPED", {}, {"completed_at": BEFORE}),
    "a task with a negative number of dependencies": ("standard.task", "PENDING", {}, {"open_dependencies": -1}),
    "a task with a negative number of attempts": ("standard.task", "PENDING", {}, {"attempt_count": -1}),
    "a task with too many attempts": (
        "standard.task",
        "PENDING",
        {"max_attempts": 2, "attempt_count": 2},
        {"attempt_count": 3},
    ),
    "a task with too many retries": ("standard.task", "PENDING", {"max_retries": 2, "retry_count": 2}, {"retry_count": 3}),
    "a task with a negative number of retries": ("standard.task", "PENDING", {}, {"retry_count": -1}),
    "a task with too many reclaims": (
        "standard.task",
        "PENDING",
        {"max_reclaims": 2, "reclaim_count": 2},
        {"reclaim_count": 3},
    ),
    "a task with a negative cost": ("standard.task", "PENDING", {}, {"cost_usd": -ONE}),
    "a task with a negative reservation": ("standard.task", "RUNNING", {}, {"reserved_usd": -ONE}),
    "a task with a reservation that does not run": ("standard.task", "QUEUED", {}, {"reserved_usd": ONE}),
    "a task with an attempt that does not run": ("standard.task", "QUEUED", {}, {"current_attempt": 0}),
    "a task that runs without an attempt": ("standard.task", "RUNNING", {}, {"current_attempt": None, "worker_id": None}),
    "a task that runs in an attempt of another epoch": ("standard.task", "RUNNING", {}, {"current_attempt": 9}),
    "a task that runs in an attempt without a worker": ("standard.task", "RUNNING", {}, {"attempt_worker_id": None}),
    "a task with a worker that does not run": ("standard.task", "QUEUED", {}, {"worker_id": "any"}),
    "a task that runs in an attempt that never began": ("standard.task", "RUNNING", {}, {"attempt_started_at": None}),
    "a task that has read less than no tokens": ("standard.task", "PENDING", {}, {"tokens_in": -1}),
    "a task that has written less than no tokens": ("standard.task", "PENDING", {}, {"tokens_out": -1}),
    "a task whose attempt has read less than no tokens": ("standard.task", "RUNNING", {}, {"attempt_tokens_in": -1}),
    "a task whose attempt has written less than no tokens": ("standard.task", "RUNNING", {}, {"attempt_tokens_out": -1}),
    "a task whose attempt has a negative cost": ("standard.task", "RUNNING", {}, {"attempt_cost_usd": -ONE}),
    "a task with an expired lease that does not run": ("standard.task", "QUEUED", {}, {"lease_expired": True}),
    "a task that waits for an instant and runs": ("standard.task", "RUNNING", {}, {"available_at": AT}),
    "a task that waits for an instant and is done": ("standard.task", "SKIPPED", {}, {"available_at": AT}),
    "a task that waits for others and runs": ("standard.task", "RUNNING", {}, {"open_dependencies": 1}),
    "a gate that runs": ("standard.task", "RUNNING", {}, {"is_gate": True}),
    "a worker in an unknown phase": ("standard.worker", "INITIALIZING", {}, {"phase": "walking"}),
    "a worker with an unknown outcome": ("standard.worker", "SHUTDOWN", {}, {"outcome": "glory"}),
    "a worker that is done without an outcome": ("standard.worker", "SHUTDOWN", {}, {"outcome": None}),
    "a worker that is done without a time of completion": ("standard.worker", "SHUTDOWN", {}, {"completed_at": None}),
    "a worker that started before it was created": ("standard.worker", "IDLE", {}, {"started_at": BEFORE}),
    "a worker that was completed before it was created": ("standard.worker", "SHUTDOWN", {}, {"completed_at": BEFORE}),
    "a worker that was completed before it started": (
        "standard.worker",
        "SHUTDOWN",
        {"started_at": AT},
        {"completed_at": BEFORE},
    ),
    "a worker whose capabilities are not JSON": ("standard.worker", "IDLE", {}, {"capabilities": "juggling"}),
    "a worker whose own metadata is no JSON object": ("standard.worker", "IDLE", {}, {"worker_metadata": "[]"}),
    "a worker without slots": ("standard.worker", "IDLE", {}, {"max_concurrent_tasks": 0}),
    "a worker without a lease": ("standard.worker", "IDLE", {}, {"lease_seconds": 0}),
    "a worker that has ended and is allocated to a run": ("standard.worker", "SHUTDOWN", {}, {"run_id": "any"}),
    "a breaker in an unknown phase": ("standard.breaker", "CLOSED", {}, {"phase": "walking"}),
    "a breaker with an unknown outcome": ("standard.breaker", "CLOSED", {}, {"outcome": "glory"}),
    "a breaker with a negative number of failures": ("standard.breaker", "CLOSED", {}, {"failure_count": -1}),
    "a breaker that opens without a failure": ("standard.breaker", "CLOSED", {}, {"failure_threshold": 0}),
    "a breaker with a negative number of successes": ("standard.breaker", "CLOSED", {}, {"success_count": -1}),
    "a breaker that closes without a success": ("standard.breaker", "CLOSED", {}, {"success_threshold": 0}),
    "a breaker with a negative cooldown": ("standard.breaker", "CLOSED", {}, {"cooldown_seconds": -0.5}),
    "a tool that allows no attempt": ("standard.breaker", "CLOSED", {}, {"max_concurrent": 0}),
    "a rate of zero attempts": ("standard.breaker", "CLOSED", RATE, {"rate_count": 0}),
    "a rate without a duration": ("standard.breaker", "CLOSED", {}, {"rate_count": 1}),
    "a rate of zero seconds": ("standard.breaker", "CLOSED", RATE, {"rate_seconds": 0.0}),
    **{
        f"a {kind} with metadata that is {what}": (machine, state, {}, {"metadata": text})
        for kind, (machine, state) in IN_USE.items()
        for what, text in (("not JSON", "{"), ("not an object", "[1]"))
    },
    **{
        f"a {kind} whose {column} is in no calendar": (*IN_USE[kind], {}, {column: NEVER})
        for kind, row_type in (("run", Run), ("task", Task), ("worker", Worker), ("breaker", Breaker))
        for column, value_type in types_of(row_type).items()
        if value_type is datetime
    },
    "starts that are not JSON": ("standard.breaker", "CLOSED", {}, {"begun": "once"}),
    "a closed breaker with a probe": ("standard.breaker", "CLOSED", {}, {"probe_task_id": "any"}),
    "an open breaker with a probe": ("standard.breaker", "OPEN", {}, {"probe_task_id": "any"}),
}
NEW_AND_UNTHINKABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "a worker that serves what is no JSON": ("standard.worker", {"serves": "some"}),
    "a worker that serves what is no list": ("standard.worker", {"serves": "{}"}),
    "a task with a negative epoch": ("standard.task", {"epoch": -1}),
    # what nobody can change afterwards
    "a task six levels deep": ("standard.task", {"depth": 6}),
    "a task below the top level without a parent": ("standard.task", {"depth": 1}),
    "a task whose policy is not JSON": ("standard.task", {"policy": "be nice"}),
    "a task with a negative budget": ("standard.task", {"budget_usd": -ONE}),
}
WITH_AN_ATTEMPT = (
    "a task with an attempt that does not run",
    "a task that runs without an attempt",
    "a task that runs in an attempt of another epoch",
    "a task that runs in an attempt without a worker",
    "a task with a worker that does not run",
)
BY_THE_LAW = {
    # what PostgreSQL has a constraint for, and SQLite the law alone: no row has another phase or outcome than its state
    what
    for what in UNTHINKABLE
    if what.endswith((" in an unknown phase", " with an unknown outcome"))
}
_MACHINE = (
    "INSERT INTO machine (id, name, version, kind, fingerprint, lifecycle, definition) "
    "SELECT max(id) + 1, 'x.y', {version}, '{kind}', 'f', 'x', 'd' FROM machine"
)
_STATE = (
    "INSERT INTO state (machine_id, name, phase, outcome, initial, kind) "
    "VALUES (5000, 'A', '{phase}', {outcome}, {initial}, 'run')"
)
_CLOCK = "INSERT INTO clock_offset (id, revision, offset_seconds, corrected_at) VALUES (1, 1, {offset}, {at})"
_ACCOUNT = (
    "INSERT INTO account (tenant, budget_usd, spent_usd, tokens_in, tokens_out, cost_is_estimated) "
    "VALUES ('acme', {budget_usd}, {spent_usd}, {tokens_in}, {tokens_out}, :no)"
)
_ANSWER = (
    "INSERT INTO idempotency_key (tenant, endpoint, key, request_hash, status, body, created_at, expires_at) "
    "VALUES ('acme', 'any', 'any', 'h', 200, '', {created_at}, {expires_at})"
)
_NOTIFICATION = (
    "INSERT INTO outbox (id, position, origin, target, method, tenant, event, subject, body, created_at, tries, claimed_by, "
    "due_at, delivered_at, dead_at) VALUES ('a', 1, '{origin}', 't', '{method}', 'acme', 'e', 's', '{body}', {created_at}, "
    "{tries}, {claimed_by}, {due_at}, {delivered_at}, {dead_at})"
)
_SOUND = {"origin": "flow", "method": "command", "body": "{}", "created_at": ":at", "tries": 0, "claimed_by": "NULL"}
_SOUND |= {"due_at": ":at", "delivered_at": "NULL", "dead_at": "NULL"}


def _notification(**wrong: object) -> str:
    return _NOTIFICATION.format(**_SOUND | wrong)


_KEY = (
    "INSERT INTO api_key (id, tenant, name, scopes, created_at, created_by, expires_at, revoked_at, last_used_at, "
    "previous_expires_at, secret_hash, previous_hash) VALUES ('key_any', 'acme', '{name}', '{scopes}', {created_at}, 'ada', "
    "{expires_at}, {revoked_at}, {last_used_at}, {previous_expires_at}, '{secret_hash}', {previous_hash})"
)
_SOUND_KEY = {"name": "ci", "scopes": '["read"]', "created_at": ":at", "expires_at": "NULL", "revoked_at": "NULL"}
_SOUND_KEY |= {"last_used_at": "NULL", "previous_expires_at": "NULL", "secret_hash": "a" * 64, "previous_hash": "NULL"}


def _key(**wrong: object) -> str:
    return _KEY.format(**_SOUND_KEY | wrong)


_TEMPLATE = (
    "INSERT INTO template (tenant, name, text, stored_at, stored_by) VALUES ('acme', '{name}', 'name: a', {stored_at}, 'ada')"
)
_TOMBSTONE = (
    "INSERT INTO tombstone (task_id, tenant, deleted_at, deleted_by) SELECT id, tenant, {deleted_at}, 'ada' FROM task LIMIT 1"
)
_TAG = "INSERT INTO run_tag (tenant, tag, created_at, run_id) SELECT tenant, '{tag}', {created_at}, id FROM run LIMIT 1"
_QUOTA = "INSERT INTO quota (tenant, max_runs, max_tasks, max_bytes) VALUES ('acme', {}, {}, {})"
UNSPEAKABLE: dict[str, str] = {
    "a tag without a word": _TAG.format(tag="", created_at=":at"),
    "a tag of the far future": _TAG.format(tag="t", created_at=":never"),
    "a quota of less than no runs": _QUOTA.format(-1, 0, 0),
    "a quota of less than no tasks": _QUOTA.format(0, -1, 0),
    "a quota of less than no bytes": _QUOTA.format(0, 0, -1),
    "a template without a name": _TEMPLATE.format(name="", stored_at=":at"),
    "a template of the far future": _TEMPLATE.format(name="a", stored_at=":never"),
    "a tombstone of the far future": _TOMBSTONE.format(deleted_at=":never"),
    "a key without a name": _key(name=""),
    "a key that allows nothing": _key(scopes="[]"),
    "a key with an unknown scope": _key(scopes='["read","root"]'),
    "a key whose scopes are not a list": _key(scopes='"read"'),
    "a key whose scopes are lists": _key(scopes="[[]]"),
    "a key whose scopes are not JSON": _key(scopes="read"),
    "a key of the far future": _key(created_at=":never"),
    "a key that never began to be valid": _key(expires_at=":at"),
    "a key that expires in the far future": _key(expires_at=":never"),
    "a key that was revoked before it was created": _key(revoked_at=":before"),
    "a key that was used before it was created": _key(last_used_at=":before"),
    "a key whose secret is not hashed": _key(secret_hash="secret"),
    "a key whose secret is hashed in capitals": _key(secret_hash="A" * 64),
    "a key whose previous secret is not hashed": _key(previous_hash="'secret'", previous_expires_at=":later"),
    "a key whose previous secret ended before it was created": _key(
        previous_hash=f"'{'b' * 64}'", previous_expires_at=":before"
    ),
    "a key whose previous secret is valid for ever": _key(previous_hash=f"'{'b' * 64}'"),
    "a key with the end of a secret that it does not have": _key(previous_expires_at=":later"),
    "a key that was rotated to the same secret": _key(previous_hash=f"'{'a' * 64}'", previous_expires_at=":later"),
    "a notification of an unknown origin": _notification(origin="rumour"),
    "a notification by an unknown method": _notification(method="pigeon"),
    "a notification with a body that is no object": _notification(body="[]"),
    "a notification of the far future": _notification(created_at=":never"),
    "a notification that is never due": _notification(due_at=":never"),
    "a notification that is delivered in the far future": _notification(due_at="NULL", delivered_at=":never"),
    "a notification that dies in the far future": _notification(due_at="NULL", dead_at=":never"),
    "a notification with less than no tries": _notification(tries=-1),
    "a notification that is neither due nor delivered nor dead": _notification(due_at="NULL"),
    "a notification that is claimed after its end": _notification(claimed_by="'p'", due_at="NULL", dead_at=":at"),
    "a cursor of an unknown origin": "INSERT INTO outbox_cursor (origin, target, position) VALUES ('rumour', 't', 0)",
    "a cursor before the beginning": "INSERT INTO outbox_cursor (origin, target, position) VALUES ('flow', 't', -1)",
    "a duty that has failed zero times": (
        "INSERT INTO duty_failure (name, process, failures, error, failed_at) SELECT 'a', 'b', 0, 'c', created_at FROM tenant"
    ),
    "a second clock": "INSERT INTO clock_offset (id, revision, offset_seconds, corrected_at) "
    "SELECT 2, 1, 0.0, created_at FROM tenant",
    "a clock that is off by more than all time": _CLOCK.format(offset="-1e300", at=":at"),
    "a clock that is off for ever": _CLOCK.format(offset="9e99", at=":at"),
    "a clock that was never corrected": _CLOCK.format(offset="0.0", at=":never"),
    "a tenant of the far future": "INSERT INTO tenant (id, created_at) VALUES ('later', :never)",
    "a duty that never failed": (
        "INSERT INTO duty_failure (name, process, failures, error, failed_at) VALUES ('a', 'b', 1, 'c', :never)"
    ),
    "an event of the far future": (
        "INSERT INTO notice (tenant, kind, entity_id, run_id, subject, message, at) "
        "VALUES ('acme', 'run', 'a', 'a', 'b', 'c', :never)"
    ),
    "a seal of the far future": (
        "INSERT INTO seal (position, previous, digest, sealed_at) "
        "SELECT max(position), (SELECT coalesce(max(position), 0) FROM seal), 'd', :never FROM transition"
    ),
    "an answer of the far future": _ANSWER.format(created_at=":never", expires_at=":never"),
    "an answer that never expires": _ANSWER.format(created_at=":at", expires_at=":never"),
    "a task that waits for itself": "INSERT INTO dependency (task_id, depends_on_id) VALUES ('any', 'any')",
    "a machine of version 0": _MACHINE.format(version=0, kind="run"),
    "a machine of an unknown kind": _MACHINE.format(version=1, kind="cow"),
    "a state in an unknown phase": _STATE.format(phase="walking", outcome="NULL", initial=":no"),
    "a state with an unknown outcome": _STATE.format(phase="done", outcome="'glory'", initial=":no"),
    "a last state without an outcome": _STATE.format(phase="done", outcome="NULL", initial=":no"),
    "a state with an outcome that is not the last": _STATE.format(phase="held", outcome="'success'", initial=":no"),
    "a first state that is the last": _STATE.format(phase="done", outcome="'success'", initial=":yes"),
    "a seal that covers nothing": "INSERT INTO seal (position, previous, digest, sealed_at) VALUES (0, 0, '', :at)",
    "an account with a negative budget": _ACCOUNT.format(budget_usd=-1, spent_usd=0, tokens_in=0, tokens_out=0),
    "an account that has spent less than nothing": _ACCOUNT.format(budget_usd=1, spent_usd=-1, tokens_in=0, tokens_out=0),
    "a tenant that has read less than no tokens": _ACCOUNT.format(budget_usd=1, spent_usd=0, tokens_in=-1, tokens_out=0),
    "a tenant that has written less than no tokens": _ACCOUNT.format(budget_usd=1, spent_usd=0, tokens_in=0, tokens_out=-1),
    "a timer that never fires": "INSERT INTO timer (entity_id, purpose, kind, tenant, revision, due_at) "
    "VALUES ('any', 'any', 'run', 'acme', 0, :never)",
    "a rule with an unknown severity": "INSERT INTO rule (machine_id, from_state, to_state, trigger, severity, to_phase, "
    "needs_worker, needs_session, needs_dependencies) VALUES (5000, 'A', 'B', 'go', 'deafening', 'held', :no, :no, :no)",
    "a timer of an unknown kind": "INSERT INTO timer (entity_id, purpose, kind, tenant, revision, due_at) "
    "VALUES ('any', 'any', 'cow', 'acme', 0, :at)",
    "an answer that expires at once": _ANSWER.format(created_at=":at", expires_at=":at"),
}
EVERYTHING = [*UNTHINKABLE, *NEW_AND_UNTHINKABLE, *UNSPEAKABLE]


def attempt_unthinkable(db: StoreFixture, what: str) -> None:
    if what in UNTHINKABLE:
        machine, state, columns, wrong = UNTHINKABLE[what]
        row = made(db, machine, state, **columns)
        # Something else would refuse many of them first.
        with nullcontext() if what in BY_THE_LAW and db.prompt.dialect == "sqlite" else db.prompt.unguarded(kind_of(row)):
            type_columns(db.prompt, row, **wrong)
    elif what in NEW_AND_UNTHINKABLE:
        machine, wrong = NEW_AND_UNTHINKABLE[what]
        type_row(db.prompt, replace(db.entity(machine), **wrong))
    else:
        db.put_task(db.put(db.run()))  # a seal ends with a transition, and a tombstone is that of a task
        values = {":at": ("at", AT), ":no": ("no", False), ":yes": ("yes", True), ":never": ("never", NEVER)}
        values |= {":before": ("before", BEFORE), ":later": ("later", AT + SECOND)}
        statement = UNSPEAKABLE[what]
        db.prompt.ask(statement, **dict(pair for name, pair in values.items() if name in statement))


@pytest.mark.parametrize("what", EVERYTHING)
def test_the_constraints_refuse(db: StoreFixture, what: str) -> None:
    with pytest.raises(Refused) as refused:
        attempt_unthinkable(db, what)
    if what in BY_THE_LAW and db.prompt.dialect == "sqlite":
        assert str(refused.value).startswith("pointsman: "), "the law is in the way"
    else:
        assert refused.value.check, "a constraint is in the way, not a trigger"


@pytest.mark.parametrize("what", WITH_AN_ATTEMPT)
def test_the_law_refuses(db: StoreFixture, what: str) -> None:
    machine, state, columns, wrong = UNTHINKABLE[what]
    row = made(db, machine, state, **columns)
    with pytest.raises(Refused):
        type_columns(db.prompt, row, **wrong)
    with pytest.raises(LawBroken), db.transaction() as begun:
        update(begun, replace(row, **wrong))
    assert find(db.store, row) == row


def test_every_constraint_of_the_schema_was_tried(db: StoreFixture, prompt: Outsider, former: Former) -> None:
    """Without those by which SQLite limits booleans to 0 and 1, and with those that the law keeps now under their old names."""
    tried = set()
    for what in EVERYTHING:
        with pytest.raises(Refused) as refused:
            attempt_unthinkable(db, what)
        tried.add(refused.value.check)
    checks = prompt.checks() | (former.checks if prompt.dialect == "postgres" else set())
    assert {check for check in checks if not check.endswith("IN (0, 1)")} - tried == set()


def test_a_row_that_the_doctor_puts_back_is_under_the_constraints(db: StoreFixture, prompt: Outsider) -> None:
    """It lifts the law for that."""
    task = db.put_task(state="RUNNING")
    over = db.moved(task, "FAILED")
    with prompt.lawless("task"):
        type_columns(prompt, task, **{name: getattr(over, name) for name in (*MOVED, "current_attempt", "worker_id")})
    with pytest.raises(LawBroken, match=r"task_active_has_attempt|current_attempt IS NOT NULL"), db.transaction() as begun:
        begun.restore(Kind.TASK, [task.id])
    with db.transaction() as begun:
        begun.restore(Kind.RUN, [task.run_id])


def test_what_just_fits_is_stored(db: StoreFixture, prompt: Outsider) -> None:
    budget: dict[str, Any] = {"budget_usd": Decimal(5), "spent_usd": Decimal(3), "reserved_usd": Decimal(2)}
    run = db.put(db.run(worker_count=10, max_retries=2, retry_count=2, started_at=AT, **budget))
    type_columns(prompt, run, reserved_usd=0, spent_usd=Decimal(9))
    assert find(db.store, run).spent_usd == 9, "what was really spent is a fact, whatever the limit said"
    db.put(db.task(run, max_attempts=2, attempt_count=2, max_reclaims=0, started_at=AT))
    task = db.put(db.task(run, attempt_count=98))
    type_columns(prompt, task, attempt_count=99)
    assert find(db.store, task).attempt_count == 99, "without a limit there is none"
    at_once = db.moved(db.put(db.worker(started_at=AT)), "SHUTDOWN", entered_at=AT, completed_at=AT)
    with db.transaction() as begun:
        move(begun, at_once)
    assert find(db.store, at_once) == at_once


def test_booleans_are_true_or_false(db: StoreFixture, prompt: Outsider) -> None:
    """PostgreSQL has a type for it, SQLite a constraint."""
    db.move(db.put_task(state="RUNNING"), "FAILED")
    with db.transaction() as begun:
        begun.add_spending([Account(tenant=ACME, tokens_in=1)])
    truths = [check.removesuffix(" IN (0, 1)").split(": ") for check in prompt.checks() if check.endswith("IN (0, 1)")]
    assert bool(truths) == (prompt.dialect == "sqlite")
    for table, column in truths:
        if table not in ("state", "rule"):
            with pytest.raises(Refused, match="CHECK"), prompt.lawless(table):
                prompt.ask(f"UPDATE {table} SET {column} = 2")


# Constraints between rows.


def test_the_name_of_a_task_is_unique_in_its_run(db: StoreFixture) -> None:
    task = db.put_task(name="build")
    with pytest.raises(LawBroken):
        db.put(replace(task, id="task_twin"))
    assert db.put_task(name="build").run_id != task.run_id


def test_a_tool_has_one_breaker_in_each_tenant(db: StoreFixture) -> None:
    breaker = db.put(db.breaker(tool="one of its kind"))
    # When two processes declare a tool at once, the second gets a conflict, looks again and finds it.
    refusal = Conflict if db.url.startswith("postgresql") else LawBroken
    with pytest.raises(refusal):
        db.put(replace(breaker, id="breaker_twin"))
    with pytest.raises(Refused):
        db.prompt.ask("UPDATE breaker SET tool = 'one of its kind' WHERE id = :id", id=db.put(db.breaker()).id)
    db.put(replace(breaker, id="breaker_of_globex", tenant=db.tenant("globex")))


def test_a_lane_exists_once(prompt: Outsider) -> None:
    for tool in ("NULL", "'git'"):
        lane = f"INSERT INTO lane (tenant, tool, capabilities, fails_fast) VALUES ('acme', {tool}, '[\"once\"]', :no)"
        prompt.ask(lane, no=False)
        with pytest.raises(Refused):
            prompt.ask(lane, no=False)


def test_a_dependency_exists_once(db: StoreFixture) -> None:
    edge = Dependency(db.put_task(open_dependencies=1).id, db.put_task(open_dependencies=1).id)
    with db.transaction() as begun:
        begun.insert_dependencies([edge])
    with pytest.raises(LawBroken), db.transaction() as begun:
        begun.insert_dependencies([edge])
    with db.transaction() as begun:
        begun.insert_dependencies([Dependency(edge.depends_on_id, edge.task_id)])


def test_a_move_has_one_line(db: StoreFixture, prompt: Outsider) -> None:
    """Also without the triggers of the law. So an attempt ends once, too."""
    db.move(db.put_task(state="RUNNING"), "FAILED")
    with prompt.lawless("trail"), pytest.raises(Refused):
        prompt.ask(
            "INSERT INTO trail (at, number, kind, revision, rule_id, epoch, started_at) "
            "SELECT at, number, kind, revision, rule_id, epoch, started_at FROM trail WHERE started_at IS NOT NULL"
        )


REFERENCES: dict[str, Callable[[StoreFixture, Transaction], None]] = {
    "a run of no tenant": lambda db, begun: begun.insert_runs([db.run(tenant="unknown")]),
    "a run of no machine": lambda db, begun: begun.insert_runs([db.run(machine_id=999)]),
    "a run with an unknown parent": lambda db, begun: begun.insert_runs([db.run(parent_run_id="unknown", depth=1)]),
    "a task of no run": lambda db, begun: begun.insert_tasks([db.task(db.run())]),
    "a task of no lane": lambda db, begun: begun.insert_tasks([db.task(db.put_in(begun, db.run()), lane_id=999)]),
    "a task with an unknown parent": lambda db, begun: begun.insert_tasks(
        [db.task(db.put_in(begun, db.run()), parent_task_id="unknown", depth=1)]
    ),
    "a task of no tenant": lambda db, begun: begun.insert_tasks([db.task(db.put_in(begun, db.run()), tenant="unknown")]),
    "a task of no machine": lambda db, begun: begun.insert_tasks([db.task(db.put_in(begun, db.run()), machine_id=999)]),
    "a worker of no machine": lambda db, begun: begun.insert_workers([db.worker(machine_id=999)]),
    "a worker for an unknown run only": lambda db, begun: begun.insert_workers([db.worker(only_run_id="unknown")]),
    "a worker that is given to an unknown run": lambda db, begun: update(
        begun, replace(db.put_in(begun, db.worker()), run_id="unknown")
    ),
    "a worker of no run": lambda db, begun: begun.insert_workers([db.worker(run_id="unknown")]),
    "a worker of no tenant": lambda db, begun: begun.insert_workers([db.worker(tenant="unknown")]),
    "a breaker of no tenant": lambda db, begun: begun.insert_breakers([db.breaker(tenant="unknown")]),
    "a key of no tenant": lambda _, begun: begun.insert_key(
        StoredKey(
            id="key_any", tenant="unknown", name="n", scopes='["read"]', created_at=AT, created_by="ada", secret_hash="a" * 64
        )
    ),
    "a lane of no tenant": lambda _, begun: void(begun.insert_lane("unknown", None, "[]", fails_fast=False)),
    "an answer of no tenant": lambda _, begun: void(
        begun.insert_response(
            StoredResponse(
                tenant="unknown",
                endpoint="e",
                key="k",
                request_hash="h",
                status=200,
                body="",
                created_at=AT,
                expires_at=AT + SECOND,
            )
        )
    ),
    "a task of an unknown worker": lambda db, begun: void(
        db.bring_in(begun, db.put_in(begun, db.task(db.put_in(begun, db.run()))), "RUNNING", worker_id="unknown")
    ),
    "a dependency on an unknown task": lambda db, begun: begun.insert_dependencies(
        [Dependency(db.put_in(begun, db.task(db.put_in(begun, db.run()))).id, "unknown")]
    ),
    "a dependency of an unknown task": lambda db, begun: begun.insert_dependencies(
        [Dependency("unknown", db.put_in(begun, db.task(db.put_in(begun, db.run()))).id)]
    ),
}


def void(_: object) -> None: ...


@pytest.mark.parametrize("what", REFERENCES)
def test_nothing_refers_to_a_missing_row(db: StoreFixture, what: str) -> None:
    with pytest.raises(LawBroken), db.transaction() as begun:
        REFERENCES[what](db, begun)


def test_every_reference_that_the_law_keeps_was_tried(db: StoreFixture, prompt: Outsider, former: Former) -> None:
    """Each is refused by the name that its foreign key had."""
    if prompt.dialect != "postgres":
        pytest.skip("SQLite has foreign keys")
    tried = set()
    for attempt in REFERENCES.values():
        with pytest.raises(LawBroken) as refused, db.transaction() as begun:
            attempt(db, begun)
        if isinstance(cause := refused.value.__cause__, psycopg.errors.ForeignKeyViolation):
            tried.add(f"{cause.diag.table_name}: {cause.diag.constraint_name}")
            assert str(cause.diag.constraint_name) in str(refused.value)
    assert len(former.references) == 14
    assert former.references - tried == set()


# The invariants of document 002: tasks.


def test_a_task_is_in_exactly_one_state(db: StoreFixture, prompt: Outsider) -> None:
    task = db.put_task(machine="orchestrated.task")
    for state in (None, "", "running, completed"):
        with pytest.raises(Refused):
            type_columns(prompt, task, state=state)
    assert find(db.store, task) == task


@pytest.mark.parametrize("name", ["orchestrated.task", "orchestrated.workstream", "orchestrated.worker"])
def test_nothing_leads_back_from_an_end(db: StoreFixture, prompt: Outsider, name: str) -> None:
    machine = MACHINES[name]
    for end in (state for state in machine.states if state.terminal):
        row = made(db, name, end.name)
        for state in machine.states:
            if state != end:
                with pytest.raises(Refused, match="pointsman"):
                    type_columns(prompt, row, state=state.name)
        assert find(db.store, row) == row


@pytest.mark.parametrize("state", [state.name for state in MACHINES["orchestrated.task"].states])
def test_only_running_tasks_have_a_worker(db: StoreFixture, prompt: Outsider, state: str) -> None:
    """While its checks run, the attempt still holds the task; its worker is in attempt_worker_id."""
    task = made(db, "orchestrated.task", state)
    assert isinstance(task, Task)
    assert (task.worker_id is not None) == (state == "running")
    assert (task.current_attempt is not None) == (state in ("running", "validating"))
    assert task.attempt_worker_id or not task.epoch
    other = db.put(db.worker())
    for worker_id in {other.id, None} - {task.worker_id}:
        with pytest.raises(Refused):
            type_columns(prompt, task, worker_id=worker_id)
        with pytest.raises(LawBroken), db.transaction() as begun:
            update(begun, replace(task, worker_id=worker_id))
    for following in MACHINES["orchestrated.task"].allowed(state):
        moved = db.moved(task, following)
        wrong = replace(moved, worker_id=None if moved.worker_id else other.id)
        with pytest.raises(LawBroken), db.transaction() as begun:
            move(begun, wrong)


def test_retries_never_exceed_their_limit(db: StoreFixture) -> None:
    task = db.bring(db.put_task(machine="orchestrated.task", max_retries=1, retry_count=1), "running")
    with pytest.raises(LawBroken):
        db.move(task, "retrying", retry_count=2)
    assert db.move(task, "failed").retry_count == 1


@pytest.mark.parametrize("name", ["orchestrated.task", "orchestrated.workstream", "orchestrated.worker"])
def test_nothing_starts_before_it_is_created_or_ends_before_it_starts(db: StoreFixture, name: str) -> None:
    machine = MACHINES[name]
    active = next(state.name for state in machine.states if state.phase == "active")
    ended = next(state.name for state in machine.states if state.phase == "done" and machine.may(active, state.name))
    row = made(db, name, machine.initial.name)
    with pytest.raises(LawBroken):
        db.bring(row, active, started_at=BEFORE)
    row = db.bring(row, active)
    assert row.started_at
    with pytest.raises(LawBroken):
        db.move(row, ended, completed_at=row.started_at - SECOND)
    assert find(db.store, row) == row


def test_queued_tasks_have_no_open_dependency(db: StoreFixture, prompt: Outsider) -> None:
    first, second = db.put_task(), db.put_task(machine="orchestrated.task", open_dependencies=1)
    with db.transaction() as begun:
        begun.insert_dependencies([Dependency(second.id, first.id)])
    with pytest.raises(LawBroken):
        db.move(second, "queued")
    with pytest.raises(Refused, match="pointsman"):
        type_columns(prompt, second, state="queued")
    db.bring(first, "SUCCEEDED")
    with db.transaction() as begun:
        assert begun.release_dependents([first.id]) == [second.id]
    assert db.move(replace(second, open_dependencies=0), "queued").phase == "queued"


# The invariants of document 002: workstreams.


@pytest.mark.parametrize("state", [state.name for state in MACHINES["orchestrated.task"].states if state.name != "completed"])
def test_a_workstream_is_validated_only_with_all_of_its_tasks(db: StoreFixture, prompt: Outsider, state: str) -> None:
    """The part of Task State Consistency that a constraint can say."""
    workstream = db.bring(db.put(db.run("orchestrated.workstream")), "executing")
    db.bring(db.put_task(workstream, machine="orchestrated.task"), "completed")
    db.bring(db.put_task(workstream, machine="orchestrated.task", critical=False), state)
    with pytest.raises(LawBroken):
        db.move(workstream, "validating")
    with pytest.raises(Refused, match="pointsman"):
        type_columns(prompt, workstream, state="validating")
    assert find(db.store, workstream) == workstream


def test_a_workstream_that_goes_on_after_a_critical_failure_is_found(db: StoreFixture) -> None:
    """The rest of it, and Failure Propagation: only the engine moves one row because of another, and the doctor checks it."""
    workstream = db.bring(db.put(db.run("orchestrated.workstream")), "executing")
    db.bring(db.put_task(workstream, machine="orchestrated.task", run_open=True, critical=False), "failed")
    with db.store.read() as reader:
        assert [what for _, name, what in reader.list_disagreements() if name == workstream.id] == []
    broken = db.put_task(workstream, machine="orchestrated.task", run_open=True, name="broken")
    db.bring(broken, "failed")
    with db.store.read() as reader:
        (found,) = [what for _, name, what in reader.list_disagreements() if name == workstream.id]
    assert found == "it goes on, although its critical task broken has failed"


def test_a_workstream_that_disagrees_with_its_tasks_is_found(db: StoreFixture) -> None:
    """The engine keeps Task State Consistency: it moves a workstream with its tasks. The doctor checks it."""
    workstream = db.put(db.run("orchestrated.workstream"))
    db.bring(db.put_task(workstream, machine="orchestrated.task", name="latecomer"), "running")
    with db.prompt.lawless("run"):
        done = {"state": "completed", "phase": "done", "outcome": "success", "completed_at": AT + SECOND}
        type_columns(db.prompt, workstream, **done)
    with db.store.read() as reader:
        (found,) = reader.list_contradictions()
    assert (found.run_id, found.task_name) == (workstream.id, "latecomer")


@pytest.mark.parametrize("state", [state.name for state in MACHINES["orchestrated.task"].states if state.name != "completed"])
def test_a_workstream_is_completed_only_with_all_of_its_tasks(db: StoreFixture, prompt: Outsider, state: str) -> None:
    workstream = db.put(db.run("orchestrated.workstream"))
    db.bring(db.put_task(workstream, machine="orchestrated.task"), "completed")
    workstream = db.bring(workstream, "validating")
    db.bring(db.put_task(workstream, machine="orchestrated.task", critical=False), state)
    with pytest.raises(LawBroken):
        db.move(workstream, "completed")
    with pytest.raises(Refused, match="pointsman"):
        type_columns(prompt, workstream, state="completed")
    assert find(db.store, workstream) == workstream


def test_the_situation_of_a_workstream_names_a_critical_failure(db: StoreFixture) -> None:
    """The engine keeps Failure Propagation, and Archive Preservation, which is about files."""
    workstream = db.bring(db.put(db.run("orchestrated.workstream")), "executing")
    db.bring(db.put_task(workstream, machine="orchestrated.task", critical=False), "failed")
    with db.transaction() as begun:
        assert begun.assess_runs([workstream.id])[0].failed_task is None
    failed = db.bring(db.put_task(workstream, machine="orchestrated.task"), "failed")
    with db.transaction() as begun:
        assert begun.assess_runs([workstream.id])[0].failed_task == failed.id


# The invariants of document 002: workers.


def test_a_worker_holds_no_more_tasks_than_it_may(db: StoreFixture) -> None:
    """Capacity Limit. What it has lost does not count, and a loss cannot be taken back."""
    worker = db.bring(db.put(db.worker("orchestrated.worker", max_concurrent_tasks=2)), "busy")
    held = [db.bring(db.put_task(machine="orchestrated.task"), "running", worker_id=worker.id) for _ in range(2)]
    third = db.bring(db.put_task(machine="orchestrated.task"), "queued")
    with db.transaction() as begun:
        assert begun.count_held([worker.id]) == {worker.id: 2}
        assert begun.find_free_workers(ACME, 999).count(worker.id) == 0
    with pytest.raises(LawBroken, match="more than it may hold"):
        db.bring(third, "running", worker_id=worker.id)
    with db.transaction() as begun:
        update(begun, replace(held[0], lease_expired=True))
    third = db.bring(third, "running", worker_id=worker.id)
    with pytest.raises(LawBroken, match="does not get it back"), db.transaction() as begun:
        update(begun, replace(held[0], lease_expired=False))
    for task in (held[1], third):
        db.move(task, "failed")
    with db.transaction() as begun:
        assert begun.count_held([worker.id]) == {}


@pytest.mark.parametrize("change", [{"max_concurrent_tasks": 1}, {"state": "shutdown", "phase": "done", "outcome": "success"}])
def test_a_worker_that_holds_too_much_gets_nothing_more_and_can_end_what_it_has(
    db: StoreFixture, prompt: Outsider, change: dict[str, Any]
) -> None:
    """The room of a worker counts when an attempt begins. A database of an older version may have such a worker."""
    worker = db.bring(db.put(db.worker("orchestrated.worker", max_concurrent_tasks=3)), "busy")
    held = [db.bring(db.put_task(machine="orchestrated.task"), "running", worker_id=worker.id) for _ in range(2)]
    queued = db.bring(db.put_task(machine="orchestrated.task"), "queued")
    with db.prompt.lawless("worker"):
        type_columns(db.prompt, worker, **change, **({"completed_at": AT + 9 * SECOND} if "phase" in change else {}))
    type_columns(prompt, held[0], cancel_requested_at=AT + SECOND)
    assert find(db.store, held[0]).cancel_requested_at == AT + SECOND
    db.bring(held[1], "validating")
    with pytest.raises(LawBroken, match="more than it may hold"):
        db.bring(queued, "running", worker_id=worker.id)
    for task in held:
        db.move(find(db.store, task), "failed")


def test_only_a_living_worker_has_heartbeats(db: StoreFixture, prompt: Outsider) -> None:
    """Health Monitoring: idle and busy workers are expected to send them, and no other worker has any."""
    workers = {
        state: db.bring(db.put(db.worker("orchestrated.worker", lease_seconds=0.5, missing=state == "unresponsive")), state)
        for state in ("idle", "busy", "unresponsive", "shutdown")
    }
    with db.transaction() as begun:
        silent = set(begun.find_silent_workers(AT + 9 * SECOND, 9999))
    assert {state for state, worker in workers.items() if worker.id in silent} == {"idle", "busy"}
    for state, worker in workers.items():
        refused = pytest.raises(Refused, match="pointsman") if state in ("unresponsive", "shutdown") else nullcontext()
        with refused:
            type_columns(prompt, worker, heartbeat_at=AT + SECOND)


def test_a_worker_ends_only_when_it_has_released_everything(db: StoreFixture, prompt: Outsider) -> None:
    """Graceful Shutdown and Resource Cleanup: no task, no run, and nothing new."""
    run = db.put(db.run())
    worker = db.bring(db.put(db.worker("orchestrated.worker", run_id=run.id)), "busy")
    task = db.bring(db.put_task(run), "RUNNING", worker_id=worker.id)
    with pytest.raises(LawBroken):
        db.move(worker, "shutdown", run_id=None)
    with pytest.raises(Refused, match="holds"):
        type_columns(prompt, worker, state="shutdown")
    db.move(task, "FAILED")
    type_columns(prompt, worker, state="shutdown")
    assert find(db.store, worker).run_id is None
    with pytest.raises(LawBroken, match="has ended gets no task"):
        db.bring(db.put_task(run), "RUNNING", worker_id=worker.id)


def test_a_task_gets_its_dependencies_when_it_is_created(db: StoreFixture) -> None:
    """Dependency Satisfaction: neither a queued task gets one, nor one that does not count it."""
    run = db.put(db.run())
    other = db.put_task(run)
    queued = db.bring(db.put_task(run, open_dependencies=1), "QUEUED")
    for late in (queued, db.put_task(run)):
        with pytest.raises(LawBroken, match="when it is created"), db.transaction() as begun:
            begun.insert_dependencies([Dependency(late.id, other.id)])
