"""The command line: one file a command group, each imported only when it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "run": "Run the flow of a file, and show how it goes.",
    "resume": "Go on with a run that was interrupted or paused.",
    "status": "Show the latest runs, or how the tasks of one stand.",
    "watch": "Show what happens in a run while it happens.",
    "logs": "Show what the tasks of a run have written.",
    "history": "Show every move of a run, a task, a worker or a tool.",
    "cancel": "End a run or a task.",
    "pause": "Let no further task of a run begin.",
    "retry": "Try again what has failed.",
    "skip": "Pass over a task.",
    "worker": "Do tasks of every run of a database, as one of many.",
    "config": "Show every setting and where it comes from.",
    "flow": "Look at flow files: check, show and draw them.",
    "machine": "Look at lifecycles: list, show, check and draw their machines.",
    "validate": "Check a log of transitions against the machines that it follows.",
}
SHARED_MODULES = {"cancel": "steer", "pause": "steer", "retry": "steer", "skip": "steer"}

EXAMPLES = (
    ("pointsman run flow.yaml -i version=1.4.0", "run a flow"),
    ("pointsman status", "the latest runs"),
    ("pointsman status latest", "how one goes: what is done, what waits and why"),
    ("pointsman logs latest -f", "what the latest one writes"),
    ("pointsman retry latest", "try again what has failed in it"),
    ("pointsman flow check flow.yaml", "is a flow sound? every finding with line and column"),
    ("pointsman machine list", "the shipped machines"),
    ("pointsman machine draw standard.task", "one of them, in the terminal"),
    ("pointsman machine check my-lifecycle.yaml", "is a lifecycle of your own sound?"),
    ("pointsman validate transitions.jsonl", "did a system do only what is legal?"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the help of the whole is printed without importing any of it."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    if not arguments or list(arguments) in (["--help"], ["-h"]):
        return show_overview()
    try:
        from pointsman.cli.group import run

        return run(arguments)
    except KeyboardInterrupt:
        return 130


def show_overview() -> int:
    if sys.stdout is None:
        return 2
    try:
        sys.stdout.write(overview())
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more when it ends
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"error: Cannot write the output: {error.strerror}.\n")
        return 2
    return 0


def overview() -> str:
    """The help of the whole program."""
    commands = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    examples = "\n".join(f"  {command:<44} # {what}" for command, what in EXAMPLES)
    return f"""\
Usage: pointsman COMMAND [OPTIONS] ...

Run a flow of tasks from a file, see how it goes, and go on where it stood when something was interrupted. Every step is
kept in a database, and follows the transitions that a lifecycle file declares.

Commands:
{commands}

Examples:
{examples}

Options:
  -h, --help  Show this help; `pointsman COMMAND --help` has more.
  --version   Show the version.

Data goes to stdout, everything else to stderr; `--json` gives data for programs. Exit codes: 0 all is well, 1 something
was found, 2 the command could not do its work.
"""
