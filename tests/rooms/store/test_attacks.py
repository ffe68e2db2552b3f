"""What a program that may write to every table cannot do: the attacks that once got past the law."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace as with_fields
from datetime import datetime
from decimal import Decimal
from itertools import count
from os import getpid
from typing import Any

import psycopg
import pytest
from msgspec.structs import asdict, replace
from tests.rooms.store.outsider import TABLES_OF, Outsider, Refused, type_columns, type_row, type_values
from tests.rooms.store.store_fixture import ACME, AT, MACHINES, SECOND, StoreFixture, find, move
from tests.rows import each_row

from pointsman.store.columns import types_of
from pointsman.store.rows import Breaker, Dependency, Entity, Run, Task, Worker

MACHINE_OF = {"run": "standard.run", "task": "standard.task", "worker": "standard.worker", "breaker": "standard.breaker"}
KINDS: dict[str, type[Entity]] = {"run": Run, "task": Task, "worker": Worker, "breaker": Breaker}
ALWAYS_FIXED = ("id", "tenant", "machine_id", "created_at")
COUNTED = ("run_open", "open_dependencies")
"""Columns of tasks that no move changes, but queries of their own do."""
TOLD = ("trigger", "reason", "actor", "metadata", "entered_at", "started_at", "completed_at")
_numbers = count(1)


@pytest.fixture
def db(shared_db: StoreFixture) -> StoreFixture:
    return shared_db


@pytest.fixture
def postgres(db: StoreFixture) -> StoreFixture:
    if db.prompt.dialect != "postgres":
        pytest.skip("SQLite has no roles and no settings")
    return db


@pytest.fixture
def sqlite(db: StoreFixture) -> StoreFixture:
    if db.prompt.dialect != "sqlite":
        pytest.skip("PostgreSQL has neither rowids nor a switch for foreign keys")
    return db


@contextmanager
def ordinary_role(db: StoreFixture) -> Iterator[psycopg.Connection[Any]]:
    """A session of a role that may read and write every row, and owns nothing."""
    role = f"pointsman_mallory_{getpid()}_{next(_numbers)}"
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}".encode())
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}".encode())
        connection.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}".encode())
        connection.execute(f"SET ROLE {role}".encode())
        try:
            yield connection
        finally:
            connection.execute(b"RESET ROLE")
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


def another(row: Entity, column: str) -> Any:
    """A value of the same type that the row does not have."""
    match types_of(type(row))[column], getattr(row, column):
        case kind, bool() as value if kind is bool:
            return not value
        case kind, value if kind is int:
            return (value or 0) + 1
        case kind, value if kind is float:
            return value + 1
        case kind, value if kind is datetime:
            return (value or AT) + SECOND
        case kind, _ if kind is Decimal:
            return Decimal(7)
        case _, value:
            return '{"forged":1}' if column in ("policy", "metadata") else '"all"' if column == "serves" else f"{value} forged"


# Columns that stay, and columns that only a move changes.


@each_row("kind", KINDS)
def test_a_row_keeps_everything_that_it_was_created_with(db: StoreFixture, prompt: Outsider, kind: str) -> None:
    """A fixed column that is new in `rows.py` needs its line in the law."""
    row = db.put(db.entity(MACHINE_OF[kind]))
    for column in (*ALWAYS_FIXED, *(name for name in row.FIXED if name not in COUNTED)):
        with pytest.raises(Refused, match="keeps"):
            type_columns(prompt, row, **{column: another(row, column)})
        with pytest.raises(Refused, match="keeps"):
            type_columns(prompt, row, **{column: another(row, column)}, state=db.machine_of(row).allowed(row.state)[0])
    assert find(db.store, row) == row


@each_row("kind", KINDS)
def test_only_a_move_changes_who_moved_a_row_why_and_when(db: StoreFixture, prompt: Outsider, kind: str) -> None:
    row = db.put(db.entity(MACHINE_OF[kind]))
    told = (*TOLD, "output") if kind in ("run", "task") else TOLD
    for state in ("RUNNING", "CANCELED") if kind in ("run", "task") else (row.state,):
        row = db.bring(row, state) if state != row.state else row
        for column in told:
            with pytest.raises(Refused):
                type_columns(prompt, row, **{column: another(row, column)})
        assert find(db.store, row) == row


def test_a_move_by_hand_does_not_set_when_the_work_began(db: StoreFixture, prompt: Outsider) -> None:
    run = db.bring(db.put(db.run()), "RUNNING")
    type_columns(prompt, run, state="PAUSED", started_at=run.started_at + 99 * SECOND if run.started_at else AT)
    assert find(db.store, run).started_at == run.started_at


@each_row("kind", KINDS)
def test_no_two_entities_have_the_same_id(db: StoreFixture, prompt: Outsider, kind: str) -> None:
    """Their histories are found by it."""
    others = [db.put(db.entity(MACHINE_OF[other])) for other in KINDS if other != kind]
    rows = [replace(db.entity(MACHINE_OF[kind]), id=other.id) for other in others]
    for row in rows:
        with pytest.raises(Refused, match="does not begin like that of another kind"):
            type_row(prompt, row)


# Tasks, their runs and what they wait for.


def test_a_run_that_has_succeeded_gets_no_more_tasks(db: StoreFixture, prompt: Outsider) -> None:
    run = db.bring(db.put(db.run()), "SUCCEEDED")
    failed = db.bring(db.put(db.run()), "FAILED")
    with pytest.raises(Refused, match="gets no more tasks"):
        type_row(prompt, db.task(run))
    type_row(prompt, db.task(failed))


def test_a_task_stays_in_its_run(db: StoreFixture, prompt: Outsider) -> None:
    """Otherwise a run could succeed after its failed tasks were moved away."""
    run, elsewhere = db.bring(db.put(db.run()), "RUNNING"), db.put(db.run())
    task = db.put_task(run, state="FAILED")
    with pytest.raises(Refused, match="keeps"):
        type_columns(prompt, task, run_id=elsewhere.id)
    with pytest.raises(Refused, match="pointsman"):
        type_columns(prompt, run, state="SUCCEEDED")


def test_a_task_waits_for_its_dependencies_whatever_its_count_says(db: StoreFixture, prompt: Outsider) -> None:
    run = db.put(db.run())
    first = db.put_task(run, state="RUNNING")
    waiting = db.put_task(run, open_dependencies=1)
    with db.transaction() as begun:
        begun.insert_dependencies([Dependency(waiting.id, first.id)])
    with pytest.raises(Refused, match="waits until all"):
        type_columns(prompt, waiting, open_dependencies=0)
    for statement in ("DELETE FROM dependency", "UPDATE dependency SET task_id = depends_on_id"):
        with pytest.raises(Refused, match="a dependency cannot be"):
            prompt.ask(statement)
    db.move(first, "SUCCEEDED")
    with db.transaction() as begun:
        assert begun.release_dependents([first.id]) == [waiting.id]


@each_row("table", ["tenant", "lane", "seal"])
def test_what_others_refer_to_stays(db: StoreFixture, prompt: Outsider, table: str) -> None:
    db.put(db.run())
    if table == "seal" and not prompt.ask("SELECT 1 FROM seal"):
        prompt.ask("INSERT INTO seal (position, previous, digest, sealed_at) VALUES (1, 0, 'd', :at)", at=AT)
    before = prompt.ask(f"SELECT * FROM {table}")
    column = {"tenant": "id", "lane": "tenant", "seal": "digest"}[table]
    for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET {column} = {column}"):
        with pytest.raises(Refused, match=f"a {table} cannot be"):
            prompt.ask(statement)
    assert before
    assert prompt.ask(f"SELECT * FROM {table}") == before


def test_a_seal_continues_the_last_one(prompt: Outsider) -> None:
    with pytest.raises(Refused, match="continues the last one"):
        prompt.ask("INSERT INTO seal (position, previous, digest, sealed_at) VALUES (2000, 1000, 'd', :at)", at=AT)


def test_a_seal_covers_no_transitions_that_are_still_to_come(prompt: Outsider) -> None:
    """It would leave none to seal, and be broken by the next one."""
    with pytest.raises(Refused, match="ends with a transition"):
        prompt.ask(
            "INSERT INTO seal (position, previous, digest, sealed_at) "
            "SELECT 1000000000, coalesce(max(position), 0), 'd', :at FROM seal",
            at=AT,
        )


# Machines.


def test_no_task_is_born_done(prompt: Outsider) -> None:
    """Not even in a machine of one's own."""
    with pytest.raises(Refused) as refused:
        prompt.ask(
            "INSERT INTO state (machine_id, name, phase, outcome, initial, kind) "
            "SELECT max(id) + 1, 'SUCCEEDED', 'done', 'success', :yes, 'task' FROM machine",
            yes=True,
        )
    assert refused.value.check


