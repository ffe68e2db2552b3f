"""How work ends, in sentences: what happened, what was expected, what to look at."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from pointsman.worker.agent import UsageLimit

Kind = Literal["exited", "signaled", "not_started", "raised", "stopped", "interrupted"]
"""`stopped`: the worker ended it. `interrupted`: the worker asked it to stop, and the message says how it responded."""

HINTS = {
    signal.SIGKILL: "the machine may have run out of memory",
    signal.SIGSEGV: "invalid memory access",
    signal.SIGABRT: "it aborted; its last output should say why",
    signal.SIGPIPE: "it wrote to a closed pipe",
    signal.SIGXCPU: "it exceeded its limit of CPU time",
}
SHELL_HINTS = {126: "the shell found the program but could not execute it", 127: "the shell did not find the program"}
TRANSIENT = {errno.ETXTBSY, errno.EINTR, errno.EIO}
"""Errors when starting a process that a retry may avoid; those of `shortage.py` do not get here."""


class Ending(Struct, frozen=True):
    """How the work of an attempt ended."""

    kind: Kind
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    retryable: bool = True
    output: Any = None
    """The JSON that the work wrote to $POINTSMAN_OUTPUT."""
    stdout: bytes | None = None
    """What the work wrote to stdout, if `outputs: stdout` asks for it."""
    output_problem: str | None = None
    """Why the output cannot be used."""
    limit: UsageLimit | None = None
    """The account of an agent has reached its usage limit."""
    is_overspent: bool = False
    """An agent has stopped itself at its budget."""
    has_lost_session: bool = False
    """An agent was to continue a session that its program does not have."""

    @property
    def as_expected(self) -> bool:
        return self.kind == "exited" and not self.message


def describe_status(status: int | None, expected: Collection[int], *, in_shell: bool) -> Ending:
    """The ending for an exit code, or a negative signal number; None if the status is unknown."""
    if status is None:
        return Ending("signaled", message="ended, but its exit code is unknown: another part of the process had reaped it")
    if status < 0:
        return Ending("signaled", signal=-status, message=f"was killed by signal {_signal_name(-status)}{_hint(-status)}")
    if status in expected:
        return Ending("exited", exit_code=status)
    wanted = " or ".join(str(code) for code in sorted(expected)) or "none"
    message = f"exited with code {status} (expected {wanted})"
    if in_shell and status in SHELL_HINTS:
        message += f": {SHELL_HINTS[status]}"
    elif in_shell and status > 128 and status - 128 in set(signal.Signals):
        message += f": a program in it was killed by signal {_signal_name(status - 128)}{_hint(status - 128)}"
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
    """The ending of a program that could not be started."""
    program = argv[0] if argv else ""
    retryable = isinstance(error, OSError) and error.errno in TRANSIENT
    return Ending("not_started", message=_refusal(error, program, cwd, env), retryable=retryable)


def _refusal(error: OSError | ValueError, program: str, cwd: Path, env: Mapping[str, str]) -> str:
    if not isinstance(error, OSError):
        return f"could not be started: {error} (the program, an argument or a variable is malformed)"
    if not cwd.exists():
        return f"the working directory {cwd} does not exist"
    if not cwd.is_dir():
        return f"the working directory is not a directory: {cwd}"
    if not os.access(cwd, os.X_OK):
        return f"permission denied: the working directory {cwd} is not accessible"
    found = _find_program(program, cwd, env)
    if isinstance(error, FileNotFoundError):
        if found:
            return f"'{found}' exists, but the interpreter in its first line does not"
        places = "" if "/" in program else f"; looked in PATH: {_few(os.get_exec_path(env))}"
        return f"no such program '{program}'{places or f' (relative to {cwd})'}"
    if isinstance(error, PermissionError):
        if found and found.is_dir():
            return f"permission denied: '{found}' is a directory, not a program"
        return f"permission denied: '{found or program}' is not executable (use chmod +x)"
    if error.errno == errno.ENOEXEC:
        return f"'{found or program}' is not a program for this machine, and has no interpreter in its first line (#!)"
    if error.errno == errno.E2BIG:
        return "arguments and environment exceed the limit of the system; pass large values in a file"
    return f"could not be started: {error.strerror or error}"


def _few(folders: Sequence[str]) -> str:
    return os.pathsep.join(folders[:3]) + (f" and {len(folders) - 3} more" if len(folders) > 3 else "")


def _find_program(program: str, cwd: Path, env: Mapping[str, str]) -> Path | None:
    places = [cwd] if "/" in program else [cwd / entry for entry in os.get_exec_path(env)]
    return next((place / program for place in places if program and (place / program).exists()), None)
