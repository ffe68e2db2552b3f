"""What `pointsman worker` prints: a line for each start and end of an attempt, or an object with `--json`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime

import click

from pointsman.cli.output import count, tell
from pointsman.cli.streams import write_line
from pointsman.cli.view import MARKS, SKIPPED_MARK, STYLES, format_seconds
from pointsman.engine.claims import Claim
from pointsman.kernel.machine import Outcome, Phase
from pointsman.views.find import short
from pointsman.views.values import first_line
from pointsman.worker.verdict import Canceled, Checked, Completed, Expired, Failed, FanOut, Nothing, Skipped, Verdict
from pointsman.world import Clock


@dataclass(slots=True)
class AttemptPrinter:
    clock: Clock
    as_json: bool
    _started: dict[tuple[str, int], datetime] = field(default_factory=dict)

    def note(self, claim: Claim, verdict: Verdict | None) -> None:
        now = self.clock.now()
        key = (claim.task_id, claim.epoch)
        if verdict is None:
            self._started[key] = now
        seconds = (now - self._started.pop(key)).total_seconds() if verdict is not None else None
        event, words = _describe(verdict)
        if self.as_json:
            told = {
                "at": now.isoformat(),
                "event": event,
                "run_id": claim.run_id,
                "task_id": claim.task_id,
                "name": claim.name,
                "attempt": claim.attempt_count,
                "epoch": claim.epoch,
                "seconds": seconds,
                "message": words or None,
            }
            write_line(json.dumps(told).encode() + b"\n")
            return
        mark, style = _mark(verdict)
        parts = [
            f"{now.astimezone():%H:%M:%S}",
            click.style(f"{mark} {claim.name}", fg=style),
            click.style(short(claim.run_id), dim=True),
            event if seconds is None else f"{event} after {format_seconds(seconds)}",
        ]
        parts += [f"(attempt {claim.attempt_count})"] if claim.attempt_count > 1 else []
        parts += [f"– {first_line(words)}"] if words else []
        tell("  ".join(parts))


def _describe(verdict: Verdict | None) -> tuple[str, str]:
    """What happened, and why."""
    match verdict:
        case None:
            return "started", ""
        case Completed() | Checked(failures=()):
            return Outcome.SUCCESS.value, ""
        case Checked(failures):
            return Outcome.FAILURE.value, "\n".join(failures)
        case Failed(message) | Expired(message):
            return Outcome.FAILURE.value, message
        case Canceled():
            return Outcome.CANCELED.value, ""
        case Skipped(reason):
            return "skipped", reason
        case FanOut(items):
            return Outcome.SUCCESS.value, f"added {count(len(items), 'subtask')}"
        case Nothing(why):
            return why, ""


def _mark(verdict: Verdict | None) -> tuple[str, str]:
    match verdict:
        case None:
            return MARKS[Phase.ACTIVE], STYLES[Phase.ACTIVE]
        case Skipped():
            return SKIPPED_MARK, STYLES[Outcome.CANCELED]
        case Completed() | FanOut() | Checked(failures=()):
            return MARKS[Outcome.SUCCESS], STYLES[Outcome.SUCCESS]
        case Canceled() | Nothing():
            return MARKS[Outcome.CANCELED], STYLES[Outcome.CANCELED]
        case _:
            return MARKS[Outcome.FAILURE], STYLES[Outcome.FAILURE]
