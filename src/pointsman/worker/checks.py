"""Checks after a task: each failure has the rule that was broken and the evidence."""

from __future__ import annotations

import asyncio
import glob
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from pointsman.engine.json_schema import explain_invalid, explain_misfit
from pointsman.flows.model import Check, FlowTask
from pointsman.worker.ending import Ending
from pointsman.worker.log import TAIL_BYTES, AttemptLog
from pointsman.worker.runner import Job, Running, wait_for
from pointsman.worker.runners.command import SHELLS, CommandTask, ShellTask, start_command
from pointsman.worker.runners.python import CallTask, start_call
from pointsman.world import World

CHECK_SECONDS = 600.0
"""The timeout of a command or function that checks something."""
MOST_BYTES = 50_000_000
"""The largest JSON file that is checked."""
LOG_BYTES = 1_000_000
MAY_TAKE_LONG = re.compile(r"[*+{].*[*+{]")
"""Two repetitions: matching may take exponential time."""
OWN_PATH = str(Path(__file__).parents[2])
SHOWN_LINES = 5
SHOWN_NAMES = 5


Begin = Callable[[Callable[[], Awaitable[str]]], Awaitable[str | None]]


async def _begin_at_once(run: Callable[[], Awaitable[str]]) -> str:
    return await run()


async def run_checks(
    job: Job,
    ending: Ending,
    world: World,
    *,
    seconds: float = CHECK_SECONDS,
    begin: Begin = _begin_at_once,
    started: Callable[[Running], bool] = lambda _: True,
) -> list[str]:
    """Run all checks, one after the other, and return the failures.

    `begin` runs each check when its process may start. `started` is called with that process, and returns whether it may
    continue.
    """
    failures: list[str] = []
    for number, check in enumerate(job.task.checks, 1):
        checking = _Checking(job, ending, world, seconds, number, started)
        if evidence := await begin(partial(_run_check, checking, check)):
            failures.append(f"check `{_rule(check)}`: {evidence}")
    return failures


@dataclass(frozen=True)
class _Checking:
    job: Job
    ending: Ending
    world: World
    seconds: float
    number: int
    started: Callable[[Running], bool]


def _rule(check: Check) -> str:
    kind = check.kinds[0]
    value = getattr(check, kind)
    match kind:
        case "exit_code":
            return f"exit_code: {_join(value)}"
        case "glob" if check.at_least:
            return f"glob: {value}, at_least: {check.at_least}"
        case "json_schema":
            schema = value.schema_ if isinstance(value.schema_, str) else "{…}"
            return f"json_schema: {value.file} by {schema}"
        case "command":
            return f"command: {' '.join(value)}"
        case _:
            return f"{kind}: {value}"


async def _run_check(checking: _Checking, check: Check) -> str:
    """The evidence of a failure; empty if the check passes."""
    cwd = checking.job.cwd
    if check.exit_code is not None:
        return _check_exit_code(check.exit_code, checking.ending)
    if check.file is not None:
        return await asyncio.to_thread(_check_file, cwd, check.file)
    if check.glob is not None:
        return await asyncio.to_thread(_check_glob, cwd, check.glob, check.at_least or 1)
    if check.json_schema is not None:
        return await asyncio.to_thread(_check_json_schema, cwd, check.json_schema.file, check.json_schema.schema_)
    if check.output is not None:
        return await _check_output(checking, check.output)
    if check.command is not None:
        return await _check_program(checking, CommandTask(command=check.command), check.command)
    if check.run is not None:
        return await _check_program(checking, ShellTask(run=check.run), (*SHELLS["sh"], check.run))
    assert check.call is not None, "a check has exactly one kind"
    return await _check_call(checking, CallTask(call=check.call))


def _check_exit_code(wanted: tuple[int, ...], ending: Ending) -> str:
    if ending.exit_code in wanted:
        return ""
    return ending.message or f"exited with code {ending.exit_code}"


def _check_file(cwd: Path, name: str) -> str:
    path = cwd / name
    if path.is_file():
        return ""
    if path.exists():
        return f"{path} is not a file"
    return f"there is no file {path}; {_describe_place(path.parent)}"