def test_a_new_machine_has_the_next_number(prompt: Outsider) -> None:
    """One with the largest number would leave none for the next."""
    machine = "INSERT INTO machine (id, name, version, kind, fingerprint, lifecycle, definition) VALUES (:id, 'x.y', 1, 'run'"
    for number in (2_147_483_647, 0, -1):
        with pytest.raises(Refused, match="next number"):
            prompt.ask(f"{machine}, 'f', 'x', 'd')", id=number)


def test_rules_that_have_no_machine_do_not_block_the_next_one(sqlite: StoreFixture) -> None:
    """A program that has switched foreign keys off can lay them."""
    sqlite.prompt.ask(
        "INSERT INTO state (machine_id, name, phase, initial, kind) "
        "SELECT max(id) + 1, 'PENDING', 'queued', 1, 'run' FROM machine"
    )
    sqlite.prompt.ask(
        "INSERT INTO rule SELECT NULL, max(id) + 1, 'PENDING', 'PENDING', 'loop', 'info', 'queued', NULL, 0, 0, 0 FROM machine"
    )
    with sqlite.transaction() as begun:
        row = begun.insert_machine(with_fields(MACHINES["standard.run"], version=77), fingerprint="f", definition="d")
    laid = sqlite.prompt.ask("SELECT count(*) FROM rule WHERE machine_id = :id AND trigger = 'loop'", id=row.id)
    assert laid == [(0,)]


