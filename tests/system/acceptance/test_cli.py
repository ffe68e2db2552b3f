"""The command line as its users meet it: real processes, real pipes, real files."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rooms.lifecycles.tables import TABLES

from pointsman import lifecycles
from pointsman.cli import COMMANDS
from pointsman.lifecycles import machine_names

POINTSMAN = Path(sys.executable).with_name("pointsman")
EXAMPLES = Path(__file__).parents[3] / "examples"
BROKEN = """\
lifecycle: mine
machines:
  breaker:
    kind: breaker
    states:
      CLOSED: {phase: queued, initial: true}
      OPEN: {phase: held}
    transitions:
      - CLOSED -> OPEN : fail [threshold_reachd]
      - OPEN -> CLOSED : complete
      - OPEN -> CLOSED : delay_over
      - OPEN -> CLOSED : reset
"""


def pointsman(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [POINTSMAN, *arguments], input=stdin, capture_output=True, check=False, timeout=60, env=os.environ | environment
    )


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What a command writes when its stdout is a real terminal."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen([POINTSMAN, *arguments], stdout=terminal, stderr=terminal, env=os.environ | environment)
    os.close(terminal)
    output = b""
    try:
        while chunk := os.read(controller, 65536):
            output += chunk
    except OSError:
        pass  # Linux says EIO once the other side is closed
    os.close(controller)
    process.wait()
    return output.decode()


def test_help_names_every_command_and_ends_well() -> None:
    for call in ([], ["--help"], ["-h"], ["help"]):
        result = pointsman(*call)
        assert result.returncode == 0
        assert all(command in result.stdout.decode() for command in COMMANDS)
        assert result.stderr == b""


@pytest.mark.parametrize(
    "command",
    [
        *COMMANDS,
        "config show",
        "database roles",
        "flow check",
        "flow show",
        "flow draw",
        "flow schema",
        "machine list",
        "machine show",
        "machine check",
        "machine draw",
        "machine schema",
    ],
)
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = pointsman(*command.split(), "--help")
    assert result.returncode == 0
    assert b"pointsman" in result.stdout
    if command not in ("machine", "config", "flow", "database"):
        assert b"Example" in result.stdout


def test_help_for_a_command_can_be_asked_for_as_a_command() -> None:
    assert pointsman("help", "flow", "check").stdout == pointsman("flow", "check", "--help").stdout


def test_the_version_is_told() -> None:
    assert pointsman("--version").stdout.startswith(b"pointsman 0.")


def test_machine_list_names_all_fifteen() -> None:
    names = {name for lifecycle in json.loads(pointsman("machine", "list", "--json").stdout) for name in lifecycle["machines"]}
    assert names == set(machine_names())
    assert len(names) == 15
    text = pointsman("machine", "list").stdout.decode()
    assert all(name in text for name in names)


def test_machine_show_keeps_the_contract_that_programs_rely_on() -> None:
    for name in machine_names():
        shown = json.loads(pointsman("machine", "show", name, "--json").stdout)
        assert {"name", "lifecycle", "kind", "version", "states", "transitions"} <= shown.keys()
        assert shown["name"] == name
        assert shown["lifecycle"] == name.partition(".")[0]
        for state in shown["states"]:
            assert {"name", "phase", "outcome", "initial", "terminal", "sealed"} <= state.keys()
        for move in shown["transitions"]:
            assert {"from", "to", "trigger", "signal", "guards", "automatic", "severity"} <= move.keys()
        keys = [(move["from"], move["to"], move["trigger"]) for move in shown["transitions"]]
        assert len(keys) == len(set(keys))


def test_what_machine_show_tells_programs_is_what_the_documents_say() -> None:
    for name, table in TABLES.items():
        shown = json.loads(pointsman("machine", "show", name, "--json").stdout)
        assert {(move["from"], move["to"], move["trigger"]) for move in shown["transitions"]} == set(table.rows)
        assert {state["name"] for state in shown["states"] if state["terminal"]} == table.terminal
        assert {state["name"] for state in shown["states"] if state["sealed"]} == table.sealed
        assert {move["trigger"] for move in shown["transitions"] if move["automatic"]} == table.automatic
        assert all(move["automatic"] == (move["signal"] is None) for move in shown["transitions"])
    moves = json.loads(pointsman("machine", "show", "standard.task", "--json").stdout)["transitions"]
    by_key = {(move["from"], move["to"], move["trigger"]): move for move in moves}
    assert by_key["PENDING", "QUEUED", "ready"]["guards"] == ["not is_gate"]
    assert by_key["RUNNING", "BLOCKED", "complete"]["guards"] == ["else open_subtasks"]
    assert by_key["RUNNING", "SUCCEEDED", "complete"]["guards"] == ["else"]
    assert by_key["RUNNING", "FAILED", "fail"]["severity"] == "error"
    fail = json.loads(pointsman("machine", "show", "orchestrated.task", "--json").stdout)["transitions"][3]
    assert (fail["trigger"], fail["signal"], fail["severity"]) == ("execution_failed", "fail", "warning")


def test_machine_show_is_readable_without_json() -> None:
    text = pointsman("machine", "show", "orchestrated.task").stdout.decode()
    assert "worker_started" in text
    assert "retries_left" in text
    assert "Where a state has no transition for expire, it counts as fail." in text


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("machine", "show", "standrd.task"), "Did you mean standard.task"),
        (("machine", "show", "task"), "agent.task"),
        (("machine", "draw", "agent.task", "--state", "BLOKED"), "Did you mean BLOCKED"),
        (("machine", "draw", "agent.task", "--format", "svgg"), "Did you mean svg?"),
        (("machine", "check", "standrd"), "Did you mean standard?"),
        (("machine", "shwo", "agent.task"), "Did you mean show"),
        (("validat", "x"), "Did you mean validate"),
        (("validate", "--lifecycle", "orchestrate", "x"), "Did you mean orchestrated"),
        (("validate", "--jsn", "x"), "--json"),
        (("validate",), "Name a log file"),
        (("validate", "/no/such/file"), "No such file"),
        (("validate", "/"), "Is a directory"),
        (("machine", "check", "/no/such/file.yaml"), "No such file"),
        (("machine", "draw", "agent.task", "-o", "/no/such/dir/x.svg"), "No such file"),
    ],
)
def test_a_mistake_gets_a_clear_line_on_stderr_and_exit_code_2(arguments: tuple[str, ...], hint: str) -> None:
    result = pointsman(*arguments)
    assert result.returncode == 2
    assert hint in result.stderr.decode()
    assert b"Traceback" not in result.stderr
    assert result.stdout == b""


def test_machine_check_passes_what_is_shipped() -> None:
    result = pointsman("machine", "check")
    assert result.returncode == 0
    assert result.stdout.decode().count("valid  ") == 6


def test_machine_check_places_its_findings_in_a_users_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(BROKEN)
    result = pointsman("machine", "check", file)
    assert result.returncode == 1
    assert f"{file}:9:32: There is no guard named threshold_reachd. [unknown-guard]" in result.stdout.decode()
    assert "Did you mean threshold_reached?" in result.stdout.decode()
    (report,) = json.loads(pointsman("machine", "check", file, "--json").stdout)
    assert [(finding["rule"], finding["line"], finding["column"]) for finding in report["findings"]] == [
        ("unknown-guard", 9, 32)
    ]


def test_machine_check_takes_shipped_names_and_ends_with_the_worst_of_several(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(BROKEN)
    assert pointsman("machine", "check", "standard").returncode == 0
    assert pointsman("machine", "check", "standard", broken).returncode == 1
    assert pointsman("machine", "check", tmp_path / "missing.yaml", broken).returncode == 2


def test_a_users_own_machine_can_be_shown_and_drawn(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(BROKEN.replace("reachd", "reached"))
    assert pointsman("machine", "check", file).returncode == 0
    assert json.loads(pointsman("machine", "show", f"{file}:breaker", "--json").stdout)["name"] == "mine.breaker"
    assert b"CLOSED" in pointsman("machine", "draw", file).stdout


@pytest.mark.parametrize(
    ("form", "sign"), [("text", "RUNNING"), ("svg", "<svg"), ("mermaid", "stateDiagram-v2"), ("markdown", "| --- |")]
)
def test_machine_draw_knows_four_formats(form: str, sign: str, tmp_path: Path) -> None:
    result = pointsman("machine", "draw", "agent.task", "--format", form)
    assert sign in result.stdout.decode()
    assert b"\x1b" not in result.stdout
    written = tmp_path / "drawing"
    assert pointsman("machine", "draw", "agent.task", "-f", form, "-o", written).stdout == b""
    assert written.read_bytes() == result.stdout
    assert json.loads(pointsman("machine", "draw", "agent.task", "-f", form, "--json").stdout)["format"] == form


@pytest.mark.parametrize(("suffix", "sign"), [(".svg", "<svg"), (".md", "|"), (".mmd", "stateDiagram"), (".txt", "agent.task")])
def test_machine_draw_takes_the_format_from_the_file(suffix: str, sign: str, tmp_path: Path) -> None:
    written = tmp_path / f"drawing{suffix}"
    assert pointsman("machine", "draw", "agent.task", "-o", written).returncode == 0
    assert sign in written.read_text()
    assert "not supported" in pointsman("machine", "draw", "agent.task", "-o", tmp_path / "a.png").stderr.decode()


def test_machine_schema_is_json() -> None:
    assert json.loads(pointsman("machine", "schema").stdout)["title"]


def test_colours_are_for_terminals_that_want_them() -> None:
    assert "\x1b[" in on_a_terminal("machine", "list", NO_COLOR="", TERM="xterm-256color")
    assert "\x1b[" not in on_a_terminal("machine", "list", NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal("machine", "list", NO_COLOR="", TERM="dumb")
    assert b"\x1b[" not in pointsman("machine", "list").stdout
    assert "\x1b[" in on_a_terminal("machine", "draw", "agent.task", NO_COLOR="", TERM="xterm-256color")
    assert "\x1b[" not in on_a_terminal("machine", "draw", "agent.task", NO_COLOR="1")


def test_validate_is_quiet_on_stdout_when_the_log_is_clean() -> None:
    result = pointsman("validate", EXAMPLES / "transitions.jsonl")
    assert result.returncode == 0
    assert result.stdout == b""
    assert b"clean (31 lines, 6 entities)" in result.stderr


def test_validate_names_line_and_rule_of_each_finding() -> None:
    result = pointsman("validate", EXAMPLES / "careless.jsonl")
    assert result.returncode == 1
    assert (
        "careless.jsonl:8:1: orchestrated.task may not go from running to completed. [illegal-transition]"
        in result.stdout.decode()
    )


def test_validate_reads_stdin() -> None:
    log = (EXAMPLES / "transitions.jsonl").read_bytes()
    assert pointsman("validate", "-", stdin=log).returncode == 0
    assert pointsman("validate", "-", stdin=log[:-10]).returncode == 1
    assert pointsman("validate", "-", stdin=b"").returncode == 0


def test_validate_json_is_one_object_also_when_the_log_cannot_be_read() -> None:
    report = json.loads(pointsman("validate", "--json", EXAMPLES / "careless.jsonl").stdout)
    assert report["summary"]["findings"] == len(report["findings"])
    assert {"file", "line", "column", "rule", "message", "advice"} == report["findings"][0].keys()
    clean = json.loads(pointsman("validate", "--json", EXAMPLES / "transitions.jsonl").stdout)
    assert clean["findings"] == []
    missing = pointsman("validate", "--json", "/no/such/file")
    assert missing.returncode == 2
    assert "No such file" in json.loads(missing.stdout)["summary"]["error"]


def test_validate_lists_its_rules() -> None:
    rules = json.loads(pointsman("validate", "--rules", "--json").stdout)
    text = pointsman("validate", "--rules").stdout.decode()
    assert all(rule in text for rule in rules)


def test_a_reader_that_goes_away_is_met_with_silence() -> None:
    command = f"{POINTSMAN} machine show standard.task | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert result.stdout.startswith(b"standard.task")
    assert result.stderr == b""


def test_help_for_a_reader_that_is_gone_is_met_with_silence() -> None:
    result = subprocess.run(["bash", "-c", f"{POINTSMAN} --help | true"], capture_output=True, check=True)
    assert result.stderr == b""


def test_a_closed_stdin_is_an_error_of_one_line() -> None:
    result = subprocess.run(["bash", "-c", f"{POINTSMAN} validate - <&-"], capture_output=True, check=False)
    assert result.returncode == 2
    assert b"Traceback" not in result.stderr


def test_no_commands_but_a_group_is_a_question_for_help() -> None:
    result = pointsman("machine")
    assert result.returncode == 0
    assert b"Commands:" in result.stdout


@pytest.mark.parametrize("command", ["--help", "machine list", "validate --rules"])
def test_output_that_cannot_be_written_is_an_error_and_not_a_finding(command: str) -> None:
    result = subprocess.run(["bash", "-c", f"{POINTSMAN} {command} > /dev/full"], capture_output=True, check=False)
    assert result.returncode == 2
    assert b"No space left on device" in result.stderr
    assert b"Traceback" not in result.stderr


def test_a_closed_stderr_does_not_change_the_verdict() -> None:
    log = EXAMPLES / "transitions.jsonl"
    assert subprocess.run(["bash", "-c", f"{POINTSMAN} validate {log} 2>&-"], capture_output=True, check=False).returncode == 0


def test_help_is_plain_ascii_and_drawings_survive_a_plain_locale() -> None:
    assert pointsman("--help", PYTHONIOENCODING="ascii").returncode == 0
    assert pointsman("machine", "draw", "supervised.job", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0").returncode == 0


def test_an_error_is_json_too_where_json_was_asked_for() -> None:
    for call in (("machine", "show", "nope"), ("validate", "-l", "nope", EXAMPLES / "transitions.jsonl")):
        result = pointsman(*call, "--json")
        assert result.returncode == 2
        assert "nope" in json.loads(result.stdout)["error"]


def test_a_compressed_log_is_told_from_a_broken_one(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(gzip.compress((EXAMPLES / "transitions.jsonl").read_bytes()))
    result = pointsman("validate", log)
    assert result.returncode == 2
    assert b"zcat" in result.stderr
    assert pointsman("validate", "-", stdin=log.read_bytes()).returncode == 2


def test_a_scratch_file_that_cannot_be_written_is_an_error_and_not_a_verdict(tmp_path: Path) -> None:
    log = tmp_path / "many.jsonl"
    first = json.loads((EXAMPLES / "transitions.jsonl").read_text().splitlines()[0])
    log.write_text("".join(json.dumps(first | {"entity_id": f"worker-{number:020}"}) + "\n" for number in range(60_000)))
    result = subprocess.run(["bash", "-c", f"ulimit -f 64; {POINTSMAN} validate {log}"], capture_output=True, check=False)
    assert result.returncode == 2
    assert b"the scratch file cannot be written" in result.stderr
    assert b"Traceback" not in result.stderr


def test_a_file_with_several_machines_asks_which(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    shipped = Path(lifecycles.__file__).with_name("supervised.yaml").read_text()
    file.write_text(shipped.replace("lifecycle: supervised", "lifecycle: mine"))
    result = pointsman("machine", "draw", file)
    assert result.returncode == 2
    assert f"{file}:worker or {file}:job" in result.stderr.decode()
    assert pointsman("machine", "draw", f"{file}:job").returncode == 0


def test_a_closed_stdout_is_no_defect() -> None:
    result = subprocess.run(["bash", "-c", f"{POINTSMAN} machine draw agent.task >&-"], capture_output=True, check=False)
    assert b"Traceback" not in result.stderr


def test_a_log_of_another_lifecycle_gets_a_hint() -> None:
    result = pointsman("validate", "-l", "agent", EXAMPLES / "transitions.jsonl")
    assert b"check --lifecycle" in result.stderr


def test_a_dash_is_stdout_and_python_m_is_the_program() -> None:
    drawn = pointsman("machine", "draw", "supervised.job", "-o", "-").stdout
    assert b"SUBMITTED" in drawn
    module = subprocess.run(
        [sys.executable, "-m", "pointsman", "machine", "draw", "supervised.job"], capture_output=True, check=True
    )
    assert module.stdout == drawn


def test_machine_show_tells_the_effects() -> None:
    assert "count_retry, schedule_retry" in pointsman("machine", "show", "orchestrated.task").stdout.decode()


def test_the_tour_of_make_run_works(tmp_path: Path) -> None:
    """Elsewhere, so that the repository stays clean."""
    result = subprocess.run(
        [sys.executable, EXAMPLES / "tour.py", "flow"], capture_output=True, check=False, timeout=120, cwd=tmp_path, text=True
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"archive +SUCCEEDED +2 ", result.stdout)
    assert re.search(r"announce +SKIPPED .* publish was skipped", result.stdout)
    assert "  measure[3]  SUCCEEDED" in result.stdout
    assert "SUCCEEDED  demo: 10 of 10 tasks done (2 skipped)" in result.stderr


def test_the_tour_of_the_machines_works(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, EXAMPLES / "tour.py", "machines"], capture_output=True, check=False, timeout=120, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr.decode()
    assert b"standard.task" in result.stdout
    assert list(tmp_path.iterdir()) == []
