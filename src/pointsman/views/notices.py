"""Notices: what happened without a move, with the names of what it happened to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pointsman.engine.engine import TenantEngine
from pointsman.engine.filters import NoticeFilter
from pointsman.errors import NotFound
from pointsman.kernel.machine import Kind
from pointsman.store.rows import Notice
from pointsman.views.values import NoticeView


async def list_notices(engine: TenantEngine, *, about: str | None = None, limit: int) -> list[NoticeView]:
    """The latest ones, newest first: all, or those about an entity, and if it is a run also about its tasks."""
    return await view_notices(engine, await engine.list_notices(NoticeFilter(about=about), limit=limit))


async def view_notices(engine: TenantEngine, notices: Sequence[Notice]) -> list[NoticeView]:
    names = await _find_names(engine, notices)
    return [
        NoticeView(
            at=notice.at,
            kind=notice.kind,
            id=notice.entity_id,
            name=names.get(notice.entity_id, notice.entity_id),
            run_id=notice.run_id,
            subject=notice.subject,
            message=notice.message,
        )
        for notice in notices
    ]


async def _find_names(engine: TenantEngine, notices: Sequence[Notice]) -> dict[str, str]:
    """By id; at most one query for each task and each worker of the page."""
    ids = {kind: {notice.entity_id for notice in notices if notice.kind == kind} for kind in Kind}
    names = {run.id: run.name for run in await engine.find_runs(sorted(ids[Kind.RUN]))} if ids[Kind.RUN] else {}
    for worker_id in sorted(ids[Kind.WORKER]):
        with suppress(NotFound):  # it served the tenant then
            names[worker_id] = (await engine.get_worker(worker_id)).name
    if ids[Kind.BREAKER]:
        names |= {breaker.id: breaker.tool for breaker in await engine.list_breakers()}
    if any(notice.kind == "key" for notice in notices):
        names |= {key.id: key.name for key in await engine.list_keys()}
    return names | {task_id: (await engine.get_task(task_id)).name for task_id in sorted(ids[Kind.TASK])}
