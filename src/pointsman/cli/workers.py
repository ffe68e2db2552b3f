"""`pointsman workers`: who is alive and what they hold; pause, resume, drain and terminate them."""

from __future__ import annotations

from collections.abc import Iterator

import click
import msgspec

from pointsman.cli.describe import show_json
from pointsman.cli.group import Collection
from pointsman.cli.output import LONGEST_NAME, count, cut, echo, show_seconds, show_state, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.cli.status import show_failing_duties
from pointsman.cli.steer import Decision, Sentence, decision_options, explain_refusal, show_change
from pointsman.errors import NothingYet, TransitionRefused
from pointsman.kernel.machine import Phase, Refusal
from pointsman.store.rows import Worker
from pointsman.views.find import find_worker, short
from pointsman.views.values import WorkerView
from pointsman.views.workers import list_workers

worker_argument = click.argument("worker", metavar="WORKER")
SIGNALS = ("pause", "resume", "drain", "terminate")


@click.group(cls=Collection, default="list")
def command() -> None:
    """List the workers of a database, and pause, resume, drain or terminate one of them.

    WORKER is the name of a worker, its id, or the beginning or the end of that. Without a command, this lists them.

    \b
    Examples:
      pointsman workers
      pointsman workers --all --json
      pointsman workers drain box:4711 --reason "the machine is needed"
    """


@command.command("list")
@click.option("--all", "-a", "show_all", is_flag=True, help="Also those that have left.")
@project_options
def list_(*, show_all: bool, asked: Asked) -> None:
    """List the workers: their state, slots, last heartbeat, and the tasks that they hold.

    \b
    Examples:
      pointsman workers
      pointsman workers list --all
    """
    try:
        in_project(asked, lambda project: show_workers(project, show_all=show_all, as_json=asked.as_json))
    except NothingYet as nothing:
        echo("[]") if asked.as_json else echo(str(nothing), err=True)


@command.command()
@worker_argument
@click.option("--suspend", is_flag=True, help="Also suspend its running tasks (SIGSTOP) until it is resumed.")
@decision_options
@project_options
def pause(worker: str, *, suspend: bool, decision: Decision, asked: Asked) -> None:
    """Let WORKER claim no task until `pointsman workers resume`.

    Its running tasks finish; with --suspend, all their processes stand still meanwhile, and no timeout runs. A worker that was
    started with `--on-pause suspend` does so in any case.

    \b
    Examples:
      pointsman workers pause box:4711
      pointsman workers pause 5d0c7a91 --suspend --reason "the disk is nearly full"
    """
    in_project(asked, lambda project: signal(project, worker, "pause", decision, suspend=suspend, as_json=asked.as_json))


@command.command()
@worker_argument
@decision_options
@project_options
def resume(worker: str, *, decision: Decision, asked: Asked) -> None:
    """Let WORKER go on after a pause: it claims tasks, and tasks that were suspended continue.

    \b
    Examples:
      pointsman workers resume box:4711
    """
    in_project(asked, lambda project: signal(project, worker, "resume", decision, as_json=asked.as_json))


@command.command()
@worker_argument
@decision_options
@project_options
def drain(worker: str, *, decision: Decision, asked: Asked) -> None:
    """Let WORKER finish its running tasks, claim no more, and end.

    \b
    Examples:
      pointsman workers drain box:4711 --reason "the machine is needed"
    """
    in_project(asked, lambda project: signal(project, worker, "drain", decision, as_json=asked.as_json))


@command.command()
@worker_argument
@decision_options
@project_options
def terminate(worker: str, *, decision: Decision, asked: Asked) -> None:
    """Kill the running tasks of WORKER, and end it. Other workers take its tasks over.

    They do so when its processes have ended, or its lease has run out.

    \b
    Examples:
      pointsman workers terminate box:4711 --reason "it hangs"
    """
    in_project(asked, lambda project: signal(project, worker, "terminate", decision, as_json=asked.as_json))


