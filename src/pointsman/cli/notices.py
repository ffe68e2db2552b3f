"""`pointsman notices`: what happened without moving anything."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pointsman.cli.describe import show_json
from pointsman.cli.history import find_entity
from pointsman.cli.output import LONGEST_NAME, cut, echo, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.errors import NothingYet
from pointsman.views.find import short
from pointsman.views.notices import list_notices
from pointsman.views.values import NoticeView


@click.command()
@click.argument("identity", metavar="[ID]", required=False)
@click.option("--number", "-n", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many to list.")
@project_options
def command(identity: str | None, number: int, *, asked: Asked) -> None:
    """List what happened without moving anything, newest first.

    A notice says that something has been in a state for longer than its lifecycle expects, that a person has set a budget or
    let the doctor repair something, or who has asked a worker to end a task or to leave. It needs no answer: what still is
    wrong is in `pointsman doctor`.

    ID is a run, a task, a worker or a tool, as for `pointsman history`; notices about a run include those about its tasks.

    \b
    Examples:
      pointsman notices
      pointsman notices latest
      pointsman notices -n 100 --json
    """
    try:
        in_project(asked, lambda project: show_notices(project, identity, number, as_json=asked.as_json))
    except NothingYet as nothing:
        if identity is not None:
            raise
        echo("[]") if asked.as_json else echo(str(nothing), err=True)


async def show_notices(project: Project, identity: str | None, number: int, *, as_json: bool) -> None:
    about = (await find_entity(project.engine, identity, None))[1] if identity is not None else None
    notices = await list_notices(project.engine, about=about, limit=number)
    if as_json:
        echo(show_json(notices))
    elif not notices:
        echo("There are no notices.", err=True)
    else:
        show_table_of(notices)


def show_table_of(notices: Sequence[NoticeView]) -> None:
    rows = [
        (
            f"{notice.at.astimezone():%Y-%m-%d %H:%M:%S}",
            f"{notice.kind} {cut(notice.name, LONGEST_NAME)}",
            short(notice.id),
            notice.subject,
            notice.message,
        )
        for notice in notices
    ]
    show_table(("when", "about", "id", "notice", "message"), rows, fits=True)
