"""Real clients race on real databases, some are killed on the way, and some legal order explains all that they saw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.histories.checker import check_history
from tests.histories.crew import Processes, Threads
from tests.histories.scenes import SCENES, Scene, perform

by_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.close()


@by_scene
def test_engines_in_threads(database_url: str, tmp_path: Path, scene: Scene) -> None:
    records = perform(scene, Threads(), database_url, tmp_path)
    assert check_history(records) > len(records)


@by_scene
def test_processes_some_of_which_are_killed(database_url: str, tmp_path: Path, processes: Processes, scene: Scene) -> None:
    records = perform(scene, processes, database_url, tmp_path)
    assert check_history(records) > len(records)
