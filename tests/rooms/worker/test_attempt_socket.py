"""The socket of a worker: what an attempt may ask for, who may ask, and what floods and garbage do."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.mcp_client import open_client
from tests.rooms.worker.shop import PATIENCE_SECONDS, Shop, open_shop, outputs, until_there
from tests.rooms.worker.test_people import say, until_asked

from pointsman.engine.questions import MAX_ANSWER
from pointsman.store.rows import Run
from pointsman.worker.attempt_socket import MAX_CONNECTIONS

TOOLS = ["ask", "add_subtasks", "report_progress", "report_cost", "read_upstream", "finish"]
AGENT = """
    name: inside
    lifecycle: {lifecycle}
    tasks:
      first: {{run: 'echo "[1, 2]" > $POINTSMAN_OUTPUT'}}
      agent:
        needs: [first]
        run: |
          echo "$POINTSMAN_SOCKET $POINTSMAN_TOKEN" > $POINTSMAN_EPOCH.door
          while [ ! -e $POINTSMAN_EPOCH.end ]; do sleep 0.02; done
    """
SUBTASKS = [{"name": "one", "run": "echo one"}, {"name": "two", "run": "true", "needs": ["one"]}]
WRONG = {
    ("ask", '{"text": " "}'): "Its question has no text.",
    ("ask", '{"text": "Which?", "choices": ["a", "\\u001b[31mb"]}'): (
        "A choice or the default of its question has control characters, which no person can see or type."
    ),
    ("ask", '{"text": "a\\u0000b"}'): "text: It contains a NUL character.",
    ("ask", '{"text": 7}'): "text: Must be text, not 7.",
    ("ask", '{"text": "Where?", "choices": "east"}'): "choices: Must be a list, not 'east'.",
    ("ask", '{"text": "Where?", "choices": ["east"], "default": "west"}'): "'west' is not one of the choices: east.",
    ("ask", "{}"): "text: It is missing.",
    ("add_subtasks", '{"tasks": [7]}'): "tasks[0]: ",
    (
        "add_subtasks",
        '{"tasks": [{"name": "p", "runn": "true"}]}',
    ): "tasks[0]: `runn` is not a key of task p. Did you mean run?",
    ("add_subtasks", '{"tasks": [{"name": "p", "run": "true", "needs": "no"}]}'): "It needs 'no', but no subtask before it",
    ("add_subtasks", '{"tasks": [{"name": "p", "run": "true", "tool": "no"}]}'): "There is no tool 'no'.",
    ("report_progress", '{"text": "\\n"}'): "The report of progress has no text.",
    ("report_cost", '{"usd": -1}'): "usd: '-1' is not an amount in dollars, such as 0.25.",
    ("report_cost", '{"usd": "many"}'): "usd: 'many' is not an amount in dollars, such as 0.25.",
    ("read_upstream", '{"task": "b"}'): "This task does not need 'b', so it cannot read its output. It needs: first.",
    ("finish", '{"outputs": 1}'): "outputs: There is no such field. Did you mean output?",
    ("finsh", "{}"): "There is no tool 'finsh'. Did you mean finish?",
}
"""What is said of a call, by its tool and arguments."""
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


def name_door(door: tuple[str, str]) -> dict[str, str]:
    return dict(zip(("POINTSMAN_SOCKET", "POINTSMAN_TOKEN"), door, strict=True))


@pytest.mark.parametrize(
    ("database_url", "lifecycle"), [("sqlite", "standard"), ("postgres", "agent")], indirect=["database_url"]
)
async def test_an_agent_asks_splits_reports_and_finishes_with_the_public_client(
    database_url: str, tmp_path: Path, lifecycle: str
) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit(AGENT.format(lifecycle=lifecycle))
        async with shop.working(run):
            if lifecycle == "agent":
                await say(shop, (await until_asked(shop, run, "first"))["first"], "accept")
            async with open_client(env=name_door(await read_door(tmp_path, "1"))) as agent:
                assert await agent.list_tools() == TOOLS
                await agent.call("report_progress", text="reading\x1b[2J\nwhat is there")
                upstream = await agent.call("read_upstream")
                await agent.call("report_cost", usd=0.25)
                await agent.call("add_subtasks", tasks=[{"name": "early", "run": "true"}])
                asked = await agent.call("ask", text="Which colour?", choices=["red", "blue"])
                second = await agent.be_refused("ask", text="Another one?")
                early = await agent.be_refused("finish", output="too early")
                (tmp_path / "1.end").touch()
            item = (await until_asked(shop, run, "agent"))["agent"]
            assert (item.waiting.kind, item.text, item.choices) == ("answer", "Which colour?", ("red", "blue"))
            log = read_log(item.log_path)
            await say(shop, item, "answer", answer="blue")
            async with open_client(env=name_door(await read_door(tmp_path, "2"))) as agent:
                assert await agent.call("ask", text="Which colour?", choices=["red", "blue"]) == {"answer": "blue"}
                await agent.call("report_cost", usd=0.25)
                await agent.call("add_subtasks", tasks=SUBTASKS)
                await agent.call("finish", output={"colour": "blue", "upstream": upstream})
                late = await agent.be_refused("ask", text="What else?")
                (tmp_path / "2.end").touch()
            if lifecycle == "agent":
                await say(shop, (await until_asked(shop, run, "agent"))["agent"], "accept")
            await shop.until_done(run)
        tasks = await shop.tasks(run)
    assert asked["next"].endswith("The subtasks that you have added do not start: add them again after the answer.")
    assert second.startswith("This attempt has asked already: 'Which colour?'.")
    assert early.startswith("A question waits for an answer")
    assert late.startswith("The work is finished")
    assert "progress: reading�[2J what is there" in log.splitlines()
    assert upstream == {"tasks": {"first": {"outputs": [1, 2], "skipped": False}}}
    assert {name: task.outcome for name, task in tasks.items()} == dict.fromkeys(
        ("first", "agent", "agent/one", "agent/two"), "success"
    )
    assert outputs(tasks["agent"]) == {"colour": "blue", "upstream": upstream}
    assert str(tasks["agent"].cost_usd.normalize()) == "0.5"


async def test_wrong_input_is_a_tool_error_and_the_server_goes_on(tmp_path: Path) -> None:
    async with open_shop(f"sqlite:///{tmp_path}/state.db", tmp_path) as shop:
        run = await shop.submit(WAITING)
        async with shop.working(run):
            door = await read_door(tmp_path, "a")
            async with open_client(env=name_door(door)) as agent:
                assert set(await agent.list_tools()) - await agent.list_harmless() == {"add_subtasks"}
                said = {key: await agent.be_refused(key[0], **json.loads(key[1])) for key in WRONG}
                huge = await agent.be_refused("finish", output="x" * 2_000_000)
                long = await agent.call("report_progress", text="x" * 1_000_000)
                await agent.call("finish", output="a\0b")
                (tmp_path / "a.end").touch()
                await until_refused(door, "read_upstream")
                stale = await agent.be_refused("finish")
            await end(tmp_path, shop, run)
        tasks = await shop.tasks(run)
        async with open_client("--read-only", env=name_door(door)) as agent:
            assert await agent.list_tools() == ["read_upstream"]
            assert "There is no tool 'finish'" in await agent.be_refused("finish")
            assert "The worker of this attempt does not answer" in await agent.be_refused("read_upstream")
    assert "its attempt has ended" in stale
    assert "larger than 1 MiB" in huge
    assert long == {"progress": "x" * 499 + "…"}
    assert not {key: text[:200] for key, text in said.items() if WRONG[key] not in text}
    assert {task.outcome for task in tasks.values()} == {"success"}
    assert (str(tasks["a"].cost_usd.normalize()), outputs(tasks["a"])) == ("0", "a\0b")


async def test_an_answer_reaches_the_agent_as_it_was_given_whatever_is_in_it(database_url: str, tmp_path: Path) -> None:
    answer = "--flag \"quoted\" 'single' `ticks` $HOME\n\x1b[2J\r\n\tü😀\\".ljust(MAX_ANSWER, "x")
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit(AGENT.format(lifecycle="standard"))
        async with shop.working(run):
            first = name_door(await read_door(tmp_path, "1"))
            async with open_client(env=first) as agent:
                await agent.call("ask", text="What now?")
                (tmp_path / "1.end").touch()
            await say(shop, (await until_asked(shop, run, "agent"))["agent"], "answer", answer=answer)
            async with open_client(env=name_door(await read_door(tmp_path, "2"))) as agent:
                assert (await agent.call("ask", text="What now?"))["answer"] == answer
                async with open_client(env=first) as stale:
                    assert "its attempt has ended" in await stale.be_refused("finish", output="of the first attempt")
                await agent.call("finish", output="of the second attempt")
                (tmp_path / "2.end").touch()
            await shop.until_done(run)
        assert outputs((await shop.tasks(run))["agent"]) == "of the second attempt"


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


async def test_garbage_and_floods_on_the_socket_hurt_nobody_else(tmp_path: Path) -> None:
    async with open_shop(f"sqlite:///{tmp_path}/state.db", tmp_path) as shop:
        run = await shop.submit(WAITING)
        async with shop.working(run):
            path, token = await read_door(tmp_path, "a")
            assert "The request is invalid" in (await send(path, b"hello\n"))["error"]
            assert "The request is invalid" in (await send(path, b'{"token": 1, "tool": "finish"}\n'))["error"]
            assert "error" in await send(path, b'{"token": "\xff\n')
            assert "larger than 1 MiB" in (await send(path, b"x" * 3_000_000 + b"\n"))["error"]
            idle = [await asyncio.open_unix_connection(path) for _ in range(MAX_CONNECTIONS + 8)]
            assert "result" in await call((path, token), "read_upstream")
            assert await idle[0][0].read() == b""
            for _, writer in idle:
                writer.close()
            await end(tmp_path, shop, run)
