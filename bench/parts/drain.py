"""Tasks that do nothing, from claim to completion: floor, peers and Pointsman, a round each in turn."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial

from bench.contenders import Answer, Contender, Entry, rates, take_turns
from bench.parts.setting import Setting
from bench.report import Row, Table, Target, compared_row, quickest, rate_row, ratio_of, times

BATCHES = (1, 10, 100)
LARGE_BATCHES = (500, 1_000)
OWN = "Pointsman, batches of {:,}"
FLOOR = "floor, batches of {:,}"
JUDGED = OWN.format(100)
SAME_BATCH = "Pointsman at the same batch"
OWN_OUTPUTS = "Pointsman, batches of 100, each task with an output of its own"
TWO_PROCESSES = {"Pointsman, two processes on one run": 1, "Pointsman, two processes on two runs": 2}

FLOOR_TARGETS = {"postgres": {100: Target(0.33)}, "sqlite": {1: Target(0.4), 100: Target(0.2)}}
PEER_TARGETS = {
    "postgres": {"pgqueuer": Target(1), "procrastinate": Target(20), "dbos": Target(50)},
    "sqlite": {"huey": Target(5), "dbos": Target(50)},
}
"""Best setting against best setting."""
BATCH_TARGETS = {"pgqueuer": {1: Target(1), 10: Target(1.2)}}
"""At the same batch."""
# What each peer is tried with; its best is compared with the best of ours.
PEER_SETTINGS: dict[str, dict[str, dict[str, dict[str, object]]]] = {
    "postgres": {
        "pgqueuer": {f"pgqueuer, batches of {batch:,}": {"batch": batch} for batch in (1, 10, 100, 200, 500, 1_000)},
        "procrastinate": {
            "procrastinate, concurrency 1": {"workers": 1, "concurrency": 1},
            "procrastinate, concurrency 5": {"workers": 1, "concurrency": 5},
            "procrastinate, concurrency 10": {"workers": 1, "concurrency": 10},
            "procrastinate, 10 workers": {"workers": 10, "concurrency": 1},
            "procrastinate, 10 workers, jobs deleted": {"workers": 10, "concurrency": 1, "delete": True},
        },
        "dbos": {
            "DBOS, coroutines, 20 connections": {"workflow": "one_step", "connections": 20},
            "DBOS, threads, 20 connections": {"workflow": "one_step_in_a_thread", "connections": 20},
            "DBOS, 50 threads, 50 connections": {"workflow": "one_step_in_a_thread", "connections": 50, "at_once": 50},
        },
    },
    "sqlite": {
        "huey": {
            "huey, 1 thread, results kept": {"threads": 1, "results": True},
            "huey, 4 threads, results kept": {"threads": 4, "results": True},
            "huey, 1 thread, no results": {"threads": 1, "results": False},
            "huey, 4 threads, no results": {"threads": 4, "results": False},
        },
        "dbos": {
            "DBOS, coroutines, 2 connections": {"workflow": "one_step", "connections": 2},
            "DBOS, 20 coroutines, 2 connections": {"workflow": "one_step", "connections": 2, "at_once": 20},
            "DBOS, threads, 2 connections": {"workflow": "one_step_in_a_thread", "connections": 2},
        },
    },
}


def measure(setting: Setting) -> list[Table]:
    database, kind = setting.database, setting.database.kind
    url = database.new("pointsman_drain")
    with setting.closing():
        own, floor = setting.own(url), setting.floor(database.new("floor_drain"))
        entries = [batched(FLOOR, floor, batch) for batch in BATCHES]
        entries += [batched(OWN, own, batch) for batch in (*BATCHES, *LARGE_BATCHES)]
        entries.append(batched(OWN_OUTPUTS, own, 100, with_output=True))
        if kind == "postgres":
            both = own, setting.own(url)
            entries += [Entry(name, partial(together, both, runs), 200, 400) for name, runs in TWO_PROCESSES.items()]
        if setting.has_peers():
            entries += peer_entries(setting)
        answers = take_turns(entries, setting.scale.pace, setting.tell)
    measured = {name: rates(each) for name, each in answers.items()}
    rows = [
        *floor_rows(kind, measured),
        *own_rows(answers, measured),
        *(row for peer in PEER_SETTINGS[kind] for row in peer_rows(kind, peer, measured)),
    ]
    return [Table(f"{database.name}: tasks that do nothing, from claim to completion", rows)]


def batched(name: str, contender: Contender, batch: int, **options: object) -> Entry:
    def drain(count: int) -> Answer:
        return contender.ask("drain", count=count, batch=batch, **options)

    return Entry(name.format(batch), drain, batch, first=max(2 * batch, 50))


def together(both: Sequence[Contender], runs: int, count: int) -> Answer:
    """Two processes that begin at the same time, until nothing is left."""
    both[0].ask("submit_runs", runs=runs, tasks=count // runs, at_once=1)
    for contender in both:
        contender.tell("drain_rest", batch=100)
    answers = [contender.hear() for contender in both]
    both[0].ask("check_runs")
    done = sum(answer["tasks"] for answer in answers)
    assert done == count, f"{done} of {count} tasks were done by two processes"
    seconds = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
    return {"tasks": count, "seconds": seconds, "shares": [answer["tasks"] for answer in answers]}


def peer_entries(setting: Setting) -> Iterator[Entry]:
    for peer, tried in PEER_SETTINGS[setting.database.kind].items():
        contender = setting.peer(peer, setting.database.new(f"{peer}_drain"))
        contender.ask("prepare")
        for name, request in tried.items():
            batch = request.get("batch", 1)
            assert isinstance(batch, int)

            def drain(count: int, contender: Contender = contender, request: dict[str, object] = request) -> Answer:
                return contender.ask("drain", count=count, **request)

            yield Entry(name, drain, batch, first=max(2 * batch, 50))


def floor_rows(kind: str, measured: dict[str, list[float]]) -> Iterator[Row]:
    for batch in BATCHES:
        name, target = FLOOR.format(batch), FLOOR_TARGETS[kind].get(batch)
        yield rate_row(name, measured[name], own=measured[OWN.format(batch)], target=target, note=SAME_BATCH)


def own_rows(answers: dict[str, list[Answer]], measured: dict[str, list[float]]) -> Iterator[Row]:
    for batch in (*BATCHES, *LARGE_BATCHES):
        name = OWN.format(batch)
        each = [answer["commits"] * batch / answer["tasks"] for answer in answers[name]]
        yield rate_row(name, measured[name], note=f"{statistics.median(each):.2f} commits a batch")
    yield rate_row(OWN_OUTPUTS, measured[OWN_OUTPUTS])
    for name in TWO_PROCESSES:
        if name in measured:
            alone = measured[JUDGED]
            share = min(min(answer["shares"]) / answer["tasks"] for answer in answers[name])
            yield compared_row(name, measured[name], alone, Target(1.1), f"of one process; the smaller share was {share:.0%}")


def peer_rows(kind: str, peer: str, measured: dict[str, list[float]]) -> Iterator[Row]:
    tried = {name: measured[name] for name in PEER_SETTINGS[kind][peer] if name in measured}
    own = {name: measured[name] for name in map(OWN.format, (*BATCHES, *LARGE_BATCHES))}
    own_best = quickest(own)
    for name, each in tried.items():
        batch = PEER_SETTINGS[kind][peer][name].get("batch")
        if name == quickest(tried):
            note = f"its best, against {own_best}; {times(ratio_of(own[JUDGED], each))} by batches of 100"
            yield rate_row(name, each, own=own[own_best], target=PEER_TARGETS[kind][peer], note=note)
        elif isinstance(batch, int) and (target := BATCH_TARGETS.get(peer, {}).get(batch)):
            yield rate_row(name, each, own=own[OWN.format(batch)], target=target, note=SAME_BATCH)
        else:
            yield rate_row(name, each, own=own[JUDGED])
