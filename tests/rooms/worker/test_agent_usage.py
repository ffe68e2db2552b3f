"""What agents use: counted while they run, estimated where they report no cost, and held against every budget."""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal
from pathlib import Path

import pytest
from tests.rooms.worker.shop import PATIENCE_SECONDS, Shop, error, open_shop, until_there
from tests.rooms.worker.stand_in import STREAMS, Claude, Codex, StandIn, last, out
from tests.rooms.worker.test_people import say, until_asked

from pointsman.engine.budgets import Usage
from pointsman.prices import Price
from pointsman.store.rows import Account, Attempt, Run, Task
from pointsman.worker.agent import Used
from pointsman.worker.meter import MOST_KEYS, UsageMeter
from pointsman.worker.process_table import read_process
from pointsman.worker.processes import is_alive

SAYS = Claude()
PRICES = {"m": Price(Decimal(10), Decimal(100), Decimal(1))}
"""1000 tokens in and 100 out cost 0.02."""


def used(row: Task | Run | Attempt | Account) -> tuple[Decimal, int, int, bool]:
    cost = row.cost_usd if isinstance(row, Task | Attempt) else row.spent_usd
    return cost, row.tokens_in, row.tokens_out, row.cost_is_estimated


async def everything(shop: Shop, run: Run) -> list[tuple[Decimal, int, int, bool]]:
    """What the last attempt, the task, the run and the tenant have used."""
    (task,) = (await shop.tasks(run)).values()
    *_, attempt = await shop.engine.list_attempts(task.id)
    return [used(row) for row in (attempt, task, await shop.engine.get_run(run.id), await shop.engine.get_account())]


@pytest.fixture
def claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(tmp_path, "claude")
    monkeypatch.setenv("PATH", f"{stand_in.bin}:/usr/bin:/bin")
    return stand_in


async def test_usage_is_counted_while_an_agent_runs_and_its_own_figures_count_in_the_end(
    database_url: str, tmp_path: Path, claude: StandIn
) -> None:
    claude.plan(
        [
            ("hear", 0),
            out(*SAYS.begin("s-1"), SAYS.use("a", 500, 1), SAYS.use("a", 500, 20), SAYS.use("b", 500, 80)),
            ("until", str(tmp_path / "go")),
            out(*SAYS.succeed("done", 0.25)),
        ]
    )
    async with open_shop(database_url, tmp_path, prices=PRICES) as shop:
        run = await shop.submit("name: f\ntasks: {a: {agent: claude, prompt: Do it}}")
        async with shop.working(run):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (await shop.engine.get_run(run.id)).tokens_out:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            while_it_runs = await everything(shop, run)
            assert (await shop.tasks(run))["a"].session_id == "s-1", "a crash would not lose it"
            spent, since = time.process_time(), time.monotonic()
            await asyncio.sleep(0.3)  # nothing happens that could be waited for
            assert time.process_time() - spent < 0.5 * (time.monotonic() - since), "nobody is busy while the agent thinks"
            (tmp_path / "go").touch()
            await shop.until_done(run)
        at_the_end = await everything(shop, run)
    assert while_it_runs == [(Decimal("0.02"), 1000, 100, True)] * 4
    assert at_the_end == [(Decimal("0.25"), 1000, 100, True)] * 4, "its own total has fewer tokens, and nothing is taken back"


@pytest.mark.parametrize(
    ("agent", "model", "usage"),
    [
        ("codex", "m-2026-01-01", (Decimal("0.002937"), 100, 20, True)),
        ("codex", "unknown", (Decimal(0), 100, 20, False)),
        ("gemini", "", (Decimal("0.002937"), 100, 20, True)),
        ("opencode", "vendor/m", (Decimal("0.125"), 57, 12, False)),
    ],
)
async def test_what_an_agent_reports_no_cost_for_is_estimated(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, model: str, usage: object
) -> None:
    stand_in, stream = StandIn(tmp_path, agent), STREAMS[agent]
    monkeypatch.setenv("PATH", f"{stand_in.bin}:/usr/bin:/bin")
    stand_in.plan([out(*stream.begin("s-1"), *stream.succeed("done"))])
    named = f", model: {model}" if model else ""
    async with open_shop(sqlite_url, tmp_path, prices=PRICES) as shop:
        run = await shop.submit(f"name: f\ntasks: {{a: {{agent: {agent}, prompt: Do it{named}}}}}")
        async with shop.working(run):
            await shop.until_done(run)
        assert await everything(shop, run) == [usage] * 4


