"""`pointsman mcp` for a person's own agent: what it shows, what it decides and in whose name, and what its output holds."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.mcp_client import PATIENCE_SECONDS, Client, open_client
from tests.rooms.worker.shop import Shop, open_shop

from pointsman.store.rows import Run

TOOLS = ["list", "inspect", "logs", "inbox", "submit", "decide"]
FLOW = """
name: release
inputs: {who: {type: string}}
tasks:
  build: {run: "echo building for ${{ inputs.who }}; echo 7 > $POINTSMAN_OUTPUT"}
  gate: {needs: build, approval: {prompt: "Ship it?", by: [ada]}}
  ship: {needs: gate, run: "echo shipped"}
"""


@asynccontextmanager
async def open_person(url: str, folder: Path, *options: str) -> AsyncIterator[Client]:
    async with open_client(*options, "--store", url, "-C", str(folder)) as client:
        yield client


async def work(shop: Shop, run_id: str, until: str) -> Run:
    """Let a worker work on a run until it is in this state."""
    run = await shop.engine.get_run(run_id)
    async with shop.working(run), asyncio.timeout(PATIENCE_SECONDS):
        while (run := await shop.engine.get_run(run_id)).state != until:  # noqa: ASYNC110 - it is watched through the database
            await asyncio.sleep(0.02)
    return run


async def test_an_agent_submits_looks_and_decides_in_the_name_of_its_person(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "release.yaml").write_text(FLOW)
    async with open_shop(database_url, tmp_path) as shop, open_person(database_url, tmp_path, "--as", "ada") as agent:
        assert await agent.list_tools() == TOOLS
        assert (await agent.call("list"), await agent.call("inbox")) == ({"runs": []}, {"items": []})
        submitted = await agent.call("submit", path="release.yaml", inputs={"who": "us"}, reason="it is time", request_id="one")
        again = await agent.call("submit", path="release.yaml", inputs={"who": "us"}, reason="it is time", request_id="one")
        assert (submitted["run_id"], submitted["served"]) == (again["run_id"], False)
        assert "pointsman resume" in submitted["next"][0]
        run = await work(shop, submitted["run_id"], "WAITING")
        (item,) = (await agent.call("inbox"))["items"]
        assert (item["task"], item["text"], item["by"]) == ("gate", "Ship it?", ["ada"])
        shown = {task["name"]: task for task in (await agent.call("inspect", run="latest"))["tasks"]}
        assert (shown["build"]["outputs"], shown["gate"]["state"]) == (7, "WAITING_APPROVAL")
        (log,) = (await agent.call("logs", run=run.id, task="build"))["logs"]
        assert (log["text"], log["attempt"], log["is_cut"]) == ("building for us", 1, False)
        decided = await agent.call("decide", run=run.id, task="gate", signal="approve", reason="ada said so")
        assert decided["task"]["state"] == "SUCCEEDED"
        await work(shop, run.id, "SUCCEEDED")
        assert [each["state"] for each in (await agent.call("list", limit=5))["runs"]] == ["SUCCEEDED"]
        moves = await shop.engine.list_history(decided["task"]["id"])
    assert ("ada", "ada said so") in [(move.actor, move.reason) for move in moves]


async def test_an_agent_has_the_rights_of_its_person_and_no_others(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        gate = "{name: g, tasks: {gate: {approval: {by: [ada]}}, work: {needs: gate, run: 'true'}}}"
        async with open_person(database_url, tmp_path, "--as", "bob") as bob:
            run_id = (await bob.call("submit", text=gate))["run_id"]
            assert "It is up to ada." in await bob.be_refused("decide", run=run_id, task="gate", signal="approve")
            assert "It is up to ada." in await bob.be_refused("decide", run=run_id, task="gate", signal="reject")
        async with open_person(database_url, tmp_path, "--as", "ada", "--read-only") as reader:
            assert await reader.list_tools() == [tool for tool in TOOLS if tool not in ("submit", "decide")]
            assert "There is no tool 'decide'" in await reader.be_refused("decide", run=run_id, task="gate", signal="approve")
        assert (await shop.engine.get_run(run_id)).state == "WAITING"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("submit", {}, "path: Give either `path` or `text`."),
    ("submit", {"path": "nothing.yaml"}, "No such file or directory"),
    ("submit", {"text": "name: ["}, "This is not YAML"),
    ("submit", {"text": "{name: x, tasks: {a: {runn: b}}}"}, "`runn` is not a key"),
    ("submit", {"text": "{name: x, tasks: {a: {run: b}}}", "inputs": {"y": 1}}, "has no input 'y'"),
    ("submit", {"text": "{name: x, tasks: {a: {run: b}}}", "inputs": [1]}, "inputs: Must be an object."),
    ("inspect", {"run": "none"}, "There is no run 'none'."),
    ("inspect", {}, "run: It is missing."),
    ("logs", {"run": "latest", "attempt": 1}, "attempt: It needs a `task`."),
    ("logs", {"run": "latest", "lines": 0}, "lines: Must be a whole number from 1 to 10000, not 0."),
    ("list", {"limit": "many"}, "limit: Must be a whole number"),
    ("decide", {"run": "latest", "signal": "aprove"}, "signal: Must be one of approve,"),
    ("decide", {"run": "latest", "task": "no", "signal": "cancel"}, "has no task 'no'"),
    ("decide", {"run": "latest", "task": "a", "signal": "accept"}, "a is QUEUED, which does not allow `accept`."),
    ("decide", {"run": "latest", "signal": "cancel", "reason": "a\0b"}, "reason: It contains a NUL character."),
    ("decide", {"run": "latest", "signal": "cancel", "resaon": "a"}, "resaon: There is no such field. Did you mean reason?"),
    ("decide", {"run": "latest", "signal": "cancel", "task_id": "a"}, "task_id: There is no such field. Did you mean task?"),
    (
        "decide",
        {"run": "latest", "task": "a", "signal": "cancel", "epoch": 7},
        "It is about attempt 7, but a is QUEUED after attempt 0.",
    ),
    ("subimt", {}, "There is no tool 'subimt'. Did you mean submit?"),
]


async def test_what_is_wrong_is_refused_in_words_and_the_server_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    async with open_person(url, tmp_path) as agent:
        assert "There are no runs in " in await agent.be_refused("inspect", run="latest")
        run = (await agent.call("submit", text="{name: x, tasks: {a: {run: b}}}"))["run_id"]
        said = [(tool, await agent.be_refused(tool, **arguments), wanted) for tool, arguments, wanted in WRONG]
        assert not [each for each in said if each[2] not in each[1]]
        long = "x" * 1_000_000
        decided = await agent.call("decide", run=run, signal="cancel", reason=long)
        assert (decided["run"]["state"], decided["run"]["reason"]) == ("CANCELED", long)
        assert "is CANCELED already" in await agent.be_refused("decide", run=run, signal="cancel")


async def test_logs_are_cut_at_their_beginning_and_shared_between_tasks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    loud = "{name: loud, tasks: {a: {run: 'seq 1 100000'}, b: {run: 'echo b'}}}"
    async with open_shop(url, tmp_path) as shop, open_person(url, tmp_path) as agent:
        run = await shop.submit(loud)
        await work(shop, run.id, "SUCCEEDED")
        (few, _) = (await agent.call("logs", run="latest", lines=2))["logs"]
        (many, other) = (await agent.call("logs", run="latest", lines=10_000))["logs"]
    assert (few["text"], few["is_cut"]) == ("99999\n100000", False)
    assert (many["is_cut"], len(many["text"]), many["text"].endswith("\n100000"), other["text"]) == (True, 50_000, True, "b")


@asynccontextmanager
async def open_server(folder: Path, **variables: str) -> AsyncIterator[Process]:
    """The server alone, for what no client of the protocol would send."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")} | variables
    command = [sys.executable, "-P", "-m", "pointsman", "mcp", "-C", str(folder / "below")]
    server = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environ, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=1 << 24
    )
    try:
        yield server
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


