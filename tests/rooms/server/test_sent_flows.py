"""Flows that clients send: read once while they are valid, and no more of them are kept than has bounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pointsman.errors import FlowInvalid, RequestInvalid, UnknownName
from pointsman.kernel.machine import Lifecycle
from pointsman.lifecycles import SHIPPED
from pointsman.server.sent_flows import LONGEST_REMEMBERED, MOST_REMEMBERED, SentFlows
from pointsman.settings import load_settings

TEXT = "name: a\ninputs: {who: {default: you}}\ntasks: {a: {run: 'echo ${{ inputs.who }}'}}"


async def find_none(name: str) -> Lifecycle:
    raise UnknownName("lifecycle", name, SHIPPED)


@pytest.fixture
def flows(tmp_path: Path) -> SentFlows:
    return SentFlows(load_settings(tmp_path, {}, {}), find_none)


async def test_a_text_is_read_once_and_its_run_depends_on_the_inputs(flows: SentFlows) -> None:
    sent = await flows.load(TEXT)
    assert await flows.load(TEXT) is sent
    plain = await flows.build(sent, {})
    assert await flows.build(sent, {}) is plain
    assert (await flows.build(sent, {"who": "me"})).payload["inputs"] == {"who": "me"}
    assert plain.payload["inputs"] == {"who": "you"}


async def test_an_invalid_text_is_refused_each_time(flows: SentFlows) -> None:
    for _ in range(2):
        with pytest.raises(FlowInvalid):
            await flows.load("name: a\ntasks: {a: {needs: [b], run: x}}")
        with pytest.raises(RequestInvalid):
            await flows.load("name: a\nlifecycle: /etc/passwd\ntasks: {a: {run: x}}")


async def test_only_some_short_texts_are_kept(flows: SentFlows) -> None:
    used, unused = await flows.load(TEXT), await flows.load(f"{TEXT}\n")
    for number in range(MOST_REMEMBERED):
        await flows.load(f"name: n{number}\ntasks: {{a: {{run: x}}}}")
        assert await flows.load(TEXT) is used
    assert await flows.load(f"{TEXT}\n") is not unused
    long = f"{TEXT}\n# {'x' * LONGEST_REMEMBERED}"
    assert await flows.load(long) is not await flows.load(long)


async def test_the_plan_is_written_where_the_lifecycle_wants_it_and_a_disk_that_takes_none_stops_nothing(
    flows: SentFlows, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, sent = await flows.load(TEXT), await flows.load(f"lifecycle: orchestrated\n{TEXT}")
    await flows.write_plan(plain, "run_0")
    await flows.write_plan(sent, "run_1")
    folder = tmp_path / ".pointsman" / "runs"
    assert not (folder / "run_0").exists()
    assert json.loads((folder / "run_1" / "plan.json").read_text())["task_count"] == 1
    (folder / "run_2").write_text("a file in the place of the folder")
    await flows.write_plan(sent, "run_2")
    assert "the plan of run run_2 cannot be written" in caplog.text
