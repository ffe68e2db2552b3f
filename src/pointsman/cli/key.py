"""`pointsman key`: the API keys of tenants. The text of a key is printed once, when its secret is made."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click
import msgspec
from msgspec.structs import replace

from pointsman.cli.breakers import read_duration
from pointsman.cli.describe import show_json
from pointsman.cli.group import Collection
from pointsman.cli.output import LONGEST_NAME, complete, cut, echo, show_seconds, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.cli.steer import Decision, decision_options
from pointsman.engine.operation import DEFAULT_TENANT
from pointsman.engine.operations.keys import SCOPES, CreateKey, IssuedKey, RotateKey, Scope
from pointsman.errors import NotFound, NothingYet, Problem, RequestInvalid, suggest
from pointsman.views.find import find_key
from pointsman.views.keys import KeyState, KeyView, make_key_view

COLORS = {KeyState.VALID: "green", KeyState.EXPIRED: "yellow", KeyState.REVOKED: "bright_black"}
key_argument = click.argument("identity", metavar="ID")
expires_option = click.option(
    "--expires", "expires_seconds", metavar="TIME", type=read_duration, help="How long the key is valid from now on."
)


@click.group(cls=Collection, default="list")
def command() -> None:
    """List the API keys of a database; create, rotate or revoke one.

    A key lets a program use the server for one tenant, with the scopes that it has: read, submit, operate, approve, worker or
    admin. No scope includes another. Without a command, this lists the keys.

    \b
    Examples:
      pointsman key
      pointsman key create --name ci --scope submit --scope read --expires 90d
      pointsman key rotate key_3f9ac01b2d4e --grace 1h
      pointsman key revoke key_3f9ac01b2d4e --reason "it was in a log"
    """


@command.command("list")
@click.option("--tenant", metavar="NAME", help="Only those of this tenant.")
@click.option("--all", "shows_all", is_flag=True, help="Also keys that are revoked.")
@project_options
def list_(tenant: str | None, *, shows_all: bool, asked: Asked) -> None:
    """List the API keys: what each allows, when it expires, and when it was last used. No secret is stored, so none is shown.

    \b
    Examples:
      pointsman key list
      pointsman key list --tenant acme --all --json
    """
    try:
        in_project(asked, lambda project: show_keys(project, tenant, shows_all=shows_all, as_json=asked.as_json))
    except NothingYet:
        _show_none(asked.options, as_json=asked.as_json)


@command.command()
@click.option("--tenant", metavar="NAME", default=DEFAULT_TENANT, show_default=True, help="The tenant that gets the key.")
@click.option("--name", metavar="NAME", required=True, help="What the key is for.")
@click.option(
    "--scope", "scopes", type=click.Choice(SCOPES), multiple=True, required=True, help="What it allows; repeat for more."
)
@expires_option
@decision_options
@project_options
def create(
    tenant: str, name: str, scopes: tuple[Scope, ...], expires_seconds: float | None, *, decision: Decision, asked: Asked
) -> None:
    """Create an API key, and print its text on stdout: once, because only a hash of its secret is stored.

    Without --expires the key is valid until it is revoked.

    \b
    Examples:
      pointsman key create --name ci --scope submit --scope read --expires 90d
      pointsman key create --tenant acme --name laptop --scope admin --as ada > key.txt
    """
    wanted = CreateKey(name, scopes, expires_seconds, reason=decision.reason, request_id=decision.request_id)
    in_project(asked, lambda project: create_key(project, tenant, wanted, decision.actor, as_json=asked.as_json), creates=True)


@command.command()
@key_argument
@click.option("--grace", "grace_seconds", metavar="TIME", type=read_duration, help="How long the old secret stays valid.")
@expires_option
@decision_options
@project_options
def rotate(
    identity: str, grace_seconds: float | None, expires_seconds: float | None, *, decision: Decision, asked: Asked
) -> None:
    """Give the key ID a new secret, and print its text on stdout: once. Its id, name and scopes stay.

    The old secret ends at once, or after the TIME of --grace, in which both are valid. With --expires the key is valid for that
    TIME from now on; otherwise it expires when it would have.

    \b
    Examples:
      pointsman key rotate key_3f9ac01b2d4e
      pointsman key rotate key_3f9ac01b2d4e --grace 1h --expires 90d
    """

    wanted = RotateKey(identity, grace_seconds, expires_seconds, reason=decision.reason, request_id=decision.request_id)
    in_project(asked, lambda project: rotate_key(project, wanted, decision.actor, as_json=asked.as_json))


@command.command()
@key_argument
@decision_options
@project_options
def revoke(identity: str, *, decision: Decision, asked: Asked) -> None:
    """Revoke the key ID for good. Every server refuses it from now on.

    \b
    Examples:
      pointsman key revoke key_3f9ac01b2d4e
      pointsman key revoke 3f9ac01b2d4e --reason "it was in a log"
    """
    in_project(asked, lambda project: revoke_key(project, identity, decision, as_json=asked.as_json))


async def show_keys(project: Project, tenant: str | None, *, shows_all: bool, as_json: bool) -> None:
    now = await project.engine.now()
    keys = await (project.engine.list_all_keys() if tenant is None else project.engine.for_tenant(tenant).list_keys())
    views = [view for key in keys if (view := make_key_view(key, now)).state is not KeyState.REVOKED or shows_all]
    if as_json:
        echo(show_json(views))
    elif not views:
        _show_none(project.options, as_json=as_json)
    else:
        show_table_of(views, now)


def show_table_of(keys: Sequence[KeyView], now: datetime) -> None:
    rows = [
        (
            key.id,
            cut(key.tenant, LONGEST_NAME),
            cut(key.name, LONGEST_NAME),
            click.style(key.state, fg=COLORS[key.state]),
            show_end(key, now),
            show_ago(key.last_used_at, now),
            cut(key.created_by, LONGEST_NAME),
            ", ".join(key.scopes),
        )
        for key in keys
    ]
    show_table(("id", "tenant", "name", "state", "expires", "last used", "created by", "scopes"), rows)


def show_end(key: KeyView, now: datetime) -> str:
    if key.state is not KeyState.VALID:
        return ""
    return f"in {show_seconds((key.expires_at - now).total_seconds())}" if key.expires_at else "never"


def show_ago(at: datetime | None, now: datetime) -> str:
    """Uses are noted once a minute, so nothing finer is told."""
    if at is None:
        return "never"
    seconds = (now - at).total_seconds()
    return "just now" if seconds < 60 else f"{show_seconds(seconds)} ago"


async def create_key(project: Project, tenant: str, wanted: CreateKey, actor: str, *, as_json: bool) -> None:
    try:
        issued = await project.engine.for_tenant(tenant, actor=actor).perform(wanted)
    except NotFound as unknown:
        known = suggest(tenant, [each.id for each in await project.engine.list_tenants()])
        add = project.hint("tenant", "add", tenant)
        raise RequestInvalid([Problem("", f"There is no tenant '{tenant}'. {known} To add it: {add}")]) from unknown
    await show_issued(project, issued, "", as_json=as_json)


async def rotate_key(project: Project, wanted: RotateKey, actor: str, *, as_json: bool) -> None:
    key = await find_key(project.engine, wanted.key_id)
    issued = await project.engine.for_tenant(key.tenant, actor=actor).perform(replace(wanted, key_id=key.id))
    ends = issued.key.previous_expires_at
    grace = f"until {ends.astimezone():%Y-%m-%d %H:%M:%S}" if ends else "no longer"
    await show_issued(project, issued, f" The old secret is valid {grace}.", as_json=as_json)


async def show_issued(project: Project, issued: IssuedKey, more: str, *, as_json: bool) -> None:
    """On stdout the text alone, so that it can be read by a program or written to a file."""
    view = make_key_view(issued.key, await project.engine.now())
    if as_json:
        echo(show_json({**msgspec.to_builtins(view), "text": issued.text}))
        return
    if issued.text is None:
        rotate = project.hint("key", "rotate", view.id)
        message = f"This request was answered before, and the text of a key is shown only once. For a new one: {rotate}"
        raise RequestInvalid([Problem("", message)])
    echo(issued.text)
    until = f"until {view.expires_at.astimezone():%Y-%m-%d %H:%M:%S}" if view.expires_at else "until it is revoked"
    echo(f"This is the key {view.name} ({view.id}) of {view.tenant}: {', '.join(view.scopes)}, {until}.{more}", err=True)
    echo("Keep it now: it is not stored, and is not shown again.", err=True)


async def revoke_key(project: Project, identity: str, decision: Decision, *, as_json: bool) -> None:
    before = await find_key(project.engine, identity)
    engine = project.engine.for_tenant(before.tenant, actor=decision.actor)
    after = await engine.revoke_key(before.id, reason=decision.reason, request_id=decision.request_id)
    view = make_key_view(after, await project.engine.now())
    if as_json:
        echo(show_json(view))
    elif before.revoked_at:
        echo(f"{view.name} ({view.id}): still {view.state}")
    else:
        echo(f"{view.name} ({view.id}): {make_key_view(before, after.revoked_at or before.created_at).state} → {view.state}")


def _show_none(options: str, *, as_json: bool) -> None:
    hint = "There are no API keys. Create one: pointsman key create --name NAME --scope read --scope submit"
    echo("[]") if as_json else echo(complete(hint, options), err=True)
