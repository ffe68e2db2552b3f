"""SQLite: a file that somebody else holds, a disk that is full, a place where no database can be."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import queue
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.rooms.engine.harness import ManualClock, open_engine, submit
from tests.system.faults.disk import mounted
from tests.system.faults.programs import run

from pointsman import app
from pointsman.engine import writer
from pointsman.engine.engine import Engine
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import StoreBusy, StoreFull, StoreUnusable
from pointsman.store.contract import Wakeup
from pointsman.store.sqlite import store as sqlite
from pointsman.store.sqlite.bell import Bell

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("free", flush=True)
"""
"""Another program with a transaction that does not end."""

LIMITED = """
import asyncio, json, resource, sys
from pointsman import app
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import StoreFull

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main(url):
    async with app.open(url, keeps=False) as engine:
        limit(1_500_000)
        names = []
        try:
            for number in range(1000):
                new = NewRun(name=f"run {number}", tasks=(NewTask(name="a", payload="x" * 20_000),))
                names.append((await engine.submit_run(new)).name)
        except StoreFull as error:
            stored = sorted(run.name for run in await engine.list_runs(limit=10_000))
            print(json.dumps([str(error), sorted(names) == stored]), flush=True)
        limit(resource.RLIM_INFINITY)
        names.append((await engine.submit_run(NewRun(name="afterwards", tasks=(NewTask(name="a"),)))).name)
        stored = sorted(run.name for run in await engine.list_runs(limit=10_000))
        print(json.dumps(sorted(names) == stored), flush=True)

asyncio.run(main(sys.argv[1]))
"""
"""Writes files that may not grow beyond a limit, until the limit is lifted."""


OPENER = """
import asyncio, sys
from pointsman import app

async def main(url):
    async with app.open(url):
        print("ok", flush=True)

asyncio.run(main(sys.argv[1]))
"""


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(writer, "FIRST_PAUSE_SECONDS", 0.001)


# held by somebody else


@pytest.mark.usefixtures("impatient")
async def test_a_file_that_is_held_too_long_is_busy_and_work_goes_on_afterwards(sqlite_url: str, clock: ManualClock) -> None:
    async with open_engine(sqlite_url, clock) as engine:
        before = await submit(engine, NewTask(name="a"))
        with run(HOLDER, str(path_of(sqlite_url))) as holder:
            assert await holder.hear() == "held"
            with pytest.raises(StoreBusy, match=r"Another process has locked .*pointsman\.db for more than .* Try again"):
                await asyncio.wait_for(submit(engine, NewTask(name="a")), 20)
            assert [each.id for each in await engine.list_runs()] == [before.id], "readers do not wait for writers"
            holder.tell()
            assert await holder.hear() == "free"
            await submit(engine, NewTask(name="a"))
        assert len(await engine.list_runs()) == 2


