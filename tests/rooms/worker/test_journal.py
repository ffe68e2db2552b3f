"""The log of all transitions is a copy of the database, and notices when it is the copy of another one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pointsman import app
from pointsman.engine.engine import Engine
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import LogUnreadable
from pointsman.store.rows import Transition
from pointsman.worker import journal


async def append(folder: Path, database: str, *names: str) -> str:
    """Submit runs to a database and bring the log up to date; what the log then is."""
    log = folder / "transitions.jsonl"
    async with app.open(f"sqlite:///{folder / database}", keeps=False) as engine:
        await submit(engine, names)
        await journal.append(engine, log)
        assert read(log) == await told(engine)
    return log.read_text()


async def submit(engine: Engine, names: Sequence[str]) -> None:
    for name in names:
        await engine.submit_run(NewRun(name=name, tasks=(NewTask(name="a"), NewTask(name="b", depends_on=("a",)))))


Move = tuple[str, str, str]


def read(log: Path) -> list[Move]:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [(line["metadata"]["position"], line["entity_id"], line["to_state"]) for line in lines]


async def told(engine: Engine) -> list[Move]:
    return [(each.position, each.entity_id, each.to_state) for each in await engine.list_transitions()]


def delete(folder: Path, database: str) -> None:
    for path in folder.glob(f"{database}*"):
        path.unlink()


def logs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.jsonl"))


async def test_what_is_new_is_appended(tmp_path: Path) -> None:
    first = await append(tmp_path, "a.db", "one")
    second = await append(tmp_path, "a.db", "two")
    assert second.startswith(first)
    assert await append(tmp_path, "a.db") == second
    assert logs(tmp_path) == ["transitions.jsonl"]


async def test_python_code_writes_the_journal_of_its_project_and_of_every_tenant(tmp_path: Path) -> None:
    """The database of a project has the journal of that project; any other has the file that is named."""
    (tmp_path / ".pointsman").mkdir()
    places = ((".pointsman/state.db", None, ".state/transitions.jsonl"), ("own.db", tmp_path / "own.jsonl", "own.jsonl"))
    for database, journal_file, log in places:
        url = f"sqlite:///{tmp_path / database}"
        async with app.open(url, keeps=False, journal=journal_file) as engine:
            await submit(engine, ["one"])
            acme = engine.for_tenant("acme")
            run = await acme.submit_run(NewRun(name="two", tasks=(NewTask(name="a"),)))
            await acme.signal_run(run.id, "cancel")
            everything = await engine.list_all_transitions()
        assert [position for position, _, _ in read(tmp_path / log)] == [each.position for each in everything]
        lines = (tmp_path / log).read_text().splitlines()
        assert {json.loads(line)["metadata"].get("tenant") for line in lines} == {None, "acme"}
        async with app.open(url, keeps=False, journal=journal_file) as engine:
            await submit(engine, ["three"])
        assert (tmp_path / log).read_text().startswith("\n".join(lines))


@pytest.mark.parametrize("cut", [1, 2, 100, 1000])
async def test_a_line_that_a_crash_has_torn_is_written_anew(tmp_path: Path, cut: int) -> None:
    log = tmp_path / "transitions.jsonl"
    whole = await append(tmp_path, "a.db", "one", "two")
    assert len(whole) > 1000
    log.write_text(whole[:-cut])
    assert await append(tmp_path, "a.db") == whole
    log.write_text(whole[:-cut])
    assert (await append(tmp_path, "a.db", "three")).startswith(whole)


@pytest.mark.parametrize("names", [(), ("three",), ("three", "four", "five")], ids=["empty", "behind", "ahead"])
async def test_the_log_of_a_deleted_database_is_moved_aside(tmp_path: Path, names: Sequence[str]) -> None:
    old = await append(tmp_path, "a.db", "one", "two")
    delete(tmp_path, "a.db")
    new = await append(tmp_path, "a.db", *names)
    assert (tmp_path / "transitions.1.jsonl").read_text() == old
    assert len(new) < len(old) or len(names) > 2
    assert logs(tmp_path) == ["transitions.1.jsonl", "transitions.jsonl"]


async def test_a_stream_that_is_held_back_is_no_other_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = await append(tmp_path, "a.db", "one")

    async def nothing_yet(*_: object, **__: object) -> list[Transition]:
        return []

    async with app.open(f"sqlite:///{tmp_path / 'a.db'}", keeps=False) as engine:
        monkeypatch.setattr(engine, "list_transitions", nothing_yet)
        await journal.append(engine, tmp_path / "transitions.jsonl")
    assert await append(tmp_path, "a.db") == written
    assert logs(tmp_path) == ["transitions.jsonl"]


async def test_every_log_is_kept(tmp_path: Path) -> None:
    written = [await append(tmp_path, f"{number}.db", "one") for number in range(3)]
    assert logs(tmp_path) == ["transitions.1.jsonl", "transitions.2.jsonl", "transitions.jsonl"]
    assert [(tmp_path / f"transitions.{number}.jsonl").read_text() for number in (1, 2)] == written[:2]


async def test_stores_that_take_turns_have_one_log_each(tmp_path: Path) -> None:
    for _ in range(3):
        for database in ("a.db", "b.db"):
            await append(tmp_path, database, "again")
    assert logs(tmp_path) == ["transitions.1.jsonl", "transitions.jsonl"]


async def test_who_waited_for_a_log_that_was_moved_aside_writes_to_the_new_one(tmp_path: Path) -> None:
    log = tmp_path / "transitions.jsonl"
    await append(tmp_path, "a.db", "one")
    async with app.open(f"sqlite:///{tmp_path / 'b.db'}", keeps=False) as engine:
        await submit(engine, ["two"])
        async with journal._locked(log):
            waiting = asyncio.create_task(journal.append(engine, log))
            await asyncio.sleep(0.05)
            log.rename(tmp_path / "transitions.1.jsonl")
        await waiting
        assert read(log) == await told(engine)


@pytest.mark.parametrize("position", ["-1", "x", "1" * 30])
async def test_a_log_with_a_strange_end_is_not_touched(tmp_path: Path, position: str) -> None:
    line = json.loads((await append(tmp_path, "a.db", "one")).splitlines()[-1])
    line["metadata"]["position"] = position
    (tmp_path / "transitions.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(LogUnreadable, match="history --rebuild"):
        await append(tmp_path, "a.db")
    assert logs(tmp_path) == ["transitions.jsonl"]
