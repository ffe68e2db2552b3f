"""Operations that keep the database itself in order, for all tenants; the duties of the engine perform them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import ClassVar

from msgspec.structs import replace

from pointsman.engine import doctor, timers, workers
from pointsman.engine.doctor import Diagnosis
from pointsman.engine.operation import Operation, Recorded, Request
from pointsman.engine.work import Work
from pointsman.store.clock import NEVER
from pointsman.store.rows import DutyFailure, Seal

FORGET_FAILURES_AFTER = timedelta(hours=1)
LONGEST_ERROR = 2000
NOTE_USE_SECONDS = 60.0


class Upkeep(Operation[int], frozen=True):
    """Deals with what is due, up to a limit; the answer is how much that was."""

    shares_transaction: ClassVar[bool] = False
    is_bounded: ClassVar[bool] = False

    limit: int = timers.BATCH
    skip: int = 0
    """How many of the due ones to pass over, because one of them cannot be dealt with."""


class FireTimers(Upkeep, frozen=True):
    """Fire the timers that are due."""

    def decide(self, work: Work) -> Callable[[], int]:
        fired = timers.fire_due(work, self.limit, self.skip)
        return lambda: fired


class ExpireWorkers(Upkeep, frozen=True):
    """Take the tasks of workers whose lease has expired."""

    since: datetime = NEVER
    """Every worker counts as heard of then."""

    def decide(self, work: Work) -> Callable[[], int]:
        missed = timers.miss_silent(work, self.limit, self.skip, self.since)
        return lambda: missed


class PurgeKeys(Upkeep, frozen=True):
    """Forget the answers to idempotency keys that have expired."""

    def decide(self, work: Work) -> Callable[[], int]:
        purged = work.transaction.purge_responses(work.now, self.limit)
        return lambda: purged


class StoreSeal(Operation[bool], frozen=True):
    """Append a seal to the chain; the answer is False when another process has sealed the same transitions."""

    is_bounded: ClassVar[bool] = False

    seal: Seal

    def decide(self, work: Work) -> Callable[[], bool]:
        stored = work.transaction.insert_seal(self.seal)
        return lambda: stored


class Allocate(Operation[None], frozen=True):
    """Allocate workers to runs that another transaction had locked, or whose workers it had locked."""

    shares_transaction: ClassVar[bool] = False
    is_bounded: ClassVar[bool] = False

    run_ids: tuple[str, ...]

    def decide(self, work: Work) -> Callable[[], None]:
        workers.lock_for_allocation(work, self.run_ids)
        return lambda: None


class NoteDuty(Operation[None], frozen=True):
    """Keep that a duty fails in this process, or that it works again: then `error` is None."""

    is_bounded: ClassVar[bool] = False

    name: str
    error: str | None
    failures: int

    def decide(self, work: Work) -> Callable[[], None]:
        process = work.world.process
        work.transaction.drop_duty_failures(self.name, process, work.now - FORGET_FAILURES_AFTER)
        if self.error is not None:
            failure = DutyFailure(
                name=self.name, process=process, failures=self.failures, error=self.error[:LONGEST_ERROR], failed_at=work.now
            )
            work.transaction.save_duty_failure(failure)
        return lambda: None


class NoteKeyUse(Operation[None], frozen=True):
    """Keep when an API key was used, to the minute. An overloaded writer refuses it, and a later use is noted."""

    key_id: str

    def decide(self, work: Work) -> Callable[[], None]:
        work.transaction.note_key_use(self.key_id, work.now, work.now - timedelta(seconds=NOTE_USE_SECONDS))
        return lambda: None


class Treatment(Recorded[list[Diagnosis]], frozen=True):
    """Something to do about what the doctor found; the answer is what that was."""

    shares_transaction: ClassVar[bool] = False

    diagnoses: tuple[Diagnosis, ...]

    @property
    def request(self) -> Request | None:
        """What the doctor finds differs from one try to the next; what the person asks for does not."""
        return super(Treatment, replace(self, diagnoses=())).request


class Restore(Treatment, frozen=True):
    """Put rows that contradict their audit trails back to where these end, before anything else is locked."""

    def decide(self, work: Work) -> Callable[[], list[Diagnosis]]:
        doctor.restore(work, self.diagnoses)
        return lambda: list(self.diagnoses)


class Repair(Treatment, frozen=True):
    """Put right what the doctor found."""

    def decide(self, work: Work) -> Callable[[], list[Diagnosis]]:
        doctor.repair(work, self.diagnoses, self.cause)
        return lambda: list(self.diagnoses)
