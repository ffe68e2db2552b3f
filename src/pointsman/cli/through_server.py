"""What does not work over a server: each is refused at once, in one sentence, before anything is done there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from pointsman.cli.output import tell
from pointsman.errors import AuthenticationFailed, Problem, RequestInvalid
from pointsman.kernel.machine import Lifecycle
from pointsman.lifecycles import SHIPPED
from pointsman.settings.sources import API_KEY, PREFIX

if TYPE_CHECKING:
    from pointsman.cli.project import Project
    from pointsman.engine.calls import Holder
    from pointsman.settings import Settings

WORK = "worker"
"""The scope that executing tasks needs."""


def check_settings(settings: Settings, lifecycles: Iterable[Lifecycle], *, needs_database: bool) -> None:
    """Refuse what only the database itself can do."""
    if needs_database:
        message = "This command needs a database, not a server. Without this setting, it uses the one of the project."
        raise RequestInvalid([Problem(settings.origins["server"], message)])
    for lifecycle in lifecycles:
        if lifecycle.name not in SHIPPED:
            raise RequestInvalid([Problem("lifecycle", _refuse_lifecycle(lifecycle.name))])


def _refuse_lifecycle(name: str) -> str:
    return f"'{name}' is a lifecycle of your own, and a server has only the shipped ones. Use the database itself: --store"


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
