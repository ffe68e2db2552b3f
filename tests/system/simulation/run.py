"""One seed from its beginning to its end, and what to say of it."""

from __future__ import annotations

from typing import NamedTuple

from tests.system.simulation.scheduler import Failure, Simulation
from tests.system.simulation.tally import Tally


class Ending(NamedTuple):
    report: str | None
    """Nothing when every promise was kept; otherwise which one was not, what happened last, and how to see it again."""
    tally: Tally


def run_seed(seed: int, *, trace: bool = False) -> Ending:
    simulation = Simulation(seed, trace=trace)
    try:
        simulation.run()
    except Failure as failure:
        return Ending(write_report(failure), simulation.tally)
    finally:
        if trace:
            print("\n".join(simulation.lines()))
        simulation.close()
    return Ending(None, simulation.tally)


def write_report(failure: Failure) -> str:
    return "\n".join(
        [
            str(failure),
            f"broken promise: {failure.promise}",
            "the last steps:",
            *failure.lines[-20:],
            f"again: python -m tests.system.simulation --seed {failure.seed} --trace",
        ]
    )
