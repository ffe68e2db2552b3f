"""Every metric that the server exports, declared once: docs/reference/metrics.md is generated from these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pointsman.store.rows import SECONDS_BOUNDS

Kind = Literal["counter", "gauge", "histogram"]
PROCESS = "process"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name on the wire, and what it means."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...] = ()
    """Of the buckets of a histogram."""

    @property
    def is_of_process(self) -> bool:
        """It tells what this process did since its start. The others are read from the database, the same by every server."""
        return self.labels[0] == PROCESS


TRANSITIONS = Family(
    "pointsman_transitions_total",
    "counter",
    "Moves of runs, tasks, workers and breakers. from_state is empty for the creation.",
    ("machine", "from_state", "to_state", "trigger"),
)
STATE_SECONDS = Family(
    "pointsman_state_seconds", "histogram", "Time in a state, counted when it is left.", ("machine", "state"), SECONDS_BOUNDS
)
CLAIMS = Family("pointsman_claims_total", "counter", "Tasks that workers have claimed.", ("machine",))
QUEUE_TASKS = Family("pointsman_queue_tasks", "gauge", "Tasks that a worker may claim now.", ("tenant",))
QUEUE_OLDEST = Family(
    "pointsman_queue_oldest_seconds",
    "gauge",
    "Time that the oldest of the claimable tasks has been in its state; 0 for an empty queue.",
    ("tenant",),
)
WORKERS = Family("pointsman_workers", "gauge", "Workers that have not ended.", ("tenant", "state"))
WORKER_SLOTS = Family(
    "pointsman_worker_slots", "gauge", "Tasks that the workers of a tenant can run at once.", ("tenant", "state")
)
WORKER_SLOTS_BUSY = Family(
    "pointsman_worker_slots_busy", "gauge", "Slots of workers in which a task runs.", ("tenant", "state")
)
BREAKER_STATE = Family(
    "pointsman_breaker_state", "gauge", "1 for the state in which a circuit breaker is.", ("tenant", "tool", "state")
)
COST = Family("pointsman_cost_usd_total", "counter", "Cost of all attempts, reported or estimated.", ("tenant",))
TOKENS = Family("pointsman_tokens_total", "counter", "Tokens that all attempts have used.", ("tenant", "direction"))
BUDGET = Family("pointsman_budget_usd", "gauge", "What a tenant may spend, if it has a budget.", ("tenant",))
DUTY_FAILURES = Family(
    "pointsman_duty_failures_in_a_row",
    "gauge",
    "Failures in a row of a duty that fails now, in any process on the database.",
    ("duty", PROCESS),
)
REFUSED = Family(
    "pointsman_operations_refused_total",
    "counter",
    "Refused operations, by the type of the problem; a refused transition has the case as its detail.",
    (PROCESS, "operation", "reason", "detail"),
)
IDEMPOTENCY = Family(
    "pointsman_idempotency_requests_total",
    "counter",
    "Requests with an idempotency key: a hit got the stored answer, a miss was the first.",
    (PROCESS, "result"),
)
LEASES_LOST = Family("pointsman_leases_lost_total", "counter", "Attempts that this process has declared lost.", (PROCESS,))
BATCH_OPERATIONS = Family(
    "pointsman_batch_operations",
    "histogram",
    "Operations that shared a commit.",
    (PROCESS,),
    (1, 2, 5, 10, 20, 50, 100, 200, 500),
)
BATCH_SECONDS = Family(
    "pointsman_batch_seconds",
    "histogram",
    "Time from the begin of the transaction of a batch to its commit.",
    (PROCESS,),
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
BATCHES_RETRIED = Family(
    "pointsman_batches_retried_total", "counter", "Batches tried again: the database was busy or away.", (PROCESS,)
)
OVERLOADS = Family("pointsman_overloads_total", "counter", "Operations refused because the queue was full.", (PROCESS,))
WRITER_QUEUE = Family("pointsman_writer_queue_operations", "gauge", "Operations that wait for a commit.", (PROCESS,))
DUTY_RUNS = Family("pointsman_duty_runs_total", "counter", "How often a duty was performed.", (PROCESS, "duty", "result"))
DUTY_ITEMS = Family("pointsman_duty_items_total", "counter", "What a duty has dealt with.", (PROCESS, "duty"))
DUTY_SECONDS = Family("pointsman_duty_seconds_total", "counter", "Time that a duty has taken.", (PROCESS, "duty"))

FAMILIES = (
    TRANSITIONS,
    STATE_SECONDS,
    CLAIMS,
    QUEUE_TASKS,
    QUEUE_OLDEST,
    WORKERS,
    WORKER_SLOTS,
    WORKER_SLOTS_BUSY,
    BREAKER_STATE,
    COST,
    TOKENS,
    BUDGET,
    DUTY_FAILURES,
    REFUSED,
    IDEMPOTENCY,
    LEASES_LOST,
    BATCH_OPERATIONS,
    BATCH_SECONDS,
    BATCHES_RETRIED,
    OVERLOADS,
    WRITER_QUEUE,
    DUTY_RUNS,
    DUTY_ITEMS,
    DUTY_SECONDS,
)
