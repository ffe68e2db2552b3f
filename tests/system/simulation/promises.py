"""The promises, checked by reading the database itself: what was written since the last look agrees with all that was before.

Nothing here asks the engine. Which rows were written is told by the database (`note`); everything is counted anew from them.
"""

from __future__ import annotations

import json
from collections import defaultdict, namedtuple
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import apsw

KINDS = ("run", "task", "worker", "breaker")
PERSONS = ("ada", "bob", "eve")
FINISHED = ("state", "outcome", "revision", "epoch", "attempt_count", "cost_usd", "output", "completed_at")
"""What of a task that has ended for good never changes."""


class Broken(Exception):
    """A promise was not kept."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise
        self.detail = detail


class Move(NamedTuple):
    position: int
    to_state: str
    trigger: str
    at: int
    actor: str | None
    reason: str | None
    metadata: str | None


class State(NamedTuple):
    phase: str
    outcome: str | None
    initial: bool


class Wanted:
    """Which promises are looked at; all of them, unless somebody wants to see what one of them alone would find."""

    only: str | None = None


def keep(promise: str, kept: Any, detail: str) -> None:
    if not kept and Wanted.only in (None, promise):
        raise Broken(promise, detail)


class Promises:
    """What has been seen of the database so far, and the promises about it."""

    def __init__(self, connection: apsw.Connection, sealed: frozenset[tuple[str, str]]) -> None:
        self._connection = connection
        self._dirty: dict[str, set[int]] = {kind: set() for kind in KINDS}
        self._types = {kind: _row_type(connection, kind) for kind in (*KINDS, "attempt")}
        self._names: dict[int, str] = dict(self._rows("SELECT id, name FROM machine"))
        self._sealed = {(number, state) for number, name in self._names.items() for of, state in sealed if of == name}
        self._states = {
            (machine, name): State(phase, outcome, bool(initial))
            for machine, name, phase, outcome, initial in self._rows(
                "SELECT machine_id, name, phase, outcome, initial FROM state"
            )
        }
        self._rules = set(self._rows("SELECT machine_id, from_state, to_state, trigger FROM rule"))
        self._takes = {(self._names[machine], state, trigger) for machine, state, _, trigger in self._rules}
        self._resting = {machine for machine, _, _, trigger in self._rules if trigger in ("release", "task_completed")}
        """Machines of workers that rest when they hold nothing."""
        self._position = 0
        self._lanes: dict[int, str | None] = {}
        # what has been seen
        self.rows: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        self.trails: dict[str, list[Move]] = {}
        self.attempts: dict[str, dict[int, Any]] = {}
        self.begun_at: dict[str, int] = {}
        """By task: where in the trail its current attempt began."""
        self._waits_for: dict[str, list[str]] = {}
        self._waited_for_by: defaultdict[str, list[str]] = defaultdict(list)
        self._tasks_of: defaultdict[str, set[str]] = defaultdict(set)
        self._held_by: defaultdict[str, set[str]] = defaultdict(set)
        self._second_chances: defaultdict[str, int] = defaultdict(int)
        """By task: how often somebody took it out of where it had come to rest."""
        self._free_tries: defaultdict[str, int] = defaultdict(int)
        """By task: attempts that did not count, because of a usage limit."""
        self._at_work: dict[str, set[str]] = {}
        """By breaker: the tasks of its tool that were at work at the last look."""
        self._begun: dict[str, tuple[tuple[Any, ...], list[int]]] = {}
        """By breaker: its rate, and when attempts of its tool began since it has that."""
        self.changed_budgets: set[str] = set()
        """Runs whose budget is not the one that their tasks reserved of."""
        self.changed: list[str] = []
        """Which entities the last look found changed, heartbeats aside."""

    @property
    def runs(self) -> dict[str, Any]:
        return self.rows["run"]

    @property
    def tasks(self) -> dict[str, Any]:
        return self.rows["task"]

    @property
    def workers(self) -> dict[str, Any]:
        return self.rows["worker"]

    @property
    def breakers(self) -> dict[str, Any]:
        return self.rows["breaker"]

    def note(self, _change: int, _database: str, table: str, row: int) -> None:
        """The update hook of every connection; it also tells of what is rolled back later, which does no harm."""
        kind = "task" if table == "task_state" else table
        if kind in self._dirty:
            self._dirty[kind].add(row)

    # looking

    def look(self) -> None:
        """Check everything that has been written since the last look."""
        moves = self._rows(
            "SELECT position, kind, entity_id, machine_id, from_state, to_state, trigger, at, actor, reason, metadata "
            "FROM transition WHERE position > ? ORDER BY position",
            (self._position,),
        )
        for move in moves:
            self._follow(*move)
        found = {kind: self._fetch(kind) for kind in KINDS}
        self.changed = []
        for kind, rows in found.items():
            for row in rows:
                self._compare(kind, row)
        self._check({row.id for row in found["task"]}, {row.id for row in found["run"]}, {row.id for row in found["worker"]})

    def look_at_everything(self) -> None:
        """All of it anew, from the first row to the last."""
        fresh = Promises(self._connection, frozenset((self._names[number], state) for number, state in self._sealed))
        for kind in KINDS:
            fresh._dirty[kind] = {row for (row,) in self._rows(f"SELECT number FROM {kind}")}
        fresh.changed_budgets = self.changed_budgets
        fresh._at_work = self._at_work
        fresh.look()
        for entity_id, trail in self.trails.items():
            keep("what was written stays", fresh.trails.get(entity_id) == trail, f"the trail of {entity_id} is another one")
        for task_id, attempts in self.attempts.items():
            keep("what was written stays", fresh.attempts[task_id] == attempts, f"the attempts of {task_id} are others")

    def _fetch(self, kind: str) -> list[Any]:
        numbers, self._dirty[kind] = self._dirty[kind], set()
        if not numbers:
            return []
        listed = ",".join(map(str, sorted(numbers)))
        return [self._types[kind]._make(row) for row in self._rows(f"SELECT * FROM {kind} WHERE number IN ({listed})")]

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return self._connection.execute(query, values).fetchall()

    # the trail

    def _follow(
        self,
        position: int,
        kind: str,
        entity_id: str,
        machine: int,
        from_state: str | None,
        to_state: str,
        trigger: str,
        at: int,
        actor: str | None,
        reason: str | None,
        metadata: str | None,
    ) -> None:
        trail = self.trails.setdefault(entity_id, [])
        where = f"{entity_id} from {from_state} to {to_state} by {trigger}"
        keep("the trail has no gaps", position == self._position + 1, f"position {position} follows {self._position}")
        self._position = position
        before = trail[-1] if trail else None
        keep("the trail goes on where it ended", from_state == (before and before.to_state), f"{where}, but it was {before}")
        if before is None:
            keep("everything begins in an initial state", self._states[machine, to_state].initial, where)
        else:
            keep("sealed stays sealed", (machine, from_state) not in self._sealed, where)
            keep("every move is in the rules", (machine, from_state, to_state, trigger) in self._rules, where)
            keep("time goes on", at >= before.at, where)
        trail.append(Move(position, to_state, trigger, at, actor, reason, metadata))
        if kind == "task" and from_state is not None:
            left, entered = self._states[machine, from_state], self._states[machine, to_state]
            if entered.phase == "active" and (left.phase != "active" or from_state == to_state):
                self.begun_at[entity_id] = position
            if left.phase == "done" or actor in PERSONS:
                self._second_chances[entity_id] += 1
            if metadata and '"usage_limit"' in metadata:
                self._free_tries[entity_id] += 1

    # rows

    def _compare(self, kind: str, row: Any) -> None:
        """A row is where its trail leads to, and says the same of it."""
        old = self.rows[kind].get(row.id)
        if old == row:
            return
        self.rows[kind][row.id] = row
        if old is None or kind != "worker" or old._replace(heartbeat_at=row.heartbeat_at) != row:
            self.changed.append(row.id)
        trail = self.trails.get(row.id)
        keep("the trail folds to the row", trail, f"{row.id} is {row.state} and has no trail")
        assert trail
        told = (trail[-1].to_state, len(trail) - 1, trail[-1].at if len(trail) > 1 else row.entered_at)
        stands = (row.state, row.revision, row.entered_at)
        keep("the trail folds to the row", told == stands, f"{row.id} stands at {stands}, its trail ends at {told}")
        state = self._states[row.machine_id, row.state]
        keep("the phase follows from the state", (row.phase, row.outcome) == (state.phase, state.outcome), f"{row.id}: {row}")
        if old is not None and (old.machine_id, old.state) in self._sealed and kind == "task":
            changed = [name for name in FINISHED if getattr(old, name) != getattr(row, name)]
            keep("sealed stays sealed", not changed, f"{changed} of {row.id} changed, which was {old.state}")
        if kind == "run" and old is not None and old.budget_usd != row.budget_usd:
            self.changed_budgets.add(row.id)
        if kind == "task":
            self._compare_task(old, row)

    def _compare_task(self, old: Any, row: Any) -> None:
        if old is None:
            self._tasks_of[row.run_id].add(row.id)
            others = [name for (name,) in self._rows("SELECT depends_on_id FROM dependency WHERE task_id = ?", (row.id,))]
            self._waits_for[row.id] = others
            for other in others:
                self._waited_for_by[other].append(row.id)
        else:
            keep("epochs only grow", row.epoch >= old.epoch, f"{row.id} had epoch {old.epoch} and has {row.epoch}")
        active = row.phase == "active"
        current = row.epoch if active else None
        keep("one attempt holds a task", row.current_attempt == current, f"{row.id} is {row.state}: {row.current_attempt}")
        self._compare_attempts(row)

    def _compare_attempts(self, task: Any) -> None:
        known = self.attempts.setdefault(task.id, {})
        rows = [self._types["attempt"]._make(row) for row in self._rows("SELECT * FROM attempt WHERE task_id = ?", (task.id,))]
        too_soon = [row for row in rows if row.epoch == task.current_attempt]
        keep("an attempt is written down when it ends", not too_soon, f"{task.id}: {too_soon}")
        if task.current_attempt is not None:
            rows.append(self._read_current_attempt(task))
        epochs = sorted(row.epoch for row in rows)
        keep("each claim has its own epoch", epochs == list(range(1, task.epoch + 1)), f"{task.id}: {epochs}, {task.epoch}")
        for row in rows:
            before = known.get(row.epoch)
            keep("an attempt ends once", not (before and before.ended_at is not None and before != row), f"{before} -> {row}")
            same = before is None or (before.worker_id, before.started_at) == (row.worker_id, row.started_at)
            keep("an attempt stays its worker's", same, f"{before} -> {row}")
            keep("a worker serves the tenant of its tasks", self._serves(row.worker_id, task.tenant), f"{row}")
            known[row.epoch] = row
            self._held_by[row.worker_id].discard(task.id)
        under_way = [row for row in rows if row.ended_at is None]
        held = [row.epoch for row in under_way]
        wanted = [] if task.current_attempt is None else [task.current_attempt]
        keep("one attempt holds a task", held == wanted, f"{task.id} is held by {wanted}, under way are {held}")
        if under_way and not task.lease_expired:
            self._held_by[under_way[0].worker_id].add(task.id)
        cost, tokens = sum(row.cost_usd for row in rows), sum(row.tokens_in for row in rows)
        keep("money is counted once", task.cost_usd == cost, f"{task.id} cost {task.cost_usd}, its attempts {cost}")
        keep(
            "money is counted once", task.tokens_in == tokens, f"{task.id} read {task.tokens_in} tokens, its attempts {tokens}"
        )
        if task.max_attempts is not None:
            most = task.max_attempts * (1 + self._second_chances[task.id]) + self._free_tries[task.id]
            keep("no more attempts than allowed", task.epoch <= most, f"{task.id}: {task.epoch} attempts, {most} allowed")

    def _serves(self, worker_id: str, tenant: str) -> bool:
        ((owner, serves),) = self._rows("SELECT tenant, serves FROM worker WHERE id = ?", (worker_id,))
        others = json.loads(serves)
        return tenant == owner or others == "all" or tenant in others

    def _read_current_attempt(self, task: Any) -> Any:
        """What the row of a task says of the attempt that holds it."""
        return self._types["attempt"](
            task_id=task.id,
            epoch=task.current_attempt,
            tenant=task.tenant,
            worker_id=task.attempt_worker_id,
            started_at=task.attempt_started_at,
            ended_at=None,
            ended_by=None,
            error=task.attempt_error,
            exit_code=task.attempt_exit_code,
            cost_usd=task.attempt_cost_usd,
            session_id=task.session_id,
            resumed=task.attempt_resumed,
            log_path=task.attempt_log_path,
            tokens_in=task.attempt_tokens_in,
            tokens_out=task.attempt_tokens_out,
            cost_is_estimated=task.attempt_cost_is_estimated,
        )

    # counts

    def _check(self, tasks: set[str], runs: set[str], workers: set[str]) -> None:
        dependents = {other for task_id in tasks for other in self._waited_for_by[task_id]}
        for name in sorted(tasks | dependents):
            self._check_task(self.tasks[name])
        for run_id in sorted(runs | {self.tasks[task_id].run_id for task_id in tasks}):
            self._check_run(self.runs[run_id])
        holders = {row.worker_id for task_id in tasks for row in self.attempts[task_id].values()}
        for worker_id in sorted(workers | holders):
            self._check_worker(self.workers[worker_id])
        at_work = self._find_at_work()
        for breaker in self.breakers.values():
            self._check_breaker(breaker)
            self._check_limits(breaker, at_work[breaker.tenant, breaker.tool])

    def _check_task(self, task: Any) -> None:
        waits = sum(self.tasks[other].outcome != "success" for other in self._waits_for[task.id])
        keep(
            "counts agree with a recount",
            task.open_dependencies == waits,
            f"{task.id} is {task.state} and waits for {task.open_dependencies}, by a recount for {waits}",
        )
        state = self._states[task.machine_id, task.state]
        could_begin = state.initial and state.phase == "held" and waits == 0
        waits_for_person = '"autostart":false' in self.runs[task.run_id].policy
        keep("what can begin begins", not could_begin or waits_for_person, f"{task.id} is still {task.state}")

    def _check_run(self, run: Any) -> None:
        tasks = [self.tasks[task_id] for task_id in self._tasks_of[run.id]]
        spent, promised = sum(task.cost_usd for task in tasks), sum(task.reserved_usd for task in tasks)
        keep("money is counted once", run.spent_usd == spent, f"{run.id} spent {run.spent_usd}, its tasks {spent}")
        tokens = sum(task.tokens_in for task in tasks)
        keep("money is counted once", run.tokens_in == tokens, f"{run.id} read {run.tokens_in} tokens, its tasks {tokens}")
        self._check_account(run.tenant)
        keep("counts agree with a recount", run.promised_usd == promised, f"{run.id}: {run.promised_usd}, {promised}")
        left = promised if run.budget_usd is None else max(run.budget_usd - run.spent_usd, 0)
        keep("counts agree with a recount", run.reserved_usd == min(promised, left), f"{run.id}: {run.reserved_usd}, {left}")
        fits = run.reserved_usd == 0 or run.budget_usd is None or run.spent_usd + run.reserved_usd <= run.budget_usd
        keep("budgets hold", fits, f"{run.id}: {run.spent_usd} + {run.reserved_usd} > {run.budget_usd}")
        self._check_reservations(run, tasks)
        may_begin = run.phase == "active" or (run.phase == "queued" and not run.allocates)
        is_open = may_begin and not run.missing_tasks
        wrong = [task.id for task in tasks if task.outcome != "success" and bool(task.run_open) != is_open]
        keep("counts agree with a recount", not wrong, f"{wrong} do not know that {run.id} is {run.state}")
        unfinished = [task.id for task in tasks if task.outcome != "success"]
        keep("a run succeeds with its tasks", run.outcome != "success" or not unfinished, f"{run.id}: {unfinished}")

    def _check_account(self, tenant: str) -> None:
        spent = self._rows(
            "SELECT coalesce(sum(spent_usd), 0), coalesce(sum(tokens_in), 0) FROM run WHERE tenant = ?", (tenant,)
        )
        account = self._rows("SELECT spent_usd, tokens_in FROM account WHERE tenant = ?", (tenant,)) or [(0, 0)]
        keep("money is counted once", list(account) == list(spent), f"{tenant} has spent {account}, its runs {spent}")

    def _check_reservations(self, run: Any, tasks: Iterable[Any]) -> None:
        """Whoever has a budget in a run with one has reserved all of it that is not spent, while it runs."""
        for task in tasks:
            runs = task.phase == "active" and not task.lease_expired
            both = task.budget_usd is not None and run.budget_usd is not None
            if runs and both and run.id not in self.changed_budgets:
                wanted = max(task.budget_usd - task.cost_usd, 0)
                keep("budgets hold", task.reserved_usd == wanted, f"{task.id} reserved {task.reserved_usd} of {wanted}")

    def _check_worker(self, worker: Any) -> None:
        held = len(self._held_by[worker.id])
        text = f"{worker.id} is {worker.state}, holds {held} of {worker.max_concurrent_tasks}"
        keep("nobody holds more than fits", held <= worker.max_concurrent_tasks, text)
        may_hold = worker.phase not in ("queued", "done") and not worker.missing
        keep("workers are as busy as they are", held == 0 or may_hold, text)
        rests = worker.phase == "active" and worker.run_id is None and worker.machine_id in self._resting
        keep("workers are as busy as they are", held or not rests, text)
        ended = worker.run_id is not None and self.runs[worker.run_id].phase == "done"
        keep("workers are given back", not ended, f"{worker.id} belongs to {worker.run_id}, which has ended")

    def _check_breaker(self, breaker: Any) -> None:
        probe = breaker.probe_task_id
        runs = probe is None or (self.tasks[probe].phase == "active" and not self.tasks[probe].lease_expired)
        keep("one probe", runs, f"the probe {probe} does not run")
        if breaker.phase != "active":
            return
        # Whoever has done its work, and is being checked, has had its tool's answer.
        since = self.trails[breaker.id][-1].position
        let_through = [
            task.id
            for task in self.tasks.values()
            if task.phase == "active"
            and not task.lease_expired
            and task.tenant == breaker.tenant
            and self.begun_at[task.id] > since
            and self.begun_at[task.id] == self.trails[task.id][-1].position
            and self.tool_of(task) == breaker.tool
        ]
        wanted = [probe] if probe else []
        keep("one probe", let_through == wanted, f"{breaker.tool} is half open for {wanted}, and {let_through} run")

    def _find_at_work(self) -> defaultdict[tuple[str, str | None], dict[str, int]]:
        """By tenant and tool: which attempts go on, and since when."""
        found: defaultdict[tuple[str, str | None], dict[str, int]] = defaultdict(dict)
        for task in self.tasks.values():
            if task.phase == "active" and not task.lease_expired:
                found[task.tenant, self.tool_of(task)][f"{task.id} {task.epoch}"] = task.attempt_started_at
        return found

    def _check_limits(self, breaker: Any, running: dict[str, int]) -> None:
        """Limits hold for whatever begins; what went on before they were made smaller goes on."""
        new = running.keys() - self._at_work.get(breaker.id, set())
        self._at_work[breaker.id] = set(running)
        if new and breaker.max_concurrent is not None:
            text = f"{breaker.tool} bears {breaker.max_concurrent}, and {sorted(running)} run"
            keep("a tool bears what it bears", len(running) <= breaker.max_concurrent, text)
        rate = (breaker.rate_count, breaker.rate_seconds)
        known, begun = self._begun.get(breaker.id, (rate, []))
        begun = [*(begun if known == rate else []), *(running[name] for name in new)]
        self._begun[breaker.id] = (rate, begun)
        for at in [running[name] for name in new] if breaker.rate_count is not None else []:
            within = [other for other in begun if at - breaker.rate_seconds * 1e6 < other <= at]
            text = f"{within} of {breaker.tool} began within {breaker.rate_seconds} seconds"
            keep("a tool bears what it bears", len(within) <= breaker.rate_count, text)

    def tool_of(self, task: Any) -> str | None:
        if task.lane_id not in self._lanes:
            self._lanes |= dict(self._rows("SELECT id, tool FROM lane"))
        return self._lanes[task.lane_id]

    # what the scheduler asks

    def has_key(self, tenant: str, endpoint: str, key: str) -> bool:
        query = "SELECT 1 FROM idempotency_key WHERE tenant = ? AND endpoint = ? AND key = ?"
        return bool(self._rows(query, (tenant, endpoint, key)))

    def tasks_of(self, run_id: str) -> list[Any]:
        return [self.tasks[task_id] for task_id in sorted(self._tasks_of[run_id])]

    def machine_of(self, row: Any) -> str:
        return self._names[row.machine_id]

    def takes(self, machine: str, state: str, trigger: str) -> bool:
        """Whether a trigger leads out of a state, or back to it."""
        return (machine, state, trigger) in self._takes

    def attempt(self, task_id: str, epoch: int) -> Any:
        return self.attempts.get(task_id, {}).get(epoch)


def _row_type(connection: apsw.Connection, table: str) -> Any:
    query = "SELECT name FROM pragma_table_info(?) ORDER BY cid"
    return _make_row_type(table, tuple(str(name) for (name,) in connection.execute(query, (table,)).fetchall()))


@cache
def _make_row_type(table: str, columns: tuple[str, ...]) -> Any:
    return namedtuple(table, columns)
