"""The layout behind every picture: nothing overlaps, whatever the machine."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import each_row

from pointsman.kernel.draw import FORMATS, draw
from pointsman.kernel.draw.cells import Cells
from pointsman.kernel.draw.layout import Layout, Rect, lay_out
from pointsman.kernel.draw.plan import Metrics
from pointsman.kernel.draw.svg import Pixels
from pointsman.kernel.machine import Kind, Machine, Outcome, Phase, State, Transition
from pointsman.lifecycles import load_machine, machine_names

METRICS: dict[str, Metrics] = {"pixels": Pixels(), "cells": Cells()}


def make_machine(count: int, pairs: list[tuple[int, int, str]]) -> Machine:
    """A machine of `count` states with these moves; states that nothing leaves are ends."""
    leaving = {source for source, _, _ in pairs}
    states = tuple(
        State(
            name=f"STATE_{number}",
            phase=Phase.HELD if number in leaving else Phase.DONE,
            outcome=None if number in leaving else list(Outcome)[number % 3],
            initial=number == 0,
            terminal=number not in leaving,
            sealed=number not in leaving,
        )
        for number in range(count)
    )
    moves = tuple(Transition(f"STATE_{source}", f"STATE_{target}", trigger) for source, target, trigger in pairs)
    return Machine("random.machine", "random", Kind.TASK, 1, states, moves)


@st.composite
def machines(draw_value: st.DrawFn) -> Machine:
    count = draw_value(st.integers(1, 15))
    number = st.integers(0, count - 1)
    trigger = st.sampled_from(["go", "stop", "cancel", "a_trigger_with_a_long_name"])
    pairs = draw_value(st.lists(st.tuples(number, number, trigger), max_size=min(3 * count, 32), unique=True))
    return make_machine(count, pairs)


def rects(layout: Layout) -> list[Rect]:
    """Everything that must be read: boxes and labels."""
    labels = [route.label for route in layout.routes] + [stub.label for stub in layout.stubs]
    return [box.rect for box in layout.boxes] + labels


def assert_sound(machine: Machine, metrics: Metrics) -> None:
    layout = lay_out(machine, metrics)
    assert {box.state.name for box in layout.boxes} == {state.name for state in machine.states}
    for one, other in combinations(rects(layout), 2):
        assert not one.overlaps(other), (one, other)
    for rect in rects(layout):
        assert rect.left >= -1e-6
        assert rect.right <= layout.width + 1e-6
        assert rect.top >= 0
        assert rect.bottom <= layout.height
    assert_lines_keep_clear(layout)


def assert_lines_keep_clear(layout: Layout) -> None:
    """Arrows bend only in the gaps between ranks, and no straight part of one runs through a box or another's label."""
    gaps = {span for low, high in layout.gaps for span in ((low, high), (high, low))}
    for route in layout.routes:
        obstacles = [rect for rect in rects(layout) if rect is not route.label]
        for (x, y), (next_x, next_y) in pairwise(route.points):
            if x != next_x:
                assert (y, next_y) in gaps
            elif y != next_y:
                line = Rect(x, min(y, next_y), 0, abs(next_y - y))
                assert not any(line.overlaps(rect) for rect in obstacles)


def pairs_drawn(layout: Layout) -> set[tuple[str, str]]:
    arrows = {(route.arrow.from_state, route.arrow.to_state) for route in layout.routes}
    return arrows | {(chip.from_state, chip.to_state) for box in layout.boxes for chip in box.chips}


@each_row("metrics", METRICS.values())
@each_row("name", machine_names())
def test_nothing_overlaps_in_a_shipped_machine(name: str, metrics: Metrics) -> None:
    assert_sound(load_machine(name), metrics)


@settings(max_examples=40, deadline=None)
@given(machines())
def test_nothing_overlaps_in_any_machine(machine: Machine) -> None:
    for metrics in METRICS.values():
        assert_sound(machine, metrics)


@settings(max_examples=20, deadline=None)
@given(machines())
def test_every_machine_can_be_drawn_in_every_format(machine: Machine) -> None:
    for format_ in FORMATS:
        assert draw(machine, format_, state=machine.states[-1].name)


@each_row("name", machine_names())
def test_every_move_is_an_arrow_or_a_chip(name: str) -> None:
    machine = load_machine(name)
    assert pairs_drawn(lay_out(machine, Pixels())) == {(move.from_state, move.to_state) for move in machine.transitions}


def test_a_trigger_from_many_states_is_a_hub_instead_of_many_arrows() -> None:
    layout = lay_out(load_machine("standard.task"), Pixels())
    assert {(stub.hub.trigger, stub.hub.target, len(stub.hub.sources)) for stub in layout.stubs} >= {
        ("cancel", "CANCELED", 8),
        ("skip", "SKIPPED", 8),
    }
    assert not any(route.arrow.to_state == "CANCELED" for route in layout.routes)


def test_a_hub_says_shared_conditions_once() -> None:
    layout = lay_out(load_machine("standard.worker"), Pixels())
    fail = next(stub for stub in layout.stubs if stub.hub.trigger == "fail")
    assert [line.text for line in fail.lines] == ["fail", "[not retryable]", "from 6 states"]
    assert all(not chip.conditions for box in layout.boxes for chip in box.chips if chip.trigger == "fail")


def test_arrows_run_down_from_the_initial_state_and_up_only_where_they_lead_back() -> None:
    layout = lay_out(load_machine("approval.step"), Pixels())
    tops = {box.state.name: box.rect.top for box in layout.boxes}
    assert min(tops, key=tops.__getitem__) == "PENDING"
    for route in layout.routes:
        assert (tops[route.arrow.to_state] < tops[route.arrow.from_state]) == route.arrow.back
    assert {(route.arrow.from_state, route.arrow.to_state) for route in layout.routes if route.arrow.back} == {
        ("RUNNING", "PENDING")
    }


def test_triggers_with_the_same_conditions_share_a_label() -> None:
    layout = lay_out(load_machine("standard.task"), Pixels())
    retrying = next(r for r in layout.routes if (r.arrow.from_state, r.arrow.to_state) == ("RUNNING", "RETRYING"))
    assert [line.text for line in retrying.lines] == ["fail, expire", "[retryable,", "retries_left]"]
