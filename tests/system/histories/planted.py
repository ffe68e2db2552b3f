"""Bugs to be planted: one line of the engine or of its SQL each. A checker that lets one pass has no teeth."""

from __future__ import annotations

from tests.planting import Patch

BUGS = {
    "epoch check dropped": Patch(
        "engine.operations.attempts",
        "if task.current_attempt == epoch and not task.lease_expired:",
        "if task.current_attempt is not None:",
    ),
    "heartbeat of any epoch accepted": Patch(
        "engine.operations.workers",
        "task.attempt_worker_id != worker.id or task.current_attempt != epoch or task.lease_expired:",
        "task.current_attempt is None:",
    ),
    "probe admitted twice": Patch(
        "engine.breakers",
        "return breaker.phase == Phase.QUEUED or (breaker.phase == Phase.ACTIVE and breaker.probe_task_id is None)",
        "return breaker.phase == Phase.QUEUED or breaker.phase == Phase.ACTIVE",
    ),
    "idempotency look-up skipped": Patch("engine.batch", "if request is None:", "if True:"),
    "key taken for another request": Patch("engine.batch", "if stored.request_hash != request.request_hash:", "if False:"),
    "job started with too few workers": Patch(
        "engine.workers",
        "facts = runs.facts_of(run, free_workers=len(free))",
        "facts = runs.facts_of(run, free_workers=run.worker_count)",
    ),
    "retry not counted": Patch(
        "engine.tasks",
        "task.retry_count += report.counts",
        "task.retry_count += 0",
    ),
    "answer lost": Patch(
        "engine.tasks",
        "task.question, task.answer = None, report.answer",
        "task.question, task.answer = None, None",
    ),
    "forgotten task given up at once": Patch(
        "engine.operations.workers",
        "if rows[task_id].entered_at + patience < work.now",
        "if patience",
    ),
    "one of those who go together left behind": Patch(
        "engine.plain",
        "    work.ended_plain |= {task.id for task in found}\n",
        "    work.ended_plain |= {report.task_id for report in reports}\n",
    ),
}
ON_POSTGRES = {
    "runs not locked": Patch("postgres:lock_runs", "ORDER BY id FOR NO KEY UPDATE", "ORDER BY id -- FOR NO KEY UPDATE"),
    "workers not locked": Patch("postgres:lock_workers", "ORDER BY id FOR NO KEY UPDATE", "ORDER BY id"),
    "breakers not locked": Patch("postgres:lock_breakers", "ORDER BY id FOR NO KEY UPDATE", "ORDER BY id"),
    "what was true before the lock taken for true": Patch(
        "store.postgres.store", 'Statement("BEGIN")', 'Statement("BEGIN ISOLATION LEVEL REPEATABLE READ")'
    ),
    "a turn leaves a run for another": Patch(
        "engine.runs",
        "busy = work.busy_runs | {",
        "busy = work.busy_runs | (work.unsettled_runs if work.busy_runs else set()) | {",
    ),
    "a twin's answer replaced": Patch(
        "postgres:insert_response", "WHERE idempotency_key.expires_at <= excluded.created_at", "WHERE true"
    ),
}
"""What is doubly kept shows nothing alone: claims that lock no run, a second look without a phase, updates that compare no
revision, and a law that judges no move are each made up for by the others."""
