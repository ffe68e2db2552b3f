"""Settings and fixtures of all tests. Machines may be slow, so Hypothesis has no deadline. Databases are real."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests import databases

from pointsman.worker import containment

PATIENCE_SECONDS = 600
"""Far more than any test needs, also on a busy machine."""

settings.register_profile("pointsman", deadline=None)
settings.load_profile("pointsman")


def pytest_configure() -> None:
    databases.claim_ownership()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(databases.find_home()))
    # A background job of a shell ignores SIGINT, and so would every process that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for a process, a lease or a disk."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, so that no process is left alone with them at the end."""
    items.sort(key=lambda item: "/simulation/" not in item.nodeid)


def pytest_unconfigure() -> None:
    databases.end_ownership()
    remove_cgroups()


def remove_cgroups() -> None:
    """Remove those of workers that a test has killed and nobody succeeded; only empty ones can be removed."""
    own = containment._find_own_cgroup()
    for folder in own.glob("pointsman-*") if own else ():
        with contextlib.suppress(OSError):
            folder.rmdir()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """End a test that waits for something that never comes, so that the others go on and this one is reported."""

    def give_up(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 10)  # again: what it was waiting for may be waited for once more, on the way out
        raise TimeoutError(f"The test has not ended after {PATIENCE_SECONDS} seconds.")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in its own event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A database that does not exist yet."""
    return databases.sqlite_url(tmp_path)


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A migrated database."""
    with databases.postgres_database() as url:
        yield url


@pytest.fixture
def empty_postgres_url() -> Iterator[str]:
    """A database without tables."""
    with databases.postgres_database(migrated=False) as url:
        yield url


@pytest.fixture(params=databases.DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    """Runs the test on every database."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
