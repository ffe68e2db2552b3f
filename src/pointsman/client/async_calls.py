"""The routes of the server as methods. Written from the declarations of the routes by `make docs`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, Literal

from pointsman.client.answers import (
    Account,
    ArtifactList,
    ArtifactPartAnswer,
    AttemptAnswer,
    AttemptPage,
    BreakerAnswer,
    BreakerPage,
    BudgetView,
    ClaimList,
    DoctorReport,
    EventPage,
    FlowCheckAnswer,
    HeartbeatAnswer,
    HistoryPage,
    InboxItem,
    InboxPage,
    IssuedKeyAnswer,
    KeyPage,
    KeyView,
    LifecycleAnswer,
    LogPartAnswer,
    MachinePage,
    MachineSummary,
    MachineView,
    NoticePage,
    NoticeView,
    NotificationPage,
    NotificationView,
    Quota,
    RetriedNotifications,
    RunAnswer,
    RunArtifactPage,
    RunPage,
    RunTaskPage,
    RunView,
    SignaledRuns,
    TaskAnswer,
    TaskArtifacts,
    TaskList,
    TaskPage,
    TemplateAnswer,
    TemplatePage,
    Tenant,
    TenantPage,
    TenantView,
    TicketAnswer,
    TransitionAnswer,
    TransitionResult,
    WakeupAnswer,
    WorkerAnswer,
    WorkerDetail,
    WorkerPage,
)
from pointsman.client.requests import Backoff, NewTask, RunFilter
from pointsman.client.session import iterate_async
from pointsman.client.threads import AsyncCalls


class AsyncRoutes(AsyncCalls):
    """A method for each route of /api/v1."""

    async def submit_run(
        self,
        *,
        name: str,
        tasks: Sequence[NewTask] = (),
        lifecycle: str = "standard",
        ordered: bool = False,
        task_count: int | None = None,
        autostart: bool = True,
        payload: Any = None,
        parent_run_id: str | None = None,
        worker_count: int = 1,
        workspace: str | None = None,
        checks: bool = False,
        final_task: NewTask | None = None,
        last_tasks: Sequence[NewTask] = (),
        max_retries: int = 0,
        backoff: Backoff | None = None,
        timeout_seconds: float | None = None,
        budget_usd: Decimal | None = None,
        tags: Collection[str] = (),
        reason: str | None = None,
        request_id: str | None = None,
    ) -> RunAnswer:
        """Submit a run with its tasks, whose payloads are for workers of your own; for flows, see `run_flow`. Needs the
        scope `submit`.

        name: What people call it.
        tasks: Its tasks, in their order.
        lifecycle: The lifecycle that it and its tasks follow.
        ordered: Each task waits for the one before it.
        task_count: How many tasks there will be; it begins when all of them are added.
        autostart: Its tasks begin without being asked.
        payload: Kept with the run; any JSON up to a megabyte.
        parent_run_id: The run that this one belongs to.
        worker_count: How many workers it gets for itself, if its lifecycle allocates.
        workspace: The workspace of these workers; any, if there is none.
        checks: It waits for somebody to report its final checks when its tasks are done.
        final_task: Checks it when all other tasks have succeeded: it is added then.
        last_tasks: Added one after the other when all other tasks have succeeded, before the run completes.
        max_retries: How often it is retried after a failure.
        backoff: How long it waits between retries.
        timeout_seconds: How long all of it may take.
        budget_usd: What all its tasks together may spend.
        tags: Words by which lists of runs can be filtered.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.submit_run,
            name=name,
            tasks=tasks,
            lifecycle=lifecycle,
            ordered=ordered,
            task_count=task_count,
            autostart=autostart,
            payload=payload,
            parent_run_id=parent_run_id,
            worker_count=worker_count,
            workspace=workspace,
            checks=checks,
            final_task=final_task,
            last_tasks=last_tasks,
            max_retries=max_retries,
            backoff=backoff,
            timeout_seconds=timeout_seconds,
            budget_usd=budget_usd,
            tags=tags,
            reason=reason,
            request_id=request_id,
        )

    async def run_flow(
        self,
        *,
        template: str | None = None,
        flow: str | None = None,
        inputs: dict[str, Any] | None = None,
        tags: Collection[str] = (),
        reason: str | None = None,
        request_id: str | None = None,
    ) -> RunAnswer:
        """Submit a run of a flow. Needs the scope `submit`.

        template: The name of a stored template; or send a `flow`.
        flow: The flow, as the text of a flow file (YAML or JSON); or name a `template`.
        inputs: The inputs of the flow, by name.
        tags: Words by which lists of runs can be filtered, besides those of the flow.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.run_flow, template=template, flow=flow, inputs=inputs, tags=tags, reason=reason, request_id=request_id
        )

    async def check_flow(self, *, flow: str) -> FlowCheckAnswer:
        """Check a flow: every finding with its line and column. It changes nothing. Needs the scope `read`.

        flow: The flow, as the text of a flow file (YAML or JSON).
        """
        return await self._run(self._client.check_flow, flow=flow)

    async def list_templates(self, *, limit: int = 100, after: str | None = None) -> TemplatePage:
        """List the stored flows. Needs the scope `read`.

        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_templates, limit=limit, after=after)

    def iterate_templates(self, *, after: str | None = None) -> AsyncIterator[TemplateAnswer]:
        """List the stored flows. Needs the scope `read`.

        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_templates), after)

    async def get_template(self, name: str) -> TemplateAnswer:
        """Show a stored flow. Needs the scope `read`.

        name: The name, as lists and other answers have it.
        """
        return await self._run(self._client.get_template, name)

    async def store_template(self, name: str, *, text: str, request_id: str | None = None) -> TemplateAnswer:
        """Store a flow by a name, which requests can give instead of the flow. Runs that were submitted keep theirs.
        Needs the scope `submit`.

        name: The name of the template.
        text: The flow, as the text of a flow file (YAML or JSON).
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.store_template, name, text=text, request_id=request_id)

    async def list_runs(
        self,
        *,
        state: str | None = None,
        phase: Literal["held", "queued", "active", "done"] | None = None,
        outcome: Literal["success", "failure", "canceled"] | None = None,
        lifecycle: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        text: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> RunPage:
        """List runs, newest first. Needs the scope `read`.

        state: Only runs in this state.
        phase: Only runs in this phase.
        outcome: Only runs that ended like this.
        lifecycle: Only runs that follow this lifecycle.
        name: Only runs of this name, which is that of their flow.
        tag: Only runs with this tag.
        text: Only runs with this text in their id, name, reason or error. Case matters.
        created_after: Only runs that were created at this time or later.
        created_before: Only runs that were created before this time.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(
            self._client.list_runs,
            state=state,
            phase=phase,
            outcome=outcome,
            lifecycle=lifecycle,
            name=name,
            tag=tag,
            text=text,
            created_after=created_after,
            created_before=created_before,
            limit=limit,
            after=after,
        )

    def iterate_runs(
        self,
        *,
        state: str | None = None,
        phase: Literal["held", "queued", "active", "done"] | None = None,
        outcome: Literal["success", "failure", "canceled"] | None = None,
        lifecycle: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        text: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        after: str | None = None,
    ) -> AsyncIterator[RunAnswer]:
        """List runs, newest first. Needs the scope `read`.

        state: Only runs in this state.
        phase: Only runs in this phase.
        outcome: Only runs that ended like this.
        lifecycle: Only runs that follow this lifecycle.
        name: Only runs of this name, which is that of their flow.
        tag: Only runs with this tag.
        text: Only runs with this text in their id, name, reason or error. Case matters.
        created_after: Only runs that were created at this time or later.
        created_before: Only runs that were created before this time.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(
            partial(
                self.list_runs,
                state=state,
                phase=phase,
                outcome=outcome,
                lifecycle=lifecycle,
                name=name,
                tag=tag,
                text=text,
                created_after=created_after,
                created_before=created_before,
            ),
            after,
        )

    async def signal_runs(
        self,
        *,
        action: Literal["cancel", "pause", "resume", "retry"],
        filter: RunFilter,
        reason: str | None = None,
        dry_run: bool = False,
        limit: int = 100,
        after: str | None = None,
        request_id: str | None = None,
    ) -> SignaledRuns:
        """Cancel, pause, resume or retry all runs that fulfill a filter, or say what that would do. Needs the scope
        `operate`.

        action: What to do with each run.
        filter: Which runs: at least one condition.
        reason: Why; kept in the audit trail.
        dry_run: Say what would happen to each run, and change nothing.
        limit: At most so many runs, with at most 10,000 unfinished tasks together.
        after: `next` of the answer before.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.signal_runs,
            action=action,
            filter=filter,
            reason=reason,
            dry_run=dry_run,
            limit=limit,
            after=after,
            request_id=request_id,
        )

    async def get_run(self, run_id: str) -> RunAnswer:
        """Show a run. Needs the scope `read`.

        run_id: The id of a run.
        """
        return await self._run(self._client.get_run, run_id)

    async def view_run(self, run_id: str) -> RunView:
        """Show a run with its tasks, why they wait, and what a person can do next, with its effect. Needs the scope
        `read`.

        run_id: The id of a run.
        """
        return await self._run(self._client.view_run, run_id)

    async def list_run_tasks(self, run_id: str, *, limit: int = 100, after: str | None = None) -> RunTaskPage:
        """List the tasks of a run, in its order. Needs the scope `read`.

        run_id: The id of a run.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_run_tasks, run_id, limit=limit, after=after)

    def iterate_run_tasks(self, run_id: str, *, after: str | None = None) -> AsyncIterator[TaskAnswer]:
        """List the tasks of a run, in its order. Needs the scope `read`.

        run_id: The id of a run.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_run_tasks, run_id), after)

    async def add_tasks(
        self, run_id: str, *, tasks: Sequence[NewTask], reason: str | None = None, request_id: str | None = None
    ) -> TaskList:
        """Add tasks to a run that has not ended. Needs the scope `submit`.

        run_id: The run to add to.
        tasks: At least one task.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.add_tasks, run_id, tasks=tasks, reason=reason, request_id=request_id)

    async def signal_run(
        self, run_id: str, *, signal: str, output: Any = None, reason: str | None = None, request_id: str | None = None
    ) -> RunAnswer:
        """Send a run what a person decides: cancel, pause, resume, retry … Needs the scope `operate`.

        run_id: The run.
        signal: One of: cancel, pause, resume, retry, ready, checks_passed, checks_failed.
        output: The result of the run; any JSON.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.signal_run, run_id, signal=signal, output=output, reason=reason, request_id=request_id
        )

    async def approve_run(self, run_id: str, *, reason: str | None = None, request_id: str | None = None) -> RunAnswer:
        """Approve every open gate of a run; with none open, nothing happens. Needs the scope `approve`.

        run_id: The run.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.approve_run, run_id, reason=reason, request_id=request_id)

    async def start_run(self, run_id: str, *, reason: str | None = None, request_id: str | None = None) -> RunAnswer:
        """Start every task of a run that waits to be started. Needs the scope `operate`.

        run_id: The run.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.start_run, run_id, reason=reason, request_id=request_id)

    async def get_budget(self, run_id: str) -> BudgetView:
        """Show what a run may spend, and what it has spent. Needs the scope `read`.

        run_id: The id of a run.
        """
        return await self._run(self._client.get_budget, run_id)

    async def set_budget(
        self, run_id: str, *, budget_usd: Decimal | None, reason: str | None = None, request_id: str | None = None
    ) -> RunAnswer:
        """Set what a run may spend. Needs the scope `operate`.

        run_id: The run.
        budget_usd: What all its tasks together may spend; null for no limit.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.set_budget, run_id, budget_usd=budget_usd, reason=reason, request_id=request_id)

    async def list_run_history(self, run_id: str, *, limit: int = 100, after: str | None = None) -> HistoryPage:
        """List the transitions of a run. Needs the scope `read`.

        run_id: The id of a run.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_run_history, run_id, limit=limit, after=after)

    def iterate_run_history(self, run_id: str, *, after: str | None = None) -> AsyncIterator[TransitionAnswer]:
        """List the transitions of a run. Needs the scope `read`.

        run_id: The id of a run.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_run_history, run_id), after)

    async def search_tasks(
        self,
        *,
        state: str | None = None,
        phase: Literal["held", "queued", "active", "done"] | None = None,
        outcome: Literal["success", "failure", "canceled"] | None = None,
        lifecycle: str | None = None,
        flow: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        text: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> TaskPage:
        """List tasks of all runs, those of the newest run first, without deleted ones. Needs the scope `read`.

        state: Only tasks in this state.
        phase: Only tasks in this phase.
        outcome: Only tasks that ended like this.
        lifecycle: Only tasks that follow this lifecycle.
        flow: Only tasks of runs of this name, which is that of their flow.
        name: Only tasks of this name.
        tag: Only tasks of runs with this tag.
        text: Only tasks with this text in their id, name, reason or error. Case matters.
        created_after: Only tasks of runs that were created at this time or later.
        created_before: Only tasks of runs that were created before this time.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(
            self._client.search_tasks,
            state=state,
            phase=phase,
            outcome=outcome,
            lifecycle=lifecycle,
            flow=flow,
            name=name,
            tag=tag,
            text=text,
            created_after=created_after,
            created_before=created_before,
            limit=limit,
            after=after,
        )

    def iterate_tasks(
        self,
        *,
        state: str | None = None,
        phase: Literal["held", "queued", "active", "done"] | None = None,
        outcome: Literal["success", "failure", "canceled"] | None = None,
        lifecycle: str | None = None,
        flow: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        text: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        after: str | None = None,
    ) -> AsyncIterator[TaskAnswer]:
        """List tasks of all runs, those of the newest run first, without deleted ones. Needs the scope `read`.

        state: Only tasks in this state.
        phase: Only tasks in this phase.
        outcome: Only tasks that ended like this.
        lifecycle: Only tasks that follow this lifecycle.
        flow: Only tasks of runs of this name, which is that of their flow.
        name: Only tasks of this name.
        tag: Only tasks of runs with this tag.
        text: Only tasks with this text in their id, name, reason or error. Case matters.
        created_after: Only tasks of runs that were created at this time or later.
        created_before: Only tasks of runs that were created before this time.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(
            partial(
                self.search_tasks,
                state=state,
                phase=phase,
                outcome=outcome,
                lifecycle=lifecycle,
                flow=flow,
                name=name,
                tag=tag,
                text=text,
                created_after=created_after,
                created_before=created_before,
            ),
            after,
        )

    async def get_task(self, task_id: str) -> TaskAnswer:
        """Show a task. Needs the scope `read`.

        task_id: The id of a task.
        """
        return await self._run(self._client.get_task, task_id)

    async def list_attempts(self, task_id: str, *, limit: int = 100, after: str | None = None) -> AttemptPage:
        """List the attempts of a task. Needs the scope `read`.

        task_id: The id of a task.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_attempts, task_id, limit=limit, after=after)

    def iterate_attempts(self, task_id: str, *, after: str | None = None) -> AsyncIterator[AttemptAnswer]:
        """List the attempts of a task. Needs the scope `read`.

        task_id: The id of a task.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_attempts, task_id), after)

    async def list_task_history(self, task_id: str, *, limit: int = 100, after: str | None = None) -> HistoryPage:
        """List the transitions of a task. Needs the scope `read`.

        task_id: The id of a task.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_task_history, task_id, limit=limit, after=after)

    def iterate_task_history(self, task_id: str, *, after: str | None = None) -> AsyncIterator[TransitionAnswer]:
        """List the transitions of a task. Needs the scope `read`.

        task_id: The id of a task.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_task_history, task_id), after)

    async def signal_task(
        self,
        task_id: str,
        *,
        signal: str,
        answer: str | None = None,
        comment: str | None = None,
        epoch: int | None = None,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> TaskAnswer:
        """Send a task what a person decides: cancel, reset, retry, resume; with the scope `approve`: approve, accept,
        answer, reject, skip. Needs the scope `operate`.

        task_id: The task.
        signal: One of: approve, accept, answer, reject, cancel, skip, reset, retry, resume, ready.
        answer: The answer to its question, with the signal answer.
        comment: What the next attempt should know, with the signal reject.
        epoch: The attempt that it is about; refused when there is a later one.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.signal_task,
            task_id,
            signal=signal,
            answer=answer,
            comment=comment,
            epoch=epoch,
            reason=reason,
            request_id=request_id,
        )

    async def request_transition(
        self,
        *,
        kind: Literal["run", "task", "worker", "breaker"],
        entity_id: str,
        to_state: str | None = None,
        trigger: str | None = None,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> TransitionResult:
        """Move a run, a task or a worker by a trigger, or to a state, as document 000 asks for it. A task needs the
        scope `approve`. Needs the scope `operate`.

        kind: What it is: run, task or worker.
        entity_id: Its id.
        to_state: The state to move it to; or say a trigger.
        trigger: The trigger to pull; or say a state.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.request_transition,
            kind=kind,
            entity_id=entity_id,
            to_state=to_state,
            trigger=trigger,
            reason=reason,
            request_id=request_id,
        )

    async def list_history(self, entity_id: str, *, limit: int = 100, after: str | None = None) -> HistoryPage:
        """List the transitions of a run, a task, a worker or a breaker. Needs the scope `read`.

        entity_id: The id of a run, a task, a worker or a circuit breaker.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_history, entity_id, limit=limit, after=after)

    def iterate_history(self, entity_id: str, *, after: str | None = None) -> AsyncIterator[TransitionAnswer]:
        """List the transitions of a run, a task, a worker or a breaker. Needs the scope `read`.

        entity_id: The id of a run, a task, a worker or a circuit breaker.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_history, entity_id), after)

    async def write_log(
        self, task_id: str, attempt: str, *, offset: int, data: str, part: Literal["head", "older", "newest", "agent"] = "head"
    ) -> LogPartAnswer:
        """Send a part of the log of an attempt that runs on a machine without access to the files of the server. Needs
        the scope `worker`.

        task_id: The id of a task.
        attempt: The number of an attempt of the task, from 1.
        offset: Where the bytes belong in this part.
        data: The bytes, as Base64; at most a megabyte of them.
        part: Its beginning; of a log that is longer than its limit, the two files of its end; or the name of its coding
            agent.
        """
        return await self._run(self._client.write_log, task_id, attempt, offset=offset, data=data, part=part)

    async def list_run_artifacts(self, run_id: str, *, limit: int = 100, after: str | None = None) -> RunArtifactPage:
        """List the artifacts of the tasks of a run: the files that the last attempt of each has left. Needs the scope
        `read`.

        run_id: The id of a run.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_run_artifacts, run_id, limit=limit, after=after)

    def iterate_run_artifacts(self, run_id: str, *, after: str | None = None) -> AsyncIterator[TaskArtifacts]:
        """List the artifacts of the tasks of a run: the files that the last attempt of each has left. Needs the scope
        `read`.

        run_id: The id of a run.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_run_artifacts, run_id), after)

    async def list_artifacts(self, task_id: str, attempt: str) -> ArtifactList:
        """List the artifacts of an attempt: the files that it has left in `$POINTSMAN_ARTIFACTS`. Needs the scope
        `read`.

        task_id: The id of a task.
        attempt: The number of an attempt of the task, from 1.
        """
        return await self._run(self._client.list_artifacts, task_id, attempt)

    async def write_artifact(self, task_id: str, attempt: str, *, name: str, offset: int, data: str) -> ArtifactPartAnswer:
        """Send a part of an artifact of an attempt that runs on a machine without access to the files of the server.
        Needs the scope `worker`.

        task_id: The id of a task.
        attempt: The number of an attempt of the task, from 1.
        name: The path of the artifact, such as `report/index.html`.
        offset: Where the bytes belong in it.
        data: The bytes, as Base64; at most a megabyte of them. Without any, the artifact is an empty file.
        """
        return await self._run(self._client.write_artifact, task_id, attempt, name=name, offset=offset, data=data)

    async def list_workers(
        self,
        *,
        state: str | None = None,
        phase: Literal["held", "queued", "active", "done"] | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> WorkerPage:
        """List workers, those that have left included, and what they hold. Needs the scope `read`.

        state: Only workers in this state.
        phase: Only workers in this phase; those that have left are `done`.
        name: Only workers of this name.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_workers, state=state, phase=phase, name=name, limit=limit, after=after)

    def iterate_workers(
        self,
        *,
        state: str | None = None,
        phase: Literal["held", "queued", "active", "done"] | None = None,
        name: str | None = None,
        after: str | None = None,
    ) -> AsyncIterator[WorkerDetail]:
        """List workers, those that have left included, and what they hold. Needs the scope `read`.

        state: Only workers in this state.
        phase: Only workers in this phase; those that have left are `done`.
        name: Only workers of this name.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_workers, state=state, phase=phase, name=name), after)

    async def register_worker(
        self,
        *,
        name: str,
        capabilities: Collection[str] = (),
        workspace_id: str | None = None,
        max_concurrent_tasks: int = 1,
        lease_seconds: float = 30.0,
        lifecycle: str = "standard",
        only_run_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        request_id: str | None = None,
    ) -> WorkerAnswer:
        """Register a worker. Needs the scope `worker`.

        name: What people call it.
        capabilities: What it can do; tasks that ask for more go to others.
        workspace_id: The workspace that it belongs to; jobs of a workspace get only workers of it.
        max_concurrent_tasks: How many tasks it may hold at once.
        lease_seconds: It is lost when it has been silent for so long.
        lifecycle: The lifecycle that it follows; it may serve tasks of any.
        only_run_id: The only run that it works for.
        metadata: What it says of itself, for people and programs; any JSON object.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.register_worker,
            name=name,
            capabilities=capabilities,
            workspace_id=workspace_id,
            max_concurrent_tasks=max_concurrent_tasks,
            lease_seconds=lease_seconds,
            lifecycle=lifecycle,
            only_run_id=only_run_id,
            metadata=metadata,
            request_id=request_id,
        )

    async def get_worker(self, worker_id: str) -> WorkerDetail:
        """Show a worker, and what it holds. Needs the scope `read`.

        worker_id: The id of a worker.
        """
        return await self._run(self._client.get_worker, worker_id)

    async def signal_worker(
        self,
        worker_id: str,
        *,
        signal: str,
        retryable: bool = False,
        suspend: bool = False,
        ended: bool = False,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> WorkerAnswer:
        """Send a worker what a person decides: pause, resume, drain, terminate … Needs the scope `operate`.

        worker_id: The worker.
        signal: One of: pause, resume, drain, terminate, assign, fail, expire.
        retryable: Of fail: the worker can go on.
        suspend: Of pause: also suspend its processes. Without that, its settings decide.
        ended: Of terminate: its processes are known to have ended. Without that, they are ended first.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.signal_worker,
            worker_id,
            signal=signal,
            retryable=retryable,
            suspend=suspend,
            ended=ended,
            reason=reason,
            request_id=request_id,
        )

    async def list_breakers(self, *, limit: int = 100, after: str | None = None) -> BreakerPage:
        """List tools, their circuits and their limits. Needs the scope `read`.

        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_breakers, limit=limit, after=after)

    def iterate_breakers(self, *, after: str | None = None) -> AsyncIterator[BreakerAnswer]:
        """List tools, their circuits and their limits. Needs the scope `read`.

        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_breakers), after)

    async def get_breaker(self, tool: str) -> BreakerAnswer:
        """Show a tool. Needs the scope `read`.

        tool: The name of a tool.
        """
        return await self._run(self._client.get_breaker, tool)

    async def declare_tool(
        self,
        tool: str,
        *,
        failure_threshold: int = 5,
        success_threshold: int = 1,
        cooldown_seconds: float = 60.0,
        max_concurrent: int | None = None,
        rate_count: int | None = None,
        rate_seconds: float | None = None,
        request_id: str | None = None,
    ) -> BreakerAnswer:
        """Declare a tool with its circuit breaker and its limits, or change them. Needs the scope `operate`.

        tool: The name of the tool.
        failure_threshold: How many failures in a row open its circuit.
        success_threshold: How many successes close it again.
        cooldown_seconds: How long the circuit stays open before a probe.
        max_concurrent: How many attempts may run at once.
        rate_count: How many attempts may begin in any `rate_seconds`.
        rate_seconds: See `rate_count`.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.declare_tool,
            tool,
            failure_threshold=failure_threshold,
            success_threshold=success_threshold,
            cooldown_seconds=cooldown_seconds,
            max_concurrent=max_concurrent,
            rate_count=rate_count,
            rate_seconds=rate_seconds,
            request_id=request_id,
        )

    async def reset_breaker(self, tool: str, *, reason: str | None = None, request_id: str | None = None) -> BreakerAnswer:
        """Close the circuit of a tool. Needs the scope `operate`.

        tool: The name of the tool.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.reset_breaker, tool, reason=reason, request_id=request_id)

    async def trip_breaker(
        self, tool: str, *, seconds: float | None = None, reason: str | None = None, request_id: str | None = None
    ) -> BreakerAnswer:
        """Open the circuit of a tool, as if it had failed too often. Needs the scope `operate`.

        tool: The name of the tool.
        seconds: How long it stays open before a probe; null for its cooldown.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.trip_breaker, tool, seconds=seconds, reason=reason, request_id=request_id)

    async def list_machines(self, *, limit: int = 100, after: str | None = None) -> MachinePage:
        """List the machines of all lifecycles. Needs the scope `read`.

        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_machines, limit=limit, after=after)

    def iterate_machines(self, *, after: str | None = None) -> AsyncIterator[MachineSummary]:
        """List the machines of all lifecycles. Needs the scope `read`.

        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_machines), after)

    async def get_machine(self, name: str) -> MachineView:
        """Show the states and transitions of a machine. Needs the scope `read`.

        name: The name, as lists and other answers have it.
        """
        return await self._run(self._client.get_machine, name)

    async def draw_machine(self, name: str, *, state: str | None = None) -> str:
        """Draw a machine. Needs the scope `read`.

        name: The name, as lists and other answers have it.
        state: Highlight this state, and dim those that cannot be reached from it.
        """
        return await self._run(self._client.draw_machine, name, state=state)

    async def list_inbox(
        self,
        *,
        kind: Literal["answer", "approval", "review", "start"] | None = None,
        run_id: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> InboxPage:
        """List everything that waits for a person. Needs the scope `read`.

        kind: Only what waits for this.
        run_id: Only tasks of this run.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_inbox, kind=kind, run_id=run_id, limit=limit, after=after)

    def iterate_inbox(
        self,
        *,
        kind: Literal["answer", "approval", "review", "start"] | None = None,
        run_id: str | None = None,
        after: str | None = None,
    ) -> AsyncIterator[InboxItem]:
        """List everything that waits for a person. Needs the scope `read`.

        kind: Only what waits for this.
        run_id: Only tasks of this run.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_inbox, kind=kind, run_id=run_id), after)

    async def list_events(self, *, run_id: str | None = None, limit: int = 100, after: str | None = None) -> EventPage:
        """List transitions in the order of the event stream: everything once, behind a position. Needs the scope
        `read`.

        run_id: Only those of this run and its tasks.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_events, run_id=run_id, limit=limit, after=after)

    def iterate_events(self, *, run_id: str | None = None, after: str | None = None) -> AsyncIterator[TransitionAnswer]:
        """List transitions in the order of the event stream: everything once, behind a position. Needs the scope
        `read`.

        run_id: Only those of this run and its tasks.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_events, run_id=run_id), after)

    async def list_notices(
        self,
        *,
        about: str | None = None,
        subject: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> NoticePage:
        """List what happened without a move. Needs the scope `read`.

        about: Only those about the entity of this id; of a run, its tasks count as well.
        subject: Only those of this subject, such as `overstayed` or `budget`.
        created_after: Only those of this time or later.
        created_before: Only those before this time.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(
            self._client.list_notices,
            about=about,
            subject=subject,
            created_after=created_after,
            created_before=created_before,
            limit=limit,
            after=after,
        )

    def iterate_notices(
        self,
        *,
        about: str | None = None,
        subject: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        after: str | None = None,
    ) -> AsyncIterator[NoticeView]:
        """List what happened without a move. Needs the scope `read`.

        about: Only those about the entity of this id; of a run, its tasks count as well.
        subject: Only those of this subject, such as `overstayed` or `budget`.
        created_after: Only those of this time or later.
        created_before: Only those before this time.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(
            partial(
                self.list_notices, about=about, subject=subject, created_after=created_after, created_before=created_before
            ),
            after,
        )

    async def get_account(self) -> Account:
        """Show what the tenant may spend, and has spent. Needs the scope `read`."""
        return await self._run(self._client.get_account)

    async def diagnose(self) -> DoctorReport:
        """Show what is stuck or wrong, and what would help. Needs the scope `admin`."""
        return await self._run(self._client.diagnose)

    async def list_keys(self, *, limit: int = 100, after: str | None = None) -> KeyPage:
        """List the API keys of the tenant. Needs the scope `admin`.

        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_keys, limit=limit, after=after)

    def iterate_keys(self, *, after: str | None = None) -> AsyncIterator[KeyView]:
        """List the API keys of the tenant. Needs the scope `admin`.

        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_keys), after)

    async def create_key(
        self,
        *,
        name: str,
        scopes: Sequence[Literal["read", "submit", "operate", "approve", "worker", "admin"]],
        expires_seconds: float | None = None,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> IssuedKeyAnswer:
        """Create an API key. The answer has its text, once. Needs the scope `admin`.

        name: What the key is for; no other key of the tenant that is not revoked has this name.
        scopes: What the key allows; at least one.
        expires_seconds: In how many seconds it expires; null for never.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.create_key,
            name=name,
            scopes=scopes,
            expires_seconds=expires_seconds,
            reason=reason,
            request_id=request_id,
        )

    async def rotate_key(
        self,
        key_id: str,
        *,
        grace_seconds: float | None = None,
        expires_seconds: float | None = None,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> IssuedKeyAnswer:
        """Give an API key a new secret. The answer has its text, once. Needs the scope `admin`.

        key_id: The key.
        grace_seconds: How long the present secret stays valid; null for not at all.
        expires_seconds: In how many seconds the key expires; null for when it would anyway.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.rotate_key,
            key_id,
            grace_seconds=grace_seconds,
            expires_seconds=expires_seconds,
            reason=reason,
            request_id=request_id,
        )

    async def revoke_key(self, key_id: str, *, reason: str | None = None, request_id: str | None = None) -> KeyView:
        """Revoke an API key for good. Needs the scope `admin`.

        key_id: The key.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.revoke_key, key_id, reason=reason, request_id=request_id)

    async def list_notifications(
        self, *, delivery: Literal["due", "dead", "delivered"] | None = None, limit: int = 100, after: str | None = None
    ) -> NotificationPage:
        """List notifications: due, dead and delivered ones, with the error of the last try. Needs the scope `read`.

        delivery: Only those in this state; dead ones are not tried any more.
        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_notifications, delivery=delivery, limit=limit, after=after)

    def iterate_notifications(
        self, *, delivery: Literal["due", "dead", "delivered"] | None = None, after: str | None = None
    ) -> AsyncIterator[NotificationView]:
        """List notifications: due, dead and delivered ones, with the error of the last try. Needs the scope `read`.

        delivery: Only those in this state; dead ones are not tried any more.
        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_notifications, delivery=delivery), after)

    async def retry_notifications(self, *, ids: Collection[str], request_id: str | None = None) -> RetriedNotifications:
        """Try to deliver notifications again at once, with all their tries. Needs the scope `operate`.

        ids: The ids of the notifications.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.retry_notifications, ids=ids, request_id=request_id)

    async def list_tenants(self, *, limit: int = 100, after: str | None = None) -> TenantPage:
        """List tenants, their quotas, and what they use: all for a key of the tenant `default`, its own for any other
        key. Needs the scope `read`.

        limit: How many at most.
        after: `next` of the page before; without it, the first page.
        """
        return await self._run(self._client.list_tenants, limit=limit, after=after)

    def iterate_tenants(self, *, after: str | None = None) -> AsyncIterator[TenantView]:
        """List tenants, their quotas, and what they use: all for a key of the tenant `default`, its own for any other
        key. Needs the scope `read`.

        after: `next` of the page before; without it, the first page.
        """
        return iterate_async(partial(self.list_tenants), after)

    async def add_tenant(self, *, name: str, reason: str | None = None, request_id: str | None = None) -> Tenant:
        """Add a tenant. Only for keys of the tenant `default`. Needs the scope `admin`.

        name: Its name.
        reason: Why; kept in a notice.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.add_tenant, name=name, reason=reason, request_id=request_id)

    async def set_quotas(
        self,
        tenant: str,
        *,
        max_runs: int | None = None,
        max_tasks: int | None = None,
        max_bytes: int | None = None,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> Quota:
        """Set how much unfinished work a tenant may have at once; what is left out gets no limit. Only for keys of the
        tenant `default`. Needs the scope `admin`.

        tenant: The name of a tenant.
        max_runs: How many unfinished runs; null for no limit.
        max_tasks: How many unfinished tasks of these; null for no limit.
        max_bytes: How many bytes the payloads of these may have; null for no limit.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.set_quotas,
            tenant,
            max_runs=max_runs,
            max_tasks=max_tasks,
            max_bytes=max_bytes,
            reason=reason,
            request_id=request_id,
        )

    async def set_tenant_budget(
        self, tenant: str, *, budget_usd: Decimal | None, reason: str | None = None, request_id: str | None = None
    ) -> Account:
        """Set what all runs of a tenant together may spend. Only for keys of the tenant `default`. Needs the scope
        `admin`.

        tenant: The name of a tenant.
        budget_usd: What all runs of the tenant may spend; null for no limit.
        reason: Why; kept in the audit trail.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.set_tenant_budget, tenant, budget_usd=budget_usd, reason=reason, request_id=request_id
        )

    async def add_lifecycle(self, *, text: str, request_id: str | None = None) -> LifecycleAnswer:
        """Add a lifecycle, which flows may name from now on; a changed one needs a new version. Only for keys of the
        tenant `default`; all tenants see its machines. Needs the scope `admin`.

        text: The lifecycle, as the text of its file (YAML).
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.add_lifecycle, text=text, request_id=request_id)

    async def claim_tasks(
        self,
        worker_id: str,
        *,
        limit: int = 1,
        run_id: str | None = None,
        wait_seconds: float = 0.0,
        request_id: str | None = None,
    ) -> ClaimList:
        """Claim tasks for a worker; if there are none, wait for some. Needs the scope `worker`.

        worker_id: The id of a worker.
        limit: How many tasks at most; never more than the worker has free slots.
        run_id: The only run to claim tasks of.
        wait_seconds: How long to wait if there is nothing to claim. To wait is a sign of life.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.claim_tasks, worker_id, limit=limit, run_id=run_id, wait_seconds=wait_seconds, request_id=request_id
        )

    async def send_heartbeat(
        self, worker_id: str, *, attempts: Collection[Sequence[str]] = (), request_id: str | None = None
    ) -> HeartbeatAnswer:
        """Renew the lease of a worker, and learn which of its attempts to end. Needs the scope `worker`.

        worker_id: The worker.
        attempts: Pairs of task and epoch: all attempts that it knows to hold.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(self._client.send_heartbeat, worker_id, attempts=attempts, request_id=request_id)

    async def report_attempt(
        self,
        task_id: str,
        *,
        epoch: int,
        signal: str | None = None,
        output: Any = None,
        error: str | None = None,
        tail: str | None = None,
        retryable: bool = True,
        usage_limit_until: datetime | None = None,
        question: str | None = None,
        cost_usd: Decimal = Decimal(0),
        cost_is_estimated: bool = False,
        tokens_in: int = 0,
        tokens_out: int = 0,
        exit_code: int | None = None,
        session_id: str | None = None,
        log_path: str | None = None,
        subtasks: Sequence[NewTask] = (),
        request_id: str | None = None,
    ) -> TaskAnswer:
        """Report what became of an attempt, or what it has cost while it goes on. Needs the scope `worker`.

        task_id: The task that was claimed.
        epoch: The epoch of the claim.
        signal: complete, fail, ask, expire, cancel, skip, overspend, checks_passed, checks_failed, interrupt or
            give_back; null while the attempt goes on.
        output: What it produced; any JSON.
        error: What went wrong; of a skipped task, why.
        tail: The end of what it wrote, kept with its error.
        retryable: Whether another attempt could succeed.
        usage_limit_until: With interrupt: the usage limit of its tool ends then. Neither the task nor others of the
            tool start before.
        question: What its agent wants to know before it goes on.
        cost_usd: Spent since the last report.
        cost_is_estimated: The cost was not reported by the tool, but estimated from a price table.
        tokens_in: Tokens that a model has read since the last report, from a cache or not.
        tokens_out: Tokens that a model has written since the last report.
        exit_code: Of its process.
        session_id: The session that a later attempt can continue.
        log_path: Where its log is.
        subtasks: Added to its run in the same commit, unless they are there already.
        request_id: An idempotency key of your own, instead of a new one.
        """
        return await self._run(
            self._client.report_attempt,
            task_id,
            epoch=epoch,
            signal=signal,
            output=output,
            error=error,
            tail=tail,
            retryable=retryable,
            usage_limit_until=usage_limit_until,
            question=question,
            cost_usd=cost_usd,
            cost_is_estimated=cost_is_estimated,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            exit_code=exit_code,
            session_id=session_id,
            log_path=log_path,
            subtasks=subtasks,
            request_id=request_id,
        )

    async def issue_ticket(self) -> TicketAnswer:
        """Get a ticket for one stream of events, for browsers: they cannot send a key there. Needs the scope `read`."""
        return await self._run(self._client.issue_ticket)

    async def wait_for_wakeups(
        self,
        *,
        process: str | None = None,
        tasks: int | None = None,
        workers: int | None = None,
        events: int | None = None,
        wait_seconds: float = 30.0,
    ) -> WakeupAnswer:
        """Wait until tasks may be claimed, workers are told something, or transitions were made. Needs the scope
        `read`.

        process: `process` of the answer before; without it, the answer comes at once.
        tasks: Wait for tasks that may be claimed: `tasks` of the answer before.
        workers: Wait for what is told to workers: `workers` of the answer before.
        events: Wait for transitions: `events` of the answer before.
        wait_seconds: How long at most.
        """
        return await self._run(
            self._client.wait_for_wakeups,
            process=process,
            tasks=tasks,
            workers=workers,
            events=events,
            wait_seconds=wait_seconds,
        )
