"""Reports to the engine: what ends at the same time is sent as one command.

A slot is free as soon as its report is under way: the claim that follows is queued behind it, so both share a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pointsman.engine.engine import Completion, Engine
from pointsman.errors import PointsmanError

Answer = TypeVar("Answer")
Sent = Callable[[], None]


class Reports:
    """Sends what attempts have come to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._gathered: list[tuple[Completion, asyncio.Future[None], Sent]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def send(self, report: Coroutine[Any, Any, Answer], sent: Sent) -> Answer:
        """One report by itself; `sent` is called when it has been handed over, and this returns when it is durable."""
        task = asyncio.ensure_future(report)
        asyncio.get_running_loop().call_soon(sent)  # behind the first step of the task, which hands it over
        return await task

    async def complete(self, completion: Completion, sent: Sent) -> None:
        """The same for work that was done, together with whatever else is done by the time the event loop comes round."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if not self._gathered:
            loop.call_soon(self._send_gathered)
        self._gathered.append((completion, future, sent))
        await future

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        task = asyncio.ensure_future(self._complete_all(gathered))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        for _, _, sent in gathered:
            asyncio.get_running_loop().call_soon(sent)

    async def _complete_all(self, gathered: list[tuple[Completion, asyncio.Future[None], Sent]]) -> None:
        try:
            refusals = await self._engine.complete_tasks([completion for completion, _, _ in gathered])
        except PointsmanError as error:
            refusals = [error] * len(gathered)
        for (_, future, _), refusal in zip(gathered, refusals, strict=True):
            if future.done():
                continue
            if refusal is None:
                future.set_result(None)
            else:
                future.set_exception(refusal)
