"""What the readers of agents make of their output: usage limits from terminal events only, and no lie that breaks them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.rooms.worker.stand_in import STREAMS

from pointsman.settings import AgentProfile
from pointsman.store.rows import ZERO_USD
from pointsman.worker.agent import Agent, AgentEvent, Finished, SessionSeen, Used
from pointsman.worker.agent_log import BUILT_IN, read_transcript
from pointsman.worker.agents.custom import Custom
from pointsman.worker.log import name_part
from pointsman.worker.meter import UsageMeter
from pointsman.worker.transcript import Transcript

NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
RESETS_AT = int((NOW + timedelta(hours=2)).timestamp())
PROSE = "You've hit your usage limit. Try again in 2 hours. 429 RESOURCE_EXHAUSTED quota"
CUSTOM = Custom(
    AgentProfile(
        "own",
        ("own",),
        session="id",
        text="type",
        tool="name",
        cost_usd="cost",
        tokens_in="input",
        result="result",
        error="error",
    )
)
AGENTS: list[Agent] = [*(made() for made in BUILT_IN.values()), CUSTOM]
NAMES = """
type subtype session_id init system assistant user result
message content text tool_use usage input_tokens is_error total_cost_usd
modelUsage rate_limit_event rate_limit_info resetsAt status rejected errors api_error_status
success thread.started thread_id item.started item.completed item agent_message command_execution
file_change changes turn.completed turn.failed error role delta tool_result
tool_name parameters stats sessionID part step_finish tokens cost
cache reason stop data statusCode state input output
id name
"""
WORDS = st.sampled_from(NAMES.split())
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS | st.just(429) | st.just(PROSE)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4), max_leaves=12
)
OBJECTS = st.fixed_dictionaries({"type": WORDS}, optional={"message": VALUES, "item": VALUES, "part": VALUES, "stats": VALUES})
LINES = st.one_of(
    OBJECTS.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(WORDS, VALUES, max_size=6).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=30),
)


def read(agent: Agent, *lines: str | dict[str, Any]) -> list[AgentEvent]:
    reader = agent.reader(lambda: NOW)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return [event for text in texts for event in reader.read(text.encode())] + list(reader.end(0))


def last(events: Iterable[AgentEvent]) -> Finished:
    return [event for event in events if isinstance(event, Finished)][-1]


@pytest.mark.parametrize("name", STREAMS)
def test_only_a_terminal_event_is_a_usage_limit(name: str) -> None:
    agent, stream = BUILT_IN[name](), STREAMS[name]
    prose: list[str | dict[str, Any]] = [
        *stream.begin("s-1"),
        stream.say(PROSE),
        stream.call("Bash", PROSE),
        stream.answer(PROSE),
        PROSE,
    ]
    events = read(agent, *prose, *stream.succeed(PROSE))
    assert SessionSeen("s-1") in [SessionSeen(each.session_id) for each in events if isinstance(each, SessionSeen)]
    assert last(events) == Finished(PROSE)
    limited = last(read(agent, *prose, *stream.limit("You've hit your usage limit. Try again in 2 hours.", RESETS_AT)))
    assert limited.limit is not None
    assert limited.limit.until == NOW + timedelta(hours=2)
    assert last(read(agent, *prose, *stream.fail("boom"))).limit is None


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    "reset", ["resets 8pm (America/New_York)", "try again at 5:31 PM", "try again in 2 hours", "resets Nov 20, 1am"]
)
def test_the_log_of_a_usage_limit_can_be_read(tmp_path: Path, name: str, reset: str) -> None:
    log = tmp_path / "1.log"
    name_part(log, "agent").write_text(name)
    transcript = read_transcript(log, {})
    assert transcript
    lines = STREAMS[name].limit(f"You've hit your usage limit · {reset}", 0)
    stream = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    shown = b"\n".join(transcript.read([stream], to_the_end=True)).decode()
    assert shown.splitlines()[-1].startswith("✗ ")
    assert reset in shown.splitlines()[-1]


@given(st.lists(LINES, max_size=8), st.sampled_from([0, 1, 41, None]))
@example([b'{"type": "result", "total_cost_usd": 1e400}'], 0)
@settings(max_examples=100)
def test_no_line_breaks_a_reader_and_no_figure_is_absurd(lines: list[bytes], exit_code: int | None) -> None:
    for agent in AGENTS:
        reader, meter, transcript = agent.reader(lambda: NOW), UsageMeter({}, None), Transcript()
        events = []
        for line in lines:
            found = list(reader.read(line))
            shown = transcript.write(found, line)
            assert "\x1b" not in shown
            assert "\x07" not in shown
            events += found
        for used in [event for event in [*events, *reader.end(exit_code)] if isinstance(event, Used)]:
            counted = meter.take(used)
            assert min(counted.cost_usd, ZERO_USD) == 0 <= min(counted.tokens_in, counted.tokens_out)
