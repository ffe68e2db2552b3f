"""What can go wrong between the engine and its database: a thin proxy at the contract of the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pointsman.errors import Conflict, OutcomeUnknown, StoreBusy, StoreFull, StoreUnavailable
from pointsman.store.contract import Foresee, Store, Transaction, Wakeup


class Crashed(BaseException):
    """The process was killed here; nothing may catch it but the scheduler."""


@dataclass(slots=True)
class Fault:
    """One thing that shall go wrong in the next transaction of a process, or in the next few."""

    kind: str
    """crash, unknown, busy, unavailable, conflict or full"""
    after_calls: int = 0
    """How many calls of the store go well before."""
    times: int = 1
    committed: bool = False
    """A crash or a lost answer at the commit: whether the commit was done before."""

    def __str__(self) -> str:
        at = "at the commit" if self.kind in ("unknown", "full") else f"after {self.after_calls} calls"
        return f"{self.kind} {at}, {self.times} times{', committed' if self.committed else ''}"


class FaultyStore:
    """A store whose next transactions may meet a fault."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fault: Fault | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def begin(self, foresee: Foresee | None = None) -> Transaction:
        fault = self.fault
        if fault is None:
            return self._store.begin(foresee)
        fault.times -= 1
        if fault.times <= 0:
            self.fault = None
        if fault.kind == "busy":
            raise StoreBusy("simulated: somebody holds the database")
        return cast("Transaction", FaultyTransaction(self._store.begin(), fault))


class FaultyTransaction:
    """A transaction that meets its fault at a certain call, or at the commit if it does not last that long."""

    def __init__(self, transaction: Transaction, fault: Fault) -> None:
        self._transaction = transaction
        self._fault = fault
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._transaction, name)

        def call(*values: Any, **named: Any) -> Any:
            self._calls += 1
            if self._calls > self._fault.after_calls:
                self._meet()
            return method(*values, **named)

        return call

    def _meet(self) -> None:
        match self._fault.kind:
            case "crash":
                raise Crashed
            case "unavailable":
                raise StoreUnavailable("simulated: the database went away")
            case "conflict":
                raise Conflict("simulated: somebody else was quicker")
            case _:
                pass  # at the commit

    def commit(self, news: Wakeup = Wakeup.NOTHING) -> None:
        fault = self._fault
        end: Callable[[], None] = self._transaction.rollback
        if fault.committed or fault.kind in ("unavailable", "conflict"):
            end = lambda: self._transaction.commit(news)  # noqa: E731
        end()
        match fault.kind:
            case "crash":
                raise Crashed
            case "unknown":
                raise OutcomeUnknown("simulated: the answer to the commit was lost")
            case "full":
                raise StoreFull("simulated: the disk is full")
            case _:
                pass  # it did not last until then

    def rollback(self) -> None:
        self._transaction.rollback()
