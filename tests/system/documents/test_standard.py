"""The default lifecycle, the union of the five: every row of its tables of tasks and runs, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.databases import DATABASES
from tests.system.documents.harness import Project, Scenario, Scenarios, play, until

SCENARIOS = Scenarios("standard", recovery=(), machines=("task", "run"))


@SCENARIOS.add(
    "run: PENDING -> RUNNING : start",
    "run: RUNNING -> WAITING : wait",
    "run: WAITING -> RUNNING : proceed",
    "run: WAITING -> SUCCEEDED : complete",
    "task: PENDING -> QUEUED : ready",
    "task: PENDING -> WAITING_APPROVAL : ready",
    "task: QUEUED -> RUNNING : claim",
    "task: RUNNING -> BLOCKED : ask",
    "task: BLOCKED -> QUEUED : answer",
    "task: RUNNING -> SUCCEEDED : complete",
    "task: RUNNING -> READY : complete",
    "task: RUNNING -> BLOCKED : complete",
    "task: BLOCKED -> SUCCEEDED : children_done",
    "task: RUNNING -> VALIDATING : complete",
    "task: VALIDATING -> READY : checks_passed",
    "task: VALIDATING -> BLOCKED : checks_passed",
    "task: VALIDATING -> SUCCEEDED : checks_passed",
    "task: BLOCKED -> READY : children_done",
    "task: READY -> PENDING : reject",
    "task: READY -> SUCCEEDED : accept",
    "task: WAITING_APPROVAL -> WAITING_APPROVAL : approve",
    "task: WAITING_APPROVAL -> SUCCEEDED : approve",
)
def people_answer_review_and_approve(project: Project) -> None:
    project.write_flow("""
        name: note
        tasks:
          plan: {run: 'test -n "$POINTSMAN_ANSWER" || echo "For whom?" > "$POINTSMAN_QUESTION"'}
          look: {run: 'echo ''{"name": "part", "run": "true"}'' > "$POINTSMAN_SUBTASKS"'}
          tested: {run: 'true', checks: [{run: 'true'}]}
          draft: {needs: plan, review: true, run: 'echo "$POINTSMAN_COMMENT" >> draft.txt'}
          page: {needs: plan, review: true, run: 'true', checks: [{file: flow.yaml}]}
          book:
            needs: plan
            review: true
            run: 'echo ''{"name": "part", "run": "true"}'' > "$POINTSMAN_SUBTASKS"'
            checks: [{run: 'true'}]
          ship: {needs: [draft, page, book, look, tested], approval: {by: [ada, ben], quorum: 2}}
    """)
    run = project.start("run", "flow.yaml")
    project.wait_for("WAITING", plan="BLOCKED", look="SUCCEEDED", tested="SUCCEEDED")
    project.call("answer", "latest", "plan", "all")
    project.wait_for("WAITING", draft="READY", page="READY", book="READY")
    project.follow(project.expect("WAITING", draft="READY"), "reject", "--comment", "shorter")
    until(lambda: (project.folder / "draft.txt").read_text() == "\nshorter\n")
    project.wait_for("WAITING", draft="READY")
    for name in ("draft", "page", "book"):
        project.call("accept", "latest", name)
    project.wait_for("WAITING", ship="WAITING_APPROVAL")
    assert "1 of 2 approvals: ada" in project.call("approve", "latest", "ship", "--as", "ada").out
    assert "WAITING → SUCCEEDED" in project.call("approve", "latest", "ship", "--as", "ben").out
    assert "SUCCEEDED  note: 9 of 9 tasks done" in run.wait().text


@SCENARIOS.add(
    "run: RUNNING -> VALIDATING : complete",
    "run: VALIDATING -> SUCCEEDED : checks_passed",
    "run: RUNNING -> RETRYING : fail",
    "run: RETRYING -> RUNNING : delay_over",
    "run: VALIDATING -> RETRYING : checks_failed",
    "task: RUNNING -> RETRYING : fail",
    "task: RUNNING -> RETRYING : expire",
    "task: VALIDATING -> RETRYING : checks_failed",
    "task: RETRYING -> QUEUED : delay_over",
    "task: RUNNING -> SKIPPED : skip",
)
def failures_are_retried(project: Project) -> None:
    project.write_flow("""
        name: build
        retries: 2
        backoff: 0.1s
        defaults: {backoff: 0.1s}
        tasks:
          fetch: {run: 'test $POINTSMAN_ATTEMPT -gt 1', retries: 1}
          load: {run: 'test $POINTSMAN_ATTEMPT -gt 1 || sleep 60', timeout: 0.5s, retries: 1}
          test: {run: 'echo >> tries', checks: [{run: '[ $(wc -l < tries) = 2 ]'}], retries: 1}
          mail: {run: 'true', when: 1 == 2}
          once: {needs: [fetch, load, test], run: 'test -e once || { touch once; exit 1; }'}
        checks: [{run: 'test -e checked || { touch checked; exit 1; }'}]
    """)
    said = project.call("run", "flow.yaml")
    assert "SUCCEEDED  build: 6 of 6 tasks done (1 skipped)" in said.text
    assert (project.folder / "checked").exists()


@SCENARIOS.add(
    "run: RUNNING -> SUCCEEDED : complete",
    "run: RUNNING -> FAILED : fail",
    "run: FAILED -> RUNNING : retry",
    "run: VALIDATING -> FAILED : checks_failed",
    "task: RUNNING -> FAILED : fail",
    "task: FAILED -> QUEUED : retry",
    "task: FAILED -> QUEUED : resume",
    "task: RUNNING -> TIMED_OUT : expire",
    "task: TIMED_OUT -> QUEUED : retry",
    "task: TIMED_OUT -> QUEUED : resume",
    "task: RUNNING -> BUDGET_EXCEEDED : overspend",
    "task: BUDGET_EXCEEDED -> QUEUED : retry",
    "task: BUDGET_EXCEEDED -> QUEUED : resume",
    "task: VALIDATING -> FAILED : checks_failed",
    "task: BLOCKED -> FAILED : child_failed",
    "task: FAILED, TIMED_OUT, BUDGET_EXCEEDED -> SKIPPED : skip",
)
def people_mend_what_failed(project: Project) -> None:
    project.write_flow("{name: build, tasks: {work: {run: 'test $POINTSMAN_ATTEMPT -gt 1'}}}")
    said = project.call("run", "flow.yaml", code=1)
    refused = project.call("resume", "latest", "work", code=2).err
    assert refused.startswith("error: work has no session to continue. Possible now: ")
    assert "resume" not in project.call("doctor", code=1).out
    project.follow(said, "retry")

    project.write_flow("""
        name: slow
        tasks:
          load:
            timeout: 0.5s
            run: |
              echo "$POINTSMAN_SESSION" >> sessions.txt
              case $POINTSMAN_ATTEMPT in 1|2) sleep 60;; 3) exit 1;; esac
    """)
    said = project.call("run", "flow.yaml", code=1)
    project.follow(said, "retry", code=1)
    for code in (1, 0):
        project.call("resume", "latest", "load", code=code)
    project.expect("SUCCEEDED", load="SUCCEEDED")
    sessions = (project.folder / "sessions.txt").read_text().split()
    assert sessions[0] != sessions[1] == sessions[2] == sessions[3]
    project.write_flow("{name: slow, tasks: {load: {run: sleep 60, timeout: 0.5s}}}")
    project.follow(project.call("run", "flow.yaml", code=1), "skip")
    project.expect("SUCCEEDED", load="SKIPPED")

    project.write_flow("""
        name: dear
        budget_usd: 1
        tasks:
          ask:
            timeout: 5s
            run: |
              case $POINTSMAN_ATTEMPT in 1) sleep 60;; 2|3) echo 2 > "$POINTSMAN_COST"; sleep 60;; esac
    """)
    project.call("run", "flow.yaml", code=1)
    project.call("resume", "latest", "ask", code=1)
    project.expect("FAILED", ask="BUDGET_EXCEEDED")
    project.call("budget", "set", "latest", "3")
    project.call("resume", "latest", "ask", code=1)
    project.expect("FAILED", ask="BUDGET_EXCEEDED")
    project.call("budget", "set", "latest", "9")
    project.call("retry", "latest", "ask")
    project.call("resume", "latest")
    project.write_flow("{name: dear, tasks: {ask: {budget_usd: 1, run: 'echo 2 > \"$POINTSMAN_COST\"; sleep 60'}}}")
    project.call("run", "flow.yaml", code=1)
    project.call("skip", "latest", "ask")
    project.expect("SUCCEEDED", ask="SKIPPED")

    project.write_flow("""
        name: parts
        tasks:
          split: {run: 'echo ''{"name": "part", "run": "false"}'' > "$POINTSMAN_SUBTASKS"'}
          check: {run: 'true', checks: [{file: missing.txt}]}
    """)
    run = project.start("run", "flow.yaml")
    run.wait(1)
    project.expect("FAILED", split="FAILED", check="FAILED")
    for name in ("check", "split"):
        project.call("skip", "latest", name)
    project.expect("SUCCEEDED", split="SKIPPED", check="SKIPPED")

    project.write_flow("{name: whole, tasks: {build: {run: 'true'}}, checks: [{file: missing.txt}]}")
    said = project.call("run", "flow.yaml", code=1)
    project.write("missing.txt")
    project.follow(said, "retry")
    project.expect("SUCCEEDED", checks="SUCCEEDED")


@SCENARIOS.add(
    "task: RUNNING, VALIDATING -> QUEUED : lease_lost",
    "task: RUNNING, VALIDATING -> FAILED : lease_lost",
)
def a_lost_attempt_is_repeated_while_there_are_attempts(project: Project) -> None:
    project.write_flow("""
        name: build
        tasks:
          build: {run: 'test -e built || { touch building; sleep 60; }'}
          check: {run: 'true', checks: [{run: 'test -e checked || { touch checking; sleep 60; }'}]}
    """)
    kill_at_work(project, "building", "checking")
    project.write("built")
    project.write("checked")
    project.follow(project.expect("RUNNING (interrupted)"), "resume")
    project.expect("SUCCEEDED", build="SUCCEEDED", check="SUCCEEDED")

    project.write_flow("""
        name: once
        defaults: {max_attempts: 1}
        tasks:
          build: {run: 'touch once; sleep 60'}
          check: {run: 'true', checks: [{run: 'touch last; sleep 60'}]}
    """)
    kill_at_work(project, "once", "last")
    said = project.follow(project.expect("RUNNING (interrupted)"), "resume", code=1)
    assert "has ended: FAILED" in said.text
    for name in ("build", "check"):
        assert f"{name} is FAILED and is not retried: it has used up its attempts (1)" in project.call("doctor", code=1).out
        project.call("skip", "latest", name)
    project.expect("SUCCEEDED", build="SKIPPED", check="SKIPPED")


def kill_at_work(project: Project, *marks: str) -> None:
    """Kill the worker of the flow when its tasks have left these marks."""
    run = project.start("run", "flow.yaml")
    for mark in marks:
        until((project.folder / mark).exists, lambda: project.said)
    run.kill()


@SCENARIOS.add(
    "run: RUNNING, PENDING, WAITING, PAUSED, VALIDATING, RETRYING -> CANCELED : cancel",
    "run: PENDING, RUNNING, WAITING -> PAUSED : pause",
    "run: PAUSED -> RUNNING : resume",
    "run: WAITING -> RETRYING : fail",
    "run: WAITING -> FAILED : fail",
    "run: WAITING -> VALIDATING : complete",
    "task: WAITING_APPROVAL -> FAILED : reject",
    "task: PENDING, QUEUED, RETRYING, WAITING_APPROVAL -> SKIPPED : skip",
    "task: PENDING, QUEUED, RUNNING, VALIDATING, RETRYING, WAITING_APPROVAL, BLOCKED, READY -> CANCELED : cancel",
)
def people_pause_skip_and_cancel(project: Project) -> None:
    project.write_flow("""
        name: many
        tasks:
          runs: {run: sleep 60}
          validates: {run: 'true', checks: [{run: sleep 60}]}
          retries: {run: exit 1, retries: 1, backoff: 1h}
          again: {run: exit 1, retries: 1, backoff: 1h}
          queues: {run: 'true', needs_capabilities: gpu}
          waits: {needs: runs, run: 'true'}
          gate: {approval: 'Go on?'}
          asks: {run: 'echo "Which?" > "$POINTSMAN_QUESTION"'}
          shows: {run: 'true', review: true}
    """)
    run = project.start("run", "flow.yaml", slots=4)
    states = {"runs": "RUNNING", "validates": "VALIDATING", "retries": "RETRYING", "again": "RETRYING", "queues": "QUEUED"}
    project.wait_for("RUNNING", **states, waits="PENDING", gate="WAITING_APPROVAL", asks="BLOCKED", shows="READY")
    project.call("skip", "latest", "again")
    assert "RUNNING → PAUSED" in project.follow(project.expect("RUNNING"), "pause").out
    project.follow(project.expect("PAUSED"), "cancel", "--reason", "not today")
    assert "CANCELED  many: 1 of 9 tasks done (1 skipped), 8 canceled" in run.wait(1).text
    until(lambda: not project.find_work())

    project.write_flow("{name: few, tasks: {one: {run: 'true'}, two: {needs: one, run: 'true'}, gate: {approval: true}}}")
    project.submit()
    for name in ("two", "one", "gate"):
        project.call("skip", "latest", name)
    project.expect("SUCCEEDED", one="SKIPPED", two="SKIPPED", gate="SKIPPED")
    project.submit()
    project.follow(project.expect("PENDING"), "cancel")
    project.submit()
    project.call("pause", "latest")
    run = project.start("resume", "latest")
    project.wait_for("WAITING", two="SUCCEEDED", gate="WAITING_APPROVAL")
    project.call("pause", "latest")
    project.follow(project.expect("PAUSED"), "cancel")
    run.wait(1)
    project.write_flow("{name: gate, tasks: {gate: {approval: true}}}")
    project.submit()
    project.follow(project.expect("WAITING"), "cancel")
    project.submit()
    project.call("reject", "latest", "gate")
    project.follow(project.expect("FAILED", gate="FAILED"), "skip")
    project.write_flow("{name: long, tasks: {work: {run: sleep 60}}}")
    run = project.start("run", "flow.yaml")
    project.wait_for("RUNNING", work="RUNNING")
    project.follow(project.expect("RUNNING", work="RUNNING"), "cancel")
    run.wait(1)
    project.write_flow("{name: gate, retries: 1, backoff: 1h, tasks: {gate: {approval: true}}}")
    project.submit()
    project.call("reject", "latest", "gate")
    project.follow(project.expect("RETRYING", gate="FAILED"), "cancel")
    project.write_flow("{name: gate, tasks: {gate: {approval: true}}, checks: [{run: sleep 60}]}")
    run = project.start("run", "flow.yaml")
    project.wait_for("WAITING", gate="WAITING_APPROVAL")
    project.call("approve", "latest")
    project.wait_for("VALIDATING", gate="SUCCEEDED", checks="VALIDATING")
    project.follow(project.expect("VALIDATING"), "cancel")
    run.wait(1)


def test_every_row_has_a_scenario() -> None:
    SCENARIOS.check_coverage()


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("scenario", SCENARIOS.scenarios, ids=lambda scenario: scenario.name)
def test_the_command_line_takes_it_through_the_document(scenario: Scenario, tmp_path: Path, database: str) -> None:
    play(scenario, tmp_path, database)
