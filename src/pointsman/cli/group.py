"""The root of the command tree: imports commands when they are used, and prints every expected error as one line."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from pointsman import __version__
from pointsman.cli import COMMANDS, INTERRUPTED, SHARED_MODULES, end_quiet_start, overview
from pointsman.cli.output import STDERR, complete, echo, fail, is_read
from pointsman.errors import PointsmanError, suggest

LONGEST_SUMMARY = 1000


class Commands(click.Group):
    """A group of commands that suggests the nearest ones after a typo."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"There is no command called '{name}'. {suggest(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every command with its whole first sentence; click would cut long ones."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(LONGEST_SUMMARY)) for name, command in commands if command and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Collection(Commands):
    """A group that does one of its commands, `default`, where none is named: `pointsman workers` lists them."""

    def __init__(self, *arguments: Any, default: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and not (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else [self._default, *args])


class Root(Commands):
    """Imports `pointsman.cli.NAME` for the command NAME; a module has one `command`, or several by their names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        shared = SHARED_MODULES.get(cmd_name)
        module = import_module(f"pointsman.cli.{shared or cmd_name}")
        end_quiet_start()
        command: click.Command = getattr(module, cmd_name if shared else "command")
        return command

    def get_help(self, ctx: click.Context) -> str:
        del ctx
        return overview().rstrip()

    def invoke(self, ctx: click.Context) -> Any:
        """Click would write an empty line after Ctrl-C, and wait for ever for somebody to read it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None


@click.command(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pointsman", message="%(prog)s %(version)s")
def root() -> None:
    """Everything is in the commands."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0 success, 1 findings or a failed run, 2 it could not be done."""
    try:
        result = root.main(list(arguments), prog_name="pointsman", standalone_mode=False, color=wants_color())
    except NoArgsIsHelpError as error:
        echo(error.ctx.get_help())
        return 0
    except click.ClickException as error:
        show_usage(error)
        fail(error.format_message())
        return 2
    except PointsmanError as error:
        if "--json" in arguments:
            echo(json.dumps({"error": complete(str(error), error.options)}))
        fail(complete(str(error), error.options))
        return 2
    except OSError as error:
        what = f"Cannot use {error.filename}" if error.filename else "Cannot write the output"
        fail(f"{what}: {error.strerror or error}.")
        return 2
    except (click.Abort, KeyboardInterrupt):
        if is_read(STDERR):  # nobody waits for a reader after Ctrl-C
            if os.isatty(STDERR):
                echo(err=True)  # the terminal shows ^C
            fail("Interrupted.")
        return INTERRUPTED
    except Exception:  # noqa: BLE001 - exit code 1 would mean that the command did its work
        traceback.print_exc()
        fail("This is a bug in Pointsman. Please report it with the lines above.")
        return 2
    return result if isinstance(result, int) else 0


def show_usage(error: click.ClickException) -> None:
    """How the command is called, after a mistake in calling it."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        echo(error.ctx.get_usage(), err=True)
        echo(f"Try '{error.ctx.command_path} --help' for help.\n", err=True)


def wants_color() -> bool | None:
    """None lets click decide by whether the output is a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None
