"""Histories of real clients: what each asked of an engine, when, and what it heard, in a journal that outlives its process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from tests.system.histories.record import Record

from pointsman.engine.engine import Engine, TenantEngine
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.errors import EngineClosed, OutcomeUnknown, PointsmanError

NOT_KNOWING = (OutcomeUnknown, EngineClosed, TimeoutError, asyncio.CancelledError)


class Journal:
    """Records as lines of JSON, two for each operation, so that one that was killed in between leaves the first."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._numbers = count(1)

    def invoke(self, client: str, operation: str, arguments: dict[str, Any]) -> int:
        number = next(self._numbers)
        self._write({"number": number, "client": client, "operation": operation, "arguments": arguments}, "invoked_at")
        return number

    def answer(self, number: int, answer: Any) -> None:
        self._write({"number": number, "fate": "answered", "answer": answer}, "returned_at")

    def refuse(self, number: int, error: str) -> None:
        self._write({"number": number, "fate": "refused", "error": error}, "returned_at")

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: dict[str, Any], instant: str) -> None:
        """In one call, so that a line is there as a whole as soon as it was written, whatever becomes of the process."""
        os.write(self._file, msgspec.json.encode(line | {instant: time.monotonic()}) + b"\n")


def read_journal(path: Path) -> list[Record]:
    """What a client has left behind; a line that was cut off was never written."""
    merged: dict[int, dict[str, Any]] = {}
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            fields = msgspec.json.decode(line)
            merged.setdefault(fields.pop("number"), {}).update(fields)
    return [msgspec.convert(fields, Record) for fields in merged.values()]


def read_journals(folder: Path) -> list[Record]:
    """What all clients have left behind, in the order in which they asked."""
    records = (record for path in folder.iterdir() for record in read_journal(path))
    return sorted(records, key=lambda record: record.invoked_at)


REPORTS = {"complete_task": "complete", "fail_task": "fail", "ask": "ask"}


class Recorder:
    """A client of an engine that writes down what it asks and what it hears."""

    def __init__(self, engine: Engine, client: str, journal: Journal) -> None:
        self.engine = engine
        self.client = client
        self._journal = journal

    async def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the engine; a refusal is raised, and so is not knowing, which leaves the operation open."""
        number = self._journal.invoke(self.client, operation, msgspec.to_builtins(arguments))
        try:
            answer = await _call(self.engine, operation, **arguments)
        except NOT_KNOWING:
            raise
        except PointsmanError as error:
            self._journal.refuse(number, type(error).__name__)
            raise
        self._journal.answer(number, msgspec.to_builtins(answer))
        return answer

    async def attempt(self, operation: str, **arguments: Any) -> Any:
        """Ask the engine, and take a refusal for an answer: None."""
        try:
            return await self.ask(operation, **arguments)
        except PointsmanError:
            return None

    async def complete_together(self, attempts: Sequence[tuple[str, int]]) -> None:
        """Complete attempts with one request; in the history each is an operation of its own, done or refused."""
        completions = [
            ReportAttempt(task_id=task_id, epoch=epoch, signal="complete", report=AttemptReport(output=self.client))
            for task_id, epoch in attempts
        ]
        asked = [{"task_id": task_id, "epoch": epoch, "output": self.client} for task_id, epoch in attempts]
        numbers = [self._journal.invoke(self.client, "complete_task", each) for each in asked]
        refusals: Sequence[PointsmanError | None]
        try:
            refusals = await self.engine.report_attempts(completions)
        except NOT_KNOWING:
            raise
        except PointsmanError as error:
            refusals = [error] * len(completions)
        for number, refusal in zip(numbers, refusals, strict=True):
            if refusal:
                self._journal.refuse(number, type(refusal).__name__)
            else:
                self._journal.answer(number, None)


def _call(engine: Engine, operation: str, **arguments: Any) -> Awaitable[Any]:
    """The models tell reports apart by their names, which the engine takes as one operation."""
    actor = arguments.pop("actor", None)
    client: TenantEngine = engine.for_tenant(actor=actor) if actor else engine
    if operation == "heartbeat":
        return client.send_heartbeat(**arguments)
    if operation not in REPORTS:
        method: Callable[..., Awaitable[Any]] = getattr(client, operation)
        return method(**arguments)
    address = {name: arguments.pop(name) for name in ("task_id", "epoch", "request_id") if name in arguments}
    return client.report_attempt(signal=REPORTS[operation], report=AttemptReport(**arguments), **address)