@pytest.mark.usefixtures("impatient")
async def test_a_file_that_is_held_for_a_moment_is_waited_for(
    sqlite_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FIRST_PAUSE_SECONDS", 0.05)
    async with open_engine(sqlite_url, clock) as engine:
        with run(HOLDER, str(path_of(sqlite_url))) as holder:
            assert await holder.hear() == "held"
            waiting = asyncio.ensure_future(submit(engine, NewTask(name="a")))
            await asyncio.wait({waiting}, timeout=0.2)
            holder.tell()
            assert await holder.hear() == "free"
            assert (await asyncio.wait_for(waiting, 20)).state == "PENDING"


@pytest.mark.usefixtures("impatient")
async def test_a_file_that_is_held_cannot_be_opened_and_says_so(sqlite_url: str, clock: ManualClock) -> None:
    async with open_engine(sqlite_url, clock):
        pass
    with run(HOLDER, str(path_of(sqlite_url))) as holder:
        assert await holder.hear() == "held"
        with pytest.raises(StoreBusy, match="Try again"):
            async with open_engine(sqlite_url, clock):
                pass


@pytest.mark.usefixtures("impatient")
async def test_a_process_that_is_stopped_within_a_transaction_is_named(sqlite_url: str, clock: ManualClock) -> None:
    """Nobody can write, everybody can read, and the message says what helps."""
    async with open_engine(sqlite_url, clock) as engine:
        stored = await submit(engine, NewTask(name="a"))
        with run(HOLDER, str(path_of(sqlite_url))) as holder:
            assert await holder.hear() == "held"
            holder.stop()
            with pytest.raises(
                StoreBusy, match=r"Process \d+ holds the lock and is stopped. Continue it: kill -CONT \d+"
            ) as busy:
                await submit(engine, NewTask(name="a"))
            assert (await engine.get_run(stored.id)).id == stored.id
            (pid,) = re.findall(r"kill -CONT (\d+)", str(busy.value))
            os.kill(int(pid), signal.SIGCONT)
            holder.tell()
            assert await holder.hear() == "free"
        assert (await submit(engine, NewTask(name="a"))).state == stored.state


# full


async def fill(engine: Engine) -> tuple[list[str], StoreFull]:
    """Submit until there is no room any more."""
    stored = []
    for _ in range(2000):
        try:
            stored.append((await submit(engine, NewTask(name="a", payload="x" * 20_000))).id)
        except StoreFull as error:
            return stored, error
    raise AssertionError("it is never full")


async def check_full(engine: Engine, make_room: Callable[[], object]) -> None:
    stored, error = await fill(engine)
    assert re.search(r"disk is full|could not be written", str(error))
    assert "work continues" in str(error)
    assert sorted(each.id for each in await engine.list_runs(limit=10_000)) == sorted(stored), "nothing is half-written"
    for each in stored[-2:]:
        assert len(await engine.list_tasks(each)) == 1
    with pytest.raises(StoreFull):
        await submit(engine, NewTask(name="a", payload="x" * 200_000))
    make_room()
    await submit(engine, NewTask(name="afterwards"))
    assert len(await engine.list_runs(limit=10_000)) == len(stored) + 1
    assert await engine.diagnose() == []


async def test_a_full_disk_is_said_and_survived(tmp_path: Path, clock: ManualClock) -> None:
    with mounted(tmp_path / "disk", "size=8m") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 5_000_000)
        async with open_engine(f"sqlite:///{disk}/pointsman.db", clock) as engine:
            await check_full(engine, ballast.unlink)
        async with open_engine(f"sqlite:///{disk}/pointsman.db", clock, seed=2) as engine:
            await submit(engine, NewTask(name="after opening again"))


async def test_a_disk_that_is_too_small_for_a_database_is_said(tmp_path: Path, clock: ManualClock) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk, pytest.raises(StoreFull, match=r"Free some space|Check the disk"):
        async with open_engine(f"sqlite:///{disk}/pointsman.db", clock):
            pass


async def test_a_database_that_may_not_grow_is_full(sqlite_url: str, clock: ManualClock) -> None:
    async with open_engine(sqlite_url, clock) as engine:
        connection = engine._core.store.writer  # type: ignore[attr-defined]
        connection.execute("PRAGMA max_page_count = 300").fetchall()
        await check_full(engine, lambda: connection.execute("PRAGMA max_page_count = 100000").fetchall())


async def test_a_file_that_may_not_grow_is_full(sqlite_url: str) -> None:
    with run(LIMITED, sqlite_url) as limited:
        message, nothing_half_written = json.loads(await limited.hear() or "[null, null]")
        assert nothing_half_written
        assert "work continues" in message
        assert json.loads(await limited.hear()) is True
        assert limited.wait() == 0


# no place for a database


async def opens(url: str) -> None:
    async with app.open(url, keeps=False):
        pass


def a_text(folder: Path) -> Path:
    (folder / "notes.txt").write_text("milk, eggs\n" * 1000)
    return folder / "notes.txt"


def a_torn_database(folder: Path) -> Path:
    asyncio.run(opens(f"sqlite:///{folder}/torn.db"))
    content = (folder / "torn.db").read_bytes()
    (folder / "torn.db").write_bytes(content[:50] + b"\xff" * 5000 + content[5050:9000])
    return folder / "torn.db"


def a_folder(folder: Path) -> Path:
    return folder


def a_place_that_is_not_there(folder: Path) -> Path:
    return folder / "no" / "such" / "folder" / "pointsman.db"


def a_file_as_a_folder(folder: Path) -> Path:
    return a_text(folder) / "pointsman.db"


