"""Where spans go, by OpenTelemetry's own environment variables; without these nothing of it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from infra.tracing import names
from infra.tracing.spans import RunSpans

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OVER_HTTP = "http/protobuf"
SERVICE = "nki-optimizer"


class NotTraced(Exception):
    """Spans were asked for and cannot be had; the line says what to change."""


def open_spans(environment: Mapping[str, str], version: str) -> RunSpans | None:
    """None where the environment asks for no spans. Raises NotTraced."""
    kind = _exporter(environment)
    if kind == "none":
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
    except ImportError as error:
        raise NotTraced(f"OTEL_ variables ask for traces, and {error.name} is missing: {_INSTALL}") from None
    exporter: SpanExporter
    if kind == "console":
        exporter = ConsoleSpanExporter(out=sys.stderr)
    else:
        protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), OVER_HTTP)
        if protocol != OVER_HTTP:
            raise NotTraced(f"traces go by {OVER_HTTP} only, not {protocol!r}: set {PROTOCOLS[1]}={OVER_HTTP}")
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            raise NotTraced(f"OTEL_ variables ask for traces, and {error.name} is missing: {_INSTALL}") from None
        exporter = OTLPSpanExporter()
    about = {"service.version": version}
    if not environment.get("OTEL_SERVICE_NAME") and "service.name=" not in environment.get(_RESOURCE, ""):
        about["service.name"] = SERVICE
    provider = TracerProvider(resource=Resource.create(about))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return RunSpans(provider.get_tracer(SERVICE, version, names.SCHEMA_URL), provider.shutdown)


_INSTALL = "pip install 'nki-optimizer[otel]', or set OTEL_SDK_DISABLED=true"
_RESOURCE = "OTEL_RESOURCE_ATTRIBUTES"


def _exporter(environment: Mapping[str, str]) -> str:
    """otlp, console or none."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "none"
    asked = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if not asked:
        return "otlp" if any(environment.get(name) for name in ENDPOINTS) else "none"
    if asked not in ("otlp", "console", "none"):
        raise NotTraced(f"OTEL_TRACES_EXPORTER={asked}: otlp, console or none")
    return asked
