"""An attempt from its claim to its record: what flows may ask for, done by a real worker on both databases."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.worker.shop import error, open_shop, output, outputs, until_state, until_there

from pointsman.cli.describe import read_tail
from pointsman.engine.operations.workers import GiveUpTasks
from pointsman.kernel.machine import Outcome, Phase
from pointsman.worker import checks
from pointsman.worker.log import log_parts
from pointsman.worker.process_table import read_process


async def test_inputs_and_outputs_go_from_task_to_task(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end(
            """
            name: handing on
            inputs: {greeting: hello}
            tasks:
              by_file: {run: "echo '{\\"n\\": 2}' > $POINTSMAN_OUTPUT"}
              by_stdout: {run: "echo noise >&2; echo '[1, 2]'", outputs: stdout}
              by_own_file: {run: "echo '\\"x y\\"' > mine.json", outputs: {file: mine.json}}
              gather:
                needs: [by_file, by_stdout, by_own_file]
                command: [echo, "${{ inputs.greeting }} ${{ tasks.by_file.outputs.n + 1 }} ${{ tasks.by_stdout.outputs }}"]
              quoted:
                needs: [by_own_file]
                run: "printf '<%s>' ${{ tasks.by_own_file.outputs }}"
            """,
            greeting="good; exit 1",
        )
    assert all(task.outcome == Outcome.SUCCESS for task in tasks.values())
    assert outputs(tasks["by_file"]) == {"n": 2}
    assert outputs(tasks["by_stdout"]) == [1, 2]
    assert output(tasks["gather"])["tail"] == "good; exit 1 3 [1, 2]\n"
    assert output(tasks["quoted"])["tail"] == "<x y>"


async def test_a_task_is_spread_over_items_and_their_outputs_are_gathered(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("""
            name: fan-out
            tasks:
              list: {run: "echo '[1, 2, 3]'", outputs: stdout}
              double: {needs: [list], foreach: tasks.list.outputs, run: "echo ${{ item * 2 }}", outputs: stdout}
              matrix: {foreach: {a: [1, 2], b: [x, y]}, run: "echo '\\"${{ item.a }}${{ item.b }}\\"'", outputs: stdout}
              none: {foreach: [], run: "false"}
              sum: {needs: [double, matrix, none], command: [echo, "${{ tasks.double.outputs }} ${{ tasks.matrix.outputs }}"]}
            """)
    assert output(tasks["sum"])["tail"] == '[2, 4, 6] ["1x", "1y", "2x", "2y"]\n'
    assert {name for name in tasks if name.startswith("double")} == {"double", "double[0]", "double[1]", "double[2]"}
    assert all(task.outcome == Outcome.SUCCESS for task in tasks.values())


async def test_what_items_share_is_stored_once(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        script = f"echo ${{{{ item }}}} # {'x' * 10_000}"
        tasks = await shop.run_to_end(f"""
            name: fan-out
            tasks: {{a: {{foreach: range(3), run: "{script}", retries: 1, outputs: stdout}}}}
            """)
        sizes = [len(str((await shop.engine.get_task(task.id)).payload)) for task in tasks.values()]
    assert [output(tasks[f"a[{index}]"])["outputs"] for index in range(3)] == [0, 1, 2]
    *of_items, of_parent = sorted(sizes)
    assert of_parent > 10_000
    assert max(of_items) < 200


async def test_an_item_that_fails_fails_the_whole(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("""
            name: one bad item
            tasks:
              each: {foreach: [0, 1, 0], run: "exit ${{ item }}"}
              after: {needs: [each], run: "true"}
            """)
    assert tasks["each[1]"].outcome == tasks["each"].outcome == Outcome.FAILURE
    assert tasks["after"].outcome is None


async def test_a_false_condition_skips_a_branch(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("""
            name: branches
            inputs: {publish: false}
            tasks:
              build: {run: "true"}
              publish: {needs: [build], when: inputs.publish, run: "touch published"}
              announce: {needs: [publish], run: "touch announced"}
              clean: {needs: [publish], when: "tasks.publish.skipped", run: "touch cleaned"}
            """)
        async with shop.working(run):
            await shop.until_done(run)
        tasks = await shop.tasks(run)
        history = await shop.engine.list_history(tasks["publish"].id)
    assert [name for name, task in tasks.items() if task.trigger == "skip"] == ["publish", "announce"]
    assert history[-1].reason == "its condition is false: inputs.publish"
    assert [name for name in ("published", "announced", "cleaned") if (tmp_path / name).exists()] == ["cleaned"]


async def test_where_a_machine_cannot_skip_it_counts_as_done(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("""
            name: no skipping
            lifecycle: pipeline
            tasks:
              never: {when: "false", run: "false"}
              after: {needs: [never], run: "false"}
            """)
    assert [output(task)["skipped"] for task in tasks.values()] == [True, True]


async def test_failures_are_told_apart_and_tried_again(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("""
            name: failures
            defaults: {critical: false, backoff: 0s, retries: 2}
            tasks:
              flaky: {run: "echo x >> tries; test $(wc -l < tries) -eq 3"}
              wrong: {run: "echo no such table >&2; exit 3"}
              picky: {run: "exit 3", retry_on: [75]}
              passing: {run: "exit 75", retry_on: [75]}
              killed: {run: "kill -9 $$", retry_on: [failure]}
              missing: {command: [no-such-program]}
              lost: {run: "true", cwd: nowhere}
              expected: {run: "exit 5", expected_exit_codes: [0, 5]}
              not_json: {run: "echo hello", outputs: stdout}
              no_value: {command: [echo, "${{ [1][len(run.name)] }}"]}
            """)
    assert {name: task.epoch for name, task in tasks.items()} == {
        "flaky": 3,
        "wrong": 3,
        "picky": 1,
        "passing": 3,
        "killed": 1,
        "missing": 1,
        "lost": 1,
        "expected": 1,
        "not_json": 3,
        "no_value": 1,
    }
    assert error(tasks["wrong"]) == "exited with code 3 (expected 0) – no such table"
    assert read_tail(tasks["wrong"].error) == "no such table\n"
    assert "killed by signal SIGKILL" in error(tasks["killed"])
    assert "no such program 'no-such-program'" in error(tasks["missing"])
    assert "does not exist" in error(tasks["lost"])
    assert "is not JSON" in error(tasks["not_json"])
    assert "no index 8" in error(tasks["no_value"])
    assert {name for name, task in tasks.items() if task.trigger == "complete"} == {"flaky", "expected"}


async def test_what_takes_too_long_is_ended_with_all_that_it_started(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("""
            name: limits
            defaults: {critical: false}
            tasks:
              slow: {run: "sleep 300 & echo $! > slow.pid; wait", timeout: 0.5}
              silent: {run: "echo first; sleep 300", stall_timeout: 0.5}
              chatty: {run: "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done", stall_timeout: 1s}
            """)
        async with shop.working(run):
            await shop.until_done(run)
        tasks = await shop.tasks(run)
    assert "its timeout" in error(tasks["slow"])
    assert "without output" in error(tasks["silent"])
    assert tasks["chatty"].outcome == Outcome.SUCCESS
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "slow.pid").read_text()), 0)


async def test_checks_decide_after_the_work(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("""
            name: checks
            defaults: {critical: false}
            tasks:
              good: {run: "echo all well > report.txt", checks: [{file: report.txt}, {run: "grep -q well report.txt"}]}
              bad: {run: "true", checks: [{file: nothing.txt}, {command: ["true"]}]}
            """)
    assert tasks["good"].outcome == Outcome.SUCCESS
    assert tasks["bad"].trigger == "skip", "it was not critical, so the others go on without it"
    assert "nothing.txt" in error(tasks["bad"])


async def test_python_functions_are_called_in_a_process_or_a_thread(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "etl.py").write_text(
        "import os\n"
        "def extract(count): return list(range(count))\n"
        "async def load(rows): return {'rows': len(rows), 'pid': os.getpid()}\n"
        "def fail(): raise ValueError('no rows')\n"
    )
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("""
            name: etl
            defaults: {critical: false}
            tasks:
              extract: {call: "etl:extract", with: {count: 3}}
              load: {needs: [extract], call: "etl:load", with: {rows: "${{ tasks.extract.outputs }}"}, mode: thread}
              fail: {call: "etl:fail"}
            """)
    assert outputs(tasks["extract"]) == [0, 1, 2]
    assert outputs(tasks["load"]) == {"rows": 3, "pid": os.getpid()}
    assert "ValueError: no rows" in error(tasks["fail"])


async def test_what_is_called_off_is_ended(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("""
            name: called off
            tasks:
              long: {run: "sleep 300 & echo $! > long.pid; wait"}
              next: {needs: [long], run: "true"}
            """)
        async with shop.working(run):
            await until_there(tmp_path / "long.pid")
            await shop.engine.signal_run(run.id, "cancel")
            await shop.until_done(run)
        tasks = await shop.tasks(run)
    assert {task.outcome for task in tasks.values()} == {Outcome.CANCELED}
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "long.pid").read_text()), 0)


async def test_a_worker_of_one_run_leaves_others_alone(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        other = await shop.submit("{name: other, tasks: {a: {run: 'touch other'}}}")
        await shop.run_to_end("{name: mine, tasks: {a: {run: 'touch mine'}}}")
        (task,) = (await shop.tasks(other)).values()
    assert task.phase == Phase.QUEUED
    assert (tmp_path / "mine").exists()
    assert not (tmp_path / "other").exists()


async def test_a_worker_that_is_killed_leaves_its_tasks_to_others(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("{name: twice, tasks: {a: {run: 'echo x >> begun; test $POINTSMAN_EPOCH = 2 || sleep 300'}}}")
        first = shop.worker(run)
        working = asyncio.create_task(first.work())
        await until_there(tmp_path / "begun")
        first.kill()
        await working
        async with shop.working(run):
            await shop.until_done(run)
        (task,) = (await shop.tasks(run)).values()
        attempts = await shop.engine.list_attempts(task.id)
    assert task.outcome == Outcome.SUCCESS
    assert [attempt.ended_by for attempt in attempts] == ["lease_lost", "complete"]


async def test_the_log_has_what_a_task_wrote_and_the_attempt_says_where(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("{name: loud, tasks: {a: {run: 'echo out; echo err >&2'}, b: {run: 'true'}}}")
        (attempt,) = await shop.engine.list_attempts(tasks["a"].id)
        (quiet,) = await shop.engine.list_attempts(tasks["b"].id)
    assert attempt.log_path
    assert sorted(b"".join(part.read_bytes() for part in log_parts(Path(attempt.log_path))).split()) == [b"err", b"out"]
    assert quiet.log_path is None


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.ENFILE])
async def test_a_task_does_not_fail_because_the_machine_cannot_start_a_process(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Neither its work nor its check; the system refuses the first process of each."""
    start, refused = subprocess.Popen, set[str]()

    def refuse_first(argv: tuple[str, ...], **options: Any) -> subprocess.Popen[bytes]:
        if argv[-1] not in refused:
            refused.add(argv[-1])
            raise OSError(number, os.strerror(number))
        return start(argv, **options)

    monkeypatch.setattr(subprocess, "Popen", refuse_first)
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("{name: scarce, tasks: {a: {run: 'true', checks: [{run: 'exit 0'}]}}}")
    assert refused == {"true", "exit 0"}
    assert (tasks["a"].outcome, tasks["a"].epoch) == (Outcome.SUCCESS, 1)


