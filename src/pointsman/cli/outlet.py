"""Writes to a stream from its own thread, so that a reader that does not read stops nothing else.

event loop ──put──▶ at most LIMIT bytes ──thread──▶ pipe, file or terminal
                      │
                      └─ full: what can wait is awaited (`is_behind`), the rest is dropped, counted and marked
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LIMIT = 1 << 20
"""Bytes that wait for a reader; and the size of its pipe, so that a late reader finds a short output whole after our end."""
CHUNK = 1 << 16
GRACE_SECONDS = 2.0
"""How long a reader may read nothing when the work is done."""


def mark_gap(lines: int) -> bytes:
    return f"[pointsman: {lines} lines are missing here, because nobody read the output]\n".encode()


class Outlet:
    """One stream and its thread."""

    def __init__(self, descriptor: int, mark: Callable[[int], bytes] = mark_gap) -> None:
        """`mark` is written instead of the lines that were dropped."""
        self._descriptor = os.dup(descriptor)  # the thread may be stuck in a write when the original is closed
        self.is_terminal = os.isatty(descriptor)
        if sys.platform == "linux":
            with suppress(OSError):  # not a pipe, or the user has too many large ones
                fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, LIMIT)
        self._mark = mark
        self._pending = bytearray()
        self._dropped = 0
        self._written = 0
        self._is_closed = False
        self._is_given_up = False
        self.error: OSError | None = None
        """Why nothing more can be written: the reader has gone, or the disk is full."""
        self._changed = threading.Condition()
        threading.Thread(target=self._serve, name="pointsman output", daemon=True).start()

    @property
    def is_behind(self) -> bool:
        """Whether writers that can wait should."""
        return len(self._pending) > LIMIT // 2 and not self._is_given_up

    @property
    def is_idle(self) -> bool:
        return not self._pending

    @property
    def written(self) -> int:
        """Bytes that were read, or that the pipe holds."""
        return self._written

    def put(self, data: bytes) -> None:
        """Write soon; never blocks. After an error everything is dropped."""
        with self._changed:
            if self.error or self._is_given_up:
                return
            if len(self._pending) > (LIMIT // 2 if self._dropped else LIMIT):
                self._dropped += max(data.count(b"\n"), 1)
                return
            self._close_gap()
            self._pending += data
            self._changed.notify_all()

    def give_up(self) -> None:
        """Write no more: nobody reads."""
        self._is_given_up = True

    def finish(self, grace_seconds: float | None) -> bool:
        """Write the rest, as long as something is read within the grace period; whether all was written."""
        with self._changed:
            self._is_closed = True
            if not self._is_given_up:
                self._close_gap()
            self._changed.notify_all()
            while self._pending and not self._is_given_up:
                self._is_given_up = not self._changed.wait_for(partial(self._has_moved, self._written), grace_seconds)
            return not self._is_given_up

    def _has_moved(self, since: int) -> bool:
        return self._written != since or not self._pending

    def _close_gap(self) -> None:
        if self._dropped:
            self._pending += self._mark(self._dropped)
            self._dropped = 0

    def _serve(self) -> None:
        while chunk := self._next_chunk():
            try:
                written = self._write(chunk)
            except OSError as error:
                with self._changed:
                    self.error = error
                    self._pending.clear()
                    self._changed.notify_all()
                break
            with self._changed:
                del self._pending[:written]
                self._written += written
                self._changed.notify_all()
        os.close(self._descriptor)

    def _next_chunk(self) -> bytes:
        """Empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_closed)
            return bytes(self._pending[:CHUNK])

    def _write(self, chunk: bytes) -> int:
        while True:
            try:
                return os.write(self._descriptor, chunk)
            except BlockingIOError:  # another process that shares the terminal has made it non-blocking
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()


class OutletFile(io.RawIOBase):
    """An outlet as a file, for everything that writes to `sys.stdout` or `sys.stderr`."""

    def __init__(self, outlet: Outlet, descriptor: int) -> None:
        self._outlet = outlet
        self._descriptor = descriptor

    def write(self, data: ReadableBuffer, /) -> int:
        copy = bytes(data)
        self._outlet.put(copy)
        return len(copy)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)
