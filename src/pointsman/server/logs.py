"""Logs of attempts, as their workers write them: what is there, a range of it, or everything until the attempt ends.

Only the logs of this project on this machine are served. The path that a worker has recorded decides nothing: the log is where
workers of this project write it, or elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from starlette.responses import StreamingResponse

from pointsman.artifacts import FILE, ArtifactFolder, ArtifactLimits, as_regular, write_without_gap
from pointsman.errors import CallRefused
from pointsman.server.message import HEADERS
from pointsman.store.rows import Attempt, Task

BLOCK = 1 << 16
LOOK_SECONDS = 0.2
"""How often a log that is followed is looked at."""
LONGEST_NAME = 200
UNTRUSTED_HEADERS = {**HEADERS, "Content-Security-Policy": "default-src 'none'; sandbox"}
"""What a task has written may be anything. No browser renders it, or runs what is in it."""
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@dataclass(frozen=True, slots=True)
class Logs:
    """Where workers of this project write on this machine."""

    directory: Path
    """Of the project."""
    folder: Path
    """With all logs."""
    find: Callable[[str, str, int], Path]
    """By run, name of the task and attempt: its log."""
    list_parts: Callable[[Path], Sequence[Path]]
    """The existing files of a log, in reading order."""
    name_part: Callable[[Path, str], Path]
    """A file of a log, by the name of the part."""
    part_bytes: int
    """How long a part of a log that is sent here may become."""
    artifact_limits: ArtifactLimits

    def locate(self, task: Task, attempt: Attempt) -> Path:
        """The log of an attempt; its file may not exist before the first byte."""
        path = self.find(task.run_id, task.name, attempt.epoch)
        try:
            found = path.resolve()
            is_ours = found.is_relative_to(self.folder.resolve() / task.run_id)
            if attempt.log_path:  # it has written something: here, or a worker elsewhere that may have sent it
                is_ours = is_ours and any(self.list_parts(path))
        except (OSError, RuntimeError):  # the latter of links that lead to each other
            is_ours = False
        if not is_ours:
            raise _elsewhere(task, attempt.epoch)
        return path

    def write(self, task: Task, epoch: int, part: str, offset: int, data: bytes) -> int:
        """Store bytes of the log of an attempt that runs elsewhere; how long the part is then.

        What is behind the end would leave a gap, and is not stored: the length says where to go on.
        """
        if offset + len(data) > self.part_bytes:
            message = f"The log of attempt {epoch} of '{task.name}' is too long: {self.part_bytes:,} bytes are kept here."
            raise CallRefused("body-too-large", message)
        path = self.name_part(self.find(task.run_id, task.name, epoch), part)
        try:
            if not path.resolve().is_relative_to(self.folder.resolve() / task.run_id):
                raise _elsewhere(task, epoch)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | FILE, 0o600)
            try:
                size = write_without_gap(file, offset, data)
            finally:
                os.close(file)
        except (OSError, RuntimeError) as error:
            message = f"The log of attempt {epoch} of '{task.name}' cannot be written: {error}."
            raise CallRefused("log-elsewhere", message) from None
        return size

    def find_artifacts(self, task: Task, epoch: int) -> ArtifactFolder:
        """The folder in which workers of this project leave the artifacts of an attempt; it may not exist."""
        return ArtifactFolder.beside(self.find(task.run_id, task.name, epoch), self.artifact_limits, self.folder)

    def read_agent(self, path: Path) -> str | None:
        """The coding agent whose stream a log is."""
        try:
            with open_file(self.name_part(path, "agent")) as file:
                name = file.read(LONGEST_NAME).decode("ascii", "replace")
        except OSError:
            return None
        return name if name.isprintable() and name.isascii() else None

    def open_parts(self, path: Path) -> Iterator[BinaryIO]:
        for part in self.list_parts(path):
            try:
                opened = open_file(part)
            except FileNotFoundError:
                continue  # it was rotated away
            except OSError:
                raise _elsewhere_at(part) from None
            yield opened


def _elsewhere(task: Task, number: int) -> CallRefused:
    message = f"The log of attempt {number} of '{task.name}' is not among the logs of this server. Ask where its worker runs."
    return CallRefused("log-elsewhere", message)


def _elsewhere_at(part: Path) -> CallRefused:
    return CallRefused("log-elsewhere", f"The file {part.name} of the log is no regular file that the server may read.")


def open_file(path: Path) -> BinaryIO:
    """A link in the place of a log could show any other file, and a pipe would never end."""
    return as_regular(os.open(path, os.O_RDONLY | FILE))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a log, and how long they were when they were opened."""

    files: tuple[BinaryIO, ...]
    sizes: tuple[int, ...]

    @classmethod
    def open(cls, logs: Logs, path: Path) -> Snapshot:
        return cls.of(*logs.open_parts(path))

    @classmethod
    def of(cls, *files: BinaryIO) -> Snapshot:
        return cls(files, tuple(os.fstat(file.fileno()).st_size for file in files))

    @property
    def total(self) -> int:
        return sum(self.sizes)

    async def read(self, first: int, end: int) -> AsyncGenerator[bytes]:
        """The bytes from `first` up to `end`, as if it were one file."""
        begin = 0
        try:
            for file, size in zip(self.files, self.sizes, strict=True):
                position, stop = max(first - begin, 0), min(end - begin, size)
                begin += size
                while position < stop:
                    block = await asyncio.to_thread(os.pread, file.fileno(), min(BLOCK, stop - position), position)
                    if not block:
                        return
                    position += len(block)
                    yield block
        finally:
            self.close()

    def close(self) -> None:
        for file in self.files:
            file.close()


