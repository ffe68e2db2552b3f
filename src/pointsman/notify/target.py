"""Targets: whom a notification goes to, and which events they want."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from pydantic import ValidationError

from pointsman.flows.model import Notify
from pointsman.kernel.machine import Outcome
from pointsman.settings import NotifyTarget
from pointsman.store.rows import Run

RUN_ENDED = "run_ended"
RUN_FAILED = "run_failed"


def wants(target: NotifyTarget, event: str, outcome: Outcome | None) -> bool:
    """Whether a target is told of an event; an end without success may be all that it wants of the ends of runs."""
    return event in target.on or (event == RUN_ENDED and outcome is Outcome.FAILURE and RUN_FAILED in target.on)


def list_flow_targets(run: Run) -> dict[str, NotifyTarget]:
    """By name: the targets that the flow of a run declares. Only settings can allow private addresses."""
    payload = msgspec.json.decode(run.payload)
    entries = payload.get("notify") if isinstance(payload, dict) else None
    return {target.name: target for target in _read_entries(entries)} if isinstance(entries, list) else {}


def _read_entries(entries: list[Any]) -> Iterator[NotifyTarget]:
    for index, written in enumerate(entries):
        try:
            entry = Notify.model_validate(written)
        except ValidationError:
            continue  # a run that was not submitted from a flow may have anything there
        yield NotifyTarget(
            name=entry.name or str(index),
            on=entry.on,
            command=entry.command or (),
            webhook=entry.webhook,
            webhook_env=entry.webhook_env,
            secret_env=entry.secret_env,
            timeout_seconds=entry.timeout,
            tries=entry.tries,
        )
