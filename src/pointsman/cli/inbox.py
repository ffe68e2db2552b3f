"""`pointsman inbox`: what waits for a person, as a list, as it comes, or one by one."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import click
import msgspec

from pointsman.cli.describe import list_results, show_json
from pointsman.cli.hints import show_waiting, write_command
from pointsman.cli.output import echo, fail, show_seconds
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.cli.steer import Decision, steer
from pointsman.cli.through_server import wait_out_outages
from pointsman.errors import NothingYet, PointsmanError, WorktreeError
from pointsman.store.contract import Wakeup
from pointsman.views.find import short
from pointsman.views.inbox import InboxItem, list_inbox
from pointsman.world import World

LOOK_SECONDS = 5.0
APPEAR_SECONDS = 0.5
"""How often to look for the database of a project that has none."""
MOST_CHOICES = 5
"""With more choices than these, the command asks for one."""
DECIDED = ("approve", "reject", "accept", "answer", "ready")
"""Steps that end the waiting; others, such as `skip`, are in `pointsman status`."""
OTHERS = {"next": "leaves it for later and shows the next one", "quit": "leaves the inbox; what is not decided stays there"}
LETTERS = {"approve": "a", "accept": "a", "answer": "a", "reject": "r", "ready": "s"}


@click.command()
@click.option("--watch", "-w", is_flag=True, help="Show what comes, until Ctrl-C.")
@click.option("--list", "as_list", is_flag=True, help="Only list; by default, a terminal asks for a decision about each.")
@click.option("--as", "actor", metavar="NAME", help="Who decides, for the history (default: the user of this system).")
@project_options
def command(*, watch: bool, as_list: bool, actor: str | None, asked: Asked) -> None:
    """Show everything that waits for a person, oldest first: approvals, reviews, questions, tasks to start.

    Each has what is needed to decide, and the command that does it. On a terminal, it asks for a decision about each of them.

    \b
    Examples:
      pointsman inbox
      pointsman inbox --list
      pointsman inbox --watch
    """
    walks = sys.stdin.isatty() and sys.stdout.isatty() and not (watch or as_list or asked.as_json)

    def act(project: Project) -> Coroutine[Any, Any, None]:
        for_person = replace(project, actor=actor or project.actor)
        if watch:
            return keep_showing(for_person, as_json=asked.as_json)
        return walk(for_person) if walks else show(for_person, as_json=asked.as_json)

    try:
        in_project(asked, act)
    except NothingYet as nothing:
        echo("[]") if asked.as_json and not watch else echo(str(nothing), err=True)
        if watch:
            wait_for_project(asked, act)


def wait_for_project(asked: Asked, act: Callable[[Project], Coroutine[Any, Any, None]]) -> None:
    """The first run of a project creates its database: watch it from then on."""

    async def pause() -> None:
        await World().sleep(APPEAR_SECONDS)

    while True:
        asyncio.run(pause())
        with suppress(NothingYet):
            in_project(asked, act)


async def find_items(project: Project) -> tuple[list[InboxItem], datetime]:
    now = await project.engine.now()
    return await list_inbox(project.engine, now, project.find_dead()), now


async def show(project: Project, *, as_json: bool) -> None:
    items, now = await find_items(project)
    if as_json:
        echo(show_json([describe(project, item) for item in items]))
    elif not items:
        echo("Nothing waits for you.", err=True)
    else:
        for item in items:
            show_item(project, item, now)
    if not as_json:
        await tell_of_worktrees(project)


async def tell_of_worktrees(project: Project) -> None:
    """No task asks about the work of a run that has ended, but it waits for a person, too."""
    from pointsman.cli.worktree import count_left

    with suppress(WorktreeError):  # `pointsman worktree` explains it
        if left := await count_left(project):
            which = "1 worktree of a run that has ended is" if left == 1 else f"{left} worktrees of runs that have ended are"
            echo(f"{which} not merged: {project.hint('worktree', 'list')}", err=True)


async def keep_showing(project: Project, *, as_json: bool) -> None:
    """Show each item once, when it begins to wait."""
    wait_out_outages(project)
    moved = asyncio.Event()
    stop = project.engine.listen(Wakeup.EVENTS, moved.set)
    shown: set[tuple[str, datetime]] = set()
    try:
        while True:
            moved.clear()
            items, now = await find_items(project)
            for item in items:
                if (item.task_id, item.waiting.since) not in shown:
                    echo(msgspec.json.encode(describe(project, item)).decode()) if as_json else show_item(project, item, now)
            shown = {(item.task_id, item.waiting.since) for item in items}
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await moved.wait()
    finally:
        stop()


async def walk(project: Project) -> None:
    """One after the other; what was decided is said as the commands say it."""
    items, now = await find_items(project)
    if not items:
        echo("Nothing waits for you.")
    for number, item in enumerate(items, 1):
        echo(click.style(f"{number} of {len(items)}", dim=True))
        show_item(project, item, now)
        if not list_commands(project, item):
            continue
        step = ask_for_step(item)
        if step == "quit":
            return
        if step is None:
            continue
        try:
            await steer(project, step, item.run_id, item.task_id, ask_for_words(item, step, project.actor), as_json=False)
        except PointsmanError as error:
            fail(str(error))
        echo()
    await tell_of_worktrees(project)


def ask_for_step(item: InboxItem) -> str | None:
    """What to do about it: a signal, `quit`, or None to leave it for later."""
    steps = [step.operation for step in item.steps if step.operation in DECIDED]
    effects = {step.operation: step.effect for step in item.steps}
    letters = {LETTERS[step]: step for step in steps} | {"n": None, "q": "quit"}
    words = ", ".join(f"[{letter}]{(word or 'next').removeprefix(letter)}" for letter, word in letters.items())
    while (letter := prompt(f"{words}, [?] help", default="n").strip().lower()) not in letters:
        for each, step in letters.items():
            echo(f"  {each}  {(effects | OTHERS)[step or 'next']}")
    return letters[letter]


def ask_for_words(item: InboxItem, step: str, actor: str) -> Decision:
    if step == "answer":
        return Decision(actor, answer=prompt_for_answer(item.choices, item.default), epoch=item.attempts)
    question = "What should be different? The next attempt is told." if step == "reject" else "Why?"
    words = prompt(f"{question} (empty for nothing)", default="", show_default=False) or None
    return Decision(actor, words, comment=words if step == "reject" else None, epoch=item.attempts)


def prompt_for_answer(choices: tuple[str, ...], default: str | None) -> str:
    kind = click.Choice(choices) if choices else None
    return prompt("Answer", type=kind, default=default, err=True)


def prompt(text: str, **options: Any) -> str:
    with heeding_interrupts():
        return str(click.prompt(text, **options))


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """End at the first Ctrl-C: the event loop would only note it, and the prompt would go on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def describe(project: Project, item: InboxItem) -> dict[str, object]:
    commands = [{"command": command, "what": effect} for command, effect in list_commands(project, item)]
    return {**msgspec.to_builtins(item), "commands": commands}


