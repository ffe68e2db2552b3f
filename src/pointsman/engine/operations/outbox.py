"""Operations on the outbox: the notifications that are to be delivered."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, ClassVar

from msgspec.structs import replace

from pointsman.engine.fields import Ids
from pointsman.engine.operation import Operation
from pointsman.engine.work import Work
from pointsman.store.contract import Wakeup
from pointsman.store.rows import OutboxCursor, OutboxEntry, OutboxScope

KEPT_FOR = timedelta(days=7)
"""How long the outbox keeps what was delivered."""
PURGED_WITH_EACH = 100
LONGEST_ERROR = 2000


class OpenOutbox(Operation[None], frozen=True):
    """Begin to fill the outbox for targets that are new."""

    shares_transaction: ClassVar[bool] = False
    is_bounded: ClassVar[bool] = False

    cursors: tuple[OutboxCursor, ...]

    def decide(self, work: Work) -> Callable[[], None]:
        for cursor in self.cursors:
            work.transaction.open_outbox_cursor(cursor)
        return lambda: None


class FillOutbox(Operation[int], frozen=True):
    """Add notifications, and advance the cursors of their targets; the answer is how many notifications it has added.

    A target whose cursor another process has advanced has them already.
    """

    shares_transaction: ClassVar[bool] = False
    is_bounded: ClassVar[bool] = False

    cursors: tuple[OutboxCursor, ...]
    position: int
    """Where the cursors are then."""
    entries: tuple[OutboxEntry, ...]

    def decide(self, work: Work) -> Callable[[], int]:
        transaction = work.transaction
        advanced = {
            (cursor.origin, cursor.target)
            for cursor in self.cursors
            if transaction.advance_outbox_cursor(cursor, self.position)
        }
        added = [entry for entry in self.entries if _cursor_of(entry) in advanced]
        for entry in added:
            transaction.insert_outbox(replace(entry, created_at=work.now, due_at=work.now))
        if added:
            transaction.purge_outbox(work.now - KEPT_FOR, PURGED_WITH_EACH)
            work.wakeups |= Wakeup.OUTBOX
        return lambda: len(added)


def _cursor_of(entry: OutboxEntry) -> tuple[str, str]:
    """All targets of flows share one cursor."""
    return entry.origin, entry.target if entry.origin == "settings" else ""


class ClaimOutbox(Operation[list[OutboxEntry]], frozen=True):
    """Claim notifications that are due; until the lease ends, no other process tries to deliver them."""

    shares_transaction: ClassVar[bool] = False
    is_bounded: ClassVar[bool] = False

    scope: OutboxScope
    limit: int
    lease_seconds: float

    def decide(self, work: Work) -> Callable[[], list[OutboxEntry]]:
        transaction, process = work.transaction, work.world.process
        ends = work.now + timedelta(seconds=self.lease_seconds)
        claimed = []
        for entry in transaction.select_due_outbox(self.scope, work.now, self.limit):
            transaction.claim_outbox(entry.id, process, ends)
            claimed.append(replace(entry, due_at=ends, claimed_by=process, tries=entry.tries + 1))
        return lambda: claimed


class SettleOutbox(Operation[bool], frozen=True):
    """Store how a try to deliver a notification ended; False when its lease had expired and another process has claimed it."""

    is_bounded: ClassVar[bool] = False

    entry: OutboxEntry
    error: str | None = None
    """None: it was delivered."""
    retry_seconds: float | None = None
    """After an error: when to try again; None for never."""

    def decide(self, work: Work) -> Callable[[], bool]:
        entry = replace(
            self.entry,
            due_at=None,
            error=self.error[:LONGEST_ERROR] if self.error is not None else None,
        )
        if self.error is None:
            entry = replace(entry, delivered_at=work.now)
        elif self.retry_seconds is None:
            entry = replace(entry, dead_at=work.now)
        else:
            entry = replace(entry, due_at=work.now + timedelta(seconds=self.retry_seconds))
            work.wakeups |= Wakeup.OUTBOX  # whoever sleeps until the end of the lease has to look again
        settled = work.transaction.settle_outbox(entry)
        return lambda: settled


class RetryNotifications(Operation[list[str]], frozen=True):
    """Try to deliver notifications again at once, with all their tries; the answer has those that will be tried."""

    ids: Annotated[Ids, "The ids of the notifications."]

    def decide(self, work: Work) -> Callable[[], list[str]]:
        retried = work.transaction.retry_outbox(self.tenant, self.ids, work.now)
        if retried:
            work.wakeups |= Wakeup.OUTBOX
        return lambda: retried
