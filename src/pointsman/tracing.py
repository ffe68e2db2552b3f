"""Traces: from the request that submits a run to the attempts of its tasks, in every process on the way.

    traceparent of a request ──▶ span of the server ──▶ stored with the run ──▶ span of each attempt ──▶ its process

Without OpenTelemetry, nothing is recorded, and what a caller sends is passed on as it is. With it, the standard variables
(OTEL_EXPORTER_OTLP_ENDPOINT …) say where spans go. The packages are imported when the first span begins.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

SERVICE = "pointsman"
TRACEPARENT = "TRACEPARENT"
"""The variable by which a process passes its span on to those that it starts."""
EXPORTER = "OTEL_TRACES_EXPORTER"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
Kind = Literal["server", "producer", "consumer"]
Attributes = Mapping[str, str | int]
log = logging.getLogger(__name__)


def read_traceparent(text: str | None) -> str | None:
    """A traceparent of the W3C that somebody has sent; None if it is none."""
    return text if text is not None and _TRACEPARENT.fullmatch(text) else None


class Span:
    """Something that takes time. This one is not recorded: what is below it belongs to its parent."""

    def __init__(self, parent: str | None) -> None:
        self.traceparent = parent
        """For what is caused by it."""

    def note(self, attributes: Attributes) -> None:
        """Add what became known since it began."""

    def fail(self, message: str) -> None:
        """It has failed."""

    def __enter__(self) -> Span:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The end of the span."""


class Tracing:
    """Begins spans; here they are not recorded."""

    def begin(self, name: str, kind: Kind, parent: str | None, attributes: Attributes) -> Span:  # noqa: ARG002
        return Span(read_traceparent(parent))


class _Unusable(Tracing):
    """Says why nothing is recorded, once, where something would be: most commands have no spans."""

    def __init__(self, why: str) -> None:
        self._why: str | None = why

    def begin(self, name: str, kind: Kind, parent: str | None, attributes: Attributes) -> Span:
        if self._why:
            log.warning(self._why)
            self._why = None
        return super().begin(name, kind, parent, attributes)


class _RecordedSpan(Span):
    def __init__(self, span: trace.Span) -> None:
        context = span.get_span_context()
        super().__init__(f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}")
        self._span = span

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def fail(self, message: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_status(StatusCode.ERROR, message)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._span.record_exception(error)
            self.fail(type(error).__name__)
        self._span.end()


class OpenTelemetry(Tracing):
    """Records spans and sends them by OTLP over HTTP, in the background and at the end of the process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._tracer: Tracer | None = None

    def begin(self, name: str, kind: Kind, parent: str | None, attributes: Attributes) -> Span:
        from opentelemetry.trace import SpanKind

        tracer = self._tracer = self._tracer or _make_tracer(self._environ)
        kinds = {"server": SpanKind.SERVER, "producer": SpanKind.PRODUCER, "consumer": SpanKind.CONSUMER}
        context = _make_context(read_traceparent(parent))
        return _RecordedSpan(tracer.start_span(name, context=context, kind=kinds[kind], attributes=attributes))


def _make_context(parent: str | None) -> Context:
    """The context of a parent in another process; without one, a new trace begins."""
    from opentelemetry.context import Context as NewContext
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if parent is None:
        return NewContext()
    _, trace_id, span_id, flags = parent.split("-")
    known = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return set_span_in_context(NonRecordingSpan(known), NewContext())


def _make_tracer(environ: Mapping[str, str]) -> Tracer:
    """The rest of the standard variables is read by OpenTelemetry itself."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    is_named = "OTEL_SERVICE_NAME" in environ or f"{SERVICE_NAME}=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if is_named else {SERVICE_NAME: SERVICE}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer(SERVICE)


def open_tracing(environ: Mapping[str, str]) -> Tracing:
    """Tracing as the standard variables say: off, unless one of them names an exporter or where to send spans."""
    exporter = environ.get(EXPORTER, "").strip().lower()
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none"
    if is_off or not (exporter or any(environ.get(name) for name in ENDPOINTS)):
        return Tracing()
    if exporter not in ("", "otlp"):
        return _Unusable(f"{EXPORTER} is {exporter!a}, and only 'otlp' is supported: no spans are recorded")
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        return _Unusable("OpenTelemetry is configured, but not installed: pip install 'pointsman[otel]'")
    return OpenTelemetry(environ)
