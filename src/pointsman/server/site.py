"""What the application serves: an engine, and what the process around it knows about its project."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pointsman.engine.engine import Engine, TenantEngine
from pointsman.server.auth import Door
from pointsman.server.live import Live
from pointsman.server.logs import Logs
from pointsman.server.metrics import Metrics
from pointsman.server.sent_flows import SentFlows
from pointsman.server.turns import Turns
from pointsman.server.wakeups import WakeupCounter
from pointsman.settings import Settings
from pointsman.views import runs
from pointsman.views.values import RunView
from pointsman.world import World

DeclareTools = Callable[[TenantEngine, Iterable[str]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Site:
    """Handed to every request."""

    engine: Engine
    settings: Settings
    world: World
    door: Door
    live: Live
    logs: Logs
    flows: SentFlows
    declare_tools: DeclareTools
    """Declares tools of the settings that a tenant uses."""
    metrics: Metrics
    turns: Turns
    wakeups: WakeupCounter
    find_dead: Callable[[], Collection[str]] = tuple
    """Workers of this machine that have died, although their leases may last."""
    find_bound: Callable[[], Mapping[str, str]] = dict
    """By worker of this project and machine that serves only one run: that run."""

    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: answers that would go on have to end."""

    def end_streams(self) -> None:
        self.live.close()
        self.wakeups.close()
        self.stopping.set()

    def new_reference(self) -> str:
        """Names an entry of the log for people who report an error."""
        return self.world.ids.short("error")

    async def view_run(self, engine: TenantEngine, run_id: str) -> RunView:
        return await runs.view_run(engine, run_id, await engine.now(), self.find_dead(), self.find_bound())
