"""The supervisor of a pool, with processes that are no workers but die as quickly as one likes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pointsman.worker import pool as pools
from pointsman.worker.pool import LONGEST_LINE, MOST_EARLY_DEATHS, Pool
from pointsman.world import SystemClock

PATIENCE_SECONDS = 60


@dataclass
class Recorder:
    """What a pool shows."""

    on_end: Callable[[], None] = lambda: None
    pids: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    reports: list[bytes] = field(default_factory=list)
    words: list[bytes] = field(default_factory=list)

    def started(self, worker: str, pid: int) -> None:
        assert worker == "box-1"
        self.pids.append(pid)

    def ended(self, worker: str, message: str) -> None:
        assert worker == "box-1"
        self.ends.append(message)
        self.on_end()

    def reported(self, worker: str, line: bytes) -> None:
        assert worker == "box-1"
        self.reports.append(line)

    def said(self, worker: str, line: bytes) -> None:
        assert worker == "box-1"
        self.words.append(line)


def make_pool(recorder: Recorder, script: str) -> tuple[Pool, list[int]]:
    """A pool with one worker, and after how many starts what a dead one has left was ended."""
    cleaned: list[int] = []

    async def clean_up() -> None:
        cleaned.append(len(recorder.pids))

    return Pool(["box-1"], lambda _: ("sh", "-c", script), SystemClock(), recorder, clean_up), cleaned


async def test_a_worker_that_dies_at_once_is_replaced_ever_later_and_in_the_end_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "FIRST_PAUSE_SECONDS", 0.001)
    recorder = Recorder()
    pool, cleaned = make_pool(recorder, "echo why >&2; exit 3")
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert not await pool.work(), "it could not live"
    assert len(recorder.pids) == MOST_EARLY_DEATHS
    assert cleaned == list(range(1, MOST_EARLY_DEATHS + 1)), "after each death, before the next one starts"
    *replaced, last = recorder.ends
    pauses = [f"{0.001 * 2**number:g}s" for number in range(MOST_EARLY_DEATHS - 1)]
    assert replaced == [f"It exited with code 3 – why. A new worker replaces it in {pause}." for pause in pauses]
    assert last.endswith("and is not replaced any more.")


async def test_a_worker_that_lived_for_a_while_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "STEADY_SECONDS", 0.0)
    recorder = Recorder()
    pool, _ = make_pool(recorder, "kill -9 $$")
    recorder.on_end = lambda: pool.drain() if len(recorder.ends) > MOST_EARLY_DEATHS else None
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await pool.work()
    assert set(recorder.ends) == {"It was killed by SIGKILL. A new worker replaces it."}


async def test_a_worker_that_ends_by_itself_is_not_replaced() -> None:
    recorder = Recorder()
    pool, cleaned = make_pool(recorder, "exit 0")
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await pool.work()
    assert recorder.ends == ["It has ended. A person drained or terminated it, so it is not replaced."]
    assert (len(recorder.pids), cleaned) == (1, [])


async def test_a_pool_that_is_drained_does_not_wait_for_the_next_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "FIRST_PAUSE_SECONDS", 3600.0)
    recorder = Recorder()
    pool, _ = make_pool(recorder, "exit 1")
    recorder.on_end = pool.drain
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await pool.work()
    assert len(recorder.pids) == 1


async def test_lines_are_kept_apart_and_none_is_too_long() -> None:
    """The last one may be cut off; an open pipe of a program that the worker has left keeps nobody waiting."""
    recorder = Recorder()
    script = f"echo one; echo two; head -c {LONGEST_LINE * 2} /dev/zero | tr '\\0' x >&2; printf end; sleep 2 & exit 0"
    pool, _ = make_pool(recorder, script)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await pool.work()
    assert recorder.reports == [b"one", b"two", b"end"]
    assert len(recorder.words) > 1
    assert b"".join(recorder.words) == b"x" * LONGEST_LINE * 2
