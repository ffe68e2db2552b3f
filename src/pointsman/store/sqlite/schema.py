"""`schema.sql` is what all migrations come to. A new database begins with it, since SQLite is slow to add columns.

`make docs` writes it. It is used only if its digest matches the migrations; otherwise these are applied one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import apsw

from pointsman.store.scripts import Migration, read_migrations, schema_file

_HEADER = """\
-- The schema of a new database, and for readers: what all migrations come to. `make docs` writes it; never edit it.
-- {digest}

"""


def find_schema(migrations: Sequence[Migration]) -> str | None:
    """What these migrations come to, if the file was made from them."""
    text = schema_file(__package__).read_text("utf-8")
    return text if text.startswith(_write_header(migrations)) else None


def write_schema() -> str:
    """The text of `schema.sql`: every object that the migrations have made, in this order."""
    connection = apsw.Connection(":memory:")
    migrations = read_migrations(__package__)
    for migration in migrations:
        connection.execute(migration.sql).fetchall()
    made = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid")
    return _write_header(migrations) + "\n\n".join(f"{sql};" for (sql,) in made) + "\n"


def _write_header(migrations: Sequence[Migration]) -> str:
    return _HEADER.format(digest=hashlib.sha256("\0".join(each.sql for each in migrations).encode()).hexdigest())
