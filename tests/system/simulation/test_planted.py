"""Every planted bug is caught, soon, and by a promise that names it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.planting import Patch
from tests.system.simulation.planted import BUGS, Bug, find

ROOT = Path(__file__).parents[3]
MOST_SEEDS = 120
EXPLAINED = "every history can be explained"
SEEN_IN_ANSWERS = {"the epoch is not checked": 23, "the answer to a request is not kept": 27}
"""With the first seed that shows it."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    assert find_broken(bug) in bug.promises


@pytest.mark.parametrize(("name", "first"), SEEN_IN_ANSWERS.items())
def test_a_history_alone_tells_of_a_planted_bug(name: str, first: int) -> None:
    assert find_broken(replace(find(name), first=first), "--only", EXPLAINED) == EXPLAINED


def find_broken(bug: Bug, *options: str) -> str:
    """The first promise that is broken when this bug is planted."""
    result = look_for(bug, bug.first, *options)
    if result.returncode == 0 and bug.first > 1:  # what a seed does changes with the engine
        result = look_for(bug, 1, *options)
    assert result.returncode == 1, f"it was not caught by {MOST_SEEDS} seeds: {result.stderr[-2000:]}"
    named = re.search(r"^broken promise: (.*)$", result.stdout, re.MULTILINE)
    assert named, result.stderr[-2000:]
    return named[1]


def look_for(bug: Bug, first: int, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.system.simulation", "--plant", bug.name]
    command += ["--first", str(first), "--seeds", str(MOST_SEEDS), *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_a_bug_that_cannot_be_planted_any_more_is_an_error() -> None:
    with pytest.raises(LookupError, match="found 2 times"):
        Patch("engine.claims", "a", "b").apply("a a")
    with pytest.raises(LookupError, match="found 0 times"):
        Patch("engine.claims", "a", "b").apply("c")
