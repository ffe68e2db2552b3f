"""Submitting: one large run, many small ones, and draining those."""

from __future__ import annotations

from bench.contenders import Answer, Entry, rates, take_turns
from bench.parts.setting import Setting
from bench.report import Table, rate_row

CALLERS = 100
LARGE = "one run, one commit"
SINGLY = "runs of one task, one after the other"
AT_ONCE = f"runs of one task, {CALLERS} callers at once"
DRAINED = f"tasks that are a run each, claim to completion, batches of {CALLERS}"


def measure(setting: Setting) -> list[Table]:
    with setting.closing():
        own = setting.own(setting.database.new("pointsman_submit"))
        floor = setting.floor(setting.database.new("floor_submit"))

        def own_submits(runs: int, tasks: int, at_once: int) -> Answer:
            answer = own.ask("submit_runs", runs=runs, tasks=tasks, at_once=at_once)
            drained = own.ask("drain_rest", batch=CALLERS)
            own.ask("check_runs")
            return {**answer, "drain_seconds": drained["ended"] - drained["began"]}

        entries = [
            Entry(f"floor, {LARGE}", lambda count: floor.ask("submit", count=count, per_commit=count)),
            Entry(f"Pointsman, {LARGE}", lambda count: own_submits(1, count, 1)),
            Entry(f"floor, {SINGLY}", lambda count: floor.ask("submit", count=count, per_commit=1)),
            Entry(f"Pointsman, {SINGLY}", lambda count: own_submits(count, 1, 1)),
            Entry(f"floor, {AT_ONCE}", lambda count: floor.ask("submit", count=count, per_commit=CALLERS), CALLERS),
            Entry(f"Pointsman, {AT_ONCE}", lambda count: own_submits(count, 1, CALLERS), CALLERS),
        ]
        answers = take_turns(entries, setting.scale.pace, setting.tell)
    rows = []
    for what in (LARGE, SINGLY, AT_ONCE):
        own_rates = rates(answers[f"Pointsman, {what}"])
        rows.append(rate_row(f"floor, {what}", rates(answers[f"floor, {what}"]), own=own_rates))
        rows.append(rate_row(f"Pointsman, {what}", own_rates))
    drained = [answer["tasks"] / answer["drain_seconds"] for answer in answers[f"Pointsman, {AT_ONCE}"]]
    rows.append(rate_row(f"Pointsman, {DRAINED}", drained))
    return [Table(f"{setting.database.name}: submitting", rows)]
