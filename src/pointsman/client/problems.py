"""Answers of a server that are no success, as the exceptions of `pointsman.errors`.

    409 {"type": "/problems/lease-lost", "detail": "Attempt 1 …", "task_id": "task_1", "epoch": 1} ──▶ LeaseLost

They have the message that the server gave, and the attributes that they have there. What only HTTP knows is `CallRefused`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from pointsman import errors
from pointsman.client.answers import Move
from pointsman.client.transport import Reply
from pointsman.errors import Finding, Place, PointsmanError, Problem

MEDIA_TYPE = "application/problem+json"
PREFIX = "/problems/"
TEXT = "<text>"
"""The place of findings in a flow that was sent as a text, as the server has it."""
UNAVAILABLE = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
Error = TypeVar("Error", bound=PointsmanError)


class Refusal(Struct, frozen=True, kw_only=True):
    """Why a machine did not move, and what it would accept now."""

    message: str
    case: str
    """`already_there`, `terminal` or `not_allowed`."""
    machine: str
    state: str
    asked: str
    """The signal, trigger or state that was asked for."""
    allowed: tuple[Move, ...]
    unmet: tuple[str, ...]
    """Guards that did not hold."""


class _Document(Struct):
    """What every problem document has."""

    type: str
    title: str
    status: int
    detail: str


def make_error(reply: Reply) -> PointsmanError:
    """The exception that an answer stands for, if its status is no success."""
    if reply.media_type == MEDIA_TYPE:
        try:
            document, members = msgspec.json.decode(reply.body, type=_Document), msgspec.json.decode(reply.body)
            if document.type.startswith(PREFIX) and document.status == reply.status:
                return _make(document, members, reply.headers)
        except (msgspec.DecodeError, UnicodeError, KeyError):
            pass  # not of a server of Pointsman, or of another version
    return _explain_stranger(reply)


def _make(document: _Document, members: Mapping[str, Any], headers: Mapping[str, str]) -> PointsmanError:
    name = document.type.removeprefix(PREFIX)
    make = _MAKERS.get(name)
    if make is not None:
        return make(document.detail, members, headers)
    known = (*_Document.__struct_fields__,)
    refused = errors.CallRefused(
        name, document.detail, headers=headers, members={key: value for key, value in members.items() if key not in known}
    )
    refused.status, refused.title = document.status, document.title
    return refused


def _rebuild(error_type: type[Error], message: str, **attributes: object) -> Error:
    """An exception with the message of the server, whatever its own class would write."""
    error = error_type.__new__(error_type, message)
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


Members = Mapping[str, Any]
Maker = Callable[[str, Members, Mapping[str, str]], PointsmanError]


def _plain(error_type: type[PointsmanError], *attributes: str) -> Maker:
    """Makes errors whose attributes are members of the document under the same names."""

    def make(detail: str, members: Members, _: Mapping[str, str]) -> PointsmanError:
        return _rebuild(error_type, detail, **{name: members[name] for name in attributes})

    return make


def _make_not_found(detail: str, members: Members, _: Mapping[str, str]) -> PointsmanError:
    if "kind" not in members:
        return _rebuild(errors.NothingYet, detail)
    return _rebuild(errors.NotFound, detail, kind=members["kind"], name=members["name"])


def _make_unknown_name(detail: str, members: Members, _: Mapping[str, str]) -> PointsmanError:
    if "name" not in members:
        return errors.FlowError(detail)
    name, known = members["name"], tuple(members["known"])
    return _rebuild(errors.UnknownName, detail, name=name, known=known, nearest=errors.nearest(name, known))


def _make_refusal(detail: str, members: Members, _: Mapping[str, str]) -> PointsmanError:
    given = {**members, "message": detail, "state": members["current_state"]}
    return errors.TransitionRefused(msgspec.convert(given, Refusal))


def _make_invalid(_detail: str, members: Members, _: Mapping[str, str]) -> PointsmanError:
    return errors.RequestInvalid(Problem(each["path"], each["message"]) for each in members["errors"])


def _make_flow_invalid(_detail: str, members: Members, _: Mapping[str, str]) -> PointsmanError:
    return errors.FlowInvalid(
        Finding(each["rule"], Place(TEXT, each["line"], each["column"]), each["message"], each["advice"])
        for each in members["findings"]
    )


def _make_failed(detail: str, members: Members, _: Mapping[str, str]) -> PointsmanError:
    return _rebuild(errors.ServerFailed, f"{detail} ({members['reference']})", reference=members["reference"])


def _make_overloaded(detail: str, _: Members, headers: Mapping[str, str]) -> PointsmanError:
    return _rebuild(errors.Overloaded, detail, retry_after_seconds=read_retry_after(headers) or 1.0)


def _make_stopping(detail: str, _: Members, headers: Mapping[str, str]) -> PointsmanError:
    """The engine of the server is closed, not that of the client."""
    return errors.ServerUnavailable(detail, retry_after_seconds=read_retry_after(headers))


_MAKERS: Mapping[str, Maker] = {
    "unauthenticated": _plain(errors.AuthenticationFailed),
    "not-your-worker": _plain(errors.NotYourWorker),
    "not-allowed": _plain(errors.NotAllowed),
    "not-found": _make_not_found,
    "transition-refused": _make_refusal,
    "already-exists": _plain(errors.AlreadyExists, "kind", "name"),
    "key-ended": _plain(errors.KeyEnded),
    "lease-lost": _plain(errors.LeaseLost, "task_id", "epoch"),
    "worker-unavailable": _plain(errors.WorkerUnavailable, "worker_id", "state"),
    "quota-exceeded": _plain(errors.QuotaExceeded, "quota", "limit", "used", "wanted"),
    "circuit-open": _plain(errors.CircuitOpen, "tool", "retry_in_seconds"),
    "invalid-request": _make_invalid,
    "flow-invalid": _make_flow_invalid,
    "unknown-name": _make_unknown_name,
    "key-reused": _plain(errors.KeyReused, "key"),
    "internal-error": _make_failed,
    "overloaded": _make_overloaded,
    "database-unavailable": _plain(errors.StoreUnavailable),
    "outcome-unknown": _plain(errors.OutcomeUnknown),
    "stopping": _make_stopping,
}


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """How long a server asks to wait; a date is not read."""
    given = headers.get("retry-after", "")
    return float(given) if given.isascii() and given.isdigit() and len(given) < 9 else None


def _explain_stranger(reply: Reply) -> PointsmanError:
    """An answer that no server of Pointsman gives: of a proxy, or of something else at this address."""
    title = HTTPStatus(reply.status).phrase if reply.status in list(HTTPStatus) else "an unknown status"
    said = f"Not the server of Pointsman has answered, but a proxy or something else: {reply.status} {title}."
    if reply.status in UNAVAILABLE:
        message = f"{said} Check whether the server runs."
        return errors.ServerUnavailable(message, may_have_happened=True, retry_after_seconds=read_retry_after(reply.headers))
    if 300 <= reply.status < 400:
        return errors.ServerFailed(
            f"{said} It redirects to {reply.headers.get('location', 'nowhere')!a}. Give the URL of the server."
        )
    return errors.ServerFailed(f"{said} Check the URL of the server.")
