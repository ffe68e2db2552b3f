"""What runs on the machines, outside the database. It outlives the worker that started it, and knows nothing of leases.

The workers decide by the functions of the real one: whether work may begin (`Lease`), and what it replaces (`find_former`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.system.simulation.promises import keep

from pointsman.worker.former import find_former
from pointsman.worker.lease import Lease

if TYPE_CHECKING:
    from tests.system.simulation.scheduler import Simulation

BEGINS = "no work begins after its lease"
ALONE = "no work runs beside the work that replaces it"


class Outside:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._running: dict[tuple[str, int], str] = {}
        """By task and epoch: the machine on which it runs."""

    def begin(self, task_id: str, epoch: int, lease: Lease, worker_id: str, machine: str) -> bool:
        """Begin work as a worker does; whether it has begun."""
        if not lease.is_certain:
            return False
        attempts = self._simulation.promises.attempts.get(task_id, {}).values()
        for former in find_former(attempts, epoch):
            if self._running.get((task_id, former)) == machine:
                self.end(task_id, former)
        self._check(task_id, epoch, worker_id, machine)
        self._running[task_id, epoch] = machine
        return True

    def end(self, task_id: str, epoch: int) -> None:
        self._running.pop((task_id, epoch), None)

    def _check(self, task_id: str, epoch: int, worker_id: str, machine: str) -> None:
        silence = self._simulation.elapsed.silence_of(worker_id)
        keep(BEGINS, silence < 1, f"attempt {epoch} of {task_id} begins {silence:.2f} leases after a sign of {worker_id}")
        beside = [
            other
            for (running, other), where in self._running.items()
            if running == task_id and other < epoch and where == machine
        ]
        keep(ALONE, not beside, f"attempt {epoch} of {task_id} begins on {machine} while {beside} run there")
