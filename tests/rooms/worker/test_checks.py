"""A check that fails names its rule and shows what was found."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.worker.workshop import WORLD, make_job, nobody_left

from pointsman.flows.model import read_task
from pointsman.worker.checks import run_checks
from pointsman.worker.ending import Ending

WELL = Ending("exited", exit_code=0, output={"rows": 3})
SCHEMA = {
    "type": "object",
    "required": ["rows"],
    "properties": {"rows": {"type": "integer", "minimum": 1}, "names": {"items": {"type": "string"}}},
}
FUNCTIONS = """
def has_rows(output):
    return output["rows"] > 2

def has_many_rows(output, exit_code, tail, directory):
    print(tail)
    return output["rows"] > 100

def says_nothing():
    pass

def raises(output):
    raise AssertionError("rows must be even")
"""


def check(directory: Path, *checks: dict[str, Any], ending: Ending = WELL, said: bytes = b"", seconds: float = 60) -> list[str]:
    job = make_job(directory, "true", task=read_task({"command": ["true"], "checks": list(checks)}))
    job.log.write(said)
    with nobody_left(job):
        failures = asyncio.run(run_checks(job, ending, WORLD, seconds=seconds))
    job.log.close()
    return [str(failure) for failure in failures]


def test_what_holds_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"rows": 3}')
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    assert not check(
        tmp_path,
        {"exit_code": [0, 3]},
        {"file": "rows.json"},
        {"file": str(tmp_path / "rows.json")},
        {"glob": "**/*.json"},
        {"glob": f"{tmp_path}/*", "at_least": 2},
        {"json_schema": {"file": "rows.json", "schema": SCHEMA}},
        {"output": r"^wrote \d+ rows$"},
        {"command": ["test", "-f", "rows.json"]},
        {"run": "grep -q rows rows.json && true"},
        {"call": "functions:has_rows"},
        {"call": "functions:says_nothing"},
        said=b"start\nwrote 3 rows\nend\n",
    )


def test_every_broken_rule_is_told(tmp_path: Path) -> None:
    assert len(check(tmp_path, {"file": "one"}, {"glob": "two*"}, {"run": "false"})) == 3


def test_exit_code(tmp_path: Path) -> None:
    ending = Ending("exited", exit_code=1)
    assert check(tmp_path, {"exit_code": [2, 3]}, ending=ending) == ["check `exit_code: 2 or 3`: exited with code 1"]


def test_a_missing_file_is_told_with_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "result.json").touch()
    (failure,) = check(tmp_path, {"file": "results.json"})
    assert failure == f"check `file: results.json`: there is no file {tmp_path}/results.json; {tmp_path} has result.json"
    (failure,) = check(tmp_path, {"file": "no/such/place"})
    assert f"{tmp_path} has result.json" in failure
    (failure,) = check(tmp_path, {"file": "."})
    assert "is not a file" in failure


def test_a_pattern_that_too_few_files_match_shows_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (failure,) = check(tmp_path, {"glob": "*.csv", "at_least": 2})
    assert failure.startswith(f"check `glob: *.csv, at_least: 2`: 1 of at least 2 match in {tmp_path}: a.csv; ")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ('{"rows": 0}', "$.rows: 0 is less than the minimum of 1"),
        ('{"rows": 1, "names": [1, 2, 3, 4, 5]}', "$.names[0]: 1 is not of type 'string'"),
        ('{"rows": 1, "names": [1, 2, 3, 4, 5]}', "and 2 more"),
        ("{}", "$: 'rows' is a required property"),
        ("{", "is not readable JSON"),
        ("[" * 200_000, "is not readable JSON"),
    ],
)
def test_a_document_that_does_not_follow_its_schema(tmp_path: Path, document: str, said: str) -> None:
    (tmp_path / "rows.json").write_text(document)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    by_value = check(tmp_path, {"json_schema": {"file": "rows.json", "schema": SCHEMA}})
    by_path = check(tmp_path, {"json_schema": {"file": "rows.json", "schema": "schema.json"}})
    assert said in by_value[0]
    assert said in by_path[0]
    assert by_path[0].startswith("check `json_schema: rows.json by schema.json`: ")


def test_a_schema_that_is_wrong_or_elsewhere_is_told_from_a_wrong_document(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text("{}")
    wrong = check(tmp_path, {"json_schema": {"file": "rows.json", "schema": {"type": "objekt"}}})
    assert "the schema itself is invalid at $.type" in wrong[0]
    elsewhere = check(tmp_path, {"json_schema": {"file": "rows.json", "schema": {"$ref": "http://127.0.0.1:9/schema"}}})
    assert "a reference in the schema cannot be resolved" in elsewhere[0]
    assert "there is no file" in check(tmp_path, {"json_schema": {"file": "rows.json", "schema": "missing.json"}})[0]
    assert "there is no file" in check(tmp_path, {"json_schema": {"file": "missing.json", "schema": {}}})[0]


def test_output_that_does_not_match_is_shown(tmp_path: Path) -> None:
    (failure,) = check(tmp_path, {"output": "all good"}, said=b"\n".join(b"line %d" % number for number in range(10)))
    assert failure.startswith("check `output: all good`: not found in its last lines:\n    line 5\n")
    assert failure.endswith("    line 9")
    assert check(tmp_path, {"output": "x"}) == ["check `output: x`: it wrote nothing"]


def test_a_command_that_does_not_succeed_shows_its_last_lines(tmp_path: Path) -> None:
    (failure,) = check(tmp_path, {"run": "echo 3 rows are missing; exit 4"})
    assert failure == (
        "check `run: echo 3 rows are missing; exit 4`: exited with code 4 (expected 0); its last lines:\n    3 rows are missing"
    )
    (failure,) = check(tmp_path, {"command": ["no-such-program"]})
    assert "no such program 'no-such-program'" in failure


def test_a_function_that_does_not_agree(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    assert check(tmp_path, {"call": "functions:has_many_rows"}) == ["check `call: functions:has_many_rows`: it returned False"]
    (failure,) = check(tmp_path, {"call": "functions:raises"})
    assert failure.startswith("check `call: functions:raises`: raised AssertionError: rows must be even; its last lines:")
    assert "there is no 'missing'" in check(tmp_path, {"call": "functions:missing"})[0]


def test_a_check_that_does_not_end_is_ended(tmp_path: Path) -> None:
    (failure,) = check(tmp_path, {"run": "sleep 1000 & sleep 1000"}, seconds=0.05)
    assert "did not finish within 0.05 seconds" in failure
