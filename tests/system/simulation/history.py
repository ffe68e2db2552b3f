"""What clients asked and were answered, as a history that the models of `tests.system.histories` have to explain."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from tests.system.histories.checker import TooManyOrders, Unexplained, check_model
from tests.system.histories.model import Operation
from tests.system.histories.models.breaker import BreakerState, breaker_models
from tests.system.histories.models.key import key_models
from tests.system.histories.models.task import LIFECYCLES, TaskState, task_models
from tests.system.histories.record import Record
from tests.system.simulation.post import Message
from tests.system.simulation.promises import Broken, Promises
from tests.system.simulation.shapes import TENANTS
from tests.system.simulation.tally import EXPLAINED, Tally

from pointsman.engine.operations.attempts import ReportAttempt, ReportAttempts
from pointsman.engine.operations.runs import AddTasks, ApproveRun, SignalRun, SubmitRun
from pointsman.engine.operations.tasks import SignalTask
from pointsman.engine.operations.tools import DeclareTool, ResetBreaker
from pointsman.engine.operations.transition import RequestTransition
from pointsman.engine.operations.workers import (
    ClaimTasks,
    GiveUpTasks,
    HeartbeatReply,
    RegisterWorker,
    SendHeartbeat,
    SignalWorker,
)
from pointsman.errors import OutcomeUnknown, PointsmanError, StoreError, TransitionRefused
from pointsman.kernel.machine import Refusal

MOST_STATES = 1000
ASKED: dict[type, tuple[str, tuple[str, ...]]] = {
    SignalRun: ("signal_run", ("run_id", "signal")),
    ClaimTasks: ("claim_tasks", ("worker_id", "limit")),
    SendHeartbeat: ("heartbeat", ("worker_id", "attempts")),
    RegisterWorker: ("register_worker", ("name", "lease_seconds")),
    SignalWorker: ("signal_worker", ("worker_id", "signal")),
    DeclareTool: ("declare_tool", ("tool", "failure_threshold", "success_threshold", "cooldown_seconds")),
    ResetBreaker: ("reset_breaker", ("tool",)),
}
"""What is named as in the engine."""
RUNS = ("run", "workstream", "job")
"""What the lifecycles call the machines of runs."""
NAMED = {None: "note_attempt", "complete": "complete_task", "fail": "fail_task", "ask": "ask"}
"""What the models call a report, by its signal."""


class History:
    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._records: defaultdict[str, list[Record]] = defaultdict(list)
        """By tenant: none may see anything of another."""
        self._beyond: dict[str, str] = {}
        """By entity: why the models cannot follow it. They do not know transitions that somebody asked for; and where nobody
        was told of a commit, they would have to guess what was claimed, and all that could follow."""
        self._told: defaultdict[str, set[int]] = defaultdict(set)
        """By task: the epochs that some worker was told of."""
        self._created: set[str] = set()
        """Runs and tasks of which somebody was told that they are there."""
        self._instant = 0.0
        self.tally = Tally()

    def note(self, messages: Sequence[Message], outcomes: Sequence[Any] | None) -> None:
        """A batch was decided, all of it at once; who hears that the database was busy, full or away has done nothing."""
        self._instant += 2.0
        told = outcomes or [OutcomeUnknown("killed")] * len(messages)
        if any(isinstance(outcome, OutcomeUnknown) for outcome in told):
            self._pass_over("changed by a commit that nobody was told of", *self._promises.changed)
        for message, outcome in zip(messages, told, strict=True):
            if isinstance(message.command, RequestTransition):
                self._pass_over("asked for by transition", message.command.entity_id)
            elif _speaks_of_run(outcome):
                continue  # the models of tasks do not know that their run has ended
            elif not isinstance(outcome, StoreError) or (isinstance(outcome, OutcomeUnknown) and self._promises.changed):
                for tenant in self._find_concerned(message.command):
                    self._records[tenant] += self._read(message.command, outcome, tenant)

    def check(self) -> None:
        """Tasks, keys and breakers; what the models know of jobs and their workers is too little for all that happens here."""
        for records in self._records.values():
            for model in key_models(records):
                self.tally.count("key", _explain(model))
            for breaker in breaker_models(records):
                self.tally.count("breaker", _explain(breaker))
        models = {model.subject.split()[1]: model for records in self._records.values() for model in task_models(records)}
        for task in self._promises.tasks.values():
            obstacle = self._find_obstacle(task) or (None if task.id in models else "that nobody heard of")
            self.tally.count("task", obstacle or _explain(models[task.id]))

    def _pass_over(self, why: str, *names: str) -> None:
        for name in names:
            self._beyond.setdefault(name, why)

    def _find_obstacle(self, task: Any) -> str | None:
        """It is of another lifecycle, has parts that may have been added later, or nobody knows what happened to it."""
        run = self._promises.runs[task.run_id]
        if run.lifecycle not in LIFECYCLES:
            return "of another lifecycle"
        # What money does follows from what others spend, too, and from limits that change: other promises are about that.
        if task.budget_usd is not None or run.budget_usd is not None or run.id in self._promises.changed_budgets:
            return "with a budget"
        if task.has_subtasks:
            return "with subtasks"
        if task.id in self._beyond:
            return self._beyond[task.id]
        came_with_run = task.created_at == run.created_at
        if (run.id if came_with_run else task.id) not in self._created:
            return "created without an answer"
        if len(self._told[task.id]) != task.epoch:
            return "claimed without an answer"  # a claim that ended at once, at a breaker or a budget, is told to nobody
        return None

    def _find_concerned(self, command: Any) -> Sequence[str]:
        """Whose history it belongs to: what a shared worker says or hears, to that of every tenant."""
        if isinstance(command, RegisterWorker):
            return TENANTS if command.serves else [command.tenant]
        if isinstance(command, (ClaimTasks, SendHeartbeat, GiveUpTasks, SignalWorker)):
            worker = self._promises.workers.get(command.worker_id)
            return TENANTS if worker and worker.serves != "[]" else [command.tenant]
        return [command.tenant]

    def _narrow(self, attempts: Collection[tuple[str, int]], tenant: str) -> tuple[tuple[str, int], ...]:
        return tuple(each for each in attempts if self._promises.tasks[each[0]].tenant == tenant)

    def _read(self, command: Any, outcome: Any, tenant: str) -> Iterator[Record]:
        """The records of a command and its outcome, as far as they concern this tenant."""
        if isinstance(command, (SendHeartbeat, GiveUpTasks)):
            command = msgspec.structs.replace(command, attempts=self._narrow(command.attempts, tenant))
            if isinstance(outcome, HeartbeatReply):
                outcome = msgspec.structs.replace(outcome, lost=self._narrow(outcome.lost, tenant))
        if isinstance(command, ReportAttempts):
            outcomes = outcome if isinstance(outcome, list) else [outcome] * len(command.reports)
            for report, refusal in zip(command.reports, outcomes, strict=True):
                # An acceptance says nothing of the task: what is stored then is what it would have said.
                row = self._promises.tasks[report.task_id]._asdict() if refusal is None else refusal
                if refusal is None and self._promises.tasks[report.task_id].outcome in ("failure", "canceled"):
                    self._pass_over("changed again in the same commit", report.task_id)
                yield self._record(command, "complete_task", _report_arguments(report), row)
        elif read := _read_command(command):
            operation, arguments = read
            if isinstance(command, (SubmitRun, AddTasks)) and not isinstance(outcome, PointsmanError):
                self._created |= {row.id for row in (outcome if isinstance(outcome, list) else [outcome])}
            if isinstance(command, ReportAttempt) and getattr(outcome, "outcome", None) == "canceled":
                self._pass_over("called off in the same commit", command.task_id)  # by its run, after the report
            if isinstance(command, ClaimTasks) and isinstance(outcome, tuple):
                outcome = [claim for claim in outcome[0] if claim.tenant == tenant]
                for claim in outcome:
                    self._told[claim.task_id].add(claim.epoch)
            yield self._record(command, operation, arguments, _read_answer(command, outcome))

    def _record(self, command: Any, operation: str, arguments: dict[str, Any], outcome: Any) -> Record:
        arguments = {"tenant": command.tenant, **arguments}
        if command.request_id:
            arguments["request_id"] = command.request_id
        fields: dict[str, Any] = {"fate": "answered", "returned_at": self._instant + 1}
        if isinstance(outcome, OutcomeUnknown):
            fields = {"fate": "unknown"}
        elif isinstance(outcome, PointsmanError):
            fields |= {"fate": "refused", "error": type(outcome).__name__}
        else:
            fields["answer"] = msgspec.to_builtins(outcome)
        return Record(
            client="simulation",
            operation=operation,
            arguments=msgspec.to_builtins(arguments),
            invoked_at=self._instant,
            **fields,
        )


class Timeless:
    """A model whose states know no instants: they would tell apart what is the same where only the order counts."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.subject: str = model.subject
        self.operations: Sequence[Operation] = model.operations
        self.start = _without_instants(model.start)

    def take(self, state: Any, operation: Operation, *, heard: bool) -> list[Any]:
        return [_without_instants(each) for each in self._model.take(state, operation, heard=heard)]

    def drift(self, state: Any) -> list[Any]:
        return [_without_instants(each) for each in self._model.drift(state)]

    def not_before(self, state: Any) -> float:  # noqa: ARG002 - nothing takes its time
        return -math.inf


