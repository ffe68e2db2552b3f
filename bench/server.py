"""Measures the HTTP server against an empty route of FastAPI and against Prefect's server, in one run.

    python bench/server.py                              print the tables
    python bench/server.py --write docs/benchmarks.md   and keep them
    python bench/server.py --json figures.json          and every figure, for programs
    python bench/server.py --quick                      small counts, fewer rounds
    python bench/server.py --database sqlite            only one of the two
    python bench/server.py --only requests,live         only some parts: requests, creations, live, process, waiting;
                                                        with --write, the others keep their tables

The load comes from this process, over the loopback address, on the same cores. Everybody takes turns, round by round, after one
round to warm up; medians are compared. Databases live in a temporary folder (choose it with TMPDIR; it should be on a real
disk), PostgreSQL on a server of its own that listens at a socket in that folder.

Prefect has its own Python (`--prefect`, which `make bench` sets up). If it is not installed, it is left out, and that is said.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import os
import platform
import resource
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.contenders import ROOT, Pace
from bench.databases import Database, opened
from bench.report import Table, keep, machine, write_data
from bench.serving import creations, live, process, requests, waiting
from bench.serving.scale import Scale

import pointsman

BEGIN, END = "<!-- bench/server.py --only {} -->", "<!-- end of bench/server.py --only {} -->"
"""Each part has its own place in the file, so that one can be measured and kept without the others."""
PREFECT_PYTHON = ROOT / ".venv-prefect" / "bin" / "python"
KINDS = ("sqlite", "postgres")
PARTS = ("requests", "creations", "live", "process", "waiting")

FULL = Scale(
    "full",
    Pace(rounds=9, seconds=0.7, most=10_000),
    clients=1_000,
    live_seconds=10.0,
    waiting=10_000,
    starts=5,
    idle_seconds=20.0,
)
QUICK = Scale(
    "quick", Pace(rounds=3, seconds=0.4, most=4_000), clients=200, live_seconds=3.0, waiting=500, starts=2, idle_seconds=5.0
)


def measure(part: str, databases: list[Database], scale: Scale, prefect_python: str | None) -> list[Table]:
    if part == "creations":
        return creations.measure(databases, scale, prefect_python)
    if part == "requests":
        return requests.measure(databases, scale)
    if part == "live":
        return live.measure(databases, scale)
    if part == "process":
        return process.measure(databases, scale)
    return waiting.measure(databases, scale)


def preface(scale: Scale, versions: dict[str, str], load: float) -> str:
    """With how busy the machine was: if others use it at the same time, absolute figures say mostly that."""
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Measured on {machine()}, whose load average was {load:.1f} at the beginning. {told}. "
        f"Medians of {scale.pace.rounds} rounds (lowest–highest), everybody taking turns; each server is one process, and "
        "the load comes from another one on the same cores. PostgreSQL with fsync and synchronous_commit on, SQLite with "
        "synchronous=FULL."
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
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both")
    parser.add_argument("--only", type=parts_of, default=set(PARTS), metavar="PARTS", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--prefect", type=Path, default=PREFECT_PYTHON, metavar="PYTHON", help="the Python that has Prefect")
    return parser


def find_versions(databases: list[Database], prefect_python: str | None) -> dict[str, str]:
    named = ("fastapi", "uvicorn", "h11", "uvloop", "httptools")
    versions = {"Python": platform.python_version(), "Pointsman": pointsman.__version__}
    for name in named:
        with suppress(importlib.metadata.PackageNotFoundError):  # some parts need only what the server needs
            versions[name] = importlib.metadata.version(name)
    if prefect_python:
        (found,) = Path(prefect_python).parents[1].glob("lib/python*/site-packages/prefect-*.dist-info")
        versions["Prefect"] = found.name.removeprefix("prefect-").removesuffix(".dist-info")
    return versions | dict(database.name.split(" ", 1) for database in databases)


def main() -> int:
    options = arguments().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # whatever was started ends with this
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a WebSocket needs a file here and one in the server
    scale = QUICK if options.quick else FULL
    prefect_python = str(options.prefect.absolute()) if options.prefect.exists() else None
    if prefect_python is None and "creations" in options.only:
        print(f"There is no Prefect at {options.prefect}: `make bench` sets it up. Its rows are left out.", file=sys.stderr)
    load, _, _ = os.getloadavg()
    with ExitStack() as stack:
        databases = []
        for kind in KINDS if options.database == "both" else [options.database]:
            folder = Path(tempfile.mkdtemp(prefix="pointsman-bench-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            databases.append(stack.enter_context(opened(kind, folder)))
        versions = find_versions(databases, prefect_python)
        measured = {part: measure(part, databases, scale, prefect_python) for part in PARTS if part in options.only}
    tables = [table for part in measured.values() for table in part]
    print("\n\n".join([preface(scale, versions, load), *(table.as_text() for table in tables)]))
    if options.write:
        for part, found in measured.items():
            text = "\n\n".join([preface(scale, versions, load), *(table.as_markdown() for table in found)])
            keep(options.write, BEGIN.format(part), END.format(part), text)
    if options.json:
        write_data(options.json, versions, dataclasses.asdict(scale), tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
