"""Group commit: one thread takes whatever has arrived, has it decided in one transaction, and answers when that is durable.

While one batch is being written the next one gathers, so batches grow with the load, and nobody waits for company.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pointsman.engine.command import Command
from pointsman.engine.commands.tend import Repair, Tend
from pointsman.engine.queries import CLOSED
from pointsman.errors import (
    Conflict,
    EngineClosed,
    OutcomeUnknown,
    PointsmanError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from pointsman.store.contract import Store, Transaction
from pointsman.world import Chance, Clock

MAX_BATCH = 500
TRIES = 6
"""How often a batch is tried when the database is busy or away; the pauses between grow to a few seconds in all."""
FIRST_PAUSE_SECONDS = 0.02

ALONE = (Tend, Repair)
"""These lock what they find on their way, so they must hold nothing before."""

Decide = Callable[[Transaction, Sequence[Command[Any]]], list[Any]]


@dataclass(slots=True)
class CommitMetrics:
    """How commits are shared."""

    batches: int = 0
    commands: int = 0
    largest_batch: int = 0
    retries: int = 0
    splits: int = 0
    refused: int = 0
    waited_seconds: float = 0.0
    """By all commands together, from arrival to the beginning of their transaction."""
    wrote_seconds: float = 0.0
    """By all batches together."""

    @property
    def mean_batch(self) -> float:
        return self.commands / self.batches if self.batches else 0.0


@dataclass(slots=True)
class _Waiting:
    command: Command[Any]
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
    metrics: CommitMetrics = field(default_factory=CommitMetrics)
    _queue: deque[_Waiting] = field(default_factory=deque)
    _arrived: threading.Condition = field(default_factory=threading.Condition)
    _closing: threading.Event = field(default_factory=threading.Event)
    _is_over: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="pointsman-writer", daemon=True)
        self._thread.start()

    def submit(self, command: Command[Any]) -> asyncio.Future[Any]:
        """Queue a command; must be called from a running event loop, which gets the answer."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._arrived:
            if self._is_over:
                future.set_exception(EngineClosed(CLOSED))
            else:
                self._queue.append(_Waiting(command, self.clock.monotonic(), loop, future))
                self._arrived.notify()
        return future

    def close(self) -> None:
        """Finish what has arrived, and stop."""
        self._closing.set()
        with self._arrived:
            self._arrived.notify()
        if self._thread:
            self._thread.join()

    def execute(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Decide and commit a batch here and now; each command gets its answer or its error, and none is lost."""
        try:
            return self._try(commands)
        except OutcomeUnknown as error:
            return self._ask_again(commands, error)
        except (StoreBusy, StoreFull, StoreUnavailable) as error:
            return [error] * len(commands)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must reach whoever asked, and not end the writer
            if len(commands) == 1:
                return [error]
        # Something in the batch breaks a law of the database, or a defect of ours: halve it until the culprit is alone.
        self.metrics.splits += 1
        middle = len(commands) // 2
        return self.execute(commands[:middle]) + self.execute(commands[middle:])

    def _ask_again(self, commands: Sequence[Command[Any]], error: OutcomeUnknown) -> list[Any]:
        """What has an idempotency key can be asked again without doing it twice; the others hear that nobody knows."""
        outcomes: list[Any] = [error] * len(commands)
        keyed = [index for index, command in enumerate(commands) if command.request]
        try:
            answers = self._try([commands[index] for index in keyed]) if keyed else []
        except StoreError:
            return outcomes
        for index, answer in zip(keyed, answers, strict=True):
            outcomes[index] = answer
        return outcomes

    def _try(self, commands: Sequence[Command[Any]]) -> list[Any]:
        pause = FIRST_PAUSE_SECONDS
        for remaining in reversed(range(TRIES)):
            try:
                return self._commit(commands)
            except OutcomeUnknown:
                raise  # to try again could do it twice
            except (StoreBusy, StoreUnavailable, Conflict) as error:
                # Whoever closes does not wait for a database that is away; a connection that was lost is tried once more.
                is_away = isinstance(error, StoreUnavailable) and self._closing.is_set() and remaining < TRIES - 1
                if not remaining or is_away:
                    raise
            self.metrics.retries += 1
            self._closing.wait(pause * self.chance.uniform(0.5, 1.5))
            pause *= 3
        raise AssertionError("the last try returns or raises")

    def _commit(self, commands: Sequence[Command[Any]]) -> list[Any]:
        transaction = self.store.begin()
        try:
            return self.decide(transaction, commands)
        except BaseException:
            transaction.rollback()
            raise

    def _work(self) -> None:
        while batch := self._take():
            began = self.clock.monotonic()
            outcomes = self.execute([waiting.command for waiting in batch])
            self._measure(batch, outcomes, began)
            _deliver(batch, outcomes)

    def _take(self) -> list[_Waiting]:
        """What has arrived, up to a limit; a command that wants a transaction of its own gets one."""
        with self._arrived:
            while not self._queue:
                if self._closing.is_set():
                    self._is_over = True
                    return []
                self._arrived.wait()
            batch = [self._queue.popleft()]
            if isinstance(batch[0].command, ALONE):
                return batch
            while self._queue and len(batch) < MAX_BATCH and not isinstance(self._queue[0].command, ALONE):
                batch.append(self._queue.popleft())
            return batch

    def _measure(self, batch: Sequence[_Waiting], outcomes: Sequence[Any], began: float) -> None:
        metrics = self.metrics
        metrics.batches += 1
        metrics.commands += len(batch)
        metrics.largest_batch = max(metrics.largest_batch, len(batch))
        metrics.refused += sum(isinstance(outcome, PointsmanError) for outcome in outcomes)
        metrics.waited_seconds += sum(began - waiting.arrived for waiting in batch)
        metrics.wrote_seconds += self.clock.monotonic() - began


def _deliver(batch: Sequence[_Waiting], outcomes: Sequence[Any]) -> None:
    """Hand the answers over, with one call for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for waiting, outcome in zip(batch, outcomes, strict=True):
        by_loop.setdefault(waiting.loop, []).append((waiting.future, outcome))
    for loop, answers in by_loop.items():
        with suppress(RuntimeError):  # the loop has been closed: nobody waits there any longer
            loop.call_soon_threadsafe(_resolve, answers)


def _resolve(answers: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in answers:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
