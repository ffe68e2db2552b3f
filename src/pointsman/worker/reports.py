"""Reports to the engine, collected until the worker sends them all at once.

    attempts ── send ──▶ collected ── hand_over ──▶ one commit, together with the claim for the slots that they free

So a worker that finishes one task and starts the next does both in one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import ReportAttempt
from pointsman.errors import PointsmanError

Sent = Callable[[], None]
Gathered = tuple[ReportAttempt, asyncio.Future[None], Sent]


class Reports:
    """The unsent reports of a worker."""

    def __init__(self, engine: Engine, arrived: Callable[[], None]) -> None:
        """`arrived` is called when there is a report to send."""
        self._engine = engine
        self._arrived = arrived
        self._gathered: list[Gathered] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def send(self, report: ReportAttempt, sent: Sent) -> None:
        """`sent` is called when the report is handed over; this returns when it is durable, or raises why it was refused."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gathered.append((report, future, sent))
        self._arrived()
        await future

    def hand_over(self) -> bool:
        """Send everything that has been gathered; whether there was anything.

        A claim that is started before the event loop runs again is decided in the same commit, after the reports.
        """
        gathered, self._gathered = self._gathered, []
        if gathered:
            sending = asyncio.ensure_future(self._send_all(gathered))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        for *_, sent in gathered:
            sent()
        return bool(gathered)

    async def _send_all(self, group: list[Gathered]) -> None:
        try:
            refusals = await self._engine.report_attempts([report for report, _, _ in group])
        except PointsmanError as error:
            refusals = [error] * len(group)
        for (_, future, _), refusal in zip(group, refusals, strict=True):
            if future.done():
                continue
            if refusal is None:
                future.set_result(None)
            else:
                future.set_exception(refusal)
