"""Wake-ups from other processes: one connection that waits for notifications while there are listeners."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from pointsman.errors import StoreError
from pointsman.store.contract import Wakeup
from pointsman.store.postgres.connections import LISTENER_SESSION
from pointsman.store.postgres.session import CONNECT_TIMEOUT_SECONDS, Session
from pointsman.world import Ids

SHORTEST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
ASK_SECONDS = 15.0
"""After so long without a notification, a listener asks whether its connection still works."""
EVERYTHING = ~Wakeup.NOTHING


class Listener:
    def __init__(self, url: str, ids: Ids) -> None:
        self._url = url
        self._ids = ids
        self._listeners: list[Callable[[Wakeup], None]] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._tried = threading.Event()
        self._wake: tuple[int, int] | None = None

    def listen(self, heard: Callable[[Wakeup], None]) -> Callable[[], None]:
        with self._lock:
            self._listeners.append(heard)
            if self._thread is None:
                self._start()
        # From now on every commit is heard. If the database is away, the listeners get every wake-up once it is back.
        self._tried.wait(CONNECT_TIMEOUT_SECONDS)

        def stop() -> None:
            with self._lock:
                with suppress(ValueError):
                    self._listeners.remove(heard)
                others = bool(self._listeners)
            if not others:
                self.close()

        return stop

    def close(self) -> None:
        with self._lock:
            self._listeners.clear()
            thread, self._thread = self._thread, None
            wake, self._wake = self._wake, None
            if thread is None or wake is None:
                return
            self._ended.set()
            os.write(wake[1], b"!")
        if thread is not threading.current_thread():
            thread.join()
        for end in wake:
            os.close(end)

    def _start(self) -> None:
        self._ended, self._tried = threading.Event(), threading.Event()
        self._wake = os.pipe()
        self._thread = threading.Thread(
            target=self._run, args=(self._wake[0], self._ended, self._tried), name="pointsman-listener", daemon=True
        )
        self._thread.start()

    def _run(self, wake: int, ended: threading.Event, tried: threading.Event) -> None:
        pause, missed = SHORTEST_PAUSE_SECONDS, False
        while not ended.is_set():
            try:
                with closing(Session(self._url, LISTENER_SESSION)) as session:
                    tried.set()
                    if missed:
                        self._tell(EVERYTHING)
                    pause = SHORTEST_PAUSE_SECONDS
                    self._hear(session, wake)
            except StoreError:
                missed = True
                tried.set()
                ended.wait(pause * self._jitter())
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _hear(self, session: Session, wake: int) -> None:
        """Sleep in the kernel until there is something to read; return when the listener is closed."""
        waiting = select.poll()
        waiting.register(session.file, select.POLLIN)
        waiting.register(wake, select.POLLIN)
        while True:
            wakeup = Wakeup.NOTHING
            for word in session.notifications():
                wakeup |= _read(word)
            if wakeup:
                self._tell(wakeup)
            ready = waiting.poll(ASK_SECONDS * 1000)
            if any(file == wake for file, _ in ready):
                return
            if not ready:
                session.script("")

    def _tell(self, wakeup: Wakeup) -> None:
        with self._lock:
            listeners = tuple(self._listeners)
        for heard in listeners:
            heard(wakeup)

    def _jitter(self) -> float:
        """Between a half and one, so that processes that lost the same server do not all reconnect at once."""
        digits = self._ids.short("pause").rpartition("_")[2]
        return 0.5 + int(digits, 16) / float(16 ** len(digits)) / 2


def _read(word: bytes) -> Wakeup:
    """Another program may use the same channel: a word that is not ours counts as every wake-up."""
    return Wakeup(int(word) & EVERYTHING) if word.isdigit() else EVERYTHING
