"""The schema, the migrations that lead to it, and databases that Pointsman must not touch."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest
from tests.databases import DATABASES, open_store
from tests.rooms.store.outsider import outsider

from pointsman.errors import StoreTooNew, StoreUnusable
from pointsman.store.columns import ROW_TYPES
from pointsman.store.scripts import read_migrations, read_queries, schema_file, write_schema
from pointsman.store.sqlite.schema import find_schema
from pointsman.store.sqlite.schema import write_schema as write_sqlite_schema

ROOT = Path(__file__).parents[3]
Catalogue = dict[str, str]


@pytest.fixture(params=DATABASES)
def fresh_url(request: pytest.FixtureRequest) -> str:
    """An empty database."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "empty_postgres_url")
    return url


def package_of(url: str) -> str:
    return f"pointsman.store.{'sqlite' if url.startswith('sqlite') else 'postgres'}"


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def migrate(url: str) -> None:
    open_store(url).close()


# The schema.


def catalogue(url: str) -> Catalogue:
    """The definition of every object by its name, as the database prints it, without the table of migrations."""
    with outsider(url) as prompt:
        rows = prompt.ask(SQLITE_CATALOGUE if prompt.dialect == "sqlite" else POSTGRES_CATALOGUE)
    return {name: normalized(text) for owner, name, text in rows if owner != "migration" and text}


SQLITE_CATALOGUE = "SELECT tbl_name, type || ' ' || name, sql FROM sqlite_schema"
POSTGRES_CATALOGUE = """
    SELECT relname, 'column ' || relname || '.' || attname,
           concat_ws(' ', attnum, format_type(atttypid, atttypmod), collname, attnotnull, attidentity, attgenerated,
                     pg_get_expr(adbin, adrelid))
      FROM pg_attribute
      JOIN pg_class ON pg_class.oid = attrelid
      LEFT JOIN pg_collation ON pg_collation.oid = attcollation
      LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
     WHERE relnamespace = 'public'::regnamespace AND attnum > 0 AND NOT attisdropped AND relkind IN ('r', 'v', 'S')
    UNION ALL
    SELECT relname, 'relation ' || relname, concat_ws(' ', relkind, relpersistence, reloptions)
      FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v', 'S')
    UNION ALL
    SELECT relname, 'constraint ' || relname || '.' || conname, pg_get_constraintdef(pg_constraint.oid)
      FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid WHERE connamespace = 'public'::regnamespace
    UNION ALL
    SELECT tablename, 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL
    SELECT relname, 'trigger ' || relname || '.' || tgname, concat_ws(' ', tgenabled, pg_get_triggerdef(pg_trigger.oid))
      FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid WHERE NOT tgisinternal
    UNION ALL
    SELECT '', 'function ' || proname || '(' || pg_get_function_identity_arguments(oid) || ')', pg_get_functiondef(oid)
      FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL
    SELECT viewname, 'view ' || viewname, definition FROM pg_views WHERE schemaname = 'public'
"""