def _without_instants(state: Any) -> Any:
    match state:
        case TaskState():
            return replace(state, heard_of_holder=0.0, begun=0.0, not_before=0.0)
        case BreakerState():
            probe = state.probe and replace(state.probe, heard_of=0.0)
            return replace(state, opened=0.0, not_before=0.0, probe=probe)
        case _:
            return replace(state, used=0.0, not_before=0.0)


def _explain(model: Any) -> str:
    """What has too many orders to try them all is passed over: most have a few."""
    try:
        check_model(Timeless(model), timed=False, most_states=MOST_STATES)
    except TooManyOrders:
        return "with too many orders"
    except Unexplained as unexplained:
        raise Broken("every history can be explained", str(unexplained)) from unexplained
    return EXPLAINED


def _speaks_of_run(outcome: Any) -> bool:
    refusal = outcome.refusal if isinstance(outcome, TransitionRefused) else None
    return isinstance(refusal, Refusal) and refusal.machine.split(".")[1] in RUNS


def _read_answer(command: Any, outcome: Any) -> Any:
    """What a worker does not know of it gives up by a command of its own, which is half of a heartbeat to the models."""
    if isinstance(outcome, PointsmanError):
        return outcome
    if isinstance(command, SendHeartbeat):
        return {"lost": [list(attempt) for attempt in outcome.lost], "unknown": []}
    if isinstance(command, GiveUpTasks):
        return {"lost": [], "unknown": [list(attempt) for attempt in command.attempts]}
    return outcome


