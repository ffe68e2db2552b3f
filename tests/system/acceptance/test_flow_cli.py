"""`pointsman flow` as its users meet it, and the reference of flow files, which is true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pointsman import flows
from pointsman.flows import load_flow
from pointsman.flows.rules import RULES
from pointsman.kernel import compose

ROOT = Path(__file__).parents[3]
POINTSMAN = Path(sys.executable).with_name("pointsman")
REFERENCE = ROOT / "docs" / "reference" / "flow-files.md"
SOUND = """\
name: demo
inputs: {who: world}
tasks:
  a: {command: [echo, hi]}
  b: {run: "echo ${{ inputs.who }}", needs: a, retries: 1}
"""
BROKEN = "name: demo\ntasks:\n  a: {comand: [echo, hi]}\n  b: {run: x, needs: aa}\n"


def pointsman(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([POINTSMAN, "flow", *arguments], capture_output=True, check=False, timeout=60, text=True)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    (tmp_path / "sound.yaml").write_text(SOUND)
    return tmp_path / "sound.yaml"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    (tmp_path / "broken.yaml").write_text(BROKEN)
    return tmp_path / "broken.yaml"


@pytest.mark.parametrize("command", ["check", "show", "draw", "schema"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = pointsman(command, "--help")
    assert result.returncode == 0
    assert "Example" in result.stdout
    assert f"pointsman flow {command}" in result.stdout


def test_check_ends_with_the_worst_of_several(sound: Path, broken: Path) -> None:
    assert pointsman("check", sound).stdout == f"valid  {sound}: demo, 2 tasks in 2 stages\n"
    result = pointsman("check", sound, broken)
    assert result.returncode == 1
    assert f"{broken}:3:7: `comand` is not a key of task a. [structure]\n    Did you mean command?" in result.stdout
    assert f"{broken}:4:22: Task b needs 'aa', but no task has that name. [unknown-task]" in result.stdout
    assert "2 findings" in result.stderr
    result = pointsman("check", broken, sound.with_name("none.yaml"))
    assert result.returncode == 2
    assert "No such file" in result.stderr


def test_check_gives_json_to_programs(sound: Path, broken: Path) -> None:
    reports = json.loads(pointsman("check", sound, broken, "none.yaml", "--json").stdout)
    assert [len(report["findings"]) for report in reports] == [0, 2, 0]
    assert "No such file" in reports[2]["error"]
    assert {"file", "line", "column", "rule", "message", "advice"} == reports[1]["findings"][0].keys()


def test_show_tells_inputs_tasks_and_stages(sound: Path) -> None:
    text = pointsman("show", sound).stdout
    assert re.search(r"who +string +\"world\"", text)
    assert re.search(r"2 +b +echo \$\{\{ inputs.who \}\} +a +1 retry", text)
    shown = json.loads(pointsman("show", sound, "--json").stdout)
    assert shown["plan"]["stages"] == [{"stage": 1, "tasks": ["a"]}, {"stage": 2, "tasks": ["b"]}]
    assert shown["dag"]["edges"] == [{"from": "a", "to": "b"}]
    assert shown["inputs"]["who"]["default"] == "world"


def test_a_broken_file_is_not_shown_or_drawn_but_explained(broken: Path) -> None:
    for command in ("show", "draw"):
        result = pointsman(command, broken)
        assert result.returncode == 1
        assert "Did you mean command?" in result.stdout
        assert len(json.loads(pointsman(command, broken, "--json").stdout)["findings"]) == 2


@pytest.mark.parametrize(("form", "sign"), [("text", "╭"), ("svg", "<svg"), ("mermaid", "flowchart LR")])
def test_draw_knows_three_formats(form: str, sign: str, sound: Path, tmp_path: Path) -> None:
    result = pointsman("draw", sound, "-f", form)
    assert sign in result.stdout
    assert pointsman("draw", sound, "-f", form, "-o", tmp_path / "out").stdout == ""
    assert (tmp_path / "out").read_text("utf-8") == result.stdout
    assert json.loads(pointsman("draw", sound, "-f", form, "--json").stdout)["format"] == form


def test_what_to_draw_follows_from_the_name_of_the_output(sound: Path, tmp_path: Path) -> None:
    for name, sign in (("out.svg", "<svg"), ("out.mmd", "flowchart"), ("out.txt", "a")):
        assert pointsman("draw", sound, "-o", tmp_path / name).returncode == 0
        assert sign in (tmp_path / name).read_text("utf-8")


def test_a_picture_that_cannot_be_drawn_is_refused_and_not_written(sound: Path, tmp_path: Path) -> None:
    for form in ([], ["-f", "svg"]):
        result = pointsman("draw", sound, *form, "-o", tmp_path / "out.png")
        assert result.returncode == 2
        assert f"-o {tmp_path}/out.svg" in result.stderr
        assert not (tmp_path / "out.png").exists()


TOOLS = """\
name: demo
defaults: {tool: curl}
tasks:
  a: {command: [echo, hi]}
  b: {command: [echo, hi], tool: crul}
