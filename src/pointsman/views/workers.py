"""Workers: who is alive, what they hold, and when they were last heard from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Literal

import msgspec

from pointsman.engine.engine import TenantEngine
from pointsman.engine.workers import AVAILABLE, capabilities, is_suspended
from pointsman.kernel.machine import Phase
from pointsman.store.rows import Task, Worker
from pointsman.views.sources import Fleet, load_fleet
from pointsman.views.values import HeldTask, WorkerView, entity_fields

NONE_KNOWN: Mapping[str, str] = {}


async def list_workers(
    engine: TenantEngine, now: datetime, dead: Collection[str] = (), protections: Mapping[str, str] = NONE_KNOWN
) -> list[WorkerView]:
    """Every worker, those that have left included; `protections` by worker of this machine."""
    fleet = await load_fleet(engine, now, dead)
    held: dict[str | None, list[Task]] = {}
    for task in fleet.held:
        held.setdefault(task.attempt_worker_id, []).append(task)
    return [_make_worker_view(each, held.get(each.id, []), fleet, protections.get(each.id)) for each in fleet.workers.values()]


def _make_worker_view(worker: Worker, holds: list[Task], fleet: Fleet, protection: str | None) -> WorkerView:
    return WorkerView(
        **entity_fields(worker, worker.name),
        alive=fleet.is_alive(worker.id),
        wish=_find_wish(worker),
        slots=worker.max_concurrent_tasks,
        capabilities=tuple(sorted(capabilities(worker))),
        metadata=msgspec.json.decode(worker.worker_metadata),
        run_id=worker.run_id,
        holds=tuple(HeldTask(task.run_id, task.id, task.name) for task in holds),
        heartbeat_at=worker.heartbeat_at,
        protection=protection,
    )


def _find_wish(worker: Worker) -> Literal["suspended", "draining", "terminating"] | None:
    if worker.phase == Phase.DONE:
        return None
    if worker.terminate_wanted:
        return "terminating"
    if worker.drain_wanted and worker.phase in AVAILABLE:
        return "draining"
    return "suspended" if is_suspended(worker) else None
