"""What the documentation says is true: its commands run, its files load, its generated parts are fresh."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pointsman import kernel, load_lifecycle

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BIN = Path(sys.executable).parent


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def run(command: str, directory: Path) -> subprocess.CompletedProcess[bytes]:
    program, *arguments = shlex.split(command, comments=True)
    assert program == "pointsman", command
    return subprocess.run([BIN / program, *arguments], cwd=directory, capture_output=True, check=False, timeout=60)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A directory with the files that the README talks about."""
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state" / "transitions.jsonl").write_bytes((ROOT / "examples" / "transitions.jsonl").read_bytes())
    lifecycle = next(block for block in blocks(ROOT / "README.md", "yaml") if block.startswith("# yaml-language-server"))
    for name in ("my-lifecycle.yaml", "release.yaml"):
        (tmp_path / name).write_text(lifecycle)
    return tmp_path


def test_every_command_of_the_readme_works(desk: Path) -> None:
    commands = [line[2:] for block in blocks(ROOT / "README.md", "console") for line in block.splitlines() if line[:2] == "$ "]
    assert len(commands) >= 6
    for command in [*commands, "pointsman machine check release.yaml", "pointsman machine draw release.yaml"]:
        result = run(command, desk)
        assert result.returncode == 0, f"{command}: {result.stderr.decode()}"


def test_the_tutorial_goes_as_it_says(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorial" / "your-first-lifecycle.md"
    broken, answer = blocks(page, "yaml")
    (log,) = blocks(page, "json")
    (tmp_path / "door.yaml").write_text(broken)
    check = run("pointsman machine check door.yaml", tmp_path)
    assert check.returncode == 1
    assert sorted(re.findall(r"\[([a-z-]+)\]$", check.stdout.decode(), re.MULTILINE)) == ["uncovered-signal", "unknown-guard"]
    (tmp_path / "door.yaml").write_text(broken.replace("reachd", "reached") + answer)
    (tmp_path / "door.jsonl").write_text(log)
    commands = [line[2:] for block in blocks(page, "console") for line in block.splitlines()]
    *before, validate = commands
    for command in before:
        result = run(command, tmp_path)
        assert result.returncode == 0, f"{command}: {result.stdout.decode()}{result.stderr.decode()}"
    result = run(validate, tmp_path)
    assert result.returncode == 1
    assert re.findall(r"^door.jsonl:(\d+):1: .*\[([a-z-]+)\]$", result.stdout.decode(), re.MULTILINE) == [("2", "continuity")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_the_documentation_runs(page: Path, tmp_path: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=60, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_answers_that_the_readme_gives_are_the_machines() -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    names: dict[str, object] = {}
    exec(code, names)
    answers = re.findall(r"^(machine\.\S+\(.*\))  # (\(.*\)|True|False)$", code, re.MULTILINE)
    assert len(answers) == 3
    for question, answer in answers:
        assert repr(eval(question, names)) == answer


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_what_is_generated_is_fresh() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, check=False, text=True
    )
    assert result.returncode == 0, f"{result.stdout}{result.stderr}\nRun `make docs`."


def test_every_verification_rule_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "lifecycle-files.md").read_text("utf-8")
    sources = "".join(file.read_text("utf-8") for file in Path(kernel.__file__).parent.rglob("*.py"))
    rules = set(re.findall(r'(?:Finding|report)\(\s*"([a-z-]+)"', sources)) | {
        f"unknown-{what}" for what in re.findall(r'_unknown\("([a-z]+)"', sources)
    }
    assert len(rules) > 25
    assert not {rule for rule in rules if f"`{rule}`" not in page}


def test_the_readmes_lifecycle_is_sound(desk: Path) -> None:
    assert load_lifecycle(desk / "release.yaml").name == "release"


def test_the_benchmarks_have_figures_and_say_how_to_get_them_again() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    figures = page.partition("<!-- bench/kernel.py -->")[2].partition("<!-- end of bench/kernel.py -->")[0]
    for title in ("One move with a guard", "One line of a log", "Memory of the validator", "The start of the program"):
        assert f"### {title}" in figures
    assert "make bench" in page