async def test_the_figures_of_a_session_that_goes_on_are_counted_once(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """codex adds up all turns of a session, also those of earlier calls."""
    codex, says = StandIn(tmp_path, "codex"), Codex()
    monkeypatch.setenv("PATH", f"{codex.bin}:/usr/bin:/bin")
    asks = ("write", ("POINTSMAN_QUESTION", "Which?"))
    codex.plan(
        [asks, out(*says.begin("s-1"), *says.succeed("?", tokens=100))],
        [out(*says.begin("s-1"), *says.succeed("done", tokens=250))],
    )
    async with open_shop(sqlite_url, tmp_path, prices=PRICES) as shop:
        run = await shop.submit("name: f\ntasks: {a: {agent: codex, prompt: Do it, model: m}}")
        async with shop.working(run):
            await say(shop, (await until_asked(shop, run, "a"))["a"], "answer", answer="red")
            await shop.until_done(run)
        (task,) = (await shop.tasks(run)).values()
        attempts = await shop.engine.list_attempts(task.id)
    assert [each.tokens_in for each in attempts] == [100, 150]
    assert (task.tokens_in, task.tokens_out) == (250, 20)


@pytest.mark.parametrize("lifecycle", ["standard", "agent"])
@pytest.mark.parametrize("who", ["task", "run", "tenant"])
async def test_an_overspend_ends_the_whole_tree_and_what_it_reports_then_still_counts(
    database_url: str, tmp_path: Path, claude: StandIn, who: str, lifecycle: str
) -> None:
    """Only an estimate says that it spends too much; the last words of the agent have its own figure."""
    claude.plan(
        [
            ("hear", 0),
            ("run", "sleep 600 & echo $! > pid"),
            last(*SAYS.succeed("stopped", 0.03)),
            out(*SAYS.begin("s-1"), SAYS.use("a", 1000, 100)),
            ("pause", 600),
        ]
    )
    async with open_shop(database_url, tmp_path, prices=PRICES) as shop:
        budget = {name: "budget_usd: 0.01" if name == who else "" for name in ("task", "run")}
        if who == "tenant":
            await shop.engine.set_tenant_budget(Decimal("0.01"))
        run = await shop.submit(
            f"name: f\nlifecycle: {lifecycle}\n{budget['run']}\n"
            f"tasks: {{a: {{agent: claude, prompt: Do it, {budget['task']}}}}}"
        )
        async with shop.working(run):
            await until_there(tmp_path / "pid")
            child = read_process(int((tmp_path / "pid").read_text()))
            await shop.until_done(run)
            assert child is None or not is_alive(child.pid, child.started_ticks)
        (task,) = (await shop.tasks(run)).values()
        assert (task.state, task.session_id) == ("BUDGET_EXCEEDED", "s-1")
        assert error(task) == f"the {who} has spent 0.02 USD of its budget of 0.01 USD"
        assert await everything(shop, run) == [(Decimal("0.03"), 1000, 100, True)] * 4


@pytest.mark.parametrize("who", ["run", "tenant"])
async def test_an_agent_that_is_silent_is_stopped_when_others_have_spent_the_budget(
    database_url: str, tmp_path: Path, claude: StandIn, who: str
) -> None:
    begin = [("hear", 0), out(*SAYS.begin("s-1"))]
    claude.plan_each(
        thinks=[[*begin, ("run", f"touch {tmp_path}/thinks"), ("pause", 600)]],
        spends=[[*begin, ("until", f"{tmp_path}/thinks"), out(SAYS.use("a", 1000, 100)), ("pause", 600)]],
    )
    async with open_shop(database_url, tmp_path, prices=PRICES, slots=2) as shop:
        if who == "tenant":
            await shop.engine.set_tenant_budget(Decimal("0.01"))
        tasks = "".join(f"  {name}: {{agent: claude, prompt: Do it}}\n" for name in ("thinks", "spends"))
        run = await shop.submit(f"name: f\n{'budget_usd: 0.01' if who == 'run' else ''}\ntasks:\n{tasks}")
        async with shop.working(run):
            await shop.until_done(run)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await shop.tasks(run))["thinks"].outcome is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        assert {task.state for task in (await shop.tasks(run)).values()} == {"BUDGET_EXCEEDED"}


