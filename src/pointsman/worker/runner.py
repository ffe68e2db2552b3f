"""What a runner is: it starts the work of one attempt, and hands back something to watch, stop and suspend."""

from __future__ import annotations

import fnmatch
import json
import os
import stat
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from pointsman.engine.claims import Claim
from pointsman.flows.model import FlowTask
from pointsman.worker.cost_file import CostFile
from pointsman.worker.endings import Ending
from pointsman.worker.log import AttemptLog

__all__ = ["OUTPUT_BYTES", "Ending", "Job", "Runner", "Running", "build_environment", "pick_environment", "read_output"]

OUTPUT_BYTES = 1_000_000
"""The most that an output may be; it is kept in the database."""
PASSED_ON = (
    "PATH", "HOME", "LANG", "LANGUAGE", "LC_*", "TERM", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "VIRTUAL_ENV",
)  # fmt: skip
"""The variables of the worker that work gets to see; what else it needs, flow or settings name."""


class Job(Struct, frozen=True, kw_only=True):
    """One attempt, ready to start: no expression is left in it."""

    claim: Claim
    task: FlowTask
    argv: tuple[str, ...] | None
    env: Mapping[str, str]
    cwd: Path
    output_path: str
    log: AttemptLog
    cost_file: CostFile
    has_budget: bool = False
    """Whether there is an end to what it may spend, or its run."""
    ends_at: datetime | None = None
    """When its run will have taken as long as it may, which is `run_timeout`."""
    run_timeout: float | None = None
    prepared_at: float = 0.0
    """Seconds since the epoch: what is older was not written by it."""
    stdout_wanted: bool = False
    grace_seconds: float = 10.0

    @property
    def expected_exit_codes(self) -> frozenset[int]:
        return frozenset(self.task.expected_exit_codes)


class Running(Protocol):
    """Work under way."""

    @property
    def pid(self) -> int | None:
        """None for work in a thread."""
        ...

    @property
    def started_ticks(self) -> int:
        """With the pid, a name that no other process ever has."""
        ...

    @property
    def last_output_at(self) -> float:
        """By the monotonic clock; when it started, if nothing was written yet."""
        ...

    async def wait(self) -> Ending: ...

    async def stop(self, grace_seconds: float) -> None:
        """Ask it to end, and make it; `wait` then tells how it went."""
        ...

    def kill(self) -> None: ...

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


class Runner(Protocol):
    async def start(self, job: Job) -> Running:
        """Also what cannot be started is Running: `wait` says why."""
        ...


def pick_environment(environ: Mapping[str, str], pass_env: Iterable[str]) -> dict[str, str]:
    """What of the worker's own environment all work gets to see; picked once, since it does not change."""
    patterns = [*PASSED_ON, *pass_env]
    return {name: value for name, value in environ.items() if any(fnmatch.fnmatchcase(name, each) for each in patterns)}


def build_environment(
    picked: Mapping[str, str],
    claim: Claim,
    *,
    named: Mapping[str, str],
    output_path: str,
    cost_path: str,
    log_dir: str,
    worker_id: str,
) -> dict[str, str]:
    """The environment of an attempt: what was picked for all, what flow and task name, and who it is."""
    return {
        **picked,
        **named,
        "POINTSMAN_RUN_ID": claim.run_id,
        "POINTSMAN_TASK_ID": claim.task_id,
        "POINTSMAN_TASK_NAME": claim.name,
        "POINTSMAN_ATTEMPT": str(claim.attempt_count),
        "POINTSMAN_EPOCH": str(claim.epoch),
        "POINTSMAN_OUTPUT": output_path,
        "POINTSMAN_COST": cost_path,
        "POINTSMAN_LOG_DIR": log_dir,
        "POINTSMAN_WORKER_ID": worker_id,
    }


def read_output(path: str | Path) -> tuple[Any, str | None]:
    """The JSON that work has written there (None when nothing), and what is wrong with it."""
    try:
        # Nobody waits for the other end of a pipe that stands in the place of a file.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None, f"its output {path} is not a file"
            content = file.read(OUTPUT_BYTES + 1)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"its output {path} cannot be read: {error.strerror}"
    if not content.strip():
        return None, None
    return parse_output(content, str(path))


def parse_output(content: bytes, origin: str) -> tuple[Any, str | None]:
    """The value of what may be JSON, and what is wrong with it."""
    if len(content) > OUTPUT_BYTES:
        size = f"larger than {OUTPUT_BYTES:,} bytes"
        return None, f"its output ({origin}) is {size}; write large results to a file, and hand on the path"
    try:
        return _decode(content.decode("utf-8")), None
    except (ValueError, RecursionError) as error:
        beginning = content[:80].decode("utf-8", "replace")
        return None, f"its output ({origin}) is not JSON: {error}; it begins with {beginning!r}"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a value of JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).decode
