"""When nothing goes wrong any more, everything comes to an end: processes live, clocks agree, people answer, workers work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.system.simulation.people import person_of
from tests.system.simulation.promises import PERSONS, Broken, keep
from tests.system.simulation.shapes import QUESTIONS, TENANTS, WORDS
from tests.system.simulation.workers import SimulatedWorker

from pointsman.engine.doctor import diagnose
from pointsman.engine.operations.runs import AddTasks, SignalRun
from pointsman.engine.operations.tasks import SignalTask
from pointsman.engine.operations.upkeep import ExpireWorkers, FireTimers, PurgeKeys
from pointsman.engine.questions import read_question
from pointsman.engine.submit import NewTask

if TYPE_CHECKING:
    from tests.system.simulation.scheduler import Simulation

MOST_ROUNDS = 150
MOST_TENDING = 30
WORKERS_OF_EACH = 3
ASKED_OF_A_TASK = {"WAITING_APPROVAL": "approve", "READY": "accept"}
ASKED_OF_A_RUN = {"PAUSED": "resume", "VALIDATING": "checks_passed", "validating": "checks_passed"}


def heal(simulation: Simulation) -> None:
    """Mend everything, and go on until nothing is left to do; whatever does not end then is stuck."""
    _mend(simulation)
    for number in range(MOST_ROUNDS):
        simulation.step += 1
        simulation.time.advance((0.2, 1.0, 2.0, 6.0)[number % 4])
        _tend(simulation)
        for command in list(_answer_everybody(simulation)):
            simulation.deliver(simulation.chance.choice(simulation.processes), [command])
        _work(simulation)
        if _is_over(simulation):
            break
    else:
        raise Broken("everything comes to an end", _describe_stuck(simulation))
    simulation.time.advance(300.0)
    _tend(simulation)
    findings = _consult_doctor(simulation)
    keep("the doctor finds nothing", not findings, "; ".join(findings))


def _mend(simulation: Simulation) -> None:
    simulation.note("everything heals")
    for process in simulation.processes:
        process.clock.skew_seconds = 0.0
        if process.is_alive:
            process.expect(None)
        else:
            process.start()
    for worker in simulation.workers:
        worker.is_gone = True
    simulation.lose_post()
    simulation.workers = []
    for number in range(WORKERS_OF_EACH * len(TENANTS)):
        worker = SimulatedWorker(simulation, 100 + number, TENANTS[number % len(TENANTS)])
        worker.is_diligent = True
        worker.lifecycle, worker.capabilities, worker.slots = "standard", WORDS, 4
        simulation.workers.append(worker)


def _tend(simulation: Simulation) -> None:
    for _ in range(MOST_TENDING):
        process = simulation.chance.choice(simulation.processes)
        if not sum(simulation.deliver(process, [upkeep])[0] for upkeep in (FireTimers(), ExpireWorkers(), PurgeKeys())):
            return
    raise Broken("timers come to rest", f"after {MOST_TENDING} rounds there was still something due")


def _work(simulation: Simulation) -> None:
    """Everybody says what there is to say, and gets an answer."""
    for _ in range(4):
        for worker in simulation.workers:
            worker.act()
        simulation.deliver_all(simulation.chance.choice(simulation.processes))


def _is_over(simulation: Simulation) -> bool:
    seen = simulation.promises
    return all(run.phase == "done" for run in seen.runs.values()) and not any(
        task.phase == "active" for task in seen.tasks.values()
    )


def _answer_everybody(simulation: Simulation) -> Iterator[Any]:
    """What only a person can do, and nothing else."""
    for run in list(simulation.promises.runs.values()):
        if run.phase == "done":
            continue
        tasks = simulation.promises.tasks_of(run.id)
        if run.missing_tasks:
            new = tuple(NewTask(name=f"late-{number}") for number in range(run.missing_tasks))
            yield AddTasks(run.id, new, caller=person_of(run.tenant))
        asked = "cancel" if _waits_behind_failure(tasks) else ASKED_OF_A_RUN.get(run.state)
        if asked:
            yield SignalRun(run.id, asked, caller=person_of(run.tenant))
        for task in tasks:
            if signal_of_task := _asked_of(task, run):
                # A gate may name people, and ask for several of them.
                for person in PERSONS if task.is_gate else PERSONS[:1]:
                    caller = person_of(task.tenant, person)
                    yield SignalTask(task.id, signal_of_task, answer=_find_answer(task.question), caller=caller)


def _find_answer(question: str | None) -> str:
    answers = QUESTIONS[read_question(question).text].answers if question is not None else ()
    return answers[0] if answers else "this one"


def _asked_of(task: Any, run: Any) -> str | None:
    is_left_to_people = '"autostart":false' in run.policy and task.open_dependencies == 0
    # Also one that a person has rejected, which is where it began.
    has_not_begun = task.revision == 0 or (
        task.question is None and task.state not in ASKED_OF_A_TASK and task.available_at is None
    )
    if is_left_to_people and has_not_begun and (task.phase == "held" or task.is_gate):
        return "ready"
    if task.phase != "held":
        return None
    if task.question is not None:
        return "answer"
    return ASKED_OF_A_TASK.get(task.state)


def _waits_behind_failure(tasks: list[Any]) -> bool:
    """A task that is not critical has failed or was called off, and its lifecycle knows no way past it: a person ends that."""
    failed = [task for task in tasks if task.phase == "done" and task.outcome != "success" and not task.critical]
    moving = [
        task
        for task in tasks
        if task.phase == "active" or (task.phase != "done" and task.open_dependencies == 0) or task.available_at is not None
    ]
    return bool(failed) and not moving


def _describe_stuck(simulation: Simulation) -> str:
    seen = simulation.promises
    stuck = []
    for run in seen.runs.values():
        tasks = seen.tasks_of(run.id)
        if run.phase != "done" or any(task.phase == "active" for task in tasks):
            states = ", ".join(_describe_task(task) for task in tasks)
            stuck.append(f"{run.lifecycle} run {run.id} is {run.state} ({states})")
    return "; ".join([*stuck, "the doctor says:", *(_consult_doctor(simulation, everything=True) or ["nothing"])])


def _describe_task(task: Any) -> str:
    waits = f" waits for {task.open_dependencies}" if task.open_dependencies else ""
    return f"{task.name} {task.state}{waits}{' lost' if task.lease_expired else ''}"


def _consult_doctor(simulation: Simulation, *, everything: bool = False) -> list[str]:
    """What failed for good, and which breaker is open, is no illness."""
    store = simulation.processes[0].store
    with store.read() as reader:
        found = diagnose(reader, simulation.machines, reader.now())
    ill = ("overstayed", "stalled", "disagreement")
    return [f"{each.kind} {each.entity_id}: {each.finding}" for each in found if everything or each.subject in ill]
