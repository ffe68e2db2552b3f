"""The live display of `pointsman run` on a real terminal, and what it prints where there is none."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

from tests.rooms.cli.terminal import OnTerminal
from tests.system.faults.project import Project

from pointsman.cli.live import BEGIN
from pointsman.kernel.machine import Phase

LONG = "{name: f, tasks: {a: {run: 'echo a long line of output; until [ -e go ]; do sleep 0.02; done'}, b: {run: 'sleep 60'}}}"
MIXED = """
name: f
tasks:
  bad: {run: "exit 1"}
  slow: {run: "until [ -e go ]; do sleep 0.02; done"}
  never: {run: "true", when: "1 == 2"}
  each: {run: "exit ${{ item % 2 }}", foreach: "range(4)"}
"""
LINE = re.compile(r"^\d\d:\d\d:\d\d  . (\S+)  (\w+)", re.MULTILINE)


def test_a_terminal_that_is_resized_shows_no_line_twice(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with closing(OnTerminal("run", project.write_flow(LONG), "-j", "2", cwd=tmp_path, lines=20, columns=110)) as run:
        run.until(lambda shown: shown.count("▶") >= 3 and "a long line of output" in shown)
        for lines, columns in ((20, 50), (9, 30), (20, 110)):
            run.resize(lines, columns)
            run.terminal.rows[-1].text += "?"  # wiped out by the next frame
            run.until(lambda shown: "?" not in shown)
            counts = [run.terminal.shown.count(beginning) for beginning in (" ▶ a ", " ▶ b ", " f  ━")]
            assert counts == [1, 1, 1], run.terminal.shown
        run.terminal.resize(20, 25)  # narrower than the program knows
        (tmp_path / "go").touch()
        run.until(lambda shown: "✓ a  SUCCEEDED" in shown.replace("\n", ""))
        run.type("\x03")
        assert run.wait() == 130
        shown = run.terminal.shown
        assert "▶" not in shown, shown
        assert "━" not in shown, shown
        assert "RUNNING (interrupted)  f:" in shown.replace("\n", "")


async def test_lines_are_printed_in_the_order_in_which_things_happened(tmp_path: Path) -> None:
    project = Project(tmp_path)
    async with project.start("run", project.write_flow(MIXED), slots=4) as run:
        await run.until(lambda: "Waiting for running tasks: slow" in run.said)
        before = run.said
        (tmp_path / "go").touch()
        assert await run.wait() == 1, run.said
    assert "slow  RUNNING" in before
    assert LINE.findall(run.said) == [*LINE.findall(before), ("slow", "SUCCEEDED")], "what came before is said before"
    assert ("never", "SKIPPED") in LINE.findall(run.said)
    async with project.engine() as engine:
        (only,) = await engine.list_runs()
        names = {task.id: task.name for task in await engine.list_tasks(only.id)}
        moves = [move for move in await engine.list_transitions(run_id=only.id) if move.entity_id in names]
        shown = []
        for move in moves:
            phase = (await engine.get_machine(move)).state(move.to_state).phase
            name = names[move.entity_id]
            if phase in (Phase.ACTIVE, Phase.DONE) or (name, "RUNNING") in shown:
                shown.append((name, move.to_state))
    shown.remove(("never", "RUNNING"))
    assert LINE.findall(run.said) == shown


def test_a_run_in_the_background_leaves_the_terminal_to_others(tmp_path: Path) -> None:
    flow = Project(tmp_path).write_flow("{name: f, tasks: {a: {run: 'sleep 0.5'}}}")
    with closing(OnTerminal("run", flow, cwd=tmp_path, lines=20, columns=110, script='set -m; "$@" & wait')) as run:
        assert run.wait() == 0
    assert "a  SUCCEEDED" in run.terminal.shown
    assert BEGIN not in run.received
