"""Real clients race on real databases, some are killed on the way, and some legal order explains all that they saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from tests.databases import postgres_database
from tests.system.faults.programs import Program, run
from tests.system.histories.checker import Unexplained, check_history
from tests.system.histories.crew import OneEngine, Processes, Threads
from tests.system.histories.planted import BUGS, ON_POSTGRES
from tests.system.histories.recorder import read_journals
from tests.system.histories.scenes import (
    SCENES,
    Scene,
    bulk_against_bulk,
    forgotten_claims,
    gangs_for_many_jobs,
    idempotent_twins,
    many_hands_of_one_worker,
    perform,
    runs_that_several_end_together,
    turns_side_by_side,
    two_answers,
    two_probes,
    zombie_against_heir,
)

by_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
TRIES = 16
"""How often a scene is played with a planted bug before it has to have shown."""


@pytest.fixture
def racing_url(database_url: str) -> str:
    if database_url.startswith("postgres"):
        _hurry(database_url)
    return database_url


@contextmanager
def _racing_database() -> Iterator[str]:
    with postgres_database() as url:
        _hurry(url)
        yield url


def _hurry(url: str) -> None:
    """Where transactions meet head-on, PostgreSQL ends one of them at once: scenes want to meet, and not to wait."""
    with psycopg.connect(url, autocommit=True) as session:
        name = Identifier(session.info.dbname)
        session.execute(SQL("ALTER DATABASE {} SET deadlock_timeout = '20ms'").format(name))


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.close()


@by_scene
def test_engines_in_threads(racing_url: str, tmp_path: Path, scene: Scene) -> None:
    records = perform(scene, Threads(), racing_url, tmp_path / "journals")
    assert check_history(records) > len(records)


@by_scene
def test_one_engine_for_all(racing_url: str, tmp_path: Path, scene: Scene) -> None:
    records = perform(scene, OneEngine(), racing_url, tmp_path / "journals")
    assert check_history(records) > len(records)


@by_scene
def test_processes_some_of_which_are_killed(racing_url: str, tmp_path: Path, processes: Processes, scene: Scene) -> None:
    records = perform(scene, processes, racing_url, tmp_path / "journals")
    assert check_history(records) > len(records)


# a checker that lets a bug pass has no teeth


SHOWN_BY: dict[str, tuple[Scene, str]] = {
    "epoch check dropped": (zombie_against_heir, "task"),
    "heartbeat of any epoch accepted": (zombie_against_heir, "task"),
    "probe admitted twice": (two_probes, "breaker"),
    "idempotency look-up skipped": (idempotent_twins, "idempotency key"),
    "key taken for another request": (idempotent_twins, "idempotency key"),
    "job started with too few workers": (gangs_for_many_jobs, "workers and their jobs"),
    "retry not counted": (two_probes, "task"),
    "answer lost": (two_answers, "task"),
    "forgotten task given up at once": (forgotten_claims, "task"),
    "one of those who go together left behind": (bulk_against_bulk, "task"),
    "runs not locked": (runs_that_several_end_together, "run"),
    "workers not locked": (many_hands_of_one_worker, "hands of"),
    "breakers not locked": (two_probes, "breaker"),
    "what was true before the lock taken for true": (runs_that_several_end_together, "run"),
    "a turn leaves a run for another": (turns_side_by_side, "run"),
    "a twin's answer replaced": (idempotent_twins, "idempotency key"),
}
BUGGY = """
import sys
from pathlib import Path
from tests.system.histories.planted import BUGS, ON_POSTGRES
from tests.planting import plant
plant((BUGS | ON_POSTGRES)[sys.argv[1]])
from tests.system.histories import scenes
from tests.system.histories.crew import Threads
for number, url in enumerate(sys.stdin):
    folder = Path(sys.argv[3], str(number))
    scenes.perform(getattr(scenes, sys.argv[2]), Threads(), url.strip(), folder)
    print(folder, flush=True)
"""
"""Plays a scene with a planted bug, once on each database that it is told."""


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(tmp_path: Path, name: str) -> None:
    _catch(name, tmp_path, lambda number: nullcontext(f"sqlite:///{tmp_path}/{number}.db"))


@pytest.mark.parametrize("name", ON_POSTGRES)
def test_a_bug_planted_in_the_store_of_postgres_is_caught(tmp_path: Path, name: str) -> None:
    _catch(name, tmp_path, lambda _: _racing_database())


def _catch(name: str, folder: Path, new_database: Callable[[int], AbstractContextManager[str]]) -> None:
    scene, subject = SHOWN_BY[name]
    with (
        run(BUGGY, name, scene.__name__, str(folder)) as program,
        pytest.raises(Unexplained, match=f"^{subject}"),
    ):
        _play_until_it_shows(program, new_database)


def _play_until_it_shows(program: Program, new_database: Callable[[int], AbstractContextManager[str]]) -> None:
    for number in range(TRIES):
        with new_database(number) as url:
            program.tell(url)
            journals = program.read_line()
        assert journals, "the scene has not come to its end"
        check_history(read_journals(Path(journals)))
