"""`pointsman validate`: check a log of transitions against the machines of a lifecycle."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path

import click

from pointsman.cli.output import count, describe_finding, echo, erase_line, fail, json_option, show_finding
from pointsman.errors import Finding, LogUnreadable, PointsmanError
from pointsman.events.validate import RULES, Summary, Validator
from pointsman.lifecycles import load_lifecycle

GZIP = b"\x1f\x8b"


@click.command()
@click.argument("log", metavar="LOG", required=False)
@click.option(
    "--lifecycle",
    "-l",
    "names",
    metavar="NAME",
    multiple=True,
    default=("orchestrated",),
    show_default=True,
    help="The lifecycle: a name or a file. Repeat it for each file whose machines the log names.",
)
@click.option("--partial", is_flag=True, help="The log may start midway: accept entities that are first seen in any state.")
@click.option("--rules", is_flag=True, help="List the rules and exit.")
@json_option
def command(log: str | None, names: tuple[str, ...], *, partial: bool, rules: bool, as_json: bool) -> int:
    """Check LOG, a file of JSON event lines (- for stdin), against the machines of a lifecycle.

    \b
    An event is one JSON object per line:
      timestamp   2026-01-15T10:30:00.000Z, never before the previous line
      event_type  MACHINE_state_transition: task_…, workstream_…, worker_…
      severity    info, warning, error or critical
      entity_id   the entity that moves
      from_state  the state it leaves (null where it is created)
      to_state    the state it enters
      trigger     the trigger, as the machine names it
      metadata    an object; these keys are checked if present:
                  worker_id, run_id or workstream_id, depends_on, critical,
                  retry_count, max_retries, max_concurrent_tasks, created_at,
                  started_at, completed_at, machine (for mixed logs)

    Exit code 0: clean, 1: findings, 2: the log cannot be read. Memory use does not grow with the log.

    \b
    Examples:
      pointsman validate .state/transitions.jsonl
      pointsman validate --lifecycle standard --json transitions.jsonl
      zcat old.jsonl.gz | pointsman validate --partial -
    """
    if rules:
        show_rules(as_json=as_json)
        return 0
    if log is None:
        raise click.UsageError("Name a log file, or - for stdin.", click.get_current_context())
    lifecycle, *others = map(load_lifecycle, names)
    validator = Validator(lifecycle, "stdin" if log == "-" else log, others=others, partial=partial)
    report = JsonReport() if as_json else TextReport()
    error: LogUnreadable | None = None
    try:
        with open_log(log) as stream:
            for finding in validator.check_log(stream, progress=report.progress):
                report.finding(finding)
    except LogUnreadable as unreadable:
        error = unreadable
    report.end(validator.summary, error)
    if error is not None:
        fail(str(error))
        return 2
    return 1 if validator.summary.findings else 0


@contextmanager
def open_log(log: str) -> Iterator[BufferedReader]:
    if log == "-":
        if sys.stdin is None:
            raise LogUnreadable("Cannot read stdin: it is closed.")
        yield refuse_compressed(BufferedReader(FileIO(sys.stdin.fileno(), closefd=False)), log)
        return
    try:
        stream = Path(log).open("rb")  # noqa: SIM115 - closed below; only the opening belongs in this try
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LogUnreadable(f"Cannot read {log}: {reason}. Check the path and its permissions.") from None
    with stream:
        yield refuse_compressed(stream, log)


def refuse_compressed(stream: BufferedReader, log: str) -> BufferedReader:
    try:
        compressed = stream.peek(len(GZIP)).startswith(GZIP)
    except OSError as error:
        raise LogUnreadable(f"Cannot read {log}: {error.strerror or error}.") from None
    if compressed:
        raise LogUnreadable(f"Cannot read {log}: it is compressed. Use `zcat LOG | pointsman validate -`.")
    return stream


def show_rules(*, as_json: bool) -> None:
    if as_json:
        echo(json.dumps(RULES, indent=2))
        return
    for rule, meaning in RULES.items():
        echo(f"{click.style(rule.ljust(24), bold=True)} {meaning}")


class TextReport:
    """Findings for people on stdout; progress and the summary on stderr."""

    def __init__(self) -> None:
        self._live = sys.stderr is not None and sys.stderr.isatty()

    def finding(self, finding: Finding) -> None:
        self._wipe()
        show_finding(finding)

    def progress(self, summary: Summary) -> None:
        if self._live:
            text = f"\r{count(summary.lines, 'line')} read, {count(summary.findings, 'finding')} …"
            echo(click.style(text, dim=True), nl=False, err=True)

    def end(self, summary: Summary, error: PointsmanError | None) -> None:
        self._wipe()
        if error is not None:
            return
        verdict = click.style("clean", fg="green") if not summary.findings else count(summary.findings, "finding")
        what = f"{count(summary.lines, 'line')}, {summary.entities:,} {'entity' if summary.entities == 1 else 'entities'}"
        rules = ", ".join(f"{rule} {number:,}" for rule, number in summary.by_rule.most_common())
        echo(f"{summary.file}: {verdict} ({what})" + (f": {rules}" if rules else ""), err=True)
        if not summary.lines:
            echo("The log is empty.", err=True)
        if summary.by_rule["unknown-state"] + summary.by_rule["event-type"] > summary.lines // 2:
            echo("Most lines name states of another lifecycle: check --lifecycle.", err=True)

    def _wipe(self) -> None:
        if self._live:
            erase_line()


class JsonReport:
    """One JSON object, written piece by piece, so that findings do not pile up in memory."""

    def __init__(self) -> None:
        self._separator = '{"findings": [\n'

    def finding(self, finding: Finding) -> None:
        echo(self._separator + json.dumps(describe_finding(finding)), nl=False)
        self._separator = ",\n"

    def progress(self, summary: Summary) -> None:
        """Programs need no progress."""

    def end(self, summary: Summary, error: PointsmanError | None) -> None:
        opening = self._separator if self._separator.startswith("{") else "\n"
        result = {
            "file": summary.file,
            "lines": summary.lines,
            "entities": summary.entities,
            "findings": summary.findings,
            "by_rule": summary.by_rule,
            "error": str(error) if error else None,
        }
        echo(f'{opening}], "summary": {json.dumps(result)}}}')