# Only on SQLite.


@each_row("kind", KINDS)
def test_a_row_keeps_its_rowid(sqlite: StoreFixture, kind: str) -> None:
    """UPDATE OR REPLACE would delete the row whose place is taken."""
    for _ in range(2):
        sqlite.put(sqlite.entity(MACHINE_OF[kind]))
    before = sqlite.prompt.ask(f"SELECT id FROM {kind} ORDER BY id")
    places = [(table, name) for table in TABLES_OF.get(kind, (kind,)) for name in ("rowid", "OID", "_rowid_", "number")]
    for table, name in [*places, (kind, "number")]:
        for statement in (f"UPDATE OR REPLACE {table} SET {name} = 1", f"UPDATE {table} SET {name} = {name} + 1000"):
            with pytest.raises(Refused, match=r"keeps (its place|what|its id)"):
                sqlite.prompt.ask(statement)
    assert sqlite.prompt.ask(f"SELECT id FROM {kind} ORDER BY id") == before


def test_a_trigger_of_a_temporary_table_writes_no_line(sqlite: StoreFixture) -> None:
    sqlite.prompt.ask("CREATE TEMPORARY TABLE bait (x)")
    sqlite.prompt.ask(
        "CREATE TEMPORARY TRIGGER bite AFTER INSERT ON bait BEGIN "
        "INSERT INTO trail (at, number, kind, revision) VALUES (0, 1000, 0, 0); END"
    )
    with pytest.raises(Refused, match="only the law writes"):
        sqlite.prompt.ask("INSERT INTO bait VALUES (1)")
    sqlite.prompt.ask("DROP TABLE bait")


