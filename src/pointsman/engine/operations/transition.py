"""A request to move something by the name of a trigger or a state, as document 000 has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Struct

from pointsman.engine import checks, gates, runs, tasks, workers
from pointsman.engine.fields import Rule, Text
from pointsman.engine.operation import Needs, Recorded
from pointsman.engine.operations.runs import SignalRun
from pointsman.engine.operations.tasks import SignalTask
from pointsman.engine.operations.workers import SignalWorker
from pointsman.engine.people import check_person
from pointsman.engine.work import Work
from pointsman.errors import Problem, TransitionRefused
from pointsman.kernel.machine import Kind, Refusal
from pointsman.store.rows import Run, Task, Worker

MOVABLE = (Kind.RUN, Kind.TASK, Kind.WORKER)


class TransitionResult(Struct, frozen=True, kw_only=True):
    """What became of a request to move something (document 000)."""

    entity_id: str
    from_state: str
    to_state: str
    at: datetime
    success: bool
    error: str | None = None


def _check_kind(path: str, value: object) -> Iterator[Problem]:
    if value not in MOVABLE or not isinstance(value, str):
        yield Problem(path, f"{checks.brief(value)} cannot be asked for a state. Use reset_breaker for a breaker.")


Id = Annotated[str, Rule(lambda *_: iter(()), {"type": "string", "minLength": 1})]
"""Whether there is such a thing depends on the kind."""
EntityKind = Annotated[Kind, Rule(_check_kind, {"enum": [kind.value for kind in MOVABLE]})]


class RequestTransition(Recorded[TransitionResult], frozen=True):
    """Move an entity by a trigger, or to a state, as document 000 asks for it; a refusal is an answer, too."""

    kind: Annotated[EntityKind, "What it is: run, task or worker."]
    entity_id: Annotated[Id, "Its id."]
    to_state: Annotated[Text | None, "The state to move it to; or say a trigger."] = None
    trigger: Annotated[Text | None, "The trigger to pull; or say a state."] = None

    @property
    def needs(self) -> Needs:
        match self.kind:
            case Kind.RUN:
                return Needs(run_ids=(self.entity_id,))
            case Kind.TASK:
                return Needs(task_ids=(self.entity_id,))
            case _:
                return Needs(worker_ids=(self.entity_id,), held_by=(self.entity_id,))

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:
        if found:
            return
        checks.identity(Kind(self.kind).value, self.entity_id)
        if (self.to_state is None) == (self.trigger is None):
            yield Problem("to_state", "Say either to_state or trigger.")

    def decide(self, work: Work) -> Callable[[], TransitionResult]:
        row: Run | Task | Worker
        match self.kind:
            case Kind.RUN:
                row = work.run(self.tenant, self.entity_id)
            case Kind.TASK:
                row = work.task(self.tenant, self.entity_id)
            case _:
                row = work.worker(self.tenant, self.entity_id)
        from_state = row.state
        refusal = self._move(work, row)
        result = TransitionResult(
            entity_id=row.id,
            from_state=from_state,
            to_state=row.state if refusal is None else self.to_state or from_state,
            at=work.now,
            success=refusal is None,
            error=refusal.message if refusal else None,
        )
        return lambda: result

    def _move(self, work: Work, row: Run | Task | Worker) -> Refusal | None:
        """Pull the trigger, or the first one that leads to the state and is not refused."""
        machine = work.machine(row)
        if self.trigger is not None:
            triggers = [self.trigger]
        else:
            triggers = [move.trigger for move in machine.between(row.state, self.to_state or "")]
        refusal = machine.refuse(row.state, self.to_state or self.trigger or "", already_there=row.state == self.to_state)
        for trigger in triggers:
            check_person(work, row, Kind(self.kind), trigger)
            refused = self._try(work, row, trigger, refusal)
            if refused is None:
                return None
            refusal = refused
        return refusal

    def _try(self, work: Work, row: Run | Task | Worker, trigger: str, elsewhere: Refusal) -> Refusal | None:
        decided = work.decide(row, trigger, _facts(work, row, self.caller.actor))
        if isinstance(decided, Refusal):
            return decided
        if self.to_state is not None and decided[0].to_state != self.to_state:
            return elsewhere
        # The same doors as for everybody else: a person who asks for a state gets no more than one who sends the signal.
        signal = decided[0].signal or trigger
        try:
            self._signal(row, signal).decide(work)
        except TransitionRefused as refused:
            return refused.refusal if isinstance(refused.refusal, Refusal) else elsewhere
        return None

    def _signal(self, row: Run | Task | Worker, signal: str) -> SignalRun | SignalTask | SignalWorker:
        match row:
            case Run():
                return SignalRun(row.id, signal, reason=self.reason, caller=self.caller)
            case Task():
                return SignalTask(row.id, signal, reason=self.reason, caller=self.caller)
            case Worker():
                return SignalWorker(row.id, signal, reason=self.reason, caller=self.caller)


def _facts(work: Work, row: Run | Task | Worker, actor: str) -> object:
    match row:
        case Run():
            return runs.facts_of(row, runs.assess(work, row))
        case Task():
            ended, reached = not tasks.may_run(row), gates.completes_quorum(row, actor)
            return tasks.TaskFacts(work, row, tasks.Report(process_ended=ended, quorum_reached=reached))
        case Worker():
            return workers.facts_of(work, row)
