"""A run as OpenTelemetry spans: what lies below what, what stands in them, and when nothing of it is there at all."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from accelopt_core.evaluation import Step
from accelopt_core.loop.events import Ending, RoundStarted, RunEnded, StepBegan
from accelopt_core.ports import Message, ModelReply, ModelRequest, Role, Usage
from infra.llm.recording import Exchange
from infra.tracing import names
from infra.tracing.export import NotTraced, open_spans
from infra.tracing.spans import RunSpans
from tests.house.structure import ROOT
from tests.infra.samples import run_events

SECRET = "a prompt that is nobody's business"


class Clock:
    """Nanoseconds, one second further at every look."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000

    def __call__(self) -> int:
        self.now += 1_000_000_000
        return self.now


class Traced:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = RunSpans(provider.get_tracer("test"), provider.shutdown, now_ns=Clock())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    def above(self, span: ReadableSpan) -> str:
        """The name of the span that it lies below; empty for none."""
        ids = {each.context.span_id: each.name for each in self.exporter.get_finished_spans()}
        return ids[span.parent.span_id] if span.parent is not None else ""


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def exchange(role: Role = Role.PLANNER, *, failed: bool = False, temperature: float | None = None) -> Exchange:
    request = ModelRequest(role, SECRET, (Message("user", SECRET),), 6000, temperature)
    reply = None if failed else ModelReply(SECRET, "model-a-20260101", Usage(100, 20, 300, 40), truncated=True)
    return Exchange(request, "model-a", 2.5, reply, SECRET if failed else None, Usage(7, 0) if failed else Usage())


@pytest.fixture
def told() -> Traced:
    """A whole run."""
    traced = Traced()
    for event in (*run_events(), RunEnded(Ending.FINISHED, "done")):
        traced.spans.tell(event)
    return traced


def test_steps_lie_in_rounds_and_rounds_in_the_run(told: Traced) -> None:
    (run,) = told.named(names.RUN)
    rounds, steps = told.named(names.ROUND), told.named(names.STEP)
    assert told.above(run) == "" and {told.above(each) for each in rounds} == {names.RUN}
    assert {told.above(each) for each in steps} == {names.RUN, names.ROUND}, "the input kernel's lie in the run itself"
    assert sorted(attributes(each)[names.NUMBER] for each in rounds) == list(range(1, len(rounds) + 1))
    assert attributes(run)[names.SIMULATED] is True and attributes(run)[names.ENDING] == "finished"
    assert attributes(run)[names.BEST_US] < attributes(run)[names.BASELINE_US]
    for inner in (*rounds, *steps):
        assert run.start_time <= inner.start_time < inner.end_time <= run.end_time
    of_round = [event for each in rounds for event in each.events]
    assert {event.name for event in of_round} == {names.ATTEMPT} and len(of_round) == len(rounds)


def test_a_call_lies_in_the_step_it_was_made_in_and_says_what_the_conventions_want() -> None:
    traced = Traced()
    begin = next(iter(run_events()))
    for event in (
        begin,
        RoundStarted(1, "input", 500.0),
        StepBegan(1, Step.PLAN, "a"),
        StepBegan(1, Step.EXECUTE, "b"),
    ):
        traced.spans.tell(event)
    traced.spans.called(exchange(temperature=0.5), "anthropic")
    traced.spans.called(exchange(Role.EXECUTOR, failed=True), "anthropic")
    traced.spans.called(exchange(Role.REFLEXION), "anthropic")
    traced.spans.tell(RunEnded(Ending.FINISHED, "done"))
    planned, executed, reflected = traced.named("chat model-a")
    assert [traced.above(each) for each in (planned, executed, reflected)] == [
        f"{names.STEP} plan", f"{names.STEP} execute", names.ROUND,
    ]  # fmt: skip
    assert attributes(planned) == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.request.model": "model-a",
        "gen_ai.request.max_tokens": 6000, "gen_ai.request.temperature": 0.5, "gen_ai.usage.input_tokens": 440,
        "gen_ai.usage.output_tokens": 20, "gen_ai.usage.cache_read.input_tokens": 300,
        "gen_ai.usage.cache_creation.input_tokens": 40, "gen_ai.response.model": "model-a-20260101",
        "gen_ai.response.finish_reasons": ("length",), "nki_optimizer.model.role": "planner",
    }  # fmt: skip
    assert planned.kind is SpanKind.CLIENT and planned.end_time - planned.start_time == 2_500_000_000
    assert executed.status.status_code is StatusCode.ERROR and attributes(executed)["error.type"] == "_OTHER"
    assert SECRET not in "".join(each.to_json() for each in traced.exporter.get_finished_spans())


def test_a_run_that_ended_by_an_error_is_one_that_failed() -> None:
    traced = Traced()
    for event in run_events():
        traced.spans.tell(event)
    traced.spans.close()
    (run,) = traced.named(names.RUN)
    assert run.status.status_code is StatusCode.ERROR and names.ENDING not in attributes(run)


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_SDK_DISABLED": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
    ],
)
def test_without_the_variables_nothing_of_it_is_loaded(environment: dict[str, str]) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from infra.tracing.export import open_spans; "
        f"assert open_spans({environment!r}, '1') is None; assert 'opentelemetry' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("lacking", ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"])
def test_a_package_that_is_missing_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    for name in [name for name in sys.modules if name.startswith(lacking)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, lacking, None)
    with pytest.raises(NotTraced, match=r"is missing: pip install 'nki-optimizer\[otel\]'"):
        open_spans({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, "1")