def normalized(sql: str) -> str:
    """Without comments, and with single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"--.*", "", sql)).strip()


def columns_of(url: str) -> dict[str, set[str]]:
    """The columns of every table and view but those which refuse older versions."""
    with outsider(url) as prompt:
        if prompt.dialect == "sqlite":
            listed = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')"
            tables = prompt.ask(f"{listed} AND name NOT LIKE 'sqlite_%' AND name NOT IN ('clock', 'clock_correction')")
            found = [(table, column) for (table,) in tables for _, column, *_ in prompt.ask(f"PRAGMA table_xinfo({table})")]
        else:
            asked = (
                "SELECT table_name, column_name FROM information_schema.columns "
                "WHERE table_schema = 'public' AND table_name NOT IN ('clock', 'clock_correction')"
            )
            found = [(table, column) for table, column in prompt.ask(asked)]
    return {table: {column for owner, column in found if owner == table} for table, _ in found}


def test_the_schema_files_are_generated_from_the_migrations() -> None:
    postgres, sqlite = "pointsman.store.postgres", "pointsman.store.sqlite"
    assert schema_file(postgres).read_text("utf-8") == write_schema(postgres), "run `make docs`"
    assert schema_file(sqlite).read_text("utf-8") == write_sqlite_schema(), "run `make docs`"


def test_a_new_sqlite_database_is_what_all_migrations_come_to(sqlite_url: str, tmp_path: Path) -> None:
    migrate(sqlite_url)
    by_steps = f"sqlite:///{tmp_path}/by-steps.db"
    migrations = read_migrations("pointsman.store.sqlite")
    assert find_schema(migrations) is not None
    assert find_schema(migrations[:-1]) is None, "the schema is that of all of them"
    with closing(apsw.Connection(by_steps.removeprefix("sqlite:///"))) as connection:
        for migration in migrations:
            connection.execute(migration.sql).fetchall()
    assert catalogue(sqlite_url) == catalogue(by_steps)
    assert columns_of(sqlite_url) == {**columns_of(by_steps), "migration": {"number", "name", "applied_at"}}
    with outsider(by_steps) as prompt:
        rows = [prompt.ask(f"SELECT * FROM {table}") for table in columns_of(by_steps)]
    assert not any(rows), "a migration that inserts rows needs more than a schema"
    with outsider(sqlite_url) as prompt:
        applied = prompt.ask("SELECT number, name FROM migration ORDER BY number")
    assert applied == [each[:2] for each in migrations]


def test_both_databases_have_the_same_tables_columns_queries_and_migrations(sqlite_url: str, postgres_url: str) -> None:
    migrate(sqlite_url)
    assert columns_of(sqlite_url) == columns_of(postgres_url)
    sqlite, postgres = "pointsman.store.sqlite", "pointsman.store.postgres"
    # SQLite looks for plain tasks first, those to begin in one lane after the other, and PostgreSQL in the statement that
    # writes. Tables of SQLite check their rows even without the law. PostgreSQL does not let foreign keys be switched off.
    only_here = {"begin_plain_tasks_of_run", "check_runs", "check_tasks"}
    assert read_queries(postgres).keys() - read_queries(sqlite).keys() == only_here
    only_there = {"drop_stray_rules", "drop_stray_states", "find_plain_to_end", "select_numbered", "tell_begun"}
    assert read_queries(sqlite).keys() - read_queries(postgres).keys() == only_there
    assert [each[:2] for each in read_migrations(sqlite)] == [each[:2] for each in read_migrations(postgres)]


def test_every_table_has_the_columns_that_its_row_declares(fresh_url: str) -> None:
    """So a new column is a field of a row and a line in the migration of each database."""
    migrate(fresh_url)
    columns = columns_of(fresh_url)
    declared = {table: set(row_type.__struct_fields__) for table, row_type in ROW_TYPES.items()}
    declared["notice"].add("position")  # only orders the notices
    for table in ("run", "task", "worker", "breaker", "transition"):
        declared[table].add("number")  # only the trail refers to it
    declared["task"] |= {"run_number", "parent_number"}
    declared["rule"].add("id")
    assert {table: columns[table] for table in declared} == declared


# Migrations.


def recorded(url: str) -> list[tuple[object, ...]]:
    with outsider(url) as prompt:
        return prompt.ask("SELECT number, name, applied_at FROM migration ORDER BY number")


def test_migrating_twice_is_harmless(fresh_url: str) -> None:
    migrate(fresh_url)
    once, record = catalogue(fresh_url), recorded(fresh_url)
    migrate(fresh_url)
    assert (catalogue(fresh_url), recorded(fresh_url)) == (once, record)
    assert [(number, name) for number, name, _ in record] == [each[:2] for each in read_migrations(package_of(fresh_url))]


def test_threads_that_open_a_fresh_database_together_all_succeed(fresh_url: str) -> None:
    together = threading.Barrier(8)

    def start(_: int) -> None:
        together.wait()
        migrate(fresh_url)

    with ThreadPoolExecutor(together.parties) as pool:
        list(pool.map(start, range(together.parties)))
    assert len(recorded(fresh_url)) == len(read_migrations(package_of(fresh_url)))


STARTED = "import sys; from tests.databases import open_store; print('ready', flush=True); sys.stdin.readline(); "
STARTED += "open_store(sys.argv[1]).close()"


def test_processes_that_open_a_fresh_database_together_all_succeed(fresh_url: str) -> None:
    command = [sys.executable, "-c", STARTED, fresh_url]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe) for _ in range(2)]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert len(recorded(fresh_url)) == len(read_migrations(package_of(fresh_url)))


OPENED = """
import sys
from tests.databases import open_store
for line in sys.stdin:
    open_store(line.strip()).close()
    print("opened", flush=True)
