"""Output behind a thread: never blocks, drops what has no room and says so."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from pointsman.cli import outlet as module
from pointsman.cli.outlet import Outlet

LINE = b"x" * 999 + b"\n"


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A small one, so that a few lines fill it."""
    monkeypatch.setattr(module, "LIMIT", 4096)
    read_end, write_end = os.pipe()
    yield read_end, write_end
    os.close(write_end)


def read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def finish_and_read(outlet: Outlet, pipe: tuple[int, int]) -> bytes:
    """What a reader gets that begins to read when the command ends."""
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(read_all(os.dup(pipe[0]))))
    reader.start()
    assert outlet.finish(30)
    os.dup2(os.open(os.devnull, os.O_WRONLY), pipe[1])  # closes the last end to write to
    reader.join()
    return read[0]


def test_what_has_no_room_is_dropped_counted_and_marked(pipe: tuple[int, int]) -> None:
    outlet = Outlet(pipe[1])
    for _ in range(100):
        outlet.put(LINE)
    assert outlet.is_behind
    got = finish_and_read(outlet, pipe)
    kept = got.count(LINE)
    assert 4 <= kept < 20
    assert got.endswith(f"[pointsman: {100 - kept} lines are missing here, because nobody read the output]\n".encode())


def test_what_has_room_arrives_whole_even_if_nobody_reads_before_the_end(pipe: tuple[int, int]) -> None:
    outlet = Outlet(pipe[1])
    for _ in range(4):
        outlet.put(LINE)
    assert finish_and_read(outlet, pipe) == 4 * LINE


def test_an_end_without_a_reader_does_not_wait_for_ever(pipe: tuple[int, int]) -> None:
    outlet = Outlet(pipe[1])
    for _ in range(9):
        outlet.put(LINE)
    assert not outlet.finish(0.05)
    assert not outlet.is_behind, "nobody waits any more"
    os.close(pipe[0])


def test_a_reader_that_has_gone_is_an_error_and_no_obstacle(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    outlet = Outlet(pipe[1])
    for _ in range(100):
        outlet.put(LINE)
    assert outlet.finish(30)
    assert isinstance(outlet.error, BrokenPipeError)


def test_a_stream_that_another_process_made_non_blocking_is_waited_for(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    outlet = Outlet(pipe[1])
    for _ in range(5):
        outlet.put(LINE)
    got = finish_and_read(outlet, pipe)
    assert got == 5 * LINE
    assert outlet.error is None
