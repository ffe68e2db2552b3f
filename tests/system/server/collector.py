"""A collector of OpenTelemetry on loopback: it takes spans by OTLP over HTTP, and keeps them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.system.server.harness import until


@dataclass(frozen=True)
class Collected:
    """A span as it arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: Mapping[str, str | int]
    is_error: bool


@dataclass
class Collector:
    port: int
    spans: list[Collected] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}", "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def find(self, name: str, **attributes: str) -> Collected:
        """Wait for a span; `run_id="…"` is its attribute `pointsman.run.id`."""
        wanted = {f"pointsman.{key.replace('_', '.')}": value for key, value in attributes.items()}

        def look() -> list[Collected]:
            return [span for span in self.spans if span.name == name and wanted.items() <= dict(span.attributes).items()]

        (span,) = until(look, lambda: self.spans)
        return span


@contextmanager
def collect() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            collector.spans += read_spans(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has there
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def read_spans(request: ExportTraceServiceRequest) -> Iterator[Collected]:
    for group in request.resource_spans:
        resource = {each.key: each.value.string_value for each in group.resource.attributes}
        for span in (span for scope in group.scope_spans for span in scope.spans):
            values = {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
            yield Collected(
                resource["service.name"],
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                values,
                is_error=span.status.code == 2,
            )
