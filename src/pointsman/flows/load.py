"""Reads flow files: parse, shape and check once; every finding at once."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pointsman.errors import Finding, FlowInvalid, FlowUnreadable, Place
from pointsman.flows.check import FlowCheck
from pointsman.flows.document import read_document
from pointsman.flows.findings import Reporter
from pointsman.flows.model import Flow
from pointsman.flows.shape import shape_flow
from pointsman.kernel.machine import Lifecycle
from pointsman.lifecycles.files import read_text

TEXT = "<text>"


def load_flow(source: str | Path, *, file: str | None = None, tools: Collection[str] | None = None) -> Flow:
    """Load a flow from its file, or from a text: one that has several lines, or comes with the name of its file.

    With the `tools` of a project, a task may only use those.
    """
    return load_with_lifecycle(source, file=file, tools=tools)[0]


def load_with_lifecycle(
    source: str | Path, *, file: str | None = None, tools: Collection[str] | None = None, stored: Lifecycle | None = None
) -> tuple[Flow, Lifecycle]:
    """Load a flow together with the lifecycle that it was checked with: a shipped one, one in a file, or the `stored` one."""
    if isinstance(source, str) and (file is not None or "\n" in source):
        return _read_flow(source, file, tools, stored)
    return _read_flow(_read_text(Path(source)), str(source), tools, stored)


def _read_flow(text: str, file: str | None, tools: Collection[str] | None, stored: Lifecycle | None) -> tuple[Flow, Lifecycle]:
    document = read_document(text, file or TEXT)
    findings = document.findings
    if not isinstance(document.value, dict):
        top = Place(file or TEXT, 1, 1)
        raise FlowInvalid(
            findings or [Finding("structure", top, "The file is not a mapping.", "Start with `name:` and `tasks:`.")]
        )
    reporter = Reporter(document.spot)
    flow, damaged = shape_flow(document.value, document.spot, reporter)
    lifecycle = FlowCheck(flow.from_file(file), reporter, damaged, tools, stored).run() if flow is not None else None
    if (findings := [*findings, *reporter.findings]) or flow is None or lifecycle is None:
        unique = dict.fromkeys(findings)
        raise FlowInvalid(sorted(unique, key=lambda finding: (finding.place.line, finding.place.column)))
    return flow, lifecycle


def _read_text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise FlowUnreadable(f"Cannot read {path}: {error.strerror or error}. Check the path and its permissions.") from None
    except UnicodeDecodeError as error:
        raise FlowUnreadable(f"Cannot read {path}: byte {error.start} is not UTF-8. Save it as UTF-8 text.") from None
    except ValueError as error:
        raise FlowUnreadable(f"Cannot read {str(path)!a}: {error}. Check the path, or split the file.") from None
