"""Notifications: what was told to whom, and whether it was delivered."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from pointsman.store.rows import OutboxEntry

Delivery = Literal["due", "dead", "delivered"]


class NotificationView(Struct, frozen=True, kw_only=True):
    """A notification for one target, without its text."""

    id: str
    target: str
    declared_in: str
    """`settings` or `flow`."""
    method: str
    event: str
    subject: str
    run_id: str | None
    delivery: Delivery
    """Dead: it is not tried any more until a person retries it."""
    tries: int
    error: str | None
    """Of the last try."""
    created_at: datetime
    due_at: datetime | None
    """When it is tried next."""
    delivered_at: datetime | None
    dead_at: datetime | None


def make_notification_view(entry: OutboxEntry) -> NotificationView:
    return NotificationView(
        id=entry.id,
        target=entry.target,
        declared_in=entry.origin,
        method=entry.method,
        event=entry.event,
        subject=entry.subject,
        run_id=entry.run_id,
        delivery=find_delivery(entry),
        tries=entry.tries,
        error=entry.error,
        created_at=entry.created_at,
        due_at=entry.due_at,
        delivered_at=entry.delivered_at,
        dead_at=entry.dead_at,
    )


def find_delivery(entry: OutboxEntry) -> Delivery:
    return "due" if entry.due_at else "dead" if entry.dead_at else "delivered"
