"""`pointsman task add`: add a subtask from inside a task."""

from __future__ import annotations

import os
from typing import Any

import click

from pointsman.cli.group import Commands
from pointsman.errors import Problem, RequestInvalid


@click.group(cls=Commands)
def command() -> None:
    """Work with the task that this command runs in.

    \b
    Example:
      pointsman task add part-1 -- ./convert part-1.csv
    """


@command.command()
@click.argument("name", metavar="NAME")
@click.argument("program", metavar="[-- PROGRAM ARGUMENT…]", nargs=-1)
@click.option("--run", "script", metavar="SCRIPT", help="A shell script.")
@click.option("--call", "function", metavar="FUNCTION", help="A Python function, as package.module:function.")
@click.option("--needs", metavar="NAME", multiple=True, help="Another subtask that must succeed first; repeat for more.")
@click.option("--set", "given", metavar="KEY=VALUE", multiple=True, help="Any other key of a task, with its value in YAML.")
def add(
    name: str,
    program: tuple[str, ...],
    script: str | None,
    function: str | None,
    needs: tuple[str, ...],
    given: tuple[str, ...],
) -> None:
    """Add the subtask NAME to the task that this command runs in.

    Subtasks start when the task has succeeded, and the task is blocked until they have ended.

    \b
    Examples:
      pointsman task add part-1 -- ./convert part-1.csv
      pointsman task add part-2 --run 'make part-2' --set retries=2
      pointsman task add sum --call reports:sum_up --needs part-1 --needs part-2
    """
    from pointsman.inside import add_task

    if "POINTSMAN_SUBTASKS" not in os.environ:
        message = "This command works inside a running task only. Use it in a script of a flow."
        raise RequestInvalid([Problem("", message)])
    kinds = {"command": list(program) or None, "run": script, "call": function}
    chosen = {key: value for key, value in kinds.items() if value is not None}
    if len(chosen) > 1:
        raise RequestInvalid([Problem("", f"A subtask has one of {' and '.join(chosen)}. Leave one out.")])
    keys = {**chosen, **({"needs": list(needs)} if needs else {}), **_read_keys(given)}
    _check(name, keys)
    add_task(name, **keys)


def _read_keys(given: tuple[str, ...]) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    keys: dict[str, Any] = {}
    for each in given:
        key, separator, text = each.partition("=")
        try:
            value = YAML(typ="safe").load(text)
        except YAMLError:
            separator = ""
        if not separator:
            raise RequestInvalid([Problem("--set", f"'{each}' is not KEY=VALUE. Write for example: --set retries=2")])
        if key == "name":
            raise RequestInvalid([Problem("--set", "The first argument is the name of the subtask. Leave `name` out.")])
        keys[key] = value
    return keys


def _check(name: str, keys: dict[str, Any]) -> None:
    """Say now what the worker would say when the task has ended."""
    from pointsman.worker.left_files import as_sentence, explain_place, explain_subtask, list_added

    subtask = {"name": name, **keys}
    if wrong := explain_subtask(subtask) or explain_place(subtask, list_added(os.environ["POINTSMAN_SUBTASKS"])):
        raise RequestInvalid([Problem(name, as_sentence(wrong))])
