"""The same flow in Python: the same checks, and the run that becomes of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pointsman.engine.operation import validate
from pointsman.engine.operations.runs import SubmitRun
from pointsman.errors import Finding, FlowInvalid, RequestInvalid
from pointsman.flows import Backoff, Check, Flow, FlowTask, Input, Outputs, build_run, build_subtasks, check_inputs, load_flow
from pointsman.flows.build import complete_payload, parent_of
from pointsman.flows.check import check_flow
from pointsman.flows.model import read_task


@dataclass(frozen=True)
class Profile:
    retry_on_failure: bool = True
    expected_exit_codes: tuple[int, ...] = (0,)


def flow(**tasks: FlowTask) -> Flow:
    return Flow(name="x", tasks=tasks)


def findings(invalid: Flow) -> tuple[Finding, ...]:
    with pytest.raises(FlowInvalid) as caught:
        check_flow(invalid)
    return caught.value.findings


def test_python_and_yaml_give_the_same_flow() -> None:
    written = load_flow("""\
name: release
inputs: {version: {type: string}, dry: false}
defaults: {retries: 2}
tasks:
  build: {command: [make, "${{ inputs.version }}"], outputs: {file: dist.json}, backoff: 5s}
  publish: {needs: [build], run: "upload", when: not inputs.dry, checks: [{exit_code: 0}], budget_usd: 0.5}
""")
    built = Flow(
        name="release",
        inputs={"version": Input(type="string"), "dry": Input(default=False)},
        defaults={"retries": 2},  # type: ignore[arg-type]
        tasks={
            "build": FlowTask(
                command=("make", "${{ inputs.version }}"),
                outputs=Outputs(from_="file", file="dist.json"),
                backoff=Backoff(base=5),
            ),
            "publish": FlowTask(
                needs=("build",),
                run="upload",
                when="not inputs.dry",
                checks=(Check(exit_code=(0,)),),
                budget_usd=Decimal("0.5"),
            ),
        },
    )
    assert built.model_dump() == written.model_dump()
    assert build_run(built, {"version": "1"}, directory="/p") == build_run(written, {"version": "1"}, directory="/p")


def test_a_shape_that_cannot_be_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValidationError, match="must be a duration"):
        FlowTask(run="a", timeout="soon")
    with pytest.raises(ValidationError, match="must be text"):
        FlowTask(agent={"model": "x"})
    with pytest.raises(ValidationError):
        FlowTask(run="a").retries = 5


def test_the_same_checks_name_paths_instead_of_lines() -> None:
    found = findings(flow(a=FlowTask(run="x ${{ inputs.y }}", needs=("b",)), b=FlowTask(needs=("a", "c"))))
    assert {(finding.rule, str(finding.place)) for finding in found} == {
        ("action", "tasks.b"),
        ("unknown-task", "tasks.b.needs[1]"),
        ("circle", "tasks.a.needs[0]"),
        ("expression", "tasks.a.run"),
    }
    with pytest.raises(FlowInvalid, match=r"^tasks\.a: Task a does nothing\. \[action\]"):
        build_run(flow(a=FlowTask()), {}, directory="/p")


def test_data_that_json_cannot_hold_is_refused() -> None:
    for value in (float("nan"), 2**70, {"deep": "\ud800"}):
        assert [finding.rule for finding in findings(flow(a=FlowTask(call="m:f", with_={"x": value})))] == ["too-large"]


def test_a_run_has_what_the_flow_says() -> None:
    task = FlowTask(
        command=("x",),
        needs_capabilities=("gpu",),
        tool="curl",
        priority=5,
        critical=False,
        retries=3,
        timeout=60,
        budget_usd=Decimal("1.5"),
        checks=(Check(file="a"),),
        backoff=Backoff(base=2, factor=3, max=10, jitter=0),
    )
    declared = Flow(
        name="x",
        env={"A": "1"},
        timeout=100,
        retries=1,
        budget_usd=Decimal(9),
        tasks={"t": task, "u": FlowTask(run="y", needs=("t",))},
    )
    run = build_run(declared, {}, directory="/project", tools={"curl": Profile(retry_on_failure=False)})
    validate(SubmitRun(run))
    assert run.payload == {
        "flow": "x",
        "file": None,
        "directory": "/project",
        "inputs": {},
        "env": {"A": "1"},
    }
    assert (run.name, run.lifecycle, run.timeout_seconds, run.max_retries, run.budget_usd) == (
        "x",
        "standard",
        100.0,
        1,
        Decimal(9),
    )
    first, second = run.tasks
    assert (first.tool, first.capabilities, first.priority, first.critical, first.checks) == ("curl", ("gpu",), 5, False, True)
    assert (first.max_retries, first.timeout_seconds, first.budget_usd, first.retry_on_failure) == (
        3,
        90,
        Decimal("1.5"),
        False,
    )
    assert (first.backoff.base_seconds, first.backoff.factor, first.backoff.max_seconds, first.backoff.jitter) == (2, 3, 10, 0)
    assert second.depends_on == ("t",)
    assert read_task(first.payload) == task


def test_an_ordered_flow_becomes_an_ordered_run() -> None:
    run = build_run(
        Flow(name="x", ordered=True, lifecycle="approval", tasks={n: FlowTask(run="a") for n in "cab"}), {}, directory="/p"
    )
    validate(SubmitRun(run))
    assert run.ordered
    assert [task.name for task in run.tasks] == ["c", "a", "b"]
    assert not any(task.depends_on for task in run.tasks)


def test_defaults_are_merged_and_the_task_has_the_last_word() -> None:
    declared = Flow.model_validate(
        {
            "name": "x",
            "defaults": {"retries": 3, "env": {"A": "1", "B": "1"}, "timeout": "5s", "mode": "thread"},
            "tasks": {"a": {"run": "x", "retries": 0, "env": {"B": "2"}, "timeout": None}, "b": {"call": "m:f"}},
        }
    )
    assert declared.task("a").payload() == {"run": "x", "env": {"A": "1", "B": "2"}, "retries": 0}
    assert declared.task("b").payload() == {
        "call": "m:f",
        "retries": 3,
        "env": {"A": "1", "B": "1"},
        "timeout": 5,
        "mode": "thread",
    }


def test_exit_codes_that_were_said_stay_said() -> None:
    """A tool's own codes count only where the task says nothing."""
    assert FlowTask(run="x", expected_exit_codes=(0,)).payload() == {"run": "x", "expected_exit_codes": [0]}
    assert "expected_exit_codes" not in FlowTask(run="x").payload()
    assert "expected_exit_codes" in read_task({"run": "x", "expected_exit_codes": 0}).model_fields_set


