"""Planted bugs: each is a few characters of the engine or of its SQL, and has to be caught, or the harness proves nothing."""

from __future__ import annotations

from dataclasses import dataclass

from tests.planting import Patch


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    patches: tuple[Patch, ...]
    promises: tuple[str, ...]
    """Which of them may name it; whichever a seed breaks first."""
    first: int = 1
    """Where to begin to look for it: what few seeds meet is met soon from here on."""

    @property
    def is_in_postgres(self) -> bool:
        return any(patch.place.startswith("postgres:") for patch in self.patches)


def _bug(name: str, place: str, old: str, new: str, *promises: str, first: int = 1) -> Bug:
    return Bug(name, (Patch(place, old, new),), promises, first)


LAW = "no command breaks the law"
COUNTS = "counts agree with a recount"
END = "everything comes to an end"
DOCTOR = "the doctor finds nothing"
LIMITS = "a tool bears what it bears"
HISTORY = "every history can be explained"
EFFECT = "one request, one effect"
REFUSED = "a refusal changes nothing"
TRUE = "what was acknowledged is true"
WOKEN = "whoever sleeps is woken"
SERVES = "a worker serves the tenant of its tasks"
LEASES = "a lease lasts as long as it says"
TIMERS = "a timer fires when its time has passed"
BEGINS = "no work begins after its lease"
ALONE = "no work runs beside the work that replaces it"
ONCE = "a gate is decided once"
EXPIRES = "a gate expires in its time"
COUNTED = "every approval counts once"
NAMED = "only the named people decide a gate"
ANSWERED = "an answer reaches the next attempt"
FITS = "an answer fits its question"
COMMENTED = "a comment reaches the next attempt"
MADE = "a decision that was accepted was made"
TOLD = "whoever loses a race is told"
PLANNED = "subtasks are added once, by the attempt that holds the task"
WAITS = "a parent ends after its subtasks"
ON = "the stream goes on, whatever strangers do"
WHOLE = "the stream skips nothing"
_STRAYS = (
    "engine.claims",
    "        return _claim_of_tenant(work, worker, worker.tenant, room)\n",
    "        return _claim_of_tenant(work, worker, (*_waiting_tenants(work, ''), worker.tenant)[0], room)\n",
)
_TASK_MOVES = """\
new.revision,
            coalesce((SELECT {} FROM rule
                       WHERE machine_id = old.machine_id {}AND to_state = new.state AND trigger = new.trigger
                         AND to_phase = new.phase AND to_outcome IS new.outcome AND new.revision = old.revision + 1
                         AND needs_worker = (new.worker_id IS NOT NULL)"""