async def show_workers(project: Project, *, show_all: bool, as_json: bool) -> None:
    """Who is alive, what they hold, and when they were last heard from."""
    now = await project.engine.now()
    listed = await list_workers(project.engine, now, project.find_dead(), project.list_protections())
    workers = [worker for worker in listed if show_all or worker.phase != Phase.DONE]
    if as_json:
        echo(show_json(workers))
        return
    await show_failing_duties(project)
    if not workers:
        echo(f"No worker is running. Start one: {project.hint('worker')}", err=True)
        return
    rows = [
        (
            cut(worker.name, LONGEST_NAME),
            show_state(worker.state, worker.phase, worker.outcome) + (f" ({worker.wish})" if worker.wish else ""),
            f"{len(worker.holds)}/{worker.slots}",
            f"{show_seconds((now - worker.heartbeat_at).total_seconds())} ago"
            + ("" if worker.alive or worker.phase == Phase.DONE else ", lost"),
            ", ".join(worker.capabilities),
            ", ".join(f"{key}={show_value(value)}" for key, value in worker.metadata.items()),
            worker.protection or "",
            short(worker.id),
            ", ".join(f"{task.name} ({short(task.run_id)})" for task in worker.holds),
        )
        for worker in workers
    ]
    headings = ("worker", "state", "slots", "heartbeat", "capabilities", "metadata", "protection", "id", "holds")
    show_table(headings, rows, fits=True)


def show_value(value: object) -> str:
    """Text as it was given, everything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def signal(project: Project, name: str, signal: str, decision: Decision, *, suspend: bool = False, as_json: bool) -> None:
    """Send a worker what a person decides, and say what has changed and what happens next."""
    engine = project.engine
    before = await find_worker(engine, name)
    try:
        await engine.for_tenant(actor=decision.actor).signal_worker(
            before.id, signal, suspend=suspend, reason=decision.reason, request_id=decision.request_id
        )
    except TransitionRefused as refused:
        raise await _in_words(project, refused, before) from None
    after = await engine.get_worker(before.id)
    now = await engine.now()
    views = await list_workers(engine, now, project.find_dead(), project.list_protections())
    view = next(each for each in views if each.id == after.id)
    if as_json:
        echo(show_json(view))
        return
    echo(f"{after.name} ({short(after.id)}): {show_change(before, after)}")
    for sentence in tell_what_follows(project, view, signal):
        echo(sentence, err=True)
    if not view.alive and view.phase != Phase.DONE:
        seconds = show_seconds((now - view.heartbeat_at).total_seconds())
        echo(f"It has sent no heartbeat for {seconds}: when its lease ends, its tasks go to other workers.", err=True)


def tell_what_follows(project: Project, worker: WorkerView, signal: str) -> Iterator[str]:
    """What happens next, from how the worker is now."""
    running = count(len(worker.holds), "running task") if worker.holds else ""
    match signal:
        case "pause":
            if running:
                what = "suspended" if worker.wish == "suspended" else "allowed to finish"
                yield f"{running} {'is' if len(worker.holds) == 1 else 'are'} {what}."
            yield f"It claims no task. To continue: {project.hint('workers', 'resume', short(worker.id))}"
        case "drain" if running:
            yield f"It finishes {running}, claims no more, and ends."
        case "terminate" if running:
            yield f"It kills {running} and ends; other workers take over."
        case _:
            pass


async def _in_words(project: Project, refused: TransitionRefused, worker: Worker) -> TransitionRefused:
    """The same refusal with the name of the worker, and the commands that its machine takes now."""
    if not isinstance(refused.refusal, Refusal):
        return refused
    machine = await project.engine.get_machine(worker)
    ways = [project.hint("workers", each, short(worker.id)) for each in SIGNALS if machine.moves(worker.state, each)]
    return TransitionRefused(Sentence(explain_refusal(refused.refusal, f"{worker.name} ({short(worker.id)})", ways)))
