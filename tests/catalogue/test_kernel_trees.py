"""A kernel's trees in the process that prices: single steps, ways and steps carried out, on real kernels."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nki_sim
from accelopt_core.catalogue.kernel_trees import NoTree, StepName, StepRefused, Wanted
from accelopt_core.catalogue.search import FAULT
from accelopt_core.task import ShapePreset, Surroundings, Task
from infra.prediction.predictor import Predictor

nki_sim.install()
KERNEL = '''"""Rows, scaled and smoothed."""

import nki
import nki.isa as nisa
import nki.language as nl


def tile_of(source, rows):
    tile = nl.ndarray((128, source.shape[1]), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[rows * 128 : (rows + 1) * 128, :])
    return tile


@nki.jit
def kernel(x, y, factor, mode="silu"):
    M, N = x.shape
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    for m in range(M // 128):
        first = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=first, data1=tile_of(x, m), data2=tile_of(y, m), op=nl.add)
        scaled = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=scaled, data=first, op0=nl.multiply, operand0=factor)
        smooth = nl.ndarray((128, N), dtype=x.dtype, buffer=nl.sbuf)
        nisa.activation(dst=smooth, op=nl.silu, data=scaled)
        nisa.dma_copy(dst=out[m * 128 : (m + 1) * 128, :], src=smooth)
    return out
'''
RAGGED = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, y, factor):
    M, N = x.shape
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    for m in range(-(-M // 128)):
        n = min(128, M - m * 128)
        rows = slice(m * 128, m * 128 + n)
        first = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        second = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=first[0:n, :], src=x[rows, :])
        nisa.dma_copy(dst=second[0:n, :], src=y[rows, :])
        nisa.tensor_tensor(dst=first[0:n, :], data1=first[0:n, :], data2=second[0:n, :], op=nl.add)
        nisa.activation(dst=second[0:n, :], op=nl.silu, data=first[0:n, :], scale=factor)
        nisa.dma_copy(dst=out[rows, :], src=second[0:n, :])
    return out
"""
REFERENCE = """import numpy as np

M, N = 512, 512


def get_inputs():
    return [np.random.normal(size=(M, N)).astype(np.float32), np.random.normal(size=(M, N)).astype(np.float32)]


def forward(x, y):
    z = 0.5 * (x + y)
    return z / (1 + np.exp(-z))


def transform_to_nki_inputs(inputs):
    return [*inputs, 0.5]


def transform_nki_outputs(outputs, reference):
    return outputs
"""
TASK = Task(
    name="smooth",
    reference_source=REFERENCE,
    presets=(ShapePreset("small", (("M", 256), ("N", 256))), ShapePreset("full", (("M", 1024), ("N", 512)))),
)


@pytest.fixture(scope="module")
def trees() -> Iterator[Predictor]:
    with closing(Predictor(TASK, "trn2")) as made:
        yield made


def test_a_way_is_carried_out_to_the_very_kernel_that_was_priced(trees: Predictor) -> None:
    way = trees.way(KERNEL, Wanted())
    assert way.after_us < way.before_us
    assert way.steps[0].before_us == pytest.approx(way.before_us) and way.steps[-1].after_us == pytest.approx(
        way.after_us
    )
    assert trees.carried_out(KERNEL, [step.name for step in way.steps]) == way.source
    prices = trees([KERNEL, way.source])
    assert prices[KERNEL] == pytest.approx(way.before_us) and prices[way.source] == pytest.approx(way.after_us)
    assert trees.way(KERNEL, Wanted()) == way, "the same search again"


def test_what_is_written_holds_only_for_the_values_it_was_written_for(trees: Predictor) -> None:
    text = trees.way(KERNEL, Wanted()).source
    other = replace(TASK, reference_source=REFERENCE.replace("*inputs, 0.5]", "*inputs, 0.25]"))
    with closing(Predictor(other, "trn2")) as elsewhere:
        assert elsewhere([text])[text] is None and elsewhere([KERNEL])[KERNEL] is not None
    assert "factor == 0.5" in text and "mode == 'silu'" in text


def test_at_any_other_shape_the_result_is_the_same_or_refused(trees: Predictor) -> None:
    text = trees.way(KERNEL, Wanted()).source
    refused, random = 0, np.random.default_rng(0)
    for rows, columns in ((128, 256), (256, 256), (256, 512), (512, 256), (512, 768), (1024, 512), (384, 1024)):
        x, y = (random.normal(size=(rows, columns)).astype(np.float32) for _ in range(2))
        try:
            found = simulated(text, x, y, 0.5)
        except AssertionError:
            refused += 1
            continue
        np.testing.assert_array_equal(found, simulated(KERNEL, x, y, 0.5))
    assert refused < 6, "those that it was made at are not refused"


