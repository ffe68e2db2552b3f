"""The SVG: well-formed, addressable, and honest about what can still be reached."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from xml.etree import ElementTree as ET

import pytest
from tests.rows import each_row

from pointsman.errors import UnknownName
from pointsman.kernel.draw import FORMATS, draw
from pointsman.lifecycles import load_machine, machine_names

Element = ET.Element
STATES = [(name, state.name) for name in machine_names() for state in load_machine(name).states[1::3]]


@cache
def parse(name: str, state: str | None = None) -> Element:
    return ET.fromstring(draw(load_machine(name), "svg", state=state))


def by_id(root: Element) -> dict[str, Element]:
    return {element.attrib["id"]: element for element in root.iter() if "id" in element.attrib}


def classes(element: Element) -> set[str]:
    return set(element.attrib["class"].split())


@each_row("name", machine_names())
def test_every_state_and_every_move_has_a_stable_id(name: str) -> None:
    machine, elements = load_machine(name), by_id(parse(name))
    for state in machine.states:
        group = elements[f"{name}--state-{state.name}"]
        assert group.attrib["data-state"] == state.name
        assert group.attrib["data-phase"] == state.phase
        assert f"phase-{state.phase}" in classes(group)
        assert (state.initial, state.terminal, state.sealed) == tuple(
            flag in classes(group) for flag in ("initial", "terminal", "sealed")
        )
    chips = {(e.attrib["data-from"], e.attrib["data-to"]) for e in elements.values() if "chip" in e.attrib.get("class", "")}
    for move in machine.transitions:
        edge = elements.get(f"{name}--edge-{move.from_state}-{move.to_state}")
        assert edge is not None or (move.from_state, move.to_state) in chips


@each_row("name", machine_names())
def test_ids_are_unique_and_carry_the_machine(name: str) -> None:
    root = parse(name)
    ids = Counter(element.attrib["id"] for element in root.iter() if "id" in element.attrib)
    assert ids.most_common(1)[0][1] == 1
    assert all(found == name or found.startswith(f"{name}--") for found in ids)
    assert not any(" " in found for found in ids)


@each_row("name", machine_names())
def test_every_trigger_and_condition_can_be_read(name: str) -> None:
    machine = load_machine(name)
    text = " ".join("".join(element.itertext()) for element in parse(name).iter() if element.tag.endswith("text"))
    for move in machine.transitions:
        assert move.trigger in text
        assert all(condition in text for condition in move.conditions)


@each_row("name", machine_names())
def test_everything_lies_within_the_picture(name: str) -> None:
    root = parse(name)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    plane = next(element for element in root if element.attrib.get("class") == "plane")
    left, top = map(float, plane.attrib["transform"].removeprefix("translate(").removesuffix(")").split())
    for rect in (element for element in plane.iter() if element.tag.endswith("rect") and element.get("class") != "shut"):
        x, y, w, h = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        assert left + x >= 0
        assert top + y >= 0
        assert left + x + w <= width
        assert top + y + h <= height


@each_row(("name", "state"), STATES)
def test_the_current_state_is_lit_and_what_is_out_of_reach_is_dimmed(name: str, state: str) -> None:
    machine = load_machine(name)
    elements = by_id(parse(name, state))
    reachable = machine.reachable(state)
    for one in machine.states:
        found = classes(elements[f"{name}--state-{one.name}"])
        assert ("current" in found) == (one.name == state)
        assert ("dimmed" in found) == (one.name not in reachable)
    for element in elements.values():
        if "edge" in element.attrib.get("class", "").split():
            assert ("dimmed" in classes(element)) == (element.attrib["data-from"] not in reachable)
            assert ("next" in classes(element)) == (element.attrib["data-from"] == state)


def test_nothing_is_lit_or_dimmed_without_a_current_state() -> None:
    root = parse("standard.task")
    assert not any({"current", "dimmed"} & set(element.attrib.get("class", "").split()) for element in root.iter())


def test_automatic_moves_can_be_told_apart() -> None:
    elements = by_id(parse("pipeline.step"))
    automatic = {found for found, element in elements.items() if "automatic" in element.attrib.get("class", "").split()}
    assert automatic == {"pipeline.step--edge-S_FAILED-S_RETRYING"}


def test_it_is_self_contained_and_follows_the_page_into_the_dark() -> None:
    svg = draw(load_machine("agent.task"), "svg")
    assert "prefers-color-scheme: dark" in svg
    assert svg.count("http") == 1, "only the namespace"
    assert "url(" not in svg
    assert "<script" not in svg


COLOUR = re.compile(r"#[0-9a-f]{6}|none|currentColor")


def find_fills(svg: str) -> Iterator[tuple[Element, str]]:
    """Every shape and text with its fill, as a viewer draws it that knows classes and nothing else of CSS."""
    style = svg[svg.index("<style>") : svg.index("@media")]
    rules = [
        (selector.removeprefix(".pointsman-machine ").split(), fill[1])
        for selectors, body in re.findall(r"(?m)^(\.pointsman-machine .*) \{ (.*) \}$", style)
        if (fill := re.search(r"fill: (.*?);", body))
        for selector in selectors.split(", ")
    ]
    root = ET.fromstring(svg)
    parents = {child: parent for parent in root.iter() for child in parent}
    for element in root.iter():
        if element.tag.rpartition("}")[2] in ("rect", "path", "circle", "text"):
            fills = [fill for steps, fill in rules if is_selected(element, steps, parents)]
            yield element, fills[-1] if fills else ""


def is_selected(element: Element | None, steps: list[str], parents: dict[Element, Element]) -> bool:
    """Whether a selector like `.tone-held > .lock .shut` selects an element."""
    *before, last = steps
    tag, *names = last.split(".")
    if element is None or not element.tag.endswith(tag) or not {*names} <= {*element.get("class", "").split()}:
        return False
    parent = parents.get(element)
    if not before or before[-1] == ">":
        return not before or is_selected(parent, before[:-1], parents)
    while parent is not None and not is_selected(parent, before, parents):
        parent = parents.get(parent)
    return parent is not None


@each_row("name", machine_names())
def test_every_shape_has_a_colour_without_variables_and_media_queries(name: str) -> None:
    """As librsvg draws it, for file managers and wikis: a shape without a fill is black. The bow of a lock inherits its own."""
    svg = draw(load_machine(name), "svg", state=load_machine(name).initial.name)
    assert "var(" not in svg
    assert "--pm" not in svg
    for element, fill in find_fills(svg):
        assert COLOUR.fullmatch(fill) or element.get("d", "").startswith("M2.5"), f"{element.attrib} would be black"


def test_it_has_a_title_and_a_description_for_those_who_cannot_see_it() -> None:
    root = parse("agent.task", "READY")
    assert root.attrib["role"] == "img"
    elements = by_id(root)
    title, description = (elements[found] for found in root.attrib["aria-labelledby"].split())
    assert title.text == "agent.task"
    assert "It is in READY" in (description.text or "")


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", ["agent.task", "approval.step"])
def test_the_same_machine_gives_the_same_picture(name: str, format_: str) -> None:
    machine = load_machine(name)
    assert draw(machine, format_) == draw(machine, format_)


def test_an_unknown_state_is_refused_with_what_may_have_been_meant() -> None:
    with pytest.raises(UnknownName, match="Did you mean RUNNING"):
        draw(load_machine("standard.task"), "svg", state="RUNING")


def test_an_unknown_format_is_refused_with_what_may_have_been_meant() -> None:
    with pytest.raises(UnknownName, match=r"no format called 'svgz'.*Did you mean svg"):
        draw(load_machine("standard.task"), "svgz")
