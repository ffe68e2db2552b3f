"""Flows with `worktree`, from their files to the merge, with a real worker and real git."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from tests.rooms.worker.repository import ALONE, Repository, make_repository
from tests.rooms.worker.shop import Shop, error, open_shop, outputs
from tests.rooms.worker.test_people import say, until_asked

from pointsman.store.rows import Run, Task
from pointsman.worker.runners.merge import GIVE_UP, RETRY
from pointsman.worker.worktrees import Worktree, list_records

ASKS = ("standard", "supervised", "agent")
FAILS = ("orchestrated", "approval", "pipeline")
WORK = """
    name: fix
    lifecycle: {lifecycle}
    worktree: {worktree}
    tasks:
      one: {{run: 'echo two > a.txt; echo "\\"$POINTSMAN_BRANCH\\""', outputs: stdout}}
      two: {{needs: one, run: "cat a.txt; echo new > b.txt"}}
    """


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return make_repository(tmp_path / "project")


async def accept_all(shop: Shop, run: Run) -> None:
    """As somebody who likes every result, until nobody asks any more."""
    while True:
        for task in (await shop.tasks(run)).values():
            if task.state == "READY":
                await shop.engine.for_tenant(actor="ada").signal_task(task.id, "accept")
        await asyncio.sleep(0.02)


async def until_ended(shop: Shop, run: Run) -> dict[str, Task]:
    accepting = asyncio.create_task(accept_all(shop, run))
    await shop.until_done(run)
    accepting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await accepting
    return await shop.tasks(run)


async def run_to_end(shop: Shop, text: str) -> tuple[Run, dict[str, Task]]:
    run = await shop.submit(text)
    async with shop.working(run):
        tasks = await until_ended(shop, run)
    return await shop.engine.get_run(run.id), tasks


def read_log(repository: Repository, task: Task) -> str:
    return (repository.folder / str(task.attempt_log_path)).read_text()


def kept(repository: Repository) -> list[Worktree]:
    return [each for each in list_records(repository.folder) if each.state != "removed"]


@pytest.mark.parametrize("lifecycle", [*ASKS, *FAILS])
async def test_tasks_of_a_run_share_a_worktree_that_is_merged_at_the_end(
    sqlite_url: str, repository: Repository, lifecycle: str
) -> None:
    async with open_shop(sqlite_url, repository.folder) as shop:
        run, tasks = await run_to_end(shop, WORK.format(lifecycle=lifecycle, worktree="true"))
    assert (run.outcome, [*tasks]) == ("success", ["one", "two", "run[merge]"])
    assert outputs(tasks["one"]).startswith("pointsman/fix-")
    (merged,) = outputs(tasks["run[merge]"])["merged"]
    assert (merged["base"], merged["files"], merged["kept"]) == ("main", 2, None)
    assert (repository.show("a"), repository.show("b"), repository.git("status", "--porcelain")) == ("two", "new", "")
    assert (repository.branches(), kept(repository)) == (["main"], [])
    (plan,) = json.loads((repository.folder / ".pointsman" / "runs" / run.id / "merge.json").read_text())["merges"]
    assert (plan["state"], plan["files"]) == ("merged", ["a.txt", "b.txt"])


@pytest.mark.parametrize("lifecycle", ASKS)
async def test_a_conflict_is_a_question_with_its_files_and_is_merged_after_the_answer(
    sqlite_url: str, repository: Repository, lifecycle: str
) -> None:
    async with open_shop(sqlite_url, repository.folder) as shop:
        run = await shop.submit(WORK.format(lifecycle=lifecycle, worktree="true"))
        async with shop.working(run):
            accepting = asyncio.create_task(accept_all(shop, run))
            await until_worked(shop, run, "one")
            repository.commit(a="ours\n")
            item = (await until_asked(shop, run, "run[merge]"))["run[merge]"]
            assert "conflict in 1 file" in str(item.text)
            assert "\n  a.txt\n" in str(item.text)
            assert item.choices == (RETRY, GIVE_UP)
            (worktree,) = kept(repository)
            resolve(worktree)
            await say(shop, item, "answer", answer=RETRY)
            await shop.until_done(run)
            accepting.cancel()
        tasks = await shop.tasks(run)
        assert (await shop.engine.get_run(run.id)).outcome == "success"
    assert (tasks["run[merge]"].outcome, repository.show("a"), repository.show("b")) == ("success", "both", "new")
    assert kept(repository) == []


async def until_worked(shop: Shop, run: Run, name: str) -> None:
    async with asyncio.timeout(60):
        while (await shop.tasks(run))[name].phase != "done":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_failed(shop: Shop, run: Run, name: str) -> str:
    async with asyncio.timeout(60):
        while True:
            task = (await shop.tasks(run)).get(name)
            if task is not None and task.error:
                return error(task)
            await asyncio.sleep(0.02)


def resolve(worktree: Worktree) -> None:
    inside = Repository(worktree.folder)
    with contextlib.suppress(AssertionError):
        inside.git("merge", "main")
    (worktree.folder / "a.txt").write_text("both\n")
    inside.git("commit", "--all", "--quiet", "--message", "resolved")


CLASH = """
    name: clash
    lifecycle: {lifecycle}
    worktree: true
    tasks:
      work: {{run: "echo theirs > a.txt && cd {folder} && echo ours > a.txt && git commit -qam ours"}}
    """


@pytest.mark.parametrize("lifecycle", FAILS)
async def test_where_no_task_can_ask_a_conflict_fails_with_its_files_and_keeps_the_worktree(
    sqlite_url: str, repository: Repository, lifecycle: str
) -> None:
    async with open_shop(sqlite_url, repository.folder) as shop:
        run = await shop.submit(CLASH.format(lifecycle=lifecycle, folder=repository.folder))
        async with shop.working(run):
            said = await until_failed(shop, run, "run[merge]")
        merge = (await shop.tasks(run))["run[merge]"]
    (worktree,) = kept(repository)
    assert said.startswith(f"is not merged. {worktree.branch} and main conflict in 1 file: a.txt.")
    assert "\n  a.txt\n" in said
    assert said.endswith(f": pointsman worktree merge {run.id}")
    assert "main conflict in 1 file" in read_log(repository, merge)
    assert (worktree.folder / "a.txt").read_text() == "theirs\n"
    assert (repository.show("a"), repository.show("a", worktree.branch)) == ("ours", "theirs")


async def test_giving_up_keeps_the_worktree_and_a_later_retry_asks_git_again(sqlite_url: str, repository: Repository) -> None:
    async with open_shop(sqlite_url, repository.folder) as shop:
        run = await shop.submit(CLASH.format(lifecycle="standard", folder=repository.folder))
        async with shop.working(run):
            await say(shop, (await until_asked(shop, run, "run[merge]"))["run[merge]"], "answer", answer=GIVE_UP)
            await shop.until_done(run)
        merge = (await shop.tasks(run))["run[merge]"]
        assert "a person gave up" in error(merge)
        assert (await shop.engine.get_run(run.id)).outcome == "failure"
        (worktree,) = kept(repository)
        resolve(worktree)
        await shop.engine.for_tenant(actor="ada").signal_task(merge.id, "retry")
        async with shop.working(run):
            await shop.until_done(run)
        assert (await shop.engine.get_run(run.id)).outcome == "success"
    assert repository.show("a") == "both"


async def test_the_worktree_of_a_run_that_fails_is_kept_with_its_work(sqlite_url: str, repository: Repository) -> None:
    async with open_shop(sqlite_url, repository.folder) as shop:
        run, tasks = await run_to_end(
            shop, 'name: f\nworktree: true\ntasks:\n  a: {run: "echo two > a.txt"}\n  b: {needs: a, run: "exit 3"}\n'
        )
    assert (run.outcome, [*tasks]) == ("failure", ["a", "b"])
    (worktree,) = kept(repository)
    assert ((worktree.folder / "a.txt").read_text(), repository.show("a")) == ("two\n", "one")


async def test_checks_of_a_run_come_before_its_merge(database_url: str, repository: Repository) -> None:
    flow = """
        name: f
        lifecycle: orchestrated
        worktree: true
        checks: [{{run: "{check}"}}]
        tasks:
          a: {{run: "echo 2 > a.txt"}}
        """
    async with open_shop(database_url, repository.folder) as shop:
        run, tasks = await run_to_end(shop, flow.format(check="grep 3 a.txt"))
        assert (run.outcome, [*tasks]) == ("failure", ["a", "checks"])
        assert (repository.show("a"), len(kept(repository))) == ("one", 1)
        run, tasks = await run_to_end(shop, flow.format(check="grep 2 a.txt"))
        assert (run.outcome, [*tasks]) == ("success", ["a", "checks", "run[merge]"])
    assert repository.show("a") == "2"


@pytest.mark.parametrize("lifecycle", ["standard", "orchestrated", "agent", "pipeline"])
async def test_a_task_with_a_worktree_is_merged_before_what_needs_it(
    sqlite_url: str, repository: Repository, lifecycle: str
) -> None:
    async with open_shop(sqlite_url, repository.folder) as shop:
        run, tasks = await run_to_end(
            shop,
            f"""
            name: fix
            lifecycle: {lifecycle}
            tasks:
              a: {{worktree: {{branch: fix/a, merge: squash}}, run: "echo a > b.txt"}}
              b: {{worktree: {{merge: none}}, run: "echo b > c.txt"}}
              c: {{needs: [a, b], run: "test -f b.txt && test ! -f c.txt"}}
            """,
        )
    assert run.outcome == "success", {name: error(task) for name, task in tasks.items()}
    assert [*tasks] == ["a", "a[merge]", "b", "c"]
    assert repository.subjects() == ["fix: a", "a"]
    (worktree,) = kept(repository)
    assert (worktree.task, worktree.merge) == ("b", "none")


async def test_each_item_has_a_worktree_and_subtasks_share_that_of_their_task(sqlite_url: str, repository: Repository) -> None:
    async with open_shop(sqlite_url, repository.folder) as shop:
        run, tasks = await run_to_end(
            shop,
            """
            name: fan
            tasks:
              each: {foreach: [x, y], worktree: {branch: "fix/${{ item }}"}, run: "echo ${{ item }} > ${{ item }}.txt"}
              plan:
                worktree: true
                run: |
                  echo planned > plan.txt
                  echo '{"name": "part", "run": "cat plan.txt > part.txt"}' > "$POINTSMAN_SUBTASKS"
            """,
        )
    assert run.outcome == "success", {name: error(task) for name, task in tasks.items()}
    assert {each["branch"] for each in outputs(tasks["each[merge]"])["merged"]} == {"fix/x", "fix/y"}
    assert [repository.show(name) for name in ("x", "y", "part")] == ["x", "y", "planned"]
    assert (kept(repository), repository.branches()) == ([], ["main"])


async def test_a_review_shows_all_that_would_be_merged_and_a_rejection_continues_there(
    sqlite_url: str, repository: Repository
) -> None:
    async with open_shop(sqlite_url, repository.folder) as shop:
        run = await shop.submit("""
            name: f
            lifecycle: agent
            tasks:
              a: {worktree: true, run: "echo $POINTSMAN_COMMENT. >> b.txt; git add .; git commit -qm w"}
            """)
        async with shop.working(run):
            item = (await until_asked(shop, run, "a"))["a"]
            await say(shop, item, "reject", comment="more")
            while item.attempts == 1:
                item = (await until_asked(shop, run, "a"))["a"]
            assert "+more." in str(item.diff)
            assert "+.\n" in str(item.diff), "what the first attempt has committed is there, too"
            assert repository.branches() != ["main"]
            await say(shop, item, "accept")
            await shop.until_done(run)
    assert repository.show("b") == ".\nmore."


async def test_a_review_shows_what_subtasks_have_changed_until_a_later_attempt_shows_it_itself(
    database_url: str, repository: Repository
) -> None:
    inner = '{"name": "inner", "run": "echo by inner > inner.txt"}'
    repository.commit(part=f"echo by part > made.txt; echo '{inner}' > $POINTSMAN_SUBTASKS")
    async with open_shop(database_url, repository.folder) as shop:
        run = await shop.submit("""
            name: f
            worktree: true
            tasks:
              a:
                review: true
                run: |
                  echo "by a, $POINTSMAN_COMMENT" >> a.txt
                  test -n "$POINTSMAN_COMMENT" || echo '{"name": "part", "run": "sh part.txt"}' > "$POINTSMAN_SUBTASKS"
            """)
        async with shop.working(run):
            item = (await until_asked(shop, run, "a"))["a"]
            own, _, parts = str(item.diff).partition("a/part:\n")
            part, _, inner = parts.partition("a/part/inner:\n")
            assert "+by a, \n" in own
            assert ("+by part" in part, "+by inner" in inner) == (True, True)
            assert "by a" not in parts
            await say(shop, item, "reject", comment="more")
            while item.attempts == 1:
                item = (await until_asked(shop, run, "a"))["a"]
            assert "a/part:" not in str(item.diff)
            assert all(str(item.diff).count(f"+by {name}") == 1 for name in ("a, more", "part", "inner"))
            await say(shop, item, "accept")
            await shop.until_done(run)


async def test_a_review_of_a_fan_out_shows_what_its_items_have_changed(sqlite_url: str, repository: Repository) -> None:
    async with open_shop(sqlite_url, repository.folder) as shop:
        run = await shop.submit("""
            name: f
            lifecycle: agent
            tasks:
              a: {foreach: [x, y], worktree: true, run: "echo ${{ item }} > ${{ item }}.txt"}
            """)
        async with shop.working(run):
            item = (await until_asked(shop, run, "a"))["a"]
            assert [line for line in str(item.diff).splitlines() if line.startswith(("a[", "+x", "+y"))] == [
                "a[0]:",
                "+x",
                "a[1]:",
                "+y",
            ]
            await say(shop, item, "accept")
            await shop.until_done(run)


async def test_nothing_to_merge_is_a_success(sqlite_url: str, repository: Repository) -> None:
    async with open_shop(sqlite_url, repository.folder) as shop:
        run, tasks = await run_to_end(
            shop,
            """
            name: none
            tasks:
              a: {when: "${{ 1 > 2 }}", worktree: true, run: "true"}
              b: {worktree: true, run: "true"}
            """,
        )
    assert (run.outcome, tasks["a[merge]"].state) == ("success", "SKIPPED")
    assert outputs(tasks["b[merge]"])["merged"][0]["files"] == 0
    assert (repository.subjects(), kept(repository)) == (["a"], [])


async def test_a_task_without_a_repository_fails_with_the_reason(sqlite_url: str, tmp_path: Path) -> None:
    async with open_shop(sqlite_url, tmp_path) as shop:
        tasks = await shop.run_to_end("name: f\nworktree: true\ntasks:\n  a: {run: 'true'}\n")
    assert "is in no git repository, but its flow wants a `worktree`" in error(tasks["a"])


async def test_a_retry_continues_in_the_same_worktree(sqlite_url: str, repository: Repository) -> None:
    async with open_shop(sqlite_url, repository.folder) as shop:
        run = await shop.submit(
            'name: f\nworktree: true\ntasks:\n  a: {retries: 1, run: "echo x >> b.txt; [ $(wc -l < b.txt) = 2 ]"}\n'
        )
        async with shop.working(run):
            await shop.until_done(run)
        assert (await shop.tasks(run))["a"].outcome == "success"
    assert repository.show("b") == "x\nx"
