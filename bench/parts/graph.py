"""Runs whose tasks wait for each other: submitted and drained, against as many that do not."""

from __future__ import annotations

import statistics

from bench.contenders import Answer, Entry, rates, take_turns
from bench.parts.setting import Setting
from bench.report import Row, Table, Target, compared_row, rate_row

BATCH = 100


def measure(setting: Setting) -> list[Table]:
    layers, chain = list(setting.scale.layers), setting.scale.chain
    count = sum(layers)
    flat = f"{count:,} tasks that wait for nothing"
    graph = " → ".join(f"{width:,}" for width in layers)
    with setting.closing():
        own = setting.own(setting.database.new("pointsman_graph"))

        def whole_life(layers: list[int]) -> Answer:
            answer = own.ask("whole_life", layers=layers, batch=BATCH)
            return {**answer, "seconds": answer["submit_seconds"] + answer["seconds"], "drain_seconds": answer["seconds"]}

        entries = [
            Entry(flat, lambda count: whole_life([count]), fixed=count),
            Entry(graph, lambda _: whole_life(layers), fixed=count),
        ]
        answers = take_turns(entries, setting.scale.pace, setting.tell)
        setting.tell(f"a chain of {chain:,} tasks")
        links = [own.ask("whole_life", layers=[1] * chain, batch=1) for _ in range(setting.scale.pace.rounds)]
    each = [answer["commits"] / answer["tasks"] for answer in links]
    target = Target(2, at_most=True, unit=" commits a link")
    middle = statistics.median(each)
    rows = [
        rate_row(flat, rates(answers[flat]), note=parts_of(answers[flat])),
        compared_row(
            graph, rates(answers[graph]), rates(answers[flat]), Target(0.5), f"of the flat rate; {parts_of(answers[graph])}"
        ),
        Row(
            f"a chain of {chain:,} tasks, drained one by one",
            f"{middle:.2f} commits a link",
            tuple(each),
            target=target,
            met=target.is_met_by(middle),
            note=rate_row("", rates(links)).figure,
        ),
    ]
    return [Table(f"{setting.database.name}: submitting and draining a run, batches of up to {BATCH}", rows)]


def parts_of(answers: list[Answer]) -> str:
    submitted = statistics.median(answer["submit_seconds"] for answer in answers)
    drained = statistics.median(answer["drain_seconds"] for answer in answers)
    return f"{submitted:.2f} s to submit, {drained:.2f} s to drain"
