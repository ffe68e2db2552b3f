"""Problem documents become the exceptions that the server explained, whatever their type."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest
from tests.rows import each_row

from pointsman import errors
from pointsman.client.problems import make_error
from pointsman.client.transport import Reply
from pointsman.errors import Finding, Place, PointsmanError, Problem
from pointsman.lifecycles import load_machine
from pointsman.server import problems
from pointsman.server.openapi import show_problem
from pointsman.server.problems import BY_NAME, PROBLEMS, explain

WORKER = load_machine("supervised.worker")
RAISED: tuple[PointsmanError, ...] = (
    errors.AuthenticationFailed(),
    errors.NotAllowed("ada submitted it"),
    errors.NotFound("run", "run_1"),
    errors.NothingYet(),
    errors.TransitionRefused(WORKER.refuse("PAUSED", "pause", already_there=True)),
    errors.TransitionRefused(WORKER.refuse("TERMINATED", "resume", already_there=False)),
    errors.TransitionRefused(WORKER.refuse("IDLE", "pause", already_there=False)),
    errors.AlreadyExists("key", "ci", "Choose another name."),
    errors.KeyEnded("The key 'ci' is revoked."),
    errors.LeaseLost("task_1", 3, "its lease has expired"),
    errors.WorkerUnavailable("worker_1", "PAUSED"),
    errors.QuotaExceeded("acme", "max_runs", "unfinished runs", limit=2, used=2, wanted=1),
    errors.CircuitOpen("curl", 41.5),
    errors.RequestInvalid([Problem("tasks[0].name", "It is missing."), Problem("", "The body must be a JSON object.")]),
    errors.FlowInvalid([Finding("structure", Place("<text>", 3, 7), "Wrong.", "Mend it.")]),
    errors.UnknownName("lifecycle", "aproval", ["approval", "standard"]),
    errors.KeyReused("nightly-1"),
)
"""What is told in full: of these, a client sees what the engine has raised."""
GENERAL: dict[type[PointsmanError], type[PointsmanError]] = {
    errors.LifecycleInvalid: errors.FlowInvalid,
    errors.LifecycleError: errors.FlowError,
    errors.LifecycleUnreadable: errors.FlowError,
    errors.FlowUnreadable: errors.FlowError,
    errors.ExpressionFailed: errors.FlowError,
    errors.RunnerUnusable: errors.FlowError,
    errors.StoreBusy: errors.StoreUnavailable,
    errors.StoreFull: errors.StoreUnavailable,
    errors.StoreGone: errors.StoreUnavailable,
    errors.StoreUnusable: errors.StoreUnavailable,
    errors.StoreTooNew: errors.StoreUnavailable,
    errors.ServerUnavailable: errors.StoreUnavailable,
    errors.EngineClosed: errors.ServerUnavailable,
    errors.StoreError: errors.ServerFailed,
    errors.LawBroken: errors.ServerFailed,
    errors.Conflict: errors.ServerFailed,
    errors.Unforeseen: errors.ServerFailed,
}
"""What a client cannot tell apart, or need not."""


def send(problem: problems.Problem) -> Reply:
    """As an answer arrives at a client."""
    headers = {name.lower(): value for name, value in problem.headers.items()}
    return Reply(problem.type.status, {"content-type": problems.MEDIA_TYPE, **headers}, msgspec.json.encode(problem.body))


def show(error: PointsmanError) -> dict[str, Any]:
    """Its attributes, with those of its refusal."""
    shown = dict(vars(error))
    if isinstance(error, errors.TransitionRefused):
        refusal = shown.pop("refusal")
        shown |= {name: getattr(refusal, name) for name in ("message", "case", "machine", "state", "asked", "unmet")}
        people = [move for move in refusal.allowed if not getattr(move, "automatic", False)]
        shown["allowed"] = [(move.trigger, move.signal, move.to_state) for move in people]
    return shown


@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: type(raised).__name__)
def test_a_client_raises_what_the_engine_has_raised(raised: PointsmanError) -> None:
    made = make_error(send(explain(raised, "error_1")))
    assert (type(made), str(made)) == (type(raised), str(raised))
    assert show(made) == show(raised)


CLASSES = sorted({each for problem in PROBLEMS for each in problem.errors}, key=lambda each: each.__name__)
SUBCLASSES = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, tuple(CLASSES)) and each is not errors.CallRefused
]


@each_row("raised", SUBCLASSES)
def test_every_error_of_a_problem_has_its_class_in_a_client(raised: type[PointsmanError]) -> None:
    name = next(problem.name for problem in PROBLEMS if problem is problems.find_type(raised.__new__(raised)))
    told_in_full = {type(each) for each in RAISED}
    if raised in told_in_full:
        return
    problem = BY_NAME[name]
    body = {member: value for member, value in show_problem(problem).items() if member not in problem.extras}
    assert type(make_error(send(problems.Problem(problem, body)))) is GENERAL.get(raised, raised)


@each_row("name", [problem.name for problem in PROBLEMS])
def test_every_type_of_problem_keeps_its_detail(name: str) -> None:
    problem = BY_NAME[name]
    error = make_error(send(problems.Problem(problem, show_problem(problem))))
    assert not isinstance(error, errors.ServerFailed) or name == problems.INTERNAL
    if not isinstance(error, errors.RequestInvalid | errors.FlowInvalid):
        assert str(error).startswith(problem.detail)
    if isinstance(error, errors.CallRefused):
        assert (error.problem, error.status, error.title) == (name, problem.status, problem.title)
        assert set(error.members) == set(problem.members)


def test_what_a_server_asks_to_wait_is_kept() -> None:
    overloaded = make_error(send(explain(errors.Overloaded(10_000, 2.1), "error_1")))
    assert isinstance(overloaded, errors.Overloaded)
    assert overloaded.retry_after_seconds == 3
    stopping = make_error(send(explain(errors.EngineClosed("closed"), "error_1")))
    assert isinstance(stopping, errors.ServerUnavailable)
    assert (stopping.retry_after_seconds, stopping.may_have_happened) == (1, False)


def test_a_defect_is_named_by_its_reference() -> None:
    error = make_error(send(explain(errors.LawBroken("inside"), "error_0f8a")))
    assert isinstance(error, errors.ServerFailed)
    assert error.reference == "error_0f8a"
    assert "error_0f8a" in str(error)


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected", "words"),
    [
        (502, {"content-type": "text/html"}, b"<h1>Bad Gateway</h1>", errors.ServerUnavailable, "502 Bad Gateway"),
        (504, {}, b"", errors.ServerUnavailable, "504"),
        (404, {"content-type": "text/html"}, b"<h1>nothing</h1>", errors.ServerFailed, "Check the URL"),
        (302, {"location": "https://example.org/\x1b"}, b"", errors.ServerFailed, "'https://example.org/\\x1b'"),
        (799, {}, b"", errors.ServerFailed, "799"),
        (404, {"content-type": problems.MEDIA_TYPE}, b'{"type": "about:blank"}', errors.ServerFailed, "404"),
        (404, {"content-type": problems.MEDIA_TYPE}, b"\xff", errors.ServerFailed, "404"),
        (409, {"content-type": problems.MEDIA_TYPE}, b"[" * 100_000, errors.ServerFailed, "409"),
        (
            409,
            {"content-type": problems.MEDIA_TYPE},
            b'{"type": "/problems/lease-lost", "title": "", "status": 409, "detail": ""}',
            errors.ServerFailed,
            "409",
        ),
    ],
)
def test_an_answer_that_is_no_problem_is_explained(
    status: int, headers: dict[str, str], body: bytes, expected: type[PointsmanError], words: str
) -> None:
    error = make_error(Reply(status, headers, body))
    assert type(error) is expected
    assert words in str(error)


def test_a_new_type_of_a_later_server_is_told_as_it_is() -> None:
    body = {"type": "/problems/quota-reached", "title": "No quota left", "status": 429, "detail": "Wait.", "limit": "5"}
    error = make_error(Reply(429, {"content-type": f"{problems.MEDIA_TYPE}; charset=utf-8"}, msgspec.json.encode(body)))
    assert isinstance(error, errors.CallRefused)
    assert (error.problem, error.status, str(error)) == ("quota-reached", 429, "Wait.")
    assert dict(error.members) == {"limit": "5"}
