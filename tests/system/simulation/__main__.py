"""Run seeds: `python -m tests.system.simulation --seeds 2000`; one of them again: `--seed 1234`; with every step: `--trace`.

A tenth as many seeds of the event stream follow, on a real PostgreSQL; `--stream` runs these alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import islice

from tests.system.simulation.tally import Tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--seeds", type=int, default=100, help="how many to run")
    parser.add_argument("--first", type=int, default=1, help="where to begin")
    parser.add_argument("--trace", action="store_true", help="print every step")
    parser.add_argument("--stream", action="store_true", help="run seeds of the event stream on PostgreSQL alone")
    parser.add_argument("--plant", help="plant this bug first, and run until it is caught")
    parser.add_argument("--only", help="with --plant: look at this promise alone")
    options = parser.parse_args()
    if options.plant is not None:
        from tests.planting import plant
        from tests.system.simulation.planted import find

        bug = find(options.plant)
        plant(*bug.patches)
        from tests.system.simulation.promises import Wanted

        Wanted.only = options.only
        run = _run_stream if bug.is_in_postgres else _run_in_turn
        return run(options.first, options.seeds, trace=False)
    run = _run_stream if options.stream else _run_in_turn
    if options.seed is not None:
        return run(options.seed, 1, trace=options.trace)
    if options.stream:
        return run(options.first, options.seeds, trace=options.trace)
    return _run_everywhere(options.first, options.seeds) or _run_stream(options.first, options.seeds // 10, trace=False)


def _run_in_turn(first: int, number: int, *, trace: bool) -> int:
    from tests.system.simulation.run import run_seed

    tally = Tally()
    for seed in range(first, first + number):
        ending = run_seed(seed, trace=trace)
        if ending.report:
            print(ending.report)
            return 1
        tally.add(ending.tally)
    print(f"seeds {first} to {first + number - 1}: every promise was kept\n{tally}")
    return 0


def _run_stream(first: int, number: int, *, trace: bool) -> int:
    from tests.databases import claim_ownership, end_ownership
    from tests.system.simulation.streams import open_streams

    claim_ownership()
    try:
        with open_streams() as streams:
            for seed in range(first, first + number):
                report, lines = streams.run_seed(seed)
                if trace or report:
                    print("\n".join(lines))
                if report:
                    print(report)
                    return 1
    finally:
        end_ownership()
    print(f"seeds {first} to {first + number - 1} of the event stream: every promise was kept")
    return 0


def _run_everywhere(first: int, number: int) -> int:
    """On all cores, a line for the progress; the first failure ends it."""
    from tests.system.simulation.run import run_seed

    seeds = iter(range(first, first + number))
    done = 0
    tally = Tally()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        while chunk := list(islice(seeds, 50)):
            for ending in pool.map(run_seed, chunk):
                done += 1
                tally.add(ending.tally)
                if ending.report:
                    print(f"\n{ending.report}")
                    pool.shutdown(cancel_futures=True)
                    return 1
            print(f"\r{done} of {number} seeds", end="", file=sys.stderr, flush=True)
    print(f"\nseeds {first} to {first + number - 1}: every promise was kept\n{tally}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
