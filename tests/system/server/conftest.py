"""Servers for each database, shared by the tests of this folder; what tests leave there, others see, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests import databases
from tests.system.server.harness import Alternating, Client, start, start_worker

SERVERS = 2
WORKERS = 3


@pytest.fixture(scope="session", params=databases.DATABASES)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of `pointsman up` on a database."""
    with ExitStack() as stack:
        folder, url = _make_place(request.param, tmp_path_factory, stack)
        client, _ = stack.enter_context(start("up", folder, url, "--slots", "4"))
        yield client


@pytest.fixture(scope="session", params=databases.DATABASES)
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of `pointsman up` on SQLite; on PostgreSQL of several servers in turns, beside several workers."""
    with ExitStack() as stack:
        folder, url = _make_place(request.param, tmp_path_factory, stack)
        if request.param == "sqlite":
            client, _ = stack.enter_context(start("up", folder, url, "--slots", "4"))
            yield client
            return
        first, *others = [stack.enter_context(start("serve", folder, url))[0].url for _ in range(SERVERS)]
        for _ in range(WORKERS):
            stack.enter_context(start_worker(folder, url))
        yield Alternating(first, others=tuple(others))


def _make_place(kind: str, tmp_path_factory: pytest.TempPathFactory, stack: ExitStack) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp(kind)
    if kind == "sqlite":
        return folder, databases.registered_sqlite_url(folder)
    return folder, stack.enter_context(databases.postgres_database(registered=True))
