"""Looking after things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pointsman.engine import doctor, timers
from pointsman.engine.command import Needs, Request
from pointsman.engine.doctor import Diagnosis
from pointsman.engine.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Tend:
    """Fire due timers, look after silent workers, forget old answers; has a transaction of its own."""

    answer_type: ClassVar[Any] = int
    limit: int = timers.BATCH
    skip: int = 0
    """How many of the due ones to pass by, because one of them cannot be dealt with."""
    tenant: str = ""
    request: Request | None = None

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, work: Work) -> Callable[[], int]:
        done = timers.tend(work, self.limit, self.skip)
        return lambda: done


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Put right what the doctor found; has a transaction of its own."""

    answer_type: ClassVar[Any] = int
    diagnoses: tuple[Diagnosis, ...]
    tenant: str = ""
    request: Request | None = None

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, work: Work) -> Callable[[], int]:
        doctor.repair(work, self.diagnoses)
        return lambda: len(self.diagnoses)
