"""Checks a log of event lines against the machines of its lifecycle, in one pass and constant memory."""

from __future__ import annotations

import sqlite3
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from io import BufferedIOBase

import msgspec

from pointsman.errors import Finding, LogUnreadable, Place, UnknownName, suggest
from pointsman.events.entities import Entity
from pointsman.events.event import Event, decode_event, schema_problems
from pointsman.events.invariants import CHECKS
from pointsman.events.lines import LONGEST_LINE, read_lines
from pointsman.events.track import UNDECLARED, Move, Track, Tracks
from pointsman.kernel.machine import Lifecycle

PROGRESS_EVERY = 100_000
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

RULES = {
    "empty-line": "every line is an event",
    "line-too-long": f"a line is at most {LONGEST_LINE} bytes long",
    "torn-line": "the last line is complete",
    "json": "a line is JSON",
    "schema": "an event has the fields of the schema, of the right types",
    "event-type": "an event names a machine of the lifecycle",
    "unknown-state": "states are declared by the machine",
    "illegal-transition": "an entity moves along declared transitions only",
    "wrong-trigger": "the trigger is one that the machine declares for the move",
    "wrong-severity": "the severity is the one that the machine declares for the move",
    "beginning": "an entity starts in its initial state",
    "continuity": "an entity leaves the state that it was last in",
    "monotonic-time": "timestamps do not run backwards",
    "timestamp-order": "created_at, started_at and completed_at are in this order",
    "retry-limit": "retry_count does not exceed max_retries",
    "dependency-satisfaction": "a task proceeds only when its dependencies have succeeded",
    "worker-assignment": "only a running task has a worker",
    "one-worker": "a running task has one worker",
    "worker-available": "only an available worker claims tasks",
    "worker-capacity": "a worker holds at most max_concurrent_tasks",
    "worker-release": "a worker is free again when it holds no task",
    "graceful-shutdown": "a worker leaves when it holds no task",
    "one-run": "a task stays in its run",
    "run-over": "no task starts after its run has ended",
    "completion": "a run completes when all of its tasks have",
    "failure-propagation": "a critical task's failure fails its run",
}


@dataclass(slots=True)
class Summary:
    """The totals of a log."""

    file: str
    lines: int = 0
    entities: int = 0
    findings: int = 0
    by_rule: Counter[str] = field(default_factory=Counter)


