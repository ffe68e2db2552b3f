"""What a worker does when its machine has no descriptors, processes or memory left: it holds back, and fails no task for it."""

from __future__ import annotations

import errno
from collections.abc import Callable

from pointsman.world import Clock

PAUSE_SECONDS = 0.5
"""The delay before the next try to start a process."""
ADVICE = {
    errno.EMFILE: "Raise its limit (ulimit -n) or give it fewer slots.",
    errno.ENFILE: "The whole system has too many open files.",
    errno.EAGAIN: "Raise the limit of processes (ulimit -u, or pids.max of its cgroup) or give it fewer slots.",
    errno.ENOMEM: "The machine is out of memory.",
}
"""By error: what a person can do."""
Attempt = tuple[str, int]


def is_shortage(error: BaseException) -> bool:
    """Whether a process could not be started for want of something that may become free."""
    return isinstance(error, OSError) and error.errno in ADVICE


class Shortage:
    """The attempts that wait until the machine can start their processes."""

    def __init__(self, notify: Callable[[str], None], on_end: Callable[[], None], clock: Clock) -> None:
        self._notify = notify
        self._on_end = on_end
        self._clock = clock
        self._waiting: set[Attempt] = set()
        self._since = 0.0

    @property
    def is_on(self) -> bool:
        return bool(self._waiting)

    def has_lasted(self, seconds: float) -> bool:
        """Whether attempts have waited for so long, and nothing has started meanwhile."""
        return self.is_on and self._clock.monotonic() >= self._since + seconds

    def renew(self) -> None:
        """What the attempts wait for may become free: count their time from now on."""
        self._since = self._clock.monotonic()

    def add(self, attempt: Attempt, error: OSError) -> None:
        """An attempt waits. The user is told once."""
        if not self._waiting:
            advice = ADVICE[error.errno or 0]
            self.renew()
            self._notify(f"The worker cannot start processes: {error.strerror}. It waits and claims no more tasks. {advice}")
        self._waiting.add(attempt)

    def discard(self, attempt: Attempt, *, has_started: bool) -> None:
        """An attempt has started, or has been stopped."""
        if has_started:
            self.renew()
        if self._waiting:
            self._waiting.discard(attempt)
            if not self._waiting:
                if has_started:
                    self._notify("The worker claims tasks again.")
                self._on_end()
