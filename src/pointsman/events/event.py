"""The schema of an event line, and the explanation of violations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

Name = Annotated[str, Meta(min_length=1, max_length=512)]
Instant = Annotated[datetime, Meta(tz=True)]
Names = Annotated[tuple[Name, ...], Meta(max_length=10_000)]
Severity = Literal["info", "warning", "error", "critical"]
Count = Annotated[int, Meta(ge=0, le=2**31)]


class Metadata(Struct, frozen=True, gc=False):
    """Optional data of an event; other keys are ignored."""

    machine: Name | None = None
    """`lifecycle.machine`, where a log mixes lifecycles."""
    worker_id: Name | None = None
    run_id: Name | None = None
    workstream_id: Name | None = None
    depends_on: Names = ()
    critical: bool | None = None
    retry_count: Count | None = None
    max_retries: Count | None = None
    usage_limit: bool | None = None
    interrupted: bool | None = None
    max_concurrent_tasks: Count | None = None
    lost: Names = ()
    created_at: Instant | None = None
    started_at: Instant | None = None
    completed_at: Instant | None = None


class Event(Struct, frozen=True, gc=False):
    """One transition of one entity; `from_state` is null when the entity is created."""

    timestamp: Instant
    event_type: Name
    severity: Severity
    entity_id: Name
    from_state: Name | None
    to_state: Name
    trigger: Name
    metadata: Metadata


def event_type(machine: str) -> str:
    """The event type of a machine: `workstream_state_transition` for `orchestrated.workstream`."""
    return machine.partition(".")[2] + "_state_transition"


_NAME = "a text of 1 to 512 characters"
_INSTANT = "an instant with a time zone, like 2026-01-15T10:30:00Z"
_COUNT = "a whole number from 0 to 2147483648"
_EXPECTED: dict[object, str] = {
    Name: _NAME,
    Name | None: f"{_NAME}, or null",
    Instant: _INSTANT,
    Instant | None: f"{_INSTANT}, or null",
    Count | None: f"{_COUNT}, or null",
    bool | None: "true, false or null",
    Severity: "info, warning, error or critical",
    Names: "a list of up to 10,000 texts",
    Metadata: "an object",
}

decode_event = msgspec.json.Decoder(Event).decode


def schema_problems(value: object) -> Iterator[str]:
    """Every violation of the schema in a decoded line."""
    if not isinstance(value, dict):
        yield f"An event is an object, this is {_json_type(value)}."
        return
    yield from _field_problems(value, Event, "")
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        yield from _field_problems(metadata, Metadata, "metadata.")


def _field_problems(value: dict[object, object], struct: type[Struct], path: str) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        if field.name not in value:
            if field.required:
                yield f"`{path}{field.name}` is missing."
            continue
        if field.type is Metadata and isinstance(value[field.name], dict):
            continue
        try:
            msgspec.convert(value[field.name], field.type)
        except msgspec.ValidationError:
            yield f"`{path}{field.name}` must be {_EXPECTED[field.type]}, not {_shown(value[field.name])}."


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}…"


def _json_type(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
