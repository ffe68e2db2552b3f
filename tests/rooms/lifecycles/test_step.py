"""Every state × every trigger: `step` takes exactly the documented move, or refuses and says what it would accept."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.rooms.lifecycles.conditions import MET, UNMET, Instead, Otherwise
from tests.rooms.lifecycles.tables import TABLES, Row
from tests.rows import each_row

from pointsman import load_machine
from pointsman.kernel.machine import Case, Refusal
from pointsman.kernel.step import Snapshot, Step, step
from pointsman.lifecycles.guards import Facts

BEFORE = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
NOW = datetime(2026, 1, 1, 12, 5, tzinfo=UTC)

# A trigger whose name is also a signal that this state takes in another way.
ALSO_A_SIGNAL = {
    ("approval.step", "RUNNING", "claim"),  # the reclaim
    ("standard.task", "VALIDATING", "fail"),  # counts as checks_failed
    ("standard.task", "VALIDATING", "expire"),  # counts as checks_failed
    ("standard.run", "VALIDATING", "fail"),  # counts as checks_failed
}

PULLED = [(name, row) for name, table in TABLES.items() for row in table.rows if row[2] not in table.automatic]
GUARDED = [(name, *case) for name, cases in UNMET.items() for case in cases]
NO_ROW = [
    (name, state, trigger)
    for name, table in TABLES.items()
    for state in table.states
    for trigger in table.triggers
    if not any((row[0], row[2]) == (state, trigger) for row in table.rows) and (name, state, trigger) not in ALSO_A_SIGNAL
]
AUTOMATIC = [
    ("pipeline.workstream", "step_fails", Facts(retries_left=True), ("S_FAILED", "S_RETRYING")),
    ("pipeline.workstream", "step_fails", Facts(retries_left=False), ("S_FAILED", "S_ABANDONED")),
    ("pipeline.step", "failure", Facts(retries_left=True), ("S_FAILED", "S_RETRYING")),
    ("pipeline.step", "failure", Facts(retries_left=False), ("S_FAILED",)),
    ("pipeline.step", "failure", Facts(retries_left=True, retry_on_failure=False), ("S_FAILED",)),
    ("pipeline.step", "failure", Facts(retries_left=True, breaker_open=True), ("S_FAILED",)),
    ("pipeline.step", "failure", Facts(retries_left=True, retryable=False), ("S_FAILED",)),
]


def pull(name: str, state: str, trigger: str, facts: Facts) -> Step | Refusal:
    return step(load_machine(name), Snapshot(state, BEFORE), trigger, facts, NOW)


@each_row(("name", "row"), PULLED)
def test_a_trigger_takes_its_row(name: str, row: Row) -> None:
    state, target, trigger = row
    result = pull(name, state, trigger, MET[name].get(row, Facts()))
    assert isinstance(result, Step), result
    taken = [(move.from_state, move.to_state, move.trigger) for move in result.taken]
    assert taken[0] == row
    assert all(move[2] in TABLES[name].automatic for move in taken[1:])
    assert result.snapshot == Snapshot(taken[-1][1], NOW)
    if not any(after[0] == target and after[2] in TABLES[name].automatic for after in TABLES[name].rows):
        assert taken == [row]


@each_row(("name", "state", "trigger"), NO_ROW)
def test_a_trigger_without_a_row_is_refused_with_what_is_allowed(name: str, state: str, trigger: str) -> None:
    table = TABLES[name]
    result = pull(name, state, trigger, Facts())
    assert isinstance(result, Refusal), result
    assert (result.machine, result.state, result.asked) == (name, state, trigger)
    allowed = {(move.from_state, move.to_state, move.trigger) for move in result.allowed}
    assert allowed == {row for row in table.rows if row[0] == state and row[2] not in table.automatic}
    if any((row[1], row[2]) == (state, trigger) for row in table.rows):
        assert result.case == Case.ALREADY_THERE
    else:
        assert result.case == (Case.TERMINAL if state in table.terminal else Case.NOT_ALLOWED)
    assert state in result.message


@each_row(("name", "row", "facts", "otherwise"), GUARDED)
def test_a_row_whose_condition_does_not_hold_is_not_taken(name: str, row: Row, facts: Facts, otherwise: Otherwise) -> None:
    result = pull(name, row[0], row[2], facts)
    if isinstance(otherwise, Instead):
        assert isinstance(result, Step), result
        assert result.snapshot.state == otherwise.state
    else:
        assert isinstance(result, Refusal), f"{name}: {row} was taken although it needs {otherwise.condition}"
        assert any(otherwise.condition in unmet for unmet in result.unmet), result.unmet
        assert otherwise.condition in result.message


@each_row("name", TABLES)
def test_every_condition_of_a_machine_was_tried_both_ways(name: str) -> None:
    for move in load_machine(name).transitions:
        row = (move.from_state, move.to_state, move.trigger)
        if move.conditions and not move.automatic:
            tried = [facts for unmet, facts, _ in UNMET[name] if unmet == row]
            assert row in MET[name], f"no facts let {move} through"
            assert tried, f"no facts hold {move} back"
            for guard in move.guards:
                assert any(not guard.holds(facts) for facts in tried), f"{move} was never tried without {guard}"


@each_row(("name", "trigger", "facts", "visited"), AUTOMATIC)
def test_an_automatic_move_follows_at_once_and_is_recorded_on_its_own(
    name: str, trigger: str, facts: Facts, visited: tuple[str, ...]
) -> None:
    result = pull(name, "S_RUNNING", trigger, facts)
    assert isinstance(result, Step), result
    assert tuple(move.to_state for move in result.taken) == visited
    assert [move.automatic for move in result.taken] == [False] + [True] * (len(visited) - 1)
    assert result.snapshot == Snapshot(visited[-1], NOW)
    assert result.effects == tuple(effect for move in result.taken for effect in move.effects)


@each_row(("name", "trigger"), [(name, trigger) for name in TABLES for trigger in sorted(TABLES[name].automatic)])
def test_nobody_pulls_an_automatic_trigger(name: str, trigger: str) -> None:
    for state in TABLES[name].states:
        assert isinstance(pull(name, state, trigger, Facts(retries_left=True)), Refusal)


def test_a_refusal_names_only_the_conditions_that_do_not_hold() -> None:
    machine = load_machine("approval.step")
    facts = Facts(is_gate=False, dependencies_met=False, due=False)
    result = step(machine, Snapshot("PENDING", NOW), "claim", facts, NOW)
    assert isinstance(result, Refusal)
    assert result.unmet == ("dependencies_met and due",)


def test_an_explanation_says_how_a_legal_move_comes_about() -> None:
    task, step_machine = load_machine("orchestrated.task"), load_machine("pipeline.step")
    assert task.explain("running", "retrying") == (
        "orchestrated.task may go from running to retrying: on execution_failed (signal fail) when retries_left."
    )
    assert step_machine.explain("S_FAILED", "S_RETRYING").startswith(
        "pipeline.step may go from S_FAILED to S_RETRYING: automatically (retry_eligible) when retries_left and"
    )
    assert (
        load_machine("standard.task")
        .explain("RUNNING", "BLOCKED")
        .endswith("on complete when no earlier transition applies and open_subtasks; or on ask.")
    )


def test_a_signal_that_only_stands_for_another_one_may_be_already_there() -> None:
    """A job's time-out counts as a cancel; a second one finds it canceled already."""
    result = step(load_machine("supervised.job"), Snapshot("CANCELED", NOW), "expire", Facts(), NOW)
    assert isinstance(result, Refusal)
    assert result.case == Case.ALREADY_THERE