def respond_with_part(
    snapshot: Snapshot, asked: Mapping[str, str], headers: Mapping[str, str], media_type: str
) -> StreamingResponse:
    """The whole, or the range that the headers of a request ask for."""
    header = None if "if-range" in asked else asked.get("range")
    try:
        part = None if header is None else read_range(header, snapshot.total)
    except CallRefused:
        snapshot.close()
        raise
    first, end = part or (0, snapshot.total)
    headers = {**UNTRUSTED_HEADERS, **headers, "Accept-Ranges": "bytes", "Content-Length": str(end - first)}
    if part:
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{snapshot.total}"
    return StreamingResponse(snapshot.read(first, end), 206 if part else 200, headers, media_type=media_type)


def read_range(header: str, total: int) -> tuple[int, int] | None:
    """The first byte and the end of a range; None if it is not one range of bytes, which then means everything."""
    found = _RANGE.fullmatch(header.replace(" ", ""))
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        first, end = max(total - int(found[2]), 0), total
    else:
        first, end = int(found[1]), min(int(found[2]) + 1, total) if found[2] else total
        if found[2] and int(found[2]) < first:
            return None
    if first >= end:
        message = f"There are {total:,} bytes, and {header!a} is behind their end. Ask for less, or wait until it grows."
        raise CallRefused("range-not-satisfiable", message, headers={"Content-Range": f"bytes */{total}"})
    return first, end


@dataclass(slots=True)
class Follower:
    """Reads a log as it grows. Files stay open while they are part of it, so that their inodes mean nothing else."""

    logs: Logs
    path: Path
    pause_seconds: float = LOOK_SECONDS
    _files: dict[int, BinaryIO] = field(default_factory=dict)

    async def follow(self, has_ended: Callable[[], Awaitable[bool]], stopping: asyncio.Event) -> AsyncGenerator[bytes]:
        """Everything until the attempt has ended, or the server stops. A log is complete before its attempt ends."""
        try:
            is_last = False
            while not is_last:
                is_last = stopping.is_set() or await has_ended()
                blocks = self._read_on()
                while block := await asyncio.to_thread(next, blocks, b""):
                    yield block
                if not is_last:
                    await self._pause(stopping)
        finally:
            for file in self._files.values():
                file.close()

    def _read_on(self) -> Iterator[bytes]:
        present = set()
        for file in self.logs.open_parts(self.path):
            inode = os.fstat(file.fileno()).st_ino
            present.add(inode)
            if inode in self._files:
                file.close()
            else:
                self._files[inode] = file
        for inode, file in list(self._files.items()):
            while block := file.read(BLOCK):
                yield block
            if inode not in present:
                self._files.pop(inode).close()

    async def _pause(self, stopping: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self.pause_seconds):
                await stopping.wait()
        except TimeoutError:
            pass
