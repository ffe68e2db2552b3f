"""What flows ask of people, with a real worker on both databases: questions, reviews, approvals and subtasks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.worker.shop import Shop, error, open_shop, outputs

from pointsman.engine.engine import TenantEngine
from pointsman.store.rows import Run, Task
from pointsman.views.inbox import InboxItem, list_inbox

PYTHON = """\
import pointsman

def deploy():
    where = pointsman.ask("Where?", choices=["east", "west"])
    size = pointsman.ask("How large?", schema={"type": "integer"})
    pointsman.add_task("tell", run="echo told")
    return {"where": where, "size": size}

def remember(answer=None):
    if answer is None:
        pointsman.ask("Who?")
    return answer
"""


async def until_asked(shop: Shop, run: Run, *names: str) -> dict[str, InboxItem]:
    """What waits for a person, once all of these tasks do."""
    async with asyncio.timeout(60):
        while True:
            items = {item.task: item for item in await list_inbox(shop.engine, await shop.engine.now())}
            if set(names) <= items.keys():
                return items
            tasks = await shop.tasks(run)
            assert (await shop.engine.get_run(run.id)).outcome is None, {name: error(task) for name, task in tasks.items()}
            await asyncio.sleep(0.02)


async def say(shop: Shop, item: InboxItem, signal: str, **words: Any) -> Task:
    engine: TenantEngine = shop.engine.for_tenant(actor="ada")
    return await engine.signal_task(item.task_id, signal, **words)


@pytest.mark.parametrize("lifecycle", ["standard", "supervised", "agent"])
async def test_a_task_that_leaves_a_question_goes_on_with_the_answer(database_url: str, tmp_path: Path, lifecycle: str) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit(f"""
            name: asking
            lifecycle: {lifecycle}
            tasks:
              a:
                expects: {{choices: [red, blue], default: blue}}
                run: |
                  echo "$POINTSMAN_SESSION" >> sessions
                  if [ -z "$POINTSMAN_ANSWER" ]; then echo 'Which colour?' > "$POINTSMAN_QUESTION"; exit 0; fi
                  echo "\\"$POINTSMAN_ANSWER\\"" > "$POINTSMAN_OUTPUT"
            """)
        async with shop.working(run):
            item = (await until_asked(shop, run, "a"))["a"]
            assert (item.waiting.kind, item.text, item.choices, item.default) == (
                "answer",
                "Which colour?",
                ("red", "blue"),
                "blue",
            )
            await say(shop, item, "answer", answer="red")
            if lifecycle == "agent":
                await say(shop, (await until_asked(shop, run, "a"))["a"], "accept")
            await shop.until_done(run)
        task = (await shop.tasks(run))["a"]
    assert (outputs(task), task.outcome, task.epoch) == ("red", "success", 2)
    first, second = (tmp_path / "sessions").read_text().split()
    assert first == second


async def test_python_asks_again_and_again_and_adds_subtasks(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(PYTHON)
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("""
            name: python
            tasks:
              deploy: {call: work:deploy}
              remember: {call: work:remember}
            """)
        async with shop.working(run):
            items = await until_asked(shop, run, "deploy", "remember")
            await say(shop, items["deploy"], "answer", answer="west")
            await say(shop, items["remember"], "answer", answer="Ada")
            items = await until_asked(shop, run, "deploy")
            assert items["deploy"].text == "How large?"
            await say(shop, items["deploy"], "answer", answer="3")
            await shop.until_done(run)
        tasks = await shop.tasks(run)
    assert outputs(tasks["deploy"]) == {"where": "west", "size": 3}
    assert outputs(tasks["remember"]) == "Ada"
    assert (tasks["deploy/tell"].outcome, tasks["deploy/tell"].depth) == ("success", 1)
    assert (tasks["deploy"].outcome, tasks["deploy"].epoch) == ("success", 3)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('echo \'{"text": "x", "choices": 3}\' > "$POINTSMAN_QUESTION"', "its question is invalid: "),
        ('echo \'{"text": "x", "schema": {"type": 5}}\' > "$POINTSMAN_QUESTION"', "an invalid schema at $.type"),
        ('echo \'{"name": "p"}\' > "$POINTSMAN_SUBTASKS"', "line 1 of its subtasks"),
        ('echo \'{"name": "p", "run": "x", "needs": "q"}\' > "$POINTSMAN_SUBTASKS"', "it needs 'q', but no subtask"),
        ('echo why > "$POINTSMAN_QUESTION"; exit 3', "exited with code 3"),
    ],
)
async def test_what_cannot_be_asked_or_added_fails_the_attempt(sqlite_url: str, tmp_path: Path, script: str, why: str) -> None:
    async with open_shop(sqlite_url, tmp_path) as shop:
        tasks = await shop.run_to_end(f"name: wrong\ntasks:\n  a:\n    run: |\n      {script}\n")
    assert why in error(tasks["a"])


async def test_where_no_task_can_ask_a_question_is_a_failure(sqlite_url: str, tmp_path: Path) -> None:
    async with open_shop(sqlite_url, tmp_path) as shop:
        tasks = await shop.run_to_end(
            'name: dumb\nlifecycle: pipeline\ntasks:\n  a:\n    run: echo why > "$POINTSMAN_QUESTION"\n'
        )
    assert error(tasks["a"]).startswith("The result cannot be recorded: pipeline.step is S_RUNNING: 'ask' is not allowed")


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
async def test_a_rejected_result_is_done_again_with_the_comment(database_url: str, tmp_path: Path, lifecycle: str) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit(f"""
            name: reviewed
            lifecycle: {lifecycle}
            tasks:
              a: {{review: true, run: 'echo "draft $POINTSMAN_COMMENT"; echo "\\"$POINTSMAN_COMMENT\\"" > "$POINTSMAN_OUTPUT"'}}
              b: {{needs: a, review: true, run: 'true'}}
            """)
        async with shop.working(run):
            item = (await until_asked(shop, run, "a"))["a"]
            assert (item.waiting.kind, item.tail, item.outputs) == ("review", "draft ", "")
            assert (await shop.tasks(run))["b"].epoch == 0
            await say(shop, item, "reject", comment="shorter")
            item = (await until_asked(shop, run, "a"))["a"]
            while item.attempts == 1:
                item = (await until_asked(shop, run, "a"))["a"]
            assert (item.tail, item.outputs) == ("draft shorter", "shorter")
            await say(shop, item, "accept")
            await say(shop, (await until_asked(shop, run, "b"))["b"], "accept")
            await shop.until_done(run)
        assert (await shop.engine.get_run(run.id)).outcome == "success"


async def test_a_gate_of_a_flow_says_what_to_decide_and_no_worker_takes_it(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit(
            """
            name: gated
            lifecycle: approval
            inputs: {version: "1"}
            tasks:
              build: {run: "echo 7", outputs: stdout}
              ship: {needs: build, approval: {prompt: "Ship ${{ inputs.version }} with ${{ tasks.build.outputs }}?", by: ada}}
              after: {needs: ship, run: "true"}
            """,
            version="1.4",
        )
        async with shop.working(run):
            item = (await until_asked(shop, run, "ship"))["ship"]
            assert (item.text, item.by) == ("Ship 1.4 with 7?", ("ada",))
            assert [step.operation for step in item.steps] == ["approve", "cancel"]
            await say(shop, item, "approve")
            await shop.until_done(run)
        tasks = await shop.tasks(run)
    assert [task.outcome for task in tasks.values()] == ["success"] * 3
    assert tasks["ship"].epoch == 0


async def test_subtasks_nest_no_deeper_than_five_and_a_failed_one_fails_those_above(database_url: str, tmp_path: Path) -> None:
    add = f"{sys.executable} -m pointsman task add"
    (tmp_path / "deeper.sh").write_text(f'{add} deeper --run "sh deeper.sh"\n')
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("name: deep\ntasks:\n  top: {run: sh deeper.sh}\n")
    deepest = max(tasks.values(), key=lambda task: task.depth)
    assert (deepest.depth, deepest.state) == (5, "FAILED")
    assert "subtasks go no deeper than 5" in error(deepest)
    assert {task.state for task in tasks.values()} == {"FAILED"}


async def test_a_fan_out_of_agents_waits_for_its_items_and_then_for_a_review(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("""
            name: agents
            lifecycle: agent
            tasks:
              each: {foreach: [1, 2], run: "echo ${{ item }}", outputs: stdout}
            """)
        async with shop.working(run):
            item = (await until_asked(shop, run, "each"))["each"]
            assert item.waiting.kind == "review"
            await say(shop, item, "accept")
            await shop.until_done(run)
        tasks = await shop.tasks(run)
    assert {task.state for task in tasks.values()} == {"COMPLETED"}
