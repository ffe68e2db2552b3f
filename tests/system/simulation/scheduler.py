"""A seeded run of many processes, workers and people on one database: the same seed, the same run, to the last byte."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Literal

from tests.system.simulation.answers import Answers
from tests.system.simulation.database import new_database, template
from tests.system.simulation.decisions import Decisions
from tests.system.simulation.elapsed import Elapsed
from tests.system.simulation.faults import Fault
from tests.system.simulation.history import History
from tests.system.simulation.outside import Outside
from tests.system.simulation.people import Client, declare_tool
from tests.system.simulation.post import Message, Sender
from tests.system.simulation.process import MOST_WORK, Process, Time
from tests.system.simulation.promises import Broken, Promises, keep
from tests.system.simulation.shapes import LIMITS, TENANTS, TOOLS
from tests.system.simulation.wakeups import Wakeups
from tests.system.simulation.workers import SimulatedWorker

from pointsman.engine.operations.tasks import SignalTask
from pointsman.engine.operations.upkeep import ExpireWorkers, FireTimers, PurgeKeys
from pointsman.kernel.machine import Lifecycle

STEPS = 130
PROCESSES = 3
WORKERS = 6
SHARED: Mapping[int, tuple[str, ...] | Literal["all"]] = {0: "all", 1: TENANTS}
"""By the number of a worker: the tenants that it serves besides its own."""
CLIENTS = 2
LARGEST_BATCH = 8
LARGEST_SKEW_SECONDS = 0.2
"""Clocks of several machines differ a little; and what is less than a step is none."""
STEPS_SECONDS = (8.0, 45.0, 600.0, 90_000.0)
MOST_LOOKS = 30
REMEMBERED = 20


class Failure(Exception):
    """A promise was broken: which, when, and what was done last."""

    def __init__(self, seed: int, step: int, broken: Broken, lines: Sequence[str]) -> None:
        super().__init__(f"seed {seed}, step {step}: {broken}")
        self.seed = seed
        self.step = step
        self.promise = broken.promise
        self.lines = list(lines)


class Nobody:
    """Sends what nobody waits for an answer to."""

    def hear(self, message: Message, outcome: Any) -> None:
        pass


class Simulation:
    def __init__(self, seed: int, *, steps: int = STEPS, trace: bool = False) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.is_peopled = self.chance.random() < 0.4
        """Most runs wait for people, who are busy."""
        self.time = Time()
        self.step = 0
        self._steps = steps
        self._notes: deque[tuple[int, float, str | Callable[[], str]]] = deque(maxlen=None if trace else REMEMBERED)
        name, connection = new_database()
        self._connection = connection
        self.machines = template()[1]
        self.promises = Promises(connection, sealed_states(self.machines.lifecycles.values()))
        self.elapsed = Elapsed(connection, self.time, self.promises)
        self.outside = Outside(self)
        self._answers = Answers(self.promises)
        self._decisions = Decisions(self.promises, self.time)
        self._history = History(self.promises)
        self.tally = self._history.tally
        self._wakeups = Wakeups(connection)
        self.processes = [
            Process(f"p{n}", name, self.time, self.chance, self._note_write, self._wakeups.note) for n in range(PROCESSES)
        ]
        self.workers = [
            SimulatedWorker(self, number, self.chance.choice(TENANTS), SHARED.get(number, ())) for number in range(WORKERS)
        ]
        self._clients = [Client(self, f"c{number}") for number in range(CLIENTS)]
        self._under_way: list[Message] = []
        self._late: list[tuple[Message, Any]] = []
        """Answers that have not arrived yet."""
        self._keys = 0
        self.nobody = Nobody()

    def _note_write(self, change: int, database: str, table: str, row: int) -> None:
        self.promises.note(change, database, table, row)
        self.elapsed.note(table, row)

    def send(self, message: Message) -> None:
        self._under_way.append(message)

    def draw_key(self) -> str | None:
        """An idempotency key, for some."""
        self._keys += 1
        return f"key-{self._keys}" if self.chance.random() < 0.5 else None

    def run(self) -> None:
        """Everything with faults, then without; raises `Failure` with the promise that was broken."""
        from tests.system.simulation.heal import heal

        try:
            self._prepare()
            for _ in range(self._steps):
                self._take_step()
            heal(self)
            self.promises.look_at_everything()
            self._history.check()
        except Broken as broken:
            raise Failure(self.seed, self.step, broken, self.lines()) from broken

    def close(self) -> None:
        for process in self.processes:
            if process.is_alive:
                process.kill()
        self._connection.close()

    # one step

    def _prepare(self) -> None:
        for tenant in TENANTS:
            for tool in TOOLS:
                failures, limits = self.chance.choice((1, 2, 3)), self.chance.choice(LIMITS)
                self.deliver(self.processes[0], [declare_tool(tenant, tool, failures, 1, 5.0, **limits)])

    def _take_step(self) -> None:
        self.step += 1
        self.time.advance(self.chance.choice((0.05, 0.3, 0.3, 1.0, 1.0, 2.5)))
        self._let_go_wrong()
        actors: list[SimulatedWorker | Client] = [*self.workers, *self._clients]
        for actor in self.chance.sample(actors, k=3):
            actor.act()
        alive = [process for process in self.processes if process.is_alive]
        if alive:
            process = self.chance.choice(alive)
            if self.chance.random() < 0.15:
                for upkeep in (FireTimers(), ExpireWorkers(), PurgeKeys()):
                    if process.is_alive:
                        self.deliver(process, [upkeep])
            else:
                self._deliver_batch(process)
        self._hand_over()

    def _deliver_batch(self, process: Process) -> None:
        """Some of what is under way, in any order; some of it will come again."""
        size = self.chance.choice((1, 1, 2, 3, LARGEST_BATCH))
        batch = self.chance.sample(self._under_way, k=min(size, len(self._under_way)))
        if not batch:
            return
        chosen = {id(message) for message in batch if self.chance.random() > 0.05}
        self._under_way = [message for message in self._under_way if id(message) not in chosen]
        if self.chance.random() < 0.04:
            batch.append(self.chance.choice(batch))
        if self.is_peopled and any(isinstance(message.command, SignalTask) for message in batch):
            self._crash_at_commit(process)
        self._execute(process, batch)

    def deliver(self, process: Process, commands: Sequence[Any], sender: Sender | None = None) -> list[Any]:
        """Have commands decided here and now; the answers, unless the process died of it."""
        messages = [Message(command, sender or self.nobody, self.time.seconds) for command in commands]
        return self._execute(process, messages) or []

    def _execute(self, process: Process, batch: Sequence[Message]) -> list[Any] | None:
        self._answers.expect(batch)
        self._decisions.expect(batch)
        splits = process.writer.metrics.splits
        outcomes = process.execute([message.command for message in batch])
        self.note(partial(describe_batch, process.name, batch, outcomes))
        keep("no command goes on for ever", process.work <= MOST_WORK, f"{[str(message) for message in batch]}")
        self.promises.look()
        self._wakeups.check()
        self.elapsed.check(batch, outcomes)
        self._history.note(batch, outcomes)
        self._answers.check(batch, outcomes, self.time.seconds)
        self._decisions.check(batch, outcomes)
        was_split = process.writer.metrics.splits > splits
        keep("no command breaks the law", not was_split, f"a batch had to be split: {process.last_error!r}")
        if outcomes is None:
            self._end_workers(process)
        else:
            self._late += zip(batch, outcomes, strict=True)
        return outcomes

    def _hand_over(self) -> None:
        """Most answers arrive, sooner or later, in any order."""
        late, self._late = self._late, []
        for message, outcome in late:
            luck = self.chance.random()
            if luck < 0.75:
                message.sender.hear(message, outcome)
            elif luck < 0.96:
                self._late.append((message, outcome))

    def deliver_all(self, process: Process) -> None:
        """Everything that is under way, together, and every answer at once."""
        batch, self._under_way = self._under_way, []
        if batch:
            self._execute(process, batch)
        late, self._late = self._late, []
        for message, outcome in late:
            message.sender.hear(message, outcome)

    def lose_post(self) -> None:
        self._under_way = []
        self._late = []

    # faults

    def _let_go_wrong(self) -> None:
        luck = self.chance.random()
        if luck < 0.15:
            self._arm(self.chance.choice(self.processes))
        elif luck < 0.17:
            process = self.chance.choice(self.processes)
            if process.is_alive:
                self.note(f"{process.name} is killed between two transactions")
                process.kill()
                self._end_workers(process)
        elif luck < 0.23:
            self._silence(self.chance.choice(self.workers))
        elif luck < 0.25:
            self._freeze_before_start()
        elif luck < 0.27:
            self._set_clock(self.chance.choice((-1, 1)) * self.chance.choice(STEPS_SECONDS))
        elif luck < 0.29:
            process = self.chance.choice(self.processes)
            process.clock.skew_seconds = self.chance.uniform(-LARGEST_SKEW_SECONDS, LARGEST_SKEW_SECONDS)
            self.note(f"the clock of {process.name} jumps to {process.clock.skew_seconds:+.3f} seconds")
        elif luck < 0.31:
            self.time.advance(self.chance.uniform(5, 40))
        for process in self.processes:
            if not process.is_alive and self.chance.random() < 0.3:
                process.start()
                self.note(f"{process.name} is started again")

    def _arm(self, process: Process) -> None:
        if not process.is_alive:
            return
        kind = self.chance.choice(("crash", "crash", "unknown", "unknown", "busy", "unavailable", "conflict", "full"))
        most = {"busy": 8, "unavailable": 8, "conflict": 3}.get(kind, 1)
        fault = Fault(
            kind,
            after_calls=self.chance.choice((0, 2, 4, 7, 11, 16, 25, 40)),
            times=self.chance.randint(1, most),
            committed=kind in ("crash", "unknown") and self.chance.random() < 0.5,
        )
        process.expect(fault)
        self.note(f"{process.name} shall meet: {fault}")

    def _crash_at_commit(self, process: Process) -> None:
        """Now and then, when a person decides: nobody hears whether that was done."""
        if self.chance.random() < 0.1:
            process.expect(Fault("crash", after_calls=MOST_WORK, committed=self.chance.random() < 0.6))

    def _silence(self, worker: SimulatedWorker) -> None:
        seconds = self.chance.choice((4.0, 12.0, 30.0, 80.0))
        worker.silent_until = self.time.seconds + seconds
        self.note(f"{worker.name} falls silent for {seconds:g} seconds")

    def _freeze_before_start(self) -> None:
        """Between its claim and the start of the work."""
        waiting = [worker for worker in self.workers if any(not held.has_begun for held in worker.holds.values())]
        if waiting:
            self._silence(self.chance.choice(waiting))

    def _set_clock(self, seconds: float) -> None:
        """Set the clock of everybody. Processes look at it every few seconds, so one that saw it before sees it next.

        It may die of that, or the database may be away. When nobody is left who has seen it before, it is set back.
        """
        self.time.stepped_seconds += seconds
        self.note(f"the clock of everybody is set by {seconds:+g} seconds")
        corrections = self._count_corrections()
        for _ in range(MOST_LOOKS):
            alive = [process for process in self.processes if process.is_alive]
            if not alive:
                self.time.stepped_seconds -= seconds
                self.note("nobody is left who has seen it before, and it is set back")
                return
            self.deliver(self.chance.choice(alive), [PurgeKeys()])
            if self._count_corrections() > corrections:
                return

    def _count_corrections(self) -> int:
        ((revision,),) = self._connection.execute("SELECT coalesce(max(revision), 0) FROM clock_offset").fetchall()
        assert isinstance(revision, int)
        return revision

    def _end_workers(self, process: Process) -> None:
        """Some of the workers lived in the process that died: they are gone, or come back with or without their memory."""
        for worker in self.workers:
            luck = self.chance.random()
            if luck < 0.12:
                worker.forget()
                worker.id = None
            elif luck < 0.24:
                worker.forget()
            elif luck < 0.3:
                worker.silent_until = self.time.seconds + 30.0
        self.note(f"workers of {process.name} end or begin anew")

    def note(self, what: str | Callable[[], str]) -> None:
        """What happened, written out only when somebody wants to read it."""
        self._notes.append((self.step, self.time.seconds, what))

    def lines(self) -> list[str]:
        return [f"{step:4d} {at:8.2f} {what if isinstance(what, str) else what()}" for step, at, what in self._notes]


def describe_batch(process: str, batch: Sequence[Message], outcomes: Sequence[Any] | None) -> str:
    answers = [describe(outcome) for outcome in outcomes] if outcomes is not None else ["killed"] * len(batch)
    return f"{process}: " + "; ".join(f"{message} -> {answer}" for message, answer in zip(batch, answers, strict=True))


def describe(outcome: Any) -> str:
    if isinstance(outcome, BaseException):
        return f"{type(outcome).__name__}: {str(outcome).splitlines()[0][:100]}" if str(outcome) else type(outcome).__name__
    if hasattr(outcome, "state"):
        return f"{outcome.id} {outcome.state} {outcome.revision}"
    if isinstance(outcome, tuple):
        return f"{[(claim.task_id, claim.epoch) for claim in outcome[0]]}"
    return str(outcome)[:100]


def sealed_states(lifecycles: Any) -> frozenset[tuple[str, str]]:
    """(machine, state) of whatever is declared to be sealed."""
    found: list[Lifecycle] = list(lifecycles)
    return frozenset(
        (machine.name, state.name) for each in found for machine in each.machines for state in machine.states if state.sealed
    )
