"""What a person means, a run, task, worker, tool or key: by its id, a part of it, by name, or as the latest one."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.engine.engine import Engine, TenantEngine
from pointsman.errors import NotFound, NothingYet, Problem, RequestInvalid, nearest, suggest
from pointsman.kernel.machine import Phase
from pointsman.store.rows import ApiKey, Breaker, Run, Task, Worker

LATEST = "latest"
SHORTEST_PART = 4
"""Fewer characters of an id are more likely a typing error."""
SHORT = 8
FEW = 8
RECENT = 100
"""How many of the latest runs are searched for one of a similar name."""


def short(identity: str) -> str:
    """The end of an id, which is enough to name it; ids that were made together begin with the same characters."""
    return identity[-SHORT:]


async def find_run(engine: TenantEngine, name: str | None) -> Run:
    if name is None or name == LATEST:
        newest = await engine.list_runs(limit=1)
        if not newest:
            raise NothingYet
        return newest[0]
    try:
        return await engine.get_run(name)
    except NotFound:
        found = await engine.match_runs(name, limit=FEW + 1) if len(name) >= SHORTEST_PART else []
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous("run", name, found)
    raise await _unknown_run(engine, name)


async def find_task(engine: TenantEngine, run: Run, name: str) -> Task:
    tasks = await engine.list_tasks_in_brief(run.id)
    found = [task for task in tasks if name in (task.name, task.id)] or [task for task in tasks if is_part(name, task.id)]
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous("task", name, found)
    names = [task.name for task in tasks]
    meant = nearest(name, names)
    hint = f"Did you mean {' or '.join(meant)}?" if meant else f"It has: {_list_few(names)}."
    raise _invalid(f"The run '{run.name}' ({short(run.id)}) has no task '{name}'. {hint}")


async def find_worker(engine: TenantEngine, name: str) -> Worker:
    """By name, by id or by a part of it. A name may be used again: then it means the worker that has not left."""
    workers = await engine.list_workers()
    found = [each for each in workers if name in (each.name, each.id)] or [each for each in workers if is_part(name, each.id)]
    present = [each for each in found if each.phase != Phase.DONE] or found[-1:]
    if len(present) == 1:
        return present[0]
    if present:
        raise _ambiguous("worker", name, present)
    names = {part: each for each in workers if each.phase != Phase.DONE for part in (each.name, short(each.id))}
    meant = [f"{names[part].name} ({short(names[part].id)})" for part in nearest(name, names)]
    hint = f"Did you mean {' or '.join(dict.fromkeys(meant))}?" if meant else "See: pointsman workers"
    raise _invalid(f"There is no worker '{name}'. {hint}")


async def find_tool(engine: TenantEngine, name: str) -> Breaker:
    tools = {each.tool: each for each in await engine.list_breakers()}
    if name in tools:
        return tools[name]
    known = suggest(name, tools) if tools else "Runs and workers declare the tools of the settings when they start."
    raise _invalid(f"There is no tool '{name}' in this database. {known}")


async def find_key(engine: Engine, name: str) -> ApiKey:
    """An API key of any tenant, by its id or a part of it. A name may be used by several tenants, so it is not enough."""
    keys = await engine.list_all_keys()
    found = [each for each in keys if each.id == name] or [each for each in keys if is_part(name, each.id)]
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous("key", name, found)
    same_name = [each for each in keys if each.name == name and each.revoked_at is None]
    hint = f"Keys of that name: {_list_few(f'{each.id} of {each.tenant}' for each in same_name)}." if same_name else ""
    raise _invalid(f"There is no key '{name}'. {hint or 'See: pointsman key list --all'}")


def is_part(name: str, identity: str) -> bool:
    """Whether `name` is the beginning or the end of an id; its prefix may be left out."""
    bare = identity.partition("_")[2]
    return len(name) >= SHORTEST_PART and (identity.startswith(name) or bare.startswith(name) or identity.endswith(name))


async def _unknown_run(engine: TenantEngine, name: str) -> Exception:
    runs = await engine.list_runs(limit=RECENT)
    if not runs:
        return NothingYet()
    same_name = [run for run in runs if run.name == name]
    if same_name:
        return _invalid(
            f"'{name}' is the name of a flow, not of a run. Its runs: {_list_few(short(run.id) for run in same_name)}."
        )
    ids = {part: run for run in runs for part in (run.id, short(run.id))}
    meant = [f"{short(ids[part].id)} ({ids[part].name})" for part in nearest(name, ids)]
    hint = f"Did you mean {' or '.join(dict.fromkeys(meant))}?" if meant else ""
    few = f" Write at least {SHORTEST_PART} characters of its id." if len(name) < SHORTEST_PART else ""
    latest = _list_few(f"{short(run.id)} ({run.name})" for run in runs[:3])
    return _invalid(f"There is no run '{name}'.{few} {hint or f'The latest are: {latest}.'} See: pointsman status")


def _ambiguous(what: str, name: str, found: Iterable[Run | Task | Worker | ApiKey]) -> RequestInvalid:
    some = _list_few(f"{each.id} ({each.name})" for each in found)
    return _invalid(f"'{name}' matches more than one {what}: {some}. Write more of the id.")


def _list_few(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW:,} more" if len(names) > FEW else "")


def _invalid(message: str) -> RequestInvalid:
    return RequestInvalid([Problem("", message)])
