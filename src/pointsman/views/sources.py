"""What views are made from: the rows of one run, and the fleet of workers and tools that serve all runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct, field

from pointsman.engine.engine import TenantEngine
from pointsman.engine.workers import AVAILABLE, capabilities
from pointsman.kernel.machine import Machine, Outcome, Phase
from pointsman.store.rows import Account, AttemptTimes, Breaker, Entity, Lane, Run, Task, Worker

NOT_BOUND: Mapping[str, str] = {}


class RunRecords(Struct, frozen=True):
    """A run, its tasks, what they depend on, and the machines that they all follow."""

    run: Run
    tasks: Sequence[Task]
    machines: Mapping[int, Machine]
    dependencies: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By task: the tasks that it depends on."""
    dependents: Mapping[str, Sequence[str]] = field(default_factory=dict)
    subtasks: Mapping[str, Sequence[Task]] = field(default_factory=dict)
    attempts: Mapping[str, Sequence[AttemptTimes]] = field(default_factory=dict)
    """By task: those that have ended."""
    moved_at: datetime | None = None
    """When one of its tasks moved last, where the tasks themselves were not read."""

    def machine(self, entity: Entity) -> Machine:
        return self.machines[entity.machine_id]

    def takes(self, entity: Entity, signal: str) -> bool:
        """Whether the machine has a transition for this signal here, whatever its guards say."""
        return bool(self.machine(entity).moves(entity.state, signal))

    def was_told(self, task: Task, signal: str) -> bool:
        """Whether this signal was the last one that moved it."""
        return any(move.signal == signal and move.trigger == task.trigger for move in self.machine(task).transitions)

    def blockers(self) -> dict[str, list[str]]:
        """By task: the names of the tasks that it still waits for."""
        names = {task.id: task.name for task in self.tasks if task.outcome != Outcome.SUCCESS}
        return {task_id: [names[each] for each in needed if each in names] for task_id, needed in self.dependencies.items()}


class Fleet(Struct, frozen=True):
    """Workers, what they hold, and the tools and capabilities that tasks ask for."""

    workers: Mapping[str, Worker]
    dead: Collection[str]
    """Workers that are known to have died, although their leases may last."""
    bound: Mapping[str, str]
    """By worker that serves only one run: that run."""
    alive: Sequence[Worker]
    abilities: Mapping[str, frozenset[str]]
    """By worker that is alive: its capabilities."""
    held: Sequence[Task]
    used_slots: Mapping[str, int]
    """By worker: how many of its slots are in use."""
    lanes: Mapping[int, Lane]
    needs: Mapping[int, frozenset[str]]
    """By lane: the capabilities that its tasks need."""
    breakers: Mapping[str, Breaker]
    at_work: Mapping[str, int]
    """By tool: how many of its attempts are running, in all runs."""
    account: Account
    """Of the tenant."""
    now: datetime

    def living(self, run_id: str) -> list[Worker]:
        """Workers that are alive and may run tasks of this run."""
        mine = (None, run_id)
        return [each for each in self.alive if each.run_id in mine and self.bound.get(each.id) in mine]

    def is_alive(self, worker_id: str) -> bool:
        return worker_id in self.abilities

    def last_seen(self, task: Task) -> datetime:
        """When an attempt that holds a task was last known to run: now, unless its worker is lost."""
        worker = self.workers.get(task.attempt_worker_id or "")
        is_lost = worker is not None and (task.lease_expired or not self.is_alive(worker.id))
        return worker.heartbeat_at if worker and is_lost else self.now

    def last_seen_before_end(self, attempt: AttemptTimes) -> datetime:
        """When an attempt that has ended was last known to run: at its end, unless its worker was lost before."""
        worker = self.workers.get(attempt.worker_id)
        if worker is None or attempt.has_log or worker.heartbeat_at >= attempt.ended_at:
            return attempt.ended_at
        had_left = worker.phase == Phase.DONE and worker.entered_at <= attempt.ended_at
        was_lost = had_left or lease_end(worker) <= attempt.ended_at
        return worker.heartbeat_at if was_lost else attempt.ended_at

    def breaker_of(self, task: Task) -> Breaker | None:
        lane = self.lanes.get(task.lane_id)
        return self.breakers.get(lane.tool) if lane and lane.tool else None

    def needs_of(self, task: Task) -> frozenset[str]:
        return self.needs.get(task.lane_id, frozenset())


def lease_end(worker: Worker) -> datetime:
    return worker.heartbeat_at + timedelta(seconds=worker.lease_seconds)


def is_alive(worker: Worker, now: datetime, dead: Collection[str]) -> bool:
    return worker.phase != Phase.DONE and worker.id not in dead and now < lease_end(worker)


def takes_tasks(worker: Worker) -> bool:
    """Whether a worker that is alive claims anything now."""
    return worker.phase in AVAILABLE and not worker.drain_wanted


async def load_run(engine: TenantEngine, run: Run) -> RunRecords:
    tasks = await engine.list_tasks_in_brief(run.id)
    dependencies: dict[str, list[str]] = {}
    dependents: dict[str, list[str]] = {}
    for each in await engine.list_dependencies(run.id):
        dependencies.setdefault(each.task_id, []).append(each.depends_on_id)
        dependents.setdefault(each.depends_on_id, []).append(each.task_id)
    subtasks: dict[str, list[Task]] = {}
    for task in tasks:
        if task.parent_task_id:
            subtasks.setdefault(task.parent_task_id, []).append(task)
    attempts: dict[str, list[AttemptTimes]] = {}
    for times in await engine.list_attempt_times(run.id):
        attempts.setdefault(times.task_id, []).append(times)
    machines = await load_machines(engine, (run, *tasks))
    return RunRecords(run, tasks, machines, dependencies, dependents, subtasks, attempts)


async def load_machines(engine: TenantEngine, entities: Iterable[Entity]) -> dict[int, Machine]:
    return {
        entity.machine_id: await engine.get_machine(entity) for entity in {each.machine_id: each for each in entities}.values()
    }


async def load_fleet(
    engine: TenantEngine, now: datetime, dead: Collection[str] = (), bound: Mapping[str, str] = NOT_BOUND
) -> Fleet:
    """`dead` workers are known to have died, although their leases may last; `bound` ones serve only one run."""
    workers = await engine.list_workers()
    held = await engine.list_held_tasks()
    lanes = {lane.id: lane for lane in await engine.list_lanes()}
    breakers = await engine.list_breakers()
    alive = [each for each in workers if is_alive(each, now, dead)]
    at_work = [task for task in held if not task.lease_expired]
    return Fleet(
        workers={worker.id: worker for worker in workers},
        dead=dead,
        bound=bound,
        alive=alive,
        abilities={worker.id: frozenset(capabilities(worker)) for worker in alive},
        held=held,
        used_slots=Counter(task.attempt_worker_id for task in at_work if task.attempt_worker_id),
        lanes=lanes,
        needs={lane.id: frozenset(msgspec.json.decode(lane.capabilities, type=list[str])) for lane in lanes.values()},
        breakers={breaker.tool: breaker for breaker in breakers},
        at_work=Counter(tool for task in at_work if task.lane_id in lanes and (tool := lanes[task.lane_id].tool)),
        account=await engine.get_account(),
        now=now,
    )
