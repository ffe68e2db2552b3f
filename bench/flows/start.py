"""How long the program takes to start, to read a large flow and to run it: whole programs, with and without bytecode."""

from __future__ import annotations

import compileall
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.contenders import Answer, Entry, Pace, take_turns
from bench.flows.scene import Scale, many_tasks, new_project, quiet_environment, tell
from bench.report import Row, Table, Target

import pointsman

PACKAGE = Path(pointsman.__file__).parent
PYTHON, ONE, UNCOMPILED, CHECK = (
    "`python -c pass`",
    "`pointsman run`, one task",
    "the same without bytecode",
    "`pointsman flow check`",
)
LARGE = 10_000
RUN = f"`pointsman run -j 2`, {LARGE:,} × `true`"


def measure(scale: Scale) -> list[Table]:
    compileall.compile_dir(PACKAGE, quiet=1)
    with tempfile.TemporaryDirectory(prefix="pointsman-bench-") as folder:
        shutil.copytree(PACKAGE, Path(folder, "pointsman"), ignore=shutil.ignore_patterns("__pycache__"))
        entries = [
            Entry(PYTHON, lambda _: timed_program(["-c", "pass"], 1), fixed=1),
            Entry(ONE, lambda _: timed_program(["-m", "pointsman", "run", "flow.yaml"], 1), fixed=1),
            Entry(UNCOMPILED, lambda _: timed_program(["-m", "pointsman", "run", "flow.yaml"], 1, uncompiled=folder), fixed=1),
            Entry(CHECK, lambda count: timed_program(["-m", "pointsman", "flow", "check", "flow.yaml"], count), fixed=LARGE),
            Entry(RUN, lambda count: timed_program(["-m", "pointsman", "run", "flow.yaml", "-j", "2"], count), fixed=LARGE),
        ]
        answers = take_turns(entries, Pace(scale.start_rounds, seconds=0, most=0), tell)
    rows = [
        start_row(PYTHON, answers[PYTHON]),
        start_row(f"{ONE} that does nothing, in a new folder", answers[ONE], Target(0.35, at_most=True, unit=" s")),
        start_row(UNCOMPILED, answers[UNCOMPILED], note="of its own modules; those that it depends on had theirs"),
        start_row(f"{CHECK} of {LARGE:,} tasks", answers[CHECK], Target(1, at_most=True, unit=" s")),
        start_row(RUN, answers[RUN], Target(25, at_most=True, unit=" s")),
    ]
    return [Table("The start of a run, from the start of the program to its exit", rows)]


def start_row(what: str, answers: Sequence[Answer], target: Target | None = None, note: str = "with bytecode") -> Row:
    seconds = tuple(answer["seconds"] for answer in answers)
    middle, cpu = statistics.median(seconds), statistics.median(answer["cpu_seconds"] for answer in answers)
    figure = f"{middle:.2f} s ({min(seconds):.2f}–{max(seconds):.2f})"
    met = None if target is None else target.is_met_by(middle)
    return Row(what, figure, seconds, None, target, met, f"{cpu:.2f} s of processor time; {note}")


def timed_program(arguments: Sequence[str], tasks: int, *, uncompiled: str = "") -> Answer:
    """Run Python in a new project; with `uncompiled`, Pointsman is imported from this folder, and no bytecode is written."""
    environment = quiet_environment() | ({"PYTHONPATH": uncompiled, "PYTHONDONTWRITEBYTECODE": "1"} if uncompiled else {})
    with new_project(many_tasks(tasks)) as folder:
        used, began = processor_seconds(), time.perf_counter()
        subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=True, capture_output=True)
        return {"tasks": tasks, "seconds": time.perf_counter() - began, "cpu_seconds": processor_seconds() - used}


def processor_seconds() -> float:
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
