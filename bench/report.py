"""Figures, their ratios and targets, and the tables that they go into."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADINGS = ("what", "measured", "ratio", "target", "met", "note")


@dataclass(frozen=True)
class Target:
    """What a figure, or a ratio of two, has to reach or may not exceed."""

    bound: float
    at_most: bool = False
    unit: str = "×"

    def is_met_by(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        return f"at {'most' if self.at_most else 'least'} {self.bound:g}{self.unit}"


@dataclass(frozen=True)
class Row:
    what: str
    figure: str
    values: tuple[float, ...] = ()
    """What the rounds measured, in the unit of the figure."""
    ratio: float | None = None
    target: Target | None = None
    met: bool | None = None
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        met = "" if self.met is None else "yes" if self.met else "**no**"
        ratio = "" if self.ratio is None else times(self.ratio)
        return self.what, self.figure, ratio, str(self.target or ""), met, self.note


@dataclass(frozen=True)
class Table:
    title: str
    rows: Sequence[Row]

    def as_markdown(self) -> str:
        lines = [f"### {self.title}", "", f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
        return "\n".join([*lines, *(f"| {' | '.join(row.cells())} |" for row in self.rows)])

    def as_text(self) -> str:
        table = [HEADINGS, *(row.cells() for row in self.rows)]
        widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
        return "\n".join([self.title, "─" * max(map(len, lines)), *lines])

    def as_data(self) -> dict[str, Any]:
        rows = [
            {
                "what": row.what,
                "figure": row.figure,
                "values": row.values,
                "ratio": row.ratio,
                "target": str(row.target) if row.target else None,
                "met": row.met,
                "note": row.note,
            }
            for row in self.rows
        ]
        return {"title": self.title, "rows": rows}


def rate_row(
    what: str,
    rates: Sequence[float],
    *,
    unit: str = "tasks/s",
    own: Sequence[float] | None = None,
    target: Target | None = None,
    note: str = "",
) -> Row:
    """How quick somebody was; the ratio says how many times as quick `own` was in the same rounds."""
    ratio = None if own is None else ratio_of(own, rates)
    met = None if target is None or ratio is None else target.is_met_by(ratio)
    return Row(what, spread(rates, unit), tuple(rates), ratio, target, met, note)


def compared_row(what: str, own: Sequence[float], other: Sequence[float], target: Target, note: str) -> Row:
    """How quick Pointsman was; the ratio says how many times as quick as `other`, another row of the table."""
    ratio = ratio_of(own, other)
    return Row(what, spread(own, "tasks/s"), tuple(own), ratio, target, target.is_met_by(ratio), note)


def latency_row(
    what: str,
    seconds: Sequence[float],
    *,
    own: Sequence[float] | None = None,
    target: Target | None = None,
    ratio_target: Target | None = None,
    note: str = "",
) -> Row:
    """The ratio says how many times as long `own` took; a target is about the median, in milliseconds, or about the ratio."""
    millis = [each * 1e3 for each in seconds]
    middle, late = statistics.median(millis), statistics.quantiles(millis, n=20)[-1]
    ratio = None if own is None else statistics.median(own) / statistics.median(seconds)
    if target is not None:
        met: bool | None = target.is_met_by(middle)
    else:
        met = None if ratio_target is None or ratio is None else ratio_target.is_met_by(ratio)
    return Row(what, f"p50 {middle:.2f} ms, p95 {late:.2f} ms", tuple(millis), ratio, target or ratio_target, met, note)


def ratio_of(own: Sequence[float], other: Sequence[float]) -> float:
    """The median of the rounds' ratios: whatever slowed the machine down in a round slowed down both."""
    return statistics.median(one / another for one, another in zip(own, other, strict=True))


def half_of_ratios(own: Sequence[float], other: Sequence[float]) -> str:
    """Between which the middle half of the rounds' ratios is."""
    low, _, high = statistics.quantiles([one / another for one, another in zip(own, other, strict=True)], n=4)
    return f"middle half {low:.2f}–{high:.2f}"


def quickest(rates: Mapping[str, Sequence[float]]) -> str:
    """The setting that did best, by its median."""
    return max(rates, key=lambda name: statistics.median(rates[name]))


def spread(values: Sequence[float], unit: str) -> str:
    """The median, with the lowest and the highest."""
    return f"{statistics.median(values):,.0f} {unit} ({min(values):,.0f}–{max(values):,.0f})"


def times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.1f}×" if ratio >= 10 else f"{ratio:.2f}×"


def machine() -> str:
    model = "an unknown processor"
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} cores ({model}, {platform.machine()}), {platform.system()} {platform.release()}"


def keep(file: Path, begin: str, end: str, text: str) -> None:
    """Between the markers of the file, or at its end when it has none yet."""
    page = file.read_text("utf-8")
    if begin not in page:
        page = f"{page.rstrip()}\n\n{begin}{end}\n"
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    file.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}", "utf-8")


def write_data(file: Path, versions: Mapping[str, str], scale: Mapping[str, Any], tables: Sequence[Table]) -> None:
    data = {"machine": machine(), "versions": versions, "scale": scale, "tables": [table.as_data() for table in tables]}
    file.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
