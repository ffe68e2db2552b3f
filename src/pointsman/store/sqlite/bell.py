"""Wake-ups between processes that share a database file, without polling.

Each process that listens has a FIFO in the folder `<database>-bell`. After a commit, the writer writes one byte, the wake-up,
to every FIFO there; a reader sleeps in the kernel until then. A writer removes FIFOs that no process reads any more.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pointsman.store.contract import Wakeup

_END = 0x80


class Bell:
    def __init__(self, database: Path | None, name: str) -> None:
        """Without a database file, the bell rings in this process only."""
        self._name = name
        self._folder = Path(f"{database}-bell") if database else None
        self._own = self._folder / name if self._folder else None
        self._fifo: int | None = None
        self._thread: threading.Thread | None = None
        self._listeners: list[Callable[[Wakeup], None]] = []
        self._lock = threading.Lock()

    def listen(self, heard: Callable[[Wakeup], None]) -> Callable[[], None]:
        with self._lock:
            self._listeners.append(heard)
            if self._own and self._fifo is None:
                self._open()

        def stop() -> None:
            with self._lock, suppress(ValueError):
                self._listeners.remove(heard)

        return stop

    def ring(self, wakeup: Wakeup) -> None:
        """Wake all listeners, here and in other processes; never waits, never fails."""
        self._tell(wakeup)
        if self._folder is None:
            return
        try:
            entries = os.scandir(self._folder)
            others = [entry.path for entry in entries if entry.name != self._name and not entry.name.startswith(".")]
        except OSError:  # no folder means no listener, and a broken bell must not fail a commit
            return
        for path in others:
            _ring_one(path, wakeup)

    def close(self) -> None:
        with self._lock:
            self._listeners.clear()
            thread, self._thread = self._thread, None
            if thread and self._fifo is not None:
                os.write(self._fifo, bytes([_END]))
        if thread:
            thread.join()
        if self._fifo is not None:
            os.close(self._fifo)
            self._fifo = None
            assert self._own
            with suppress(OSError):
                self._own.unlink()
                self._own.parent.rmdir()  # fails while other processes listen, and should

    def _open(self) -> None:
        assert self._folder
        assert self._own
        # It gets its name once it is open: before, a writer would take it for one that no process reads any more.
        unnamed = self._own.with_name(f".{self._own.name}")
        while self._fifo is None:
            # The last process that leaves removes the folder, perhaps between two of these steps, so `exist_ok` would not do.
            with suppress(FileExistsError):
                self._folder.mkdir()
            with suppress(FileNotFoundError):
                with suppress(FileExistsError):
                    os.mkfifo(unnamed)
                # Open for writing, too: otherwise a read returns the end of the file whenever no writer has it open.
                self._fifo = os.open(unnamed, os.O_RDWR)
                unnamed.rename(self._own)
        self._thread = threading.Thread(target=self._hear, args=(self._fifo,), name="pointsman-bell", daemon=True)
        self._thread.start()

    def _hear(self, fifo: int) -> None:
        while True:
            wakeup = Wakeup.NOTHING
            for byte in os.read(fifo, 4096):
                if byte & _END:
                    return
                wakeup |= Wakeup(byte)
            self._tell(wakeup)

    def _tell(self, wakeup: Wakeup) -> None:
        with self._lock:
            listeners = tuple(self._listeners)
        for heard in listeners:
            heard(wakeup)


def _ring_one(path: str, wakeup: Wakeup) -> None:
    try:
        fifo = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # no process reads it any more
            with suppress(OSError):
                Path(path).unlink()
        return
    try:
        with suppress(BlockingIOError, BrokenPipeError):  # a full FIFO wakes its reader anyway
            os.write(fifo, bytes([wakeup]))
    finally:
        os.close(fifo)
