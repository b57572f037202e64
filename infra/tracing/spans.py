"""Events of a run as spans: the run, its rounds, their steps, and every call of a model below the step it was made in.

No prompt, no reply, no kernel and no path is in any of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from accelopt_core.evaluation import Step
from accelopt_core.loop.events import (
    BASELINE_ROUND,
    BaselineMeasured,
    Ending,
    Event,
    LastCheck,
    RoundEnded,
    RoundStarted,
    RunEnded,
    RunStarted,
    StepBegan,
)
from accelopt_core.ports import Role
from infra.llm.recording import Exchange
from infra.tracing import names

_STEPS_OF = {
    Role.PLANNER: Step.PLAN,
    Role.EXECUTOR: Step.EXECUTE,
    Role.SUMMARIZER: Step.SUMMARIZE,
    Role.REFLEXION: Step.REFLECT,
}


class RunSpans:
    """A RunObserver; `called` is told every exchange with a model, from whatever thread it was made in."""

    def __init__(
        self, tracer: Any, provider: Callable[[], object], *, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        """`tracer`: of the OpenTelemetry API. `provider`: called at the end; it sends what was not sent yet."""
        self._tracer = tracer
        self._finish = provider
        self._now_ns = now_ns
        self._lock = threading.RLock()
        self._run: Any = None
        self._round: Any = None
        self._steps: dict[str, tuple[Step, Any]] = {}
        """The open one of each lane."""

    def tell(self, event: Event) -> None:
        with self._lock:
            self._told(event)

    def called(self, exchange: Exchange, provider: str) -> None:
        """`provider`: whose model it is, by its name here."""
        ended = self._now_ns()
        with self._lock:
            wanted = _STEPS_OF[exchange.request.role]
            open_steps = [span for step, span in self._steps.values() if step is wanted]
            above = open_steps[-1] if open_steps else self._round or self._run
        request, reply = exchange.request, exchange.reply
        usage = reply.usage if reply is not None else exchange.lost
        attributes = {
            names.OPERATION: names.CHAT,
            names.PROVIDER: provider,
            names.REQUEST_MODEL: exchange.model,
            names.REQUEST_MAX_TOKENS: request.max_tokens,
            names.REQUEST_TEMPERATURE: request.temperature,
            names.INPUT_TOKENS: usage.input_tokens + usage.cached_input_tokens + usage.cache_write_tokens,
            names.OUTPUT_TOKENS: usage.output_tokens,
            names.CACHE_READ_TOKENS: usage.cached_input_tokens or None,
            names.CACHE_WRITE_TOKENS: usage.cache_write_tokens or None,
            names.ROLE: request.role.value,
            names.ERROR_TYPE: names.OTHER_ERROR if reply is None else None,
        }
        if reply is not None:
            attributes[names.RESPONSE_MODEL] = reply.model
            attributes[names.FINISH_REASONS] = ["length" if reply.truncated else "stop"]
        began = ended - int(exchange.elapsed_s * 1e9)
        span = self._begin(f"{names.CHAT} {exchange.model}", above, attributes, began, client=True)
        if reply is None:
            _fail(span)
        span.end(ended)

    def close(self) -> None:
        """Ends what is open, as after a run that ended by an error, and sends it."""
        with self._lock:
            if self._run is not None:
                _fail(self._run)
                self._end_run()
        self._finish()

    # --- how ---

    def _told(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._run = self._begin(
                    names.RUN,
                    None,
                    {
                        names.RUN_ID: event.run_id,
                        names.TASK: event.task,
                        names.SHAPE: event.shape,
                        names.TARGET: event.target.machine,
                        names.SIMULATED: event.target.simulated,
                        names.PROPOSER: event.proposer,
                    },
                )
            case BaselineMeasured(result=result):
                self._set(self._run, names.BASELINE_US, result.latency_us)
            case RoundStarted():
                self._end_round()
                about = {names.NUMBER: event.round, names.PARENT_ID: event.parent_id}
                self._round = self._begin(names.ROUND, self._run, about)
            case StepBegan():
                self._end_step(event.lane)
                above = self._round if event.round != BASELINE_ROUND and self._round is not None else self._run
                about = {names.STEP_NAME: event.step.value, names.LANE: event.lane or None}
                self._steps[event.lane] = event.step, self._begin(f"{names.STEP} {event.step.value}", above, about)
            case RoundEnded(attempt=attempt):
                if self._round is not None:
                    about = {
                        names.CANDIDATE: attempt.id,
                        names.TECHNIQUE: attempt.technique,
                        names.OUTCOME: attempt.outcome.value,
                        names.LATENCY_US: attempt.latency_us,
                    }
                    self._round.add_event(names.ATTEMPT, _known(about), self._now_ns())
                if attempt.decision is not None and attempt.decision.improved and attempt.latency_us is not None:
                    self._set(self._run, names.BEST_US, attempt.latency_us)
            case LastCheck():
                self._end_round()
            case RunEnded():
                self._set(self._run, names.ENDING, event.ending.value)
                if event.ending is Ending.FAILED and self._run is not None:
                    _fail(self._run)
                self._end_run()
            case _:
                pass

    def _begin(
        self, name: str, above: Any, attributes: dict[str, Any], began_ns: int | None = None, client: bool = False
    ) -> Any:
        from opentelemetry import trace

        return self._tracer.start_span(
            name,
            context=trace.set_span_in_context(above) if above is not None else None,
            kind=trace.SpanKind.CLIENT if client else trace.SpanKind.INTERNAL,
            attributes=_known(attributes),
            start_time=began_ns if began_ns is not None else self._now_ns(),
        )

    @staticmethod
    def _set(span: Any, name: str, value: object) -> None:
        if span is not None:
            span.set_attribute(name, value)

    def _end_step(self, lane: str) -> None:
        _, span = self._steps.pop(lane, (None, None))
        if span is not None:
            span.end(self._now_ns())

    def _end_round(self) -> None:
        for lane in list(self._steps):
            self._end_step(lane)
        if self._round is not None:
            self._round.end(self._now_ns())
            self._round = None

    def _end_run(self) -> None:
        self._end_round()
        if self._run is not None:
            self._run.end(self._now_ns())
            self._run = None


def _known(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _fail(span: Any) -> None:
    from opentelemetry import trace

    span.set_status(trace.Status(trace.StatusCode.ERROR))