class Validator:
    """Takes the lines of one log in order."""

    def __init__(self, lifecycle: Lifecycle, file: str, *, others: Sequence[Lifecycle] = (), partial: bool = False) -> None:
        """Events that name no machine follow `lifecycle`; events of `others` and of shipped lifecycles name theirs."""
        self.summary = Summary(file)
        self._tracks = Tracks(lifecycle, others, whole=not partial)
        self._last_at: datetime | None = None
        self._found: list[Finding] = []

    def check_log(self, stream: BufferedIOBase, progress: Callable[[Summary], None] | None = None) -> Iterator[Finding]:
        """Yield the findings of a log as its lines are read; `progress` is called now and then."""
        try:
            for line in read_lines(stream):
                if found := self.check_line(line):
                    yield from found
                if progress is not None and not self.summary.lines % PROGRESS_EVERY:
                    progress(self.summary)
        except OSError as error:
            file, done = self.summary.file, self.summary.lines
            raise LogUnreadable(f"Cannot read {file} after line {done}: {error.strerror or error}.") from None
        except sqlite3.Error as error:
            message = f"Cannot continue after line {self.summary.lines}: the scratch file cannot be written ({error})."
            raise LogUnreadable(f"{message} Free space in the temporary directory, or set TMPDIR to another one.") from None
        finally:
            self.close()

    def close(self) -> None:
        """Remove the scratch files; no line can be checked after that."""
        self._tracks.close()

    def check_line(self, line: bytes) -> Sequence[Finding]:
        """The findings of one line, given all lines before it."""
        summary = self.summary
        summary.lines += 1
        if summary.lines == 1:
            line = line.removeprefix(BOM_UTF8)
        if self._found:
            self._found = []
        try:
            event = decode_event(line)
        except UNREADABLE as error:
            self._report_unreadable(line, error)
        else:
            self._check_event(event)
            while self._tracks.overfull:
                self._tracks.overfull.pop().spill()
        if self._found:
            summary.findings += len(self._found)
            summary.by_rule.update(finding.rule for finding in self._found)
        return self._found

    def _report(self, rule: str, message: str, advice: str) -> None:
        self._found.append(Finding(rule, Place(self.summary.file, self.summary.lines, 1), message, advice))

    def _report_unreadable(self, line: bytes, error: Exception) -> None:
        if not line.strip():
            self._report("empty-line", "The line is empty.", "Remove it; every line is one event.")
        elif len(line) > LONGEST_LINE:
            self._report("line-too-long", f"The line is longer than {LONGEST_LINE} bytes.", "Shorten its metadata.")
        else:
            try:
                value = msgspec.json.decode(line)
            except UNREADABLE as malformed:
                self._report_malformed(line, malformed)
            else:
                for problem in list(schema_problems(value)) or [f"{error}."]:
                    self._report("schema", problem, "See `pointsman validate --help` for the fields of an event.")

    def _report_malformed(self, line: bytes, error: Exception) -> None:
        if line.endswith(b"\n"):
            self._report("json", f"The line is not JSON: {error}.", "Write one JSON object per line.")
        else:
            message = f"The last line is incomplete ({len(line)} bytes): {error}."
            self._report("torn-line", message, "Its writer was interrupted; remove the line or write it again.")

    def _check_event(self, event: Event) -> None:
        if self._last_at is not None and event.timestamp < self._last_at:
            message = f"{event.timestamp.isoformat()} is before the line above ({self._last_at.isoformat()})."
            self._report("monotonic-time", message, "Write events in the order in which they happened.")
        self._last_at = event.timestamp
        try:
            track = self._tracks.find(event)
        except UnknownName as error:
            self._report("event-type", str(error), "Name the log's lifecycle with --lifecycle.")
            return
        entity = track.entities.get(event.entity_id)
        if entity is None:
            entity = track.entities.add(event.entity_id)
        move = self._check_move(track, event)
        if event.from_state != entity.state:
            self._check_continuity(track, entity, event)
        check = CHECKS.get(track.kind)
        if check is not None:
            check(track, entity, event, move, self._report)
        entity.machine = track.machine.name
        entity.state = event.to_state
        entity.line = self.summary.lines

    def _check_move(self, track: Track, event: Event) -> Move:
        """The declared transition that the event reports, or UNDECLARED."""
        if event.from_state is None:
            return UNDECLARED
        moves = track.moves.get((event.from_state, event.to_state))
        if moves is None:
            self._report_illegal(track, event.from_state, event.to_state)
            return UNDECLARED
        move = moves.get(event.trigger)
        if move is None:
            message = f"'{event.trigger}' does not move {event.from_state} to {event.to_state}."
            self._report("wrong-trigger", message, f"The machine declares {' or '.join(moves)} for this move.")
            return UNDECLARED
        if event.severity != move.severity:
            message = f"The event is logged as {event.severity}, but {move.transition} is {move.severity}."
            self._report("wrong-severity", message, f"Log it with severity {move.severity}.")
        return move

    def _report_illegal(self, track: Track, from_state: str, to_state: str) -> None:
        unknown = [state for state in dict.fromkeys((from_state, to_state)) if state not in track.states]
        for state in unknown:
            message = f"{track.machine.name} has no state called '{state}'."
            self._report("unknown-state", message, suggest(state, track.states))
        if not unknown:
            ways = ", ".join(f"{move.to_state} on {move.trigger}" for move in track.machine.exits(from_state))
            message = f"{track.machine.name} may not go from {from_state} to {to_state}."
            advice = f"From {from_state} it may go to {ways}." if ways else f"{from_state} is sealed: no transition leaves it."
            self._report("illegal-transition", message, advice)

    def _check_continuity(self, track: Track, entity: Entity, event: Event) -> None:
        if not entity.state:
            self.summary.entities += 1
            begins_in = event.to_state if event.from_state is None else event.from_state
            if begins_in != track.initial and (track.whole or event.from_state is None):
                message = f"{event.entity_id} is first seen in {begins_in}, but begins in {track.initial}."
                self._report("beginning", message, "Use --partial for a log that does not start at the beginning.")
        else:
            message = f"{event.entity_id} is {entity.state} since line {entity.line}, but leaves {event.from_state} here."
            if event.from_state is None:
                message = f"{event.entity_id} is {entity.state} since line {entity.line}, but is created here."
            self._report("continuity", message, "A transition is missing, doubled or out of order.")
