"""Problems: every error that the server answers with, as an RFC 9457 document.

    exception ──find──▶ ProblemType(name, status, title) ──describe──▶ {"type": "/problems/not-found", "status": 404, …}

The type of a problem is a path of the server itself, which describes it. docs/reference/problems.md is generated from these.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pointsman import errors
from pointsman.kernel.machine import Case, Refusal
from pointsman.views.moves import Move, make_moves

PREFIX = "/problems/"
MEDIA_TYPE = "application/problem+json"
INTERNAL = "internal-error"
RETRY_AFTER_SECONDS = 1.0
log = logging.getLogger(__name__)

Members = Mapping[str, Any]
_TEXT = {"type": "string"}
_ERRORS = {
    "type": "array",
    "description": "Every invalid value, by its path in the request.",
    "items": {"type": "object", "properties": {"path": _TEXT, "message": _TEXT}, "required": ["path", "message"]},
}
_FINDINGS = {
    "type": "array",
    "description": "Every rule that the flow breaks, with its place in the text.",
    "items": {
        "type": "object",
        "properties": {
            "rule": _TEXT,
            "line": {"type": "integer"},
            "column": {"type": "integer"},
            "message": _TEXT,
            "advice": _TEXT,
        },
        "required": ["rule", "line", "column", "message", "advice"],
    },
}
_MOVES = msgspec.json.schema_components([Move], ref_template="#/components/schemas/{name}")[0][0]


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of error: what clients can rely on."""

    name: str
    status: int
    title: str
    meaning: str
    """For people who meet it: what it means, and what to do."""
    detail: str = ""
    """An example. Of errors of the server itself, the detail is always the same and tells nothing of its inside."""
    errors: tuple[type[errors.PointsmanError], ...] = ()
    members: Members = field(default_factory=dict)
    """JSON Schema of what it has beside `type`, `title`, `status` and `detail`."""
    extras: Members = field(default_factory=dict)
    """Of what it has only sometimes."""

    @property
    def uri(self) -> str:
        return f"{PREFIX}{self.name}"

    @property
    def is_of_server(self) -> bool:
        return self.status >= 500

    def schema(self) -> dict[str, Any]:
        fixed = {"type": self.uri, "title": self.title, "status": self.status}
        return {
            "title": f"Problem {self.name}",
            "description": self.meaning,
            "type": "object",
            "properties": {
                **{name: {"const": value} for name, value in fixed.items()},
                "detail": _TEXT,
                **self.members,
                **self.extras,
            },
            "required": ["type", "title", "status", "detail", *self.members],
        }

    def describe(self, detail: str, members: Members | None = None) -> dict[str, Any]:
        return {"type": self.uri, "title": self.title, "status": self.status, "detail": detail, **(members or {})}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error of one request, ready to be sent."""

    type: ProblemType
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


PROBLEMS: tuple[ProblemType, ...] = (
    ProblemType(
        "malformed-json",
        400,
        "The body is not JSON",
        "The body cannot be decoded as JSON, or is nested too deeply. Nothing was changed.",
        "The body is not valid JSON: JSON is malformed: invalid character (byte 7). Send a JSON object.",
    ),
    ProblemType(
        "unauthenticated",
        401,
        "No valid API key",
        "The server has API keys, and the request has none, or one that is unknown, expired or revoked. Send "
        "`Authorization: Bearer KEY`. An administrator creates keys with `pointsman key create`.",
        "The API key is not valid. Check that it is complete, or ask for a new one: pointsman key create",
        (errors.AuthenticationFailed,),
    ),
    ProblemType(
        "forbidden",
        403,
        "The key lacks a scope",
        "The API key is valid, but has not the scope that this route needs.",
        "This needs the scope operate. The key 'ci' has: read, submit.",
        members={"scope": {"type": "string", "description": "The scope that is missing."}},
    ),
    ProblemType(
        "not-allowed",
        403,
        "Somebody else decides this",
        "The flow leaves this decision to other people: `by` names them, or `self_approval` excludes who submitted the run.",
        "APPROVAL is not for ada to decide: she submitted the run.",
        (errors.NotAllowed,),
    ),
    ProblemType(
        "not-your-worker",
        403,
        "The worker belongs to another API key",
        "A key acts only as the workers that it has registered: it claims, and sends their heartbeats, logs and artifacts, "
        "and reports their attempts. Workers of other keys, and those with access to the database, are none of its own. A "
        "key with the scope `operate` may pause or end them all the same.",
        "Worker worker_1 was not registered with this API key, and only its own key acts as it. Register a worker with this "
        "key.",
        (errors.NotYourWorker,),
    ),
    ProblemType(
        "operator-only",
        403,
        "Only the operator does this",
        "Tenants are added, and their quotas and budgets set, with a key of the tenant `default`, which is the operator's.",
        "The operator does this, with a key of the tenant default; yours is of acme.",
    ),
    ProblemType(
        "host-refused",
        403,
        "The Host header is not of this machine",
        "Without API keys, the server answers only requests to `localhost` or a loopback address, so that no web page can "
        "reach it under a name of its own (DNS rebinding).",
        "The Host header names 'example.org'. Use http://127.0.0.1:8642 or http://localhost:8642.",
    ),
    ProblemType(
        "origin-refused",
        403,
        "A page of another site sent this",
        "A browser sent the request for a page of another origin. Only pages of the server itself may use it.",
        "The Origin is 'https://example.org', which is not this server.",
    ),
    ProblemType(
        "not-found",
        404,
        "Not found",
        "Nothing has this id, or it belongs to another tenant: the two cannot be told apart.",
        "There is no run 'run_1'. Check the id; an id of another tenant is not found either.",
        (errors.NotFound, errors.NothingYet),
        extras={
            "kind": {"type": "string", "description": "What was looked for."},
            "name": {"type": "string", "description": "Its id or its name."},
        },
    ),
    ProblemType(
        "log-elsewhere",
        404,
        "The log is not on this server",
        "The worker of this attempt wrote its log on another machine or for another project, or somebody has removed the "
        "file. The attempt itself has its error and its exit code.",
        "The log of attempt 1 of 'build' is not among the logs of this server. Ask where its worker runs.",
    ),
    ProblemType(
        "range-not-satisfiable",
        416,
        "The range is behind the end",
        "The log or artifact has no byte of the range that the header `Range` names. The header `Content-Range` has its size.",
        "There are 120 bytes, and 'bytes=500-' is behind their end. Ask for less, or wait until it grows.",
    ),
    ProblemType(
        "artifact-refused",
        409,
        "The artifact cannot be stored",
        "The attempt has too many artifacts, or too large ones, or the server cannot write the file: its disk is full, or "
        "something else has that name.",
        "The artifact 'video.mp4' does not fit. An attempt has at most 1,000 artifacts with 1,000,000,000 bytes together.",
    ),
    ProblemType(
        "no-such-route",
        404,
        "No such route",
        "The server has no such path. `/openapi.json` lists all of them.",
        "There is no /api/v2. See /openapi.json.",
    ),
    ProblemType(
        "method-not-allowed",
        405,
        "Method not allowed",
        "The path exists, but not with this method. The header `Allow` names those that it has.",
        "'/runs' does not take 'PUT'. It takes: GET, HEAD, POST.",
    ),
    ProblemType(
        "request-timeout",
        408,
        "The body did not arrive in time",
        "The client was too slow to send the body. Nothing was changed.",
        "The body did not arrive within 30 seconds. Send it again.",
    ),
    ProblemType(
        "transition-refused",
        409,
        "The transition is not allowed",
        "The machine does not allow this in the present state. `case` says why: `already_there`, `terminal` (it has ended) or "
        "`not_allowed` (not from here). `allowed` has what is possible instead.",
        "supervised.worker is already PAUSED: 'pause' changes nothing.",
        (errors.TransitionRefused,),
        members={
            "case": {"enum": [case.value for case in Case]},
            "machine": {"type": "string", "description": "The machine that it follows."},
            "asked": {"type": "string", "description": "The signal, trigger or state that was asked for."},
            "unmet": {"type": "array", "items": _TEXT, "description": "Guards that did not hold."},
            "current_state": {"type": "string"},
            "allowed": {"type": "array", "description": "The transitions that leave the present state.", "items": _MOVES},
        },
    ),
    ProblemType(
        "already-exists",
        409,
        "The name is taken",
        "Something else has this name. Choose another one.",
        "There is a key 'ci' already. Rotate or revoke key_3f9ac01b2d4e, or choose another name.",
        (errors.AlreadyExists,),
        members={"kind": _TEXT, "name": _TEXT},
    ),
    ProblemType(
        "version-mismatch",
        409,
        "The other side has another version",
        "A command line or a worker of Pointsman has other calls than the server, or another minor version. Install the "
        "version of the server there.",
        "The server is Pointsman 1.2.0, and this is Pointsman '1.1.0'. Install the same version on both sides.",
    ),
    ProblemType(
        "key-ended",
        409,
        "The API key has ended",
        "The API key is revoked or has expired, and gets no new secret. Create a new one.",
        "The key 'ci' is revoked. Create a new one.",
        (errors.KeyEnded,),
    ),
    ProblemType(
        "lease-lost",
        409,
        "The attempt no longer counts",
        "The attempt has lost its lease or has ended. End its process; reports about it are ignored.",
        "Attempt 1 of task_1 no longer counts: its lease has expired. End its process; nothing was changed.",
        (errors.LeaseLost,),
        members={"task_id": _TEXT, "epoch": {"type": "integer", "description": "The number of the attempt."}},
    ),
    ProblemType(
        "worker-unavailable",
        409,
        "The worker may not claim",
        "A worker claims only in states in which it is available. Resume it, or register a new one.",
        "Worker worker_1 is PAUSED and may not claim. Resume it, let it recover, or register a new one.",
        (errors.WorkerUnavailable,),
        members={"worker_id": _TEXT, "state": _TEXT},
    ),
    ProblemType(
        "quota-exceeded",
        409,
        "The quota of the tenant is used up",
        "The tenant has too much unfinished work for more. Nothing was submitted. Wait until some has ended, or ask the "
        "operator to raise the quota. No `Retry-After` is sent, because nobody knows when work ends.",
        "The tenant acme may have 100 unfinished runs, and has 100: 1 more do not fit. Wait until some have ended, or let "
        "an operator raise it: pointsman tenant set acme --max-runs N",
        (errors.QuotaExceeded,),
        members={
            "quota": {"enum": ["max_runs", "max_tasks", "max_bytes"]},
            "limit": {"type": "integer"},
            "used": {"type": "integer", "description": "By unfinished work, with what was submitted a moment before."},
            "wanted": {"type": "integer", "description": "What the request would add."},
        },
    ),
    ProblemType(
        "circuit-open",
        409,
        "The circuit of the tool is open",
        "The tool has failed too often. The header `Retry-After` says when it is tried again.",
        "curl circuit is open, retry in 42 seconds",
        (errors.CircuitOpen,),
        members={"tool": _TEXT, "retry_in_seconds": {"type": "integer"}},
    ),
    ProblemType(
        "body-too-large",
        413,
        "The body is too large",
        "The server reads bodies up to a limit. Keep large things in files, and pass their paths.",
        "The body has more than 16,777,216 bytes. Keep large things in files, and pass their paths.",
    ),
    ProblemType(
        "unsupported-media-type",
        415,
        "The body is not application/json",
        "Bodies are JSON, uncompressed: send `Content-Type: application/json` and no `Content-Encoding`.",
        "The Content-Type is 'text/plain'. Send application/json.",
    ),
    ProblemType(
        "invalid-request",
        422,
        "The request is invalid",
        "At least one value of the body, the query or a header is invalid; `errors` has all of them. Nothing was changed.",
        "worker_count: Must be a whole number from 1 to 10, not 11.",
        (errors.RequestInvalid,),
        members={"errors": _ERRORS},
    ),
    ProblemType(
        "flow-invalid",
        422,
        "The flow is invalid",
        "The flow breaks at least one rule; `findings` has all of them. Nothing was submitted.",
        "1 finding in the flow.",
        (errors.FlowInvalid, errors.LifecycleInvalid),
        members={"findings": _FINDINGS},
    ),
    ProblemType(
        "unknown-name",
        422,
        "Unknown name",
        "The request names a lifecycle, a machine, a state or a flow that does not exist or cannot be used.",
        "There is no lifecycle called 'aproval'. Did you mean approval?",
        (errors.UnknownName, errors.LifecycleError, errors.FlowError),
        extras={"name": _TEXT, "known": {"type": "array", "items": _TEXT, "description": "The names that exist."}},
    ),
    ProblemType(
        "key-reused",
        422,
        "The idempotency key was used for another request",
        "The key has been used before on this route, with another body. Use a new key for a new request.",
        "The idempotency key 'nightly-1' was used for another request. Use a new key for a new request.",
        (errors.KeyReused,),
        members={"key": {"type": "string", "description": "The idempotency key."}},
    ),
    ProblemType(
        "rate-limited",
        429,
        "Too many requests",
        "The tenant sends more requests to this server process than `--rate-limit` allows. Nothing was changed: try again "
        "after `Retry-After` seconds.",
        "The tenant acme sends more than 50 requests a second to this server. Try again in 1 second.",
    ),
    ProblemType(
        "too-many-streams",
        429,
        "Too many streams of events",
        "A server process takes a limited number of streams (WebSockets and Server-Sent Events) for each tenant. Close "
        "some, or use another server.",
        "This server has 2,000 streams for this tenant already. Close some, or use another server.",
    ),
    ProblemType(
        INTERNAL,
        500,
        "Internal error",
        "The server has a defect. Its log has the details under `reference`.",
        "The server could not answer. Its log says why, under the reference.",
        (errors.LawBroken, errors.StoreError),
        members={"reference": {"type": "string", "description": "Names the entry in the log of the server."}},
    ),
    ProblemType(
        "overloaded",
        503,
        "Too many requests wait to be written",
        "The database takes no more at the moment. Nothing was changed: try again after `Retry-After` seconds.",
        "Too many operations wait to be written. Try again soon.",
        (errors.Overloaded,),
    ),
    ProblemType(
        "database-unavailable",
        503,
        "The database does not answer",
        "The database is away, locked or full. Nothing was changed: try again after `Retry-After` seconds.",
        "The database does not answer at the moment. Try again soon.",
        (
            errors.StoreUnavailable,
            errors.StoreBusy,
            errors.StoreFull,
            errors.StoreGone,
            errors.StoreUnusable,
            errors.StoreTooNew,
        ),
    ),
    ProblemType(
        "outcome-unknown",
        503,
        "The outcome is unknown",
        "The connection to the database broke during a commit, which may have succeeded. Look whether it has; with an "
        "idempotency key, just send the request again.",
        "The connection to the database broke during the commit. Repeat the request with its idempotency key.",
        (errors.OutcomeUnknown,),
    ),
    ProblemType(
        "stopping",
        503,
        "The server is stopping",
        "The server has been told to stop, and takes no more requests. Nothing was changed: send it again.",
        "The server is stopping. Send the request again.",
        (errors.EngineClosed,),
    ),
)
BY_NAME: Mapping[str, ProblemType] = {problem.name: problem for problem in PROBLEMS}
_BY_ERROR: Mapping[type, ProblemType] = {error: problem for problem in PROBLEMS for error in problem.errors}


def find_type(error: errors.PointsmanError) -> ProblemType:
    """The type of its own class, or of the nearest class above it."""
    if isinstance(error, errors.CallRefused):
        return BY_NAME[error.problem]
    return next((_BY_ERROR[each] for each in type(error).__mro__ if each in _BY_ERROR), BY_NAME[INTERNAL])


def explain(error: errors.PointsmanError, reference: str) -> Problem:
    """The problem that an error is. What went wrong inside of the server goes to its log only, under the reference."""
    problem = find_type(error)
    if problem.is_of_server:
        log.warning("%s: %s", problem.name, error, extra={"reference": reference})
        members = {"reference": reference} if "reference" in problem.members else {}
        return Problem(problem, problem.describe(problem.detail, members), _headers(error, problem))
    return Problem(problem, problem.describe(_shorten(error), _members(error)), _headers(error, problem))


def explain_fault(reference: str) -> Problem:
    """A defect, whose traceback is in the log."""
    problem = BY_NAME[INTERNAL]
    return Problem(problem, problem.describe(problem.detail, {"reference": reference}))


def _shorten(error: errors.PointsmanError) -> str:
    if isinstance(error, errors.FindingsError):
        number = len(error.findings)
        return f"{number:,} finding{'s' if number != 1 else ''}."
    return str(error)


def _members(error: errors.PointsmanError) -> dict[str, Any]:
    match error:
        case errors.TransitionRefused(refusal=Refusal() as refusal):
            return {
                "case": refusal.case.value,
                "machine": refusal.machine,
                "asked": refusal.asked,
                "unmet": list(refusal.unmet),
                "current_state": refusal.state,
                "allowed": make_moves(refusal.allowed),
            }
        case errors.RequestInvalid():
            return {"errors": [{"path": each.path, "message": each.message} for each in error.problems]}
        case errors.NotFound() | errors.AlreadyExists():
            return {"kind": error.kind, "name": error.name}
        case errors.UnknownName():
            return {"name": error.name, "known": list(error.known)}
        case errors.KeyReused():
            return {"key": error.key}
        case errors.LeaseLost():
            return {"task_id": error.task_id, "epoch": error.epoch}
        case errors.WorkerUnavailable():
            return {"worker_id": error.worker_id, "state": error.state}
        case errors.CircuitOpen():
            return {"tool": error.tool, "retry_in_seconds": error.retry_in_seconds}
        case errors.FindingsError():
            return {"findings": [_describe_finding(each) for each in error.findings]}
        case errors.QuotaExceeded():
            return {"quota": error.quota, "limit": error.limit, "used": error.used, "wanted": error.wanted}
        case errors.CallRefused():
            return dict(error.members)
        case _:
            return {}


def _describe_finding(finding: errors.Finding) -> dict[str, Any]:
    place = finding.place
    return {
        "rule": finding.rule,
        "line": place.line,
        "column": place.column,
        "message": finding.message,
        "advice": finding.advice,
    }


def _headers(error: errors.PointsmanError, problem: ProblemType) -> dict[str, str]:
    match error:
        case errors.CallRefused():
            return error.headers
        case errors.AuthenticationFailed():
            return {"WWW-Authenticate": "Bearer"}
        case errors.Overloaded():
            return {"Retry-After": str(math.ceil(error.retry_after_seconds))}
        case errors.CircuitOpen():
            return {"Retry-After": str(error.retry_in_seconds)}
        case _ if problem.status == 503:
            return {"Retry-After": str(math.ceil(RETRY_AFTER_SECONDS))}
        case _:
            return {}
