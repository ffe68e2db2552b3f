"""Pages: every route that lists something takes `limit` and `after`, and answers with `next`.

    Route("GET", "/api/v1/workers", "List workers …", list_workers, WorkerPage, query=paged(WorkerFilter))

Lists that can grow without end are cut by the database, the others here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from pointsman.engine.fields import whole
from pointsman.engine.filters import NoFilter
from pointsman.engine.pages import Cursor, cut_page, find_place, place_of, read_place
from pointsman.errors import Problem, RequestInvalid

Item = TypeVar("Item")
Row = TypeVar("Row")
PageLimit = Annotated[int, whole(1, 1000), "How many at most."]
PageAfter = Annotated[Cursor | None, "`next` of the page before; without it, the first page."]


class Page(Struct, Generic[Item], frozen=True, kw_only=True):
    """Some items of a list."""

    items: tuple[Item, ...]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


@cache
def paged(asked: type[Struct] = NoFilter) -> type[Struct]:
    """What selects items, with what selects a page of them."""
    fields: list[tuple[str, Any, Any]] = [("limit", PageLimit, 100), ("after", PageAfter, None)]
    return msgspec.defstruct(f"{asked.__name__}Page", fields, bases=(asked,), frozen=True, kw_only=True)


async def read_page(
    asked: Any, find: Callable[..., Awaitable[list[Row]]], *arguments: object
) -> tuple[Sequence[Row], str | None]:
    """A page of a list that a method of the engine cuts, and the cursor behind it."""
    place = place_of(find)
    assert place, f"{find} does not say how its list is sorted"
    return cut_page(place, await find(*arguments, after=asked.after, limit=asked.limit + 1), asked.limit)


def cut(asked: Any, place: type[Struct], rows: Sequence[Row]) -> tuple[Sequence[Row], str | None]:
    """A page of a list that is there as a whole, and the cursor behind it."""
    places = sorted(((msgspec.structs.astuple(find_place(place, row)), row) for row in rows), key=lambda each: each[0])
    if asked.after is not None:
        last = read_place(place, asked.after)
        if isinstance(last, Problem):
            raise RequestInvalid([last])
        places = [each for each in places if each[0] > msgspec.structs.astuple(last)]
    return cut_page(place, [row for _, row in places], asked.limit)
