"""What the benchmarks say about figures is right, and what they fill a database with is what the engine would have left."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.contenders import Answer, Entry, Pace, take_turns
from bench.own import drain, layered_run
from bench.parts.filling import earlier, multiply
from bench.report import Row, Table, Target, compared_row, keep, latency_row, quickest, rate_row, ratio_of, write_data
from tests.databases import DATABASES, postgres_database, sqlite_url

from pointsman import app

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield sqlite_url(tmp_path)
        return
    with postgres_database() as url:
        yield url


def test_the_help_needs_no_peer() -> None:
    script = ROOT / "bench" / "engine.py"
    result = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert "--quick" in result.stdout


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    own, other = [300.0, 200.0, 50.0], [100.0, 100.0, 100.0]
    assert ratio_of(own, other) == 2.0
    assert ratio_of([100.0, 200.0, 900.0], [10.0, 200.0, 300.0]) == 3.0


def test_a_row_says_whether_its_target_is_met() -> None:
    rates = [100.0, 110.0, 90.0]
    assert rate_row("peer", rates, own=[200.0, 220.0, 180.0], target=Target(2)).met is True
    assert rate_row("peer", rates, own=[190.0, 190.0, 90.0], target=Target(2)).met is False
    assert rate_row("peer", rates).met is None
    assert compared_row("two", [90.0], [100.0], Target(0.9), "").met is True
    slow = latency_row("Pointsman", [0.004, 0.006, 0.007], target=Target(5, at_most=True, unit=" ms"))
    assert (slow.met, str(slow.target)) == (False, "at most 5 ms")


def test_the_best_setting_is_the_one_with_the_highest_median() -> None:
    assert quickest({"lucky once": [1.0, 1.0, 90.0], "steady": [2.0, 2.0, 2.0]}) == "steady"


def test_a_table_is_kept_between_its_markers_and_as_data(tmp_path: Path) -> None:
    table = Table("title", [Row("what", "1 task/s", (1.0,), 0.5, Target(1.2), met=False, note="slow")])
    page = tmp_path / "page.md"
    page.write_text("before <a> old <b> after")
    keep(page, "<a>", "<b>", table.as_markdown())
    assert page.read_text().startswith("before <a>\n\n### title")
    assert "| what | 1 task/s | 0.50× | at least 1.2× | **no** | slow |" in page.read_text()
    assert page.read_text().endswith("<b> after")
    write_data(tmp_path / "data.json", {"SQLite": "3"}, {}, [table])
    assert json.loads((tmp_path / "data.json").read_text())["tables"][0]["rows"][0]["ratio"] == 0.5


def test_everybody_has_as_many_turns_and_another_one_begins() -> None:
    asked: list[tuple[str, int]] = []

    def entry(name: str, batch: int) -> Entry:
        def measure(count: int) -> Answer:
            asked.append((name, count))
            return {"tasks": count, "seconds": count / 1000}

        return Entry(name, measure, batch, first=batch)

    answers = take_turns([entry("a", 10), entry("b", 100)], Pace(rounds=2, seconds=0.5, most=450), lambda _: None)
    assert {name: [answer["tasks"] for answer in each] for name, each in answers.items()} == {"a": [450] * 2, "b": [400] * 2}
    assert [name for name, _ in asked[-4:]] == ["a", "b", "b", "a"]


def test_a_graph_has_its_layers_and_each_task_waits_for_its_share() -> None:
    tasks = {task.name: task.depends_on for task in layered_run([1, 10, 95, 10, 1]).tasks}
    assert len(tasks) == 117
    assert tasks["1-3"] == ("0-0",)
    assert all(len(tasks[f"2-{number}"]) == 1 for number in range(95))
    assert sorted(name for number in range(10) for name in tasks[f"3-{number}"]) == sorted(
        f"2-{number}" for number in range(95)
    )
    assert len(tasks["4-0"]) == 10


def test_an_id_that_is_earlier_sorts_before() -> None:
    name = "task_" + f"{1_800_000_000_000 << 80 | 7 << 76 | 5:032x}"
    moved = earlier(name, 1)
    assert moved
    assert moved < name
    assert (len(moved), moved[-20:]) == (len(name), name[-20:])


def test_multiplied_tasks_are_such_as_the_engine_leaves(url: str) -> None:
    async def finish(count: int) -> int:
        async with app.open(url) as engine:
            worker = await engine.register_worker("bench", max_concurrent_tasks=10)
            run = await engine.submit_run(layered_run([1, count - 1]))
            assert await drain(engine, worker.id, 10, count) == count
            assert (await engine.get_run(run.id)).outcome == "success"
            assert await engine.diagnose() == []
            return len(await engine.list_runs())

    asyncio.run(finish(20))
    multiply(url, 5)
    assert asyncio.run(finish(20)) == 6
