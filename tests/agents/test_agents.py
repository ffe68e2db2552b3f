"""Runs real coding agents. Each scenario is a row of the table in docs/reference/agents.md."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

from tests.agents.clis import SECRET, Cli
from tests.agents.harness import NOT_PASSED, AgentProject, open_project
from tests.agents.model_api import Cut, Decide, Fail, Hang, Request, Text
from tests.rooms.worker.repository import Repository, make_repository
from tests.system.faults.inquest import find_inhabitants
from tests.system.faults.project import PATIENCE_SECONDS, find_processes, find_work

ODD = "--help \"quoted\" 'single' $(touch x) `y`\n\n- list\n\t\\ ✓ \U0001f600"
PROMPT = "Go somewhere."
QUESTION = "East or west?"


async def test_success(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        project.api.plan(Text("The answer is 42."))
        project.write_task(ODD)
        code, said = await project.run()
        assert code == 0, said
        run, task, attempts = await project.look()
        assert (run.outcome, len(attempts)) == ("success", 1)
        assert json.loads(task.output or "{}")["outputs"] == "The answer is 42."
        assert project.api.turns[0].says(ODD), "the prompt arrives as it was written"
        shown = await project.show("logs", run.id)
        assert "The answer is 42." in shown
        assert not {path.name for path in project.folder.iterdir()} - {"flow.yaml", "pointsman.toml", ".pointsman", ".state"}


async def test_environment(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        project.api.plan(Text("done"))
        project.write_task()
        code, said = await project.run()
        assert code == 0, said
        assert any(SECRET in value for value in project.api.turns[0].headers.values()), "it has its own key"
        assert project.environs
        assert not [each for each in project.environs if NOT_PASSED in each]


async def test_worktree(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        repository = own_repository(project)
        project.api.plan(cli.edit("new.txt", "written by the agent\n"), Text("I have written it."))
        project.write_task("Write it.", worktree=True)
        code, said = await project.run()
        assert code == 0, said
        assert repository.show("new") == "written by the agent"
        assert repository.branches() == ["main"]
        assert not [path for path in (project.folder / ".pointsman" / "worktrees").glob("*/*") if path.is_dir()]


async def test_question_through_mcp(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        project.api.plan(*cli.ask(QUESTION), Text("I have asked."), Text("Then east."))
        await ask_and_answer(project)


async def test_question_through_file(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        asks = Decide(lambda request: cli.edit(find_question_path(request), QUESTION))
        project.api.plan(asks, Text("I have asked."), Text("Then east."))
        await ask_and_answer(project)


def find_question_path(request: Request) -> str:
    """The path in the instructions that the agent gets."""
    found = re.search(r"\S+\.question\.json", "\n".join(request.texts))
    assert found
    return found[0]


async def ask_and_answer(project: AgentProject) -> None:
    project.write_task(PROMPT)
    async with project.running() as command:
        task = await project.until_task(command, lambda task: task.question is not None)
        session = task.session_id
        assert QUESTION in await project.show("inbox")
        code, said = await project.call("answer", task.run_id, "work", "--", "--east 'it' is")
        assert code == 0, said
        assert await command.wait() == 0, command.said
    await check_continued(project, session, "--east 'it' is")
    assert project.api.turns[-1].says("--east 'it' is")


async def check_continued(project: AgentProject, session: str | None, message: str) -> None:
    """Its last attempt has continued the session of the first, with this message; without sessions, it has started over."""
    _, task, attempts = await project.look()
    last = project.api.turns[-1]
    if project.cli.has_sessions:
        assert session
        assert last.says(message)
    assert (len(attempts), task.session_id) == (2, session)
    assert last.says(PROMPT), "it knows what it was asked first"
    assert not [epochs for epochs in project.epochs if len(epochs) > 1], "two attempts at the same time"


async def test_timeout(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        project.api.plan(Hang(), Text("done"))
        project.write_task(PROMPT, timeout=cli.seconds, retries=1)
        code, said = await project.run()
        assert code == 0, said
        _, task, _ = await project.look()
        await check_continued(
            project, task.session_id, "Your previous execution timed out. Please continue where you left off."
        )


async def test_stall(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        project.api.plan(Hang())
        project.write_task(PROMPT, stall_timeout=cli.seconds)
        code, said = await project.run()
        assert code == 1, said
        run, _, attempts = await project.look()
        assert "without output" in str(attempts[0].error)
        assert project.api.turns
        assert not find_work(run)


async def test_usage_limit(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        project.subscribe()
        resets_at = int(time.time()) + cli.limit_seconds
        project.api.plan(Decide(lambda _: cli.limit(resets_at) if time.time() < resets_at else Text("done")))
        project.write_task(PROMPT)
        async with project.running() as command:
            task = await project.until_task(
                command, lambda task: task.available_at is not None, PATIENCE_SECONDS + cli.limit_seconds
            )
            assert task.available_at
            assert abs(task.available_at.timestamp() - resets_at) <= cli.limit_precision
            assert "OPEN" in await project.show("breakers")
            assert "usage limit" in await project.show("status", task.run_id)
            assert task.retry_count == 0
            if cli.limit_seconds > 100:
                assert (await project.call("cancel", task.run_id))[0] == 0
            else:
                await project.until_task(
                    command, lambda task: task.outcome is not None, PATIENCE_SECONDS + cli.limit_seconds + cli.limit_precision
                )
                assert await command.wait() == 0, command.said
                assert (await project.look())[1].retry_count == 0


async def test_overload(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        project.api.plan(Fail(500), Fail(cli.overloaded), Text("done"))
        project.write_task(PROMPT)
        code, said = await project.run()
        assert code == 0, said
        assert len(project.api.turns) == 3
        _, _, attempts = await project.look()
        assert len(attempts) == 1


async def test_cut(cli: Cli, tmp_path: Path) -> None:
    """The agent repeats the request, or fails, and then Pointsman does."""
    with open_project(tmp_path, cli) as project:
        project.api.plan(Cut(), Text("The whole answer."))
        project.write_task(PROMPT, retries=1)
        code, said = await project.run()
        assert code == 0, said
        _, task, _ = await project.look()
        assert json.loads(task.output or "{}")["outputs"] == "The whole answer."


async def test_outage(cli: Cli, tmp_path: Path) -> None:
    """A failure that stays is a failure, whatever the exit code."""
    with open_project(tmp_path, cli) as project:
        project.api.plan(Fail(400, "no such thing"))
        project.write_task(PROMPT)
        code, said = await project.run()
        assert code == 1, said
        _, task, attempts = await project.look()
        assert (task.outcome, len(attempts)) == ("failure", 1)
        assert "no such thing" in str(attempts[0].error)


async def test_budget(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        project.write_settings(f"[prices.{json.dumps(cli.priced)}]\ninput = 1000\noutput = 1000" if cli.priced else "")
        project.api.plan(cli.edit("a.txt", "a\n"), Text("done"))
        project.write_task(PROMPT, budget_usd="0.0001", **({"model": cli.priced} if cli.priced else {}))
        code, said = await project.run()
        assert code == 1, said
        run, task, _ = await project.look()
        assert "BUDGET" in task.state or "budget" in str(task.reason), task
        assert task.cost_usd > Decimal("0.0001")
        assert not find_work(run)


async def test_cancel(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        project.api.plan(cli.shell(f"touch {tmp_path}/started; sleep 600") if cli.shell else Hang())
        project.write_task(PROMPT, permissions="full")
        async with project.running() as command:
            await command.until(lambda: (tmp_path / "started").exists() if cli.shell else project.api.turns)
            run, _, _ = await project.look()
            assert len(find_work(run)) > 1 or not cli.shell
            code, said = await project.call("cancel", run.id)
            assert code == 0, said
            assert await command.wait() == 1
        run, _, _ = await project.look()
        assert run.outcome == "canceled"
        assert not find_work(run)
        assert not find_inhabitants(project.folder)


async def test_crash(cli: Cli, tmp_path: Path) -> None:
    """Everything is killed as soon as the agent has written anything after the answer of a person."""
    with open_project(tmp_path, cli) as project:
        asks = Decide(lambda request: cli.edit(find_question_path(request), QUESTION))
        project.api.plan(asks, Text("I have asked."), Hang())
        project.write_task(PROMPT)
        async with project.running() as command:
            task = await project.until_task(command, lambda task: task.question is not None)
            await command.kill()
        code, said = await project.call("answer", task.run_id, "work", "--", "east")
        assert code == 0, said
        (folder,) = (project.folder / ".pointsman" / "logs").glob("*/work")
        log = folder / "2.log"
        async with project.start("resume", task.run_id) as command:
            await command.until(lambda: log.exists() and log.stat().st_size)
            for each in find_processes(f"HOME={project.home}"):
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
        project.api.plan(Text("Then east."))
        code, said = await project.call("resume", task.run_id)
        assert code == 0, said
        assert project.api.turns[-1].says("east")


async def test_kill(cli: Cli, tmp_path: Path) -> None:
    with open_project(tmp_path, cli) as project:
        project.api.plan(Hang(), Text("done"))
        project.write_task(PROMPT)
        async with project.running() as command:
            await command.until(lambda: project.api.turns)
            run, _, _ = await project.look()
            task = await project.until_task(command, lambda task: task.session_id is not None or not cli.has_sessions)
            await command.kill()
        code, said = await project.call("resume", run.id)
        assert code == 0, said
        await check_continued(
            project, task.session_id, "Your previous execution was interrupted. Please continue where you left off."
        )
        assert not find_work(run)


def own_repository(project: AgentProject) -> Repository:
    repository = make_repository(project.folder)
    (project.folder / ".gitignore").write_text(".pointsman/\n.state/\n")
    repository.git("add", ".gitignore")
    repository.git("commit", "-qm", "Ignore")
    (project.home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    return repository
