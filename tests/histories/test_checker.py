"""The checker itself: it takes what can be, with or without lost answers, and refuses what cannot, in words."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.histories import models
from tests.histories.checker import Unexplained, check_history
from tests.histories.record import Record
from tests.histories.recorder import Journal, read_journal
from tests.histories.written import LEASE_SECONDS, Yard

History = Callable[[Yard], None]
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


def claimed(yard: Yard, **options: Any) -> None:
    yard.register("bob", "eve")
    yard.submit("a", **options)
    yard.claim("bob", "a", 1)


@good
def a_task_from_end_to_end(yard: Yard) -> None:
    claimed(yard)
    yard.beat("bob", "a", 1)
    yard.look("a", "RUNNING", 1)
    yard.complete("a", 1)
    yard.look("a", "SUCCEEDED", 1)


@good
def a_duplicate_completion_is_refused(yard: Yard) -> None:
    claimed(yard)
    with yard.at_once():
        yard.complete("a", 1, "LeaseLost")
        yard.complete("a", 1)


@bad("task a")
def two_completions_of_one_epoch_are_both_acknowledged(yard: Yard) -> None:
    claimed(yard)
    with yard.at_once():
        yard.complete("a", 1)
        yard.complete("a", 1)


@good
def a_task_goes_to_another_worker_when_its_lease_is_over(yard: Yard) -> None:
    claimed(yard)
    yard.wait(LEASE_SECONDS)
    yard.claim("eve", "a", 2)
    yard.beat("bob", "a", 1, lost=True)
    yard.complete("a", 1, "LeaseLost")
    yard.complete("a", 2)


@bad("task a")
def a_lease_is_over_before_its_time(yard: Yard) -> None:
    claimed(yard)
    yard.wait(LEASE_SECONDS / 2)
    yard.beat("bob", "a", 1)
    yard.wait(LEASE_SECONDS / 2 + 1)
    yard.claim("eve", "a", 2)


@bad("task a")
def a_stale_heartbeat_is_accepted(yard: Yard) -> None:
    claimed(yard)
    yard.wait(LEASE_SECONDS)
    yard.claim("eve", "a", 2)
    yard.beat("bob", "a", 1)


@bad("task a")
def a_heartbeat_is_lost_without_a_reason(yard: Yard) -> None:
    claimed(yard)
    yard.beat("bob", "a", 1, lost=True)
    yard.complete("a", 1)


@bad("task a")
def a_zombie_completes_after_another_has_taken_over(yard: Yard) -> None:
    claimed(yard)
    yard.wait(LEASE_SECONDS)
    yard.claim("eve", "a", 2)
    yard.complete("a", 1)


@bad("task a")
def two_claims_have_the_same_epoch(yard: Yard) -> None:
    yard.register("bob", "eve")
    yard.submit("a")
    with yard.at_once():
        yard.claim("bob", "a", 1)
        yard.claim("eve", "a", 1)


@bad("task a")
def an_epoch_is_left_out(yard: Yard) -> None:
    claimed(yard)
    yard.wait(LEASE_SECONDS)
    yard.claim("eve", "a", 3)


@good
def an_epoch_is_left_out_because_an_answer_was_lost(yard: Yard) -> None:
    yard.register("bob", "eve", "joe")
    yard.submit("a")
    yard.tell("claim_tasks", fate="unknown", worker_id="joe")
    yard.wait(LEASE_SECONDS)
    yard.claim("eve", "a", 2)
    yard.complete("a", 2)


@bad("task a")
def a_task_is_claimed_after_its_completion(yard: Yard) -> None:
    claimed(yard)
    yard.complete("a", 1)
    yard.wait(LEASE_SECONDS)
    yard.claim("eve", "a", 2)


@bad("task a")
def a_task_is_reclaimed_more_often_than_it_may_be(yard: Yard) -> None:
    claimed(yard, max_reclaims=1)
    for epoch in (2, 3):
        yard.wait(LEASE_SECONDS)
        yard.claim("eve", "a", epoch)


@bad("task a")
def a_retry_that_nobody_agreed_to(yard: Yard) -> None:
    claimed(yard)
    yard.fail("a", 1)
    yard.claim("eve", "a", 2)


@good
def a_failure_is_retried_as_agreed(yard: Yard) -> None:
    claimed(yard, max_retries=1)
    yard.tell("fail_task", None, fate="unknown", task_id="a", epoch=1, error="no")
    yard.claim("eve", "a", 2)
    yard.look("a", "RUNNING", 2, retry_count=1, worker_id="eve")
    yard.fail("a", 2, {**row("a", "FAILED", 2), "retry_count": 1})


@bad("task a")
def a_failure_is_not_counted(yard: Yard) -> None:
    claimed(yard, max_retries=1)
    yard.fail("a", 1, row("a", "RETRYING", 1))


def row(task: str, state: str, epoch: int) -> dict[str, Any]:
    yard = Yard()
    yard.look(task, state, epoch)
    answer: dict[str, Any] = yard.records[0].answer
    return answer


# complete against cancel


@good
def cancel_loses_against_completion(yard: Yard) -> None:
    claimed(yard)
    with yard.at_once():
        yard.signal("a", "cancel", "TransitionRefused")
        yard.complete("a", 1)


@good
def completion_loses_against_cancel(yard: Yard) -> None:
    claimed(yard)
    with yard.at_once():
        yard.complete("a", 1, "LeaseLost")
        yard.signal("a", "cancel", "CANCELED", epoch=1)


@bad("task a")
def cancel_and_completion_both_win(yard: Yard) -> None:
    claimed(yard)
    with yard.at_once():
        yard.complete("a", 1)
        yard.signal("a", "cancel", "CANCELED", epoch=1)


@bad("task a")
def cancel_and_completion_both_lose(yard: Yard) -> None:
    claimed(yard)
    with yard.at_once():
        yard.complete("a", 1, "LeaseLost")
        yard.signal("a", "cancel", "TransitionRefused")


@good
def a_completion_whose_answer_was_lost_wins(yard: Yard) -> None:
    claimed(yard)
    yard.tell("complete_task", None, fate="unknown", task_id="a", epoch=1)
    yard.signal("a", "cancel", "TransitionRefused")
    yard.look("a", "SUCCEEDED", 1)


@good
def a_completion_whose_answer_was_lost_comes_late(yard: Yard) -> None:
    claimed(yard)
    yard.tell("complete_task", None, fate="unknown", task_id="a", epoch=1)
    yard.beat("bob", "a", 1)
    yard.look("a", "SUCCEEDED", 1)


@bad("task a")
def a_lost_completion_takes_back_what_was_seen(yard: Yard) -> None:
    claimed(yard)
    yard.tell("complete_task", None, fate="unknown", task_id="a", epoch=1)
    yard.look("a", "SUCCEEDED", 1)
    yard.look("a", "RUNNING", 1)


@bad("task a")
def an_answer_reports_a_state_that_was_never_reached(yard: Yard) -> None:
    claimed(yard)
    yard.complete("a", 1, "READY")


@good
def an_answer_reports_what_followed_in_the_same_commit(yard: Yard) -> None:
    claimed(yard, review=True)
    with yard.at_once():
        yard.complete("a", 1, "SUCCEEDED")
        yard.signal("a", "accept", "SUCCEEDED", epoch=1)


@bad("task a")
def the_output_is_that_of_somebody_else(yard: Yard) -> None:
    claimed(yard)
    yard.complete("a", 1, output="of bob")
    yard.look("a", "SUCCEEDED", 1, output='"of eve"')


@good
def a_task_whose_worker_is_terminated_goes_to_another(yard: Yard) -> None:
    claimed(yard)
    with yard.at_once():
        yard.tell("signal_worker", {"id": "bob"}, worker_id="bob", signal="terminate")
        yard.complete("a", 1, "LeaseLost")
    yard.claim("eve", "a", 2)


@bad("task a")
def a_terminated_worker_completes(yard: Yard) -> None:
    claimed(yard)
    yard.tell("signal_worker", {"id": "bob"}, worker_id="bob", signal="terminate")
    yard.complete("a", 1)


# people


@good
def one_of_two_approvers_decides(yard: Yard) -> None:
    yard.submit("a", gate=True)
    with yard.at_once():
        yard.signal("a", "approve", "TransitionRefused")
        yard.signal("a", "reject", "FAILED")


@bad("task a")
def two_approvers_decide_differently_and_both_hear_yes(yard: Yard) -> None:
    yard.submit("a", gate=True)
    with yard.at_once():
        yard.signal("a", "approve", "SUCCEEDED")
        yard.signal("a", "reject", "FAILED")


@bad("task a")
def a_worker_claims_a_gate(yard: Yard) -> None:
    yard.register("bob")
    yard.submit("a", gate=True)
    yard.claim("bob", "a", 1)


def asked(yard: Yard) -> None:
    claimed(yard)
    yard.tell("ask", row("a", "BLOCKED", 1), task_id="a", epoch=1, question="which?")


@good
def one_of_two_answers_counts(yard: Yard) -> None:
    asked(yard)
    with yard.at_once():
        yard.signal("a", "answer", "QUEUED", epoch=1, answer="this")
        yard.signal("a", "answer", "TransitionRefused", answer="that")
    yard.claim("eve", "a", 2, answer="this")


@bad("task a")
def two_answers_to_one_question_both_count(yard: Yard) -> None:
    asked(yard)
    with yard.at_once():
        yard.signal("a", "answer", "QUEUED", epoch=1, answer="this")
        yard.signal("a", "answer", "QUEUED", epoch=1, answer="that")


@bad("task a")
def the_answer_that_was_refused_arrives(yard: Yard) -> None:
    asked(yard)
    yard.signal("a", "answer", "QUEUED", epoch=1, answer="this")
    yard.signal("a", "answer", "TransitionRefused", answer="that")
    yard.claim("eve", "a", 2, answer="that")


# idempotency keys


def submit_with_key(yard: Yard, run_id: str | None, *, name: str = "run", key: str = "k") -> None:
    new = {"name": name, "lifecycle": "standard", "tasks": [{"name": "a"}]}
    if run_id is None:
        yard.tell("submit_run", None, fate="unknown", new=new, request_id=key)
    else:
        yard.tell("submit_run", {"id": run_id, "state": "PENDING"} if run_id.islower() else run_id, new=new, request_id=key)


@good
def twins_hear_the_same_even_if_the_first_never_heard(yard: Yard) -> None:
    submit_with_key(yard, None)
    with yard.at_once():
        submit_with_key(yard, "one")
        submit_with_key(yard, "one")
    yard.tell("list_runs", [{"name": "run"}])


@bad("idempotency key")
def a_twin_hears_another_answer(yard: Yard) -> None:
    with yard.at_once():
        submit_with_key(yard, "one")
        submit_with_key(yard, "two")


@bad("idempotency key")
def twins_have_two_effects(yard: Yard) -> None:
    submit_with_key(yard, None)
    submit_with_key(yard, "one")
    yard.tell("list_runs", [{"name": "run"}, {"name": "run"}])


@bad("idempotency key")
def a_key_is_taken_for_another_request(yard: Yard) -> None:
    submit_with_key(yard, "one")
    submit_with_key(yard, "two", name="another")


@good
def a_key_is_refused_for_another_request(yard: Yard) -> None:
    submit_with_key(yard, "one")
    submit_with_key(yard, "KeyReused", name="another")


@bad("idempotency key")
def a_key_is_refused_for_the_same_request(yard: Yard) -> None:
    submit_with_key(yard, "one")
    submit_with_key(yard, "KeyReused")


@good
def a_completion_is_repeated_with_its_key(yard: Yard) -> None:
    claimed(yard)
    yard.complete("a", 1, request_id="k")
    yard.complete("a", 1, request_id="k")


@bad("task a")
def a_completion_that_was_done_is_refused_to_its_twin(yard: Yard) -> None:
    claimed(yard)
    yard.complete("a", 1, request_id="k")
    yard.complete("a", 1, "LeaseLost", request_id="k")


# a breaker and its probe


COOLDOWN_SECONDS = 5.0


def tripped(yard: Yard) -> None:
    yard.register("bob", "eve")
    yard.tell("declare_tool", {}, tool="t", failure_threshold=1, success_threshold=1, cooldown_seconds=COOLDOWN_SECONDS)
    yard.submit("a", "b", "c", tool="t")
    yard.claim("bob", "a", 1, tool="t")
    yard.fail("a", 1)


@good
def one_probe_closes_a_breaker(yard: Yard) -> None:
    tripped(yard)
    yard.wait(COOLDOWN_SECONDS)
    yard.claim("bob", "b", 1, tool="t")
    yard.tell("get_breaker", {"state": "HALF_OPEN", "probe_task_id": "b"}, tool="t")
    yard.complete("b", 1)
    yard.claim("eve", "c", 1, tool="t")


@good
def a_claim_that_began_long_ago_is_the_probe(yard: Yard) -> None:
    yard.register("bob", "eve")
    yard.tell("declare_tool", {}, tool="t", failure_threshold=1, success_threshold=1, cooldown_seconds=COOLDOWN_SECONDS)
    yard.submit("a", "b", tool="t")
    with yard.at_once():
        yard.claim("bob", "a", 1, tool="t")
        yard.fail("a", 1)
        yard.wait(COOLDOWN_SECONDS)
        yard.tell("get_breaker", {"state": "HALF_OPEN", "probe_task_id": "b"}, tool="t")
        yard.claim("eve", "b", 1, tool="t")


@bad("breaker of t")
def two_probes_are_let_through(yard: Yard) -> None:
    tripped(yard)
    yard.wait(COOLDOWN_SECONDS)
    with yard.at_once():
        yard.claim("bob", "b", 1, tool="t")
        yard.claim("eve", "c", 1, tool="t")


@bad("breaker of t")
def two_probes_come_with_one_claim(yard: Yard) -> None:
    tripped(yard)
    yard.wait(COOLDOWN_SECONDS)
    probes = [{"task_id": name, "epoch": 1, "run_id": "run", "name": name, "tool": "t", "answer": None} for name in "bc"]
    yard.tell("claim_tasks", probes, worker_id="bob", limit=2)


@bad("breaker of t")
def an_open_breaker_lets_something_through(yard: Yard) -> None:
    tripped(yard)
    yard.claim("bob", "b", 1, tool="t")


@good
def another_probe_follows_one_that_was_lost(yard: Yard) -> None:
    tripped(yard)
    yard.wait(COOLDOWN_SECONDS)
    yard.tell("claim_tasks", fate="unknown", worker_id="bob")
    yard.wait(LEASE_SECONDS)
    yard.claim("eve", "c", 1, tool="t")
    yard.complete("c", 1)


@bad("breaker of t")
def another_probe_follows_too_early(yard: Yard) -> None:
    tripped(yard)
    yard.wait(COOLDOWN_SECONDS)
    yard.claim("bob", "b", 1, tool="t")
    yard.wait(LEASE_SECONDS / 2)
    yard.claim("eve", "c", 1, tool="t")


def opened_by_nobody(yard: Yard, **options: Any) -> None:
    """Nobody has reported a failure, and yet there is something to reset."""
    yard.register("bob")
    yard.tell("declare_tool", {}, tool="t", failure_threshold=1, success_threshold=1, cooldown_seconds=COOLDOWN_SECONDS)
    yard.submit("a", tool="t")
    yard.add("b", tool="t", **options)
    yard.claim("bob", "b", 1, tool="t")
    yard.tell("reset_breaker", {"state": "CLOSED"}, tool="t")


@good
def a_task_that_was_added_later_takes_too_long_and_opens_a_breaker(yard: Yard) -> None:
    opened_by_nobody(yard, timeout_seconds=4.0)


@bad("breaker of t")
def a_breaker_opens_without_a_failure(yard: Yard) -> None:
    opened_by_nobody(yard)


# gangs


def submit_job(yard: Yard, run_id: str, size: int, state: str) -> None:
    new = {"name": run_id, "lifecycle": "supervised", "worker_count": size, "tasks": [{"name": "a"}]}
    yard.tell("submit_run", {"id": run_id, "state": state}, new=new)


def list_workers(yard: Yard, **run_of: str | None) -> None:
    yard.tell("list_workers", [{"id": worker, "run_id": run_id} for worker, run_id in run_of.items()])


@good
def jobs_take_turns(yard: Yard) -> None:
    yard.register("bob", "eve", "joe")
    submit_job(yard, "one", 2, "RUNNING")
    submit_job(yard, "two", 2, "PENDING")
    list_workers(yard, bob="one", eve=None, joe="one")
    yard.claim("joe", "a1", 1, run_id="one", name="a")
    yard.complete("a1", 1, {**row("a1", "SUCCEEDED", 1), "run_id": "one", "name": "a"})
    list_workers(yard, bob="two", eve="two", joe=None)


@bad("workers and their jobs")
def a_gang_is_half_allocated(yard: Yard) -> None:
    yard.register("bob", "eve", "joe")
    submit_job(yard, "one", 2, "PENDING")
    list_workers(yard, bob="one", eve=None, joe=None)


@bad("workers and their jobs")
def two_gangs_have_more_workers_than_there_are(yard: Yard) -> None:
    yard.register("bob", "eve", "joe")
    submit_job(yard, "one", 2, "RUNNING")
    submit_job(yard, "two", 2, "RUNNING")


@bad("workers and their jobs")
def a_worker_serves_two_jobs_at_once(yard: Yard) -> None:
    yard.register("bob", "eve", "joe", "ann")
    submit_job(yard, "one", 2, "RUNNING")
    submit_job(yard, "two", 2, "RUNNING")
    yard.claim("joe", "a1", 1, run_id="one", name="a")
    yard.claim("joe", "a2", 1, run_id="two", name="a")


@good
def a_lost_worker_is_replaced(yard: Yard) -> None:
    yard.register("bob", "eve", "joe")
    submit_job(yard, "one", 2, "RUNNING")
    list_workers(yard, bob="one", eve="one", joe=None)
    yard.wait(LEASE_SECONDS - 1)
    for worker in ("eve", "joe"):
        yard.tell("heartbeat", {"lost": [], "cancelled": [], "unknown": []}, worker_id=worker, attempts=[])
    yard.wait(2)
    list_workers(yard, bob=None, eve="one", joe="one")


@bad("workers and their jobs")
def a_worker_is_replaced_that_was_not_lost(yard: Yard) -> None:
    yard.register("bob", "eve", "joe")
    submit_job(yard, "one", 2, "RUNNING")
    list_workers(yard, bob="one", eve="one", joe=None)
    list_workers(yard, bob=None, eve="one", joe="one")


# several completions with one request


@good
def one_of_several_completions_is_refused(yard: Yard) -> None:
    claimed(yard)
    with yard.at_once():
        yard.signal("a", "cancel", "CANCELED", epoch=1)
        yard.complete("a", 1, "LeaseLost")


@bad("task a")
def a_completion_among_several_is_acknowledged_and_lost(yard: Yard) -> None:
    claimed(yard)
    yard.complete("a", 1, None)
    yard.look("a", "RUNNING", 1)


@bad("task a")
def two_requests_complete_the_same_attempt(yard: Yard) -> None:
    claimed(yard)
    with yard.at_once():
        yard.complete("a", 1, None)
        yard.complete("a", 1, None)


# a run and its tasks


@good
def a_run_ends_with_the_last_of_its_tasks(yard: Yard) -> None:
    claimed(yard)
    yard.look_at_run("RUNNING")
    with yard.at_once():
        yard.complete("a", 1)
        yard.look_at_run("SUCCEEDED")
        yard.look_at_tasks(a="RUNNING")


@bad("run run")
def a_run_goes_on_when_its_tasks_have_ended(yard: Yard) -> None:
    claimed(yard)
    yard.complete("a", 1)
    yard.look_at_tasks(a="SUCCEEDED")
    yard.look_at_run("RUNNING")


@bad("run run")
def a_run_ends_before_its_tasks(yard: Yard) -> None:
    claimed(yard)
    yard.look_at_run("SUCCEEDED")
    yard.look_at_tasks(a="RUNNING")


# the hands of a worker


@good
def a_worker_claims_again_when_its_hands_are_empty(yard: Yard) -> None:
    yard.register("bob")
    yard.submit("a", "b", "c")
    yard.claim("bob", "a", 1)
    with yard.at_once():
        yard.claim("bob", "b", 1)
        yard.complete("a", 1)
    yard.wait(LEASE_SECONDS)
    yard.claim("bob", "c", 1)


@bad("hands of bob")
def a_worker_holds_more_than_it_can(yard: Yard) -> None:
    yard.register("bob")
    yard.submit("a", "b")
    with yard.at_once():
        yard.claim("bob", "a", 1)
        yard.claim("bob", "b", 1)


# all of them


@pytest.mark.parametrize("history", GOOD, ids=lambda history: history.__name__)
def test_a_history_that_can_be_is_accepted(history: History) -> None:
    yard = Yard()
    history(yard)
    assert check_history(yard.records) > 0


@pytest.mark.parametrize(("history", "subject"), BAD, ids=[history.__name__ for history, _ in BAD])
def test_a_history_that_cannot_be_is_refused(history: History, subject: str) -> None:
    yard = Yard()
    history(yard)
    with pytest.raises(Unexplained, match=f"^{subject}"):
        check_history(yard.records)


# what the checker says, and what it is fed with


def test_a_refusal_shows_the_shortest_part_that_cannot_be() -> None:
    yard = Yard()
    a_zombie_completes_after_another_has_taken_over(yard)
    yard.look("a", "SUCCEEDED", 1)
    with pytest.raises(Unexplained) as refused:
        check_history(yard.records)
    first, *lines = str(refused.value).splitlines()
    assert first == "task a (a): no legal order explains this history."
    told = ["submit_run", "claim_tasks", "claim_tasks", "complete_task"]
    assert [next(word for word in line.split() if "_" in word) for line in lines if "─" in line] == told
    assert [line for line in lines if line.startswith(" ✗")] == [lines[3]]
    assert lines[-1] == "    RUNNING, epoch 2, held by eve, 0 retries, 1 reclaims"


def test_times_that_are_only_an_order_bound_no_lease() -> None:
    yard = Yard()
    a_lease_is_over_before_its_time(yard)
    assert check_history(yard.records, timed=False) > 0


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
