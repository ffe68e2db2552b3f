"""`pointsman artifacts`: the files that tasks have left, on this machine or at the server that has the runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pointsman.artifacts import Artifact, ArtifactFolder, ArtifactList, is_name
from pointsman.cli.describe import show_json
from pointsman.cli.logs import find_attempt
from pointsman.cli.output import count, echo, near, show_size, show_table
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.errors import Problem, RequestInvalid
from pointsman.store.rows import Task
from pointsman.views.find import find_run, find_task
from pointsman.views.runs import arrange
from pointsman.worker.log import folder_of, log_path

if TYPE_CHECKING:
    from pointsman.remote.engine import RemoteEngine

BLOCK = 1 << 20


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("task", metavar="[TASK]", required=False)
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Those of attempt N of the task instead of the last one.")
@click.option(
    "--copy-to",
    "target",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Copy them to FOLDER/TASK/NAME, over what is there.",
)
@project_options
def command(run: str, task: str | None, attempt: int | None, target: Path | None, *, asked: Asked) -> None:
    """List the artifacts of the tasks of RUN, or only of TASK: the files that the last attempt of each has left.

    A task leaves a file by writing it to the folder $POINTSMAN_ARTIFACTS, which it has to create:

    \b
      mkdir -p "$POINTSMAN_ARTIFACTS"; cp report.html "$POINTSMAN_ARTIFACTS"

    With --json, each artifact has the keys task, attempt, name, size and path. Artifacts that only the server has have no path.

    \b
    Examples:
      pointsman artifacts latest
      pointsman artifacts latest test --attempt 1
      pointsman artifacts latest test --copy-to /tmp/reports
    """
    if attempt is not None and task is None:
        raise click.UsageError("--attempt needs a TASK.", click.get_current_context())
    in_project(asked, lambda project: show_artifacts(project, run, task, attempt, target, as_json=asked.as_json))


@dataclass(frozen=True, slots=True)
class Left:
    """The artifacts of one attempt."""

    task: Task
    epoch: int
    folder: ArtifactFolder
    """Where they are, or would be, on this machine."""
    remote: RemoteEngine | None
    items: Sequence[Artifact] = ()
    left_out: int = 0

    async def look(self) -> Left:
        found = (
            await self.remote.list_artifacts(self.task.id, self.epoch)
            if self.remote
            else await asyncio.to_thread(self.folder.list_files)
        )
        return self.having(found)

    def having(self, found: ArtifactList) -> Left:
        items = [each for each in found.items if is_name(each.name)]  # the server is another machine
        return replace(self, items=items, left_out=found.left_out)

    def locate(self, artifact: Artifact) -> str | None:
        return None if self.remote else str(self.folder.path / artifact.name)

    async def read(self, artifact: Artifact) -> AsyncIterator[bytes]:
        offset = 0
        while block := await self._read_on(artifact.name, offset):
            offset += len(block)
            yield block

    async def _read_on(self, name: str, offset: int) -> bytes:
        if self.remote:
            return await self.remote.read_artifact(self.task.id, self.epoch, name, offset)
        return await asyncio.to_thread(self.folder.read, name, offset, BLOCK)


async def show_artifacts(
    project: Project, name: str, task: str | None, attempt: int | None, target: Path | None, *, as_json: bool
) -> None:
    found = await find_left(project, name, task, attempt)
    items = [(left, each) for left in found for each in left.items]
    if target:
        for left, each in items:
            await copy(left, each, target)
    if as_json:
        echo(show_json([describe(left, each) for left, each in items]))
    elif items:
        rows = [
            (left.task.name, str(left.epoch), show_size(each.size), each.name, near(Path(path)) if path else "at the server")
            for left, each in items
            for path in (left.locate(each),)
        ]
        show_table(("task", "attempt", "size", "artifact", "path"), rows)
    for left in found:
        if left.left_out:
            what = count(left.left_out, "other file")
            echo(
                f"'{left.task.name}' has left {what}, which are no artifacts: links, or too many or too large files.", err=True
            )
    if target and items:
        echo(f"copied {count(len(items), 'artifact')} to {target}", err=True)
    if not items:
        where = "" if project.is_remote else " on this machine"
        echo(f"There are no artifacts{where}. A task leaves files in the folder $POINTSMAN_ARTIFACTS.", err=True)


async def find_left(project: Project, name: str, task: str | None, number: int | None) -> list[Left]:
    """What the last attempt of each task has left, or another attempt of one task."""
    run = await find_run(project.engine, name)
    only = await find_task(project.engine, run, task) if task is not None else None
    tasks = arrange(await project.engine.list_tasks_in_brief(run.id))
    begun = [each for each in tasks if each.epoch and (only is None or only.id in (each.id, each.parent_task_id))]
    if only and number is not None:
        attempt = await find_attempt(project, only, number)
        return [await find_folder(project, only, number, attempt.log_path).look()]
    if project.remote:
        by_task = {each.task_id: each for each in await project.remote.list_run_artifacts(run.id)}
        return [find_folder(project, each, by_task[each.id].attempt, None).having(by_task[each.id]) for each in begun]
    return [await find_folder(project, each, each.epoch, each.attempt_log_path).look() for each in begun]


def find_folder(project: Project, task: Task, epoch: int, recorded: str | None) -> Left:
    """Beside the log that the worker has recorded, or else where workers of this project write."""
    directory = project.settings.directory
    log = directory / recorded if recorded else Path(log_path(directory, task.run_id, task.name, epoch))
    return Left(task, epoch, ArtifactFolder.beside(log, project.settings.artifact_limits), project.remote)


async def copy(left: Left, artifact: Artifact, target: Path) -> None:
    path = target / folder_of(left.task.name) / artifact.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            async for block in left.read(artifact):
                file.write(block)
    except OSError as error:
        raise RequestInvalid([Problem("", f"Cannot copy '{artifact.name}' to {path}: {error.strerror or error}.")]) from None


def describe(left: Left, artifact: Artifact) -> dict[str, object]:
    return {
        "task": left.task.name,
        "attempt": left.epoch,
        "name": artifact.name,
        "size": artifact.size,
        "path": left.locate(artifact),
    }