def test_a_fan_out_is_one_task_and_its_subtasks_are_added_later() -> None:
    declared = flow(
        a=FlowTask(run="x", outputs=Outputs(from_="stdout")),
        b=FlowTask(
            run="y ${{ item }}",
            needs=("a",),
            foreach="tasks.a.outputs",
            when="true",
            retries=2,
            checks=(Check(file="f"),),
            tool="t",
        ),
    )
    tools = {"t": Profile(retry_on_failure=False)}
    run = build_run(declared, {}, directory="/p", tools=tools)
    parent = run.tasks[1]
    assert (parent.depends_on, parent.checks, parent.tool, parent.max_retries) == (("a",), False, None, 0)
    parts = build_subtasks("b", "task_1", read_task(parent.payload), [None, {"k": 1}], tools=tools)
    assert [part.name for part in parts] == ["b[0]", "b[1]"]
    assert all(
        (part.parent, part.depends_on, part.checks, part.tool, part.max_retries) == ("b", (), True, "t", 2) for part in parts
    )
    assert not parts[0].retry_on_failure
    # The rest is stored once, with the task itself.
    assert [part.payload for part in parts] == [
        {"subtask_of": "task_1", "item": None, "index": 0},
        {"subtask_of": "task_1", "item": {"k": 1}, "index": 1},
    ]
    assert [parent_of(part.payload) for part in (parent, *parts)] == [None, "task_1", "task_1"]
    whole = complete_payload(parts[1].payload, parent.payload)
    assert whole == {"run": "y ${{ item }}", "retries": 2, "checks": [{"file": "f"}], "tool": "t", "item": {"k": 1}, "index": 1}
    assert read_task(whole).item == {"k": 1}


def test_a_tool_that_nobody_described_is_refused() -> None:
    with pytest.raises(FlowInvalid, match=r"tasks\.a\.tool: There is no tool 'crul'\. \[tool\]\n +Did you mean curl\?"):
        build_run(flow(a=FlowTask(command=("x",), tool="crul")), {}, directory="/p", tools={"curl": Profile()})


INPUTS = Flow.model_validate(
    {
        "name": "x",
        "tasks": {"a": {"run": "x"}},
        "inputs": {
            "text": {"type": "string", "description": "Some text"},
            "count": 3,
            "share": 0.5,
            "sure": True,
            "words": ["a"],
            "map": {"type": "object", "default": {}},
            "level": {"default": "low", "choices": ["low", "high"]},
            "maybe": {"type": "integer", "default": None},
        },
    }
)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("text", "5", "5"),
        ("count", "-7", -7),
        ("share", "2", 2),
        ("share", "1e3", 1000.0),
        ("sure", "no", False),
        ("sure", "TRUE", True),
        ("words", "a, b", ["a", "b"]),
        ("words", "", []),
        ("words", '["a,b", 1]', ["a,b", 1]),
        ("map", '{"a": 1}', {"a": 1}),
        ("level", "high", "high"),
        ("maybe", "4", 4),
        ("maybe", None, None),
        ("count", 5, 5),
        ("words", ["z"], ["z"]),
    ],
)
def test_inputs_are_read_by_their_type(name: str, given: Any, value: object) -> None:
    values = check_inputs(INPUTS, {"text": "t", name: given})
    assert values[name] == value
    assert check_inputs(INPUTS, values) == values


def test_every_problem_with_the_inputs_is_said_at_once() -> None:
    wrong = {
        "count": "x",
        "share": "nan",
        "sure": "maybe",
        "words": "[1",
        "map": "[]",
        "level": "mid",
        "cuont": "1",
        "maybe": True,
    }
    mapped = {"text": "t", "words": '{"a": 1}'}
    with pytest.raises(RequestInvalid, match="must be a list"):
        check_inputs(INPUTS, mapped)
    with pytest.raises(RequestInvalid) as caught:
        check_inputs(INPUTS, wrong)
    said = {problem.path: problem.message for problem in caught.value.problems}
    assert said.keys() == {f"inputs.{name}" for name in (*wrong, "text")}
    assert "Did you mean count?" in said["inputs.cuont"]
    assert said["inputs.text"] == "It is required. Pass `-i text=…`. (Some text)"
    assert "low" in said["inputs.level"]


@given(
    st.dictionaries(
        st.sampled_from([*INPUTS.inputs, "other"]), st.text(max_size=20) | st.integers() | st.none() | st.lists(st.integers())
    )
)
def test_no_input_is_more_than_refused(given_values: dict[str, Any]) -> None:
    with suppress(RequestInvalid):
        assert check_inputs(INPUTS, given_values).keys() == INPUTS.inputs.keys()
