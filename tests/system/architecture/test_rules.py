"""Rules of the project that a tool does not check by itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
from tests.rows import each_row

from pointsman import errors
from pointsman.cli import COMMANDS
from pointsman.cli.group import root
from pointsman.kernel.machine import Kind, Outcome, Phase, Severity
from pointsman.lifecycles import load_machine, machine_names
from pointsman.lifecycles.vocabulary import EFFECTS, SIGNALS

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "pointsman"
MODULES = sorted(SOURCE.rglob("*.py"))
STATES = {state.name for name in machine_names() for state in load_machine(name).states}


# States that are also words of the vocabulary: signals, phases, outcomes, keys of a file.
WORDS = {str(word) for enum in (Kind, Phase, Outcome, Severity) for word in enum}
WORDS |= {signal for signals in SIGNALS.values() for signal in signals} | set(EFFECTS)


@each_row("module", MODULES)
def test_no_state_is_named_outside_a_lifecycle_file(module: Path) -> None:
    strings = {node.value for node in ast.walk(ast.parse(module.read_text("utf-8"))) if isinstance(node, ast.Constant)}
    assert not (STATES - WORDS) & {string for string in strings if isinstance(string, str)}


def test_every_exception_is_in_errors_and_drawn_in_its_docstring() -> None:
    tree = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception):
            assert re.search(rf"\b{name}\b", tree), f"{name} is missing from the tree"
    for module in MODULES:
        if module.name == "errors.py":
            continue
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                private = node.name.startswith("_")
                assert private or not bases & {"Exception", "PointsmanError", "LifecycleError"}, f"{module}: {node.name}"


def test_no_lock_file_names_an_index() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text("utf-8")
        assert "://" not in text, lock
        assert "--hash=sha256:" in text, lock
        assert not re.search(r"^\s*-", re.sub(r"^ +--hash.*$", "", text, flags=re.MULTILINE), re.MULTILINE), lock


def test_what_is_needed_to_run_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    locked = set(re.findall(r"^([a-z0-9.-]+)==", (ROOT / "requirements" / "run.txt").read_text("utf-8"), re.MULTILINE))
    needed = {re.split(r"[\[>]", each)[0].replace(".", "-") for each in project["dependencies"]}
    assert needed <= locked, "Run `make lock`."


def every_command() -> list[str]:
    """As one types them, those inside of groups too."""
    context = click.Context(root)
    commands = {name: root.get_command(context, name) for name in COMMANDS}
    assert None not in commands.values()
    return [
        " ".join((name, *inner))
        for name, command in commands.items()
        for inner in ([(each,) for each in command.commands] if isinstance(command, click.Group) else [()])
    ]


def test_every_lifecycle_machine_and_command_is_documented() -> None:
    reference = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    for name in machine_names():
        assert name in reference, name
    for command in every_command():
        assert f"pointsman {command}" in reference, command


def test_only_one_module_prints_text() -> None:
    """`echo` of output.py makes text of others harmless; logs.py does so itself, with output in bytes."""
    cli = ROOT / "src" / "pointsman" / "cli"
    printing = {path.name for path in cli.glob("*.py") if "click.echo(" in path.read_text("utf-8")}
    assert printing == {"output.py", "logs.py"}


def test_help_imports_no_dependency() -> None:
    code = "import sys; from pointsman.cli import main; main(['--help']); print([m for m in sys.modules if m in "
    code += "('click', 'msgspec', 'ruamel.yaml', 'yaml', 'pointsman.kernel')], file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"
