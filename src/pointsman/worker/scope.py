"""What the expressions of a task may refer to: the inputs of its run, and the results of other tasks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from pointsman.engine.budgets import Usage
from pointsman.engine.claims import Claim
from pointsman.engine.engine import Engine
from pointsman.engine.policy import read_policy
from pointsman.flows import build
from pointsman.flows.results import describe_result
from pointsman.kernel.machine import Machine, Phase
from pointsman.store.rows import ZERO_USD, Attempt, Transition
from pointsman.worker.runner import Occasion
from pointsman.world import Clock

MAX_RUNS = 100


@dataclass(slots=True)
class RunScope:
    """What a run was submitted with, and the results of its tasks so far; a result does not change once the task succeeded."""

    run_id: str
    name: str
    payload: dict[str, Any]
    directory: Path | None = None
    """The project that its flow was submitted from."""
    ends_by: float | None = None
    """When it reaches its `timeout`, by the boot clock: that of the database may step."""
    timeout: float | None = None
    has_budget: bool = False
    """It, or its tenant."""
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    parents: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By id: the payloads of tasks whose subtasks were claimed."""


class Scopes:
    """The scopes of the runs that a worker has seen recently."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._runs: OrderedDict[str, RunScope] = OrderedDict()
        self._reads: dict[str, asyncio.Task[RunScope]] = {}
        """Tasks that are claimed together share one read of their run."""

    async def of_run(self, run_id: str) -> RunScope:
        scope = self._runs.get(run_id)
        if scope is not None:
            return scope
        read = self._reads.get(run_id)
        if read is None:
            read = self._reads[run_id] = asyncio.create_task(self._read_run(run_id))
            read.add_done_callback(lambda _: self._reads.pop(run_id))
        return await asyncio.shield(read)

    async def _read_run(self, run_id: str) -> RunScope:
        run = await self._engine.get_run(run_id)
        payload = msgspec.json.decode(run.payload)
        payload = payload if isinstance(payload, dict) else {}
        directory = Path(payload["directory"]) if "directory" in payload else None
        timeout = read_policy(run.policy).timeout_seconds
        ends_by = None
        if timeout is not None:
            elapsed = await self._engine.now() - run.created_at
            ends_by = self._clock.boottime() + timeout - elapsed.total_seconds()
        account = await self._engine.for_tenant(run.tenant).get_account()
        has_budget = run.budget_usd is not None or account.budget_usd is not None
        scope = self._runs[run_id] = RunScope(run_id, run.name, payload, directory, ends_by, timeout, has_budget)
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)
        return scope

    async def complete_payload(self, scope: RunScope, payload: Any) -> Any:
        """A payload with what a subtask shares with the other subtasks of its parent."""
        parent_id = build.parent_of(payload)
        if parent_id is None:
            return payload
        if parent_id not in scope.parents:
            parent = await self._engine.get_task(parent_id)
            assert isinstance(parent.payload, str), "it was read with its payload"
            scope.parents[parent_id] = msgspec.json.decode(parent.payload)
        return build.complete_payload(payload, scope.parents[parent_id])

    def list_needs_of_parent(self, scope: RunScope, payload: Any) -> tuple[str, ...]:
        """The names of the tasks that the parent of an item needs."""
        parent = scope.parents.get(build.parent_of(payload) or "", {})
        return tuple(parent.get("needs", ()))

    async def find_machine(self, claim: Claim) -> Machine:
        """The machine that a claimed task follows."""
        return await self._engine.get_machine(await self._engine.for_tenant(claim.tenant).get_task(claim.task_id))

    async def find_answers(self, task_id: str) -> dict[str, str]:
        """By question: what people have answered to a task. The audit trail has them all, the task only the last one."""
        moves = (move.details for move in await self._engine.list_history(task_id))
        return {str(each["question"]): str(each["answer"]) for each in moves if {"question", "answer"} <= each.keys()}

    async def find_occasion(self, claim: Claim, has_heard: Callable[[Attempt], bool | None]) -> Occasion:
        """What happened since the agent last said something, as far as the next attempt in its session has to know.

        An attempt that died before its agent said anything may have told it nothing: what it should have said still counts.
        `has_heard` is None for an attempt whose program has not even started to write.
        """
        attempts = {attempt.epoch: attempt for attempt in await self._engine.list_attempts(claim.task_id)}
        broken_off: Literal["timeout", "interrupted"] | None = None
        for move in reversed((await self._engine.list_history(claim.task_id))[:-1]):  # the last move is the claim
            if "answer" in move.details:
                return Occasion("answer", broken_off)
            attempt = attempts.get(move.details.get("epoch", 0))
            if attempt is not None:
                heard = has_heard(attempt)
                if heard or heard is False:
                    broken_off = broken_off or "interrupted"
                if heard:
                    return Occasion(None, broken_off)
                if attempt.session_id not in (None, claim.session_id):
                    break
            signals = await self._find_signals(move)
            if "reject" in signals:
                return Occasion("comment", broken_off)
            if "expire" in signals:
                broken_off = "timeout"
        return Occasion("prompt", broken_off)

    async def _find_signals(self, move: Transition) -> set[str | None]:
        """The signals that a move may have come from."""
        machine = await self._engine.get_machine(move)
        ways = [each for each in machine.transitions if each.trigger == move.trigger]
        return {each.signal for each in ways if (each.from_state, each.to_state) == (move.from_state, move.to_state)}

    async def list_names(self, claim: Claim) -> set[str]:
        """The names of all tasks of the run."""
        return {task.name for task in await self._engine.for_tenant(claim.tenant).list_tasks_in_brief(claim.run_id)}

    async def sum_session(self, task_id: str, session_id: str) -> Usage:
        """What the attempts of a task have used in a session."""
        attempts = [each for each in await self._engine.list_attempts(task_id) if each.session_id == session_id]
        return Usage(
            sum((each.cost_usd for each in attempts), ZERO_USD),
            sum(each.tokens_in for each in attempts),
            sum(each.tokens_out for each in attempts),
        )

    async def have_worked(self, scope: RunScope, name: str | None) -> bool:
        """Whether a task, or any task of the run, has done something: its condition did not exclude it."""
        names = [name] if name is not None else await self._list_done(scope.run_id)
        results = await self.look_up(scope, names)
        return any(not result["skipped"] and result["outputs"] != [] for result in results.values())

    async def _list_done(self, run_id: str) -> list[str]:
        tasks = await self._engine.list_tasks_in_brief(run_id)
        return [task.name for task in tasks if task.phase == Phase.DONE and not task.is_gate]

    async def look_up(self, scope: RunScope, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """`outputs` and `skipped` of these tasks; the outputs of a task with subtasks are a list."""
        unknown = [name for name in names if name not in scope.results]
        if unknown:
            results = await self._engine.list_results(scope.run_id, unknown)
            for name in unknown:
                scope.results[name] = describe_result(name, results)
        return {name: scope.results[name] for name in names}
