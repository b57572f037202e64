"""Why gaps are still there: no gap without its line, on the shipped kernels and on such as strangers write."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from accelopt_core.candidate import Attempt, Candidate, Plan
from accelopt_core.catalogue.explaining import MOST_ANSWERS, explained
from accelopt_core.catalogue.rewrites import SiteName, as_details
from accelopt_core.evaluation import Bottleneck, Gap, Measured
from accelopt_core.explanation import Answer, ExplainedGap, Explanation, Verdict, heading, reasons, stops
from accelopt_core.judging.judge import judge
from accelopt_core.judging.verification import ReferenceCache
from accelopt_core.languages.nki.gaps import Cause, cause_of
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import DISTRIBUTIONS, ShapePreset, Surroundings, Task
from accelopt_core.transforms.base import AnalysisContext, parse_kernel
from accelopt_core.transforms.registry import STEPS, transform_named
from infra.prediction.predictor import Predictor
from infra.records import from_document, to_document
from infra.simulator.toolchain import SimulatorToolchain
from infra.tasks.seed_index import load_seed, seed_index
from ka_extensions.outcome import Outcome
from tests.slow import quick
from tests.transforms.running import HEADER

SOFTMAX = """
import numpy as np
ROWS, N = 512, 512


def get_inputs():
    return [np.random.normal(size=(ROWS, N)).astype(np.float32)]


def forward(x):
    raised = np.exp(x)
    return raised / raised.sum(axis=1, keepdims=True)


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(result, reference):
    return [np.asarray(result).reshape(reference.shape)]
"""
LEFT_OUT = tuple((name, "time") for name in DISTRIBUTIONS[1:])
TASK = Task("softmax", SOFTMAX, (ShapePreset("full", (("ROWS", 512), ("N", 512))),), seeds=(0,), left_out=LEFT_OUT)
KERNEL = HEADER + "\n@nki.jit\ndef kernel(x):\n    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"
BUFFERS_FIRST = f"""{KERNEL}
    rows = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    raised = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    for t in range(4):
        nisa.dma_copy(dst=rows, src=x[t * 128 : (t + 1) * 128, 0:512])
        nisa.activation(dst=raised, op=nl.exp, data=rows)
        nisa.tensor_reduce(dst=total, op=nl.add, data=raised, axis=1)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=raised, data=raised, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[t * 128 : (t + 1) * 128, 0:512], src=raised)
    return out
"""
SAME_NAMES_AGAIN = f"""{KERNEL}
    kept = []
    for t in range(4):
        tile = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[t * 128 : (t + 1) * 128, 0:512])
        raised = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=raised, op=nl.exp, data=tile)
        kept.append(raised)
    for t in range(4):
        tile = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=kept[t], axis=1)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=tile, data=kept[t], op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[t * 128 : (t + 1) * 128, 0:512], src=tile)
    return out
"""
IN_A_HELPER = f"""{HEADER}
def normalized(tile):
    total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=tile, op=nl.exp, data=tile)
    nisa.tensor_reduce(dst=total, op=nl.add, data=tile, axis=1)
    nisa.reciprocal(dst=total, data=total)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)


{KERNEL.removeprefix(HEADER)}
    for t in range(4):
        tile = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[t * 128 : (t + 1) * 128, 0:512])
        normalized(tile)
        nisa.dma_copy(dst=out[t * 128 : (t + 1) * 128, 0:512], src=tile)
    return out
"""
SHORT_ROWS = f"""{KERNEL}
    tiles = [nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf) for t in range(4)]
    for t in range(4):
        for piece in range(8):
            columns = slice(piece * 64, (piece + 1) * 64)
            nisa.dma_copy(dst=tiles[t][0:128, columns], src=x[t * 128 : (t + 1) * 128, columns])
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=tiles[t], op=nl.exp, data=tiles[t])
        nisa.tensor_reduce(dst=total, op=nl.add, data=tiles[t], axis=1)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=tiles[t], data=tiles[t], op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[t * 128 : (t + 1) * 128, 0:512], src=tiles[t])
    return out
