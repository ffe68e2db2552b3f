"""A database for each test, or one for a module whose tests need no isolation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.databases import DATABASES, postgres_database, sqlite_url
from tests.rooms.store.outsider import Outsider
from tests.rooms.store.store_fixture import StoreFixture, open_store_fixture


@pytest.fixture(params=DATABASES)
def fresh_db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreFixture]:
    """A database with nothing but the machines, one tenant and one lane."""
    url = sqlite_url(tmp_path) if request.param == "sqlite" else request.getfixturevalue("emptied_postgres_url")
    with open_store_fixture(url) as opened:
        yield opened


@pytest.fixture(scope="module", params=DATABASES)
def shared_db(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreFixture]:
    if request.param == "sqlite":
        with open_store_fixture(sqlite_url(tmp_path_factory.mktemp("shared"))) as opened:
            yield opened
    else:
        with postgres_database() as url, open_store_fixture(url) as opened:
            yield opened


@pytest.fixture
def db(fresh_db: StoreFixture) -> StoreFixture:
    return fresh_db


@pytest.fixture
def prompt(db: StoreFixture) -> Outsider:
    return db.prompt


@pytest.fixture(scope="session")
def standing_postgres_url() -> Iterator[str]:
    with postgres_database() as url:
        yield url


@pytest.fixture
def emptied_postgres_url(standing_postgres_url: str) -> str:
    """The same database each time, emptied: creating another one takes ten times as long."""
    with psycopg.connect(standing_postgres_url) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'migration'")
        tables = [name for (name,) in found]
        for change in ("DISABLE", "ENABLE"):
            for table in tables:
                connection.execute(f"ALTER TABLE {table} {change} TRIGGER USER".encode())
            if change == "DISABLE":
                connection.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY".encode())
    return standing_postgres_url