BUGS = (
    _bug(
        "the epoch is not checked",
        "engine.operations.attempts",
        "if task.current_attempt == epoch and not task.lease_expired:",
        "if task.current_attempt is not None and not task.lease_expired:",
        "a stale epoch is refused",
        EFFECT,
        first=17,
    ),
    _bug(
        "a lost lease still counts",
        "engine.operations.attempts",
        "if task.current_attempt == epoch and not task.lease_expired:",
        "if task.current_attempt == epoch:",
        "a stale epoch is refused",
        first=18,
    ),
    _bug(
        "a heartbeat does not hear that its lease has expired",
        "engine.operations.workers",
        "task.current_attempt != epoch or task.lease_expired:",
        "task.current_attempt is None:",
        "a lost lease is told",
    ),
    _bug(
        "a claim keeps the old epoch",
        "engine.tasks",
        "    task.epoch += 1\n",
        "    task.epoch += task.epoch == 0\n",
        LAW,
        "an attempt stays its worker's",
    ),
    _bug(
        "the trail loses a move",
        "sqlite:schema",
        "CREATE TRIGGER worker_moves AFTER UPDATE OF revision ON worker\n    WHEN new.revision <>",
        "CREATE TRIGGER worker_moves AFTER UPDATE OF revision ON worker\n    WHEN new.state <> 'IDLE' AND new.revision <>",
        LAW,
        "the trail folds to the row",
    ),
    _bug(
        "the trail names another rule of a run",
        "sqlite:schema",
        "VALUES (new.entered_at, new.number, 0, new.revision,\n            coalesce((SELECT id FROM rule",
        "VALUES (new.entered_at, new.number, 0, new.revision,\n            coalesce((SELECT id + 1 FROM rule",
        LAW,
        "the trail goes on where it ended",
    ),
    Bug(
        "nobody keeps the law, and what has ended can be cancelled",
        (
            Patch(
                "sqlite:schema",
                _TASK_MOVES.format("id", "AND from_state = old.state "),
                _TASK_MOVES.format("id", ""),
            ),
            Patch(
                "kernel.step",
                "    for move in machine.moves_on.get((state, signal), ()):\n",
                "    for move in machine.moves_on.get((state, signal), ()) or "
                "[each for each in machine.transitions if each.signal == signal == 'cancel' and machine.kind == 'task']:\n",
            ),
        ),
        ("the trail goes on where it ended", "sealed stays sealed", "every move is in the rules"),
    ),
    _bug(
        "a half-open breaker lets everybody through",
        "engine.breakers",
        "(breaker.phase == Phase.ACTIVE and breaker.probe_task_id is None)",
        "breaker.phase == Phase.ACTIVE",
        "one probe",
        first=66,
    ),
    _bug(
        "a probe that ended without an answer keeps its place",
        "engine.tasks",
        "    breakers.leave(work, task)\n    task.current_attempt = None\n",
        "    task.current_attempt = None\n",
        "one probe",
        first=38,
    ),
    _bug(
        "whoever looks at a tool trusts what was seen before the lock",
        "engine.claims",
        "    if breaker and not circuit_open and not limits.has_room(work, breaker):\n        return False\n",
        "",
        LIMITS,
    ),
    _bug(
        "what began is forgotten too soon",
        "engine.limits",
        "timedelta(seconds=breaker.rate_seconds or 0) - _EPOCH",
        "timedelta(seconds=(breaker.rate_seconds or 0) / 2) - _EPOCH",
        LIMITS,
        first=30,
    ),
    _bug(
        "whoever begins in the same commit is not counted",
        "engine.work",
        "            self._at_work[breaker.id] += 1\n",
        "            self._at_work[breaker.id] += 0\n",
        LIMITS,
        first=17,
    ),
    _bug(
        "a reservation is not promised",
        "engine.budgets",
        "        run.promised_usd += amount\n",
        "        run.promised_usd += ZERO_USD\n",
        COUNTS,
        LAW,
    ),
    _bug(
        "a cost is counted twice",
        "engine.budgets",
        "    run.spent_usd += usage.cost_usd\n",
        "    run.spent_usd += 2 * usage.cost_usd\n",
        "money is counted once",
    ),
    _bug(
        "nobody counts that a dependency was met",
        "sqlite:release_dependents",
        "open_dependencies - :released",
        "open_dependencies - (:released - 1)",
        COUNTS,
    ),
    _bug("what was freed is not begun", "engine.follow", "        work.waiting += freed\n", "", "what can begin begins"),
    _bug(
        "what follows stops too early",
        "engine.follow",
        "    while True:\n        if work.succeeded:",
        "    for _ in range(3):\n        if work.succeeded:",
        COUNTS,
        "workers are as busy as they are",
        "what can begin begins",
        END,
        LAW,
        "workers are given back",
        DOCTOR,
        first=9,
    ),
    _bug(
        "a commit whose answer was lost is tried again",
        "engine.writer",
        "                raise  # to try again could do it twice\n",
        "                pass\n",
        EFFECT,
        REFUSED,
        "no command goes on for ever",
        LAW,
        HISTORY,
    ),
    _bug(
        "the answer to a request is not kept",
        "engine.batch",
        "        if not isinstance(outcomes[index], PointsmanError):\n",
        "        if isinstance(outcomes[index], KeyReused):\n",
        EFFECT,
        REFUSED,
        HISTORY,
        "twins get one answer",
        "a stale epoch is refused",
    ),
    _bug(
        "a commit that failed is acknowledged",
        "engine.batch",
        "        transaction.commit(work.wakeups)\n",
        "        with __import__('contextlib').suppress(StoreError):\n            transaction.commit(work.wakeups)\n",
        TRUE,
        LAW,
        TIMERS,
    ),
    _bug(
        "a retry is never due",
        "engine.tasks",
        '    work.set_timer(task, Kind.TASK, "retry", due_at, task.run_id)\n',
        "",
        END,
    ),
    _bug(
        "a timer fires and fires",
        "sqlite:take_timers",
        "DELETE FROM timer WHERE entity_id = :entity_id",
        "UPDATE timer SET revision = revision WHERE entity_id = :entity_id",
        "timers come to rest",
        TIMERS,
    ),
    _bug(
        "a worker stays busy when its task was taken from it",
        "engine.tasks",
        "    work.change_held(task.attempt_worker_id, 0 if task.lease_expired else -1)\n    budgets.settle",
        "    budgets.settle",
        "workers are as busy as they are",
        WOKEN,
    ),
    _bug(
        "nobody notices that a worker is gone",
        "engine.workers",
        '    reassign_tasks(work, worker, Cause(reason=f"worker {worker.name} is gone: {silence}"))\n',
        "",
        "workers are as busy as they are",
    ),
    _bug(
        "a worker gets more than it asked for",
        "engine.claims",
        "if each.id not in passed][:room]",
        "if each.id not in passed]",
        "nobody holds more than fits",
        LAW,
    ),
    _bug(
        "attempts are not limited",
        "engine.tasks",
        "    return task.max_attempts is not None and task.attempt_count >= task.max_attempts\n",
        "    return False\n",
        LAW,
        "no more attempts than allowed",
    ),
    _bug(
        "a lane is remembered that was never committed",
        "engine.submit",
        "    work.new_lanes[lane.id] = lane\n",
        "    work.lanes.add([lane])\n",
        LAW,
        "one probe",
    ),
    _bug(
        "a plain task ends whoever reports",
        "sqlite:find_plain_to_end",
        "task.current_attempt IS told.value ->> 1 AND NOT task.lease_expired",
        "task.current_attempt IS NOT NULL",
        "a stale epoch is refused",
        TRUE,
        HISTORY,
    ),
    _bug(
        "a task with checks ends as a plain one",
        "sqlite:find_plain_to_end",
        "NOT task.has_checks AND ",
        "",
        COUNTS,
        LAW,
        TRUE,
        END,
        HISTORY,
    ),
    _bug(
        "a task that was tried before begins as a plain one",
        "store.columns",
        '"task.epoch = 0 AND ',
        '"',
        LAW,
        TRUE,
        HISTORY,
    ),
    _bug(
        "a task with subtasks ends as a plain one",
        "sqlite:find_plain_to_end",
        "NOT task.has_subtasks AND ",
        "",
        WAITS,
        COUNTS,
        LAW,
        END,
        HISTORY,
    ),
    _bug(
        "a count of before the lock is taken for true",
        "engine.work",
        "        self._held, self._at_work = dict[str, int](), dict[str, int]()\n",
        "        self._held, self._at_work = vars(lanes).setdefault('held', dict[str, int]()), dict[str, int]()\n",
        "nobody holds more than fits",
        "workers are as busy as they are",
        LAW,
        WOKEN,
        HISTORY,
    ),
    _bug(
        "a plain task frees nobody that waits for it",
        "engine.plain",
        "    work.succeeded += [task.id for task in found if task.has_dependents]\n",
        "",
        COUNTS,
        END,
    ),
    _bug(
        "a plain task leaves its worker busy",
        "engine.plain",
        "        work.change_held(worker_id, -count)\n",
        "        pass\n",
        "workers are as busy as they are",
        WOKEN,
    ),
    _bug(
        "a tenant can touch what belongs to another",
        "engine.work",
        "if row is None or row.tenant != tenant:",
        "if row is None:",
        "no tenant reaches another",
    ),
    _bug("a worker claims for a tenant that it does not serve", *_STRAYS, LAW, SERVES),
    Bug(
        "nobody keeps the law, and a worker claims for a tenant that it does not serve",
        (Patch(*_STRAYS), Patch("sqlite:schema", "(worker.tenant = lane.tenant OR ", "(1 OR ")),
        (SERVES,),
    ),
    _bug(
        "nobody is told of tasks that begin in the queue",
        "engine.submit",
        "    if machine.initial.phase is Phase.QUEUED:\n        work.wakeups |= Wakeup.TASKS\n",
        "",
        WOKEN,
    ),
    _bug(
        "nobody is told that a task is back in the queue",
        "engine.tasks",
        "        work.wakeups |= Wakeup.TASKS\n",
        "",
        WOKEN,
    ),
    _bug(
        "nobody is told that a run is open again",
        "engine.runs",
        "        work.wakeups |= Wakeup.TASKS\n",
        "        pass\n",
        WOKEN,
    ),
    _bug(
        "nobody is told that a worker has room again",
        "engine.workers",
        "            work.wakeups |= Wakeup.TASKS  # it had no room",
        "            pass  # it had no room",
        WOKEN,
    ),
    _bug("nobody is told of a timer", "engine.work", "        self.wakeups |= Wakeup.TIMERS\n", "", WOKEN),
    _bug(
        "nobody is told of a lease", "engine.operations.workers", "        work.wakeups |= Wakeup.TIMERS", "        pass", WOKEN
    ),
    _bug(
        "nobody is told what moved",
        "engine.work",
        "        for rows, columns in table.take_moved():\n            self.wakeups |= Wakeup.EVENTS\n",
        "        for rows, columns in table.take_moved():\n",
        WOKEN,
    ),
    _bug(
        "a step of the clock is not corrected",
        "engine.timekeeper",
        "        transaction.correct_clock(corrected)\n",
        "",
        LEASES,
        TIMERS,
        BEGINS,
    ),
    _bug(
        "a clock that is set back is not noticed",
        "engine.timekeeper",
        "    if shortest - allowed <= moved <= longest + allowed:\n",
        "    if moved <= longest + allowed:\n",
        LEASES,
        TIMERS,
        BEGINS,
    ),
    _bug(
        "nobody notices a step that follows a correction",
        "engine.timekeeper",
        "        if last and (step := _find_step(last, new)):\n",
        "        if last and last.time.revision == time.revision and (step := _find_step(last, new)):\n",
        LEASES,
        TIMERS,
        BEGINS,
        HISTORY,
        EXPIRES,
        first=292,
    ),
    _bug(
        "the second correction forgets the first",
        "store.clock",
        "        offset = self._offset_at(self.wall - timedelta(seconds=step_seconds)) - step_seconds\n",
        "        offset = -step_seconds\n",
        LEASES,
        TIMERS,
        BEGINS,
    ),
    _bug(
        "a worker that was frozen begins what it had claimed",
        "worker.lease",
        "        return self._age < self._seconds * CERTAIN_LEASES\n",
        "        return self._age >= 0\n",
        BEGINS,
    ),
    _bug(
        "what a dead worker has left runs on",
        "worker.former",
        "each.epoch < epoch and each.exit_code is None",
        "each.epoch < epoch and each.exit_code is not None",
        ALONE,
    ),
    _bug(
        "only the last attempt is thought to run on",
        "worker.former",
        "each.epoch < epoch and each.exit_code is None",
        "each.epoch == epoch - 1 and each.exit_code is None",
        ALONE,
    ),
    _bug(
        "an approval takes the place of the one before",
        "engine.gates",
        "    return Approvals((*approvals.approved_by, actor), approvals.opened_at)\n",
        "    return Approvals((actor,), approvals.opened_at)\n",
        COUNTED,
        MADE,
        HISTORY,
        END,
        first=2,
    ),
    _bug(
        "one person can approve twice",
        "engine.operations.tasks",
        "cause.actor in gates.read_approvals(task).approved_by:",
        "cause.actor is None:",
        COUNTED,
        HISTORY,
        first=3,
    ),
    _bug(
        "an approval extends the time of a gate",
        "engine.gates",
        "read_approvals(task).opened_at + timedelta(seconds=seconds)",
        "task.entered_at + timedelta(seconds=seconds)",
        EXPIRES,
        first=30,
    ),
    _bug(
        "anybody decides a gate",
        "engine.operations.tasks",
        "        gates.check_decider(task, work.runs.rows[task.run_id], self.signal, self.caller.actor)\n",
        "",
        NAMED,
        HISTORY,
    ),
    _bug(
        "whoever approves too late hears that it was done",
        "engine.operations.tasks",
        "            tasks.refuse(approve_gate(work, task, self.cause))\n            return\n",
        "            approve_gate(work, task, self.cause)\n            return\n",
        MADE,
        HISTORY,
    ),
    _bug(
        "whoever rejects what was accepted hears that it was done",
        "engine.operations.tasks",
        "        decided = tasks.check(work, task, self.signal, report)\n",
        "        if self.signal == 'reject' and not work.takes(task, 'reject'):\n            return\n"
        "        decided = tasks.check(work, task, self.signal, report)\n",
        MADE,
        HISTORY,
    ),
    _bug(
        "whoever answers what was canceled hears that it was done",
        "engine.operations.tasks",
        "        decided = tasks.check(work, task, self.signal, report)\n",
        "        if self.signal == 'answer' and not work.takes(task, 'answer'):\n            return\n"
        "        decided = tasks.check(work, task, self.signal, report)\n",
        MADE,
        HISTORY,
    ),
    _bug(
        "a task that was canceled goes on with the answer",
        "engine.operations.tasks",
        '        if self.signal == "cancel":\n            tasks.refuse(tasks.cancel(work, task, self.cause))\n',
        '        if self.signal == "cancel":\n            if task.question is None:\n'
        "                tasks.refuse(tasks.cancel(work, task, self.cause))\n",
        MADE,
        HISTORY,
    ),
    _bug(
        "an attempt that was lost takes the answer with it",
        "engine.tasks",
        "    task.worker_id = None\n    task.lease_expired = False\n    if not report.counts:\n",
        "    task.answer = None\n    task.worker_id = None\n    task.lease_expired = False\n    if not report.counts:\n",
        ANSWERED,
        HISTORY,
    ),
    _bug(
        "any words are an answer",
        "engine.operations.tasks",
        "if misfit := question.explain_misfit(self.answer):",
        "if misfit := None and question.explain_misfit(self.answer):",
        FITS,
        first=3,
    ),
    _bug(
        "the next attempt is not told why it was rejected",
        "engine.claims",
        "        comment=task.comment,\n",
        "        comment=None,\n",
        COMMENTED,
        first=2,
    ),
    _bug(
        "a refusal names another state",
        "kernel.machine",
        "        return Refusal(case, self.name, state, asked, allowed, unmet)\n",
        "        return Refusal(case, self.name, self.initial.name, asked, allowed, unmet)\n",
        TOLD,
    ),
    _bug(
        "an attempt that has lost its lease adds subtasks",
        "engine.operations.attempts",
        "            check_worker(self.signal)\n        check_epoch(task, self.epoch)\n",
        "            check_worker(self.signal)\n"
        "        if self.report.subtasks:\n"
        "            submit.add_subtasks(work, task, submit.plan_subtasks(work, task, self.report.subtasks))\n"
        "        check_epoch(task, self.epoch)\n",
        PLANNED,
        "a refusal changes nothing",
        first=10,
    ),
    _bug(
        "a parent does not wait for its subtasks",
        "engine.tasks",
        "        return self._report.adds_subtasks or (subtasks is not None and not subtasks.is_done)\n",
        "        return False\n",
        WAITS,
        END,
        DOCTOR,
    ),
    _bug(
        "any advisory lock holds the stream back",
        "postgres:schema",
        "               AND virtualtransaction IN (SELECT virtualtransaction FROM held\n",
        "               OR virtualtransaction NOT IN (SELECT virtualtransaction FROM held\n",
        ON,
    ),
    _bug(
        "the stream does not wait for transactions that still run",
        "postgres:schema",
        "            SELECT least(assigned, min(((classid::bigint & 65535) << 32) + objid::bigint))\n",
        "            SELECT assigned + 0 * coalesce(min(objid::bigint), 0)\n",
        WHOLE,
    ),
    _bug("the bell does not ring", "store.sqlite.store", "            self._bell.ring(wakeup)\n", "            pass\n", WOKEN),
)


def find(name: str) -> Bug:
    return next(bug for bug in BUGS if bug.name == name)