"""
STRANGERS = {
    "buffers first": BUFFERS_FIRST,
    "the same names again": SAME_NAMES_AGAIN,
    "in a helper": IN_A_HELPER,
    "short rows": SHORT_ROWS,
}


def measured(task: Task, source: str) -> Measured:
    toolchain = SimulatorToolchain("trn2")
    try:
        request = EvaluationRequest(task, Candidate("input", source))
        result = judge(request, toolchain, lambda step, detail: None, ReferenceCache(None))
    finally:
        toolchain.close()
    assert isinstance(result, Measured), result
    return result


def unpriced(sources: Sequence[str], limit_s: float = 0.0) -> dict[str, float | None]:
    raise AssertionError("nothing is to be priced")


def told(task: Task, source: str, result: Measured | None = None) -> Explanation:
    candidate = Candidate("input", source)
    return explained(candidate, result or measured(task, source), task.around, unpriced, limit_s=0)


def check_every_gap_has_its_line(task: Task, source: str) -> Explanation:
    result = measured(task, source)
    explanation = told(task, source, result)
    large = [gap for gap in result.profile.gaps if gap.cost_us > 0.05 * result.latency_us]
    assert large, "a kernel that shows gaps"
    by_name = {gap.name: gap for gap in explanation.gaps}
    for gap in large:
        found = by_name[gap.name]
        cause = cause_of(gap)
        assert cause is not None and reasons(found) and stops(found)
        assert found.lines and all(0 < line.line <= len(source.splitlines()) for line in found.lines)
        addressing = {transform.name for transform in STEPS if cause in transform.addresses}
        named = {name for answer in found.answers for name in answer.transform.split(", ")}
        assert named <= addressing and (found.left_out or named == addressing)
    return explanation


@pytest.mark.parametrize("name", quick("bmm", "silu", "rmsnorm_matmul", of=(seed.name for seed in seed_index())))
def test_every_large_gap_of_a_shipped_kernel_has_its_line(name: str) -> None:
    seed = load_seed(name)
    task = seed.task()
    small = dataclasses.replace(task, presets=task.presets[:1], seeds=task.seeds[:1], left_out=LEFT_OUT)
    check_every_gap_has_its_line(small, seed.kernel_source)


@pytest.mark.parametrize("source", STRANGERS.values(), ids=STRANGERS)
def test_every_large_gap_of_a_strangers_kernel_has_its_line(source: str) -> None:
    check_every_gap_has_its_line(TASK, source)


# --- what the lines say -----------------------------------------------------------------------------


def of_cause(explanation: Explanation, cause: Cause) -> ExplainedGap:
    return next(gap for gap in explanation.gaps if gap.name.startswith(cause.value))


def all_answers(explanation: Explanation) -> list[Answer]:
    return [answer for gap in explanation.gaps for answer in gap.answers]


def line_of(source: str, text: str) -> int:
    return 1 + next(number for number, line in enumerate(source.splitlines()) if text in line)


def test_a_buffer_made_before_its_loop_is_named_with_its_line_and_normalizing_would_help() -> None:
    explanation = told(TASK, BUFFERS_FIRST)
    (fused, *_) = [each for each in all_answers(explanation) if each.transform == "fuse-elementwise"]
    assert (fused.verdict, fused.normalizing_helps, fused.on_a_hot_line) == (Verdict.REFUSED, True, True)
    assert f"is made on line {line_of(BUFFERS_FIRST, 'raised = nl')}, in another block" in fused.said


def test_a_name_that_is_bound_twice_is_named_with_its_lines() -> None:
    explanation = told(TASK, SAME_NAMES_AGAIN)
    said = {answer.said for answer in all_answers(explanation) if answer.normalizing_helps}
    assert any("tile is bound 2 times (lines" in each for each in said)


def test_lines_of_a_helper_are_said_to_be_none_of_the_kernels() -> None:
    explanation = told(TASK, IN_A_HELPER)
    unread = {said for gap in explanation.gaps for said in gap.unread}
    line = line_of(IN_A_HELPER, "tensor_reduce")
    assert f"line {line} stands in normalized(): the catalogue changes the kernel alone" in unread
    assert all(reasons(gap)[0] in gap.unread for gap in explanation.gaps if gap.unread)


def test_a_line_that_the_transforms_do_not_understand_is_said_to_be_one() -> None:
    source = SHORT_ROWS.replace("nisa.reciprocal(", "done = nisa.reciprocal(")
    explanation = told(TASK, source)
    line = line_of(source, "done = ")
    unread = {said for gap in explanation.gaps for said in gap.unread}
    assert any(said.startswith(f"line {line} is not understood by the transforms: done = ") for said in unread)


def test_refusals_on_the_lines_of_the_gap_come_before_others_and_the_list_is_bounded() -> None:
    for source in STRANGERS.values():
        for gap in told(TASK, source).gaps:
            refused = [answer.on_a_hot_line for answer in gap.answers if answer.verdict is Verdict.REFUSED]
            assert refused == sorted(refused, reverse=True)
            assert len(gap.answers) <= MOST_ANSWERS + 2


def test_what_cannot_be_read_at_all_says_so_for_every_gap() -> None:
    result = measured(TASK, BUFFERS_FIRST)
    explanation = explained(Candidate("input", BUFFERS_FIRST), result, Surroundings("other"), unpriced)
    assert "cannot read this kernel: no function called other" in explanation.note
    assert explanation.gaps and all(reasons(gap) == (explanation.note,) for gap in explanation.gaps)


def test_a_gap_that_no_transform_addresses_names_its_remedy() -> None:
    result = measured(TASK, BUFFERS_FIRST)
    switches = Gap(Cause.TABLE_SWITCHES.value, 0.2 * result.latency_us, "group activations by function", "9 loads")
    profile = dataclasses.replace(result.profile, gaps=(switches,))
    explanation = told(TASK, BUFFERS_FIRST, dataclasses.replace(result, profile=profile))
    (gap,) = explanation.gaps
    assert reasons(gap) == ("no transform of the catalogue addresses it; what does: group activations by function",)
    assert heading(gap).startswith("activation table switches: ") and "(20.0 %)" in heading(gap)


# --- with prices and a history ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def priced() -> tuple[Measured, Explanation, Explanation]:
    """Of `BUFFERS_FIRST`: as it is, and in a run that has tried one of its steps and came to it by another."""
    result = measured(TASK, BUFFERS_FIRST)
    candidate = Candidate("r001t1", BUFFERS_FIRST, "input")
    predictor = Predictor(TASK, "trn2", workers=1)
    try:
        fresh = explained(candidate, result, TASK.around, predictor)
        plan = Plan("p1", "wide", "retile", Bottleneck.MEMORY_BOUND, 1.0, "", as_details([SiteName("retile", "W=1")]))
        module, rotate = parse_kernel(BUFFERS_FIRST), transform_named("rotate-buffers")
        history = [Attempt(1, 1, "input", plan, candidate, result, Outcome.IMPROVED, "")]
        for number, site in enumerate(rotate.analyze(module, AnalysisContext()), 2):
            tried = Candidate(f"r00{number}t1", rotate.apply(module, site.key).code, "r001t1")
            history.append(Attempt(number, 1, "r001t1", plan, tried, result, Outcome.NO_IMPROVEMENT, ""))
        return result, fresh, explained(candidate, result, TASK.around, predictor, history)
    finally:
        predictor.close()


def test_what_is_offered_comes_with_its_predicted_gain(priced: tuple[Measured, Explanation, Explanation]) -> None:
    _, fresh, _ = priced
    waiting = of_cause(fresh, Cause.WAITING)
    offers = {answer.transform: answer for answer in waiting.answers if answer.verdict is Verdict.GAINS}
    assert waiting.answers[0].verdict is Verdict.GAINS and "fuse-row-sum" in offers
    offer = offers["fuse-row-sum"]
    assert offer.said.startswith("sum total within the activation on line ")
    assert offer.said.count(": predicted to gain ") == 1
    assert offer.line == line_of(BUFFERS_FIRST, "nisa.tensor_reduce(dst=total")
    gains = [said for said in stops(waiting) if "predicted to gain" in said]
    assert all("less than a prediction can tell from nothing" in said for said in gains)


def test_what_was_tried_or_applied_says_when(priced: tuple[Measured, Explanation, Explanation]) -> None:
    _, _, later = priced
    waiting = of_cause(later, Cause.WAITING)
    (applied,) = [answer for answer in waiting.answers if answer.verdict is Verdict.APPLIED]
    assert applied.said == "retile in round 1"
    (tried,) = [answer for answer in waiting.answers if answer.transform == "rotate-buffers" and answer.line]
    assert tried.verdict is Verdict.TRIED and "no improvement in round" in tried.said


def test_it_is_kept_as_it_is(priced: tuple[Measured, Explanation, Explanation]) -> None:
    _, fresh, _ = priced
    assert from_document(Explanation, to_document(fresh), "explanation.json") == fresh
