"""A folded table tries every row and names each one that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """
import asyncio
import pytest
from tests.rows import each_row

@each_row(("number", "letter"), [(1, "a"), (2, "b"), (3, "c")])
@each_row("half", [0.5, 1.5])
def test_plain(number, letter, half, tmp_path):
    (tmp_path / f"{number}{letter}{half}").touch(exist_ok=False)
    assert number != 2 or half != 1.5
    with pytest.raises(ValueError):
        float(letter if number < 3 else "3")

@pytest.mark.parametrize("word", ["here", "there"])
@each_row("number", range(3))
async def test_in_a_loop(word, number):
    await asyncio.sleep(0)
    assert word == "here" or number != 1
"""
CONFTEST = "from tests.conftest import pytest_pyfunc_call\n"


def test_every_row_is_tried_and_each_failed_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_tables.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_tables.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    failed = [line.partition(" - ")[0] for line in ended.stdout.splitlines() if line.startswith("SUBFAILED")]
    assert failed == [
        "SUBFAILED(number=2, letter='b', half=1.5) test_tables.py::test_plain",
        "SUBFAILED(number=3, letter='c', half=0.5) test_tables.py::test_plain",
        "SUBFAILED(number=3, letter='c', half=1.5) test_tables.py::test_plain",
        "SUBFAILED(number=1) test_tables.py::test_in_a_loop[there]",
    ], ended.stdout
    assert "contains 3 failed subtests" in ended.stdout
    assert "6 failed, 1 passed" in ended.stdout
