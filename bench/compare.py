"""Compares this checkout with another one: both take turns, measurement by measurement, on databases of the same server.

    python bench/compare.py ../other                     both databases, 15 rounds
    python bench/compare.py ../other --database sqlite --rounds 31
    TMPDIR=/dev/shm python bench/compare.py ../other --only submit    without the noise of the disk

The other checkout needs its own environment (`make lint` sets it up). A ratio is the median over the rounds of this checkout's
speed by the other's in the same round, so what slows the machine down for a while slows down both.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.contenders import ROOT, Answer, Contender
from bench.databases import opened

KINDS = ("postgres", "sqlite")
BATCHES = {1: 40, 10: 200, 100: 1_000, 500: 2_000, 1_000: 3_000}
"""How many tasks are drained in a round, by the size of the batch."""


def main() -> int:
    options = _parse_options()
    for kind in KINDS if options.database == "both" else [options.database]:
        folder = Path(tempfile.mkdtemp(prefix="pointsman-bench-"))
        try:
            with opened(kind, folder) as database:
                trees = {"this": ROOT, "other": options.other.resolve()}
                contenders = {
                    name: Contender(
                        "bench.own", database.new(f"pointsman_{name}"), python=str(tree / ".venv/bin/python"), folder=tree
                    )
                    for name, tree in trees.items()
                }
                compare(database.name, contenders, options.rounds, options.only)
                for contender in contenders.values():
                    contender.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", metavar="WORD", help="only measurements whose name has this in it")
    return parser.parse_args()


def compare(title: str, contenders: Mapping[str, Contender], rounds: int, word: str) -> None:
    print(f"\n{title}, {rounds} rounds: median ratio (quartiles), this by other; above 1 this checkout is quicker")
    for what, measure in _measurements().items():
        if word not in what:
            continue
        speeds: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(rounds + 1):
            order = list(contenders) if turn % 2 else list(contenders)[::-1]
            for name in order:
                speed = measure(contenders[name])
                if turn:  # the first round warms up
                    speeds[name].append(speed)
        ratios = [mine / others for mine, others in zip(speeds["this"], speeds["other"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        figures = " and ".join(f"{statistics.median(speeds[name]):,.1f}" for name in ("this", "other"))
        print(f"  {middle:.3f} ({low:.2f}–{high:.2f})  {what}: {figures} a second", flush=True)


def _measurements() -> dict[str, Callable[[Contender], float]]:
    found: dict[str, Callable[[Contender], float]] = {
        f"drain, batches of {batch:,}": partial(_drain, batch=batch, count=count) for batch, count in BATCHES.items()
    }
    found["drain, batches of 100, outputs of their own"] = partial(_drain, batch=100, count=1_000, with_output=True)
    found["submit, one run of 1,000 tasks"] = partial(_submit, runs=1, tasks=1_000, at_once=1)
    found["submit, runs of one task, one after the other"] = partial(_submit, runs=50, tasks=1, at_once=1)
    found["submit, runs of one task, 100 callers at once"] = partial(_submit, runs=500, tasks=1, at_once=100)
    found["one task alone, from submitted to claimed"] = lambda contender: 1 / contender.ask("wait_for_task")["seconds"]
    return found


def _drain(contender: Contender, **request: object) -> float:
    return _speed(contender.ask("drain", **request))


def _submit(contender: Contender, **request: object) -> float:
    answer = contender.ask("submit_runs", **request)
    contender.ask("drain_rest", batch=100)
    return _speed(answer)


def _speed(answer: Answer) -> float:
    return float(answer["tasks"] / answer["seconds"])


if __name__ == "__main__":
    sys.exit(main())
