"""One idempotency key: the first request with it has the effect, and its answer is everybody's answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from tests.system.histories.model import Operation, is_without_effect, key_of
from tests.system.histories.record import Record

KEY_LASTS_SECONDS = 3600.0
NOT_PART_OF_THE_BODY = ("request_id", "tenant", "actor")


@dataclass(frozen=True, slots=True)
class KeyState:
    body: str | None = None
    """What was asked with it first; None: nothing yet."""
    answer: str | None = None
    """None: whoever was told has not told us."""
    used: float = -math.inf
    not_before: float = -math.inf

    def __str__(self) -> str:
        return f"used for {self.body}, answered {self.answer}" if self.body else "not used"


@dataclass(frozen=True, slots=True)
class KeyModel:
    subject: str
    operations: Sequence[Operation]
    expires: bool = True
    start: KeyState = field(default_factory=KeyState)

    def not_before(self, state: KeyState) -> float:
        return state.not_before

    def take(self, state: KeyState, operation: Operation, *, heard: bool) -> Iterable[KeyState]:
        if operation.act == "count":
            return [state] if operation.details["runs"] == (state.body is not None) else []
        body: str = operation.details["body"]
        if heard and operation.is_refused:
            return self._refuse(state, operation, body)
        answer: str | None = operation.details["answer"] if heard else None
        if state.body is None:
            return [replace(state, body=body, answer=answer, used=operation.invoked_at)]
        if not heard:
            return [state]
        if body != state.body or state.answer not in (None, answer):
            return []
        return [replace(state, answer=answer)]

    def _refuse(self, state: KeyState, operation: Operation, body: str) -> Iterable[KeyState]:
        """A key is refused for another request; what was done with it is never refused afterwards."""
        if operation.record.error == "KeyReused":
            return [state] if state.body not in (None, body) else []
        return [state] if state.body is None or is_without_effect(operation.record) else []

    def drift(self, state: KeyState) -> Iterator[KeyState]:
        if state.body is not None and self.expires:
            yield KeyState(not_before=max(state.not_before, state.used + KEY_LASTS_SECONDS))


def key_models(records: Sequence[Record]) -> Iterator[KeyModel]:
    by_key: dict[tuple[str, str, str], list[Record]] = {}
    submitters: dict[str, set[object]] = {}
    lists = [record for record in records if record.operation == "list_runs" and _is_whole(record)]
    for record in records:
        key = key_of(record)
        if key:
            by_key.setdefault(key, []).append(record)
        if record.operation == "submit_run":
            submitters.setdefault(record.arguments["run"]["name"], set()).add(key)
    for key, twins in by_key.items():
        operations = [Operation(record, record.operation, _words(record)) for record in twins]
        names = {twin.arguments["run"]["name"] for twin in twins if twin.operation == "submit_run"}
        if len(names) == 1 and submitters[min(names)] == {key}:
            operations += _counts(lists, min(names))
        yield KeyModel(f"idempotency key {' '.join(key)}", operations, expires=not names)


def _words(record: Record) -> Mapping[str, str | None]:
    body = {name: value for name, value in record.arguments.items() if name not in NOT_PART_OF_THE_BODY}
    answer = _text(record.answer) if record.fate == "answered" else None
    return {"body": _text(body), "answer": answer}


def _text(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _is_whole(record: Record) -> bool:
    """A list of all runs, and not a page or a part of it."""
    arguments = record.arguments
    is_part = arguments.get("after") or arguments.get("phase")
    return record.fate == "answered" and not is_part and len(record.answer) < arguments.get("limit", 100)


def _counts(lists: Sequence[Record], name: str) -> Iterator[Operation]:
    """Whoever lists the runs sees one of that name, if only these twins would submit one."""
    for record in lists:
        yield Operation(record, "count", {"runs": sum(run["name"] == name for run in record.answer)})
