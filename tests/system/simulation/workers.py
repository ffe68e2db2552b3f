"""Simulated workers: they register, send heartbeats, claim, report, fall silent, come back, and know what they were told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from tests.system.simulation.post import Message
from tests.system.simulation.process import BEGINNING, SkewedClock
from tests.system.simulation.shapes import QUESTIONS, WITH_SUBTASKS

from pointsman.engine.claims import Claim
from pointsman.engine.operation import Caller
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt, ReportAttempts
from pointsman.engine.operations.workers import ClaimTasks, GiveUpTasks, HeartbeatReply, RegisterWorker, SendHeartbeat
from pointsman.engine.submit import NewTask
from pointsman.errors import LeaseLost, NotFound, RequestInvalid, StoreError, TransitionRefused, WorkerUnavailable
from pointsman.store.rows import Task, Worker
from pointsman.worker.lease import Lease

if TYPE_CHECKING:
    from tests.system.simulation.scheduler import Simulation

COSTS = (Decimal(0), Decimal(0), Decimal("0.1"), Decimal("0.4"), Decimal("1.5"))
PATIENCE_SECONDS = 6.0
MOST_TASKS = 90
"""No attempt adds subtasks when there are more."""
MACHINES = 2
"""Workers share them, with all that was left running there."""


@dataclass(slots=True)
class Held:
    claim: Claim
    lease: Lease
    takes_seconds: float
    has_begun: bool = False
    due_at: float = 0.0
    """When its worker has something to say about it, once the work has begun."""
    is_checked: bool = False
    """Its work is done, and its checks are run."""
    asked: Message | None = None
    is_refused: bool = False
    """Its subtasks were refused: it reports nothing of them again."""


class SimulatedWorker:
    def __init__(self, simulation: Simulation, number: int, tenant: str, serves: tuple[str, ...] | Literal["all"] = ()) -> None:
        chance = simulation.chance
        self._simulation = simulation
        self.name = f"w{number}"
        self.machine = f"m{number % MACHINES}"
        self._clock = SkewedClock(simulation.time)
        self.tenant = tenant
        self.serves = serves
        self.lifecycle = chance.choice(("standard", "standard", "orchestrated", "supervised"))
        self.capabilities = tuple(word for word in ("gpu", "linux") if chance.random() < 0.6)
        self.slots = chance.choice((1, 1, 2, 6, 12))
        self.lease_seconds = chance.choice((5.0, 10.0, 20.0))
        self.id: str | None = None
        self.holds: dict[str, Held] = {}
        self.beats_at = 0.0
        self.silent_until = 0.0
        self.is_gone = False
        self._asked: dict[str, Message] = {}
        """What it waits for an answer to, by what it is."""
        self.is_diligent = False
        """Everything it takes up succeeds."""

    # doing something

    def act(self) -> None:
        now = self._simulation.time.seconds
        if self.is_gone or now < self.silent_until:
            return
        self._begin_work(now)
        if self.id is None:
            self._ask("register", self._register)
        elif now >= self.beats_at:
            self.beats_at = now + self.lease_seconds / 3
            known = tuple((task_id, held.claim.epoch) for task_id, held in self.holds.items())
            self._send(SendHeartbeat(self.id, known, caller=self._caller))
        elif not self._report_due(now) and len(self.holds) < self.slots:
            self._ask("claim", self._claim)

    def forget(self) -> None:
        """Its process was killed and started again: it remembers nothing but who it is. What it had begun runs on."""
        self.holds.clear()
        self._asked.clear()

    def _begin_work(self, now: float) -> None:
        """Begin what was claimed. In doubt about the lease, a heartbeat comes first."""
        for task_id, held in self.holds.items():
            if held.has_begun or self.id is None:
                continue
            held.has_begun = self._simulation.outside.begin(task_id, held.claim.epoch, held.lease, self.id, self.machine)
            if held.has_begun:
                held.due_at = now + held.takes_seconds
            else:
                self.beats_at = now

    def _end_work(self) -> None:
        """End everything that it has begun."""
        for task_id, held in self.holds.items():
            self._simulation.outside.end(task_id, held.claim.epoch)
        self.holds.clear()

    def _ask(self, what: str, make: Any) -> None:
        """Once, and again when the answer has not come for a while."""
        asked = self._asked.get(what)
        if asked is None:
            self._asked[what] = self._send(make())
        elif self._simulation.time.seconds - asked.sent_at > PATIENCE_SECONDS:
            if asked.command.request_id is not None:
                asked.sent_at = self._simulation.time.seconds
                self._simulation.send(asked)
            else:
                del self._asked[what]

    def _send(self, command: Any) -> Message:
        message = Message(command, self, self._simulation.time.seconds)
        self._simulation.send(message)
        return message

    def _register(self) -> RegisterWorker:
        return RegisterWorker(
            caller=self._caller,
            request_id=self._simulation.draw_key(),
            name=self.name,
            lifecycle=self.lifecycle,
            capabilities=self.capabilities,
            max_concurrent_tasks=self.slots,
            lease_seconds=self.lease_seconds,
            serves=self.serves,
        )

    def _claim(self) -> ClaimTasks:
        assert self.id
        limit = self.slots if self._simulation.chance.random() < 0.5 else self._simulation.chance.randint(1, self.slots)
        return ClaimTasks(self.id, limit, self._draw_run(), caller=self._caller)

    def _draw_run(self) -> str | None:
        """Now and then it wants to work for one run only, whoever that belongs to."""
        chance, seen = self._simulation.chance, self._simulation.promises
        return chance.choice(list(seen.runs)) if seen.runs and not self.is_diligent and chance.random() < 0.2 else None

    # reports

    def _report_due(self, now: float) -> bool:
        for held in self.holds.values():
            if held.asked and now - held.asked.sent_at > PATIENCE_SECONDS:
                held.asked.sent_at = now
                self._simulation.send(held.asked)  # the same report: whether it was heard, nobody knows
                return True
            if held.asked is None and held.has_begun and held.due_at <= now:
                if not self._report_together(now):
                    self._report(held, now)
                return True
        return False

    def _report_together(self, now: float) -> bool:
        """What is done, several at once: mostly with the same to say of each; now and then one twice, or of an old attempt."""
        chance = self._simulation.chance
        begun = [held for held in self.holds.values() if held.has_begun]
        done = [held for held in begun if held.asked is None and held.due_at <= now and not held.is_checked]
        done = [held for held in done if held.claim.tenant == done[0].claim.tenant]
        if len(done) < 2 or chance.random() < (0.9 if self._simulation.is_peopled else 0.3):
            return False
        for held in done:
            self._simulation.outside.end(held.claim.task_id, held.claim.epoch)
        report = AttemptReport(output=2, exit_code=0, cost_usd=Decimal(0) if chance.random() < 0.8 else chance.choice(COSTS))
        reports = [ReportAttempt(held.claim.task_id, held.claim.epoch, "complete", report) for held in done]
        if not self.is_diligent and chance.random() < 0.3:
            odd = chance.choice(done).claim
            epoch = odd.epoch + chance.choice((-1, 0, 0, 1))
            other = report if chance.random() < 0.5 else AttemptReport(output=4, cost_usd=chance.choice(COSTS))
            reports.insert(chance.randint(0, len(reports)), ReportAttempt(odd.task_id, epoch, "complete", other))
        message = self._send(ReportAttempts(tuple(reports), caller=Caller(done[0].claim.tenant, self.name)))
        for held in done:
            held.asked = message
        return True

    @property
    def _caller(self) -> Caller:
        return Caller(self.tenant, self.name)

    def _caller_of(self, held: Held) -> Caller:
        """Reports are made in the tenant of the task."""
        return Caller(held.claim.tenant, self.name)

    def _report(self, held: Held, now: float) -> None:
        chance = self._simulation.chance
        if self.is_diligent:
            signal = "checks_passed" if held.is_checked else "complete"
            held.asked = self._signal(held, signal, AttemptReport(output=1, session_id="session"))
        elif held.is_checked:
            passed = chance.random() < 0.7
            report = AttemptReport(error="checks", retryable=chance.random() < 0.7)
            held.asked = self._signal(held, "checks_passed" if passed else "checks_failed", report)
        elif chance.random() < 0.15:
            held.due_at = now + chance.uniform(0, 4)
            note = AttemptReport(
                cost_usd=chance.choice(COSTS), session_id=chance.choice((None, "session")), tokens_in=held.claim.epoch
            )
            self._send(ReportAttempt(held.claim.task_id, held.claim.epoch, report=note, caller=self._caller_of(held)))
        else:
            held.asked = self._signal(held, *self._draw_report(held))

    def _draw_report(self, held: Held) -> tuple[str, AttemptReport]:
        chance = self._simulation.chance
        cost = chance.choice(COSTS)
        luck = chance.random()
        if self._simulation.is_peopled and chance.random() < 0.3:
            return self._ask_a_person(cost)
        if luck < 0.62:
            session, subtasks = chance.choice((None, "session")), self._plan(held)
            return "complete", AttemptReport(output=2, exit_code=0, cost_usd=cost, session_id=session, subtasks=subtasks)
        if luck < 0.84:
            return "fail", AttemptReport(error="it broke", exit_code=1, cost_usd=cost, retryable=chance.random() < 0.7)
        if luck < 0.89:
            until = BEGINNING + timedelta(seconds=round(self._simulation.time.seconds + chance.uniform(-2, 20)))
            return "interrupt", AttemptReport(error="usage limit", usage_limit_until=until, cost_usd=cost)
        if luck < 0.95:
            return self._ask_a_person(cost)
        return chance.choice(("expire", "overspend", "skip", "checks_passed", "cancel")), AttemptReport(error="it ended")

    def _ask_a_person(self, cost: Decimal) -> tuple[str, AttemptReport]:
        question = self._simulation.chance.choice(list(QUESTIONS.values())).stored
        return "ask", AttemptReport(question=question, session_id="session", cost_usd=cost)

    def _plan(self, held: Held) -> tuple[NewTask, ...]:
        """Subtasks for what it has found; another attempt finds the same."""
        seen, name = self._simulation.promises, held.claim.name
        can_wait = seen.runs[held.claim.run_id].lifecycle in WITH_SUBTASKS and not held.is_refused
        share = 0.6 if self._simulation.is_peopled else 0.1
        if not can_wait or len(seen.tasks) >= MOST_TASKS or self._simulation.chance.random() > share:
            return ()
        number = self._simulation.chance.choice((1, 2, 2))
        return tuple(NewTask(name=f"{name}/{each}", parent=name) for each in range(number))

    def _signal(self, held: Held, signal: str, report: AttemptReport) -> Message:
        self._simulation.outside.end(held.claim.task_id, held.claim.epoch)
        key = self._simulation.draw_key()
        return self._send(
            ReportAttempt(held.claim.task_id, held.claim.epoch, signal, report, caller=self._caller_of(held), request_id=key)
        )

    # hearing

    def hear(self, message: Message, outcome: Any) -> None:
        if self.is_gone:
            return
        for what in [what for what, asked in self._asked.items() if asked is message]:
            del self._asked[what]
        command = message.command
        if isinstance(command, RegisterWorker) and isinstance(outcome, Worker) and self.id is None:
            self.id = outcome.id
            self._end_work()
            self.beats_at = self._simulation.time.seconds
        elif isinstance(command, ClaimTasks) and command.worker_id == self.id:
            self._hear_claims(message, outcome)
        elif isinstance(command, SendHeartbeat) and isinstance(outcome, HeartbeatReply) and command.worker_id == self.id:
            self._hear_beat(message.sent_at, command, outcome)
        elif isinstance(command, ReportAttempt) and command.signal:
            self._hear_report(message, command, outcome)
        elif isinstance(command, ReportAttempts):
            self._hear_reports(message, command, outcome)

    def _hear_claims(self, message: Message, outcome: Any) -> None:
        now = self._simulation.time.seconds
        if isinstance(outcome, tuple):
            chance = self._simulation.chance
            together = chance.choice((0.0, 1.0, 3.0, 8.0)) if chance.random() < 0.6 else None
            if self._simulation.is_peopled:
                together = 0.0  # what people decide begins and ends soon
            for claim in outcome[0]:
                takes = chance.choice((0.0, 1.0, 3.0, 8.0, 25.0)) if together is None else together
                takes = 0.0 if self.is_diligent else takes
                lease = Lease(self._clock, self.lease_seconds, message.sent_at, lambda: None)
                self.holds[claim.task_id] = Held(claim, lease, takes)
        elif isinstance(outcome, WorkerUnavailable):
            self.beats_at = now
        elif isinstance(outcome, NotFound) and outcome.kind == "worker":
            self.id = None

    def _hear_beat(self, sent_at: float, sent: SendHeartbeat, beat: HeartbeatReply) -> None:
        for task_id, epoch in set(sent.attempts).difference(beat.lost):
            if (held := self.holds.get(task_id)) and held.claim.epoch == epoch:
                held.lease.confirm(sent_at)
        for task_id, epoch in beat.lost:
            self._drop(task_id, epoch)
        for task_id, epoch in beat.cancelled:
            held = self.holds.get(task_id)
            if held and held.claim.epoch == epoch:
                held.asked = self._signal(held, "cancel", AttemptReport(error="its process was ended", retryable=False))
        if beat.unknown and self.id:
            self._send(GiveUpTasks(self.id, beat.unknown, caller=self._caller))
        if beat.worker.phase == "done":
            self.id = None
            self._end_work()
            self.forget()

    def _hear_report(self, message: Message, command: ReportAttempt, outcome: Any) -> None:
        held = self.holds.get(command.task_id)
        if held is None or held.asked is not message or held.claim.epoch != command.epoch:
            return
        if isinstance(outcome, StoreError):
            return  # it is said again when the answer has not come for a while
        held.asked = None
        if isinstance(outcome, TransitionRefused):
            held.due_at = self._simulation.time.seconds
            held.is_checked = not held.is_checked and held.claim.has_checks and command.signal == "complete"
        elif isinstance(outcome, RequestInvalid):  # they are too deep, or its run has ended
            held.is_refused, held.due_at = True, self._simulation.time.seconds
        elif isinstance(outcome, Task) and outcome.current_attempt == command.epoch:
            held.is_checked = True
            held.due_at = self._simulation.time.seconds + (0.0 if self.is_diligent else self._simulation.chance.uniform(0, 4))
        else:
            assert isinstance(outcome, (Task, LeaseLost)), outcome
            self._drop(command.task_id, command.epoch)

    def _hear_reports(self, message: Message, command: ReportAttempts, outcome: Any) -> None:
        if isinstance(outcome, StoreError):
            return
        now = self._simulation.time.seconds
        for report, refusal in zip(command.reports, outcome, strict=True):
            held = self.holds.get(report.task_id)
            if held is None or held.asked is not message or held.claim.epoch != report.epoch:
                continue
            if isinstance(refusal, LeaseLost) and sum(each.task_id == report.task_id for each in command.reports) == 1:
                self._drop(report.task_id, report.epoch)
            elif isinstance(refusal, TransitionRefused) or held.claim.has_checks:
                held.asked = None
                held.is_checked = held.claim.has_checks
                held.due_at = now + (0.0 if self.is_diligent else self._simulation.chance.uniform(0, 4))
            else:
                self._drop(report.task_id, report.epoch)

    def _drop(self, task_id: str, epoch: int) -> None:
        held = self.holds.get(task_id)
        if held and held.claim.epoch == epoch:
            self._simulation.outside.end(task_id, epoch)
            del self.holds[task_id]
