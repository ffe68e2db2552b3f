"""Mermaid and Markdown: every transition is there, and names cannot break the syntax."""

from __future__ import annotations

from tests.rows import each_row

from pointsman.kernel.draw import draw
from pointsman.kernel.machine import Kind, Machine, Phase, State, Transition
from pointsman.lifecycles import load_machine, machine_names


def awkward_machine() -> Machine:
    states = (State("default", Phase.HELD, initial=True), State("end", Phase.DONE, terminal=True))
    moves = (Transition("default", "end", "a:b;c#d|e"),)
    return Machine("awkward.task", "awkward", Kind.TASK, 1, states, moves)


@each_row("name", machine_names())
def test_mermaid_has_every_transition(name: str) -> None:
    machine = load_machine(name)
    lines = [line.strip() for line in draw(machine, "mermaid").splitlines()]
    assert lines[3] == "stateDiagram-v2"
    assert f"[*] --> {machine.initial.name}" in lines
    for move in machine.transitions:
        conditions = f" [{', '.join(move.conditions)}]" if move.conditions else ""
        automatic = " (automatic)" if move.automatic else ""
        assert f"{move.from_state} --> {move.to_state} : {move.trigger}{conditions}{automatic}" in lines
    for state in machine.states:
        assert (f"{state.name} --> [*]" in lines) == state.terminal


def test_mermaid_marks_the_current_state() -> None:
    lines = [line.strip() for line in draw(load_machine("supervised.job"), "mermaid", state="RUNNING").splitlines()]
    assert "class RUNNING current" in lines
    assert "class SUBMITTED,PENDING dimmed" in lines


def test_mermaid_escapes_what_would_break_it() -> None:
    text = draw(awkward_machine(), "mermaid")
    assert 'state "default" as state_default' in text
    assert "state_default --> state_end : a#58;b#59;c#35;d|e" in text


@each_row("name", machine_names())
def test_markdown_has_one_row_for_each_state_and_transition(name: str) -> None:
    machine = load_machine(name)
    lines = draw(machine, "markdown").splitlines()
    assert lines[0] == f"## {name}"
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) == len(machine.states) + len(machine.transitions)
    for move, row in zip(machine.transitions, rows[len(machine.states) :], strict=True):
        assert row.startswith(f"| `{move.from_state}` | `{move.to_state}` | `{move.trigger}` |")
        assert row.count("|") == 9


def test_markdown_says_what_a_state_needs_and_how_long_it_may_stay() -> None:
    text = draw(load_machine("standard.task"), "markdown")
    assert "| `VALIDATING` | active |  |  | `worker` | 15m |" in text


def test_markdown_escapes_pipes_and_marks_the_current_state() -> None:
    text = draw(awkward_machine(), "markdown", state="end")
    assert "`a:b;c#d\\|e`" in text
    assert "| **`end`** |" in text
    assert "| ~~`default`~~ |" in text
