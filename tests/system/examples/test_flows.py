"""The flows of examples/, run as their first lines say, each in a copy of its folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.system.examples.terminal import BIN, EXAMPLES, copy_example

FLOWS = sorted(EXAMPLES.rglob("*.yaml"))


class Project:
    """A folder with an example in it, and the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def call(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pointsman", *command.split(), *arguments],
            cwd=self.folder,
            capture_output=True,
            check=False,
            text=True,
            timeout=120,
            env=self._environment(),
        )

    @staticmethod
    def _environment() -> dict[str, str]:
        return os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}

    def run(self, command: str, code: int = 0) -> dict[str, Any]:
        """How the tasks of the run stand afterwards, by name."""
        result = self.call(f"run {command}")
        assert result.returncode == code, result.stderr
        return self.tasks()

    def tasks(self) -> dict[str, Any]:
        return {task["name"]: task for task in json.loads(self.call("status latest --json").stdout)["tasks"]}

    def read_json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text("utf-8"))


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    return Project(copy_example(request.param, tmp_path))


def in_folder(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("project", [name], indirect=True)


def states(tasks: dict[str, Any]) -> dict[str, str]:
    return {name: task["state"] for name, task in tasks.items()}


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: str(flow.relative_to(EXAMPLES)))
def test_every_flow_says_what_it_shows_and_how_to_run_it(flow: Path) -> None:
    comment = re.match(r"(?:#.*\n)+", flow.read_text("utf-8"))
    assert comment
    assert "pointsman run" in comment[0]
    checked = Project(EXAMPLES).call("flow check", str(flow))
    assert (checked.returncode, checked.stderr) == (0, "")


@in_folder(".")
def test_the_demo_fans_out_retries_checks_and_skips(project: Project) -> None:
    tasks = project.run("demo.yaml")
    assert states(tasks) == {
        **dict.fromkeys(["prepare", "measure", "archive", "report", *(f"measure[{i}]" for i in range(4))], "SUCCEEDED"),
        "publish": "SKIPPED",
        "announce": "SKIPPED",
    }
    assert tasks["archive"]["attempts"] == 2
    assert [each["station"] for each in project.read_json("build/demo/report.json")] == ["north", "east", "south", "west"]
    assert "stations: 4, last year: 13 degrees" in project.call("logs latest report").stdout


@in_folder(".")
def test_the_demo_runs_as_its_comment_says(project: Project) -> None:
    published = project.run("demo.yaml -i publish=true")
    assert set(states(published).values()) == {"SUCCEEDED"}
    assert (project.folder / "build/demo/published.json").exists()
    unlucky = project.call("run demo.yaml -i unlucky=9")
    assert unlucky.returncode == 1
    assert "✗ archive  exited with code 7 (expected 0) – the archive does not answer" in unlucky.stderr
    assert project.tasks()["archive"]["attempts"] == 4


@in_folder("release")
def test_a_dry_run_of_a_release_stops_before_the_shelf(project: Project) -> None:
    tasks = project.run("release.yaml -i version=1.4.0")
    skipped = {name for name, state in states(tasks).items() if state == "SKIPPED"}
    assert skipped == {"publish", "announce"}
    package = project.folder / "build/hello-1.4.0.tar.gz"
    assert tasks["checksum"]["outputs"]["sha256"] == hashlib.sha256(package.read_bytes()).hexdigest()
    with tarfile.open(package) as archive:
        archive.extractall(project.folder / "build/unpacked", filter="data")
    greeting = subprocess.run(
        [sys.executable, project.folder / "build/unpacked/hello.pyz", "Ada"], capture_output=True, check=True, text=True
    )
    assert greeting.stdout == "Hello, Ada!\n"
    assert not (project.folder / "build/shelf").exists()


@in_folder("release")
def test_a_release_is_put_on_the_shelf(project: Project) -> None:
    tasks = project.run("release.yaml -i version=2.0.1 -i dry_run=false")
    assert set(states(tasks).values()) == {"SUCCEEDED"}
    assert [file.name for file in (project.folder / "build/shelf").iterdir()] == ["hello-2.0.1.tar.gz"]
    assert tasks["checksum"]["outputs"]["sha256"] in project.call("logs latest publish").stdout


@in_folder("release")
def test_a_release_wants_a_version_and_looks_at_it(project: Project) -> None:
    without = project.call("run release.yaml")
    assert without.returncode == 2
    assert "-i version=" in without.stderr
    tasks = project.run("release.yaml -i version=next", code=1)
    assert "a version looks like 1.4.0" in tasks["check-version"]["error"]
    assert not (project.folder / "build").exists()