"""


def test_check_knows_the_tools_of_the_project(tmp_path: Path) -> None:
    file = tmp_path / "flows" / "tools.yaml"
    file.parent.mkdir()
    file.write_text(TOOLS)
    undeclared = pointsman("check", file)
    assert undeclared.returncode == 1
    assert f"{file}:2:18: There is no tool 'curl'. [tool]" in undeclared.stdout
    assert "under [tools.curl]" in undeclared.stdout
    (tmp_path / "pointsman.toml").write_text('[tools.curl]\ncommand = ["curl"]\n')
    misspelt = pointsman("check", file, "--json")
    (finding,) = json.loads(misspelt.stdout)[0]["findings"]
    assert (finding["rule"], finding["line"], finding["column"]) == ("tool", 5, 34)
    assert "Did you mean curl?" in finding["advice"]
    assert re.search(r"tool curl$.*tool crul \(not declared\)$", pointsman("show", file).stdout, re.MULTILINE | re.DOTALL)
    other = tmp_path / "other"
    other.mkdir()
    (other / "pointsman.toml").write_text("[tools.curl]\n[tools.crul]\n")
    assert pointsman("check", file, "-C", other).returncode == 0
    (tmp_path / "pointsman.toml").write_text("slots = -1\n")
    assert pointsman("check", file).returncode == 2


def test_the_summaries_of_the_commands_are_whole() -> None:
    assert "..." not in pointsman("--help").stdout.partition("Commands:")[2]


def test_mistakes_get_a_clear_line(sound: Path) -> None:
    for arguments, hint in [
        (("check",), "FILE"),
        (("draw", str(sound), "-f", "svgg"), "Did you mean svg?"),
        (("draw", "/no/such.yaml"), "No such file"),
        (("chek", "x"), "Did you mean check"),
        (("draw", str(sound), "-o", "/no/such/dir/x.svg"), "No such file"),
    ]:
        result = pointsman(*arguments)
        assert result.returncode == 2
        assert hint in result.stderr
        assert "Traceback" not in result.stderr


def test_schema_is_json() -> None:
    assert json.loads(pointsman("schema").stdout)["title"] == "Pointsman flow"


# ── the reference ──


def test_every_flow_of_the_reference_is_sound() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", REFERENCE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    for block in blocks:
        load_flow(block, file="reference.yaml")


def test_every_rule_of_a_finding_is_documented() -> None:
    sources = "".join(file.read_text("utf-8") for file in Path(flows.__file__).parent.rglob("*.py"))
    sources += Path(compose.__file__).read_text("utf-8")
    assert set(re.findall(r'(?:(?:report|Finding)\(|yield)\s*"([a-z-]+)"', sources)) == set(RULES)


def test_every_key_is_documented() -> None:
    page = REFERENCE.read_text("utf-8")
    keys = json.loads(pointsman("schema").stdout)["$defs"]["FlowTask"]["properties"]
    assert not [key for key in keys if f"`{key}`" not in page]
