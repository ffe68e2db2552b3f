"""Tasks of coding agents, from their flow to their end: a real worker on both databases, and stand-ins for the agents."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from tests.rooms.worker.shop import open_shop, output, outputs
from tests.rooms.worker.stand_in import Call, Claude, StandIn, out
from tests.rooms.worker.test_people import say, until_asked

SAYS = Claude()
ODD = "--help \"quoted\" 'single' $(touch x) `y`\n\n- list\n\t\\ ✓ \U0001f600 " + "x" * 19_000


@pytest.fixture
def claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(tmp_path, "claude")
    monkeypatch.setenv("PATH", f"{stand_in.bin}:/usr/bin:/bin")
    return stand_in


def message(call: Call) -> str:
    """What `claude` was told."""
    return str(json.loads(call.stdin)["message"]["content"][0]["text"])


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
