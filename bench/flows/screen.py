"""Whether the live view of a large run stays smooth: what a picture costs, and how regularly they come, in a real terminal.

    python -m bench.flows.screen TASKS FRAMES

In a terminal, that says what one picture costs when so many tasks are known, as JSON.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.contenders import ROOT
from bench.flows.scene import POINTSMAN, Scale, many_tasks, new_project, quiet_environment, tell
from bench.own import layered_run
from bench.report import Row, Table, Target

from pointsman import app
from pointsman.cli.view import FRAMES_A_SECOND, LiveView
from pointsman.engine.engine import Engine
from pointsman.engine.operations.attempts import ReportAttempt
from pointsman.views.progress import Progress

KNOWN = 10_000
BURST = 1_000
ACTIVE = 100
ROWS, COLUMNS = 40, 120
FRAME_MS = 1000 / FRAMES_A_SECOND


def measure(scale: Scale) -> list[Table]:
    tell(f"the live view with {KNOWN:,} tasks")
    output, _ = in_terminal([sys.executable, "-m", "bench.flows.screen", str(KNOWN), str(scale.frames)], ROOT)
    costs = json.loads(output)
    tell(f"the live view of a run of {scale.tasks:,} tasks")
    with new_project(many_tasks(scale.tasks)) as folder:
        _, seen = in_terminal([POINTSMAN, "run", "flow.yaml", "-j", "2"], folder)
    gaps = [(later - earlier) * 1e3 for earlier, later in pairwise(seen)]
    target = Target(FRAME_MS, at_most=True, unit=" ms")
    rows = [
        millis_row("one picture", costs["pictures"], target),
        millis_row(f"reading {BURST:,} transitions and taking them in", costs["bursts"], target),
        millis_row("both together", costs["both"], target),
        gap_row(f"a run of {scale.tasks:,} × `true`: from one picture to the next", gaps),
    ]
    title = f"The live view with {KNOWN:,} tasks, {FRAMES_A_SECOND} pictures a second ({FRAME_MS:.0f} ms each)"
    return [Table(title, rows)]


def millis_row(what: str, millis: Sequence[float], target: Target) -> Row:
    worst = max(millis)
    figure = f"{statistics.median(millis):.1f} ms, at most {worst:.1f} ms"
    return Row(what, figure, tuple(millis), target=target, met=target.is_met_by(worst))


def gap_row(what: str, gaps: Sequence[float]) -> Row:
    """Smooth is what comes before the eye has waited for two pictures."""
    late = statistics.quantiles(gaps, n=20)[-1]
    target = Target(2 * FRAME_MS, at_most=True, unit=" ms")
    figure = f"p50 {statistics.median(gaps):.0f} ms, p95 {late:.0f} ms, longest {max(gaps):.0f} ms"
    return Row(what, figure, tuple(gaps), target=target, met=target.is_met_by(late), note="the target is for p95")


def in_terminal(command: Sequence[str], folder: Path) -> tuple[str, list[float]]:
    """Run it with a terminal for its stderr: its stdout, and when each picture came."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = {**quiet_environment(), "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    process = subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    seen: list[float] = []
    try:
        while data := os.read(ours, 65_536):
            # A picture ends with its bar, and pieces of one come at once.
            if b"\xe2\x94\x81" in data and (not seen or time.perf_counter() - seen[-1] > 0.01):
                seen.append(time.perf_counter())
    except OSError:
        pass  # the other side is closed: it has ended
    finally:
        os.close(ours)
    output, _ = process.communicate()
    assert process.returncode == 0, f"{command} ended with exit code {process.returncode}."
    return output, seen


class Watcher:
    """What `pointsman run` does to show a run."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self._engine = engine
        self._run_id = run_id
        self._progress = Progress(engine, run_id)
        self._position: str | None = None
        self.view = LiveView(self._progress, lambda _: "the last line of some task", lambda _: True, "bench")

    async def take_in(self) -> int:
        page = await self._engine.list_transitions(after=self._position, limit=BURST, run_id=self._run_id)
        for transition in page:
            if change := await self._progress.take(transition):
                self.view.change(change)
        self._position = page[-1].position if page else self._position
        return len(page)

    def draw(self) -> None:
        self.view.tick(datetime.now(UTC))


async def measure_pictures(folder: Path, count: int, frames: int) -> dict[str, list[float]]:
    """All tasks are known and some are under way; then others begin and end, and it is drawn again."""
    costs: dict[str, list[float]] = {"bursts": [], "pictures": [], "both": []}
    async with app.open(f"sqlite:///{folder}/state.db", keeps=False) as engine:
        run = await engine.submit_run(layered_run([count]))
        worker = await engine.register_worker("bench", max_concurrent_tasks=ACTIVE + BURST)
        watcher = Watcher(engine, run.id)
        await engine.claim_tasks(worker.id, ACTIVE)
        while await watcher.take_in():
            pass
        for _ in range(frames):
            claims = await engine.claim_tasks(worker.id, BURST // 2)
            await engine.report_attempts(
                [ReportAttempt(task_id=claim.task_id, epoch=claim.epoch, signal="complete") for claim in claims]
            )
            began = time.perf_counter()
            assert await watcher.take_in() == BURST
            middle = time.perf_counter()
            watcher.draw()
            ended = time.perf_counter()
            for name, seconds in (("bursts", middle - began), ("pictures", ended - middle), ("both", ended - began)):
                costs[name].append(seconds * 1e3)
        watcher.view.close()
    return costs


def main() -> None:
    count, frames = map(int, sys.argv[1:])
    with TemporaryDirectory(prefix="pointsman-bench-", ignore_cleanup_errors=True) as folder:
        print(json.dumps(asyncio.run(measure_pictures(Path(folder), count, frames))))


if __name__ == "__main__":
    main()