def another_program(folder: Path) -> Path:
    import sqlite3

    with sqlite3.connect(folder / "other.db") as connection:
        connection.execute("CREATE TABLE invoice (id)")
    connection.close()
    return folder / "other.db"


PLACES = [a_text, a_torn_database, a_folder, a_place_that_is_not_there, a_file_as_a_folder, another_program]


@pytest.mark.parametrize("make", PLACES, ids=lambda make: make.__name__)
def test_a_place_where_no_database_can_be_says_what_is_in_the_way(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    place = make(tmp_path)
    before = place.read_bytes() if place.is_file() else None
    with pytest.raises(StoreUnusable, match=r"[Cc]hoose |Create it|Check the permissions|restore a backup") as caught:
        asyncio.run(opens(f"sqlite:///{place}"))
    assert str(place) in str(caught.value) or str(place.parent) in str(caught.value)
    assert before is None or place.read_bytes() == before, "what is not ours is left as it is"


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "pointsman.db").touch()
    asyncio.run(opens(f"sqlite:///{tmp_path}/pointsman.db"))


def test_a_disk_that_is_read_only_is_unusable(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=8m") as disk:
        url = f"sqlite:///{disk}/pointsman.db"
        asyncio.run(opens(url))
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        for each in (url, f"sqlite:///{disk}/new.db"):
            with pytest.raises(StoreUnusable, match=r"cannot write to|cannot be read and written|for writing"):
                asyncio.run(opens(each))


@contextmanager
def as_nobody() -> Iterator[None]:
    """With the rights of a user who has none."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o555, 0o000], ids=oct)
def test_a_folder_that_may_not_be_written_is_unusable(mode: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        asyncio.run(opens(f"sqlite:///{folder}/old.db"))
        folder.chmod(mode)
        for name in ("old.db", "new.db"):
            with as_nobody(), pytest.raises(StoreUnusable):
                asyncio.run(opens(f"sqlite:///{folder}/{name}"))


@pytest.mark.parametrize("url", ["sqlite:/x.db", "mysql://host/db", "pointsman.db", "", "sqlite", "://"])
async def test_a_url_of_no_database_is_explained(url: str) -> None:
    with pytest.raises(StoreUnusable):
        await opens(url)


def test_processes_that_start_together_all_get_there(sqlite_url: str) -> None:
    """The first one makes the schema, the others wait for it."""
    with run(OPENER, sqlite_url) as one, run(OPENER, sqlite_url) as two, run(OPENER, sqlite_url) as three:
        assert [program.read_line() for program in (one, two, three)] == ["ok"] * 3
        assert [program.wait() for program in (one, two, three)] == [0, 0, 0]


async def test_what_is_committed_is_not_done_again_because_a_bell_does_not_ring(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(_: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    async with app.open(sqlite_url, keeps=False) as engine:
        monkeypatch.setattr(os, "scandir", too_many)
        names = ("a", "b")
        runs = await asyncio.gather(*(engine.submit_run(NewRun(name=name, tasks=(NewTask(name="t"),))) for name in names))
        monkeypatch.undo()
        assert sorted(run.id for run in await engine.list_runs()) == sorted(run.id for run in runs)


@pytest.mark.parametrize("moment", ["the folder goes", "somebody rings"])
def test_a_bell_is_hung_up_whatever_others_do_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The last of the others leaves and takes the folder away, or meets a FIFO that nobody reads yet."""
    database = tmp_path / "pointsman.db"
    bell, other = Bell(database, "bell"), Bell(database, "other")
    mkfifo = os.mkfifo
    calls: list[str] = []

    def be_disturbed(path: str) -> None:
        calls.append(path)
        if moment == "the folder goes" and len(calls) == 1:
            Path(f"{database}-bell").rmdir()
        mkfifo(path)
        if moment == "somebody rings":
            other.ring(Wakeup.TASKS)

    monkeypatch.setattr(os, "mkfifo", be_disturbed)
    heard: queue.SimpleQueue[Wakeup] = queue.SimpleQueue()
    bell.listen(heard.put)
    try:
        other.ring(Wakeup.TIMERS)
        assert heard.get(timeout=30) == Wakeup.TIMERS
    finally:
        bell.close()