async def test_an_agent_that_is_done_has_exceeded_its_budget_all_the_same(
    database_url: str, tmp_path: Path, claude: StandIn
) -> None:
    claude.plan([("hear", 0), out(*SAYS.begin("s-1"), *SAYS.succeed("done", 2))])
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("name: f\ntasks: {a: {agent: claude, prompt: Do it, budget_usd: 1}}")
        async with shop.working(run):
            await shop.until_done(run)
        (task,) = (await shop.tasks(run)).values()
        assert (task.state, task.cost_usd) == ("BUDGET_EXCEEDED", Decimal(2))


@pytest.mark.parametrize(
    ("total", "counted"),
    [
        (Used(300, 60, Decimal("0.0024"), is_total=True, of_session=True), Usage(Decimal("0.0008"), 100, 20)),
        (Used(100, 20, Decimal("0.0008"), is_total=True, of_session=True), Usage(Decimal("0.0008"), 100, 20)),
        (Used(300, 60, Decimal("0.0015"), is_total=True, of_session=True), Usage(Decimal("0.0005"), 100, 20)),
        (Used(300, 60, Decimal("0.0024"), is_total=True), Usage(Decimal("0.0024"), 300, 60)),
    ],
)
def test_the_total_of_a_session_is_told_from_that_of_a_call(total: Used, counted: Usage) -> None:
    """claude adds up its calls if it could store the figures of the one before."""
    meter = UsageMeter({}, None, Usage(Decimal("0.0016"), 200, 40))
    first = meter.take(Used(100, 1, key="a"))
    rest = meter.take(total)
    assert Usage(rest.cost_usd, first.tokens_in + rest.tokens_in, first.tokens_out + rest.tokens_out) == counted


def test_only_a_total_without_a_cost_needs_a_price() -> None:
    meter = UsageMeter({}, None)
    meter.take(Used(500, 20, model="m", key="message"))
    assert meter.problem is None, "the cost of all messages comes at the end"
    meter.take(Used(500, 20, Decimal("0.1"), "m", is_total=True))
    assert meter.problem is None
    meter.take(Used(500, 20, None, "m", is_total=True))
    assert '[prices."m"]' in str(meter.problem)


def test_a_stream_that_lies_is_not_believed_beyond_what_can_be() -> None:
    meter = UsageMeter(PRICES, None)
    assert meter.take(Used(5, 5, Decimal(1), key="a")) == Usage(Decimal(1), 5, 5)
    assert meter.take(Used(1, 1, Decimal("0.5"), key="a")) == Usage(), "nothing is taken back"
    assert meter.take(Used(10**12, 0, Decimal(99_999_999), key="b")).tokens_in == 10**12 - 5
    assert meter.take(Used(10**12, 0, Decimal(99_999_999), key="c")) == Usage(), "more than anything can cost"
    for number in range(3 * MOST_KEYS):
        meter.take(Used(0, 1, key=str(number)))
    assert meter.take(Used(0, 3 * MOST_KEYS + 7, is_total=True)).tokens_out == 6
