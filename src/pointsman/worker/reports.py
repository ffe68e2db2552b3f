"""Reports to the engine: they are gathered until the worker hands them over, all that are there at once.

    attempts ── complete, send ──▶ gathered ── hand_over ──▶ one commit, and the claim for the slots that they free in it

So a worker that finishes something and takes up the next thing does both in one commit.
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
    """What attempts have come to."""

    def __init__(self, engine: Engine, arrived: Callable[[], None]) -> None:
        """`arrived` is called when there is something to be handed over."""
        self._engine = engine
        self._arrived = arrived
        self._completions: list[tuple[Completion, asyncio.Future[None], Sent]] = []
        self._others: list[tuple[Coroutine[Any, Any, Any], asyncio.Future[Any], Sent]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def complete(self, completion: Completion, sent: Sent) -> None:
        """Work that was done; `sent` is called when it is handed over, and this returns when it is durable."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._completions.append((completion, future, sent))
        self._arrived()
        await future

    async def send(self, report: Coroutine[Any, Any, Answer], sent: Sent) -> Answer:
        """The same for anything else that the engine is to be told."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._others.append((report, future, sent))
        self._arrived()
        return await future

    def hand_over(self) -> bool:
        """Send all that has been gathered; whether that is anything.

        A claim that is begun before the event loop comes round is decided in the same commit, behind them.
        """
        completions, self._completions = self._completions, []
        others, self._others = self._others, []
        if completions:
            self._begin(self._complete_all(completions))
        for report, future, _ in others:
            self._begin(_pass_on(report, future))
        for *_, sent in (*completions, *others):
            sent()
        return bool(completions or others)

    def close(self) -> None:
        """Nobody hands anything over any more."""
        for report, _, _ in self._others:
            report.close()

    def _begin(self, sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(sending)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

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


async def _pass_on(report: Coroutine[Any, Any, Answer], future: asyncio.Future[Answer]) -> None:
    try:
        answer = await report
    except PointsmanError as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(answer)
