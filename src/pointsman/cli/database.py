"""`pointsman database`: what the owner of a database runs."""

from __future__ import annotations

import click

from pointsman.cli.group import Commands
from pointsman.cli.output import echo


@click.group(cls=Commands)
def command() -> None:
    """Prepare a PostgreSQL database for several roles."""


@command.command()
def roles() -> None:
    """Print the SQL that creates the roles pointsman_app and pointsman_read.

    Run it as the owner of the tables, in their schema, after every new version. It may be run again.

    \b
    Examples:
      pointsman database roles | psql postgresql://owner@host/database
    """
    from pointsman.store.postgres.roles import read_roles

    echo(read_roles(), nl=False)