SIMILAR = """
name: similar
tasks:
  a:
    run: &write |
      echo $N > $POINTSMAN_OUTPUT; echo $N >> $POINTSMAN_COST; echo $N
      touch ready.$N; until [ -e ready.1 ] && [ -e ready.2 ]; do sleep 0.01; done
    env: {N: "1"}
  a.: {run: *write, env: {N: "2"}}
"""


async def test_tasks_with_similar_names_do_not_share_files(database_url: str, tmp_path: Path) -> None:
    """Both have written output, cost and log before either ends."""
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end(SIMILAR)
        logs = [(await shop.engine.list_attempts(tasks[name].id))[0].log_path for name in ("a", "a.")]
    assert [(outputs(tasks[name]), tasks[name].cost_usd) for name in ("a", "a.")] == [(1, Decimal(1)), (2, Decimal(2))]
    assert [read_log(log) for log in logs] == ["1\n", "2\n"]


def read_log(path: str | None) -> str:
    assert path
    return Path(path).read_text()


async def test_what_runs_is_suspended_with_its_run_where_the_settings_say_so(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path, on_pause="suspend") as shop:
        run = await shop.submit("{name: held, tasks: {a: {run: 'echo $$ > a.pid; until test -e go; do sleep 0.05; done'}}}")
        async with shop.working(run):
            await until_there(tmp_path / "a.pid")
            pid = int((tmp_path / "a.pid").read_text())
            await shop.engine.signal_run(run.id, "pause")
            await until_state(pid, "T")
            await shop.engine.signal_run(run.id, "resume")
            await until_state(pid, "S")
            (tmp_path / "go").touch()
            await shop.until_done(run)
        (task,) = (await shop.tasks(run)).values()
    assert (task.outcome, task.epoch) == (Outcome.SUCCESS, 1)


