"""What the parts share: projects to run flows in, and how a flow of many small tasks is written."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

POINTSMAN = str(Path(sys.executable).with_name("pointsman"))


@dataclass(frozen=True)
class Scale:
    name: str
    rounds: int
    tasks: int
    """How many commands one round has done."""
    call_rounds: int
    frames: int
    start_rounds: int = 5


@contextmanager
def new_project(flow: str) -> Iterator[Path]:
    """A folder with a flow in it, where nothing has run yet; so the database is made by the run."""
    with tempfile.TemporaryDirectory(prefix="pointsman-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder, "flow.yaml").write_text(flow, "utf-8")
        yield Path(folder)


def many_tasks(count: int, command: str = '["true"]') -> str:
    lines = [f"  t{number}: {{command: {command}}}" for number in range(count)]
    return "\n".join(["name: many", "tasks:", *lines, ""])


def one_fan_out(count: int) -> str:
    return f'name: fan-out\ntasks:\n  each:\n    foreach: ${{{{ range({count}) }}}}\n    command: ["true"]\n'


def quiet_environment() -> dict[str, str]:
    """Nothing of the settings of whoever measures; and modules are compiled once, as those of installed programs are."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("POINTSMAN_") and name != "PYTHONDONTWRITEBYTECODE"
    }


def run_flow(folder: Path, slots: int) -> None:
    """`pointsman run`, as in a script: its lines go nowhere."""
    subprocess.run(
        [POINTSMAN, "run", "flow.yaml", "-j", str(slots)],
        cwd=folder,
        env=quiet_environment(),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def tell(what: str) -> None:
    print(f"{what} …", file=sys.stderr, flush=True)
