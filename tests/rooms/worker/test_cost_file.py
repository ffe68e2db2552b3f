"""What work says that it costs: counted once, kept with its attempt, and held against its budget."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import apsw
import pytest
from tests.rooms.worker.shop import error, open_shop, until_there

from pointsman.kernel.machine import Outcome
from pointsman.worker.cost_file import MAX_READ, CostFile
from pointsman.worker.process_table import read_process
from pointsman.worker.processes import is_alive


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_every_line_is_counted_once(tmp_path: Path) -> None:
    cost_file = CostFile(f"{tmp_path}/cost")
    assert cost_file.read().cost_usd == 0
    append(Path(cost_file.path), "0.25\n0.05\n\n")
    assert cost_file.read().cost_usd == cost_file.read().cost_usd == Decimal("0.30")
    cost_file.mark_reported(cost_file.unreported)
    assert cost_file.read(final=True).cost_usd == 0
    append(Path(cost_file.path), " 1e-3 \n")
    assert cost_file.read().cost_usd == Decimal("0.001")
    assert cost_file.problem is None


def test_a_line_that_is_being_written_waits_for_its_end(tmp_path: Path) -> None:
    cost_file = CostFile(f"{tmp_path}/cost")
    append(Path(cost_file.path), "0.1\n0.2")
    assert cost_file.read().cost_usd == Decimal("0.1")
    append(Path(cost_file.path), "5\n0.5")
    assert cost_file.read().cost_usd == Decimal("0.35")
    assert cost_file.read(final=True).cost_usd == Decimal("0.85")


def test_a_long_bill_is_read_to_its_end(tmp_path: Path) -> None:
    cost_file = CostFile(f"{tmp_path}/cost")
    lines = MAX_READ // 4
    append(Path(cost_file.path), "0.000001\n" * lines)
    assert cost_file.read().cost_usd < Decimal("0.000001") * lines, "one look takes in only so much"
    assert cost_file.read(final=True).cost_usd == Decimal("0.000001") * lines


@pytest.mark.parametrize("line", ["free", "-1", "NaN", "Infinity", "1,50", "0.5 USD", "1e9", "\0", "\udcff"])
def test_what_is_no_amount_is_reported_and_not_counted(tmp_path: Path, line: str) -> None:
    cost_file = CostFile(f"{tmp_path}/cost")
    Path(cost_file.path).write_bytes(f"1\n{line}\n2\nnonsense".encode("utf-8", "surrogateescape"))
    assert cost_file.read(final=True).cost_usd == 3
    assert cost_file.problem is not None
    assert cost_file.problem.startswith(f"{cost_file.path}: ")
    assert cost_file.problem.endswith("is not an amount in dollars, such as 0.25, and was ignored (1 more like it).")


def test_what_is_finer_than_a_millionth_is_rounded(tmp_path: Path) -> None:
    cost_file = CostFile(f"{tmp_path}/cost")
    append(Path(cost_file.path), "0.0123456789\n1e-999\n")
    assert cost_file.read().cost_usd == Decimal("0.012346")
    append(Path(cost_file.path), "0.0000004\n" * 10)
    assert cost_file.read().cost_usd == Decimal("0.012350"), "all together, not each"


def test_nobody_waits_for_something_else_in_the_place_of_the_file(tmp_path: Path) -> None:
    pipe, folder = CostFile(f"{tmp_path}/pipe"), CostFile(str(tmp_path))
    os.mkfifo(pipe.path)
    assert pipe.read(final=True).cost_usd == folder.read(final=True).cost_usd == 0


async def test_what_work_costs_is_kept_with_its_attempts(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("""
            name: costs
            defaults: {critical: false}
            tasks:
              well: {run: "echo 0.25 >> $POINTSMAN_COST; echo 0.5 >> $POINTSMAN_COST"}
              twice: {retries: 1, backoff: 0s, run: "echo 0.1 >> $POINTSMAN_COST; test $POINTSMAN_ATTEMPT = 2"}
              slow: {timeout: 1s, run: "printf 0.125 >> $POINTSMAN_COST; sleep 60"}
              checked: {run: "echo 1 >> $POINTSMAN_COST", checks: [{run: "echo 2 >> $POINTSMAN_COST"}]}
              each: {foreach: [1, 2], run: "echo ${{ item }} >> $POINTSMAN_COST"}
              free: {run: "true"}
            """)
        async with shop.working(run):
            await shop.until_done(run)
        costs = {name: task.cost_usd for name, task in (await shop.tasks(run)).items()}
        attempts = await shop.engine.list_attempts((await shop.tasks(run))["twice"].id)
        spent = (await shop.engine.get_run(run.id)).spent_usd
    assert costs == {
        "well": Decimal("0.75"),
        "twice": Decimal("0.2"),
        "slow": Decimal("0.125"),
        "checked": 3,
        "each": 0,
        "each[0]": 1,
        "each[1]": 2,
        "free": 0,
    }
    assert [attempt.cost_usd for attempt in attempts] == [Decimal("0.1")] * 2
    assert spent == sum(costs.values())


@pytest.mark.parametrize("limit", ["task", "run"])
async def test_whoever_spends_more_than_it_may_is_ended_with_all_it_started(
    database_url: str, tmp_path: Path, limit: str
) -> None:
    of_run, of_task = ("budget_usd: 0.3", "") if limit == "run" else ("", "budget_usd: 0.3")
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit(f"""
            name: dear
            {of_run}
            tasks:
              dear:
                {of_task}
                retries: 3
                run: |
                  echo 0.2 >> $POINTSMAN_COST
                  sleep 600 & echo $! > pid
                  sleep 2
                  echo 0.2 >> $POINTSMAN_COST
                  wait
              after: {{needs: [dear], run: "true"}}
            """)
        async with shop.working(run):
            await until_there(tmp_path / "pid")
            child = read_process(int((tmp_path / "pid").read_text()))
            assert child is not None
            await shop.until_done(run)
            async with asyncio.timeout(20):
                while is_alive(child.pid, child.started_ticks):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        tasks = await shop.tasks(run)
        history = await shop.engine.list_history(tasks["dear"].id)
        ended = await shop.engine.get_run(run.id)
    assert (tasks["dear"].state, tasks["dear"].cost_usd) == ("BUDGET_EXCEEDED", Decimal("0.4"))
    who = "run" if limit == "run" else "task"
    assert history[-1].reason == f"the {who} has spent 0.4 USD of its budget of 0.3 USD"
    assert tasks["after"].outcome is None
    assert (ended.outcome, ended.spent_usd) == (Outcome.FAILURE, Decimal("0.4"))


async def test_a_run_whose_money_is_spent_begins_nothing_more(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("""
            name: poor
            budget_usd: 1
            tasks:
              first: {run: "echo 1 >> $POINTSMAN_COST"}
              second: {needs: [first], run: "touch begun"}
            """)
    assert [task.state for task in tasks.values()] == ["SUCCEEDED", "BUDGET_EXCEEDED"]
    assert not (tmp_path / "begun").exists()


async def test_a_budget_holds_over_all_attempts(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("""
            name: again and again
            tasks:
              dear: {budget_usd: 0.5, retries: 9, backoff: 0s, run: "echo 0.3 >> $POINTSMAN_COST; exit 1"}
            """)
        async with shop.working(run):
            await shop.until_done(run)
        (task,) = (await shop.tasks(run)).values()
        assert (task.state, task.cost_usd, task.attempt_count) == ("BUDGET_EXCEEDED", Decimal("0.6"), 3)
        assert len(list((tmp_path / ".pointsman/logs" / run.id / "dear").glob("*.cost"))) == 2, "the third never began"
        await shop.engine.signal_task(task.id, "retry")
        async with shop.working(run):
            await shop.until_done(run)
        assert (await shop.engine.get_task(task.id)).cost_usd == Decimal("0.6"), "another try spends nothing"


async def test_what_spends_too_much_and_is_not_critical_is_passed_over(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("""
            name: not critical
            tasks:
              dear: {budget_usd: 0.1, critical: false, run: "echo 0.2 >> $POINTSMAN_COST; sleep 60"}
              after: {needs: [dear], run: "true"}
            """)
    assert [task.state for task in tasks.values()] == ["SKIPPED", "SUCCEEDED"]
    assert error(tasks["dear"]) == "the task has spent 0.2 USD of its budget of 0.1 USD"


async def test_limits_hold_while_nobody_can_be_told_of_costs(sqlite_url: str, tmp_path: Path) -> None:
    """The database is locked by somebody else; the work is ended at its timeout all the same."""
    async with open_shop(sqlite_url, tmp_path) as shop:
        run = await shop.submit("""
            name: locked
            tasks:
              slow: {budget_usd: 9, timeout: 2s, run: "echo 0.1 >> $POINTSMAN_COST; sleep 600 & echo $! > pid; wait"}
            """)
        async with shop.working(run):
            await until_there(tmp_path / "pid")
            child = read_process(int((tmp_path / "pid").read_text()))
            assert child is not None
            with closing(apsw.Connection(sqlite_url.removeprefix("sqlite:///"))) as other:
                other.set_busy_timeout(5000)
                other.execute("BEGIN IMMEDIATE")
                async with asyncio.timeout(20):
                    while is_alive(child.pid, child.started_ticks):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                other.execute("ROLLBACK")
            await shop.until_done(run)
        (task,) = (await shop.tasks(run)).values()
    assert (task.state, task.cost_usd) == ("TIMED_OUT", Decimal("0.1"))
