"""How work can end, in sentences: what happened, what was expected, what to look at."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["exited", "signaled", "not_started", "raised", "stopped"]

HINTS = {
    signal.SIGKILL: "maybe the machine ran out of memory",
    signal.SIGSEGV: "it touched memory that was not its own",
    signal.SIGABRT: "it gave up by itself; its last lines should say why",
    signal.SIGPIPE: "it wrote to something that nobody read any more",
    signal.SIGXCPU: "it used up its limit of processor time",
}
SHELL_HINTS = {126: "the shell found the program but could not execute it", 127: "the shell found no such program"}
PASSING = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, errno.EINTR, errno.EIO}
"""Errors of starting a process that may be gone the next time."""


@dataclass(frozen=True)
class Ending:
    """How an attempt ended; whether that is a failure is `as_expected`."""

    kind: Kind
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    retryable: bool = True
    output: Any = None
    """What the work wrote as JSON to $POINTSMAN_OUTPUT."""
    stdout: bytes | None = None
    """What was written to stdout, when that was wanted."""
    output_problem: str | None = None
    """Why there is no output although something was written."""

    @property
    def as_expected(self) -> bool:
        return self.kind == "exited" and not self.message


def describe_status(status: int | None, expected: Collection[int], *, in_shell: bool) -> Ending:
    """From an exit code, or minus a signal; None when it could not be learned."""
    if status is None:
        return Ending("signaled", message="ended, but its exit code was lost: somebody else had asked for it before")
    if status < 0:
        return Ending("signaled", signal=-status, message=f"ended by signal {_signal_name(-status)}{_hint(-status)}")
    if status in expected:
        return Ending("exited", exit_code=status)
    wanted = " or ".join(str(code) for code in sorted(expected)) or "no code at all"
    message = f"exited with code {status} (expected {wanted})"
    if in_shell and status in SHELL_HINTS:
        message += f": {SHELL_HINTS[status]}"
    elif in_shell and status > 128 and status - 128 in set(signal.Signals):
        message += f": a program in it was ended by signal {_signal_name(status - 128)}{_hint(status - 128)}"
    return Ending("exited", exit_code=status, message=message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _hint(number: int) -> str:
    hint = HINTS.get(number)  # type: ignore[call-overload]  # a signal is its number
    return f" ({hint})" if hint else ""


def describe_refusal(error: OSError | ValueError, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Ending:
    """Why a program could not even be started."""
    program = argv[0] if argv else ""
    retryable = isinstance(error, OSError) and error.errno in PASSING
    return Ending("not_started", message=_refusal(error, program, cwd, env), retryable=retryable)


def _refusal(error: OSError | ValueError, program: str, cwd: Path, env: Mapping[str, str]) -> str:
    if not isinstance(error, OSError):
        return f"could not be started: {error} (a program, an argument or a variable is not well formed)"
    if not cwd.exists():
        return f"there is no folder {cwd} to run it in"
    if not cwd.is_dir():
        return f"the working directory is not a directory: {cwd}"
    if not os.access(cwd, os.X_OK):
        return f"permission denied: the working directory {cwd} may not be entered"
    found = _find_program(program, cwd, env)
    if isinstance(error, FileNotFoundError):
        if found:
            return f"'{found}' is there, but the interpreter that its first line names is not"
        places = "" if "/" in program else f"; looked in PATH: {_few(os.get_exec_path(env))}"
        return f"no such program '{program}'{places or f' (seen from {cwd})'}"
    if isinstance(error, PermissionError):
        if found and found.is_dir():
            return f"permission denied: '{found}' is a directory, not a program"
        return f"permission denied: '{found or program}' is not executable (chmod +x makes it so)"
    if error.errno == errno.ENOEXEC:
        return f"'{found or program}' is not a program of this machine, and has no first line that names an interpreter (#!)"
    if error.errno == errno.E2BIG:
        return "arguments and environment are longer than the system allows; hand over large values in a file"
    return f"could not be started: {error.strerror or error}"


def _few(folders: Sequence[str]) -> str:
    return os.pathsep.join(folders[:3]) + (f" and {len(folders) - 3} more" if len(folders) > 3 else "")


def _find_program(program: str, cwd: Path, env: Mapping[str, str]) -> Path | None:
    places = [cwd] if "/" in program else [cwd / entry for entry in os.get_exec_path(env)]
    return next((place / program for place in places if program and (place / program).exists()), None)
