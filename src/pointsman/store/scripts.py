"""SQL files: numbered migrations, and queries by their names.

`store/queries` has the queries that both databases run; `queries.sql` of a store has those that only its dialect can run:

    -- name: select_tasks
    SELECT {task_in_brief} FROM task WHERE task.id IN :ids ORDER BY task.id

    -- name: insert_runs
    INSERT INTO {new run}

`:id` is a parameter, `IN :ids` compares with a list, `{task}` stands for the columns of a row in the order of its fields
(`columns.SELECT_LISTS`), `{new run}` for the table, columns and values of rows to insert, and `{rows of task}` for such rows
alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from pointsman.errors import StoreTooNew, StoreUnusable
from pointsman.store.columns import ROW_TYPES, SELECT_LISTS

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
_HOLE = re.compile(r"\{(new |rows of )?(\w+)\}")
_PARAMETER = re.compile(r"(\bIN )?(?<!:):(\w+)")
_HEADER = """\
-- The whole schema, for readers: all migrations in one file. `make docs` writes it and a test compares it; never edit it.

"""


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


class Dialect(NamedTuple):
    """How a database writes what queries leave open."""

    parameter: str
    any_of: str
    insert: Callable[[type[Struct]], str]
    rows: Callable[[type[Struct]], str] | None = None
    """Where one statement takes all rows of a batch: what it takes them from."""

    def write(self, query: str) -> str:
        filled = _HOLE.sub(lambda hole: self._fill(hole[1], hole[2]), query)
        return _PARAMETER.sub(lambda found: (self.any_of if found[1] else self.parameter).format(found[2]), filled)

    def _fill(self, kind: str | None, name: str) -> str:
        if kind is None:
            return SELECT_LISTS[name]
        fill = self.insert if kind == "new " else self.rows
        assert fill, f"{{{kind}{name}}}: a statement takes one row at a time here"
        return fill(ROW_TYPES[name])


def read_migrations(package: str) -> list[Migration]:
    """All migrations of a store, in the order of their numbers."""
    found = []
    for file in _sql_files(files(package) / "migrations"):
        number, _, name = file.name.removesuffix(".sql").partition("_")
        found.append(Migration(int(number), name, file.read_text("utf-8")))
    return sorted(found)


def check_version(applied: int, migrations: list[Migration], url: str) -> None:
    newest = migrations[-1].number
    if applied > newest:
        raise StoreTooNew(
            f"{url} has schema {applied}, but this version of Pointsman supports only {newest} and older. "
            "Install the version that created it, or a newer one."
        )


def refuse_conversion(url: str, why: str) -> StoreUnusable:
    return StoreUnusable(
        f"{url} cannot be converted to this version: {why}. Nothing was changed. "
        "Run `pointsman doctor --audit` with the version that wrote it."
    )


def read_queries(package: str) -> dict[str, str]:
    """Every named query that a store runs, as it is written."""
    queries: dict[str, str] = {}
    for file in (*_sql_files(files(__package__) / "queries"), files(package) / "queries.sql"):
        _, *parts = _NAME.split(file.read_text("utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            assert name not in queries, f"{file.name}: a second query called {name}"
            queries[name] = _COMMENT.sub("", text).strip()
    return queries


def schema_file(package: str) -> Path:
    return Path(str(files(package) / "schema.sql"))


def write_schema(package: str) -> str:
    """The text of `schema.sql`."""
    return _HEADER + "\n".join(migration.sql for migration in read_migrations(package))


def _sql_files(folder: Traversable) -> list[Traversable]:
    return sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
