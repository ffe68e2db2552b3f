"""The limits of a tool: how many attempts run at once, and how many start within a window of time, over all workers.

Running attempts are counted from the tasks themselves, so the count cannot drift. The times of the latest starts are kept
with the breaker of the tool, which is locked whenever an attempt starts or ends.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from pointsman.engine.work import Work
from pointsman.kernel.machine import Kind
from pointsman.store.contract import Wakeup
from pointsman.store.rows import Breaker

FINEST = 100
"""Up to this many starts are kept one by one. Of more, those within a hundredth of the window count as one instant, its end."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
Begun = tuple[int, int]
"""An instant in microseconds, and how many attempts started then."""


def has_room(work: Work, breaker: Breaker) -> bool:
    """Whether one more attempt may start now; the breaker is locked."""
    at_work = 0 if breaker.max_concurrent is None else work.count_at_work(breaker)
    return not is_full(breaker, at_work, work.now)


def is_full(breaker: Breaker, at_work: int, now: datetime) -> bool:
    if breaker.max_concurrent is not None and at_work >= breaker.max_concurrent:
        return True
    return find_free_at(breaker, now) is not None


def begin(work: Work, breaker: Breaker, at: datetime) -> None:
    """Record that an attempt started at this instant."""
    work.begin_at_work(breaker)
    if breaker.rate_count is None or breaker.rate_seconds is None:
        return
    begun = _recent(breaker, work.now)
    instant = _instant(breaker, at)
    last, number = begun[-1] if begun else (instant, 0)
    if instant > last:
        begun.append((instant, 1))
    else:  # clocks may disagree: a later start never counts as an earlier one
        begun[-1:] = [(last, number + 1)]
    breaker.begun = msgspec.json.encode(begun).decode()
    work.breakers.change(breaker)
    watch(work, breaker)


def end(work: Work, breaker: Breaker) -> None:
    """An attempt has ended: wake workers that wait for its place."""
    work.forget_at_work(breaker)
    if breaker.max_concurrent is not None:
        work.wakeups |= Wakeup.TASKS


def watch(work: Work, breaker: Breaker) -> None:
    """While the rate lets no more begin, a timer wakes those that wait when it does again."""
    if free_at := find_free_at(breaker, work.now):
        work.set_timer(breaker, Kind.BREAKER, "rate", free_at)


def find_free_at(breaker: Breaker, now: datetime) -> datetime | None:
    """When the rate lets the next one begin; None where it does so now."""
    if breaker.rate_count is None or breaker.rate_seconds is None:
        return None
    begun = _recent(breaker, now)
    too_many = sum(number for _, number in begun) - breaker.rate_count
    for instant, number in begun if too_many >= 0 else ():
        too_many -= number
        if too_many < 0:
            return _EPOCH + instant * _MICROSECOND + timedelta(seconds=breaker.rate_seconds)
    return None


def _recent(breaker: Breaker, now: datetime) -> list[Begun]:
    """The starts within the window that ends now, oldest first."""
    since = (now - timedelta(seconds=breaker.rate_seconds or 0) - _EPOCH) // _MICROSECOND
    return [begun for begun in msgspec.json.decode(breaker.begun, type=list[Begun]) if begun[0] > since]


def _instant(breaker: Breaker, at: datetime) -> int:
    instant = (at - _EPOCH) // _MICROSECOND
    assert breaker.rate_count is not None
    assert breaker.rate_seconds is not None
    if breaker.rate_count <= FINEST:
        return instant
    grain = max(1, timedelta(seconds=breaker.rate_seconds) // _MICROSECOND // FINEST)
    return -(-instant // grain) * grain
