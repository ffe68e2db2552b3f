"""The outbox: notifications in the database, from the transition that causes them to their delivery.

    event stream ── read ──▶ fill ──▶ claim ──▶ (a process delivers it) ──▶ settle: delivered, due again, or dead

A target has a cursor: the position of the stream up to which the outbox has everything for it. The cursor is advanced in the
transaction that adds the notifications, so each is added once, whichever process reads the stream.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from pointsman.engine.filters import EVERY_NOTIFICATION, NotificationFilter
from pointsman.engine.operation import Caller
from pointsman.engine.operations.outbox import ClaimOutbox, FillOutbox, OpenOutbox, SettleOutbox
from pointsman.engine.pages import NotificationPlace, select_page, sorted_by
from pointsman.engine.queries import Core
from pointsman.store.contract import Reader, read_position
from pointsman.store.rows import OutboxCursor, OutboxEntry, OutboxScope, Transition

FLOWS = ("flow", "")
"""The origin and target of the cursor that all targets of flows share."""


class Outbox:
    """What can be asked of the outbox of an engine."""

    def __init__(self, core: Core, caller: Caller) -> None:
        self._core = core
        self._caller = caller

    async def open(self, targets: Collection[str]) -> None:
        """Begin with what happens from now on, for the targets of flows and those of these settings that are new."""

        def find_new(reader: Reader) -> list[OutboxCursor]:
            known = {(cursor.origin, cursor.target) for cursor in reader.list_outbox_cursors()}
            wanted = [FLOWS, *(("settings", target) for target in sorted(targets))]
            new = [each for each in wanted if each not in known]
            position = read_position(reader.last_position()) if new else 0
            return [OutboxCursor(origin=origin, target=target, position=position) for origin, target in new]

        if new := await self._core.ask(find_new):
            await self._core.writer.submit(OpenOutbox(cursors=tuple(new)))

    async def list_cursors(self) -> list[OutboxCursor]:
        return await self._core.ask(lambda reader: reader.list_outbox_cursors())

    async def read(self, after: int, limit: int) -> tuple[list[Transition], int]:
        """Transitions of all tenants that may be worth a notification, and the position up to which there are no others."""

        def read(reader: Reader) -> tuple[list[Transition], int]:
            end = read_position(reader.last_position())
            page = reader.list_noteworthy_transitions(after, end, limit) if end > after else []
            return page, int(page[-1].position) if len(page) == limit else max(end, after)

        return await self._core.ask(read)

    async def fill(self, cursors: Iterable[OutboxCursor], position: int, entries: Iterable[OutboxEntry]) -> int:
        """Add notifications and advance these cursors; how many were added."""
        return int(
            await self._core.writer.submit(FillOutbox(cursors=tuple(cursors), position=position, entries=tuple(entries)))
        )

    async def claim(self, scope: OutboxScope, limit: int, lease_seconds: float) -> list[OutboxEntry]:
        """Claim notifications that are due, to deliver them before the lease ends."""
        claimed: list[OutboxEntry] = await self._core.writer.submit(
            ClaimOutbox(scope=scope, limit=limit, lease_seconds=lease_seconds)
        )
        return claimed

    async def settle(self, entry: OutboxEntry, error: str | None = None, retry_seconds: float | None = None) -> bool:
        """Store that a claimed notification was delivered; or the error, and when to try again, if ever."""
        return bool(await self._core.writer.submit(SettleOutbox(entry=entry, error=error, retry_seconds=retry_seconds)))

    @sorted_by(NotificationPlace)
    async def list_entries(
        self, wanted: NotificationFilter = EVERY_NOTIFICATION, *, after: str | None = None, limit: int | None = None
    ) -> list[OutboxEntry]:
        """Newest first."""
        page = select_page(NotificationPlace, after, limit, NotificationFilter, wanted)
        return await self._core.ask(lambda reader: reader.list_outbox(self._caller.tenant, **page))

    async def find_entries(self, ids: Collection[str]) -> list[OutboxEntry]:
        return await self._core.ask(lambda reader: reader.find_outbox(self._caller.tenant, ids))

    async def count_undelivered(self, scope: OutboxScope) -> int:
        return await self._core.ask(lambda reader: reader.count_outbox(scope))

    async def seconds_until_due(self, scope: OutboxScope) -> float:
        """In how many seconds the next of these is to be tried."""

        def look(reader: Reader) -> float:
            due = reader.next_due_outbox(scope)
            return (due - reader.now()).total_seconds() if due else math.inf

        return await self._core.ask(look)
