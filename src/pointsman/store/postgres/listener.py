"""Wake-ups: those of this process are told at once, those of others come over a connection that waits for notifications.

    commit ─┬─▶ the listeners of this process
            └─▶ NOTIFY, with the commit ─▶ other processes     at once, unless there are only events
                └─ a rest after an announcement ─▶ NOTIFY, once for all events of meanwhile

Who commits sends its own sign with each announcement, so it does not hear itself. A store that is busy announces events once in
a rest instead of with each commit: PostgreSQL lets commits that notify wait for each other.
"""

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
from pointsman.store.postgres.statements import Statement
from pointsman.world import Clock, Ids

SHORTEST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
ASK_SECONDS = 15.0
"""After so long without a notification, a listener asks whether its connection still works."""
REST_SECONDS = 0.05
"""How long events wait to be announced after an announcement."""
EVERYTHING = ~Wakeup.NOTHING
NOTIFY = Statement("SELECT pg_notify('pointsman', :announcement)")


class Listener:
    def __init__(self, url: str, clock: Clock, ids: Ids) -> None:
        self._url = url
        self._clock = clock
        self._ids = ids
        self._sign = ids.short("listener")
        self._held = Wakeup.NOTHING
        """What is committed and not yet announced."""
        self._is_connected = self._rests = False
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

    def announce(self, wakeup: Wakeup) -> str | None:
        """What a commit has to announce; None if that may wait, or there is nothing."""
        with self._lock:
            may_wait = self._rests and wakeup == Wakeup.EVENTS
        return self._write(wakeup) if wakeup and not may_wait else None

    def committed(self, wakeup: Wakeup, *, is_announced: bool) -> None:
        """Tell the listeners of this process, and see to it that those of others hear the rest."""
        if not wakeup:
            return
        with self._lock:
            self._held = self._held & ~wakeup if is_announced else self._held | wakeup
            if self._wake and self._is_connected and not self._rests and (Wakeup.EVENTS in wakeup or self._held):
                self._rests = True
                os.write(self._wake[1], b".")
        self._tell(wakeup)

    def take_held(self) -> str | None:
        """What is still to be announced, if anything."""
        with self._lock:
            held, self._held = self._held, Wakeup.NOTHING
        return self._write(held) if held else None

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
                    self._attend(session, wake, ended)
            except StoreError:
                missed = True
                tried.set()
                ended.wait(pause * self._jitter())
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _attend(self, session: Session, wake: int, ended: threading.Event) -> None:
        with self._lock:
            self._is_connected = True
        try:
            self._hear(session, wake, ended)
            self._announce_held(session)
        finally:
            with self._lock:
                self._is_connected = self._rests = False

    def _hear(self, session: Session, wake: int, ended: threading.Event) -> None:
        """Sleep in the kernel until there is something to read, or a rest is over; return when the listener is closed."""
        waiting = select.poll()
        waiting.register(session.file, select.POLLIN)
        waiting.register(wake, select.POLLIN)
        rested_at = self._announce_held(session)
        while True:
            wakeup = Wakeup.NOTHING
            for word in session.notifications():
                wakeup |= self._read(word)
            if wakeup:
                self._tell(wakeup)
            seconds = ASK_SECONDS if rested_at is None else max(rested_at - self._clock.monotonic(), 0)
            ready = dict(waiting.poll(seconds * 1000))
            if ended.is_set():
                return
            if wake in ready:
                os.read(wake, 1)
                rested_at = self._clock.monotonic() + REST_SECONDS
            elif rested_at is not None and (not ready or self._clock.monotonic() >= rested_at):
                rested_at = self._announce_held(session)
            elif not ready:
                session.script("")

    def _announce_held(self, session: Session) -> float | None:
        """When the rest is over that begins with this; None if there was nothing to announce."""
        with self._lock:
            held, self._held = self._held, Wakeup.NOTHING
            self._rests = bool(held)
        if not held:
            return None
        try:
            session.ask(NOTIFY, {"announcement": self._write(held)})
        except StoreError:
            with self._lock:
                self._held |= held
            raise
        return self._clock.monotonic() + REST_SECONDS

    def _tell(self, wakeup: Wakeup) -> None:
        with self._lock:
            listeners = tuple(self._listeners)
        for heard in listeners:
            heard(wakeup)

    def _jitter(self) -> float:
        """Between a half and one, so that processes that lost the same server do not all reconnect at once."""
        digits = self._ids.short("pause").rpartition("_")[2]
        return 0.5 + int(digits, 16) / float(16 ** len(digits)) / 2

    def _write(self, wakeup: Wakeup) -> str:
        return f"{int(wakeup)} {self._sign}"

    def _read(self, word: bytes) -> Wakeup:
        """Another program may use the same channel: a word that is not ours counts as every wake-up."""
        number, _, sign = word.partition(b" ")
        if sign == self._sign.encode():
            return Wakeup.NOTHING
        return Wakeup(int(number) & EVERYTHING) if number.isdigit() else EVERYTHING
