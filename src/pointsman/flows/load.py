"""The one door for flow files: read, shape, check; or every finding at once."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pointsman.errors import Finding, FlowInvalid, FlowUnreadable, Place
from pointsman.flows.check import check_tools, find_remarks
from pointsman.flows.document import Spot, read_document
from pointsman.flows.model import Flow
from pointsman.flows.remark import Remark
from pointsman.flows.shape import shape_flow

TEXT = "<text>"


def load_flow(source: str | Path, *, file: str | None = None, tools: Collection[str] | None = None) -> Flow:
    """A flow from its file, or from a text: one that has several lines, or comes with the name of its file.

    With the `tools` of a project, those that a task uses must be among them.
    """
    if isinstance(source, str) and (file is not None or "\n" in source):
        return _read_flow(source, file or TEXT, tools).from_file(file)
    return _read_flow(_read_text(Path(source)), str(source), tools).from_file(str(source))


def _read_flow(text: str, file: str, tools: Collection[str] | None) -> Flow:
    document = read_document(text, file)
    findings = document.findings
    if not isinstance(document.value, dict):
        if not findings:
            advice = "Begin with `name:` and `tasks:`."
            findings.append(Finding("structure", Place(file, 1, 1), "The file is not a mapping.", advice))
        raise FlowInvalid(findings)
    shaped = shape_flow(document.value, document.spot)
    findings += (remark.finding(_place(remark, spot)) for remark, spot in shaped.remarks)
    if shaped.flow is not None:
        shaped.flow.from_file(None if file == TEXT else file)
        remarks = [*find_remarks(shaped.flow, shaped.damaged), *(check_tools(shaped.flow, tools) if tools is not None else ())]
        findings += (remark.finding(_place(remark, document.spot.find(remark.path))) for remark in remarks)
    if findings or shaped.flow is None:
        unique = dict.fromkeys(findings)
        raise FlowInvalid(sorted(unique, key=lambda finding: (finding.place.line, finding.place.column)))
    return shaped.flow


def _place(remark: Remark, spot: Spot) -> Place:
    return spot.key if remark.of_key else spot.place_of(remark.snippet)


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise FlowUnreadable(f"Cannot read {path}: {error.strerror or error}. Check the path and its permissions.") from None
    except UnicodeDecodeError as error:
        raise FlowUnreadable(f"Cannot read {path}: byte {error.start} is not UTF-8. Save it as UTF-8 text.") from None
    except ValueError as error:
        raise FlowUnreadable(f"Cannot read {str(path)!a}: {error}. Check the path.") from None
