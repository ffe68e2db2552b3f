"""The log of one attempt: output is written as it arrives, up to a limit.

<epoch>.log      the first half of the limit; if there is more, its last line says how much was omitted
<epoch>.log.2    a quarter, older   ┐ the end, kept by rotation
<epoch>.log.1    a quarter, newest  ┘
"""

from __future__ import annotations

import os
import re
import threading
from hashlib import sha256
from pathlib import Path

TAIL_BYTES = 65_536
"""How much of the end is kept in memory."""
PLAIN = re.compile(r"[a-z0-9_\[\]-][a-z0-9_.\[\]-]{0,99}(?<!\.)")
"""Task names that are good names of folders. Without capitals, since some file systems do not tell them apart."""
PARTS = {"head": "", "older": ".2", "newest": ".1"}
IN_READING_ORDER = tuple(PARTS)
AGENT_SUFFIX = ".agent"
"""Of a file beside the log of a coding agent, with its name."""
NOTICE_BYTES = 256
"""The notice at the end of a full head, which changes while the log goes on, is shorter."""
UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]+")


def log_path(directory: Path, run_id: str, task_name: str, epoch: int) -> str:
    """The path of the log of an attempt, as text, which is faster than a Path."""
    return f"{directory}/.pointsman/logs/{run_id}/{folder_of(task_name)}/{epoch}.log"


def folder_of(task_name: str) -> str:
    """The name of a folder for a task. No two tasks share one: it is a plain name, or what is readable of it and a digest."""
    if PLAIN.fullmatch(task_name):
        return task_name
    readable = UNSAFE.sub("_", task_name).strip(".")[:80]
    return f"{readable}~{sha256(task_name.encode('utf-8', 'surrogatepass')).hexdigest()[:20]}"


def log_parts(path: Path) -> list[Path]:
    """The existing files of a log, in reading order."""
    return [part for name in IN_READING_ORDER if (part := name_part(path, name)).exists()]


def name_part(path: Path, part: str) -> Path:
    """A file of a log; `agent` says whose stream it is, if it is one."""
    return path.with_suffix(AGENT_SUFFIX) if part == "agent" else path.with_name(f"{path.name}{PARTS[part]}")


class AttemptLog:
    """Created with the first byte; thread-safe. A full disk stops the log, not the work."""

    def __init__(self, path: str, cap_bytes: int) -> None:
        self._path = path
        self.problem: str | None = None
        """Why it could not be written, in a sentence."""
        self.bytes_seen = 0
        self.bytes_omitted = 0
        self._cap = cap_bytes
        self._file: int | None = None
        self._in_head = True
        self._room = max(cap_bytes // 2, 1)
        self._notice_at: int | None = None
        self._missing = 0
        self._end = bytearray()
        self._closed = False
        self._lines = b""
        """Lines of the worker that wait for the end of a line of the work."""
        self._is_within_line = False
        self._lock = threading.Lock()
        self.headline = ""
        """What the work says that it is doing, for people who watch."""

    @property
    def path(self) -> Path:
        return Path(self._path)

    def make_folder(self) -> None:
        """Usually only the folder itself is missing, not its parents."""
        folder = os.path.dirname(self._path)  # noqa: PTH120 - of text, many times a second
        try:
            os.mkdir(folder)  # noqa: PTH102
        except FileExistsError:
            pass
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103

    def write(self, data: bytes, shown: bytes | None = None) -> None:
        """Store output; `shown` is what people get to see of it at the end of the log, if that is not the output itself."""
        if not data and not shown:
            return
        with self._lock:
            if self._lines and (end := data.find(b"\n") + 1):
                data = data[:end] + self._lines + data[end:]
                self._lines = b""
            if data:
                self._is_within_line = not data.endswith(b"\n")
            self._take(data, shown)

    def add_line(self, text: str) -> None:
        """Write a line of the worker between lines of the work."""
        line = text.encode("utf-8", "replace") + b"\n"
        with self._lock:
            if self._is_within_line:
                self._lines = (self._lines + line)[-TAIL_BYTES:]
            else:
                self._take(line)

    def tail(self, limit: int = 4096) -> str:
        """The end as text that every database accepts: NUL and invalid UTF-8 are replaced."""
        if not self.bytes_seen:
            return ""
        with self._lock:
            end = bytes(self._end[-limit:])
        # Drop a character that the limit has cut, rather than replacing it.
        while end and len(end) == limit and end[0] & 0xC0 == 0x80:
            end = end[1:]
        return end.decode("utf-8", "replace").replace("\0", "�")

    def last_line(self, limit: int = 200) -> str:
        """The last non-empty line."""
        lines = [line for line in re.split(r"[\r\n]+", self.tail()) if line.strip()]
        return lines[-1].strip()[-limit:] if lines else ""

    def close(self) -> None:
        with self._lock:
            if self._lines and not self._closed:
                self._take(b"\n" + self._lines)
                self._lines = b""
            if not self._closed and self._missing:
                self._try_to_mark_gap()
            self._closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _take(self, data: bytes, shown: bytes | None = None) -> None:
        self.bytes_seen += len(data)
        self._remember(data if shown is None else shown)
        if data and not self._closed:
            self._store(data)

    def _remember(self, data: bytes) -> None:
        self._end += data[-TAIL_BYTES:]
        if len(self._end) > 2 * TAIL_BYTES:
            del self._end[:-TAIL_BYTES]

    def _store(self, data: bytes) -> None:
        if self._missing and not self._try_to_mark_gap():
            self._missing += len(data)
            return
        rest = memoryview(data)
        try:
            while rest:
                if self._file is None:
                    self._file = self._open()
                if not self._room:
                    self._rotate()
                written = os.write(self._file, rest[: self._room])
                self._room -= written
                rest = rest[written:]
        except OSError as error:
            self._missing += len(rest)
            self.problem = f"The log {self.path} stopped: {error.strerror}. The task continues without it."

    def _try_to_mark_gap(self) -> bool:
        """Mark the gap; False if there is still no space."""
        notice = f"\n[pointsman: {self._missing} bytes are missing here: {self.problem}]\n".encode()
        try:
            if self._file is None:
                self._file = self._open()
            before = os.fstat(self._file).st_size
            if os.write(self._file, notice) < len(notice):
                os.ftruncate(self._file, before)
                return False
        except OSError:
            return False
        self._missing = 0
        return True

    def _open(self) -> int:
        self.make_folder()
        path = self.path if self._in_head else name_part(self.path, "newest")
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _rotate(self) -> None:
        """Continue in a new file; the oldest of two is dropped."""
        assert self._file is not None
        newest, older = name_part(self.path, "newest"), name_part(self.path, "older")
        if self._in_head:
            self._notice_at = os.fstat(self._file).st_size
            os.write(self._file, self._notice())
        else:
            if older.exists():
                self.bytes_omitted += older.stat().st_size
                older.unlink()  # replacing it by a rename would make some file systems flush it to the disk first
            newest.rename(older)
            self._update_notice()
        os.close(self._file)
        self._file = None
        self._in_head = False
        self._file = self._open()
        self._room = max(self._cap // 4, 1)

    def _notice(self) -> bytes:
        name = self.path.name
        text = f"[pointsman: the log is full: {self.bytes_omitted:>16} bytes are omitted here; it continues in "
        return f"\n{text}{name}.2 and {name}.1]\n".encode()

    def _update_notice(self) -> None:
        """In place and of the same length, so that it is correct even if the worker dies."""
        assert self._notice_at is not None
        head = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(head, self._notice(), self._notice_at)
        finally:
            os.close(head)
