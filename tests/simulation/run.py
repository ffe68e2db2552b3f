"""One seed from its beginning to its end, and what to say of it."""

from __future__ import annotations

from tests.simulation.scheduler import Failure, Simulation


def run_seed(seed: int, *, trace: bool = False) -> str | None:
    """Nothing when every promise was kept; otherwise which one was not, what happened last, and how to see it again."""
    simulation = Simulation(seed, trace=trace)
    try:
        simulation.run()
    except Failure as failure:
        return write_report(failure)
    finally:
        if trace:
            print("\n".join(simulation.lines()))
        simulation.close()
    return None


def write_report(failure: Failure) -> str:
    return "\n".join(
        [
            str(failure),
            f"broken promise: {failure.promise}",
            "the last steps:",
            *failure.lines[-20:],
            f"again: python -m tests.simulation --seed {failure.seed} --trace",
        ]
    )