def make_slow_git(folder: Path) -> Path:
    """A repository, and a git that takes a second for each command."""
    git = shutil.which("git")
    slow = folder / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec {git} "$@"\n')
    slow.chmod(0o755)
    subprocess.run([str(git), "init", "-q", folder], check=True)
    return slow.parent


async def test_a_heartbeat_before_the_work_begins_does_not_prolong_its_timeout(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a task that is reviewed, the worker asks git for changes; heartbeats are answered meanwhile."""
    monkeypatch.setenv("PATH", f"{make_slow_git(tmp_path)}{os.pathsep}{os.environ['PATH']}")
    async with open_shop(sqlite_url, tmp_path, lease_seconds=1.0) as shop:
        flow = "{name: slow, lifecycle: agent, tasks: {a: {command: [sleep, '600'], timeout: 0.2s}}}"
        task = (await shop.run_to_end(flow))["a"]
    assert task.state == "TIMED_OUT"
    assert "It was stopped after 0.2s" in str(task.error), "by its worker, not by the engine much later"


async def test_the_end_of_a_task_and_the_claim_of_the_next_share_a_commit(database_url: str, tmp_path: Path) -> None:
    lines = [f"  t{number}: {{command: ['true']}}" for number in range(30)]
    async with open_shop(database_url, tmp_path, slots=2) as shop:
        run = await shop.submit("\n".join(["name: many", "tasks:", *lines, ""]))
        commits = shop.engine.commit_metrics.batches
        async with shop.working(run):
            await shop.until_done(run)
            commits = shop.engine.commit_metrics.batches - commits
    others = 10  # to come, to be heard of, to look for what is not there
    assert commits <= 30 + others


async def test_what_cannot_be_recorded_fails_alone_and_says_so(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("def fail(): raise ValueError('\\ud800 x\\0y')\ndef lone(): return '\\ud800'\n")
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("""
            name: odd
            defaults: {critical: false}
            tasks:
              lone: {call: "odd:lone", mode: thread}
              good: {call: "builtins:len", with: {obj: [1]}, mode: thread}
              fail: {call: "odd:fail"}
              pipe: {run: "mkfifo $POINTSMAN_OUTPUT"}
              fine: {run: "true"}
            """)
    assert tasks["fine"].trigger == "complete"
    assert "ValueError" in error(tasks["fail"])
    assert "is not a file" in error(tasks["pipe"])
    assert tasks["lone"].trigger == tasks["fail"].trigger == tasks["pipe"].trigger == "skip"


async def test_outputs_of_before_are_not_taken_for_new_ones(database_url: str, tmp_path: Path) -> None:
    stale = tmp_path / "stale.json"
    stale.write_text("1")
    os.utime(stale, (1, 1))
    async with open_shop(database_url, tmp_path) as shop:
        tasks = await shop.run_to_end("{name: stale, tasks: {a: {run: 'true', outputs: {file: stale.json}}}}")
    assert "the file there is older" in error(tasks["a"])


async def test_a_check_is_ended_with_its_task(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("{name: slow check, tasks: {a: {run: 'true', checks: [{run: 'echo $$ > a.pid; sleep 300'}]}}}")
        async with shop.working(run):
            await until_there(tmp_path / "a.pid")
            await shop.engine.signal_run(run.id, "cancel")
            await shop.until_done(run)
        (task,) = (await shop.tasks(run)).values()
    assert task.outcome == Outcome.CANCELED
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "a.pid").read_text()), 0)


async def test_a_pattern_that_would_take_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = checks.run_checks.__kwdefaults__
    assert defaults
    monkeypatch.setitem(defaults, "seconds", 5.0)
    async with open_shop(f"sqlite:///{tmp_path}/state.db", tmp_path) as shop:
        tasks = await shop.run_to_end(f"""
            name: pattern
            defaults: {{critical: false}}
            tasks:
              endless: {{command: [echo, {"a" * 39}b], checks: [{{output: '(a+)+$'}}]}}
              quick: {{command: [echo, done 12 of 12], checks: [{{output: '^done \\d+ of \\d+$'}}]}}
            """)
    assert "did not finish within 5 seconds" in error(tasks["endless"])
    assert tasks["quick"].trigger == "checks_passed"


async def test_the_end_of_a_run_ends_what_runs_in_it(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("{name: short, timeout: 1s, tasks: {a: {run: 'sleep 300'}}}")
        async with shop.working(run):
            await shop.until_done(run)
        (task,) = (await shop.tasks(run)).values()
    assert "its run reached its timeout of 1s" in error(task)


async def test_what_a_task_says_goes_before_what_its_tool_says(database_url: str, tmp_path: Path) -> None:
    tool = (
        '[tools.shell]\ncommand = ["/bin/sh", "-c"]\nexpected_exit_codes = [0, 3]\n[tools.shell.env]\nA = "tool"\nB = "tool"\n'
    )
    (tmp_path / "pointsman.toml").write_text(tool)
    async with open_shop(database_url, tmp_path) as shop:
        await shop.engine.declare_tool("shell")
        tasks = await shop.run_to_end("""
            name: who says it
            env: {A: flow, B: flow, C: flow}
            tasks:
              variables: {tool: shell, env: {A: task}, command: ["echo $A $B $C"]}
              code_of_tool: {tool: shell, command: ["exit 3"]}
              code_of_task: {tool: shell, expected_exit_codes: 0, critical: false, command: ["exit 3"]}
            """)
    assert output(tasks["variables"])["tail"] == "task tool flow\n"
    assert tasks["code_of_tool"].trigger == "complete"
    assert tasks["code_of_task"].trigger == "skip", "it failed, and is not critical"
    assert error(tasks["code_of_task"]) == "exited with code 3 (expected 0)"


async def test_what_a_person_skips_lets_the_others_go_on(database_url: str, tmp_path: Path) -> None:
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("""
            name: skipped by hand
            tasks:
              first: {run: "false"}
              second: {needs: [first], run: "echo ${{ tasks.first.skipped }} ${{ tasks.first.outputs }}"}
            """)
        await shop.engine.signal_task((await shop.tasks(run))["first"].id, "skip")
        async with shop.working(run):
            await shop.until_done(run)
        tasks = await shop.tasks(run)
    assert [task.state for task in tasks.values()] == ["SKIPPED", "SUCCEEDED"]
    assert output(tasks["second"])["tail"] == "false \n"


FAN_OUT = """
name: fan-out
tasks:
  each: {foreach: [a, b, c], run: "test ${{ item }} != b -o -e mended && echo '\\"${{ item }}\\"' > $POINTSMAN_OUTPUT"}
  after: {needs: [each], command: [echo, "${{ tasks.each.outputs }}"]}
"""


@pytest.mark.parametrize(
    ("signal", "name", "told"),
    [("retry", "each[1]", '["a", "b", "c"]'), ("skip", "each[1]", '["a", null, "c"]'), ("skip", "each", None)],
)
async def test_a_fan_out_that_failed_goes_on_as_a_person_wants(
    database_url: str, tmp_path: Path, signal: str, name: str, told: str | None
) -> None:
    async with open_shop(database_url, tmp_path, slots=1) as shop:
        run = await shop.submit(FAN_OUT)
        async with shop.working(run):
            await shop.until_done(run)
        tasks = await shop.tasks(run)
        assert (tasks["each[1]"].state, tasks["each"].state) == ("FAILED", "FAILED")
        (tmp_path / "mended").touch()
        await shop.engine.signal_task(tasks[name].id, signal)
        async with shop.working(run):
            await shop.until_done(run)
        tasks = await shop.tasks(run)
        ended = await shop.engine.get_run(run.id)
    assert ended.outcome == Outcome.SUCCESS, {task.name: task.state for task in tasks.values()}
    if told is not None:
        assert output(tasks["after"])["tail"] == f"{told}\n"
    assert tasks["each[0]"].epoch == 1, "what was done is not done again"


async def test_short_work_shares_commits(sqlite_url: str, tmp_path: Path) -> None:
    """Two at a time: what ends at about the same time is reported, and the next two are claimed, in one commit."""
    count = 100
    (tmp_path / "short.py").write_text("def nothing():\n    pass\n")
    tasks = "".join(f"  t{number}: {{call: 'short:nothing', mode: thread}}\n" for number in range(count))
    async with open_shop(sqlite_url, tmp_path, slots=2) as shop:
        run = await shop.submit(f"name: short\ntasks:\n{tasks}")
        before = shop.engine.commit_metrics.batches
        async with shop.working(run):
            await shop.until_done(run)
        assert {task.state for task in (await shop.tasks(run)).values()} == {"SUCCEEDED"}
        commits = shop.engine.commit_metrics.batches - before
    assert commits < 0.8 * count, "one for each of them, if none waited for its neighbour"


async def test_a_worker_begins_no_task_that_it_still_runs(database_url: str, tmp_path: Path) -> None:
    """It can lose a lease and claim the task again before a heartbeat tells it; and its work may take its time to end."""
    async with open_shop(database_url, tmp_path) as shop:
        run = await shop.submit("""
            name: again
            tasks:
              a: {run: "trap '' TERM; echo $$ > pid.$POINTSMAN_EPOCH; until [ -e go ]; do sleep 0.02; done"}
            """)
        async with shop.working(run):
            await until_there(tmp_path / "pid.1")
            (task,) = (await shop.tasks(run)).values()
            assert task.attempt_worker_id
            await shop.engine.perform(GiveUpTasks(task.attempt_worker_id, ((task.id, 1),)))
            await until_there(tmp_path / "pid.2")
            first = read_process(int((tmp_path / "pid.1").read_text()))
            assert first is None or first.has_ended
            (tmp_path / "go").touch()
            await shop.until_done(run)
        (task,) = (await shop.tasks(run)).values()
    assert (task.outcome, task.epoch) == (Outcome.SUCCESS, 2)
