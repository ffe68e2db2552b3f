"""Pages of lists. A list is sorted by columns that never change, and a cursor is the place of the last item of a page in it.

    RunPlace("run_1") ──write_cursor──▶ "WyJydW4iLCJydW5fMSJd" ──read_place──▶ RunPlace("run_1")

So items that are added or leave meanwhile neither shift a page nor repeat anything.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from pointsman.engine import checks
from pointsman.engine.fields import Instant, Name, Rule, shape_of, whole
from pointsman.engine.filters import EVERYTHING, NoFilter
from pointsman.errors import Problem
from pointsman.store.contract import ALL

LARGEST_PAGE = 10_000
MAX_CURSOR_BYTES = 4000
UNKNOWN_CURSOR = "It is no cursor of this list. Give `next` of the page before, or leave it out for the first page."
Cursor = Annotated[
    str,
    Rule(partial(checks.text, limit=MAX_CURSOR_BYTES), {"type": "string", "maxLength": MAX_CURSOR_BYTES}),
]
Number = Annotated[int, whole(0, 2**62)]
Method = TypeVar("Method", bound=Callable[..., Any])
Row = TypeVar("Row")


class RunPlace(Struct, frozen=True, array_like=True, tag="run"):
    """Newest first."""

    id: Name


class TaskPlace(Struct, frozen=True, array_like=True, tag="task"):
    """Of the newest run first."""

    id: Name


class RunTaskPlace(Struct, frozen=True, array_like=True, tag="run task"):
    """In the order of the run."""

    position: Number
    id: Name


class AttemptPlace(Struct, frozen=True, array_like=True, tag="attempt"):
    epoch: Number


class HistoryPlace(Struct, frozen=True, array_like=True, tag="history"):
    revision: Number


class NoticePlace(Struct, frozen=True, array_like=True, tag="notice"):
    """Newest first."""

    position: Number


class NotificationPlace(Struct, frozen=True, array_like=True, tag="notification"):
    """Newest first."""

    created_at: Instant
    id: Name


class WorkerPlace(Struct, frozen=True, array_like=True, tag="worker"):
    id: Name


class InboxPlace(Struct, frozen=True, array_like=True, tag="inbox"):
    """What has waited longest first."""

    since: Instant
    task_id: Name


class BreakerPlace(Struct, frozen=True, array_like=True, tag="breaker"):
    tool: Name


class MachinePlace(Struct, frozen=True, array_like=True, tag="machine"):
    name: Name


class TemplatePlace(Struct, frozen=True, array_like=True, tag="template"):
    name: Name


class TenantPlace(Struct, frozen=True, array_like=True, tag="tenant"):
    id: Name


class KeyPlace(Struct, frozen=True, array_like=True, tag="key"):
    name: Name
    id: Name


def sorted_by(place: type[Struct]) -> Callable[[Method], Method]:
    """Declares how the list that a method answers with is sorted."""

    def declare(method: Method) -> Method:
        method.place = place  # type: ignore[attr-defined]
        return method

    return declare


def place_of(method: Callable[..., Any]) -> type[Struct] | None:
    """How its list is sorted; None for a method that does not list pages."""
    return getattr(method, "place", None)


def find_place(place: type[Struct], row: object) -> Any:
    """Where a row stands in its list."""
    return place(*(getattr(row, name) for name in place.__struct_fields__))


def write_cursor(place: type[Struct], row: object) -> str:
    """The place of a row in its list, as text that a client gives back."""
    return urlsafe_b64encode(msgspec.json.encode(find_place(place, row))).rstrip(b"=").decode()


def read_place(place: type[Struct], cursor: object) -> Any:
    """The place that a cursor stands for, or the problem with it."""
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR_BYTES:
        return Problem("after", UNKNOWN_CURSOR)
    try:
        found = msgspec.json.decode(b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True), type=place)
    except (ValueError, msgspec.MsgspecError):
        return Problem("after", UNKNOWN_CURSOR)
    return Problem("after", UNKNOWN_CURSOR) if any(shape_of(place).problems("after", found)) else found


def check_limit(limit: int) -> Iterator[Problem]:
    return checks.count("limit", limit, 1, LARGEST_PAGE)


def select_page(
    place: type[Struct], after: str | None, limit: int | None, declared: type[Struct] = NoFilter, wanted: Struct = EVERYTHING
) -> dict[str, Any]:
    """Where a page begins, its length, and the conditions of a filter, which may have more fields than `declared`."""
    behind = () if after is None else read_place(place, after)
    problems = [] if limit is None else list(check_limit(limit))
    problems += [behind] if isinstance(behind, Problem) else []
    checks.refuse([*shape_of(declared).problems("", wanted), *problems])
    conditions = {name: getattr(wanted, name) for name in declared.__struct_fields__}
    values = behind and astuple(behind)
    begin = None if not values else values[0] if len(values) == 1 else values
    return {"after": begin, "limit": ALL if limit is None else limit, **conditions}


def cut_page(place: type[Struct], found: Sequence[Row], limit: int) -> tuple[Sequence[Row], str | None]:
    """The page of at most `limit` items, and the cursor behind it if more were found."""
    shown = found[:limit]
    return shown, write_cursor(place, shown[-1]) if len(found) > limit else None
