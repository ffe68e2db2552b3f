"""`pointsman resume --detach`: leave a run to workers in the background."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from pointsman.cli.output import echo, near
from pointsman.cli.project import Project
from pointsman.cli.streams import write_line
from pointsman.errors import Problem, RequestInvalid
from pointsman.kernel.machine import Phase
from pointsman.settings import FOLDER
from pointsman.store.rows import Run, Worker
from pointsman.views.find import short
from pointsman.views.sources import load_fleet, takes_tasks
from pointsman.worker.processes import find_exit_code, start_detached

LOG_FILE = "worker.log"
LOOK_SECONDS = 0.05


async def hand_over(project: Project, run: Run, options: Sequence[str], *, as_json: bool) -> int:
    """Leave a run to the workers that take its tasks; where there are none, start one in the background, with these options."""
    engine = project.engine
    if await is_served(project, run):
        show(project, run, None, {}, as_json=as_json)
        return 0
    log = project.settings.directory / FOLDER / "runs" / run.id / LOG_FILE
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    since = await engine.now()
    pid = start_detached((sys.executable, "-P", "-m", "pointsman", "resume", run.id, *options), log)
    name = f"{socket.gethostname()}:{pid}"
    while True:
        code = find_exit_code(pid)  # before the look at the database, so that a worker that ends meanwhile is seen there
        worker = next((each for each in await engine.list_workers() if each.name == name and each.created_at >= since), None)
        if worker and (worker.phase == Phase.DONE or worker.id in project.find_bound()):
            show(project, run, worker, {"pid": pid, "log": str(log)}, as_json=as_json)
            return 0
        if code is not None:
            message = f"The worker ended at once, with exit code {code}. It wrote: {read_last_line(log)}"
            raise RequestInvalid([Problem("", message)])
        await project.world.sleep(LOOK_SECONDS)


async def is_served(project: Project, run: Run) -> bool:
    """Whether some worker takes tasks of a run."""
    now = await project.engine.now()
    fleet = await load_fleet(project.engine, now, project.find_dead(), project.find_bound())
    return any(map(takes_tasks, fleet.living(run.id)))


def show(project: Project, run: Run, worker: Worker | None, process: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        described = {"id": worker.id, "name": worker.name, **process} if worker else None
        write_line(msgspec.json.encode({"run_id": run.id, "worker": described}) + b"\n")
        return
    who = f"{worker.name} ({short(worker.id)}) continues" if worker else "its workers continue"
    echo(f"{run.name} ({short(run.id)}): {who} it in the background")
    echo(f"To follow it: {project.hint('watch', short(run.id))}", err=True)
    if worker:
        echo(f"To stop it after the running tasks: {project.hint('workers', 'drain', short(worker.id))}", err=True)
        echo(f"To stop it at once and keep the run: kill -INT {process['pid']}", err=True)
        echo(f"Its log: {near(Path(str(process['log'])))}", err=True)
    else:
        echo(f"To stop it: {project.hint('pause', short(run.id))}", err=True)


def read_last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return lines[-1] if lines else "nothing"
