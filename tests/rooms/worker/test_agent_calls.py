"""How agents are called, and what their last words mean: what `make test-agents` has found with the real programs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pointsman.worker.agent import AgentCall, Finished, Used
from pointsman.worker.agents.aider import Aider
from pointsman.worker.agents.codex import Codex
from pointsman.worker.agents.gemini import Gemini
from pointsman.worker.usage_limit import find_reset

NOW = datetime(2026, 11, 18, 17, 31, 20, tzinfo=UTC)


def call(folder: Path, **keys: object) -> AgentCall:
    return AgentCall(message="hi", stem=str(folder / "1"), cwd=folder, **keys)  # type: ignore[arg-type]


def now() -> datetime:
    return NOW


def test_codex_knows_servers_by_bare_names_may_call_them_and_waits_for_our_own(tmp_path: Path) -> None:
    servers = {
        "pointsman": {"command": "python", "args": ["-m", "pointsman"], "env": {"POINTSMAN_TOKEN": "secret"}},
        "my docs": {"command": "docs", "default_tools_approval_mode": "prompt"},
    }
    arguments = Codex().invoke(call(tmp_path, servers=servers)).arguments
    assert [each.removeprefix("--config=mcp_servers.") for each in arguments if each.startswith("--config=")] == [
        'pointsman.default_tools_approval_mode="approve"',
        'pointsman.command="python"',
        'pointsman.args=["-m", "pointsman"]',
        "pointsman.required=true",
        'pointsman.env_vars=["POINTSMAN_TOKEN"]',
        'my_docs.default_tools_approval_mode="prompt"',
        'my_docs.command="docs"',
    ]


def test_gemini_has_no_place_for_servers() -> None:
    assert "mcp" in Gemini.lacks


def test_gemini_counts_the_tokens_of_each_model() -> None:
    stats = {
        "input_tokens": 101,
        "models": {"a": {"input_tokens": 100, "output_tokens": 20, "cached": 7}, "b": {"input_tokens": 1}},
    }
    events = list(Gemini().reader(now).take({"type": "result", "status": "success", "stats": stats}))
    assert events == [Used(100, 20, model="a", cached_tokens_in=7), Used(1, model="b"), Finished()]


def test_aider_makes_no_repository_and_needs_a_commit_only_where_there_is_one(tmp_path: Path) -> None:
    without = Aider().invoke(call(tmp_path))
    assert ("--no-git" in without.arguments, without.commits) == (True, False)
    (tmp_path / ".git").mkdir()
    inside = tmp_path / "src"
    inside.mkdir()
    within = Aider().invoke(call(inside))
    assert ("--no-git" in within.arguments, within.commits) == (False, True)


def end_of_aider(*lines: str) -> Finished:
    reader = Aider().reader(now)
    for line in lines:
        list(reader.read(line.encode()))
    (finished,) = reader.end(0)
    assert isinstance(finished, Finished)
    return finished


def test_the_last_words_of_aider_are_not_its_bill() -> None:
    assert (
        end_of_aider("It is 42.", "", "Tokens: 1.2k sent, 20 received. Cost: $0.12 message, $0.12 session.").text == "It is 42."
    )


def test_a_rate_limit_of_aider_is_a_usage_limit() -> None:
    limited = end_of_aider("litellm.RateLimitError: OpenAIException - Rate limit reached. Please try again in 80s.")
    assert limited.limit
    assert limited.limit.until == NOW + timedelta(seconds=80)
    assert end_of_aider("litellm.BadRequestError: no such thing").limit is None


def test_an_answer_of_aider_about_a_failure_is_none() -> None:
    prose = "It catches litellm.RateLimitError: try again in 2 hours."
    assert end_of_aider(prose, "", "Tokens: 1.2k sent, 20 received.") == Finished(prose)


def test_a_failure_that_aider_has_got_over_is_none() -> None:
    failure = "litellm.RateLimitError: OpenAIException - Rate limit reached."
    assert end_of_aider(failure, "Retrying in 0.5 seconds...", "done") == Finished("done")
    assert end_of_aider(failure, "Retrying in 0.5 seconds...", failure).error == failure


def test_a_reset_without_seconds_that_has_just_passed_is_not_that_of_tomorrow() -> None:
    until: Callable[[str], datetime | None] = lambda text: find_reset(f"resets {text} (UTC)", NOW)  # noqa: E731
    assert until("5:31pm") == NOW.replace(second=0)
    assert until("5:20pm") == NOW.replace(minute=20, second=0) + timedelta(days=1)
    assert until("6pm") == NOW.replace(hour=18, minute=0, second=0)


def test_a_reset_at_the_end_of_all_time_is_none() -> None:
    assert find_reset("resets Dec 31 9999, 11pm (America/New_York)", NOW) is None
    assert find_reset("resets Jan 1 0001, 1am (Asia/Tokyo)", NOW) is None
