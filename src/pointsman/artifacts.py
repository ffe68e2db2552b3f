"""Artifacts: the files that an attempt leaves in its folder, `$POINTSMAN_ARTIFACTS`, beside its log.

    .pointsman/logs/RUN/TASK/1.log
                             1.artifacts/report/index.html    the artifact `report/index.html` of attempt 1

The folder is what counts; no database knows of it. A task may have put anything there: only regular files are artifacts, and no
link is followed, because each part of a path is opened in the folder before it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from pointsman.errors import CallRefused

SUFFIX = ".artifacts"
MAX_NAME_BYTES = 1_000
MAX_ENTRIES = 10_000
"""So many files and folders are looked at."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ArtifactLimits:
    """How many artifacts an attempt may have, and how many bytes they have together."""

    files: int
    bytes: int

    def __str__(self) -> str:
        return f"An attempt has at most {self.files:,} artifacts with {self.bytes:,} bytes together"


class Artifact(Struct, frozen=True, kw_only=True):
    """A file that an attempt has left."""

    name: str
    """Its path in the folder of the attempt, such as `report/index.html`."""
    size: int
    """In bytes."""


class ArtifactList(Struct, frozen=True, kw_only=True):
    """What an attempt has left."""

    items: tuple[Artifact, ...]
    """By name."""
    left_out: int
    """How many other entries there are: links, special files, names that are not printable, and files beyond the limits."""


class TaskArtifacts(ArtifactList, frozen=True, kw_only=True):
    """What the last attempt of a task has left."""

    task_id: str
    attempt: int
    """The number of its last attempt; 0 before the first one."""


NONE = ArtifactList(items=(), left_out=0)


def is_name(name: str) -> bool:
    """Whether an artifact may be called that: it stays in its folder, and can be shown."""
    if not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES:
        return False
    return not any(part in ("", ".", "..") for part in name.split("/"))


@dataclass(frozen=True, slots=True)
class ArtifactFolder:
    """The artifacts of one attempt. The folder may not exist."""

    root: Path
    """A folder that only Pointsman and its user write."""
    parts: tuple[str, ...]
    """The way from there."""
    limits: ArtifactLimits

    @classmethod
    def beside(cls, log: Path, limits: ArtifactLimits, root: Path | None = None) -> ArtifactFolder:
        """Of the attempt with this log."""
        root = root or log.parent
        return cls(root, log.relative_to(root).with_suffix(SUFFIX).parts, limits)

    @property
    def path(self) -> Path:
        return self.root.joinpath(*self.parts)

    def list_files(self) -> ArtifactList:
        """The artifacts that are there now."""
        found, left_out = self._walk()
        kept: list[Artifact] = []
        total = 0
        for each in sorted(found, key=lambda artifact: artifact.name):
            if len(kept) < self.limits.files and total + each.size <= self.limits.bytes:
                kept.append(each)
                total += each.size
            else:
                left_out += 1
        return ArtifactList(items=tuple(kept), left_out=left_out)

    def _walk(self) -> tuple[list[Artifact], int]:
        """The regular files, and how many other entries there are."""
        found: list[Artifact] = []
        left_out, seen = 0, 0
        waiting = [""]
        while waiting:
            inside = waiting.pop()
            for name, entry in self._scan(inside, MAX_ENTRIES + 1 - seen):
                seen += 1
                with suppress(OSError):
                    if is_name(name) and entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{name}/")
                    elif is_name(name) and entry.is_file(follow_symlinks=False):
                        found.append(Artifact(name=name, size=entry.stat(follow_symlinks=False).st_size))
                    else:
                        left_out += 1
        return found, left_out + (seen > MAX_ENTRIES)

    def _scan(self, inside: str, limit: int) -> Iterator[tuple[str, os.DirEntry[str]]]:
        with suppress(OSError):
            folder = open_beneath(self.root, (*self.parts, *inside.split("/")[:-1]), FOLDER)
            try:
                with os.scandir(folder) as entries:
                    for entry in islice(entries, limit):
                        yield inside + entry.name, entry
            finally:
                os.close(folder)

    def open(self, name: str) -> BinaryIO:
        """An artifact for reading; OSError if there is none of this name."""
        if not is_name(name):
            raise FileNotFoundError(name)
        return as_regular(open_beneath(self.root, (*self.parts, *name.split("/")), os.O_RDONLY | FILE))

    def read(self, name: str, offset: int, size: int) -> bytes:
        with closing(self.open(name)) as file:
            return os.pread(file.fileno(), size, offset)

    def write(self, name: str, offset: int, data: bytes) -> int:
        """Store bytes of an artifact; how long it is then. What is behind the end would leave a gap, and is not stored."""
        others = [each for each in self.list_files().items if each.name != name]
        size = sum(each.size for each in others) + offset + len(data)
        if len(others) >= self.limits.files or size > self.limits.bytes:
            raise CallRefused("artifact-refused", f"The artifact '{name}' does not fit. {self.limits}.")
        parts = (*self.parts, *name.split("/"))
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = open_beneath(self.root, parts, os.O_WRONLY | os.O_CREAT | FILE, creates=True)
            with closing(as_regular(file, "wb")):
                return write_without_gap(file, offset, data)
        except OSError as error:
            raise CallRefused(
                "artifact-refused", f"The artifact '{name}' cannot be written: {error.strerror or error}."
            ) from None


def open_beneath(root: Path, parts: Sequence[str], flags: int, *, creates: bool = False) -> int:
    """Open a path in a folder. A link in it is refused, wherever it leads."""
    folder = os.open(root, FOLDER & ~os.O_NOFOLLOW)
    try:
        *folders, last = parts
        for part in folders:
            if creates:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=folder)
            inner = os.open(part, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(last, flags, 0o600, dir_fd=folder)
    finally:
        os.close(folder)


def as_regular(descriptor: int, mode: str = "rb") -> BinaryIO:
    """An open file, if it is a regular one: a pipe would never end."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return os.fdopen(descriptor, mode)  # type: ignore[return-value]


def write_without_gap(file: int, offset: int, data: bytes) -> int:
    """Write bytes unless they are behind the end of a file; how long it is then."""
    size = os.fstat(file).st_size
    return size if offset > size else max(size, offset + os.pwrite(file, data, offset))
