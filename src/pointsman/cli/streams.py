"""stdout and stderr while a command works: written in the background, and awaited where the output can wait."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from pointsman.cli.outlet import GRACE_SECONDS, Outlet, OutletFile
from pointsman.cli.output import STDERR, STDOUT, harmless, silence, tell
from pointsman.world import Sleep

LOOK_SECONDS = 0.05
"""Between two looks at whether somebody reads again."""
_outlets: dict[str, Outlet] = {}
"""While `background_output` lasts: `stdout` and `stderr`, and `data` if stdout is reserved for it."""


@contextmanager
def background_output(*, reserves_stdout: bool = False, needs_reader: bool = False) -> Iterator[None]:
    """Write stdout and stderr from threads, so that a reader that does not read stops neither the event loop nor signals.

    If it `reserves_stdout`, only `write_line` writes there: what functions of users, their threads and their programs print
    goes to stderr. A command that `needs_reader` does nothing but show: it waits for its reader as long as it takes, and ends
    with an error if the output cannot be written. Any other ends soon after its work.
    """
    originals = {name: stream for name in ("stdout", "stderr") if _has_descriptor(stream := getattr(sys, name))}
    kept = os.dup(STDOUT) if reserves_stdout else None
    for stream in originals.values():
        stream.flush()
    if kept is not None:
        _outlets["data"] = Outlet(kept, lambda lines: json.dumps({"event": "lines_missing", "lines": lines}).encode() + b"\n")
        os.dup2(STDERR, STDOUT)
    _open_outlets(originals)
    grace_seconds = None if needs_reader else GRACE_SECONDS
    try:
        yield
    except BaseException:
        grace_seconds = GRACE_SECONDS
        raise
    finally:
        if "data" in _outlets and not _outlets["data"].finish(GRACE_SECONDS):
            tell("Nobody reads stdout, so its last lines are missing. The database has them: pointsman watch --all --json")
        for name, stream in originals.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)
        outlets = _outlets.copy()
        _outlets.clear()
        _close_outlets(outlets, kept, grace_seconds)
    if needs_reader and "stdout" in outlets and (error := outlets["stdout"].error):
        raise error


def _open_outlets(originals: Mapping[str, TextIO]) -> None:
    """One for both streams if they lead to the same place, which keeps the order of their lines."""
    for name, stream in originals.items():
        descriptor = stream.fileno()
        is_shared = name == "stderr" and "stdout" in _outlets and os.path.samestat(os.fstat(STDOUT), os.fstat(descriptor))
        outlet = _outlets[name] = _outlets["stdout"] if is_shared else Outlet(descriptor)
        buffer = io.BufferedWriter(OutletFile(outlet, descriptor))
        setattr(sys, name, io.TextIOWrapper(buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=True))


def _close_outlets(outlets: Mapping[str, Outlet], kept: int | None, grace_seconds: float | None) -> None:
    """What could not be written must not block what is still to come."""
    is_whole = dict.fromkeys(outlets.values(), False)
    try:
        for outlet in is_whole:
            is_whole[outlet] = outlet.finish(grace_seconds) and not outlet.error
    finally:  # also after Ctrl-C
        if kept is not None:
            os.dup2(kept, STDOUT)
            os.close(kept)
        for name, descriptor in (("data" if kept is not None else "stdout", STDOUT), ("stderr", STDERR)):
            if name in outlets and not is_whole[outlets[name]]:
                silence(descriptor)


def _has_descriptor(stream: TextIO | None) -> bool:
    """Not if it was closed before we started, or is replaced by a test."""
    try:
        return stream is not None and stream.fileno() >= 0
    except OSError:
        return False


def is_behind() -> bool:
    """Whether so much output waits for its reader that whoever can wait should."""
    return any(outlet.is_behind for outlet in _outlets.values())


def is_idle() -> bool:
    """Whether all output was read, or at least taken by the pipe."""
    return all(outlet.is_idle for outlet in _outlets.values())


async def wait_for_reader(sleep: Sleep, patience_seconds: float = math.inf) -> bool:
    """Wait until there is room for more output; give up when nothing was read for so long."""
    waited, seen = 0.0, -1
    while is_behind():
        written = sum(outlet.written for outlet in _outlets.values())
        waited, seen = waited + LOOK_SECONDS if written == seen else 0.0, written
        if waited >= patience_seconds:
            for outlet in _outlets.values():
                if outlet.is_behind:
                    outlet.give_up()
            return False
        await sleep(LOOK_SECONDS)
    return True


async def keep_up(sleep: Sleep) -> None:
    """For a command that only shows something: wait for its reader, and end with an error if there is none any more."""
    await wait_for_reader(sleep)
    if "stdout" in _outlets and (error := _outlets["stdout"].error):
        raise error


def write_line(line: bytes) -> None:
    """To stdout, for programs. If the reader has closed the pipe, the work goes on."""
    text = line.decode()
    if data := _outlets.get("data"):
        data.put(harmless(text).encode() if data.is_terminal else line)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
