"""Problems: every error has a type that clients can rely on, and those of the server tell nothing of its inside."""

from __future__ import annotations

import inspect
import math
from pathlib import Path

import pytest
from tests.rows import each_row

from pointsman import errors
from pointsman.errors import Finding, Place, PointsmanError
from pointsman.lifecycles import load_machine
from pointsman.server.problems import BY_NAME, INTERNAL, PROBLEMS, explain, find_type

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "problems.md"
INSIDE = {
    "PointsmanError": "the base",
    "SettingsInvalid": "read before the server starts",
    "DeliveryFailed": "handled by the outbox",
    "LeaseUncertain": "handled by the worker",
    "LogUnreadable": "of a command",
    "WorktreeError": "handled by the worker",
    "MergeStopped": "handled by the worker",
    "GitFailed": "handled by the worker",
    "FindingsError": "a base",
    "RequestError": "a base",
    "StoreError": "mapped",
    "Conflict": "retried by the engine",
    "Unforeseen": "retried by the engine",
    "LawBroken": "mapped",
    "ServerFailed": "of a client",
}
"""Errors that are internal ones when they reach a client, each with the reason."""
CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, PointsmanError)]


@each_row("error", CLASSES)
def test_every_error_has_a_type_or_is_internal_for_a_reason(error: type[PointsmanError]) -> None:
    if error is errors.CallRefused:
        return
    made = error.__new__(error)
    assert (find_type(made).name == INTERNAL) == (error.__name__ in INSIDE), error


def test_the_page_has_every_type() -> None:
    page = PAGE.read_text("utf-8")
    for problem in PROBLEMS:
        assert f"| `{problem.uri}` | {problem.status} | {problem.title} |" in page
    assert page.count("| `/problems/") == len(PROBLEMS) == len(BY_NAME)


@pytest.mark.parametrize(
    ("state", "asked", "case", "words"),
    [
        ("PAUSED", "pause", "already_there", "is already PAUSED"),
        ("TERMINATED", "resume", "terminal", "has ended in TERMINATED"),
        ("IDLE", "pause", "not_allowed", "is not allowed from here"),
    ],
)
def test_a_refusal_has_one_of_three_cases_with_its_own_words(state: str, asked: str, case: str, words: str) -> None:
    machine = load_machine("supervised.worker")
    problem = explain(errors.TransitionRefused(machine.refuse(state, asked, already_there=case == "already_there")), "error_1")
    assert (problem.type.status, problem.body["case"], problem.body["current_state"]) == (409, case, state)
    assert words in problem.body["detail"]
    assert {move.to_state for move in problem.body["allowed"]} == set(machine.allowed(state))


def test_findings_keep_their_places() -> None:
    finding = Finding("structure", Place("<text>", 3, 7), "Wrong.", "Mend it.")
    body = explain(errors.FlowInvalid([finding]), "error_1").body
    assert body["findings"] == [{"rule": "structure", "line": 3, "column": 7, "message": "Wrong.", "advice": "Mend it."}]


@pytest.mark.parametrize(
    "error",
    [
        errors.StoreUnavailable("no route to host db.internal, password=hunter2"),
        errors.OutcomeUnknown("no route to host db.internal, password=hunter2"),
        errors.StoreUnusable("postgresql://ada:hunter2@db.internal/x"),
        errors.LawBroken("db.internal: hunter2"),
        errors.Overloaded(10_000, 2.1),
        errors.EngineClosed("hunter2"),
    ],
)
def test_errors_of_the_server_tell_nothing_of_its_inside(error: PointsmanError) -> None:
    problem = explain(error, "error_1")
    assert problem.type.status >= 500
    assert not {"hunter2", "internal,"} & set(str(problem.body).split())
    assert "hunter2" not in str(problem.body)
    if problem.type.status == 503:
        expected = math.ceil(error.retry_after_seconds) if isinstance(error, errors.Overloaded) else 1
        assert problem.headers["Retry-After"] == str(expected)
