"""Work for a thread that is shared: what arrives while the thread works is done together next, in one go.

    ask ─┐
    ask ─┼─▶ waiting ──▶ one thread does all of it ──▶ answers
    ask ─┘

To hand a short piece of work to a thread costs more than the work. With a single caller nothing is shared, and nothing waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Asked = TypeVar("Asked")

MOST_TOGETHER = 100
"""So that nobody waits for more than that many others."""


@dataclass(slots=True)
class Together(Generic[Asked]):
    """Does work of one kind, for one event loop."""

    work: Callable[[Sequence[Asked]], Sequence[Any]]
    """Called in a thread: does all of it, and returns for each the answer, or the error that it met."""
    _waiting: list[tuple[Asked, asyncio.Future[Any]]] = field(default_factory=list)
    _working: asyncio.Task[None] | None = None

    def ask(self, asked: Asked) -> asyncio.Future[Any]:
        """Have it done; must be called in the event loop, which gets the answer."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        if self._working is None:
            self._working = asyncio.create_task(self._do_all())
        return future

    async def _do_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
                await self._do(batch)
        finally:
            self._working = None

    async def _do(self, batch: Sequence[tuple[Asked, asyncio.Future[Any]]]) -> None:
        try:
            answers = await asyncio.to_thread(self.work, [asked for asked, _ in batch])
        except Exception as error:  # noqa: BLE001 - whatever it is, it must reach those who wait
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
