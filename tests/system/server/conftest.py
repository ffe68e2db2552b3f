"""One server with a worker for each database, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests import databases
from tests.system.server.harness import Client, start


@pytest.fixture(scope="session", params=databases.DATABASES)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of `pointsman up` on a database; what tests leave there, others see, too."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = databases.registered_sqlite_url(folder)
        else:
            url = stack.enter_context(databases.postgres_database(registered=True))
        client, _ = stack.enter_context(start("up", folder, url, "--slots", "4"))
        yield client
