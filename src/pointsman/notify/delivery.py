"""Delivery: one try to bring a notification to its target."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pointsman.errors import DeliveryFailed
from pointsman.notify import command, webhook
from pointsman.settings import PREFIX, NotifyTarget, explain_url
from pointsman.worker.runner import inherit_environment
from pointsman.world import World

LONGEST_VALUE = 10_000
"""Of a variable: the system limits them, and stdin has the whole event."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a target gets."""

    id: str
    event: str
    subject: str
    body: str


async def deliver(
    delivery: Delivery, target: NotifyTarget, *, directory: Path, environ: Mapping[str, str], world: World
) -> None:
    """Try once, within the time of the target; raises DeliveryFailed. `environ` has the variables that the target may use."""
    body = delivery.body.encode()
    if target.command:
        inherited = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
        await command.run(
            target.command,
            body,
            cwd=directory,
            env=inherited | describe_event(delivery),
            timeout_seconds=target.timeout_seconds,
            hidden=[value for name in target.pass_env if (value := environ.get(name))],
            sleep=world.sleep,
        )
        return
    url = target.webhook or _read_variable(target.webhook_env, environ)
    if problem := explain_url(url):
        raise DeliveryFailed(f"The URL in {target.webhook_env or 'webhook'} {problem}.", is_final=True)
    secrets = _read_variable(target.secret_env, environ) if target.secret_env else None
    try:
        async with asyncio.timeout(target.timeout_seconds):
            await webhook.post(
                url,
                body,
                message_id=delivery.id,
                now=world.clock.now(),
                secrets=secrets,
                allow_private=target.allow_private,
            )
    except TimeoutError:
        raise DeliveryFailed(f"The receiver did not answer within {target.timeout_seconds:g} seconds.") from None


def find_environment(target: NotifyTarget, pass_env: tuple[str, ...], *, is_trusted: bool) -> dict[str, str]:
    """The variables that a target may use: one of the settings names its own, one of a flow has those that tasks inherit."""
    own = (*target.pass_env, target.webhook_env or "", target.secret_env or "") if is_trusted else pass_env
    return inherit_environment(os.environ, own)


def describe_event(delivery: Delivery) -> dict[str, str]:
    """The main values of an event, as variables."""
    data: dict[str, Any] = msgspec.json.decode(delivery.body)["data"]
    run = data.get("run", {})
    values = {
        "EVENT": delivery.event,
        "EVENT_ID": delivery.id,
        "EVENT_SUBJECT": delivery.subject,
        "EVENT_RUN_ID": run.get("id"),
        "EVENT_RUN": run.get("name"),
        "EVENT_TASK": data.get("task", {}).get("name"),
        "EVENT_OUTCOME": run.get("outcome"),
        "EVENT_TOOL": data.get("tool", {}).get("name"),
    }
    return {PREFIX + name: str(value).replace("\0", "")[:LONGEST_VALUE] for name, value in values.items() if value is not None}


def _read_variable(name: str | None, environ: Mapping[str, str]) -> str:
    value = environ.get(name or "")
    if not value:
        raise DeliveryFailed(f"The variable {name} is not set, or not one that this target may use.")
    return value
