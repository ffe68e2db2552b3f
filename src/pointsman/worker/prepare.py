"""From a claim to a job: evaluates expressions, decides whether to skip the task, and builds its environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace
from pydantic import ValidationError

from pointsman.engine.budgets import NO_USAGE
from pointsman.engine.claims import Claim
from pointsman.errors import ExpressionFailed
from pointsman.flows.build import build_subtasks
from pointsman.flows.expressions import evaluate
from pointsman.flows.items import list_items
from pointsman.flows.kinds import MERGES
from pointsman.flows.model import FlowTask, read_task
from pointsman.flows.results import describe_run
from pointsman.flows.templates import refers_to, render_task, render_text
from pointsman.settings import Settings, ToolProfile
from pointsman.store.rows import Attempt
from pointsman.worker.cost_file import CostFile
from pointsman.worker.inside_tools import InsideTools
from pointsman.worker.lease import Lease
from pointsman.worker.left_files import list_added, read_subtasks
from pointsman.worker.log import AttemptLog, log_path
from pointsman.worker.merging import find_work
from pointsman.worker.runner import OUTPUT_SUFFIX, SUBTASKS_SUFFIX, Job, Progress, build_environment
from pointsman.worker.runners.python import CallTask
from pointsman.worker.scope import RunScope, Scopes
from pointsman.worker.verdict import Completed, Failed, FanOut, Skipped
from pointsman.worker.worktrees import Place
from pointsman.world import Clock

if TYPE_CHECKING:
    from pointsman.worker.runners.merge import MergeTask


@dataclass(frozen=True, slots=True)
class Preparation:
    """Prepares the claims of a worker."""

    settings: Settings
    scopes: Scopes
    worker_id: str
    environ: Mapping[str, str]
    """The environment of the worker."""
    inherited: Mapping[str, str]
    """The part of it that every task inherits."""
    clock: Clock
    tools: Mapping[str, ToolProfile]

    async def prepare(self, claim: Claim, lease: Lease) -> Job | Skipped | FanOut | Failed:
        """A job that is ready to start, or the verdict if there is nothing to start."""
        run = await self.scopes.of_run(claim.run_id)
        try:
            task = read_task(await self.scopes.complete_payload(run, claim.payload))
        except ValidationError as error:
            if unknown := [str(each["loc"][0]) for each in error.errors() if each["type"] == "extra_forbidden"]:
                return Failed(f"This worker has no runner for `{unknown[0]}`. Install the package that has it.", retryable=True)
            return Failed(f"The payload is not a task of a flow: {_brief(error)}", retryable=False)
        if claim.tool and claim.tool not in self.tools:
            message = (
                f"The settings of this worker have no tool '{claim.tool}'. Add [tools.{claim.tool}] to its pointsman.toml."
            )
            return Failed(message, retryable=True)
        if task.kind == MERGES and (verdict := await self._explain_missing(run, cast("MergeTask", task))):
            return verdict
        try:
            scope = await self._build_scope(run, task)
            if reason := _reason_to_skip(task, scope):
                return Skipped(reason)
            if task.foreach is not None:
                items = list_items(task.foreach, scope)
                shown = claim.is_reviewed or task.shows_changes
                parts = build_subtasks(claim.name, claim.task_id, task, items, tools=self.tools, is_reviewed=shown)
                return FanOut(tuple(parts))
            job = self._build_job(claim, lease, render_task(task, scope), run, scope)
            return await self._add_words(job)
        except ExpressionFailed as error:
            return Failed(f"An expression cannot be evaluated: {error}", retryable=False)

    async def _add_words(self, job: Job) -> Job:
        """The job with what people have said to earlier attempts."""
        task_id = job.claim.task_id
        if job.claim.answer is not None:
            job = replace(job, answers=await self.scopes.find_answers(task_id))
        if job.task.reports_progress and job.claim.epoch > 1:
            occasion = await self.scopes.find_occasion(job.claim, partial(self._has_heard, job.claim))
            usage = await self.scopes.sum_session(task_id, job.claim.session_id) if job.claim.session_id else NO_USAGE
            dropped = await self._find_dropped(job.claim) if occasion.broken_off else ()
            job = replace(job, occasion=occasion, session_usage=usage, dropped_subtasks=dropped)
        return job

    async def _find_dropped(self, claim: Claim) -> tuple[str, ...]:
        """The subtasks that the last attempt had added, and that nobody has accepted."""
        last = log_path(self.settings.directory, claim.run_id, claim.name, claim.epoch - 1).removesuffix(".log")
        added = list_added(last + SUBTASKS_SUFFIX)
        known = await self.scopes.list_names(claim) if added else ()
        return tuple(sorted(name for name in added if f"{claim.name}/{name}" not in known))

    async def _explain_missing(self, run: RunScope, task: MergeTask) -> Skipped | Failed | None:
        """Why there is nothing to merge on this machine, if so: all tasks were skipped, or they have worked elsewhere."""
        project = run.directory or self.settings.directory
        if find_work(project, run.run_id, task.merges or None):
            return None
        if not await self.scopes.have_worked(run, task.merges or None):
            return Skipped("no task has worked in its worktree")
        message = f"There is no worktree of this run in {project} on this machine, but its tasks have worked in one."
        return Failed(f"{message} Merge it where they ran: pointsman worktree merge {run.run_id}", retryable=True)

    def make_tools(self, job: Job, refusal: Callable[[], str | None]) -> InsideTools:
        """The tools by which the work of a job reaches its worker."""
        return InsideTools(
            job, self.settings, partial(self._read_upstream, job), partial(self.scopes.find_machine, job.claim), refusal
        )

    async def _read_upstream(self, job: Job) -> dict[str, dict[str, Any]]:
        """The results of the tasks that a task needs; an item of a `foreach` needs what the whole of it needs."""
        run = await self.scopes.of_run(job.claim.run_id)
        needs = (*job.task.needs, *self.scopes.list_needs_of_parent(run, job.claim.payload))
        return await self.scopes.look_up(run, needs)

    def _has_heard(self, claim: Claim, attempt: Attempt) -> bool | None:
        """Whether the agent of a former attempt has heard what it was told; None if its program has written nothing."""
        from pointsman.worker.agent_log import find_reader, has_heard  # all agents, which most workers do not need

        log = Path(log_path(self.settings.directory, claim.run_id, claim.name, attempt.epoch))
        reader = find_reader(log, self.settings.agents)
        if reader is None:  # its log is on another machine, if there is one
            return True if attempt.log_path else None
        return has_heard(log, reader)

    def take_subtasks(self, job: Job, completed: Completed) -> Completed | Failed:
        """The verdict with the subtasks that the attempt has added."""
        shared = {"shows_changes": True} if job.claim.is_reviewed or job.task.shows_changes else {}
        subtasks, problem = read_subtasks(job.stem + SUBTASKS_SUFFIX, job.claim.name, self.tools, job.place, shared)
        if problem:
            return Failed(f"It succeeded, but {problem}", retryable=False, exit_code=completed.exit_code)
        return replace(completed, subtasks=subtasks) if subtasks else completed

    async def _build_scope(self, run: RunScope, task: FlowTask) -> dict[str, Any]:
        names = {*task.needs, *refers_to(task)}
        scope: dict[str, Any] = {
            "inputs": run.payload.get("inputs", {}),
            "run": describe_run(run.run_id, run.name, run.payload),
            "tasks": await self.scopes.look_up(run, names) if names else {},
        }
        if task.index is not None:
            scope |= {"item": task.item, "index": task.index}
        return scope

    def _build_job(self, claim: Claim, lease: Lease, task: FlowTask, run: RunScope, scope: Mapping[str, Any]) -> Job:
        settings = self.settings
        project = run.directory or settings.directory
        path = log_path(settings.directory, claim.run_id, claim.name, claim.epoch)
        stem = path.removesuffix(".log")
        output_path = stem + OUTPUT_SUFFIX
        cost_file = CostFile(f"{stem}.cost")
        tool = self.tools.get(claim.tool) if claim.tool else None
        flow_env = {name: render_text(value, scope) for name, value in run.payload.get("env", {}).items()}
        passed = {name: self.environ[name] for name in (tool.pass_env if tool else ()) if name in self.environ}
        named = {**passed, **flow_env, **(tool.env if tool else {}), **task.env}
        env = build_environment(
            self.inherited,
            claim,
            named=named,
            output_path=output_path,
            cost_path=cost_file.path,
            log_dir=os.path.dirname(stem),  # noqa: PTH120 - of text, many times a second
            worker_id=self.worker_id,
        )
        if tool and "expected_exit_codes" not in task.model_fields_set:
            task = task.model_copy(update={"expected_exit_codes": tool.expected_exit_codes})
        return Job(
            claim=claim,
            lease=lease,
            task=task,
            tool=tool,
            env=env,
            cwd=project / task.cwd if task.cwd else project,
            place=_find_place(claim, task, run, project, scope),
            output_path=output_path,
            log=AttemptLog(path, settings.log_bytes),
            cost_file=cost_file,
            progress=Progress() if task.reports_progress else None,
            agent=settings.agents.get(getattr(task, "agent", "")),
            prices=settings.prices,
            has_budget=claim.budget_usd is not None or run.has_budget,
            ends_by=run.ends_by,
            run_timeout=run.timeout,
            prepared_at=self.clock.now().timestamp() if task.outputs else 0.0,
            stdout_wanted=task.outputs is not None and task.outputs.from_ == "stdout",
            grace_seconds=settings.grace_seconds,
        )


def _find_place(claim: Claim, task: FlowTask, run: RunScope, project: Path, scope: Mapping[str, Any]) -> Place | None:
    """The worktree that a task works in: its own, or that of its run. A thread of the worker works in none."""
    own, shared = task.worktree, run.payload.get("worktree", {})
    if task.kind == MERGES or (isinstance(task, CallTask) and task.mode == "thread") or (own and not own.wanted):
        return None
    if not own and not shared:
        return None
    keys = own.model_dump(mode="json") if own else {key: render_text(value, scope) for key, value in shared.items()}
    name = (task.worktree_of or claim.name) if own else None
    return Place(directory=str(project), run_id=run.run_id, title=run.name, task=name, **keys)


def _reason_to_skip(task: FlowTask, scope: Mapping[str, Any]) -> str | None:
    """Its own condition decides; without one, a task is skipped if a task that it needs was skipped."""
    if task.when is not None:
        return None if evaluate(task.when, scope) else f"its condition is false: {task.when}"
    return next((f"{name} was skipped" for name in task.needs if scope["tasks"][name]["skipped"]), None)


def _brief(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'the task'}: {each['msg']}" for each in error.errors()[:3])