def _read_command(command: Any) -> tuple[str, dict[str, Any]] | None:
    """The method of the engine that sends this command, and what it was given."""
    match command:
        case SubmitRun():
            return "submit_run", {"run": command.run}
        case AddTasks():
            return "add_tasks", {"run_id": command.run_id, "tasks": command.tasks}
        case SignalTask():
            given = {"task_id": command.task_id, "signal": command.signal}
            answer = {"answer": command.answer} if command.signal == "answer" else {}
            return "signal_task", given | answer | {"actor": command.caller.actor}
        case ApproveRun():
            return "approve_run", {"run_id": command.run_id, "actor": command.caller.actor}
        case ReportAttempt():
            return NAMED.get(command.signal, "signal_attempt"), _report_arguments(command)
        case GiveUpTasks():
            return "heartbeat", {"worker_id": command.worker_id, "attempts": ()}
        case _ if type(command) in ASKED:
            operation, names = ASKED[type(command)]
            return operation, {name: getattr(command, name) for name in names}
        case _:
            return None


def _report_arguments(command: ReportAttempt) -> dict[str, Any]:
    report = command.report
    arguments: dict[str, Any] = {"task_id": command.task_id, "epoch": command.epoch, "signal": command.signal}
    if report.output is not None:
        arguments["output"] = report.output
    return arguments | {"retryable": report.retryable, "usage_limit_until": report.usage_limit_until}
