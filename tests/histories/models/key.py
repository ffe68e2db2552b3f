"""One idempotency key: the first request with it has the effect, and its answer is everybody's answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from tests.histories.model import Operation, is_without_effect, key_of
from tests.histories.record import Record

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
        if state.body is not None:
            yield KeyState(not_before=max(state.not_before, state.used + KEY_LASTS_SECONDS))


def key_models(records: Sequence[Record]) -> Iterator[KeyModel]:
    by_key: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if key := key_of(record):
            by_key.setdefault(key, []).append(record)
    for key, twins in by_key.items():
        operations = [Operation(record, record.operation, _words(record)) for record in twins]
        operations += _counts(records, twins)
        yield KeyModel(f"idempotency key {' '.join(key)}", operations)


def _words(record: Record) -> Mapping[str, str | None]:
    body = {name: value for name, value in record.arguments.items() if name not in NOT_PART_OF_THE_BODY}
    answer = _text(record.answer) if record.fate == "answered" else None
    return {"body": _text(body), "answer": answer}


def _text(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _counts(records: Sequence[Record], twins: Sequence[Record]) -> Iterator[Operation]:
    """Whoever lists the runs sees one of that name, if only these twins would submit one."""
    if any(twin.operation != "submit_run" for twin in twins):
        return
    names = {twin.arguments["new"]["name"] for twin in twins}
    strangers = [each for each in records if each.operation == "submit_run" and each not in twins]
    if len(names) > 1 or any(each.arguments["new"]["name"] in names for each in strangers):
        return
    for record in records:
        if record.operation == "list_runs" and record.fate == "answered":
            yield Operation(record, "count", {"runs": sum(run["name"] in names for run in record.answer)})
