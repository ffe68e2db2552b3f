"""Events of the engine itself, for metrics and tracing: what it commits, refuses and retries, and how its duties go."""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct

log = logging.getLogger(__name__)


class EngineEvent(Struct, frozen=True):
    """Something that the engine did. A hook gets each, at once, in the thread in which it happened, and must not block."""


class BatchCommitted(EngineEvent, frozen=True):
    operations: int
    refused: int
    waited_seconds: float
    """By all its operations together, from arrival to the beginning of the transaction."""
    wrote_seconds: float
    queue_length: int
    """How many operations have arrived meanwhile."""


class BatchRetried(EngineEvent, frozen=True):
    """The database was busy or away, or another process changed a row first."""

    error: Exception


class BatchSplit(EngineEvent, frozen=True):
    """The database refused a batch: it is halved until the culprit is alone."""

    operations: int
    error: Exception


class OperationRefused(EngineEvent, frozen=True):
    operation: str
    error: Exception


class KeysChecked(EngineEvent, frozen=True):
    """Operations with an idempotency key were decided."""

    hits: int
    """Requests that were repeated: they got the answer of the first one."""
    misses: int
    """Requests that were the first with their key."""


class LeasesLost(EngineEvent, frozen=True):
    attempts: int


class Overload(EngineEvent, frozen=True):
    """The queue of the writer was full, and an operation was turned away."""

    queue_length: int
    retry_after_seconds: float


class DutyPerformed(EngineEvent, frozen=True):
    name: str
    seconds: float
    done: int
    error: Exception | None = None


Hook = Callable[[EngineEvent], None]


class Hooks:
    """Passes every event to the attached hooks."""

    def __init__(self) -> None:
        self._attached: tuple[Hook, ...] = ()

    def attach(self, hook: Hook) -> Callable[[], None]:
        """Call `hook` with every event; returns what detaches it."""
        self._attached += (hook,)

        def detach() -> None:
            self._attached = tuple(each for each in self._attached if each is not hook)

        return detach

    def emit(self, event: EngineEvent) -> None:
        """What a hook raises is logged, and harms neither the engine nor the other hooks."""
        for hook in self._attached:
            try:
                hook(event)
            except Exception:
                log.exception("a hook failed at %s", type(event).__name__)

    def __bool__(self) -> bool:
        return bool(self._attached)