def show_item(project: Project, item: InboxItem, now: datetime) -> None:
    waits = show_seconds((now - item.waiting.since).total_seconds())
    head = click.style(f"{item.run}: {item.task}", bold=True)
    why = "needs an answer" if item.waiting.kind == "answer" else show_waiting(item.waiting, now)  # the question follows
    echo(f"{head}  {why}, for {waits}")
    for line in list_facts(project, item):
        echo(f"  {line}")
    commands = list_commands(project, item)
    width = max((len(command) for command, _ in commands), default=0)
    for command, effect in commands:
        echo(f"  {command.ljust(width)}  {click.style(f'# {effect}', dim=True)}")
    if not commands and (step := next(iter(item.steps), None)):
        who = " or ".join(step.by) if step.by else f"somebody else than {' and '.join(step.not_by)}"
        how = "with another API key" if project.has_key else project.hint("inbox", "--as", step.by[0] if step.by else "NAME")
        echo(f"  up to {who}: {how}")
    echo()


def list_facts(project: Project, item: InboxItem) -> Iterator[str]:
    """What is needed to decide."""
    yield from filter(None, (item.description, *item.text.splitlines()))
    if item.choices:
        yield f"choices: {', '.join(item.choices)}"
    if item.default is not None:
        yield f"default: {item.default}"
    if item.schema is not None:
        yield f"schema: {msgspec.json.encode(item.schema).decode()}"
    if item.waiting.kind != "review":
        return
    yield from list_results(item.outputs, item.tail, item.diff, project.find_log(item.log_path))


def list_commands(project: Project, item: InboxItem) -> list[tuple[str, str]]:
    """The commands that decide about it, for this person."""
    found = []
    for step in item.steps:
        if step.operation == "answer" and 0 < len(item.choices) <= MOST_CHOICES:
            words = (short(item.run_id), item.task)
            found += [(project.hint_decision("answer", *words, each), step.effect) for each in item.choices]
        elif step.operation in DECIDED and (command := write_command(project, step, item.run_id, {item.task_id: item.task})):
            found.append((command, step.effect))
    return found