"""


def test_processes_that_open_many_fresh_files_together_all_succeed(tmp_path: Path) -> None:
    """SQLite refuses at once, instead of waiting, when two processes switch a new file to its log: one try in ten met that."""
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen([sys.executable, "-c", OPENED], cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
        for _ in range(4)
    ]
    for number in range(50):
        for process in processes:
            assert process.stdin
            process.stdin.write(f"sqlite:///{tmp_path / str(number)}.db\n")
            process.stdin.flush()
        answers = [process.stdout.readline() for process in processes if process.stdout]
        if answers != ["opened\n"] * len(processes):
            break
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert ([process.returncode for process in processes], errors) == ([0] * len(processes), [""] * len(processes))


# Databases that must not be touched.


@contextmanager
def unchanged(url: str) -> Iterator[None]:
    """The files of a folder stay the same to the last byte; the schema and rows of a database, too."""

    def look() -> object:
        if url.startswith("sqlite"):
            folder = file_of(url).parent
            return {path.name: path.is_file() and path.read_bytes() for path in folder.glob("*")}
        with outsider(url) as prompt:
            tables = prompt.ask("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
            return catalogue(url), [(table, prompt.ask(f"SELECT * FROM {table} ORDER BY 1")) for (table,) in tables]

    before = look()
    yield
    assert look() == before


def refuse(url: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_store(url)


def test_a_database_from_a_newer_version_is_refused(fresh_url: str) -> None:
    migrate(fresh_url)
    with outsider(fresh_url) as prompt:
        prompt.ask("INSERT INTO migration SELECT 9999, 'of_tomorrow', max(applied_at) FROM migration")
    with unchanged(fresh_url):
        refuse(fresh_url, StoreTooNew, "9999")


def test_a_database_of_another_program_is_refused(fresh_url: str) -> None:
    """On a server, programs may share a database as long as their table names differ."""
    with outsider(fresh_url) as prompt:
        prompt.ask("CREATE TABLE task (title TEXT)")
        prompt.ask("INSERT INTO task VALUES ('buy milk')")
    with unchanged(fresh_url):
        refuse(fresh_url, StoreUnusable, "another program")


def test_a_database_of_another_program_that_has_migrations_too_is_refused(fresh_url: str) -> None:
    with outsider(fresh_url) as prompt:
        prompt.ask("CREATE TABLE migration (version TEXT, app TEXT)")
        prompt.ask("INSERT INTO migration VALUES ('0001_initial', 'shop')")
    with unchanged(fresh_url):
        refuse(fresh_url, StoreUnusable, "another program")


def test_a_file_that_is_no_database_is_refused(sqlite_url: str) -> None:
    file_of(sqlite_url).write_text("Dear Sir or Madam,\n" * 500)
    with unchanged(sqlite_url):
        refuse(sqlite_url, StoreUnusable, "not a SQLite database")


def test_a_truncated_database_is_refused(sqlite_url: str) -> None:
    migrate(sqlite_url)
    file = file_of(sqlite_url)
    file.write_bytes(file.read_bytes()[:5000])
    with unchanged(sqlite_url):
        refuse(sqlite_url, StoreUnusable, "not a SQLite database")


def test_a_path_that_cannot_be_a_file_is_explained(tmp_path: Path) -> None:
    for place, what in ((tmp_path, "is a folder"), (tmp_path / "nowhere" / "pointsman.db", "does not exist")):
        with unchanged(f"sqlite:///{place}"):
            refuse(f"sqlite:///{place}", StoreUnusable, what)


def test_an_empty_file_becomes_a_database(sqlite_url: str) -> None:
    file_of(sqlite_url).touch()
    migrate(sqlite_url)
    assert recorded(sqlite_url)
