"""/api/v1: live events as Server-Sent Events, and tickets for browsers. The WebSocket is in `server/streams.py`."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from pointsman.server.events import EventFrame, StreamQuery
from pointsman.server.route import Call, Route
from pointsman.server.streams import SSE, EventStream


class TicketRequest(Struct, frozen=True, kw_only=True):
    """Nothing is asked for: a ticket stands for the key of the request."""


class TicketAnswer(Struct, frozen=True, kw_only=True):
    """A ticket for one stream of events."""

    ticket: str | None
    """Pass it as `ticket` in the query. Null while the server has no API keys: then no stream needs one."""
    ends_at: datetime | None


async def issue_ticket(call: Call) -> TicketAnswer:
    if not call.holder.key_id:
        return TicketAnswer(ticket=None, ends_at=None)
    issued = await call.site.engine.issue_ticket(call.holder.key_id)
    return TicketAnswer(ticket=issued.text, ends_at=issued.ends_at)


async def stream_events(call: Call) -> EventStream:
    query: StreamQuery = call.query
    if (last := call.headers.get("last-event-id")) is not None:  # a browser that connects again has the old query
        query = replace(query, after=last)
    return EventStream(call.site.live, await call.site.live.join(call.holder, query))


ROUTES = (
    Route(
        "GET",
        "/api/v1/events/stream",
        "Follow the events as they happen, as Server-Sent Events. The data of each is a frame; its id is the cursor.",
        stream_events,
        EventFrame,
        query=StreamQuery,
        media_type=SSE,
        streams=True,
        problems=("not-found", "unknown-name", "too-many-streams"),
    ),
    Route(
        "POST",
        "/api/v1/tickets",
        "Get a ticket for one stream of events, for browsers: they cannot send a key there.",
        issue_ticket,
        TicketAnswer,
        reads=TicketRequest,
        status=201,
    ),
)
