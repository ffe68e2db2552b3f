"""Whatever is reported in whatever order, only declared moves happen and the audit trail explains every state."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rooms.lifecycles.tables import TABLES, Table

from pointsman import load_machine
from pointsman.kernel.machine import Machine, Refusal, Transition
from pointsman.kernel.step import Snapshot, Step, step
from pointsman.lifecycles.guards import Facts
from pointsman.lifecycles.vocabulary import SIGNALS

START = datetime(2026, 1, 1, tzinfo=UTC)
FACTS = fields(Facts)


def make_facts(code: bytes) -> Facts:
    """One byte for each fact. Hypothesis draws bytes in a fifth of the time that single values take."""
    return Facts(**{fact.name: bool(byte % 2) for fact, byte in zip(FACTS, code, strict=True)})


ANY_FACTS = st.binary(min_size=len(FACTS), max_size=len(FACTS)).map(make_facts)
walks = settings(max_examples=25, deadline=None)


def names(machine: Machine) -> list[str]:
    """Everything that can be reported to a machine, and something that cannot."""
    known = SIGNALS[machine.kind]
    return sorted({*known.required, *known.optional, *machine.triggers, "no_such_signal"})


def check(table: Table, at: Snapshot, result: Step, now: datetime) -> None:
    """A step is a chain of documented moves from where the entity stood; only the first may be pulled."""
    rows = [(move.from_state, move.to_state, move.trigger) for move in result.taken]
    assert rows
    assert set(rows) <= set(table.rows)
    assert [row[0] for row in rows] == [at.state, *(row[1] for row in rows[:-1])]
    assert [row[2] in table.automatic for row in rows] == [False] + [True] * (len(rows) - 1)
    assert result.snapshot == Snapshot(rows[-1][1], now)
    assert result.effects == tuple(effect for move in result.taken for effect in move.effects)
    assert at.state not in table.sealed


@pytest.mark.parametrize("name", TABLES)
@walks
@given(data=st.data())
def test_only_declared_moves_happen_and_the_audit_folds_to_the_state(name: str, data: st.DataObject) -> None:
    machine, table = load_machine(name), TABLES[name]
    signals = data.draw(st.lists(st.tuples(st.sampled_from(names(machine)), ANY_FACTS), min_size=1, max_size=15))
    now, at = START, Snapshot(machine.initial.name, START)
    audit: list[Transition] = []
    for signal, facts in signals:
        now += timedelta(seconds=1)
        result = step(machine, at, signal, facts, now)
        if isinstance(result, Step):
            check(table, at, result, now)
            audit.extend(result.taken)
            at = result.snapshot
        else:
            assert (result.state, result.asked) == (at.state, signal)
    state = table.states[0]
    for move in audit:
        assert move.from_state == state
        state = move.to_state
    assert state == at.state


@pytest.mark.parametrize("name", TABLES)
@walks
@given(data=st.data(), facts=ANY_FACTS)
def test_a_step_from_any_state_is_declared_deterministic_and_touches_nothing(
    name: str, data: st.DataObject, facts: Facts
) -> None:
    machine, table = load_machine(name), TABLES[name]
    at = Snapshot(data.draw(st.sampled_from(table.states)), START)
    signal = data.draw(st.sampled_from(names(machine)))
    same_facts, same_place = replace(facts), Snapshot(at.state, at.entered_at)
    exits = {state: machine.exits(state) for state in table.states}
    result = step(machine, at, signal, facts, START)
    if isinstance(result, Step):
        check(table, at, result, START)
    assert step(machine, at, signal, facts, START) == result
    assert (facts, at) == (same_facts, same_place)
    assert {state: machine.exits(state) for state in table.states} == exits


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.sealed])
@settings(max_examples=5, deadline=None)
@given(facts=ANY_FACTS)
def test_a_sealed_state_never_changes(name: str, facts: Facts) -> None:
    machine = load_machine(name)
    for state in TABLES[name].sealed:
        for signal in names(machine):
            result = step(machine, Snapshot(state, START), signal, facts, START)
            assert isinstance(result, Refusal), f"{signal} in {state}"
            assert result.allowed == ()


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=10, deadline=None)
@given(facts=ANY_FACTS)
def test_a_terminal_state_is_left_only_by_a_declared_way(name: str, facts: Facts) -> None:
    machine, table = load_machine(name), TABLES[name]
    for state in table.terminal - table.sealed:
        for signal in names(machine):
            result = step(machine, Snapshot(state, START), signal, facts, START)
            if isinstance(result, Step):
                check(table, Snapshot(state, START), result, START)