def _check_glob(cwd: Path, pattern: str, at_least: int) -> str:
    found = sorted(glob.glob(pattern, root_dir=cwd, recursive=True))  # noqa: PTH207  # Path.glob takes no absolute ones
    if len(found) >= at_least:
        return ""
    names = f": {_shorten(found)}" if found else ""
    return f"{len(found)} of at least {at_least} match in {cwd}{names}; {_describe_place(cwd)}"


def _describe_place(directory: Path) -> str:
    """What exists instead: often a similar name."""
    while not directory.exists():
        directory = directory.parent
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        return f"{directory} cannot be listed: {error.strerror}"
    return f"{directory} has {_shorten(names)}" if names else f"{directory} is empty"


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def _check_json_schema(cwd: Path, file: str, schema: Any) -> str:
    document, problem = _read_json(cwd / file)
    if isinstance(schema, str):
        schema, schema_problem = _read_json(cwd / schema)
        problem = schema_problem or problem
    if problem:
        return problem
    if invalid := explain_invalid(schema):
        return f"the schema itself is invalid at {invalid}"
    return explain_misfit(schema, document) or ""


def _read_json(path: Path) -> tuple[Any, str]:
    if missing := _check_file(path.parent, path.name):
        return None, missing
    try:
        if path.stat().st_size > MOST_BYTES:
            return None, f"{path} is larger than {MOST_BYTES:,} bytes"
        return json.loads(path.read_bytes()), ""
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{path} is not readable JSON: {error}"


async def _check_output(checking: _Checking, pattern: str) -> str:
    """Match a pattern; one that may take exponential time runs in its own process, so that it does not block the worker."""
    log = checking.job.log
    tail = log.tail(TAIL_BYTES)
    if not MAY_TAKE_LONG.search(pattern):
        found = bool(re.search(pattern, tail, re.MULTILINE))
    else:
        task = CallTask(call=f"{__name__}:is_found", with_={"pattern": pattern, "text": tail})
        job = _job_of_check(checking, task)
        ending = await _run_to_end(start_call(job, task, [OWN_PATH], checking.world), job, checking)
        if not ending.as_expected:
            return f"{ending.message}; {_last_lines(job.log)}"
        found = ending.output is True
    if found:
        return ""
    return f"not found in {_last_lines(log)}" if tail else _last_lines(log)


def is_found(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.MULTILINE) is not None


async def _check_program(checking: _Checking, task: FlowTask, argv: tuple[str, ...]) -> str:
    job = _job_of_check(checking, task)
    ending = await _run_to_end(start_command(job, argv, checking.world), job, checking)
    return "" if ending.as_expected else f"{ending.message}; {_last_lines(job.log)}"


async def _check_call(checking: _Checking, task: CallTask) -> str:
    """The names of its parameters select what the function gets of the attempt."""
    job = _job_of_check(checking, task)
    offered = {
        "output": checking.ending.output,
        "exit_code": checking.ending.exit_code,
        "tail": checking.job.log.tail(),
        "directory": str(job.cwd),
    }
    ending = await _run_to_end(start_call(job, task, [str(job.cwd)], checking.world, offered), job, checking)
    if not ending.as_expected:
        return f"{ending.message}; {_last_lines(job.log)}"
    return "it returned False" if ending.output is False else ""


def _job_of_check(checking: _Checking, task: FlowTask) -> Job:
    """Like the job of the attempt, with its own log and output."""
    job, suffix = checking.job, f"check-{checking.number}"
    output_path = f"{job.output_path}.{suffix}"
    log = AttemptLog(str(job.log.path.with_suffix(f".{suffix}.log")), LOG_BYTES)
    env = {**job.env, "POINTSMAN_OUTPUT": output_path}
    return structs.replace(job, task=task, env=env, output_path=output_path, log=log, stdout_wanted=False)


async def _run_to_end(running: Running, job: Job, checking: _Checking) -> Ending:
    return await wait_for(running, job, checking.seconds, checking.started)


def _last_lines(log: AttemptLog) -> str:
    lines = [line for line in log.tail().splitlines() if line.strip()][-SHOWN_LINES:]
    if not lines:
        return "it wrote nothing"
    return "its last lines:\n" + "\n".join(f"    {line[-500:]}" for line in lines)


def _join(codes: Iterable[int]) -> str:
    return " or ".join(str(code) for code in codes)
