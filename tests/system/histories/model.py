"""What a model is: which states one subject may be in, and which answers each of them explains.

Models are written by hand from the specification. They import nothing of the engine, the kernel, the store or the lifecycles:
whoever shares a mistake with the engine cannot find it.

    records ──by subject──▶ operations ──take──▶ state ──take──▶ state …      what clients saw
                                          └─drift─▶ state                      what happens unseen: leases, timers, sweepers
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tests.system.histories.record import Record

S = TypeVar("S")
LOOKS = ("look", "count", "get_run", "get_breaker", "list_workers")
"""Acts that change nothing, wherever they come."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """What one record means to one subject: a claim of three tasks is three operations, each with its own epoch."""

    record: Record
    act: str
    details: Mapping[str, Any] = field(default_factory=dict)
    after: Operation | None = None
    """Comes after that one: an answer shows the subject as it is when everything has followed, or later."""
    may_be_missing: bool = False
    """Nobody knows whether it happened, although an answer came."""

    @property
    def invoked_at(self) -> float:
        return self.record.invoked_at

    @property
    def returned_at(self) -> float:
        return math.inf if self.is_unknown or self.record.returned_at is None else self.record.returned_at

    @property
    def is_unknown(self) -> bool:
        return self.record.fate == "unknown"

    @property
    def has_to_be(self) -> bool:
        return not self.is_unknown and not self.may_be_missing

    @property
    def is_refused(self) -> bool:
        return self.record.fate == "refused"

    @property
    def changes_nothing(self) -> bool:
        return self.is_refused or self.act in LOOKS


class Model(Protocol[S]):
    """One subject with its history; states are values that can be compared and hashed."""

    @property
    def subject(self) -> str: ...
    @property
    def start(self) -> S: ...
    @property
    def operations(self) -> Sequence[Operation]: ...

    def take(self, state: S, operation: Operation, *, heard: bool) -> Iterable[S]:
        """The states in which `operation` may leave it with the answer it got, or with any when that was not `heard`."""
        ...

    def drift(self, state: S) -> Iterable[S]:
        """The states that it may come to unseen."""
        ...

    def not_before(self, state: S) -> float:
        """The earliest instant at which it can be in this state."""
        ...


def key_of(record: Record) -> tuple[str, str, str] | None:
    """Tenant, route and idempotency key: what makes two requests twins."""
    arguments = record.arguments
    if not (key := arguments.get("request_id")):
        return None
    route = f"{arguments['signal']} by its worker" if record.operation == "signal_attempt" else record.operation
    return arguments.get("tenant", "default"), route, key


def is_without_effect(record: Record) -> bool:
    """Refusals that say nothing about their subject: the request was bad, or the database had no time for it."""
    return record.error in ("RequestInvalid", "KeyReused", "StoreBusy", "StoreFull", "StoreUnavailable")
