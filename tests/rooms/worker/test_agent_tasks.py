"""Tasks of coding agents, from their flow to their end: a real worker on both databases, and stand-ins for the agents."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.worker.shop import error, open_shop, output, outputs
from tests.rooms.worker.stand_in import Claude, StandIn, err, last, leave, message, out
from tests.rooms.worker.test_people import say, until_asked

from pointsman.errors import RequestInvalid
from pointsman.settings import AGENTS, ToolProfile
from pointsman.views.runs import view_run

SAYS = Claude()
ODD = "--help \"quoted\" 'single' $(touch x) `y`\n\n- list\n\t\\ ✓ \U0001f600 " + "x" * 19_000


@pytest.fixture
def claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(tmp_path, "claude")
    monkeypatch.setenv("PATH", f"{stand_in.bin}:/usr/bin:/bin")
    return stand_in


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
async def test_an_agent_asks_goes_on_in_its_session_and_is_done(
    database_url: str, tmp_path: Path, claude: StandIn, lifecycle: str
) -> None:
    claude.plan(
        [
            ("hear", 0),
            out(*SAYS.begin("s-1")),
            ("write", ("POINTSMAN_QUESTION", "Which?")),
            out(*SAYS.succeed("?")),
            ("eof", 0),
        ],
        [("hear", 0), out(*SAYS.begin("s-1"), SAYS.call("Bash", "ls"), *SAYS.succeed("done", 0.5)), ("eof", 0)],
    )
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit(f"""
            name: asking
            lifecycle: {lifecycle}
            inputs: {{what: '--version'}}
            tasks:
              a:
                {{agent: claude, prompt: "${{{{ inputs.what }}}}", model: opus, max_turns: 3, permissions: full, budget_usd: 9}}
            """)
        async with shop.working(run):
            item = (await until_asked(shop, run, "a"))["a"]
            assert item.text == "Which?"
            await say(shop, item, "answer", answer=ODD)
            if lifecycle == "agent":
                await say(shop, (await until_asked(shop, run, "a"))["a"], "accept")
            await shop.until_done(run)
        task = (await shop.tasks(run))["a"]
        attempts = await shop.engine.list_attempts(task.id)
    assert (outputs(task), task.outcome, task.session_id) == ("done", "success", "s-1")
    assert (task.cost_usd, [each.cost_usd for each in attempts]) == (Decimal("0.75"), [Decimal("0.25"), Decimal("0.5")])
    assert output(task)["tail"] == "→ Bash: ls\ndone\n✓ done\n"
    first, second = claude.calls
    assert (message(first), message(second)) == ("--version", ODD)
    assert not [each for each in first.argv if each.startswith("--resume")]
    assert "--resume=s-1" in second.argv
    assert {"-p", "--model=opus", "--max-turns=3", "--permission-mode=bypassPermissions", "--max-budget-usd=9"} <= set(
        first.argv
    )
    assert "--max-budget-usd=8.75" in second.argv
    assert (first.rest, second.rest) == ("", "")
    assert not [each for each in second.argv if "quoted" in each]
    log = Path(str(attempts[1].log_path)).read_bytes()  # noqa: ASYNC240
    assert [json.loads(line)["type"] for line in log.splitlines()] == ["system", "assistant", "result"]


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m \U0001f600 \x00"
PROSE = "You've hit your session limit · resets 8pm (America/New_York). 429 rate_limit_error"
LIES: list[str | dict[str, Any]] = [
    '{"type": "system", "subtype": "init", "session_id": 7}',
    '{"type": "system", "subtype": "init", "session_id": "--dangerous flag"}',
    '{"type": "assistant", "message": [1, "two", null]}',
    '{"type": "assistant", "message": {"id": "x", "usage": {"input_tokens": -5, "output_tokens": 1e99}, "content": {"a": 1}}}',
    '{"type": "result", "total_cost_usd": NaN}',
    '{"type": "rate_limit_event", "rate_limit_info": {"status": "allowed", "resetsAt": "soon"}}',
    '{"type": "result", "subtype": "success", "is_error": "no", "total_cost_usd": "-3", "modelUsage": [1], "result": {}}',
    '{"type": {"type": {}}}',
    "[" * 50_000,
    '{"type": "assistant", "message": ' + '{"a": ' * 5_000 + "1" + "}" * 5_001,
    "{'type': 'result'}",
    "\udcff\udcfe not UTF-8 \udc80",
    "\x00\x00\x1b[2J",
    "null",
    "",
]


async def test_an_agent_has_succeeded_only_if_its_result_and_its_exit_code_both_say_so(
    sqlite_url: str, tmp_path: Path, claude: StandIn
) -> None:
    begin, done = out(*SAYS.begin("s-1")), out(*SAYS.succeed("done"))
    torn = json.dumps(SAYS.succeed("to\u2028rn ✓")[0], ensure_ascii=False)
    plans = {
        "error": [begin, out(*SAYS.fail("boom")), leave(0)],
        "unclean": [begin, done, leave(1)],
        "silent": [begin, out(SAYS.say("I am done.")), leave(0)],
        "empty": [leave(3)],
        "after": [begin, done, out('{"type": "news", "n": 1}', "goodbye", SAYS.say("one more")), err("warning\n"), leave(0)],
        "killed": [begin, ("die", 9)],
        "late": [begin, done, ("die", 15)],
        "prose": [begin, out(SAYS.say(PROSE), SAYS.answer(PROSE), *SAYS.succeed(PROSE)), leave(0)],
        "quoted": [begin, out(SAYS.say(PROSE), *SAYS.fail(f"boom after: {PROSE}")), leave(1)],
        "torn": [begin, *[("out", torn[i : i + 7]) for i in range(0, len(torn), 7)], leave(0)],
        "lying": [begin, out(*LIES), out(*SAYS.succeed("true")), leave(0)],
        "liar": [begin, out(*LIES), leave(0)],
        "unended": [begin, ("out", json.dumps(SAYS.succeed("x")[0])[:-5]), leave(0)],
    }
    claude.plan_each(**{name: [[("hear", 0), *plan]] for name, plan in plans.items()})
    flow = "".join(f"  {name}: {{agent: claude, prompt: Do it}}\n" for name in plans)
    async with open_shop(sqlite_url, tmp_path, slots=len(plans)) as shop:
        tasks = await shop.run_to_end(f"name: outcomes\ntasks:\n{flow}")
        logs = {name: Path(str(task.attempt_log_path)) for name, task in tasks.items() if task.attempt_log_path}
    cut = "exited as if it had succeeded, but its output has no result: it was cut off, or is in an unknown form"
    assert {name: error(task).partition(" – ")[0] for name, task in tasks.items() if task.outcome != "success"} == {
        "error": "reported an error: boom (exit code 0)",
        "unclean": "reported success, but exited with code 1 (expected 0)",
        "silent": cut,
        "empty": "exited with code 3 (expected 0)",
        "killed": "was killed by signal SIGKILL (the machine may have run out of memory)",
        "late": "reported success, but was killed by signal SIGTERM",
        "quoted": f"reported an error: boom after: {PROSE} (exit code 1)",
        "liar": "reported an error: it reported an error without a reason (exit code 0)",
        "unended": cut,
    }
    assert {name: outputs(task) for name, task in tasks.items() if task.outcome == "success"} == {
        "after": "done",
        "prose": PROSE,
        "torn": "to\u2028rn ✓",
        "lying": "true",
    }
    assert {task.attempt_count for task in tasks.values()} == {1}
    assert {name: task.session_id for name, task in tasks.items() if task.session_id != "s-1"} == {"empty": None}
    assert (tasks["lying"].cost_usd, tasks["lying"].tokens_out) == (Decimal("0.25"), 20)
    after, lying = logs["after"].read_bytes(), logs["lying"].read_bytes()
    for kept in (b'{"type": "news", "n": 1}\n', b"goodbye\n", b"warning\n"):
        assert kept in after
    for line in LIES:
        assert str(line).encode("utf-8", "surrogateescape") + b"\n" in lying


async def test_a_usage_limit_costs_no_attempt_and_all_tasks_of_the_tool_wait_for_its_end(
    database_url: str, tmp_path: Path, claude: StandIn
) -> None:
    resets_at = int(time.time()) + 3
    claude.plan(
        [("hear", 0), out(*SAYS.begin("s-1"), *SAYS.limit(PROSE, resets_at)), leave(1)],
        [("hear", 0), out(*SAYS.begin("s-1"), *SAYS.succeed("done"))],
    )
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("""
            name: f
            tasks:
              a: {agent: claude, prompt: Do it}
              b: {needs: c, agent: claude, prompt: Next}
              c: {run: 'until [ -e go ]; do sleep 0.01; done'}
            """)
        async with shop.working(run):
            async with asyncio.timeout(60):
                while (task := (await shop.tasks(run))["a"]).state != "QUEUED" or not task.epoch:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            (tmp_path / "go").touch()
            async with asyncio.timeout(60):
                while (await shop.tasks(run))["c"].outcome is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            view = await view_run(shop.engine.for_tenant(), run.id, await shop.engine.now())
            breaker = await shop.engine.get_breaker("claude")
            await shop.until_done(run)
        tasks = await shop.tasks(run)
    until = datetime.fromtimestamp(resets_at, UTC)
    why = "claude has reached its usage limit"
    waiting = {task.name: task.waiting for task in view.tasks if task.waiting}
    assert {name: (each.kind, each.reason, each.until) for name, each in waiting.items()} == dict.fromkeys(
        ("a", "b"), ("rate_limit", why, until)
    )
    assert breaker.limited_until == until
    assert [(task.outcome, task.attempt_count) for task in tasks.values()] == [("success", 1)] * 3
    again = next(call for call in claude.calls[1:] if call.env["POINTSMAN_TASK_NAME"] == "a")
    assert "--resume=s-1" in again.argv
    assert message(again) == "Your previous execution was interrupted. Please continue where you left off."


@pytest.mark.parametrize("limit", ["timeout", "stall_timeout"])
async def test_an_agent_that_took_too_long_is_told_so_in_its_session(
    sqlite_url: str, tmp_path: Path, claude: StandIn, limit: str
) -> None:
    claude.plan(
        [("hear", 0), last(*SAYS.succeed("too late", 0.5)), out(*SAYS.begin("s-1")), ("pause", 600)],
        [("hear", 0), out(*SAYS.begin("s-1"), *SAYS.succeed("done"))],
    )
    async with open_shop(sqlite_url, tmp_path) as shop:
        run = await shop.submit(
            f"name: f\ntasks: {{a: {{agent: claude, prompt: Do it, {limit}: 1s, retries: 1, backoff: 0s}}}}"
        )
        async with shop.working(run):
            await shop.until_done(run)
        (task,) = (await shop.tasks(run)).values()
    assert (task.outcome, task.attempt_count, task.cost_usd) == ("success", 2, Decimal("0.75"))
    _, again = claude.calls
    assert "--resume=s-1" in again.argv
    assert message(again) == "Your previous execution timed out. Please continue where you left off."


async def test_an_agent_that_broke_off_is_told_which_of_its_subtasks_did_not_start(
    sqlite_url: str, tmp_path: Path, claude: StandIn
) -> None:
    split = ("write", ("POINTSMAN_SUBTASKS", '{"name": "one", "run": "true"}\n{"name": "two", "run": "true"}\n'))
    claude.plan(
        [("hear", 0), out(*SAYS.begin("s-1"), SAYS.say("I split it.")), split, ("pause", 600)],
        [("hear", 0), out(*SAYS.begin("s-1"), *SAYS.succeed("done"))],
    )
    async with open_shop(sqlite_url, tmp_path) as shop:
        await shop.run_to_end("name: f\ntasks: {a: {agent: claude, prompt: Do it, timeout: 1s, retries: 1, backoff: 0s}}")
    _, again = claude.calls
    assert message(again) == (
        "Your previous execution timed out. Please continue where you left off.\n\n"
        "The subtasks that you had added did not start. Add them again if they are still needed: one, two"
    )


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
async def test_an_agent_hears_in_its_session_why_its_result_was_rejected(
    database_url: str, tmp_path: Path, claude: StandIn, lifecycle: str
) -> None:
    claude.plan([("hear", 0), out(*SAYS.begin("s-1"), *SAYS.succeed("draft")), ("eof", 0)])
    huge = HOSTILE.rstrip("\x00") + "--flag\n'\"$(x)\n" + "y" * 19_000
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit(
            f"name: f\nlifecycle: {lifecycle}\ntasks: {{a: {{agent: claude, prompt: Write it, review: true}}}}"
        )
        async with shop.working(run):
            item = (await until_asked(shop, run, "a"))["a"]
            with pytest.raises(RequestInvalid, match="NUL"):
                await say(shop, item, "reject", comment=HOSTILE)
            with pytest.raises(RequestInvalid, match="at most 20,000 are allowed"):
                await say(shop, item, "reject", comment="x" * 1_000_000)
            await say(shop, item, "reject", comment=huge)
            while (item := (await until_asked(shop, run, "a"))["a"]).attempts == 1:
                pass
            await say(shop, item, "accept")
            await shop.until_done(run)
    _, again = claude.calls
    assert message(again) == huge
    assert "--resume=s-1" in again.argv
    assert not [word for word in again.argv if "flag" in word]


async def test_an_agent_gets_only_the_secrets_that_are_named(
    sqlite_url: str, tmp_path: Path, claude: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NAMED_KEY", "TOOL_KEY", "OTHER_KEY", "CLAUDECODE", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    claude.plan([("hear", 0), out(*SAYS.begin("s-1"), *SAYS.succeed("done"))])
    tool = ToolProfile("claude", env={"FROM_TOOL": "1"}, pass_env=("TOOL_KEY",))
    async with open_shop(sqlite_url, tmp_path, pass_env=("NAMED_KEY", "CLAUDECODE"), tools={"claude": tool}) as shop:
        tasks = await shop.run_to_end("""
            name: f
            tasks:
              a: {agent: claude, prompt: Do it, env: {OWN: "2"}}
              b: {run: 'test -z "$TOOL_KEY" && test "$NAMED_KEY" = secret'}
            """)
    assert [task.outcome for task in tasks.values()] == ["success"] * 2
    (call,) = claude.calls
    names = ("NAMED_KEY", "TOOL_KEY", "OTHER_KEY", "CLAUDECODE", "AWS_SECRET_ACCESS_KEY", "FROM_TOOL", "OWN")
    assert {name: call.env[name] for name in names if name in call.env} == {
        "NAMED_KEY": "secret",
        "TOOL_KEY": "secret",
        "FROM_TOOL": "1",
        "OWN": "2",
    }


async def test_a_missing_agent_is_one_sentence_with_how_to_install_it(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    async with open_shop(sqlite_url, tmp_path, slots=len(AGENTS)) as shop:
        tasks = await shop.run_to_end(
            "name: f\ntasks: {" + ", ".join(f"{name}: {{agent: {name}, prompt: x, retries: 2}}" for name in AGENTS) + "}"
        )
    assert {task.attempt_count for task in tasks.values()} == {1}, "another try would not find it either"
    assert error(tasks["claude"]) == (
        "'claude' is not in the PATH of this worker; install it with `npm install -g @anthropic-ai/claude-code`"
    )
    assert all("; install it with `" in error(task) for task in tasks.values())
