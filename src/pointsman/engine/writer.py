"""Group commit: one thread takes all waiting operations, decides them in one transaction, and answers when it is durable.

While one batch is being written the next one gathers, so batches grow with the load, and no operation waits for others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pointsman.engine.hooks import BatchCommitted, BatchRetried, BatchSplit, Hooks, OperationRefused, Overload
from pointsman.engine.operation import Operation, name_of
from pointsman.engine.timekeeper import Timekeeper
from pointsman.errors import (
    Conflict,
    EngineClosed,
    OutcomeUnknown,
    Overloaded,
    PointsmanError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreGone,
    StoreUnavailable,
    StoreUnusable,
    Unforeseen,
)
from pointsman.store.contract import Foresee, Store, Transaction
from pointsman.world import Chance, Clock

MAX_BATCH = 500
TRIES = 6
"""How often a batch is tried when the database is busy or away; the pauses between grow to a few seconds in all."""
FIRST_PAUSE_SECONDS = 0.02
LONGEST_AWAY_SECONDS = 5.0
"""A database that has been away for so long is not tried again: callers have to hear of it, and may try themselves."""

MOST_FOLLOW_UPS = 5
"""Each waits for the locks of others, and may find more to do; callers should not wait for all that others do."""

MAX_QUEUE = 10_000
"""How many operations wait for the writer at most; further ones are refused, so that memory and answers stay bounded."""
LONGEST_RETRY_AFTER_SECONDS = 30.0
WARN_EVERY = 1000
"""So many refused operations are one line of the log."""
CLOSED = "The engine has been closed. Open it again."

log = logging.getLogger(__name__)
Decide = Callable[[Transaction, Sequence[Operation[Any]]], list[Any]]


@dataclass(slots=True)
class CommitMetrics:
    """How commits are shared."""

    batches: int = 0
    operations: int = 0
    largest_batch: int = 0
    retries: int = 0
    splits: int = 0
    refused: int = 0
    waited_seconds: float = 0.0
    """By all operations together, from arrival to the beginning of their transaction."""
    wrote_seconds: float = 0.0
    """By all batches together."""

    turned_away: int = 0
    """Operations that came while the queue was full."""

    def add(self, operations: int, refused: int, waited_seconds: float, wrote_seconds: float) -> None:
        """Count one batch."""
        self.batches += 1
        self.operations += operations
        self.largest_batch = max(self.largest_batch, operations)
        self.refused += refused
        self.waited_seconds += waited_seconds
        self.wrote_seconds += wrote_seconds

    @property
    def seconds_each(self) -> float:
        return self.wrote_seconds / self.operations if self.operations else 0.0


@dataclass(slots=True)
class _Waiting:
    operation: Operation[Any]
    arrived: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


@dataclass(slots=True)
class Writer:
    """The one writer of a store."""

    store: Store
    decide: Decide
    clock: Clock
    chance: Chance
    timekeeper: Timekeeper
    hooks: Hooks = field(default_factory=Hooks)
    follow_up: Callable[[], Operation[Any] | None] = lambda: None
    """What is left to do after a batch, in a transaction of its own, before the batch is answered."""
    max_queue: int = MAX_QUEUE
    foresee: Callable[[Sequence[Operation[Any]]], Foresee | None] = lambda _: None
    """What a batch will probably ask of its transaction."""
    miss: Callable[[int | None], None] = lambda _: None
    """Learns how much of that was right, when something else was asked."""
    metrics: CommitMetrics = field(default_factory=CommitMetrics)
    _queue: deque[_Waiting] = field(default_factory=deque)
    _arrived: threading.Condition = field(default_factory=threading.Condition)
    _closing: threading.Event = field(default_factory=threading.Event)
    _is_over: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="pointsman-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        """Queue an operation; must be called from a running event loop, which gets the answer."""
        return self.submit_together([operation])[0]

    def submit_together(self, operations: Sequence[Operation[Any]]) -> list[asyncio.Future[Any]]:
        """Queue operations that share a transaction if they may, and a batch if it has room for them."""
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in operations]
        with self._arrived:
            for operation, future in zip(operations, futures, strict=True):
                length = len(self._queue)
                if self._is_over:
                    future.set_exception(EngineClosed(CLOSED))
                elif length < self.max_queue or not operation.is_bounded:
                    self._queue.append(_Waiting(operation, self.clock.monotonic(), loop, future))
                else:
                    future.set_exception(self._refuse(length))
            self._arrived.notify()
        return futures

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    def _refuse(self, length: int) -> Overloaded:
        """The queue is full: try again when half of it should have been written."""
        seconds = min(max(0.1, self.metrics.seconds_each * length / 2), LONGEST_RETRY_AFTER_SECONDS)
        if not self.metrics.turned_away % WARN_EVERY:
            log.warning("the queue of the writer is full", extra={"queue_length": length, "retry_after_seconds": seconds})
        self.metrics.turned_away += 1
        self.hooks.emit(Overload(length, seconds))
        return Overloaded(length, seconds)

    def close(self) -> None:
        """Finish what has arrived, and stop."""
        self._closing.set()
        with self._arrived:
            self._arrived.notify()
        if self._thread:
            self._thread.join()

    def execute(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Decide and commit a batch here and now; each operation gets its answer or its error, and none is lost."""
        try:
            return self._try(operations)
        except OutcomeUnknown as error:
            return self._ask_again(operations, error)
        except (StoreBusy, StoreFull, StoreGone, StoreUnavailable) as error:
            return [error] * len(operations)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must reach the caller, and not end the writer
            self._report_culprit(operations, error)
            if len(operations) == 1:
                return [error]
        # Something in the batch breaks a law of the database, or is a defect of ours: halve it until the culprit is alone.
        self.metrics.splits += 1
        middle = len(operations) // 2
        return self.execute(operations[:middle]) + self.execute(operations[middle:])

    def _report_culprit(self, operations: Sequence[Operation[Any]], error: Exception) -> None:
        if len(operations) > 1:
            self.hooks.emit(BatchSplit(len(operations), error))
            return
        if isinstance(error, StoreUnusable):
            return  # for want of a privilege: the caller is told
        (operation,) = operations
        log.error(
            "the database or a defect refused an operation: %s",
            error,
            exc_info=error,
            extra={"operation": name_of(type(operation)), "tenant": operation.tenant},
        )

    def _ask_again(self, operations: Sequence[Operation[Any]], error: OutcomeUnknown) -> list[Any]:
        """Operations with an idempotency key can be repeated without a second effect; the others get OutcomeUnknown."""
        outcomes: list[Any] = [error] * len(operations)
        keyed = [index for index, operation in enumerate(operations) if operation.request]
        try:
            answers = self._try([operations[index] for index in keyed]) if keyed else []
        except StoreError:
            return outcomes
        for index, answer in zip(keyed, answers, strict=True):
            outcomes[index] = answer
        return outcomes

    def _try(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        pause, first_failed = FIRST_PAUSE_SECONDS, None
        for remaining in reversed(range(TRIES)):
            try:
                return self._commit(operations)
            except OutcomeUnknown:
                raise  # to try again could do it twice
            except (StoreBusy, StoreUnavailable, Conflict) as error:
                if first_failed is None:
                    first_failed = self.clock.monotonic()
                if not remaining or (isinstance(error, StoreUnavailable) and self._is_away(remaining, first_failed)):
                    # Its callers get the error, and say so.
                    log.info("a batch was given up: %s", error, extra={"operations": len(operations)})
                    raise
                self.hooks.emit(BatchRetried(error))
            self.metrics.retries += 1
            self._closing.wait(pause * self.chance.uniform(0.5, 1.5))
            pause *= 3
        raise AssertionError("the last try returns or raises")

    def _is_away(self, remaining: int, first_failed: float) -> bool:
        """Whether to give up. A closing engine does not wait for a database that is away; it retries a lost connection once."""
        if self._closing.is_set():
            return remaining < TRIES - 1
        return self.clock.monotonic() - first_failed >= LONGEST_AWAY_SECONDS

    def _commit(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        foresee = self.foresee(operations)
        while foresee:
            try:
                return self._commit_once(operations, foresee)
            except Unforeseen as error:
                self.miss(error.right)
                foresee = foresee.alone() if error.right is None else None
            except StoreBusy:
                if not foresee.shares:
                    raise
                foresee = foresee.alone()
        return self._commit_once(operations, None)

    def _commit_once(self, operations: Sequence[Operation[Any]], foresee: Foresee | None) -> list[Any]:
        transaction = self.timekeeper.begin(self.store, foresee)
        try:
            return self.decide(transaction, operations)
        except BaseException:
            transaction.rollback()
            raise

    def _work(self) -> None:
        while batch := self._take():
            began = self.clock.monotonic()
            if log.isEnabledFor(logging.DEBUG):
                log.debug("a batch begins", extra={"operations": [name_of(type(each.operation)) for each in batch]})
            outcomes = self.execute([waiting.operation for waiting in batch])
            for _ in range(MOST_FOLLOW_UPS):
                if (left := self.follow_up()) is None:
                    break
                self.execute([left])
            self._measure(batch, outcomes, began)
            _deliver(batch, outcomes)

    def _take(self) -> list[_Waiting]:
        """What has arrived, up to a limit; an operation that needs its own transaction gets one."""
        with self._arrived:
            while not self._queue:
                if self._closing.is_set():
                    self._is_over = True
                    return []
                self._arrived.wait()
            batch = [self._queue.popleft()]
            if not batch[0].operation.shares_transaction:
                return batch
            while self._queue and len(batch) < MAX_BATCH and self._queue[0].operation.shares_transaction:
                batch.append(self._queue.popleft())
            return batch

    def _measure(self, batch: Sequence[_Waiting], outcomes: Sequence[Any], began: float) -> None:
        refused = sum(isinstance(outcome, PointsmanError) for outcome in outcomes)
        waited = sum(began - waiting.arrived for waiting in batch)
        wrote = self.clock.monotonic() - began
        self.metrics.add(len(batch), refused, waited, wrote)
        if self.hooks:
            self.hooks.emit(BatchCommitted(len(batch), refused, waited, wrote, len(self._queue)))
            for waiting, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, PointsmanError):
                    self.hooks.emit(OperationRefused(name_of(type(waiting.operation)), outcome))


def _deliver(batch: Sequence[_Waiting], outcomes: Sequence[Any]) -> None:
    """Hand the answers over, with one call for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for waiting, outcome in zip(batch, outcomes, strict=True):
        by_loop.setdefault(waiting.loop, []).append((waiting.future, outcome))
    for loop, answers in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_resolve, answers)


def _resolve(answers: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in answers:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
