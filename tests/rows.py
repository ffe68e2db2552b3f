"""A table as one test: every row is tried, and each row that fails is reported.

`each_row` takes what `pytest.mark.parametrize` takes. Pytest spends 4 ms on each parametrised case, often more than the case
itself needs, so a table of hundreds of rows is better as one test. A failed row becomes a subtest, with its values and its
traceback:

    SUBFAILED(name='standard.task', state='RUNNING') tests/…::test_… - AssertionError: …

The rows of a table share the fixtures of their test, so use it only where a row cannot disturb the next one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

Test = Callable[..., Any]
Row = dict[str, Any]


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Call a test once for each row. Stacked decorators multiply their rows."""
    table: list[Row] = [{names: row} if isinstance(names, str) else dict(zip(names, row, strict=True)) for row in rows]
    assert table, f"no row has {names}"

    def decorate(test: Test) -> Test:
        row_test, inner = getattr(test, "folded", (test, [Row()]))
        return _fold(row_test, [{**row, **others} for row in table for others in inner])

    return decorate


def _fold(test: Test, table: list[Row]) -> Test:
    @wraps(test)
    def try_all(subtests: pytest.Subtests, **fixtures: Any) -> None:
        for row in table:
            with _report(subtests, row):
                test(**fixtures, **row)

    @wraps(test)
    async def await_all(subtests: pytest.Subtests, **fixtures: Any) -> None:
        for row in table:
            with _report(subtests, row):
                await test(**fixtures, **row)

    folded: Any = await_all if inspect.iscoroutinefunction(test) else try_all
    fixtures = [name for name in inspect.signature(test).parameters if name not in table[0]]
    folded.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in (*fixtures, "subtests")]
    )
    folded.folded = (test, table)
    return folded  # type: ignore[no-any-return]


@contextmanager
def _report(subtests: pytest.Subtests, row: Row) -> Iterator[None]:
    """Make a subtest of a row that fails or is skipped. One costs 2 ms, so a row that passes does without."""
    try:
        yield
    except (Exception, pytest.fail.Exception, pytest.skip.Exception):
        with subtests.test(**row):
            raise
