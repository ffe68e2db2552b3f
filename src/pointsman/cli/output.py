"""What commands print: findings, tables, errors."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pointsman.errors import Finding

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def fail(message: str) -> None:
    """One clear line on stderr."""
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)


def describe_finding(finding: Finding) -> dict[str, object]:
    place = finding.place
    return {
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "rule": finding.rule,
        "message": finding.message,
        "advice": finding.advice,
    }


def show_finding(finding: Finding) -> None:
    where = click.style(str(finding.place), bold=True)
    click.echo(f"{where}: {finding.message} {click.style(f'[{finding.rule}]', fg='red')}")
    click.echo(f"    {finding.advice}")


def show_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as their widest cell; colours do not count."""
    plain = [heads, *([click.unstyle(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in plain) for column in range(len(heads))]
    click.echo(click.style("  ".join(head.ljust(width) for head, width in zip(heads, widths, strict=True)).rstrip(), dim=True))
    for row in rows:
        cells = [cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
