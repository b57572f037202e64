"""A run with a language model, its spans sent to a collector as OTLP over HTTP, as the standard variables ask for."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.e2e.kernels import REFERENCE, SLOW
from tests.e2e.run import orchestrate
from tests.e2e.test_model_run import SCRIPT, SECRET
from tests.llm.wire_server import WireServer


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Its endpoint, and the bodies that came to /v1/traces."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", bodies
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_the_whole_run_reaches_the_collector_without_its_texts(tmp_path: Path) -> None:
    (tmp_path / "add.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "add_reference.py").write_text(REFERENCE, encoding="utf-8")
    with WireServer(SCRIPT) as server, collector() as (endpoint, bodies):
        ran = orchestrate(
            "--kernel", "add.py", "--rounds", "1",
            folder=tmp_path,
            environment={
                "ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": server.url,
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_RESOURCE_ATTRIBUTES": "team=kernels",
            },
        )  # fmt: skip
    assert ran.status == 0, ran.errors
    received = [ExportTraceServiceRequest.FromString(body) for body in bodies]
    resources = [each for request in received for each in request.resource_spans]
    spans = [span for each in resources for scope in each.scope_spans for span in scope.spans]
    about = {item.key: item.value.string_value for item in resources[0].resource.attributes}
    assert about["service.name"] == "nki-optimizer" and about["team"] == "kernels"
    named = {span.span_id: span.name for span in spans}
    calls = [span for span in spans if span.name.startswith("chat ")]
    assert len(calls) == len(SCRIPT) and len({span.trace_id for span in spans}) == 1
    assert [named[call.parent_span_id] for call in calls] == [
        "nki_optimizer.step plan", *["nki_optimizer.step execute"] * 4, "nki_optimizer.step summarize",
        "nki_optimizer.step reflect",
    ]  # fmt: skip
    sent = b"".join(bodies)
    assert SECRET.encode() not in sent and b"dma_copy" not in sent and str(tmp_path).encode() not in sent
