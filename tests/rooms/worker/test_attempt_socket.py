"""The socket of a worker: what an attempt may ask for, who may ask, and what floods and garbage do."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.worker import inside_agent
from tests.rooms.worker.shop import PATIENCE_SECONDS, Shop, open_shop, output, outputs, until_there
from tests.rooms.worker.test_people import say, until_asked

from pointsman.store.rows import Run

AGENT = f"[{sys.executable}, {inside_agent.__file__}]"
WAITING = """
    name: waiting
    tasks:
      first: {run: 'echo 7 > $POINTSMAN_OUTPUT'}
      hidden: {run: 'echo 8 > $POINTSMAN_OUTPUT'}
      a:
        needs: [first]
        run: |
          echo "$POINTSMAN_SOCKET $POINTSMAN_TOKEN" > a.door
          while [ ! -e a.end ]; do sleep 0.02; done
      b:
        run: |
          echo "$POINTSMAN_SOCKET $POINTSMAN_TOKEN" > b.door
          while [ ! -e b.end ]; do sleep 0.02; done
    """


async def read_door(folder: Path, task: str) -> tuple[str, str]:
    """Where a running task finds its worker, and its token."""
    await until_there(folder / f"{task}.door")
    path, token = (folder / f"{task}.door").read_text().split()
    return path, token


async def send(path: str, data: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(path, limit=1 << 24)
    try:
        writer.write(data)
        return dict(json.loads(await reader.readline()))
    finally:
        writer.close()


async def call(door: tuple[str, str], tool: str, **arguments: Any) -> dict[str, Any]:
    path, token = door
    return await send(path, json.dumps({"token": token, "tool": tool, "arguments": arguments}).encode() + b"\n")


async def until_refused(door: tuple[str, str], tool: str, **arguments: Any) -> str:
    """Why the worker no longer answers that."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "error" not in (reply := await call(door, tool, **arguments)):  # noqa: ASYNC110 - the worker tells nobody
            await asyncio.sleep(0.01)
    return str(reply["error"])


def read_log(path: str | None) -> str:
    return Path(path or "").read_text()


async def end(folder: Path, shop: Shop, run: Run) -> None:
    for task in ("a", "b"):
        (folder / f"{task}.end").touch()
    await shop.until_done(run)


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
async def test_an_agent_asks_splits_reports_and_finishes_with_the_public_client(
    database_url: str, tmp_path: Path, lifecycle: str
) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit(f"""
            name: inside
            lifecycle: {lifecycle}
            tasks:
              first: {{run: 'echo "[1, 2]" > $POINTSMAN_OUTPUT'}}
              hidden: {{run: 'echo 8 > $POINTSMAN_OUTPUT'}}
              agent: {{needs: [first], command: {AGENT}}}
            """)
        async with shop.working(run):
            if lifecycle == "agent":
                for name in ("first", "hidden"):
                    await say(shop, (await until_asked(shop, run, name))[name], "accept")
            item = (await until_asked(shop, run, "agent"))["agent"]
            assert (item.waiting.kind, item.text, item.choices) == ("answer", "Which colour?", ("red", "blue"))
            first_log = read_log(item.log_path)
            await say(shop, item, "answer", answer="blue")
            if lifecycle == "agent":
                await say(shop, (await until_asked(shop, run, "agent"))["agent"], "accept")
            await shop.until_done(run)
        tasks = await shop.tasks(run)
    first, second = (json.loads(text.splitlines()[-1]) for text in (first_log, str(output(tasks["agent"])["tail"])))
    assert first["tools"] == ["ask", "add_subtasks", "report_progress", "report_cost", "read_upstream", "finish"]
    assert [each["refused"] for each in first["wrong"]] == [
        "Its question has no text.",
        "'west' is not one of the choices: east.",
        "tasks[0]: `runn` is not a key of task part. Did you mean run?",
        "tasks[0]: It needs 'nothing', but no subtask before it has that name.",
        "usd: '-1' is not an amount in dollars, such as 0.25.",
        "This task does not need 'hidden', so it cannot read its output. It needs: first.",
        "outputs: There is no such field. Did you mean output?",
    ]
    assert first["second"]["refused"].startswith("This attempt has asked already: 'Which colour?'.")
    assert first["finish"]["refused"].startswith("A question waits for an answer")
    assert "progress: reading�[2J what is there" in first_log.splitlines()
    upstream = {"tasks": {"first": {"outputs": [1, 2], "skipped": False}}}
    assert (first["upstream"], second["asked"]) == (upstream, {"answer": "blue"})
    assert second["late"]["refused"].startswith("The work is finished")
    assert {name: task.outcome for name, task in tasks.items()} == dict.fromkeys(
        ("first", "hidden", "agent", "agent/one", "agent/two"), "success"
    )
    assert outputs(tasks["agent"]) == {"colour": "blue", "upstream": upstream}
    assert str(tasks["agent"].cost_usd.normalize()) == "0.5"


async def test_a_token_is_good_for_its_own_attempt_while_that_runs(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit(WAITING)
        async with shop.working(run) as worker:
            a, b = await read_door(tmp_path, "a"), await read_door(tmp_path, "b")
            assert a[0] == b[0]
            assert (Path(a[0]).parent.stat().st_mode & 0o777, len(os.fsencode(a[0])) < 104) == (0o700, True)
            assert (await call(a, "read_upstream"))["result"]["tasks"] == {"first": {"outputs": 7, "skipped": False}}
            assert (await call(b, "read_upstream"))["result"]["tasks"] == {}
            assert "does not need 'first'" in (await call(b, "read_upstream", task="first"))["error"]
            assert (await call(b, "report_progress", text="half way"))["result"] == {"progress": "half way"}
            task = (await shop.tasks(run))["b"]
            assert worker.last_line(task.id) == "progress: half way"
            assert "token is not valid" in (await call((a[0], "0" * 32), "finish"))["error"]
            (tmp_path / "a.end").touch()
            assert "its attempt has ended" in await until_refused(a, "report_cost", usd=1)
            await shop.engine.signal_task(task.id, "cancel")
            late = await until_refused(b, "report_progress", text="still here")
            assert "is stopping this attempt: it no longer holds its task" in late or "its attempt has ended" in late
            await shop.until_done(run)
        assert not Path(a[0]).parent.exists()