async def test_only_the_protocol_is_on_stdout_and_the_server_ends_with_its_input(tmp_path: Path) -> None:
    (tmp_path / "pointsman.toml").write_text("")
    (tmp_path / "below").mkdir()
    requests: list[tuple[str, dict[str, Any]]] = [
        ("initialize", HELLO),
        ("tools/list", {}),
        ("tools/call", {"name": "submit", "arguments": {"text": "{name: x, tasks: {a: {approval: true}}}"}}),
        ("tools/call", {"name": "decide", "arguments": {"run": "latest", "task": "a", "signal": "approve"}}),
        ("tools/call", {"name": "inspect", "arguments": {"run": "latest"}}),
        ("tools/call", {"name": "logs", "arguments": {"run": "latest"}}),
    ]
    lines = []
    async with open_server(tmp_path) as server, asyncio.timeout(PATIENCE_SECONDS):
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        for number, (method, params) in enumerate(requests, 1):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            server.stdin.write(json.dumps(request).encode() + b"\n")
            lines.append(json.loads(await server.stdout.readline()))
            if number == 1:
                server.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        server.stdin.close()
        assert await server.stdout.read() == b""
        assert await server.wait() == 0
        said = (await server.stderr.read()).decode()
    assert [(line["jsonrpc"], line["id"]) for line in lines] == [("2.0", number) for number in range(1, len(requests) + 1)]
    assert not any(line["result"].get("isError") for line in lines)
    assert "Project: " in said, "what is said to people goes to stderr"


@pytest.mark.parametrize("name", ["POINTSMAN_TOKEN", "POINTSMAN_SOCKET", "POINTSMAN_TASK_ID"])
async def test_work_that_has_lost_half_of_its_token_does_not_become_a_person(tmp_path: Path, name: str) -> None:
    (tmp_path / "below").mkdir()
    async with open_server(tmp_path, **{name: "x"}) as server, asyncio.timeout(PATIENCE_SECONDS):
        out, said = await server.communicate()
    assert (server.returncode, out) == (2, b"")
    assert "Inside a task, this command needs POINTSMAN_" in said.decode()
