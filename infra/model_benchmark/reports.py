"""Reports of harnesses, read: what is missing or cut off is said by name, and nothing is guessed.

| format | source |
|---|---|
| our own JSON | docs/model.md |
| NxD Inference's latency report | `generate_report` of neuronx_distributed_inference, as `inference_demo --benchmark` and aws-neuron/nki-moe's main.py write it to benchmark_report.json |
| vLLM's | `vllm bench serve --save-result` (vLLM, docs/benchmarking/cli.md), which the Neuron plugin serves as well |
"""  # noqa: E501

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from accelopt_core.ports import TargetMisconfigured
from infra.model_benchmark.figures import Accuracy, Figures

_LEAST, _MOST = 1e-12, 1e15
_LONGEST_SHOWN = 60

Report = Mapping[str, Any]
Reader = Callable[[str, bytes], Figures]
"""From a report's name and content to what it says. Raises ReportInvalid."""


class ReportInvalid(TargetMisconfigured):
    """The harness ended, and its report is cut off, of another format, or disagrees with itself: look at its output."""


def document(name: str, content: bytes) -> Report:
    """One JSON object."""
    try:
        read = json.loads(content, object_pairs_hook=_each_once)
    except UnicodeDecodeError:
        raise ReportInvalid(f"{name} is no text") from None
    except RecursionError:
        raise ReportInvalid(f"{name} is nested too deeply for a report") from None
    except ValueError as error:
        cut = "; it ends too early" if _is_cut_off(content) else ""
        raise ReportInvalid(f"{name} is no JSON: {error}{cut}") from None
    if not isinstance(read, dict):
        raise ReportInvalid(f"{name} is a JSON {type(read).__name__}, not an object")
    return read


def number(name: str, report: Report, key: str, *, positive: bool = True) -> float:
    """Raises ReportInvalid where it is missing, no finite number, negative or, if `positive`, zero."""
    if key not in report:
        raise ReportInvalid(f"{name} has no {key}: {_keys(report) or 'it is empty'}")
    value = report[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) == math.inf:
        raise ReportInvalid(f"{name}: {key} is {shown(value)}, not a number")
    if not can_be(value, positive=positive):
        raise ReportInvalid(f"{name}: {key} is {shown(value)}, which nothing can take")
    return float(value)


def can_be(value: float, *, positive: bool) -> bool:
    """Of a time, a rate, a count or a share: far beyond these bounds a ratio of two of them would be no number."""
    return (_LEAST <= value <= _MOST) or (value == 0 and not positive)


def shown(value: object) -> str:
    """What a report says, short enough for a line and with nothing in it that a terminal would obey."""
    text = ascii(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def optional(name: str, report: Report, key: str, *, positive: bool = True) -> float | None:
    return number(name, report, key, positive=positive) if report.get(key) is not None else None


def own(name: str, content: bytes) -> Figures:
    """accuracy: true, false or null; latency_ms, first_token_ms, per_token_ms, tokens_per_s, nki_flop_share."""
    report = document(name, content)
    known = {"accuracy", "latency_ms", "first_token_ms", "per_token_ms", "tokens_per_s", "nki_flop_share"}
    stray = sorted(set(report) - known)
    if "accuracy" not in report or report["accuracy"] not in (True, False, None) or stray:
        what = f"unknown: {_keys(stray)}" if stray else "accuracy must be true, false or null"
        raise ReportInvalid(f"{name}: {what}; it may have {', '.join(sorted(known))}")
    if isinstance(report["accuracy"], (int, float)) and not isinstance(report["accuracy"], bool):
        raise ReportInvalid(f"{name}: accuracy is {shown(report['accuracy'])}: write true, false or null")
    accuracy = {True: Accuracy.PASSED, False: Accuracy.FAILED, None: Accuracy.UNCHECKED}[report["accuracy"]]
    share = optional(name, report, "nki_flop_share", positive=False)
    if share is not None and share > 1:
        raise ReportInvalid(f"{name}: nki_flop_share is {share!r}; it is a fraction of 1")
    figures = Figures(
        accuracy,
        optional(name, report, "latency_ms"),
        optional(name, report, "tokens_per_s"),
        optional(name, report, "first_token_ms"),
        optional(name, report, "per_token_ms"),
        share,
    )
    if figures.latency_ms is None and figures.per_token_ms is None and figures.tokens_per_s is None:
        raise ReportInvalid(f"{name} has neither latency_ms nor per_token_ms nor tokens_per_s")
    return figures


WHOLE, FIRST_TOKEN, EACH_TOKEN = "e2e_model", "context_encoding_model", "token_generation_model"


def nxdi(name: str, content: bytes) -> Figures:
    """By submodel: latency_ms_p50 ... _p100, latency_ms_avg in ms, and throughput in tokens a second."""
    report = document(name, content)
    notes = [f"{name} has no {part}" for part in (FIRST_TOKEN, EACH_TOKEN) if part not in report]
    whole = part_of(name, report, WHOLE)
    first, each = (
        number(f"{name}, {part}", part_of(name, report, part), "latency_ms_p50") if part in report else None
        for part in (FIRST_TOKEN, EACH_TOKEN)
    )
    return Figures(
        Accuracy.UNCHECKED,
        number(f"{name}, {WHOLE}", whole, "latency_ms_p99"),
        number(f"{name}, {WHOLE}", whole, "throughput"),
        first,
        each,
        notes=tuple(notes),
    )


def part_of(name: str, report: Report, part: str) -> Report:
    if part not in report:
        raise ReportInvalid(f"{name} has no {part}: {_keys(report) or 'it is empty'}")
    if not isinstance(report[part], dict):
        raise ReportInvalid(f"{name}: {part} is {shown(report[part])}, not an object")
    found: Report = report[part]
    return found


def vllm(name: str, content: bytes) -> Figures:
    """mean_ttft_ms, mean_tpot_ms, output_throughput: all of them of the requests that were completed, so that a run in
    which some failed is none."""
    report = document(name, content)
    completed = number(name, report, "completed", positive=False)
    if completed == 0:
        raise ReportInvalid(f"{name}: no request was completed; look at the server's output")
    asked = optional(name, report, "num_prompts")
    if asked is not None and completed != asked:
        raise ReportInvalid(f"{name}: {completed:g} of {asked:g} requests were completed; look at the server's output")
    tokens = optional(name, report, "total_output_tokens")
    return Figures(
        Accuracy.UNCHECKED,
        optional(name, report, "mean_e2el_ms"),
        number(name, report, "output_throughput"),
        number(name, report, "mean_ttft_ms"),
        number(name, report, "mean_tpot_ms", positive=False) or None,
        answer_tokens=tokens / completed if tokens is not None else None,
    )


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError for a key that is there twice: which of the two was meant?"""
    read = dict(pairs)
    if len(read) != len(pairs):
        said = [key for key, _ in pairs]
        raise ValueError(f"{shown(next(key for key in said if said.count(key) > 1))} is there twice")
    return read


def _keys(names: Iterable[str]) -> str:
    """The first few, for a message."""
    return ", ".join(shown(key)[1:-1] for key in sorted(names)[:8])


def _is_cut_off(content: bytes) -> bool:
    """Of a report: its last brace is missing."""
    return content.rstrip()[:1] == b"{" and content.rstrip()[-1:] != b"}"
