"""Logs that a server has, copied into a folder of this machine as far as they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pointsman.remote.engine import LogRead
from pointsman.store.rows import Task
from pointsman.worker.log import log_path, name_part


class ReadLog(Protocol):
    """Reads the log of an attempt at the server, from an offset on."""

    async def __call__(self, task_id: str, epoch: int, offset: int) -> LogRead | None: ...


@dataclass(slots=True)
class Mirror:
    """The log of one attempt."""

    read: ReadLog
    task: Task
    epoch: int
    folder: Path
    is_elsewhere: bool = False
    """The attempt has written a log that the server does not have."""

    @property
    def path(self) -> Path:
        return Path(log_path(self.folder, self.task.run_id, self.task.name, self.epoch))

    async def update(self) -> bool:
        """Copy what is new; whether the server has such a log."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.is_elsewhere = False
        with self.path.open("ab") as file:
            while read := await self.read(self.task.id, self.epoch, file.tell()):
                if read.agent:
                    name_part(self.path, "agent").write_text(read.agent)
                if not read.data:
                    return file.tell() > 0
                file.write(read.data)
        self.is_elsewhere = True
        return False
