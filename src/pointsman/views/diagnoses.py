"""What helps against what the doctor found, as far as the row of a task does not tell it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from pointsman.engine.doctor import Diagnosis
from pointsman.engine.engine import TenantEngine
from pointsman.errors import NotFound
from pointsman.views.sources import load_run
from pointsman.views.steps import find_obstacle


async def advise(engine: TenantEngine, found: Sequence[Diagnosis], now: datetime) -> list[Diagnosis]:
    """Nobody can mend a failed task whose run cannot succeed any more: say why instead."""
    obstacles: dict[str, str | None] = {}
    advised = []
    for each in found:
        obstacle = await _find_obstacle(engine, each.entity_id, obstacles, now) if each.subject == "unretried" else None
        advised.append(replace(each, advice=obstacle) if obstacle else each)
    return advised


async def _find_obstacle(engine: TenantEngine, task_id: str, obstacles: dict[str, str | None], now: datetime) -> str | None:
    try:
        run_id = (await engine.get_task(task_id)).run_id
    except NotFound:  # it belongs to another tenant
        return None
    if run_id not in obstacles:
        obstacles[run_id] = find_obstacle(await load_run(engine, await engine.get_run(run_id)), now)
    return obstacles[run_id]