# Only on PostgreSQL.

FORGED = """
    CREATE FUNCTION pg_temp.forge() RETURNS trigger LANGUAGE plpgsql AS $forge$
    BEGIN
        {statement};
        RETURN NULL;
    END $forge$
"""
LINE = "INSERT INTO public.trail (at, number, kind, revision) VALUES (now(), 1000, 0, 0)"
IN_A_VIEW = """
    INSERT INTO public.transition (tenant, kind, entity_id, revision, machine_id, to_state, trigger, severity, at)
    VALUES ('acme', 'run', 'run_forged', 0, 1, 'SUCCEEDED', 'complete', 'info', now())
"""
ATTEMPT = """
    INSERT INTO public.attempt (task_id, epoch, tenant, worker_id, started_at, ended_at, ended_by, cost_usd, resumed)
    VALUES ('task_forged', 1, 'acme', 'mallory', now(), now(), 'complete', 0, false)
"""


@each_row("statement", [LINE, IN_A_VIEW, ATTEMPT])
def test_a_trigger_of_a_temporary_table_is_not_the_law(postgres: StoreFixture, statement: str) -> None:
    with ordinary_role(postgres) as session:
        session.execute(b"CREATE TEMPORARY TABLE bait (x integer)")
        session.execute(FORGED.format(statement=statement).encode())
        session.execute(b"CREATE TRIGGER bite AFTER INSERT ON bait FOR EACH ROW EXECUTE FUNCTION pg_temp.forge()")
        with pytest.raises(psycopg.errors.RaiseException, match="only the law writes"):
            session.execute(b"INSERT INTO bait VALUES (1)")
        with pytest.raises(psycopg.errors.RaiseException, match="only the law writes"):
            session.execute(statement.encode())


