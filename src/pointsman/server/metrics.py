"""Metrics in the text format of Prometheus.

the database ── take_figures, Totals.catch_up ──▶ the same from every server
the hooks of this engine ── Recorder ───────────▶ since the start of this process, with the label `process`
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman.engine import hooks
from pointsman.engine.engine import Engine
from pointsman.engine.figures import Figures
from pointsman.errors import PointsmanError, TransitionRefused
from pointsman.kernel.machine import Refusal
from pointsman.server import families, problems
from pointsman.server.families import Family
from pointsman.server.totals import Stay, Totals
from pointsman.store.rows import SECONDS_BOUNDS

disable_created_metrics()  # type: ignore[no-untyped-call]
Labels = tuple[str, ...]
Key = TypeVar("Key", bound=Labels)


class Recorder:
    """Counts what the engine of this process does. prometheus-client locks each counter: hooks run in several threads."""

    def __init__(self, engine: Engine, process: str) -> None:
        self.registry = CollectorRegistry()
        self._engine = engine
        self._process = process
        self._refused = self._counter(families.REFUSED)
        self._idempotency = self._counter(families.IDEMPOTENCY)
        self._leases_lost = self._counter(families.LEASES_LOST).labels(process)
        self._batch_operations = self._histogram(families.BATCH_OPERATIONS)
        self._batch_seconds = self._histogram(families.BATCH_SECONDS)
        self._retried = self._counter(families.BATCHES_RETRIED).labels(process)
        self._overloads = self._counter(families.OVERLOADS).labels(process)
        self._duty_runs = self._counter(families.DUTY_RUNS)
        self._duty_items = self._counter(families.DUTY_ITEMS)
        self._duty_seconds = self._counter(families.DUTY_SECONDS)
        for result in ("hit", "miss"):
            self._idempotency.labels(process, result)
        engine.attach(self._hear)

    def _counter(self, family: Family) -> Counter:
        return Counter(family.name, family.help, family.labels, registry=self.registry)

    def _histogram(self, family: Family) -> Histogram:
        made = Histogram(family.name, family.help, family.labels, registry=self.registry, buckets=family.bounds)
        return made.labels(self._process)

    def _hear(self, event: hooks.EngineEvent) -> None:
        match event:
            case hooks.BatchCommitted():
                self._batch_operations.observe(event.operations)
                self._batch_seconds.observe(event.wrote_seconds)
            case hooks.OperationRefused():
                self._refused.labels(self._process, event.operation, *_name_refusal(event.error)).inc()
            case hooks.KeysChecked():
                self._idempotency.labels(self._process, "hit").inc(event.hits)
                self._idempotency.labels(self._process, "miss").inc(event.misses)
            case hooks.LeasesLost():
                self._leases_lost.inc(event.attempts)
            case hooks.BatchRetried():
                self._retried.inc()
            case hooks.Overload():
                self._overloads.inc()
            case hooks.DutyPerformed():
                self._duty_runs.labels(self._process, event.name, "failure" if event.error else "success").inc()
                self._duty_items.labels(self._process, event.name).inc(event.done)
                self._duty_seconds.labels(self._process, event.name).inc(event.seconds)

    def collect(self) -> Iterator[Metric]:
        yield from self.registry.collect()
        yield _gauge(families.WRITER_QUEUE, {(self._process,): float(self._engine.queue_length)})


def _name_refusal(error: Exception) -> tuple[str, str]:
    """The type of the problem, and the case if it is about a transition: a bounded number of both."""
    reason = problems.find_type(error).name if isinstance(error, PointsmanError) else problems.INTERNAL
    detail = error.refusal.case.value if isinstance(error, TransitionRefused) and isinstance(error.refusal, Refusal) else ""
    return reason, detail


@dataclass(slots=True)
class Metrics:
    """What `/metrics` shows."""

    engine: Engine
    process: str
    recorder: Recorder = field(init=False)
    totals: Totals = field(init=False)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.engine, self.process)
        self.totals = Totals(self.engine)

    async def show(self, tenant: str | None) -> bytes:
        """Of all tenants and this process, or of one tenant alone."""
        figures = await self.engine.take_figures()
        await self.totals.catch_up()
        shown = Shown(figures, self.totals, tenant)
        collected = _Collected([*shown.collect(), *(self.recorder.collect() if tenant is None else ())])
        return await asyncio.to_thread(generate_latest, collected)


@dataclass(slots=True)
class _Collected(Collector):
    metrics: list[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


@dataclass(frozen=True, slots=True)
class Shown:
    """What the database tells about all tenants, or about one."""

    figures: Figures
    totals: Totals
    tenant: str | None

    def _may_see(self, tenant: str) -> bool:
        return self.tenant is None or tenant == self.tenant

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_transitions()
        yield from self._collect_queues()
        yield from self._collect_workers()
        breakers = (each for each in self.figures.breakers if self._may_see(each.tenant))
        yield _gauge(families.BREAKER_STATE, {(each.tenant, each.tool, each.state): 1.0 for each in breakers})
        yield from self._collect_costs()
        if self.tenant is None:
            failing = {(each.name, each.process): float(each.failures) for each in self.figures.duty_failures}
            yield _gauge(families.DUTY_FAILURES, failing)

    def _collect_transitions(self) -> Iterator[Metric]:
        mine = [(move, count) for move, count in self.totals.moves.items() if self._may_see(move.tenant)]
        labeled = [((move.machine, move.from_state or "", move.to_state, move.trigger), count) for move, count in mine]
        yield _counter(families.TRANSITIONS, _sum(labeled))
        yield _counter(families.CLAIMS, _sum(((move.machine,), count) for move, count in mine if self.totals.is_claim(move)))
        yield self._collect_stays()

    def _collect_stays(self) -> Metric:
        family = families.STATE_SECONDS
        merged: dict[Labels, Stay] = defaultdict(Stay)
        for (tenant, machine, state), stay in self.totals.stays.items():
            if self._may_see(tenant):
                into = merged[machine, state]
                into.counts = [sum(each) for each in zip(into.counts, stay.counts, strict=True)]
                into.seconds += stay.seconds
        metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        bounds = [*(str(float(bound)) for bound in SECONDS_BOUNDS), "+Inf"]
        for labels, stay in sorted(merged.items()):
            metric.add_metric(labels, list(zip(bounds, accumulate(stay.counts), strict=True)), stay.seconds)
        return metric

    def _collect_queues(self) -> Iterator[Metric]:
        depths = {(each.id,): 0.0 for each in self.figures.tenants if self._may_see(each.id)}
        ages = dict(depths)
        for queue in self.figures.queues:
            if self._may_see(queue.tenant):
                depths[queue.tenant,] = float(queue.depth)
                since = queue.oldest_at or self.figures.now
                ages[queue.tenant,] = max(0.0, (self.figures.now - since).total_seconds())
        yield _gauge(families.QUEUE_TASKS, depths)
        yield _gauge(families.QUEUE_OLDEST, ages)

    def _collect_workers(self) -> Iterator[Metric]:
        mine = [each for each in self.figures.workers if self._may_see(each.tenant)]
        yield _gauge(families.WORKERS, {(each.tenant, each.state): float(each.workers) for each in mine})
        yield _gauge(families.WORKER_SLOTS, {(each.tenant, each.state): float(each.slots) for each in mine})
        yield _gauge(families.WORKER_SLOTS_BUSY, {(each.tenant, each.state): float(each.busy) for each in mine})

    def _collect_costs(self) -> Iterator[Metric]:
        mine = [each for each in self.figures.accounts if self._may_see(each.tenant)]
        yield _counter(families.COST, {(each.tenant,): float(each.spent_usd) for each in mine})
        used = [(each.tenant, *pair) for each in mine for pair in (("in", each.tokens_in), ("out", each.tokens_out))]
        yield _counter(families.TOKENS, {(tenant, direction): float(tokens) for tenant, direction, tokens in used})
        yield _gauge(families.BUDGET, {(each.tenant,): float(each.budget_usd) for each in mine if each.budget_usd is not None})


def _sum(counted: Iterable[tuple[Labels, int]]) -> dict[Labels, float]:
    found: dict[Labels, float] = defaultdict(float)
    for labels, count in counted:
        found[labels] += count
    return found


def _counter(family: Family, values: Mapping[Key, float]) -> Metric:
    metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in sorted(values.items()):
        metric.add_metric(labels, value)
    return metric


def _gauge(family: Family, values: Mapping[Key, float]) -> Metric:
    metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in sorted(values.items()):
        metric.add_metric(labels, value)
    return metric
