"""The checker itself: it takes what can be, with or without lost answers, and refuses what cannot, in words."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rows import each_row
from tests.system.histories import models
from tests.system.histories.checker import Unexplained, check_history
from tests.system.histories.record import Record
from tests.system.histories.recorder import Journal, read_journal
from tests.system.histories.written import LEASE_SECONDS, StoreFixture

History = Callable[[StoreFixture], None]
GOOD: list[History] = []
BAD: list[tuple[History, str]] = []


def good(history: History) -> History:
    GOOD.append(history)
    return history


def bad(subject: str) -> Callable[[History], History]:
    """A history that cannot be, and what it cannot be the history of."""

    def note(history: History) -> History:
        BAD.append((history, subject))
        return history

    return note


# one task and its attempts


def claimed(db: StoreFixture, **options: Any) -> None:
    db.register("bob", "eve")
    db.submit("a", **options)
    db.claim("bob", "a", 1)


@good
def a_task_from_end_to_end(db: StoreFixture) -> None:
    claimed(db)
    db.beat("bob", "a", 1)
    db.look("a", "RUNNING", 1)
    db.complete("a", 1)
    db.look("a", "SUCCEEDED", 1)


@good
def a_duplicate_completion_is_refused(db: StoreFixture) -> None:
    claimed(db)
    with db.at_once():
        db.complete("a", 1, "LeaseLost")
        db.complete("a", 1)


@bad("task a")
def two_completions_of_one_epoch_are_both_acknowledged(db: StoreFixture) -> None:
    claimed(db)
    with db.at_once():
        db.complete("a", 1)
        db.complete("a", 1)


@good
def a_task_goes_to_another_worker_when_its_lease_is_over(db: StoreFixture) -> None:
    claimed(db)
    db.wait(LEASE_SECONDS)
    db.claim("eve", "a", 2)
    db.beat("bob", "a", 1, lost=True)
    db.complete("a", 1, "LeaseLost")
    db.complete("a", 2)


@bad("task a")
def a_lease_is_over_before_its_time(db: StoreFixture) -> None:
    claimed(db)
    db.wait(LEASE_SECONDS / 2)
    db.beat("bob", "a", 1)
    db.wait(LEASE_SECONDS / 2 + 1)
    db.claim("eve", "a", 2)


@bad("task a")
def a_stale_heartbeat_is_accepted(db: StoreFixture) -> None:
    claimed(db)
    db.wait(LEASE_SECONDS)
    db.claim("eve", "a", 2)
    db.beat("bob", "a", 1)


@bad("task a")
def a_heartbeat_is_lost_without_a_reason(db: StoreFixture) -> None:
    claimed(db)
    db.beat("bob", "a", 1, lost=True)
    db.complete("a", 1)


@bad("task a")
def a_zombie_completes_after_another_has_taken_over(db: StoreFixture) -> None:
    claimed(db)
    db.wait(LEASE_SECONDS)
    db.claim("eve", "a", 2)
    db.complete("a", 1)


@bad("task a")
def two_claims_have_the_same_epoch(db: StoreFixture) -> None:
    db.register("bob", "eve")
    db.submit("a")
    with db.at_once():
        db.claim("bob", "a", 1)
        db.claim("eve", "a", 1)


@bad("task a")
def an_epoch_is_left_out(db: StoreFixture) -> None:
    claimed(db)
    db.wait(LEASE_SECONDS)
    db.claim("eve", "a", 3)


@good
def an_epoch_is_left_out_because_an_answer_was_lost(db: StoreFixture) -> None:
    db.register("bob", "eve", "joe")
    db.submit("a")
    db.tell("claim_tasks", fate="unknown", worker_id="joe")
    db.wait(LEASE_SECONDS)
    db.claim("eve", "a", 2)
    db.complete("a", 2)


@bad("task a")
def a_task_is_claimed_after_its_completion(db: StoreFixture) -> None:
    claimed(db)
    db.complete("a", 1)
    db.wait(LEASE_SECONDS)
    db.claim("eve", "a", 2)


@bad("task a")
def a_task_is_reclaimed_more_often_than_it_may_be(db: StoreFixture) -> None:
    claimed(db, max_reclaims=1)
    for epoch in (2, 3):
        db.wait(LEASE_SECONDS)
        db.claim("eve", "a", epoch)


@bad("task a")
def a_retry_that_nobody_agreed_to(db: StoreFixture) -> None:
    claimed(db)
    db.fail("a", 1)
    db.claim("eve", "a", 2)


@good
def a_failure_is_retried_as_agreed(db: StoreFixture) -> None:
    claimed(db, max_retries=1)
    db.tell("fail_task", None, fate="unknown", task_id="a", epoch=1, error="no")
    db.claim("eve", "a", 2)
    db.look("a", "RUNNING", 2, retry_count=1, worker_id="eve")
    db.fail("a", 2, {**row("a", "FAILED", 2), "retry_count": 1})


@bad("task a")
def a_failure_is_not_counted(db: StoreFixture) -> None:
    claimed(db, max_retries=1)
    db.fail("a", 1, row("a", "RETRYING", 1))


def row(task: str, state: str, epoch: int) -> dict[str, Any]:
    db = StoreFixture()
    db.look(task, state, epoch)
    answer: dict[str, Any] = db.records[0].answer
    return answer


# complete against cancel


@good
def cancel_loses_against_completion(db: StoreFixture) -> None:
    claimed(db)
    with db.at_once():
        db.signal("a", "cancel", "TransitionRefused")
        db.complete("a", 1)


@good
def completion_loses_against_cancel(db: StoreFixture) -> None:
    claimed(db)
    with db.at_once():
        db.complete("a", 1, "LeaseLost")
        db.signal("a", "cancel", "CANCELED", epoch=1)


@bad("task a")
def cancel_and_completion_both_win(db: StoreFixture) -> None:
    claimed(db)
    with db.at_once():
        db.complete("a", 1)
        db.signal("a", "cancel", "CANCELED", epoch=1)


@bad("task a")
def cancel_and_completion_both_lose(db: StoreFixture) -> None:
    claimed(db)
    with db.at_once():
        db.complete("a", 1, "LeaseLost")
        db.signal("a", "cancel", "TransitionRefused")


@good
def a_completion_whose_answer_was_lost_wins(db: StoreFixture) -> None:
    claimed(db)
    db.tell("complete_task", None, fate="unknown", task_id="a", epoch=1)
    db.signal("a", "cancel", "TransitionRefused")
    db.look("a", "SUCCEEDED", 1)


@good
def a_completion_whose_answer_was_lost_comes_late(db: StoreFixture) -> None:
    claimed(db)
    db.tell("complete_task", None, fate="unknown", task_id="a", epoch=1)
    db.beat("bob", "a", 1)
    db.look("a", "SUCCEEDED", 1)


@bad("task a")
def a_lost_completion_takes_back_what_was_seen(db: StoreFixture) -> None:
    claimed(db)
    db.tell("complete_task", None, fate="unknown", task_id="a", epoch=1)
    db.look("a", "SUCCEEDED", 1)
    db.look("a", "RUNNING", 1)


@bad("task a")
def an_answer_reports_a_state_that_was_never_reached(db: StoreFixture) -> None:
    claimed(db)
    db.complete("a", 1, "READY")


@good
def an_answer_reports_what_followed_in_the_same_commit(db: StoreFixture) -> None:
    claimed(db, review=True)
    with db.at_once():
        db.complete("a", 1, "SUCCEEDED")
        db.signal("a", "accept", "SUCCEEDED", epoch=1)


@bad("task a")
def the_output_is_that_of_somebody_else(db: StoreFixture) -> None:
    claimed(db)
    db.complete("a", 1, output="of bob")
    db.look("a", "SUCCEEDED", 1, output='"of eve"')


@good
def a_task_whose_worker_is_terminated_goes_to_another(db: StoreFixture) -> None:
    claimed(db)
    with db.at_once():
        db.tell("signal_worker", {"id": "bob"}, worker_id="bob", signal="terminate")
        db.complete("a", 1, "LeaseLost")
    db.claim("eve", "a", 2)


@bad("task a")
def a_terminated_worker_completes(db: StoreFixture) -> None:
    claimed(db)
    db.tell("signal_worker", {"id": "bob"}, worker_id="bob", signal="terminate")
    db.complete("a", 1)


# people


@good
def one_of_two_approvers_decides(db: StoreFixture) -> None:
    db.submit("a", gate=True)
    with db.at_once():
        db.signal("a", "approve", "TransitionRefused")
        db.signal("a", "reject", "FAILED")


@bad("task a")
def two_approvers_decide_differently_and_both_hear_yes(db: StoreFixture) -> None:
    db.submit("a", gate=True)
    with db.at_once():
        db.signal("a", "approve", "SUCCEEDED")
        db.signal("a", "reject", "FAILED")


@good
def two_people_approve_and_the_second_passes_the_gate(db: StoreFixture) -> None:
    db.submit("a", gate=True, quorum=2, approvers=["ada", "bob"])
    with db.at_once():
        db.signal("a", "approve", "WAITING_APPROVAL", actor="ada")
        db.signal("a", "approve", "SUCCEEDED", actor="bob")
        db.signal("a", "approve", "NotAllowed", actor="eve")


@bad("task a")
def the_first_of_two_approvals_is_lost(db: StoreFixture) -> None:
    db.submit("a", gate=True, quorum=2)
    db.signal("a", "approve", "WAITING_APPROVAL", actor="ada")
    db.signal("a", "approve", "WAITING_APPROVAL", actor="bob")


@bad("task a")
def one_person_passes_a_gate_that_asks_for_two(db: StoreFixture) -> None:
    db.submit("a", gate=True, quorum=2)
    db.signal("a", "approve", "WAITING_APPROVAL", actor="ada")
    db.signal("a", "approve", "SUCCEEDED", actor="ada")


@good
def a_gate_that_expires_is_skipped_if_it_says_so(db: StoreFixture) -> None:
    db.submit("a", gate=True, approval_seconds=0.0, on_expiry="skip")
    db.look("a", "SKIPPED", 0)


@bad("task a")
def a_worker_claims_a_gate(db: StoreFixture) -> None:
    db.register("bob")
    db.submit("a", gate=True)
    db.claim("bob", "a", 1)


def asked(db: StoreFixture) -> None:
    claimed(db)
    db.tell("ask", row("a", "BLOCKED", 1), task_id="a", epoch=1, question="which?")


@good
def one_of_two_answers_counts(db: StoreFixture) -> None:
    asked(db)
    with db.at_once():
        db.signal("a", "answer", "QUEUED", epoch=1, answer="this")
        db.signal("a", "answer", "TransitionRefused", answer="that")
    db.claim("eve", "a", 2, answer="this")


@bad("task a")
def two_answers_to_one_question_both_count(db: StoreFixture) -> None:
    asked(db)
    with db.at_once():
        db.signal("a", "answer", "QUEUED", epoch=1, answer="this")
        db.signal("a", "answer", "QUEUED", epoch=1, answer="that")


@bad("task a")
def the_answer_that_was_refused_arrives(db: StoreFixture) -> None:
    asked(db)
    db.signal("a", "answer", "QUEUED", epoch=1, answer="this")
    db.signal("a", "answer", "TransitionRefused", answer="that")
    db.claim("eve", "a", 2, answer="that")


# idempotency keys


def submit_with_key(db: StoreFixture, run_id: str | None, *, name: str = "run", key: str = "k") -> None:
    new = {"name": name, "lifecycle": "standard", "tasks": [{"name": "a"}]}
    if run_id is None:
        db.tell("submit_run", None, fate="unknown", run=new, request_id=key)
    else:
        db.tell("submit_run", {"id": run_id, "state": "PENDING"} if run_id.islower() else run_id, run=new, request_id=key)


@good
def twins_hear_the_same_even_if_the_first_never_heard(db: StoreFixture) -> None:
    submit_with_key(db, None)
    with db.at_once():
        submit_with_key(db, "one")
        submit_with_key(db, "one")
    db.tell("list_runs", [{"name": "run"}])


@bad("idempotency key")
def a_twin_hears_another_answer(db: StoreFixture) -> None:
    with db.at_once():
        submit_with_key(db, "one")
        submit_with_key(db, "two")


@bad("idempotency key")
def twins_have_two_effects(db: StoreFixture) -> None:
    submit_with_key(db, None)
    submit_with_key(db, "one")
    db.tell("list_runs", [{"name": "run"}, {"name": "run"}])


@bad("idempotency key")
def a_key_is_taken_for_another_request(db: StoreFixture) -> None:
    submit_with_key(db, "one")
    submit_with_key(db, "two", name="another")


@good
def a_key_is_refused_for_another_request(db: StoreFixture) -> None:
    submit_with_key(db, "one")
    submit_with_key(db, "KeyReused", name="another")


@bad("idempotency key")
def a_key_is_refused_for_the_same_request(db: StoreFixture) -> None:
    submit_with_key(db, "one")
    submit_with_key(db, "KeyReused")


@good
def a_completion_is_repeated_with_its_key(db: StoreFixture) -> None:
    claimed(db)
    db.complete("a", 1, request_id="k")
    db.complete("a", 1, request_id="k")


@bad("task a")
def a_completion_that_was_done_is_refused_to_its_twin(db: StoreFixture) -> None:
    claimed(db)
    db.complete("a", 1, request_id="k")
    db.complete("a", 1, "LeaseLost", request_id="k")


# a breaker and its probe


COOLDOWN_SECONDS = 5.0


def tripped(db: StoreFixture) -> None:
    db.register("bob", "eve")
    db.tell("declare_tool", {}, tool="t", failure_threshold=1, success_threshold=1, cooldown_seconds=COOLDOWN_SECONDS)
    db.submit("a", "b", "c", tool="t")
    db.claim("bob", "a", 1, tool="t")
    db.fail("a", 1)


@good
def one_probe_closes_a_breaker(db: StoreFixture) -> None:
    tripped(db)
    db.wait(COOLDOWN_SECONDS)
    db.claim("bob", "b", 1, tool="t")
    db.tell("get_breaker", {"state": "HALF_OPEN", "probe_task_id": "b"}, tool="t")
    db.complete("b", 1)
    db.claim("eve", "c", 1, tool="t")


@good
def a_claim_that_began_long_ago_is_the_probe(db: StoreFixture) -> None:
    db.register("bob", "eve")
    db.tell("declare_tool", {}, tool="t", failure_threshold=1, success_threshold=1, cooldown_seconds=COOLDOWN_SECONDS)
    db.submit("a", "b", tool="t")
    with db.at_once():
        db.claim("bob", "a", 1, tool="t")
        db.fail("a", 1)
        db.wait(COOLDOWN_SECONDS)
        db.tell("get_breaker", {"state": "HALF_OPEN", "probe_task_id": "b"}, tool="t")
        db.claim("eve", "b", 1, tool="t")


@bad("breaker of t")
def two_probes_are_let_through(db: StoreFixture) -> None:
    tripped(db)
    db.wait(COOLDOWN_SECONDS)
    with db.at_once():
        db.claim("bob", "b", 1, tool="t")
        db.claim("eve", "c", 1, tool="t")


@bad("breaker of t")
def two_probes_come_with_one_claim(db: StoreFixture) -> None:
    tripped(db)
    db.wait(COOLDOWN_SECONDS)
    probes = [{"task_id": name, "epoch": 1, "run_id": "run", "name": name, "tool": "t", "answer": None} for name in "bc"]
    db.tell("claim_tasks", probes, worker_id="bob", limit=2)


@bad("breaker of t")
def an_open_breaker_lets_something_through(db: StoreFixture) -> None:
    tripped(db)
    db.claim("bob", "b", 1, tool="t")


@good
def another_probe_follows_one_that_was_lost(db: StoreFixture) -> None:
    tripped(db)
    db.wait(COOLDOWN_SECONDS)
    db.tell("claim_tasks", fate="unknown", worker_id="bob")
    db.wait(LEASE_SECONDS)
    db.claim("eve", "c", 1, tool="t")
    db.complete("c", 1)


@bad("breaker of t")
def another_probe_follows_too_early(db: StoreFixture) -> None:
    tripped(db)
    db.wait(COOLDOWN_SECONDS)
    db.claim("bob", "b", 1, tool="t")
    db.wait(LEASE_SECONDS / 2)
    db.claim("eve", "c", 1, tool="t")


def opened_by_nobody(db: StoreFixture, **options: Any) -> None:
    """Nobody has reported a failure, and yet there is something to reset."""
    db.register("bob")
    db.tell("declare_tool", {}, tool="t", failure_threshold=1, success_threshold=1, cooldown_seconds=COOLDOWN_SECONDS)
    db.submit("a", tool="t")
    db.add("b", tool="t", **options)
    db.claim("bob", "b", 1, tool="t")
    db.tell("reset_breaker", {"state": "CLOSED"}, tool="t")


@good
def a_task_that_was_added_later_takes_too_long_and_opens_a_breaker(db: StoreFixture) -> None:
    opened_by_nobody(db, timeout_seconds=4.0)


@bad("breaker of t")
def a_breaker_opens_without_a_failure(db: StoreFixture) -> None:
    opened_by_nobody(db)


# gangs


def submit_job(db: StoreFixture, run_id: str, size: int, state: str) -> None:
    new = {"name": run_id, "lifecycle": "supervised", "worker_count": size, "tasks": [{"name": "a"}]}
    db.tell("submit_run", {"id": run_id, "state": state}, run=new)


def list_workers(db: StoreFixture, **run_of: str | None) -> None:
    db.tell("list_workers", [{"id": worker, "run_id": run_id} for worker, run_id in run_of.items()])


@good
def jobs_take_turns(db: StoreFixture) -> None:
    db.register("bob", "eve", "joe")
    submit_job(db, "one", 2, "RUNNING")
    submit_job(db, "two", 2, "PENDING")
    list_workers(db, bob="one", eve=None, joe="one")
    db.claim("joe", "a1", 1, run_id="one", name="a")
    db.complete("a1", 1, {**row("a1", "SUCCEEDED", 1), "run_id": "one", "name": "a"})
    list_workers(db, bob="two", eve="two", joe=None)


@bad("workers and their jobs")
def a_gang_is_half_allocated(db: StoreFixture) -> None:
    db.register("bob", "eve", "joe")
    submit_job(db, "one", 2, "PENDING")
    list_workers(db, bob="one", eve=None, joe=None)


@bad("workers and their jobs")
def two_gangs_have_more_workers_than_there_are(db: StoreFixture) -> None:
    db.register("bob", "eve", "joe")
    submit_job(db, "one", 2, "RUNNING")
    submit_job(db, "two", 2, "RUNNING")


@bad("workers and their jobs")
def a_worker_serves_two_jobs_at_once(db: StoreFixture) -> None:
    db.register("bob", "eve", "joe", "ann")
    submit_job(db, "one", 2, "RUNNING")
    submit_job(db, "two", 2, "RUNNING")
    db.claim("joe", "a1", 1, run_id="one", name="a")
    db.claim("joe", "a2", 1, run_id="two", name="a")


@good
def a_lost_worker_is_replaced(db: StoreFixture) -> None:
    db.register("bob", "eve", "joe")
    submit_job(db, "one", 2, "RUNNING")
    list_workers(db, bob="one", eve="one", joe=None)
    db.wait(LEASE_SECONDS - 1)
    for worker in ("eve", "joe"):
        db.tell("heartbeat", {"lost": [], "cancelled": [], "unknown": []}, worker_id=worker, attempts=[])
    db.wait(2)
    list_workers(db, bob=None, eve="one", joe="one")


@bad("workers and their jobs")
def a_worker_is_replaced_that_was_not_lost(db: StoreFixture) -> None:
    db.register("bob", "eve", "joe")
    submit_job(db, "one", 2, "RUNNING")
    list_workers(db, bob="one", eve="one", joe=None)
    list_workers(db, bob=None, eve="one", joe="one")


# several completions with one request


@good
def one_of_several_completions_is_refused(db: StoreFixture) -> None:
    claimed(db)
    with db.at_once():
        db.signal("a", "cancel", "CANCELED", epoch=1)
        db.complete("a", 1, "LeaseLost")


@bad("task a")
def a_completion_among_several_is_acknowledged_and_lost(db: StoreFixture) -> None:
    claimed(db)
    db.complete("a", 1, None)
    db.look("a", "RUNNING", 1)


@bad("task a")
def two_requests_complete_the_same_attempt(db: StoreFixture) -> None:
    claimed(db)
    with db.at_once():
        db.complete("a", 1, None)
        db.complete("a", 1, None)


# a run and its tasks


@good
def a_run_ends_with_the_last_of_its_tasks(db: StoreFixture) -> None:
    claimed(db)
    db.look_at_run("RUNNING")
    with db.at_once():
        db.complete("a", 1)
        db.look_at_run("SUCCEEDED")
        db.look_at_tasks(a="RUNNING")


@bad("run run")
def a_run_goes_on_when_its_tasks_have_ended(db: StoreFixture) -> None:
    claimed(db)
    db.complete("a", 1)
    db.look_at_tasks(a="SUCCEEDED")
    db.look_at_run("RUNNING")


@bad("run run")
def a_run_ends_before_its_tasks(db: StoreFixture) -> None:
    claimed(db)
    db.look_at_run("SUCCEEDED")
    db.look_at_tasks(a="RUNNING")


# the hands of a worker


@good
def a_worker_claims_again_when_its_hands_are_empty(db: StoreFixture) -> None:
    db.register("bob")
    db.submit("a", "b", "c")
    db.claim("bob", "a", 1)
    with db.at_once():
        db.claim("bob", "b", 1)
        db.complete("a", 1)
    db.wait(LEASE_SECONDS)
    db.claim("bob", "c", 1)


@bad("hands of bob")
def a_worker_holds_more_than_it_can(db: StoreFixture) -> None:
    db.register("bob")
    db.submit("a", "b")
    with db.at_once():
        db.claim("bob", "a", 1)
        db.claim("bob", "b", 1)


# all of them


@each_row("history", GOOD)
def test_a_history_that_can_be_is_accepted(history: History) -> None:
    db = StoreFixture()
    history(db)
    assert check_history(db.records) > 0


@each_row(("history", "subject"), BAD)
def test_a_history_that_cannot_be_is_refused(history: History, subject: str) -> None:
    db = StoreFixture()
    history(db)
    with pytest.raises(Unexplained, match=f"^{subject}"):
        check_history(db.records)


# what the checker says, and what it is fed with


def test_a_refusal_shows_the_shortest_part_that_cannot_be() -> None:
    db = StoreFixture()
    a_zombie_completes_after_another_has_taken_over(db)
    db.look("a", "SUCCEEDED", 1)
    with pytest.raises(Unexplained) as refused:
        check_history(db.records)
    first, *lines = str(refused.value).splitlines()
    assert first == "task a (a): no legal order explains this history."
    told = ["submit_run", "claim_tasks", "claim_tasks", "complete_task"]
    assert [next(word for word in line.split() if "_" in word) for line in lines if "─" in line] == told
    assert [line for line in lines if line.startswith(" ✗")] == [lines[3]]
    assert lines[-1] == "    RUNNING, epoch 2, held by eve, 0 retries, 1 reclaims"


def test_times_that_are_only_an_order_bound_no_lease() -> None:
    db = StoreFixture()
    a_lease_is_over_before_its_time(db)
    assert check_history(db.records, timed=False) > 0


def test_a_journal_that_was_cut_off_leaves_what_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.answer(journal.invoke("ada", "get_task", {"task_id": "a"}), {"id": "a"})
    journal.refuse(journal.invoke("ada", "get_task", {"task_id": "b"}), "NotFound")
    journal.answer(journal.invoke("ada", "complete_task", {"task_id": "a", "epoch": 1}), {"id": "a"})
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    answered, refused, cut_off = read_journal(path)
    assert (answered.fate, refused.error) == ("answered", "NotFound")
    assert isinstance(cut_off, Record)
    assert (cut_off.fate, cut_off.returned_at) == ("unknown", None)
    assert answered.invoked_at <= (answered.returned_at or 0) <= refused.invoked_at


def test_the_models_know_nothing_of_the_engine() -> None:
    folder = Path(models.__file__).parent
    for module in (*folder.glob("*.py"), folder.with_name("model.py"), folder.with_name("checker.py")):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.startswith("pointsman")], module
