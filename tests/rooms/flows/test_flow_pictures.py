"""A flow can be looked at: its stages, its files for each run, its pictures, and the schema for editors."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from pointsman.errors import UnknownName
from pointsman.flows import Flow, FlowTask, load_flow
from pointsman.flows.draw import FORMATS, draw_flow
from pointsman.flows.plan import describe_dag, describe_files, describe_plan, find_stages, shorten_links, write_files
from pointsman.flows.schema import build_schema
from pointsman.kernel.machine import State
from pointsman.lifecycles import load_machine

RELEASE = """\
name: release
inputs: {dry: false}
tasks:
  fetch: {command: [git, fetch], description: "Get <everything>"}
  lint: {needs: fetch, command: [ruff, check, .]}
  versions: {needs: fetch, command: [./versions], outputs: stdout}
  test: {needs: versions, foreach: tasks.versions.outputs, run: "tox -e ${{ item }}"}
  build: {needs: [lint, fetch], command: [make, "a & b"]}
  publish: {needs: [test, build], when: not inputs.dry, run: upload, critical: false}
"""
SVG = "{http://www.w3.org/2000/svg}"


def states(**names: str) -> dict[str, State]:
    machine = load_machine("standard.task")
    return {task: machine.state(state) for task, state in names.items()}


def random_flow(links: list[list[int]], *, ordered: bool = False) -> Flow:
    """Each task needs some of those before it."""
    tasks = {}
    for at, needs in enumerate(links):
        before = () if ordered or not at else tuple(dict.fromkeys(f"task-{need % at}" for need in needs))
        tasks[f"task-{at}"] = FlowTask(run="x", needs=before)
    return Flow(name="random", tasks=tasks, ordered=ordered)


FLOWS = st.builds(
    random_flow, st.lists(st.lists(st.integers(0, 20), max_size=4), min_size=1, max_size=12), ordered=st.booleans()
)


def test_stages_hold_what_can_run_at_once() -> None:
    assert find_stages(load_flow(RELEASE)) == [["fetch"], ["lint", "versions"], ["test", "build"], ["publish"]]
    ordered = Flow(name="x", ordered=True, tasks={name: FlowTask(run="x") for name in "cab"})
    assert find_stages(ordered) == [["c"], ["a"], ["b"]]


def test_both_files_are_written_for_a_run(tmp_path: Path) -> None:
    flow = load_flow(RELEASE)
    plan, dag = (json.loads(path.read_text("utf-8")) for path in write_files(describe_files(flow), tmp_path / "runs" / "r1"))
    assert plan == describe_plan(flow)
    assert dag == describe_dag(flow)
    assert plan["stages"][2] == {"stage": 3, "tasks": ["test", "build"]}
    assert plan["longest_chain"] == ["fetch", "versions", "test", "publish"]
    assert {"from": "fetch", "to": "build"} in dag["edges"]
    assert len(dag["edges"]) == 7
    assert {"name": "test", "stage": 3, "kind": "run", "foreach": "tasks.versions.outputs"}.items() <= dag["nodes"][3].items()


def test_links_that_others_imply_are_not_drawn() -> None:
    assert shorten_links(load_flow(RELEASE).links)["build"] == ("lint",)


def test_the_text_has_every_task_in_a_box() -> None:
    drawing = draw_flow(load_flow(RELEASE), "text")
    for name in ("fetch", "lint", "versions", "test ×", "build", "publish ?"):
        assert f" {name} " in drawing
    assert drawing.count("▼") == 5  # those that lead to the same place share a line
    assert "\x1b" not in drawing


def test_what_is_too_wide_is_told_stage_by_stage() -> None:
    drawing = draw_flow(load_flow(RELEASE), "text", columns=20)
    assert "stage 4\n  · publish" in drawing
    assert "← test, build" in drawing
    wide = Flow(name="wide", tasks={f"task-{at}": FlowTask(run="x") for at in range(50)})
    assert "stage 1" in draw_flow(wide, "text")


def test_states_have_their_colours_and_marks() -> None:
    known = states(fetch="SUCCEEDED", lint="FAILED", test="RUNNING")
    text = draw_flow(load_flow(RELEASE), "text", states=known, color=True)
    assert "\x1b[1;32m✔ fetch" in text
    assert "\x1b[1;31m✘ lint" in text
    assert "· build" in text
    picture = ET.fromstring(draw_flow(load_flow(RELEASE), "svg", states=known))
    classes = {group.get("data-task"): group.get("class", "") for group in picture.iter(f"{SVG}g") if group.get("data-task")}
    assert "tone-success" in classes["fetch"]
    assert "tone-failure" in classes["lint"]
    assert "tone" not in classes["build"]
    assert "class t0 success" in draw_flow(load_flow(RELEASE), "mermaid", states=known)


def test_the_svg_has_every_task_and_link_and_no_box_over_another() -> None:
    picture = ET.fromstring(draw_flow(load_flow(RELEASE), "svg"))
    tasks = [group.get("data-task") for group in picture.iter(f"{SVG}g") if group.get("data-task")]
    links = {(group.get("data-from"), group.get("data-to")) for group in picture.iter(f"{SVG}g") if group.get("data-from")}
    assert sorted(filter(None, tasks)) == sorted(load_flow(RELEASE).tasks)
    assert ("versions", "test") in links
    assert ("fetch", "build") not in links


def boxes(drawing: str) -> list[tuple[float, float, float, float]]:
    found = [rect for rect in ET.fromstring(drawing).iter(f"{SVG}rect") if rect.get("class") == "body"]
    return [tuple(float(rect.get(key, 0)) for key in ("x", "y", "width", "height")) for rect in found]  # type: ignore[misc]


@given(FLOWS)
@settings(max_examples=40, deadline=None)
def test_any_flow_can_be_drawn_and_no_box_covers_another(flow: Flow) -> None:
    for form in FORMATS:
        drawing = draw_flow(flow, form)
        assert all(drawing.count(name) >= 1 for name in flow.tasks)
    placed = boxes(draw_flow(flow, "svg"))
    assert len(placed) == len(flow.tasks)
    for index, (x, y, width, height) in enumerate(placed):
        for other_x, other_y, other_width, other_height in placed[:index]:
            assert x >= other_x + other_width or other_x >= x + width or y >= other_y + other_height or other_y >= y + height


def test_a_thousand_tasks_can_be_drawn() -> None:
    flow = Flow(
        name="many", tasks={f"t{at}": FlowTask(run="x", needs=(f"t{at // 2 - 1}",) if at > 3 else ()) for at in range(1000)}
    )
    for form in FORMATS:
        assert "t999" in draw_flow(flow, form)


def test_a_wide_flow_is_scaled_and_not_cut_off() -> None:
    """To the width of its page, and to what viewers can draw at most."""
    narrow = ET.fromstring(draw_flow(load_flow(RELEASE), "svg"))
    assert "max-width: 100%" in narrow.get("style", "")
    tasks = {f"task-{at}": FlowTask(run="x", needs=(f"task-{at - 4}",) if at > 3 else ()) for at in range(600)}
    wide = ET.fromstring(draw_flow(Flow(name="wide", tasks=tasks), "svg"))
    _, _, width, height = (float(each) for each in wide.get("viewBox", "").split())
    assert width > 20_000
    assert float(wide.get("width", 0)) <= 16_000
    assert float(wide.get("width", 0)) / float(wide.get("height", 0)) == pytest.approx(width / height, rel=0.01)


def test_an_unknown_format_gets_a_hint() -> None:
    with pytest.raises(UnknownName, match="Did you mean svg"):
        draw_flow(load_flow(RELEASE), "svgg")


# ── the schema for editors ──


def test_the_schema_takes_what_the_loader_takes() -> None:
    jsonschema.Draft202012Validator.check_schema(build_schema())
    validator = jsonschema.Draft202012Validator(build_schema())
    assert not list(validator.iter_errors(YAML(typ="safe").load(RELEASE)))
    properties = build_schema()["$defs"]["FlowTask"]["properties"]
    assert {"needs", "run", "command", "call", "with", "when", "foreach", "checks", "approval", "agent"} <= properties.keys()
    assert not {"item", "index"} & properties.keys()
    assert all("description" in value for value in properties.values())


@pytest.mark.parametrize(
    "task",
    [
        {"run": "a", "command": ["b"]},
        {},
        {"run": "a", "timeout": "soon"},
        {"run": "a", "retries": -1},
        {"run": "a", "checks": [{"file": "a", "glob": "b"}]},
        {"run": "a", "retry_on": ["oops"]},
        {"run": "a", "agent": {}},
        {"run": "a", "comand": []},
        {"run": "a", "outputs": "file"},
        {"run": "a", "backoff": {"bas": 1}},
        {"call": "no function"},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(task: dict[str, object]) -> None:
    document = {"name": "x", "tasks": {"a": task}}
    assert not jsonschema.Draft202012Validator(build_schema()).is_valid(document)
    with pytest.raises(Exception, match=r"\S"):
        load_flow(json.dumps(document) + "\n")
