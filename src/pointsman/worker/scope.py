"""What the expressions of a task may refer to: the inputs of its run, and what the tasks before it have left."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from pointsman.engine.engine import Engine
from pointsman.store.rows import Result

MOST_RUNS = 100


@dataclass(slots=True)
class RunScope:
    """What a run was submitted with, and what is known of its tasks: once one has ended well, that stays."""

    run_id: str
    name: str
    payload: dict[str, Any]
    directory: Path | None = None
    """Where its flow was submitted from."""
    ends_at: datetime | None = None
    """When it will have taken as long as it may, which is `timeout`."""
    timeout: float | None = None
    has_budget: bool = False
    results: dict[str, dict[str, Any]] = field(default_factory=dict)


class Scopes:
    """Of the runs that a worker has met lately."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runs: OrderedDict[str, RunScope] = OrderedDict()
        self._asked: dict[str, asyncio.Task[RunScope]] = {}
        """Whoever asks for a run while it is being read waits for the same answer: tasks come in crowds."""

    async def of_run(self, run_id: str) -> RunScope:
        scope = self._runs.get(run_id)
        if scope is not None:
            return scope
        asked = self._asked.get(run_id)
        if asked is None:
            asked = self._asked[run_id] = asyncio.create_task(self._read_run(run_id))
            asked.add_done_callback(lambda _: self._asked.pop(run_id))
        return await asyncio.shield(asked)

    async def _read_run(self, run_id: str) -> RunScope:
        run = await self._engine.get_run(run_id)
        payload = msgspec.json.decode(run.payload)
        payload = payload if isinstance(payload, dict) else {}
        directory = Path(payload["directory"]) if "directory" in payload else None
        timeout = payload.get("timeout")
        ends_at = run.created_at + timedelta(seconds=timeout) if timeout is not None else None
        scope = self._runs[run_id] = RunScope(
            run_id, run.name, payload, directory, ends_at, timeout, has_budget=run.budget_usd is not None
        )
        if len(self._runs) > MOST_RUNS:
            self._runs.popitem(last=False)
        return scope

    async def look_up(self, scope: RunScope, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """`outputs` and `skipped` of these tasks; outputs of one that was spread over items are a list."""
        unknown = [name for name in names if name not in scope.results]
        if unknown:
            results = await self._engine.list_results(scope.run_id, unknown)
            for name in unknown:
                scope.results[name] = _describe(name, results)
        return {name: scope.results[name] for name in names}


def _describe(name: str, results: list[Result]) -> dict[str, Any]:
    own = next((result for result in results if result.name == name and result.parent is None), None)
    own = own or next((result for result in results if result.name == name), None)
    parts = [_read(result) for result in results if result.parent == name]
    if own is None:
        return {"outputs": None, "skipped": False}
    output = _read(own)
    # One that a person skips lets the others go on.
    skipped = output.get("skipped", False) or (own.trigger == "skip" and own.by_worker)
    outputs = [part.get("outputs") for part in parts] if "items" in output else output.get("outputs")
    return {"outputs": outputs, "skipped": bool(skipped)}


def _read(result: Result) -> dict[str, Any]:
    output = msgspec.json.decode(result.output) if result.output else None
    return output if isinstance(output, dict) else {"outputs": output}
