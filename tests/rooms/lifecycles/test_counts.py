"""How much the documents declare, counted from their tables."""

from __future__ import annotations

from tests.rooms.lifecycles.tables import TABLES

from pointsman import load_machine
from pointsman.lifecycles import machine_names

DOCUMENT_001 = ("pipeline.workstream", "pipeline.step", "pipeline.breaker")


def test_fifteen_machines_are_shipped() -> None:
    assert sorted(machine_names()) == sorted(TABLES)
    assert len(machine_names()) == 15


def test_document_001_has_fourteen_states_whatever_its_own_count_says() -> None:
    assert [len(load_machine(name).states) for name in DOCUMENT_001] == [6, 5, 3]
    assert sum(len(load_machine(name).states) for name in DOCUMENT_001) == 14


def test_document_001_has_sixteen_moves_and_its_operator_has_four() -> None:
    moves = [move for name in DOCUMENT_001 for move in load_machine(name).transitions]
    operators = [move for move in moves if move.trigger in ("reset", "skip")]
    assert len(operators) == 4
    assert len(moves) - len(operators) == 7 + 5 + 4
