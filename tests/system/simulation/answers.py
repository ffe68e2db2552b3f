"""What processes answer must be true, and stay so: every acknowledgement is held against what is stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgspec
from tests.system.simulation.post import Message
from tests.system.simulation.promises import Promises, keep
from tests.system.simulation.shapes import WITH_CHECKS

from pointsman.engine.operations.attempts import ReportAttempt, ReportAttempts
from pointsman.engine.operations.runs import SubmitRun
from pointsman.engine.operations.workers import ClaimTasks, GiveUpTasks, HeartbeatReply, SendHeartbeat
from pointsman.errors import (
    Conflict,
    LawBroken,
    LeaseLost,
    OutcomeUnknown,
    PointsmanError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from pointsman.store.rows import Breaker, Run, Task, Worker

MILLION = 1_000_000
KEYS_LAST_SECONDS = 3000.0


class Answers:
    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._keyed: dict[tuple[str, str, str], tuple[bytes, float]] = {}
        self._claimed: set[tuple[str, int]] = set()
        self._submitted: dict[tuple[str, str], Message] = {}
        self._reported: defaultdict[tuple[str, int], dict[int, Message]] = defaultdict(dict)
        self._acknowledged: defaultdict[tuple[str, int], dict[int, Decimal]] = defaultdict(dict)
        self._current: dict[tuple[str, int], bool] = {}
        """Attempts that may count: they do, or could begin in the same commit."""
        self._held: dict[tuple[str, int], bool] = {}
        self._revisions: dict[str, int] = {}
        self._repeated: list[bool] = []

    def expect(self, messages: Sequence[Message]) -> None:
        """Called before a process gets these messages: how things stand that they speak of."""
        self._current = {}
        self._repeated = []
        for message in messages:
            message.deliveries += 1
            command = message.command
            request = command.request
            self._repeated.append(bool(request and self._promises.has_key(command.tenant, request.endpoint, request.key)))
            if isinstance(command, ReportAttempt):
                self._reported[command.task_id, command.epoch][id(message)] = message
                self._note_current(command.task_id, command.epoch)
            elif isinstance(command, ReportAttempts):
                for report in command.reports:
                    self._reported[report.task_id, report.epoch][id(message)] = message
                    self._note_current(report.task_id, report.epoch)
            elif isinstance(command, (SendHeartbeat, GiveUpTasks)):
                for task_id, epoch in command.attempts:
                    self._note_current(task_id, epoch)
            elif isinstance(command, SubmitRun):
                self._submitted[command.tenant, command.run.name] = message

    def check(self, messages: Sequence[Message], outcomes: Sequence[Any] | None, now: float) -> None:
        """Called when the process has answered, or died, and what it wrote has been looked at."""
        if outcomes is not None:
            for message, outcome, repeated in zip(messages, outcomes, self._repeated, strict=True):
                self._check_one(message, outcome, repeated=repeated, now=now)
            self._check_refusals(messages, outcomes)
        for message in messages:
            self._check_effects(message)

    def _note_current(self, task_id: str, epoch: int) -> None:
        task = self._promises.tasks.get(task_id)
        self._revisions[task_id] = task.revision if task else -1
        held = task is not None and task.current_attempt == epoch and not task.lease_expired
        self._held[task_id, epoch] = held
        self._current[task_id, epoch] = held or (task is not None and epoch > task.epoch)

    def _check_one(self, message: Message, outcome: Any, *, repeated: bool, now: float) -> None:
        known = (StoreBusy, StoreFull, StoreUnavailable)
        ours = isinstance(outcome, PointsmanError) and (not isinstance(outcome, StoreError) or isinstance(outcome, known))
        keep("no command breaks the law", ours or not isinstance(outcome, BaseException), f"{message}: {outcome!r}")
        keep("no command breaks the law", not isinstance(outcome, (LawBroken, Conflict)), f"{message}: {outcome!r}")
        if isinstance(outcome, PointsmanError):
            return
        command = message.command
        if isinstance(command, ReportAttempts):
            self._check_each(message, command, outcome)
            return
        self._check_entities(message, outcome)
        if isinstance(command, ReportAttempt):
            fresh = self._current[command.task_id, command.epoch] or repeated
            keep("a stale epoch is refused", fresh, f"{message} was accepted")
            self._acknowledged[command.task_id, command.epoch][id(message)] = command.report.cost_usd
        elif isinstance(outcome, HeartbeatReply):
            self._check_beat(message, outcome)
        elif isinstance(command, ClaimTasks):
            self._check_claims(command, outcome)
        if command.request_id:
            self._check_twin(message, outcome, now)

    def _check_each(self, message: Message, command: ReportAttempts, outcome: Any) -> None:
        """Each of several reports was accepted or refused like one that comes alone."""
        keep("what was acknowledged is true", len(outcome) == len(command.reports), f"{message}: {outcome}")
        accepted: set[tuple[str, int]] = set()
        for report, refusal in zip(command.reports, outcome, strict=True):
            attempt, task = (report.task_id, report.epoch), self._promises.tasks[report.task_id]
            detail = f"{message}: {attempt} got {refusal!r}"
            if refusal is None:
                keep("a stale epoch is refused", self._current[attempt], detail)
                keep("one request, one effect", attempt not in accepted, detail)
                moved = task.revision > self._revisions[report.task_id] and task.tenant == command.tenant
                keep("what was acknowledged is true", moved, detail)
                accepted.add(attempt)
                costs = self._acknowledged[attempt]
                costs[id(message)] = max(report.report.cost_usd, costs.get(id(message), Decimal(0)))
            else:
                keep("no command breaks the law", _is_ordinary(refusal), detail)
                holds = self._held[attempt] and task.current_attempt == report.epoch and not task.lease_expired
                keep("what was acknowledged is true", not (holds and isinstance(refusal, LeaseLost)), detail)

    def _check_entities(self, message: Message, outcome: Any) -> None:
        """What an answer says of something was so: its trail has that state at that revision, for the same tenant."""
        for row in outcome if isinstance(outcome, list) else [outcome]:
            if isinstance(row, (Run, Task, Worker, Breaker)):
                keep("no tenant reaches another", row.tenant == message.command.tenant, f"{message} got {row.id}")
                trail = self._promises.trails.get(row.id, [])
                told = trail[row.revision].to_state if row.revision < len(trail) else None
                keep("what was acknowledged is true", told == row.state, f"{message}: {row.id} is {row.state}, and was {told}")

    def _check_beat(self, message: Message, beat: HeartbeatReply) -> None:
        assert isinstance(message.command, SendHeartbeat)
        for attempt in message.command.attempts:
            task = self._promises.tasks[attempt[0]]
            holds = self._current[attempt] or (task.current_attempt == attempt[1] and not task.lease_expired)
            keep("a lost lease is told", holds or attempt in beat.lost, f"{message}: {attempt} is lost, and nobody says so")
        for task_id, epoch in beat.unknown:
            attempt_row = self._promises.attempt(task_id, epoch)
            worker_id = attempt_row and attempt_row.worker_id
            keep("what was acknowledged is true", worker_id == message.command.worker_id, f"{message}: {beat.unknown}")

    def _check_claims(self, command: ClaimTasks, outcome: Any) -> None:
        claims, _ = outcome
        keep("nobody holds more than fits", len(claims) <= command.limit, f"{len(claims)} claimed instead of {command.limit}")
        for claim in claims:
            task, attempt = self._promises.tasks[claim.task_id], self._promises.attempt(claim.task_id, claim.epoch)
            keep("what was acknowledged is true", claim.tenant == task.tenant, f"{claim} was given for {task}")
            of_run = command.run_id in (None, task.run_id)
            keep("who asks for a run gets no other", of_run, f"{claim.task_id} of {task.run_id} for {command.run_id}")
            stored = attempt is not None and attempt.worker_id == command.worker_id
            keep("what was acknowledged is true", stored, f"{claim.task_id} {claim.epoch} for {command.worker_id}: {attempt}")
            is_checked = task.has_checks and self._promises.runs[task.run_id].lifecycle in WITH_CHECKS
            told = (claim.name, claim.has_checks or not is_checked)
            keep("what was acknowledged is true", told == (task.name, True), f"{claim} was given for {task}")
            fits = task.budget_usd is None or (claim.budget_usd is not None and claim.budget_usd <= task.budget_usd)
            keep("what was acknowledged is true", fits, f"{claim} was given for {task}")
            given = (claim.task_id, claim.epoch)
            keep("each claim has its own epoch", given not in self._claimed, f"{given} was given twice")
            self._claimed.add(given)

    def _check_twin(self, message: Message, outcome: Any, now: float) -> None:
        request = message.command.request
        assert request
        key = (message.command.tenant, request.endpoint, request.key)
        answer = msgspec.json.encode(outcome)
        first, at = self._keyed.setdefault(key, (answer, now))
        if now - at < KEYS_LAST_SECONDS:
            keep("twins get one answer", answer == first, f"{message}: {first!r}, then {answer!r}")

    def _check_refusals(self, messages: Sequence[Message], outcomes: Sequence[Any]) -> None:
        """Where all are refused, nothing has changed; but a worker that asks for work gives a sign of life."""
        each_outcome = _each_of(messages, outcomes)
        if all(isinstance(outcome, PointsmanError) and not isinstance(outcome, OutcomeUnknown) for outcome in each_outcome):
            alive = any(isinstance(message.command, ClaimTasks) for message in messages)
            changed = [name for name in self._promises.changed if not (alive and name in self._promises.workers)]
            detail = f"{[str(message) for message in messages]}: {changed} changed all the same"
            keep("a refusal changes nothing", not changed, detail)

    def _check_effects(self, message: Message) -> None:
        """One effect for a key, and no more effects than deliveries without one."""
        command = message.command
        if isinstance(command, SubmitRun):
            key = (command.tenant, command.run.name)
            made = sum((run.tenant, run.name) == key for run in self._promises.runs.values())
            keep("one request, one effect", made <= _most(message), f"{message}: {made} runs for {_most(message)}")
        elif isinstance(command, ReportAttempt):
            self._check_cost(command.task_id, command.epoch)
        elif isinstance(command, ReportAttempts):
            for report in command.reports:
                self._check_cost(report.task_id, report.epoch)

    def _check_cost(self, task_id: str, epoch: int) -> None:
        attempt = self._promises.attempt(task_id, epoch)
        if attempt is None:
            return
        reports = self._reported[task_id, epoch].values()
        most = sum(_cost(message.command, task_id, epoch) * _most(message) for message in reports) * MILLION
        least = sum(self._acknowledged[task_id, epoch].values()) * MILLION
        keep("one request, one effect", attempt.cost_usd <= most, f"{task_id} {epoch} cost {attempt.cost_usd}, at most {most}")
        keep("what was acknowledged is true", attempt.cost_usd >= least, f"{task_id} {epoch} cost {attempt.cost_usd} < {least}")


def _most(message: Message) -> int:
    return 1 if message.command.request_id else message.deliveries


def _each_of(messages: Sequence[Message], outcomes: Sequence[Any]) -> Iterator[Any]:
    """All that was answered, and of several reports each."""
    for message, outcome in zip(messages, outcomes, strict=True):
        if isinstance(message.command, ReportAttempts) and isinstance(outcome, list):
            yield from outcome
        else:
            yield outcome


def _is_ordinary(outcome: Any) -> bool:
    return isinstance(outcome, PointsmanError) and not isinstance(outcome, (StoreError, LawBroken, Conflict))


def _cost(command: Any, task_id: str, epoch: int) -> Decimal:
    if isinstance(command, ReportAttempts):
        costs = [each.report.cost_usd for each in command.reports if (each.task_id, each.epoch) == (task_id, epoch)]
        return max(costs)
    cost: Decimal = command.report.cost_usd
    return cost
