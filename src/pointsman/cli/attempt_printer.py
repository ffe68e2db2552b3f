"""What `pointsman worker` prints: a line for each start and end of an attempt, or an object with `--json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import click
import msgspec
from msgspec import Struct

from pointsman.cli.output import count, show_seconds, show_time, tell
from pointsman.cli.streams import write_line
from pointsman.cli.view import MARKS, SKIPPED_MARK, STYLES
from pointsman.engine.claims import Claim
from pointsman.kernel.machine import Outcome, Phase
from pointsman.views.find import short
from pointsman.views.values import first_line
from pointsman.worker.verdict import (
    Asked,
    Canceled,
    Checked,
    Completed,
    Expired,
    Failed,
    FanOut,
    Interrupted,
    Limited,
    Nothing,
    Overspent,
    Skipped,
    Verdict,
)
from pointsman.world import Clock

MARKED = {
    "started": (MARKS[Phase.ACTIVE], STYLES[Phase.ACTIVE]),
    "asked": (MARKS[Phase.HELD], STYLES[Phase.HELD]),
    "skipped": (SKIPPED_MARK, STYLES[Outcome.CANCELED]),
    **{outcome.value: (MARKS[outcome], STYLES[outcome]) for outcome in Outcome},
}
"""By event: its mark and its color."""
GIVEN_UP = MARKED[Outcome.CANCELED.value]
"""Of all others: the attempt was stopped."""


class AttemptEvent(Struct, frozen=True, kw_only=True):
    """The start or the end of an attempt, as `--json` prints it."""

    at: datetime
    event: str
    worker: str
    run_id: str
    task_id: str
    name: str
    attempt: int
    epoch: int
    seconds: float | None
    message: str | None


@dataclass(slots=True)
class AttemptPrinter:
    clock: Clock
    worker: str
    as_json: bool
    _started: dict[tuple[str, int], datetime] = field(default_factory=dict)

    def note(self, claim: Claim, verdict: Verdict | None) -> None:
        now = self.clock.now()
        key = (claim.task_id, claim.epoch)
        if verdict is None:
            self._started[key] = now
        event, words = _describe(verdict)
        told = AttemptEvent(
            at=now,
            event=event,
            worker=self.worker,
            run_id=claim.run_id,
            task_id=claim.task_id,
            name=claim.name,
            attempt=claim.epoch,
            epoch=claim.epoch,
            seconds=(now - self._started.pop(key)).total_seconds() if verdict is not None else None,
            message=words or None,
        )
        if self.as_json:
            write_line(msgspec.json.encode(told) + b"\n")
        else:
            tell(show_attempt(told))


def show_attempt(told: AttemptEvent, worker: str | None = None) -> str:
    """The line for people, with the name of the worker where there are several."""
    mark, style = MARKED.get(told.event, GIVEN_UP)
    parts = [show_time(told.at), *([worker] if worker else [])]
    parts += [
        click.style(f"{mark} {told.name}", fg=style),
        click.style(short(told.run_id), dim=True),
        told.event if told.seconds is None else f"{told.event} after {show_seconds(told.seconds)}",
    ]
    parts += [f"(attempt {told.attempt})"] if told.attempt > 1 else []
    parts += [f"– {first_line(told.message)}"] if told.message else []
    return "  ".join(parts)


def _describe(verdict: Verdict | None) -> tuple[str, str]:
    """What happened, and why."""
    match verdict:
        case None:
            return "started", ""
        case Completed(subtasks=(_, *_) as subtasks) | FanOut(subtasks):
            return Outcome.SUCCESS.value, f"added {count(len(subtasks), 'subtask')}"
        case Completed() | Checked(failures=()):
            return Outcome.SUCCESS.value, ""
        case Asked(question):
            return "asked", question.text
        case Checked(failures):
            return Outcome.FAILURE.value, "\n".join(failures)
        case Failed(message) | Expired(message) | Overspent(message):
            return Outcome.FAILURE.value, message
        case Limited(until, message):
            return "usage limit", f"until {show_time(until)}: {message}"
        case Canceled():
            return Outcome.CANCELED.value, ""
        case Skipped(reason):
            return "skipped", reason
        case Interrupted(why) | Nothing(why):
            return why, ""
