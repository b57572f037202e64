"""The search over rules: the same kernel in other words has the same way, and a step that gains nothing is no end."""

from __future__ import annotations

import types
from functools import partial

import numpy as np
import pytest

import nki_sim
from accelopt_core.catalogue.search import FAULT, Limits, Search, SimulatedPrices
from accelopt_core.rules.registry import RULES
from infra.prediction.trees import mapped
from nki_sim.dtypes import float32
from nki_sim.encoding.canonical import digest
from nki_sim.execution.executor import execute
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.reading import read
from nki_sim.loop_ir.source import KernelText
from nki_sim.loop_ir.tree import LoopKernel
from nki_sim.loop_ir.writing import written
from nki_sim.machine import TRN2
from nki_sim.program.program import Program
from nki_sim.tracing import repeated
from nki_sim.tracing.session import TensorSpec

HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl
"""
BY_INSTRUCTIONS = f"""{HEAD}
@nki.jit
def kernel(x, w):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(x.shape[0] // 128):
        weights = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=weights, src=w)
        rows = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x[i * 128 : (i + 1) * 128, :])
        scaled = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=scaled, data1=rows, data2=weights, op=nl.multiply)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=scaled)
    return out
"""
BY_LANGUAGE = f"""{HEAD}
@nki.jit
def kernel(x, w):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(x.shape[0] // 128):
        weights = nl.load(w)
        nl.store(out[i * 128 : (i + 1) * 128, :], value=nl.multiply(nl.load(x[i * 128 : (i + 1) * 128, :]), weights))
    return out
"""
BY_HELPERS = f"""{HEAD}
class Rows:
    def __init__(self, tensor):
        self.tensor = tensor

    def of(self, i):
        return self.tensor[i * 128 : (i + 1) * 128, :]


def loaded(view):
    tile = nl.ndarray(view.shape, dtype=view.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=view)
    return tile


@nki.jit
def kernel(x, w):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source, target = Rows(x), Rows(out)
    for i in [n for n in range(x.shape[0] // 128)]:
        weights, rows = [loaded(view) for view in (w, source.of(i))]
        scaled = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=scaled, data1=rows, data2=weights, op=nl.multiply)
        nisa.dma_copy(dst=target.of(i), src=scaled)
    return out
"""
SHAPES = ((512, 512), (128, 512))


def traced(source: str, shapes: tuple[tuple[int, ...], ...]) -> Program:
    nki_sim.install()
    module = types.ModuleType("candidate")
    exec(repeated.compiled(source, "kernel_of_a_test.py", module.__dict__), module.__dict__)
    return nki_sim.trace(module.kernel, *(TensorSpec(shape, float32) for shape in shapes), machine="trn2")


def tree(source: str, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> LoopKernel:
    return read(traced(source, shapes))


def searched(source: str, processes: int = 1) -> tuple[Search, list[str], LoopKernel, float]:
    search = Search(RULES, SimulatedPrices(TRN2), Limits(most_priced=60), mapped=partial(mapped, processes))
    found = search.best([tree(source)])
    assert not [why for why in search.refusals.values() if FAULT in why]
    return search, [step.site.rule for step in found.path], found.kernels[0], found.price.latency_us


@pytest.mark.parametrize("other", [BY_LANGUAGE, BY_HELPERS], ids=["language", "helpers"])
def test_one_program_in_other_words_has_one_tree_one_way_and_one_time(other: str) -> None:
    assert digest(expand(tree(BY_INSTRUCTIONS))) == digest(expand(tree(other)))
    (_, steps, _, us), (_, other_steps, _, other_us) = searched(BY_INSTRUCTIONS), searched(other)
    assert steps == other_steps and us == other_us
    assert steps


def test_what_is_found_computes_the_same_and_is_written_for_every_shape() -> None:
    shapes = [((512, 512), (128, 512)), ((1024, 512), (128, 512))]
    kernels = [tree(BY_INSTRUCTIONS, each) for each in shapes]
    found = Search(RULES, SimulatedPrices(TRN2), Limits(most_priced=60)).best(kernels)
    text = written(found.kernels, KernelText(BY_INSTRUCTIONS, "kernel"))
    for each, kernel in zip(shapes, found.kernels):
        program = expand(kernel)
        assert digest(traced(text, each)) == digest(program)
        arrays = [np.random.default_rng(1).normal(size=shape).astype(np.float32) for shape in each]
        (result,) = execute(program, arrays)
        assert np.array_equal(result, arrays[0] * np.tile(arrays[1], (each[0][0] // 128, 1)))


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_search_is_bounded_by_states_and_the_same_every_time(processes: int) -> None:
    search, steps, kernel, us = searched(BY_INSTRUCTIONS)
    again, steps_again, kernel_again, us_again = searched(BY_INSTRUCTIONS, processes)
    assert search.refusals == again.refusals
    assert search.priced == again.priced <= 60 + len(steps) ** 2
    assert (steps, us, digest(expand(kernel))) == (steps_again, us_again, digest(expand(kernel_again)))
