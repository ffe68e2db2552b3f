"""Engine tests have a clock of their own, and databases that an engine has opened before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import databases
from tests.rooms.engine.harness import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return databases.registered_sqlite_url(tmp_path)


@pytest.fixture
def postgres_url() -> Iterator[str]:
    with databases.postgres_database(registered=True) as url:
        yield url
