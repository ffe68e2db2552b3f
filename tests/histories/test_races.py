"""Real clients race on real databases, some are killed on the way, and some legal order explains all that they saw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from tests.faults.programs import Program, run
from tests.histories.checker import Unexplained, check_history
from tests.histories.crew import OneEngine, Processes, Threads
from tests.histories.planted import BUGS, Bug, changed
from tests.histories.recorder import read_journals
from tests.histories.scenes import (
    SCENES,
    Scene,
    forgotten_claims,
    gangs_for_many_jobs,
    idempotent_twins,
    perform,
    two_answers,
    two_probes,
    zombie_against_heir,
)

by_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
TRIES = 8
"""How often a scene is played with a planted bug before it has to have shown."""


@pytest.fixture
def racing_url(database_url: str) -> str:
    """Where transactions meet head-on, PostgreSQL ends one of them at once: scenes want to meet, and not to wait."""
    if database_url.startswith("postgres"):
        with psycopg.connect(database_url, autocommit=True) as session:
            name = Identifier(session.info.dbname)
            session.execute(SQL("ALTER DATABASE {} SET deadlock_timeout = '20ms'").format(name))
    return database_url


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
}
BUGGY = """
import sys
from pathlib import Path
from tests.histories.planted import plant
plant(sys.argv[1])
from tests.histories import scenes
from tests.histories.crew import Threads
for number in range(int(sys.argv[4])):
    url, folder = f"sqlite:///{sys.argv[3]}/{number}.db", Path(sys.argv[3], str(number))
    scenes.perform(getattr(scenes, sys.argv[2]), Threads(), url, folder)
    print(folder, flush=True)
"""
"""Plays a scene again and again with a planted bug."""


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(tmp_path: Path, name: str) -> None:
    scene, subject = SHOWN_BY[name]
    with (
        run(BUGGY, name, scene.__name__, str(tmp_path), str(TRIES)) as program,
        pytest.raises(Unexplained, match=f"^{subject}"),
    ):
        _check_until_it_shows(program)


def _check_until_it_shows(program: Program) -> None:
    while folder := program.read_line():
        check_history(read_journals(Path(folder)))


def test_a_bug_whose_place_is_not_found_is_reported() -> None:
    bug = Bug("pointsman.engine.batch", "there", "nowhere")
    for source in ("here", "there and there"):
        with pytest.raises(AssertionError, match="must be there once"):
            changed(source, bug)
    assert changed("here and there", bug) == "here and nowhere"
