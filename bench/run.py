"""Measures the running of flows, as people start them, against GNU parallel, Prefect and a bare spawn, in one run.

    python bench/run.py                              print the tables
    python bench/run.py --write docs/benchmarks.md   and keep them
    python bench/run.py --json figures.json          and every figure, for programs
    python bench/run.py --quick                      small counts, fewer rounds
    python bench/run.py --only commands,memory       only some parts: start, commands, calls, memory, screen

Everybody takes turns, round by round, after one round to warm up; medians are compared. Projects live in a temporary folder
(choose it with TMPDIR; it should be on a real disk), and each run begins without a database.

Prefect has its own Python (`--prefect`, which `make bench` sets up). Whoever is not installed is left out, and that is said.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import os
import platform
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import apsw
from bench.contenders import ROOT
from bench.flows import calls, commands, memory, screen, start
from bench.flows.scene import Scale
from bench.report import Table, keep, machine, write_data

import pointsman

BEGIN, END = "<!-- bench/run.py -->", "<!-- end of bench/run.py -->"
PREFECT_PYTHON = ROOT / ".venv-prefect" / "bin" / "python"
PARTS = ("start", "commands", "calls", "memory", "screen")

FULL = Scale("full", rounds=3, tasks=1_000, call_rounds=15, frames=15)
QUICK = Scale("quick", rounds=3, tasks=200, call_rounds=7, frames=5)


def measure(scale: Scale, parts: set[str], prefect_python: str | None, versions: dict[str, str]) -> list[Table]:
    tables = []
    if "start" in parts:
        tables += start.measure(scale)
    if "commands" in parts:
        tables += commands.measure(scale, prefect_python, versions)
    if "calls" in parts:
        tables += calls.measure(scale)
    if "memory" in parts:
        tables += memory.measure()
    if "screen" in parts:
        tables += screen.measure(scale)
    return tables


def preface(scale: Scale, versions: dict[str, str], load: float) -> str:
    """With how busy the machine was: whoever shares it with others measures mostly them."""
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Measured on {machine()}, whose load average was {load:.1f} at the beginning. {told}. "
        f"Medians of {scale.rounds} rounds ({scale.start_rounds} of the start, {scale.call_rounds} of the calls; "
        "lowest–highest), everybody taking turns; SQLite with synchronous=FULL."
    )


def parts_of(text: str) -> set[str]:
    parts = set(text.split(","))
    if unknown := parts - set(PARTS):
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    return parts


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the markers of this file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure into this file")
    parser.add_argument("--quick", action="store_true", help="small counts, fewer rounds")
    parser.add_argument("--only", type=parts_of, default=set(PARTS), metavar="PARTS", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--prefect", type=Path, default=PREFECT_PYTHON, metavar="PYTHON", help="the Python that has Prefect")
    return parser


def main() -> int:
    options = arguments().parse_args()
    # Whoever ends this run ends the contenders with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    scale = QUICK if options.quick else FULL
    prefect_python = str(options.prefect.absolute()) if options.prefect.exists() else None
    if prefect_python is None and "commands" in options.only:
        print(f"There is no Prefect at {options.prefect}: `make bench` sets it up. Its row is left out.", file=sys.stderr)
    versions = {
        "Python": platform.python_version(),
        "Pointsman": pointsman.__version__,
        "SQLite": apsw.sqlite_lib_version(),
        "rich": importlib.metadata.version("rich"),
    }
    load, _, _ = os.getloadavg()
    tables = measure(scale, options.only, prefect_python, versions)
    print("\n\n".join([preface(scale, versions, load), *(table.as_text() for table in tables)]))
    if options.write:
        text = "\n\n".join([preface(scale, versions, load), *(table.as_markdown() for table in tables)])
        keep(options.write, BEGIN, END, text)
    if options.json:
        write_data(options.json, versions, dataclasses.asdict(scale), tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
