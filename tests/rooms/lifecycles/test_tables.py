"""Every shipped machine is its document's table: no state and no move more, none less."""

from __future__ import annotations

from tests.rooms.lifecycles.tables import TABLES
from tests.rows import each_row

from pointsman import load_machine
from pointsman.lifecycles import machine_names


@each_row("name", TABLES)
def test_the_states_are_those_of_the_document(name: str) -> None:
    machine, table = load_machine(name), TABLES[name]
    assert {state.name for state in machine.states} == set(table.states)
    assert [state.name for state in machine.states if state.initial] == [table.states[0]]
    assert {state.name for state in machine.states if state.terminal} == table.terminal
    assert {state.name for state in machine.states if state.sealed} == table.sealed


@each_row("name", TABLES)
def test_a_move_between_two_states_is_legal_if_and_only_if_the_document_has_it(name: str) -> None:
    machine, table = load_machine(name), TABLES[name]
    for a in table.states:
        for b in table.states:
            documented = any((row[0], row[1]) == (a, b) for row in table.rows)
            assert machine.may(a, b) == documented, f"{name}: {a} -> {b} is {'documented' if documented else 'not documented'}"


@each_row("name", TABLES)
def test_every_illegal_move_is_explained_with_what_is_legal_instead(name: str) -> None:
    machine, table = load_machine(name), TABLES[name]
    for a in table.states:
        for b in set(table.states) - set(machine.allowed(a)):
            explanation = machine.explain(a, b)
            assert a in explanation
            pulled = [row for row in table.rows if row[0] == a and row[2] not in table.automatic]
            assert a == b or all(f"{trigger} -> {target}" in explanation for _, target, trigger in pulled)


@each_row("name", TABLES)
def test_the_moves_and_their_triggers_are_those_of_the_document(name: str) -> None:
    machine, table = load_machine(name), TABLES[name]
    moves = [(move.from_state, move.to_state, move.trigger) for move in machine.transitions]
    assert set(moves) == set(table.rows)
    assert len(moves) == len(table.rows), "a move is declared once"
    assert {move.trigger for move in machine.transitions if move.automatic} == table.automatic


@each_row("name", TABLES)
def test_the_exits_of_a_state_are_its_rows(name: str) -> None:
    machine, table = load_machine(name), TABLES[name]
    for state in table.states:
        exits = {(move.from_state, move.to_state, move.trigger) for move in machine.exits(state)}
        assert exits == {row for row in table.rows if row[0] == state}
        assert set(machine.allowed(state)) == {to for _, to, _ in exits}
        assert machine.is_terminal(state) == (state in table.terminal)


@each_row("name", TABLES)
def test_the_written_table_is_whole(name: str) -> None:
    """Of the table itself: sealed is terminal with no way out, and every row joins two of its states."""
    table = TABLES[name]
    leaving = {row[0] for row in table.rows}
    assert table.sealed == table.terminal - leaving
    assert {state for row in table.rows for state in row[:2]} == set(table.states)
    assert name in machine_names()
