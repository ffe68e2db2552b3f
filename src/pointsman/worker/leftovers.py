"""Ends what dead workers of this machine have left running, before their tasks run again.

a worker starts, a run is resumed   ─▶ end_dead_workers
now and then, and at a lost lease   ─▶ end_dead_workers (a duty)
before an attempt of a lost task    ─▶ end_former_attempts: the worker may also be alive and frozen
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from pointsman.engine.claims import Claim
from pointsman.engine.duties import Duty
from pointsman.engine.engine import Engine
from pointsman.errors import RequestError, TransitionRefused
from pointsman.store.contract import Wakeup
from pointsman.worker import processes, records
from pointsman.worker.former import find_former
from pointsman.worker.process_table import Process, carries, list_processes
from pointsman.world import Sleep

LOOKS_PER_LEASE = 6


def leftovers_duty(engine: Engine, directory: Path, lease_seconds: float, sleep: Sleep) -> Duty:
    """Looks for workers of this project that have died beside this one."""
    return Duty(
        name="leftovers",
        perform=lambda: end_dead_workers(engine, directory, sleep),
        interval_seconds=lease_seconds / LOOKS_PER_LEASE,
        wakes_on=Wakeup.WORKERS,
    )


async def end_dead_workers(engine: Engine, directory: Path, sleep: Sleep) -> int:
    """Kill the processes of dead workers of this project, then release their tasks; how many workers there were.

    The records go last. Until then, every other worker that begins one of these tasks kills the processes as well.
    """
    dead = await records.end_predecessors(directory, sleep)
    for worker_id in dead:
        with suppress(RequestError, TransitionRefused):
            await engine.for_tenant(actor="worker").signal_worker(
                worker_id, "terminate", ended=True, reason="the worker was killed"
            )
    records.forget(directory, dead)
    return len(dead)


async def end_former_attempts(engine: Engine, claim: Claim, directory: Path, sleep: Sleep) -> None:
    """Kill what former attempts of a task have left running on this machine; fast if all of them were seen to end."""
    if epochs := find_former(await engine.list_attempts(claim.task_id), claim.epoch):
        await end_dead_workers(engine, directory, sleep)
        await processes.kill_all(partial(_find_attempts, claim.task_id, epochs), sleep)


def _find_attempts(task_id: str, epochs: Iterable[int]) -> list[Process]:
    """By their environment: their leaders may have gone."""
    task, markers = f"POINTSMAN_TASK_ID={task_id}", [processes.marker_of(task_id, epoch) for epoch in epochs]
    return [
        each
        for each in list_processes()
        if not each.has_ended
        and each.pid != os.getpid()
        and carries(each.pid, task)
        and any(carries(each.pid, marker) for marker in markers)
    ]