def simulated(source: str, *arguments: object) -> np.ndarray:
    names: dict[str, Any] = {"__name__": "kernel_of_a_test"}
    linecache.cache["<kernel>"] = (len(source), None, source.splitlines(True), "<kernel>")
    exec(compile(source, "<kernel>", "exec"), names)
    import nki

    return np.asarray(nki.simulate(names["kernel"])(*arguments))


def test_a_step_that_is_left_out_is_not_on_the_way(trees: Predictor) -> None:
    for step in trees.way(KERNEL, Wanted()).steps:
        other = trees.way(KERNEL, Wanted(excluded=frozenset({step.done})))
        assert step.done not in [each.done for each in other.steps]


def test_single_steps_are_priced_as_the_kernels_that_they_lead_to(trees: Predictor) -> None:
    found = trees.single_steps(KERNEL)
    assert found.latency_us == pytest.approx(trees([KERNEL])[KERNEL])
    gaining = sorted((step for step in found.steps if step.gain_us > 0), key=lambda step: -step.gain_us)[:3]
    made = {step.name: trees.carried_out(KERNEL, [step.name]) for step in gaining}
    prices = trees(list(made.values()))
    assert gaining and all(prices[made[step.name]] == pytest.approx(step.after_us) for step in gaining)
    assert not [refusal for refusal in found.refusals if FAULT in refusal.why]
    lines = len(KERNEL.splitlines())
    assert all(0 < line <= lines for step in found.steps for line in step.lines)
    assert len({step.name for step in found.steps}) == len(found.steps)


def test_a_step_that_is_not_there_is_refused_by_name(trees: Predictor) -> None:
    with pytest.raises(StepRefused, match="no rule is called 'magic'"):
        trees.carried_out(KERNEL, [StepName("magic", "0")])
    (rule, *_) = {step.name.rule for step in trees.single_steps(KERNEL).steps}
    with pytest.raises(StepRefused, match="no site '99'"):
        trees.carried_out(KERNEL, [StepName(rule, "99")])


@pytest.mark.parametrize("source", ["x = 1\n", "def kernel(:\n", KERNEL.replace("nl.silu", "nl.nothing")])
def test_what_does_not_trace_has_no_tree(trees: Predictor, source: str) -> None:
    for ask in (
        lambda: trees.single_steps(source),
        lambda: trees.way(source, Wanted()),
        lambda: trees.carried_out(source, [StepName("merge-iterations", "0")]),
    ):
        with pytest.raises(NoTree):
            ask()


def test_a_helper_in_another_file_is_read_as_one_of_the_same_file(trees: Predictor) -> None:
    before, _, rest = KERNEL.partition("def tile_of")
    body, _, after = rest.partition("@nki.jit")
    helper = f"import nki.isa as nisa\nimport nki.language as nl\n\n\ndef tile_of{body}"
    split = f"{before}from .tiles import tile_of\n\n\n@nki.jit{after}"
    around = Surroundings("kernel", "pack.rows", (("pack/__init__.py", ""), ("pack/tiles.py", helper)))
    with closing(Predictor(replace(TASK, around=around), "trn2")) as beside:
        there = beside.way(split, Wanted())
    here = trees.way(KERNEL, Wanted())
    assert there.after_us == pytest.approx(here.after_us)
    assert [step.name for step in there.steps] == [step.name for step in here.steps]


def test_where_only_some_shapes_end_in_a_part_of_a_tile_the_others_are_changed(trees: Predictor) -> None:
    """Those of the full shape's form, be it the one with the part or the one without."""
    random = np.random.default_rng(0)
    for sizes in ((200, 1024), (256, 1000)):
        presets = tuple(ShapePreset(f"M{rows}", (("M", rows), ("N", 512))) for rows in sizes)
        with closing(Predictor(replace(TASK, presets=presets), "trn2")) as beside:
            way = beside.way(RAGGED, Wanted(most_priced=60))
            was, now = beside.programs([RAGGED, way.source]).values()
        assert way.after_us < way.before_us and was[0] == now[0] and was[1] != now[1]
        for rows in (*sizes, 384):
            x, y = (random.normal(size=(rows, 512)).astype(np.float32) for _ in range(2))
            np.testing.assert_array_equal(simulated(way.source, x, y, 0.5), simulated(RAGGED, x, y, 0.5))
