"""The log validator: each rule has a log that breaks exactly that rule, and hostile logs do not break the validator."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import each_row

from pointsman import load_lifecycle
from pointsman.errors import Finding, LogUnreadable
from pointsman.events import entities
from pointsman.events.event import Event, Metadata
from pointsman.events.lines import LONGEST_LINE, read_lines
from pointsman.events.validate import RULES, Validator

EXAMPLES = Path(__file__).parents[3] / "examples"
PARCEL = """\
lifecycle: parcel
machines:
  task:
    kind: task
    states:
      PACKED: {phase: queued, initial: true}
      TRAVELLING: {phase: active}
      THERE: {phase: done, outcome: success}
    transitions:
      - PACKED -> TRAVELLING : claim
      - TRAVELLING -> THERE : complete
      - TRAVELLING -> PACKED : fail
    fallbacks: {expire: fail, cancel: fail, lease_lost: fail}
"""
TASK_MOVES = {
    "queue": ("pending", "queued", "scheduler_assigned", "info"),
    "start": ("queued", "running", "worker_started", "info"),
    "finish": ("running", "validating", "execution_completed", "info"),
    "pass": ("validating", "completed", "validation_passed", "info"),
    "retry": ("running", "retrying", "execution_failed", "warning"),
    "requeue": ("retrying", "queued", "retry_delay_elapsed", "info"),
    "fail": ("running", "failed", "execution_failed", "error"),
}
WORKER_MOVES = {
    "register": ("initializing", "idle", "registration_complete", "info"),
    "assign": ("idle", "busy", "task_assigned", "info"),
    "vanish": ("busy", "unresponsive", "health_check_timeout", "error"),
    "rest": ("busy", "idle", "task_completed", "info"),
    "leave": ("idle", "shutdown", "shutdown_requested", "info"),
    "leave_busy": ("busy", "shutdown", "shutdown_requested", "info"),
}
WORKSTREAM_MOVES = {
    "plan": ("planned", "ready", "all_tasks_created", "info"),
    "begin": ("ready", "executing", "first_task_started", "info"),
    "drop": ("ready", "cancelled", "user_cancelled", "info"),
    "settle": ("executing", "validating", "all_tasks_completed", "info"),
}


def event(kind: str, name: str, move: tuple[str | None, str, str, str], metadata: dict[str, Any], **fields: Any) -> bytes:
    from_state, to_state, trigger, severity = move
    line = {
        "timestamp": "2026-01-15T10:30:00.000Z",
        "event_type": f"{kind}_state_transition",
        "severity": severity,
        "entity_id": name,
        "from_state": from_state,
        "to_state": to_state,
        "trigger": trigger,
        "metadata": metadata,
    }
    return json.dumps(line | fields).encode() + b"\n"


def task(move: str, name: str = "t1", **metadata: Any) -> bytes:
    return event("task", name, TASK_MOVES[move], metadata)


def worker(move: str, name: str = "w1", **metadata: Any) -> bytes:
    return event("worker", name, WORKER_MOVES[move], metadata)


def workstream(move: str, name: str = "ws1", **metadata: Any) -> bytes:
    return event("workstream", name, WORKSTREAM_MOVES[move], metadata)


def validate(lines: Iterable[bytes], lifecycle: str = "orchestrated", *, partial: bool = False) -> list[Finding]:
    return list(Validator(load_lifecycle(lifecycle), "log", partial=partial).check_log(io.BytesIO(b"".join(lines))))


def rules(lines: Iterable[bytes], lifecycle: str = "orchestrated", *, partial: bool = False) -> list[tuple[str, int]]:
    return [(finding.rule, finding.place.line) for finding in validate(lines, lifecycle, partial=partial)]


# Each log breaks one rule on its last line, and nothing else.
BREAKS: dict[str, list[bytes]] = {
    "empty-line": [task("queue"), b"\n"],
    "line-too-long": [task("queue"), b'{"x": "' + b"x" * LONGEST_LINE + b'"}\n'],
    "torn-line": [task("queue"), task("start")[:-20]],
    "json": [task("queue"), b"Traceback (most recent call last):\n"],
    "schema": [task("queue"), event("task", "t1", TASK_MOVES["start"], {}, severity="loud")],
    "event-type": [task("queue"), event("tusk", "t1", TASK_MOVES["start"], {})],
    "unknown-state": [task("queue"), event("task", "t1", ("queued", "runing", "worker_started", "info"), {})],
    "illegal-transition": [task("queue"), event("task", "t1", ("queued", "completed", "validation_passed", "info"), {})],
    "wrong-trigger": [task("queue"), event("task", "t1", ("queued", "running", "execution_failed", "info"), {})],
    "wrong-severity": [
        task("queue"),
        task("start"),
        event("task", "t1", ("running", "failed", "execution_failed", "info"), {}),
    ],
    "beginning": [task("start")],
    "continuity": [task("queue"), task("start"), task("start")],
    "monotonic-time": [task("queue"), event("task", "t1", TASK_MOVES["start"], {}, timestamp="2026-01-15T10:29:59.999Z")],
    "timestamp-order": [
        task("queue", created_at="2026-01-15T10:00:00Z"),
        task("start", started_at="2026-01-15T09:59:59Z"),
    ],
    "retry-limit": [
        task("queue", max_retries=1),
        *(task("start"), task("retry", retry_count=1), task("requeue")),
        *(task("start"), task("retry", retry_count=2)),
    ],
    "dependency-satisfaction": [task("queue", "t0"), task("queue", "t1", depends_on=["t0"])],
    "worker-assignment": [task("queue", worker_id="w1")],
    "one-worker": [task("queue"), task("start", worker_id="w1"), task("finish", worker_id="w2")],
    "worker-available": [
        *(worker("register"), worker("assign"), worker("vanish")),
        *(task("queue"), task("start", worker_id="w1")),
    ],
    "worker-capacity": [
        worker("register", max_concurrent_tasks=1),
        *(task("queue", "t1"), task("start", "t1", worker_id="w1")),
        *(task("queue", "t2"), task("start", "t2", worker_id="w1")),
    ],
    "worker-release": [
        *(worker("register"), worker("assign")),
        *(task("queue"), task("start", worker_id="w1"), worker("rest")),
    ],
    "graceful-shutdown": [
        *(worker("register"), worker("assign")),
        *(task("queue"), task("start", worker_id="w1"), worker("leave_busy")),
    ],
    "one-run": [task("queue", workstream_id="ws1"), task("start", workstream_id="ws2")],
    "run-over": [
        *(workstream("plan"), workstream("drop"), task("queue", workstream_id="ws1"), task("start")),
    ],
    "completion": [
        *(workstream("plan"), workstream("begin")),
        *(task("queue", workstream_id="ws1"), workstream("settle")),
    ],
    "failure-propagation": [
        *(workstream("plan"), workstream("begin")),
        *(task("queue", workstream_id="ws1", critical=True), task("start"), task("fail")),
        *(task("queue", "t2", workstream_id="ws1"), task("start", "t2")),
    ],
}


def test_every_rule_has_a_log_that_breaks_it() -> None:
    assert BREAKS.keys() == RULES.keys()


@each_row("rule", BREAKS)
def test_a_log_that_breaks_one_rule_is_caught_by_that_rule_alone(rule: str) -> None:
    log = BREAKS[rule]
    findings = validate(log)
    assert [(finding.rule, finding.place.line) for finding in findings] == [(rule, len(log))]
    assert findings[0].message
    assert findings[0].advice


@each_row("rule", BREAKS)
def test_up_to_its_last_line_each_of_these_logs_is_clean(rule: str) -> None:
    assert rules(BREAKS[rule][:-1]) == []


def test_the_example_of_the_readme_is_clean_and_the_careless_one_is_not() -> None:
    assert rules([(EXAMPLES / "transitions.jsonl").read_bytes()]) == []
    found = {rule for rule, _ in rules([(EXAMPLES / "careless.jsonl").read_bytes()])}
    assert {"illegal-transition", "worker-capacity", "one-worker", "retry-limit", "wrong-severity", "torn-line"} <= found


def test_the_event_that_document_002_shows_skips_the_validation_and_is_caught() -> None:
    shown = event(
        "task", "t1", ("running", "completed", "execution_completed", "info"), {"duration_seconds": 45, "retry_count": 0}
    )
    assert rules([task("queue"), task("start"), shown]) == [("illegal-transition", 3)]


def test_a_finding_says_what_would_be_legal() -> None:
    (finding,) = validate(BREAKS["illegal-transition"])
    assert "orchestrated.task may not go from queued to completed" in finding.message
    assert "running on worker_started" in finding.advice


def test_a_sealed_state_is_never_left() -> None:
    log = [task("queue"), task("start"), task("fail"), event("task", "t1", ("failed", "queued", "worker_lost", "info"), {})]
    assert rules(log) == [("illegal-transition", 4)]


def test_every_missing_or_wrong_field_is_named_at_once() -> None:
    bad = b'{"timestamp": "2026-01-15T10:30:00", "severity": 3, "entity_id": "", "metadata": {"retry_count": -1}}\n'
    messages = [finding.message for finding in validate([bad])]
    for field in (
        "timestamp",
        "event_type",
        "severity",
        "entity_id",
        "from_state",
        "to_state",
        "trigger",
        "metadata.retry_count",
    ):
        assert any(f"`{field}`" in message for message in messages), field


@pytest.mark.parametrize("line", [b"[]", b"3", b"null", b'"text"', b"true"])
def test_json_that_is_not_an_object_is_a_schema_finding(line: bytes) -> None:
    assert rules([line + b"\n"]) == [("schema", 1)]


def test_an_entity_may_be_created_explicitly_but_only_once_and_in_its_initial_state() -> None:
    created = event("task", "t1", (None, "pending", "created", "info"), {})
    assert rules([created, task("queue")]) == []
    assert rules([created, created]) == [("continuity", 2)]
    assert rules([event("task", "t1", (None, "running", "created", "info"), {})]) == [("beginning", 1)]


def test_a_byte_order_mark_is_no_part_of_the_first_event() -> None:
    assert rules([b"\xef\xbb\xbf" + task("queue"), task("start")]) == []


def test_a_schema_finding_says_what_is_expected() -> None:
    (finding,) = validate(BREAKS["schema"][1:])
    assert finding.message == '`severity` must be info, warning, error or critical, not "loud".'


def test_dependencies_are_checked_at_the_claim_where_nothing_else_begins(tmp_path: Path) -> None:
    lifecycle = tmp_path / "parcel.yaml"
    lifecycle.write_text(PARCEL)
    load = event("task", "p1", ("PACKED", "TRAVELLING", "claim", "info"), {"depends_on": ["ghost"]})
    assert rules([load], str(lifecycle)) == [("dependency-satisfaction", 1)]


def test_a_partial_log_may_begin_anywhere_and_depend_on_what_it_does_not_show() -> None:
    assert rules([task("start")], partial=True) == []
    assert rules([task("queue", depends_on=["earlier"])], partial=True) == []
    assert rules([task("start"), task("queue")], partial=True) == [("continuity", 2)]


def test_a_dependency_that_the_log_does_not_know_is_found() -> None:
    assert rules([task("queue", depends_on=["t0"])]) == [("dependency-satisfaction", 1)]


def test_a_dependency_that_completed_lets_its_dependent_go_on() -> None:
    before = [task("queue", "t0"), task("start", "t0"), task("finish", "t0"), task("pass", "t0")]
    assert rules([*before, task("queue", "t1", depends_on=["t0"])]) == []


def test_a_worker_may_take_over_after_the_first_one_was_released() -> None:
    lost = event("task", "t1", ("running", "queued", "worker_lost", "error"), {"worker_id": "w1"})
    assert rules([task("queue"), task("start", worker_id="w1"), lost, task("start", worker_id="w2"), task("finish")]) == []


def test_retries_are_counted_where_the_log_does_not_say() -> None:
    once = [task("start"), task("retry"), task("requeue")]
    assert rules([task("queue", max_retries=2), *once, *once]) == []
    assert rules([task("queue", max_retries=1), *once, *once]) == [("retry-limit", 6)]


def test_the_logs_own_count_cannot_hide_a_retry_too_many() -> None:
    once = [task("start"), task("retry", retry_count=1), task("requeue")]
    assert rules([task("queue", max_retries=1), *once, *once]) == [("retry-limit", 6)]


STANDARD = {
    "ready": ("PENDING", "QUEUED", "ready", "info"),
    "claim": ("QUEUED", "RUNNING", "claim", "info"),
    "fail": ("RUNNING", "FAILED", "fail", "error"),
    "fail_once": ("RUNNING", "RETRYING", "fail", "warning"),
    "delay_over": ("RETRYING", "QUEUED", "delay_over", "info"),
    "retry": ("FAILED", "QUEUED", "retry", "info"),
    "complete": ("RUNNING", "SUCCEEDED", "complete", "info"),
}


def standard(move: str, name: str = "t1", **metadata: Any) -> bytes:
    return event("task", name, STANDARD[move], metadata)


def test_an_operators_retry_gives_the_retries_back() -> None:
    once = [standard("claim"), standard("fail_once"), standard("delay_over")]
    again = [standard("claim"), standard("fail"), standard("retry")]
    assert rules([standard("ready", max_retries=1), *once, *again, *once], "standard") == []


def test_a_task_that_is_tried_again_may_start_after_it_ended() -> None:
    log = [
        standard("ready", created_at="2026-01-15T10:00:00Z"),
        standard("claim", started_at="2026-01-15T10:01:00Z"),
        standard("fail", completed_at="2026-01-15T10:02:00Z"),
        *(standard("retry"), standard("claim", started_at="2026-01-15T10:03:00Z")),
    ]
    assert rules(log, "standard") == []


def test_dependencies_are_checked_where_a_machine_leaves_them_to_the_signal_ready() -> None:
    assert rules([standard("ready", "t0"), standard("ready", "t1", depends_on=["t0"])], "standard") == [
        ("dependency-satisfaction", 2)
    ]


def test_a_task_that_depends_on_itself_is_found() -> None:
    (finding,) = validate([task("queue", depends_on=["t1"])])
    assert finding.rule == "dependency-satisfaction"
    assert "nothing is known of t1" in finding.message


def test_a_neighbour_in_flight_may_finish_before_its_run_fails() -> None:
    failed = event("workstream", "ws1", ("executing", "failed", "critical_task_failed", "critical"), {})
    log = [
        *(workstream("plan"), workstream("begin")),
        *(task("queue", "t1", workstream_id="ws1", critical=True), task("start", "t1")),
        *(task("queue", "t2", workstream_id="ws1"), task("start", "t2")),
        *(task("fail", "t1"), task("finish", "t2"), failed),
    ]
    assert rules(log) == []


def test_a_run_does_not_complete_over_a_critical_failure() -> None:
    log = [
        *(workstream("plan"), workstream("begin")),
        *(task("queue", workstream_id="ws1", critical=True), task("start"), task("fail"), workstream("settle")),
    ]
    assert rules(log) == [("failure-propagation", 6)]


def test_a_critical_failure_is_forgiven_when_the_task_or_its_run_is_tried_again() -> None:
    start = event("run", "r1", ("PENDING", "RUNNING", "start", "info"), {})
    fail = event("run", "r1", ("RUNNING", "FAILED", "fail", "error"), {})
    again = event("run", "r1", ("FAILED", "RUNNING", "retry", "info"), {})
    done = event("run", "r1", ("RUNNING", "SUCCEEDED", "complete", "info"), {})
    failed = [start, standard("ready", run_id="r1", critical=True), standard("claim"), standard("fail")]
    retried = [standard("retry"), standard("claim"), standard("complete"), done]
    assert rules([*failed, *retried], "standard") == []
    other = [standard("ready", "t2", run_id="r1"), standard("claim", "t2")]
    assert rules([*failed, fail, again, *other], "standard") == []


def test_a_runs_account_survives_a_log_that_contradicts_itself() -> None:
    done = [task("queue", workstream_id="ws1"), task("start"), task("finish"), task("pass")]
    log = [workstream("plan"), workstream("begin"), *done, task("finish"), task("pass"), task("pass"), workstream("settle")]
    assert rules(log) == [("continuity", 7), ("continuity", 9)]
    unfinished = [workstream("plan"), workstream("begin"), *done, task("finish"), workstream("settle")]
    assert rules(unfinished) == [("continuity", 7), ("completion", 8)]


def test_a_task_that_is_reopened_is_unfinished_again() -> None:
    moves = [
        ("S_PENDING", "S_RUNNING", "dependencies_met", "info"),
        ("S_RUNNING", "S_FAILED", "failure", "error"),
        ("S_FAILED", "S_SUCCESS", "skip", "warning"),
    ]
    steps = [event("step", "s1", move, {"run_id": "ws1"}) for move in moves]
    begin = event("workstream", "ws1", ("S_PENDING", "S_RUNNING", "start_execution", "info"), {})
    done = event("workstream", "ws1", ("S_RUNNING", "S_SUCCESS", "all_steps_succeed", "info"), {})
    assert rules([begin, *steps, done], "pipeline") == []
    assert rules([begin, *steps[:2], done], "pipeline") == [("completion", 4)]


def test_a_step_that_is_reclaimed_changes_its_worker() -> None:
    claim = event("step", "s1", ("PENDING", "RUNNING", "claim", "info"), {"worker_id": "w1"})
    reclaim = event("step", "s1", ("RUNNING", "RUNNING", "reclaim", "warning"), {"worker_id": "w2"})
    complete = event("step", "s1", ("RUNNING", "SUCCEEDED", "complete", "info"), {"worker_id": "w2"})
    assert rules([claim, reclaim, complete], "approval") == []


def test_a_finding_says_since_when() -> None:
    (finding,) = validate(BREAKS["continuity"])
    assert "t1 is running since line 2" in finding.message


def test_a_log_cannot_make_the_validator_open_files() -> None:
    for name in ("/etc/passwd", "/dev/zero", "../x.yaml", "x.yaml:task", "standard"):
        line = event("task", "t1", TASK_MOVES["queue"], {"machine": name})
        assert rules([line, *BREAKS["empty-line"]]) == [("event-type", 1), ("empty-line", 3)]


def test_numbers_and_instants_out_of_range_are_schema_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entities.Entities.__init__, "__defaults__", (1,))
    others = [task("queue", f"t{number}") for number in range(2, 9)]
    assert rules([task("queue", max_retries=2**64), *others]) == [("schema", 1)]
    assert rules([task("queue", created_at="0001-01-01T00:00:00+14:00"), *others]) == [("schema", 1)]
    assert rules([task("queue", created_at="9999-12-31T23:59:59-14:00"), *others]) == [("schema", 1)]


def test_long_lists_of_dependencies_leave_memory_like_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    spilled: list[int] = []
    spill = entities.Entities.spill

    def count(self: entities.Entities) -> None:
        spilled.append(self._dependencies)
        spill(self)

    monkeypatch.setattr(entities, "DEPENDENCIES", 100)
    monkeypatch.setattr(entities.Entities, "spill", count)
    created = [event("task", f"t{number}", (None, "pending", "created", "info"), {}) for number in range(50)]
    queued = [task("queue", f"t{number}", depends_on=[f"d{each}" for each in range(60)]) for number in range(50)]
    rules([*created, *queued], partial=True)
    assert spilled
    assert max(spilled) <= 100 + 60


def test_a_run_that_fails_after_a_critical_failure_is_right() -> None:
    failed = event("workstream", "ws1", ("executing", "failed", "critical_task_failed", "critical"), {})
    log = BREAKS["failure-propagation"][:5]
    assert rules([*log, failed]) == []


@pytest.mark.parametrize("lifecycle", ["supervised", "pipeline", "orchestrated", "approval", "agent", "standard"])
def test_logs_of_every_lifecycle_can_be_checked(lifecycle: str) -> None:
    for machine in load_lifecycle(lifecycle).machines:
        kind = machine.name.partition(".")[2]
        move = next(move for move in machine.exits(machine.initial.name) if not move.automatic)
        line = event(kind, "e1", (move.from_state, move.to_state, move.trigger, move.severity), {})
        assert rules([line], lifecycle) == []


def test_a_log_may_mix_lifecycles_when_its_events_name_their_machines() -> None:
    agent = event("task", "a1", ("PENDING", "QUEUED", "run", "info"), {"machine": "agent.task"})
    step = event("step", "s1", ("S_PENDING", "S_RUNNING", "dependencies_met", "info"), {"machine": "pipeline.step"})
    assert rules([task("queue"), agent, step]) == []
    wrong = event("task", "a1", ("PENDING", "QUEUED", "run", "info"), {"machine": "agent.tusk"})
    assert rules([wrong]) == [("event-type", 1)]


def test_automatic_transitions_are_logged_each_on_its_own() -> None:
    moves = [
        ("S_PENDING", "S_RUNNING", "dependencies_met", "info"),
        ("S_RUNNING", "S_FAILED", "failure", "error"),
        ("S_FAILED", "S_RETRYING", "retry_eligible", "warning"),
        ("S_RETRYING", "S_RUNNING", "retry_attempt", "info"),
    ]
    assert rules([event("step", "s1", move, {}) for move in moves], "pipeline") == []


def test_bad_lines_do_not_stop_the_check_of_the_lines_after_them() -> None:
    log = [
        b"\n",
        b"\xff\xfe\n",
        b"{\n",
        b"[" * 100_000 + b"\n",
        b'{"a":' * 5_000 + b"\n",
        b"NaN\n",
        *BREAKS["illegal-transition"],
    ]
    found = rules(log)
    assert [line for _, line in found] == [1, 2, 3, 4, 5, 6, 8]
    assert found[-1] == ("illegal-transition", 8)


def test_a_log_cut_at_any_byte_yields_at_most_one_torn_line() -> None:
    log = (EXAMPLES / "transitions.jsonl").read_bytes()
    start = log.rindex(b"\n", 0, len(log) - 1) + 1
    for cut in range(start, len(log) + 1):
        found = rules([log[:cut]])
        complete = cut in (start, len(log) - 1, len(log))
        assert found == ([] if complete else [("torn-line", log[:cut].count(b"\n") + 1)])


@given(st.binary(max_size=400))
def test_no_bytes_make_the_validator_stumble(noise: bytes) -> None:
    log = task("queue") + noise + b"\n" + task("start")
    for finding in validate([log]):
        assert finding.rule in RULES


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=8
    )
)
def test_no_json_makes_the_validator_stumble(value: object) -> None:
    line = json.loads(task("queue")) | {"metadata": value}
    assert {rule for rule, _ in rules([json.dumps(line).encode() + b"\n"])} <= {"schema", "json", "event-type"}


def test_a_gigantic_line_is_dropped_without_being_held_in_memory() -> None:
    longest = max(len(line) for line in read_lines(io.BytesIO(b"x" * (50 * LONGEST_LINE) + b"\nshort\n")))
    assert longest <= LONGEST_LINE + 2


@given(
    st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.integers(1, 40), st.booleans()
)
def test_lines_are_the_same_however_the_bytes_arrive(lines: list[bytes], size: int, ended: bool) -> None:  # noqa: FBT001
    class Trickle(io.BytesIO):
        def read1(self, _size: int | None = -1, /) -> bytes:
            return super().read1(size)

    log = b"\n".join(lines) + b"\n" * (ended and bool(lines))
    assert b"".join(read_lines(Trickle(log))) == log
    assert list(read_lines(Trickle(log))) == list(io.BytesIO(log))


def test_entities_that_left_memory_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entities.Entities.__init__, "__defaults__", (8,))
    names = [f"t{number}" for number in range(100)]
    log = [task("queue", name) for name in names] + [task("start", name, worker_id="w") for name in names]
    assert rules(log) == []
    again = [*log, *(task("queue", name) for name in names)]
    assert rules(again) == [("continuity", 200 + number) for number in range(1, 101)]
    waiting = [*log, task("queue", "last", depends_on=["t3"])]
    assert rules(waiting) == [("dependency-satisfaction", 201)]


def test_an_entity_is_not_written_away_while_a_line_still_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entities.Entities.__init__, "__defaults__", (4,))
    done = [
        line
        for n in range(20)
        for line in (task("queue", f"d{n}"), task("start", f"d{n}"), task("finish", f"d{n}"), task("pass", f"d{n}"))
    ]
    created = event("task", "t1", (None, "pending", "created", "info"), {})
    log = [created, *done, task("queue", "t1", depends_on=[f"d{n}" for n in range(20)]), task("start", "t1")]
    assert rules(log) == []


def test_a_stream_that_fails_midway_is_an_error_and_not_a_clean_log() -> None:
    class Failing(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            chunk = super().read1(-1 if size is None else size)
            if not chunk:
                raise OSError(5, "Input/output error")
            return chunk

    validator = Validator(load_lifecycle("orchestrated"), "log")
    with pytest.raises(LogUnreadable, match="after line 1: Input/output error"):
        list(validator.check_log(Failing(task("queue"))))


def test_the_summary_counts_lines_entities_and_findings_by_rule() -> None:
    validator = Validator(load_lifecycle("orchestrated"), "log")
    list(validator.check_log(io.BytesIO(b"".join([task("queue"), b"\n", b"\n", task("queue", "t2")]))))
    assert (validator.summary.lines, validator.summary.entities, validator.summary.findings) == (4, 2, 2)
    assert validator.summary.by_rule == {"empty-line": 2}


def test_the_schema_is_document_002s() -> None:
    fields = ("timestamp", "event_type", "severity", "entity_id", "from_state", "to_state", "trigger", "metadata")
    assert Event.__struct_fields__ == fields
    assert "retry_count" in Metadata.__struct_fields__
