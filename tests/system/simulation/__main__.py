"""Run seeds: `python -m tests.system.simulation --seeds 2000`; one of them again: `--seed 1234`; with every step: `--trace`."""

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
    parser.add_argument("--plant", help="plant this bug first, and run until it is caught")
    parser.add_argument("--only", help="with --plant: look at this promise alone")
    options = parser.parse_args()
    if options.plant is not None:
        from tests.planting import plant
        from tests.system.simulation.planted import find

        plant(*find(options.plant).patches)
        from tests.system.simulation.promises import Wanted

        Wanted.only = options.only
        return _run_in_turn(options.first, options.seeds, trace=False)
    if options.seed is not None:
        return _run_in_turn(options.seed, 1, trace=options.trace)
    return _run_everywhere(options.first, options.seeds)


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