@in_folder("nightly")
def test_the_nightly_job_adds_up_every_file(project: Project) -> None:
    tasks = project.run("nightly.yaml")
    assert {"add-up[0]", "add-up[1]", "add-up[2]"} < tasks.keys()
    report = project.read_json("build/2026-03-01.json")
    assert (report["shops"], report["cents"]) == (3, 120 * 250 + 340 * 60 + 80 * 250 + 15 * 380 + 95 * 60)
    assert [each["file"] for each in report["sums"]] == [
        f"data/2026-03-01/{shop}.csv" for shop in ("harbour", "market", "station")
    ]
    assert project.run("nightly.yaml -i day=2026-03-02")["add-up[0]"]["outputs"]["cents"] == 3000


@in_folder("nightly")
def test_a_night_without_files_fails_its_check(project: Project) -> None:
    tasks = project.run("nightly.yaml -i day=2026-03-03", code=1)
    assert states(tasks) == {"list": "SUCCEEDED", "add-up": "SUCCEEDED", "report": "FAILED"}
    assert "$.shops: 0 is less than the minimum of 1" in tasks["report"]["error"]


@in_folder("flaky")
def test_the_breaker_of_the_flaky_service_opens_and_closes_again(project: Project) -> None:
    tasks = project.run("flaky.yaml")
    assert set(states(tasks).values()) == {"SUCCEEDED"}
    cities = [tasks[f"fetch[{number}]"] for number in range(3)]
    assert [city["outputs"]["city"] for city in cities] == ["Bergen", "Porto", "Trieste"]
    assert sum(city["attempts"] - 1 for city in cities) == 3
    breaker = [move["to"] for move in json.loads(project.call("history forecast --json").stdout)["moves"]]
    assert breaker[:3] == ["CLOSED", "OPEN", "HALF_OPEN"]
    assert breaker[-1] == "CLOSED"


@in_folder("flaky")
def test_on_a_good_day_no_call_is_repeated(project: Project) -> None:
    tasks = project.run("flaky.yaml -i failures=0")
    assert {task["attempts"] for task in tasks.values()} == {1}


@in_folder("matrix")
def test_the_matrix_has_every_combination(project: Project) -> None:
    tasks = project.run("matrix.yaml")
    found = [tasks[f"test[{number}]"]["outputs"] for number in range(8)]
    zones = ("UTC", "America/St_Johns", "Asia/Kathmandu", "Pacific/Apia")
    assert found == [{"zone": zone, "seed": seed} for zone in zones for seed in (0, 1)]
    assert "all well in 8 combinations" in project.call("logs latest verdict").stdout


@in_folder("matrix")
def test_one_red_cell_fails_the_matrix_and_says_which(project: Project) -> None:
    test = project.folder / "tests/test_dates.py"
    test.write_text(
        test.read_text("utf-8").replace("moment.astimezone().astimezone(UTC)", "moment.astimezone(None).replace(tzinfo=UTC)")
    )
    tasks = project.run("matrix.yaml -i zones=UTC,UTC-9", code=1)
    cells = [task["state"] for name, task in tasks.items() if name.startswith("test[")]
    assert cells[:2] == ["SUCCEEDED", "SUCCEEDED"]
    assert "FAILED" in cells[2:], "one of them; the run ends with the first, perhaps before the second begins"
    assert tasks["verdict"]["phase"] != "done"


@in_folder("etl")
def test_the_etl_hands_results_from_function_to_function(project: Project) -> None:
    tasks = project.run("etl.yaml")
    assert tasks["extract"]["outputs"]["libraries"] == 2
    assert tasks["load"]["outputs"] == {"database": "build/books.db", "rows": 3}
    with closing(sqlite3.connect(project.folder / "build/books.db")) as connection:
        rows = connection.execute("SELECT title, year, libraries FROM books ORDER BY title").fetchall()
    assert rows == [("A short winter", 2025, "abbey"), ("Late trains", 2025, "town"), ("The quiet sea", 2025, "abbey, town")]
    assert "4 books, 3 titles" in project.call("logs latest transform").stdout


@in_folder("etl")
def test_an_exception_is_told_once_and_its_traceback_is_in_the_log(project: Project) -> None:
    tasks = project.run("etl.yaml -i year=2024", code=1)
    assert tasks["extract"]["error"] == "raised LookupError: no library has a book of 2024"
    log = project.call("logs latest extract").stdout
    assert "etl.py" in log
    assert 'raise LookupError(f"no library has a book of {year}")' in log
