"""The command line: one file per command group, each imported only when it is used."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

COLLECT_AFTER = (150_000, 20, 50)
"""Rarely enough that imports are not searched for garbage, which took a tenth of the start of a command."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""
COMMANDS = {
    "run": "Run a flow, and show its progress.",
    "resume": "Continue a run that was interrupted or paused.",
    "status": "Show the latest runs, or one with its tasks and next steps.",
    "inbox": "Show everything that waits for a person.",
    "watch": "Show the transitions of a run as they happen.",
    "logs": "Show the output of the tasks of a run.",
    "artifacts": "List the files that tasks have left, or copy them.",
    "history": "Show every transition of a run, a task, a worker or a tool.",
    "cancel": "Cancel a run or a task.",
    "pause": "Start no further task of a run.",
    "retry": "Retry failed tasks.",
    "skip": "Skip a task.",
    "reset": "Put a failed task back to its beginning.",
    "approve": "Approve what waits for an approval.",
    "reject": "Reject an approval, or a result.",
    "accept": "Accept a result that waits for a review.",
    "answer": "Answer the question of a task.",
    "start": "Start tasks that wait to be started.",
    "task": "Add subtasks from inside a task.",
    "mcp": "Serve the Model Context Protocol for coding agents.",
    "up": "Start the HTTP server and a worker in one process.",
    "serve": "Serve the HTTP API of a project.",
    "worker": "Run tasks of every run of a database.",
    "workers": "List workers; pause, resume, drain or terminate one.",
    "breakers": "List the circuits of tools; reset or trip one.",
    "budget": "Show what a run may spend, or set it.",
    "worktree": "List worktrees; show, merge or remove them.",
    "notices": "List what happened without moving anything.",
    "notify": "List notifications; try again what was not delivered.",
    "doctor": "Show what is stuck or wrong, and verify the audit trail.",
    "tenant": "List the tenants of a database, add one, or set its quotas.",
    "key": "List API keys; create, rotate or revoke one.",
    "database": "Print the roles of a PostgreSQL database.",
    "config": "Show every setting and where it comes from.",
    "flow": "Check, show and draw flow files.",
    "machine": "List, show, check and draw the machines of lifecycles.",
    "validate": "Check a log of transitions against its machines.",
}
SHARED_MODULES = {
    **dict.fromkeys(("cancel", "pause", "retry", "skip", "reset"), "steer"),
    **dict.fromkeys(("approve", "reject", "accept", "answer", "start"), "decide"),
}

EXAMPLES = (
    ("pointsman run flow.yaml -i version=1.4.0", "run a flow"),
    ("pointsman status", "the latest runs"),
    ("pointsman status latest", "one run: its tasks, why they wait, what you can do"),
    ("pointsman logs latest -f", "the output of the latest run"),
    ("pointsman retry latest", "retry its failed tasks"),
    ("pointsman flow check flow.yaml", "check a flow: every finding with line and column"),
    ("pointsman machine list", "the shipped machines"),
    ("pointsman machine draw standard.task", "draw one of them in the terminal"),
    ("pointsman machine check my-lifecycle.yaml", "check a lifecycle of your own"),
    ("pointsman validate transitions.jsonl", "check that a log has only legal transitions"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the overview is printed without importing any command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    if not arguments or list(arguments) in (["--help"], ["-h"]):
        return show_overview()
    gc.set_threshold(*COLLECT_AFTER)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)  # Python would search everything for garbage once more, which takes 30 ms
    try:
        with quiet_start():
            from pointsman.cli.group import run

            return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


@contextmanager
def quiet_start() -> Iterator[None]:
    """Until a command begins, Ctrl-C just ends the program: an exception in the middle of an import would be printed."""
    is_mine = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if is_mine:
        signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        end_quiet_start()


def end_quiet_start() -> None:
    """A command begins, and deals with Ctrl-C itself."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    os._exit(INTERRUPTED)


def show_overview() -> int:
    if sys.stdout is None:
        return 2
    try:
        sys.stdout.write(overview())
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python prints another error when it exits
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"error: Cannot write the output: {error.strerror}.\n")
        return 2
    return 0


def overview() -> str:
    """The help of the program."""
    commands = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    examples = "\n".join(f"  {command:<44} # {what}" for command, what in EXAMPLES)
    return f"""\
Usage: pointsman COMMAND [OPTIONS] ...

Run a flow of tasks from a file, watch it, and continue it after an interruption. Every step is stored in a database, and
follows the transitions that a lifecycle file declares.

Commands:
{commands}

Examples:
{examples}

Options:
  -h, --help  Show this help; `pointsman COMMAND --help` has more.
  --version   Show the version.

Data goes to stdout, everything else to stderr; `--json` prints data for programs. Exit codes: 0 success, 1 findings or a
failed run, 2 the command could not do its work.
"""
