"""/api/v1: the notifications of the tenant; try again what could not be delivered."""

from __future__ import annotations

from msgspec import Struct

from pointsman.engine.engine import TenantEngine
from pointsman.engine.filters import NotificationFilter
from pointsman.engine.operations.outbox import RetryNotifications
from pointsman.server.pages import Page, paged, read_page
from pointsman.server.route import Call, Route, performs
from pointsman.views.notifications import NotificationView, make_notification_view


class NotificationPage(Page[NotificationView], frozen=True, kw_only=True):
    """Notifications, newest first. Delivered ones are kept for 7 days."""


class RetriedNotifications(Struct, frozen=True, kw_only=True):
    """Which notifications are tried again."""

    ids: tuple[str, ...]
    """Without those that are being delivered at the moment, were delivered or do not exist."""


async def list_notifications(call: Call) -> NotificationPage:
    entries, behind = await read_page(call.query, call.engine.outbox.list_entries, call.query)
    return NotificationPage(items=tuple(map(make_notification_view, entries)), next=behind)


async def make_retried(_: TenantEngine, ids: list[str]) -> RetriedNotifications:
    return RetriedNotifications(ids=tuple(ids))


ROUTES = (
    Route(
        "GET",
        "/api/v1/notifications",
        "List notifications: due, dead and delivered ones, with the error of the last try.",
        list_notifications,
        NotificationPage,
        query=paged(NotificationFilter),
    ),
    performs(
        "POST",
        "/api/v1/notifications/retry",
        "Try to deliver notifications again at once, with all their tries.",
        RetryNotifications,
        make_retried,
        RetriedNotifications,
        scope="operate",
    ),
)
