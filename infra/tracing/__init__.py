"""A run as OpenTelemetry spans, where the standard environment variables ask for them (docs/tracing.md)."""
