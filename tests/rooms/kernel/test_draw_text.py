"""Text for a terminal: boxes and arrows where they fit, otherwise an outline."""

from __future__ import annotations

import re
from functools import cache

from tests.rows import each_row

from pointsman.kernel.draw import draw
from pointsman.kernel.draw.channels import assign_tracks
from pointsman.kernel.draw.text import COLUMNS
from pointsman.lifecycles import load_machine, machine_names

PICTURE = """
    │    │              ▼
    │    │         ┏━━ active ━┓
    │    │         ┃▶ RUNNING ◀┃
    │    │         ┗━━━━━━━━━━━┛
    │    │           │    │  │
    │    │    ╭──────╯    │  ╰────────╮
    │    │ cancel       error      success
    ▼    ▼    ▼           ▼           ▼
  ╔══ canceled ═╗   ╔═ failure ═╗   ╔═ success ═╗
  ║  CANCELED   ║   ║  FAILED   ║   ║ COMPLETED ║
  ╚═════════════╝   ╚═══════════╝   ╚═══════════╝
"""
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@cache
def render(name: str, state: str | None = None) -> str:
    return draw(load_machine(name), "text", state=state)


@each_row("name", machine_names())
def test_every_state_and_trigger_is_there(name: str) -> None:
    machine, text = load_machine(name), render(name)
    assert text.startswith(name)
    assert all(state.name in text for state in machine.states)
    for move in machine.transitions:
        assert move.trigger in text
        assert all(condition in text for condition in move.conditions)


@each_row("name", machine_names())
def test_it_fits_a_terminal_and_has_no_trailing_blanks(name: str) -> None:
    for line in render(name).splitlines():
        assert len(line) <= COLUMNS
        assert line == line.rstrip()


@each_row("name", machine_names())
def test_colour_adds_escapes_and_changes_nothing_else(name: str) -> None:
    coloured, plain = draw(load_machine(name), "text", color=True), render(name)
    assert "\x1b" not in plain
    assert "\x1b" in coloured
    assert ESCAPES.sub("", coloured) == plain


def test_a_small_machine_is_drawn_with_boxes_and_arrows() -> None:
    assert render("supervised.job", "RUNNING").endswith(PICTURE)


def test_a_large_machine_becomes_an_outline_that_marks_the_ways_back() -> None:
    lines = render("standard.task").splitlines()
    at = lines.index("✘ BUDGET_EXCEEDED  done · failure · terminal")
    assert lines[at + 1 : at + 4] == [
        "├─ retry [not is_gate] ──────────────────────▶ ↑ QUEUED",
        "├─ resume [not is_gate] ─────────────────────▶ ↑ QUEUED",
        "└─ skip ─────────────────────────────────────▶   SKIPPED",
    ]


def test_the_current_state_is_marked_and_what_is_out_of_reach_is_said() -> None:
    text = render("standard.task", "SUCCEEDED")
    assert "▶ SUCCEEDED  done · success · sealed · current" in text
    assert "○ PENDING  held · initial · out of reach" in text
    assert "▶ OPEN ◀" in render("pipeline.breaker", "OPEN")
    assert "┃▶validating◀ ┃" in render("orchestrated.task", "validating")
    assert "\x1b[1;7;33m" in draw(load_machine("pipeline.breaker"), "text", state="OPEN", color=True)


def test_lines_that_bend_in_one_gap_never_run_over_each_other() -> None:
    assert assign_tracks([(0, 4), (4, 8)]) == {(4, 8): 0, (0, 4): 1}, "the one that comes down at 4 leaves first"
    assert assign_tracks([(0, 4), (4, 0)]) is None, "each would have to leave first"
    assert assign_tracks([(3, 3)]) == {}
