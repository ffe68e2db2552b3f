"""Measures the engine on both databases against hand-written SQL (the floor) and other task queues (the peers), in one run.

    python bench/engine.py                              print the tables
    python bench/engine.py --write docs/benchmarks.md   and keep them
    python bench/engine.py --json figures.json          and every figure, for programs
    python bench/engine.py --quick                      small counts: four minutes instead of eighteen
    python bench/engine.py --database sqlite            only one of the two
    python bench/engine.py --only drain,latency         only some parts: drain, peers, submit, dag, latency, growth
    python bench/engine.py --profile                    where the time of a batch of 100 goes

Everybody is a process of its own that is asked in lines of JSON (`bench/floor.py`, `bench/own.py`, `bench/peers/`) and takes
turns with the others, round by round, after one round to warm up. Who begins changes from round to round; medians are compared,
never single figures. Time counts from when the workers begin to when the last task is recorded as done, which is looked up in
the database.

The peers have their own Python (`--peers`, which `make bench` sets up). Databases live in a temporary folder (choose it with
TMPDIR; it should be on a real disk), PostgreSQL on a server of its own that listens at a socket in that folder.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.contenders import ROOT, Pace
from bench.databases import opened
from bench.parts import drain, graph, growth, latency, submit
from bench.parts.setting import Scale, Setting
from bench.report import Table, keep, machine, write_data

BEGIN, END = "<!-- bench/engine.py -->", "<!-- end of bench/engine.py -->"
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
KINDS = ("postgres", "sqlite")
PARTS = ("drain", "peers", "submit", "dag", "latency", "growth")

FULL = Scale(
    "full",
    Pace(rounds=5, seconds=1.5, most=30_000),
    layers=(1, 100, 9_798, 100, 1),
    chain=1_000,
    latencies=100,
    finished=1_000_000,
    sample=10_000,
)
QUICK = Scale(
    "quick",
    Pace(rounds=3, seconds=0.3, most=5_000),
    layers=(1, 20, 958, 20, 1),
    chain=100,
    latencies=30,
    finished=50_000,
    sample=2_000,
)


def measure(setting: Setting, parts: set[str]) -> list[Table]:
    """`peers` go with `drain` and `latency`, whose rounds they share."""
    tables = []
    if parts & {"drain", "peers"}:
        tables += drain.measure(setting)
    if "submit" in parts:
        tables += submit.measure(setting)
    if "dag" in parts:
        tables += graph.measure(setting)
    if "latency" in parts:
        tables += latency.measure(setting)
    if "growth" in parts:
        tables += growth.measure(setting)
    return tables


def preface(scale: Scale, versions: dict[str, str]) -> str:
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Measured on {machine()}. {told}. Medians of {scale.pace.rounds} rounds (lowest–highest), everybody taking turns; "
        "PostgreSQL with fsync and synchronous_commit on, SQLite with synchronous=FULL. A ratio says how many times as quick "
        "as the one in that row Pointsman was, in batches of 100 where nothing else is said: the median of the rounds' ratios. "
        "For latencies it says how many times as long Pointsman took. The floor is hand-written SQL: a claim, a completion and "
        "an audit row for each, nothing else (`bench/floor.py`)."
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
    parser.add_argument("--quick", action="store_true", help="small counts, in four minutes instead of eighteen")
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both")
    parser.add_argument("--only", type=parts_of, default=set(PARTS), metavar="PARTS", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--peers", type=Path, default=PEERS_PYTHON, metavar="PYTHON", help="the Python that has the peers")
    parser.add_argument("--profile", action="store_true", help="show where the time of a batch goes, instead of the tables")
    return parser


def main() -> int:
    options = arguments().parse_args()
    # Whoever ends this run ends the server and the contenders with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    scale = QUICK if options.quick else FULL
    peers = str(options.peers.absolute()) if options.peers.exists() and "peers" in options.only else None
    if peers is None and "peers" in options.only and not options.profile:
        print(f"There are no peers at {options.peers}: `make bench` sets them up. Going on without.", file=sys.stderr)
    tables: list[Table] = []
    versions: dict[str, str] = {}
    for kind in KINDS if options.database == "both" else [options.database]:
        folder = Path(tempfile.mkdtemp(prefix="pointsman-bench-"))
        try:
            with opened(kind, folder) as database:
                if options.profile:
                    from bench.hotspots import show_hotspots

                    asyncio.run(show_hotspots(database, scale.pace.most))
                    continue
                name, _, version = database.name.partition(" ")
                versions[name] = version
                tables += measure(Setting(database, scale, peers, versions), options.only)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if options.profile:
        return 0
    print("\n\n".join([preface(scale, versions), *(table.as_text() for table in tables)]))
    if options.write:
        keep(options.write, BEGIN, END, "\n\n".join([preface(scale, versions), *(table.as_markdown() for table in tables)]))
    if options.json:
        write_data(options.json, versions, dataclasses.asdict(scale), tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
