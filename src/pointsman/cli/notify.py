"""`pointsman notify`: the notifications of a project; try again what could not be delivered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from pointsman.cli.describe import show_json
from pointsman.cli.group import Collection
from pointsman.cli.notifier import make_notifier
from pointsman.cli.output import LONGEST_NAME, count, cut, echo, show_seconds, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.engine.filters import NotificationFilter
from pointsman.errors import NothingYet, Problem, RequestInvalid
from pointsman.store.rows import OutboxEntry
from pointsman.views.find import is_part, short
from pointsman.views.notifications import find_delivery, make_notification_view
from pointsman.views.values import first_line

LOOK_SECONDS = 0.2
LOOKS = 50
"""How often to look whether a server has tried."""
MOST = 1000
"""How many notifications are searched for those that a person names."""


@click.group(cls=Collection, default="list")
def command() -> None:
    """List the notifications, and try again what could not be delivered.

    `notify` in pointsman.toml or in a flow says who is notified of what. Workers and runs deliver notifications; one that
    could not be delivered after several tries is dead until a person retries it. Without a command, this lists them.

    \b
    Examples:
      pointsman notify
      pointsman notify list --dead
      pointsman notify retry --all
    """


@command.command("list")
@click.option("--dead", is_flag=True, help="Only those that are not tried any more.")
@click.option("--number", "-n", type=click.IntRange(1, MOST), default=20, show_default=True, help="How many to list.")
@project_options
def list_(number: int, *, dead: bool, asked: Asked) -> None:
    """List the notifications, newest first: delivered, due or dead, with the error of the last try.

    Delivered ones are kept for 7 days.

    \b
    Examples:
      pointsman notify
      pointsman notify list --dead --json
    """
    try:
        in_project(asked, lambda project: show_notifications(project, number, dead=dead, as_json=asked.as_json))
    except NothingYet as nothing:
        echo("[]") if asked.as_json else echo(str(nothing), err=True)


@command.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "retries_all", is_flag=True, help="Everything that is not delivered yet.")
@project_options
def retry(ids: tuple[str, ...], *, retries_all: bool, asked: Asked) -> int:
    """Try to deliver notifications again at once, for some seconds: those with an ID, or all that are not delivered.

    What cannot be delivered now gets all its tries again. Exit code 0: all were delivered, 1: some were not.

    \b
    Examples:
      pointsman notify retry 9ef05a58
      pointsman notify retry --all
    """
    if bool(ids) == retries_all:
        raise click.UsageError("Name notifications by their ids, or retry all of them with --all.")
    return in_project(asked, lambda project: retry_notifications(project, ids, as_json=asked.as_json))


async def show_notifications(project: Project, number: int, *, dead: bool, as_json: bool) -> None:
    wanted = NotificationFilter(delivery="dead" if dead else None)
    entries = await project.engine.outbox.list_entries(wanted, limit=number)
    if as_json:
        echo(show_json([make_notification_view(entry) for entry in entries]))
    elif not entries:
        echo("There are no dead notifications." if dead else "There are no notifications.", err=True)
    else:
        show_table_of(entries, await project.engine.now())
        if any(entry.dead_at for entry in entries):
            echo(f"To try the dead ones again: {project.hint('notify', 'retry', '--all')}", err=True)


def show_table_of(entries: Sequence[OutboxEntry], now: datetime) -> None:
    rows = [
        (
            f"{entry.created_at.astimezone():%Y-%m-%d %H:%M:%S}",
            cut(entry.target, LONGEST_NAME),
            entry.event,
            show_delivery(entry, now),
            str(entry.tries),
            short(entry.id),
            entry.subject,
            first_line(entry.error or ""),
        )
        for entry in entries
    ]
    show_table(("when", "target", "event", "delivery", "tries", "id", "subject", "error"), rows, fits=True)


def show_delivery(entry: OutboxEntry, now: datetime) -> str:
    if entry.due_at is None:
        return find_delivery(entry)
    if entry.claimed_by is not None and entry.due_at > now:
        return "in delivery"
    seconds = (entry.due_at - now).total_seconds()
    return f"due in {show_seconds(seconds)}" if seconds > 0 else "due"


async def retry_notifications(project: Project, names: Sequence[str], *, as_json: bool) -> int:
    outbox = project.engine.outbox
    chosen = choose(await outbox.list_entries(limit=MOST), names)
    if chosen:
        await project.engine.retry_notifications([entry.id for entry in chosen])
    await (wait_for_server if project.is_remote else deliver)(project, chosen)
    entries = await outbox.find_entries([entry.id for entry in chosen])
    left = [entry for entry in entries if entry.delivered_at is None]
    if as_json:
        echo(show_json([make_notification_view(entry) for entry in entries]))
    elif not entries:
        echo("Every notification is delivered.", err=True)
    else:
        show_table_of(entries, await project.engine.now())
        echo(f"{count(len(entries) - len(left), 'notification')} delivered, {len(left)} not.", err=True)
    return 1 if left else 0


async def deliver(project: Project, chosen: Sequence[OutboxEntry]) -> None:
    """A flow runs commands here only for the runs whose notifications a person has chosen."""
    notifier = make_notifier(project)
    for run_id in {entry.run_id for entry in chosen if entry.origin == "flow" and entry.run_id} or {""}:
        notifier.allow_commands(run_id)
        await notifier.flush()


async def wait_for_server(project: Project, chosen: Sequence[OutboxEntry]) -> None:
    """Until the server has tried each of them, but no longer than for some seconds."""
    left = {entry.id for entry in chosen}
    for _ in range(LOOKS):
        entries = await project.engine.outbox.find_entries(sorted(left))
        left = {entry.id for entry in entries if entry.delivered_at is None and entry.tries == 0}
        if not left:
            return
        await project.world.sleep(LOOK_SECONDS)


def choose(entries: Sequence[OutboxEntry], names: Sequence[str]) -> list[OutboxEntry]:
    """Those that a person names; without names, all that are not delivered."""
    if not names:
        return [entry for entry in entries if entry.delivered_at is None]
    chosen = []
    for name in names:
        found = [entry for entry in entries if entry.id == name or is_part(name, entry.id)]
        if len(found) != 1:
            message = f"'{name}' means several notifications" if found else f"There is no notification '{name}'"
            raise RequestInvalid([Problem("id", f"{message}. See: pointsman notify list")])
        if found[0].delivered_at:
            raise RequestInvalid([Problem("id", f"The notification '{name}' was delivered already.")])
        chosen += found
    return chosen