def test_nobody_else_uses_the_functions_of_the_law(postgres: StoreFixture) -> None:
    """They write as the owner: as triggers of a temporary table they would audit whatever is in it."""
    with ordinary_role(postgres) as session:
        session.execute(b"CREATE TEMPORARY TABLE task (LIKE public.task)")
        for function in ("task_begins", "task_moves", "breaker_begins", "breaker_moves"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(
                    f"CREATE TRIGGER forge AFTER INSERT ON pg_temp.task REFERENCING NEW TABLE AS new_rows "
                    f"FOR EACH STATEMENT EXECUTE FUNCTION public.{function}()".encode()
                )
        (definer,) = session.execute(
            b"SELECT array_agg(proname::text) FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace "
            b"AND has_function_privilege(oid, 'EXECUTE')"
        ).fetchone() or (None,)
        assert definer is None, "a function that runs as the owner is for nobody else"


FORBIDDEN = {
    # to every role that may write to all tables
    "an illegal move": "UPDATE run SET state = 'SUCCEEDED' WHERE id = %(run)s",
    "another name": "UPDATE run SET name = 'x' WHERE id = %(run)s",
    "another actor": "UPDATE run SET actor = 'x' WHERE id = %(run)s",
    "another output": "UPDATE task SET output = 'x' WHERE id = %(task)s",
    "another payload": "UPDATE task SET payload = 'x' WHERE id = %(task)s",
    "a claim without a worker": "UPDATE task SET state = 'RUNNING' WHERE id = %(task)s",
    "no run": "DELETE FROM run WHERE id = %(run)s",
    "another trail": "UPDATE trail SET actor = 'x'",
    "no trail": "DELETE FROM trail",
    "another number": "UPDATE task SET number = DEFAULT WHERE id = %(task)s",
    "another attempt": "UPDATE attempt SET cost_usd = 0",
    "another rule": "UPDATE rule SET to_state = from_state",
    "no dependency": "DELETE FROM dependency",
    "no seal": "DELETE FROM seal",
    "metadata that is no object": "UPDATE run SET revision = 1, state = 'RUNNING', metadata = '[' WHERE id = %(run)s",
    "a switch": "SET session_replication_role = replica",
    "no law": "ALTER TABLE run DISABLE TRIGGER USER",
    "no table": "DROP TABLE notice",
}


def test_an_ordinary_role_gets_no_further(postgres: StoreFixture) -> None:
    run = postgres.put(postgres.run())
    task = postgres.bring(postgres.put_task(run), "QUEUED")
    refusals = (psycopg.errors.RaiseException, psycopg.errors.InsufficientPrivilege, psycopg.errors.CheckViolation)
    with ordinary_role(postgres) as session:
        for statement in FORBIDDEN.values():
            with pytest.raises(refusals):
                session.execute(statement.encode(), {"run": run.id, "task": task.id} if "%(" in statement else None)
    assert [find(postgres.store, row) for row in (run, task)] == [run, task]


FORGED_TASK = 'jsonb_populate_record(task, \'{"id":"task_forged","number":1000000,"name":"forged","retry_count":99}\')'
CHANGE = "UPDATE task SET retry_count = 99"
FORGED_ROW = f"INSERT INTO task OVERRIDING USER VALUE SELECT ({FORGED_TASK}).* FROM task WHERE id = %(task)s"
CHANGE_STATE = "UPDATE task_state SET retry_count = 99"
NUMBER = "(SELECT number FROM task_spec WHERE id = %(task)s)"
BROKEN_ROWS = {
    # ways to write a task that has had more retries than it may have
    "insert": FORGED_ROW,
    "insert within a query": f"WITH forged AS ({FORGED_ROW} RETURNING id) SELECT id FROM forged",
    "update": f"{CHANGE} WHERE id = %(task)s",
    "update from another": f"{CHANGE} FROM task AS other WHERE other.id = task.id AND task.id = %(task)s",
    "update within a query": f"WITH forged AS ({CHANGE} WHERE id = %(task)s RETURNING id) SELECT id FROM forged",
    "insert or update": (
        f"INSERT INTO task_state SELECT * FROM task_state WHERE number = {NUMBER} "
        "ON CONFLICT (number) DO UPDATE SET retry_count = 99"
    ),
    "merge": (
        "MERGE INTO task USING (SELECT %(task)s AS id) AS own ON own.id = task.id WHEN MATCHED THEN UPDATE SET retry_count = 99"
    ),
    "a view": "UPDATE seen SET retry_count = 99 WHERE id = %(task)s",
    "the table": f"{CHANGE_STATE} WHERE number = {NUMBER}",
    "the table within a query": (
        f"WITH forged AS ({CHANGE_STATE} WHERE number = {NUMBER} RETURNING number) SELECT number FROM forged"
    ),
    "merge into the table": (
        f"MERGE INTO task_state USING (SELECT {NUMBER} AS number) AS own ON own.number = task_state.number "
        "WHEN MATCHED THEN UPDATE SET retry_count = 99"
    ),
    "a cursor": f"{CHANGE_STATE} WHERE CURRENT OF there",
}


@each_row("way", BROKEN_ROWS)
@pytest.mark.parametrize("setting", ["enable_hashjoin = on", "enable_hashjoin = off", "plan_cache_mode = force_generic_plan"])
def test_every_way_to_write_a_row_is_under_the_law(postgres: StoreFixture, way: str, setting: str) -> None:
    """Its rules for rows belong to a trigger, which no statement, setting or deferral gets around."""
    task = postgres.put_task()
    with ordinary_role(postgres) as session:
        session.execute(b"BEGIN; SET CONSTRAINTS ALL DEFERRED; CREATE TEMPORARY VIEW seen AS SELECT * FROM task")
        session.execute(f"SET LOCAL {setting}; SET LOCAL enable_mergejoin = off".encode())
        there = f"SELECT * FROM task_state WHERE number = (SELECT number FROM task WHERE id = '{task.id}') FOR UPDATE"
        session.execute(f"DECLARE there CURSOR FOR {there}; FETCH there".encode())
        with pytest.raises(psycopg.errors.CheckViolation, match="task_retries_in_bounds") as refused:
            session.execute(BROKEN_ROWS[way].encode(), {"task": task.id})
        assert refused.value.diag.constraint_name == "task_retries_in_bounds"
        session.execute(b"ROLLBACK")
    assert find(postgres.store, task) == task


@each_row("kind", KINDS)
def test_no_row_takes_a_number_that_is_still_to_come(postgres: StoreFixture, kind: str) -> None:
    """Otherwise the row that is to get it could not be created."""
    row = postgres.entity(MACHINE_OF[kind])
    for number in (2_000_000, 9_223_372_036_854_775_807):
        with pytest.raises(Refused, match="gets the next number"):
            type_values(postgres.prompt, kind, {**asdict(row), "number": number})
    postgres.put(row)


def test_copied_rows_are_under_the_law(postgres: StoreFixture) -> None:
    task = postgres.put_task()
    with ordinary_role(postgres) as session, session.cursor() as cursor:
        with cursor.copy(f"COPY (SELECT ({FORGED_TASK}).* FROM task WHERE id = '{task.id}') TO STDOUT".encode()) as reading:
            rows = b"".join(map(bytes, reading))
        assert rows
        with pytest.raises(psycopg.errors.CheckViolation, match="task_retries_in_bounds"):  # noqa: SIM117 - it is raised at the end
            with cursor.copy(b"COPY task FROM STDIN") as writing:
                writing.write(rows)


def test_an_ordinary_role_moves_what_a_rule_allows(postgres: StoreFixture) -> None:
    run = postgres.put(postgres.run())
    with ordinary_role(postgres) as session:
        session.execute(b"UPDATE run SET state = 'RUNNING' WHERE id = %s", [run.id])
        with pytest.raises(psycopg.errors.RaiseException, match="no rule of"):
            session.execute(b"UPDATE run SET state = 'PENDING' WHERE id = %s", [run.id])
    with postgres.store.read() as reader:
        assert [line.actor for line in reader.list_history(ACME, run.id)] == [None, "sql"]


@each_row("setting", ["yes", "", "0", "999999999999", "-5", "999999999999999999999999"])
def test_a_setting_does_not_hide_a_writer_from_the_stream(postgres: StoreFixture, setting: str) -> None:
    """Readers wait for a transaction that may still commit a smaller position than the ones that they could see."""
    run, other = postgres.put(postgres.run()), postgres.put(postgres.run())
    with postgres.store.read() as reader:
        start = reader.last_position()
    with psycopg.connect(postgres.url) as slow:
        slow.execute(b"SELECT set_config('pointsman.announced', %s, false)", [setting])
        slow.execute(b"UPDATE run SET state = 'RUNNING' WHERE id = %s", [run.id])
        postgres.move(other, "RUNNING")
        with postgres.store.read() as reader:
            assert reader.list_transitions(ACME, after=start, limit=9, run_id=None) == []
            assert reader.is_held_back()
        slow.commit()
    with postgres.store.read() as reader:
        found = reader.list_transitions(ACME, after=start, limit=9, run_id=None)
    assert [line.entity_id for line in found] == [run.id, other.id]


# Readers.


def test_metadata_that_no_reader_can_decode_does_not_stop_the_stream(db: StoreFixture) -> None:
    """It is valid JSON to both databases."""
    for metadata in (r'{"a": "\ud800"}', '{"a": 1e999}'):
        run = db.put(db.run())
        with db.transaction() as begun:
            move(begun, replace(db.moved(run, "RUNNING"), metadata=metadata))
        with db.store.read() as reader:
            assert reader.list_history(ACME, run.id)[-1].details == {"unreadable": metadata}
