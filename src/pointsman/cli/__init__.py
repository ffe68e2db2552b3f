"""The command line: one file a command group, each imported only when it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "machine": "Look at lifecycles: list, show, check and draw their machines.",
    "validate": "Check a log of transitions against the machines that it follows.",
}

EXAMPLES = (
    ("pointsman machine list", "the shipped machines"),
    ("pointsman machine draw standard.task", "one of them, in the terminal"),
    ("pointsman machine check my-lifecycle.yaml", "is a lifecycle of your own sound?"),
    ("pointsman validate transitions.jsonl", "did a system do only what is legal?"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the help of the whole is printed without importing any of it."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or list(arguments) in (["--help"], ["-h"]):
        return show_overview()
    from pointsman.cli.group import run

    return run(arguments)


def show_overview() -> int:
    try:
        sys.stdout.write(overview())
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; let the exit be quiet, too
        return 1
    return 0


def overview() -> str:
    """The help of the whole program."""
    commands = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    examples = "\n".join(f"  {command:<44} # {what}" for command, what in EXAMPLES)
    return f"""\
Usage: pointsman COMMAND [OPTIONS] …

Pointsman carries work through declared life cycles: everything moves only along transitions that a lifecycle file
declares, and what is declared can be listed, checked, drawn and held against a log.

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
