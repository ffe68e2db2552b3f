"""Reading, checking and building a flow takes as much work for each task, however many there are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from pointsman.errors import FlowInvalid
from pointsman.flows import build_run
from pointsman.flows.load import load_with_lifecycle
from pointsman.flows.plan import describe_files

SHAPES: dict[str, Callable[[int, int], str]] = {
    "flat": lambda _, __: "{run: a}",
    "a chain": lambda at, _: f"{{run: a, needs: [t{at - 1}]}}" if at else "{run: a}",
    "a fan": lambda at, _: "{run: a, needs: t0}" if at else "{run: a}",
    "one that waits for all": lambda at, many: (
        f"{{run: a, needs: [{', '.join(f't{i}' for i in range(many - 1))}]}}" if at == many - 1 else "{run: a}"
    ),
    "a chain of results": lambda at, _: (
        f"{{run: 'a ${{{{ tasks.t{at - 1}.outputs }}}}', needs: [t{at - 1}]}}" if at else "{run: a}"
    ),
    "misspelt needs": lambda at, many: f"{{run: a, needs: u{many}x{at}}}",
    "misspelt results": lambda at, many: f"{{run: 'a ${{{{ tasks.u{many}x{at}.outputs }}}}'}}",
    "unknown keys": lambda at, many: f"{{run: a, key{many}x{at}: 1}}",
    "invalid values": lambda *_: "{run: a, retries: many}",
    "invalid kinds": lambda *_: "{run: [a], shell: bash}",
    "no kinds": lambda *_: "{needs: []}",
    "invalid checks": lambda *_: "{run: a, checks: [{exit_code: x}]}",
}


def count_calls(text: str) -> int:
    """How many functions are called, those in C included, until the run can be submitted or all findings are there."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    former = sys.getprofile()
    sys.setprofile(count)
    try:
        with suppress(FlowInvalid):
            flow, lifecycle = load_with_lifecycle(text)
            build_run(flow, {}, directory="/", lifecycle=lifecycle)
            describe_files(flow)
    finally:
        sys.setprofile(former)
    return calls


@pytest.mark.parametrize(("shape", "order"), [*((shape, "") for shape in SHAPES), ("flat", "ordered: true\n")])
def test_the_work_for_a_flow_grows_with_its_tasks(shape: str, order: str) -> None:
    def write(many: int) -> str:
        tasks = "".join(f"  t{at}: {SHAPES[shape](at, many)}\n" for at in range(many))
        return f"name: large\n{order}tasks:\n{tasks}"

    count_calls(write(2))  # builds the models
    few, many, more = (count_calls(write(count)) for count in (100, 200, 600))
    assert more - many < 1.2 * 4 * (many - few), (few, many, more)


def test_of_very_many_unknown_names_only_the_first_have_suggestions() -> None:
    tasks = "".join(f"  t{at}: {{run: a, needs: [x{at}]}}\n" for at in range(200))
    with pytest.raises(FlowInvalid) as refused:
        load_with_lifecycle(f"name: f\ntasks:\n{tasks}")
    assert len(refused.value.findings) == 200
    first, *_, last = refused.value.findings
    assert first.advice.startswith("Known: t1, t2, ")
    assert first.advice.endswith(", t100, and 99 more.")
    assert last.advice == "Fix the other findings first."
