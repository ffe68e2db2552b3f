"""The notifier of a project: the commands that its notifications name, and what a process says of them before it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pointsman.cli.output import count, tell
from pointsman.errors import StoreError

if TYPE_CHECKING:
    from pointsman.cli.project import Project
    from pointsman.notify.notifier import Notifier
    from pointsman.store.rows import Run
    from pointsman.views.inbox import InboxItem
    from pointsman.views.values import RunView


@dataclass(frozen=True, slots=True)
class ProjectCommands:
    """The commands that the messages of a project have."""

    project: Project

    def for_item(self, item: InboxItem) -> Sequence[tuple[str, str]]:
        """For whoever may decide: the reader is not known."""
        from pointsman.cli.inbox import list_commands

        steps = tuple(replace(step, by=(), not_by=()) for step in item.steps)
        return list_commands(self.project, replace(item, steps=steps))

    def for_run(self, run: RunView) -> Sequence[tuple[str, str]]:
        from pointsman.cli.run_to_end import write_last_hints

        return list(write_last_hints(self.project, run))

    def for_tool(self, tool: str) -> Sequence[tuple[str, str]]:
        return [(self.project.hint("breakers", "reset", tool), "closes its circuit at once")]


def make_notifier(project: Project) -> Notifier:
    from pointsman.notify.notifier import Notifier

    return Notifier(project.engine, project.settings, project.world, ProjectCommands(project))


async def deliver_unattended(project: Project, run: Run | None = None) -> None:
    """After a command has changed something, such as a run: deliver what follows from that, unless a worker or a server does.

    The commands of flows are left to workers: they are up to the person who starts one.
    """
    from pointsman.notify.target import list_flow_targets
    from pointsman.views.sources import load_fleet

    if project.is_remote:
        return
    if not project.settings.notify and not (run and list_flow_targets(run)):
        return
    fleet = await load_fleet(project.engine, await project.engine.now(), project.find_dead())
    if not fleet.alive:
        await flush_notifications(project)


async def flush_notifications(project: Project) -> None:
    """Before a process ends: deliver what is due, for some seconds, and say what is left."""
    if project.is_remote:
        return
    notifier = project.notifier or make_notifier(project)
    try:
        left = await notifier.flush()
    except StoreError:
        return  # whoever works with the database says so
    if left:
        what = "is" if left == 1 else "are"
        tell(
            f"{count(left, 'notification')} {what} not delivered yet. The next run or worker of this project goes on, or: "
            f"{project.hint('notify', 'retry', '--all')}"
        )
