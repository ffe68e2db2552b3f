"""What does not work over a server: each is refused at once, in one sentence, before anything is done there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from pointsman.cli.output import tell
from pointsman.engine.machines import take_fingerprint
from pointsman.errors import AuthenticationFailed, CallRefused, Problem, RequestInvalid
from pointsman.kernel.machine import Lifecycle
from pointsman.lifecycles import SHIPPED
from pointsman.settings.sources import API_KEY, PREFIX

if TYPE_CHECKING:
    from pointsman.cli.project import Project
    from pointsman.engine.calls import Holder
    from pointsman.engine.engine import TenantEngine
    from pointsman.settings import Settings

WORK = "worker"
"""The scope that executing tasks needs."""


def refuse(settings: Settings) -> None:
    """For what only the database itself can do."""
    message = "This command needs a database, not a server. Without this setting, it uses the one of the project."
    raise RequestInvalid([Problem(settings.origins["server"], message)])


async def add_lifecycles(engine: TenantEngine, lifecycles: Iterable[Lifecycle]) -> None:
    """Add those lifecycles of the user that the server does not have. Its runs follow the last version."""
    if not (own := [each for each in lifecycles if each.name not in SHIPPED]):
        return
    rows = await engine.list_definitions()
    known = {(row.name, row.version, row.fingerprint) for row in rows}
    for lifecycle in own:
        last = max((row.version for row in rows if row.lifecycle == lifecycle.name), default=0)
        if last > lifecycle.version:
            message = f"The server has version {last} of '{lifecycle.name}', and this file is version {lifecycle.version}."
            raise RequestInvalid([Problem("lifecycle", f"{message} Use the file of version {last}.")])
        if not {(each.name, each.version, take_fingerprint(each)) for each in lifecycle.machines} <= known:
            await _add_lifecycle(engine, lifecycle)


async def _add_lifecycle(engine: TenantEngine, lifecycle: Lifecycle) -> None:
    try:
        await engine.add_lifecycle(lifecycle.text)
    except CallRefused as refused:
        if refused.problem not in ("forbidden", "operator-only"):
            raise
        message = f"The server does not have version {lifecycle.version} of '{lifecycle.name}'. "
        advice = "Ask its operator to add it: POST /api/v1/lifecycles"
        raise RequestInvalid([Problem("lifecycle", message + advice)]) from None


def read_key(environment: Mapping[str, str]) -> str | None:
    """The API key, if there is one. What cannot be a key is refused here, where its place is known."""
    from pointsman.engine.key_text import parse_key

    name = f"{PREFIX}{API_KEY}"
    key = environment.get(name) or None
    try:
        if key:
            parse_key(key)
    except AuthenticationFailed:
        message = "This is no API key. A key begins with pm_, has no spaces and ends with a checksum: copy it as a whole."
        raise RequestInvalid([Problem(name, message)]) from None
    return key


def check_name(holder: Holder) -> None:
    """A key acts in its own name: refuse `--as` with another one."""
    context = click.get_current_context(silent=True)
    asked = context.params.get("actor") if context else None
    if asked and asked != holder.actor:
        message = f"An API key acts in its own name, here '{holder.actor}', and not as '{asked}'. Leave --as out."
        raise RequestInvalid([Problem("--as", message)])


def check_scope(project: Project) -> None:
    """Executing tasks on this machine needs a key for it: better said before the run is submitted."""
    holder = project.holder
    if holder and holder.has_key and WORK not in holder.scopes:
        message = f"To run tasks here, the API key '{holder.actor}' needs the scope {WORK}. "
        raise RequestInvalid([Problem("", f"{message}To leave them to other workers: --detach")])


def wait_out_outages(project: Project) -> None:
    """From now on, wait while the server does not answer, and say so."""
    if project.remote:
        project.remote.wait_out_outages(tell)
