"""Which latencies rest on a contested fact: by the instructions that run, and by when they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from infra.calibration.constants import CONSTANTS
from infra.calibration.model import TimingModel
from nki_sim import dtypes
from nki_sim.machine import MACHINES, TRN2
from nki_sim.profile.profile import measure
from nki_sim.program.program import Program
from nki_sim.timing.calibration import calibrated_machine
from nki_sim.timing.contested import CONTESTED, contested
from nki_sim.timing.schedule import schedule
from tests.nki_sim.machine.traced_kernels import P, filled, instruction, nisa, nl, tile, traced

HALVES, TRANSPOSE = "half-array products side by side", "4-byte dma_transpose"


def facts(program: Program) -> tuple[str, ...]:
    return contested([schedule(program, TRN2)])


def products(places: Sequence[tuple[int, int]], size: tuple[int, int], waiting: bool = False) -> Program:
    """A product at each of these tiles of the array; `waiting`: each multiplies what the one before computed."""

    def body() -> None:
        left = filled(tile(P, nl.bfloat16))
        right = filled(tile(P, nl.bfloat16))
        for row, column in places:
            rows = slice(row, row + size[0])
            done = tile(P, buffer=nl.psum)
            nisa.nc_matmul(
                dst=done[column : column + size[1], :], stationary=left[rows, : size[1]], moving=right[rows, :],
                tile_position=(row, column), tile_size=size,
            )  # fmt: skip
            if waiting:
                nisa.tensor_copy(dst=right, src=done)

    return instruction(body)


def test_contested_are_the_facts_that_have_words_and_a_probe_on_every_machine() -> None:
    for core in MACHINES.values():
        assert {name for name, source in core.sources.items() if source.confidence == "contested"} == set(CONTESTED)
    assert set(CONTESTED) <= {each.name for each in CONSTANTS if each.beside is not None}


def test_halves_of_the_array_side_by_side_are_contested() -> None:
    assert facts(products([(0, 0), (64, 0)], (64, 128))) == (HALVES,)
    assert facts(products([(0, 0), (32, 0)], (32, 128))) == (HALVES,)


def test_halves_of_the_array_that_wait_for_each_other_are_not() -> None:
    """The same instructions: only when they run tells."""
    assert facts(products([(0, 0), (64, 0)], (64, 128), waiting=True)) == ()


def transposed(dtype: Any) -> Program:
    def body(source: Any, result: Any) -> None:
        turned = tile(P, dtype)
        nisa.dma_transpose(dst=turned, src=source[:, :P])
        nisa.dma_copy(dst=result[:, :P], src=turned)

    return traced(body, P, dtype)


def test_a_transpose_of_four_byte_elements_by_dma_is_contested() -> None:
    assert facts(transposed(dtypes.float32)) == (TRANSPOSE,)
    assert facts(transposed(dtypes.bfloat16)) == ()
    measured = measure(transposed(dtypes.float32))
    assert measured.contested == (TRANSPOSE,) and measured.rests_on[-1] == f"contested: {TRANSPOSE}"


class Measured:
    """A calibration that decided one of them."""

    machine, line, label = "trn2", "calibrated: by a test", "calibrated by a test"
    constants = (("dma_transpose_4byte_slowdown", 4.0),)


def test_a_calibration_that_decides_a_contested_fact_makes_it_a_measured_one() -> None:
    core = calibrated_machine("trn2", Measured())
    assert core.sources["dma_transpose_4byte_slowdown"].confidence == "measured"
    assert core.sources["tensor_tile_slowdown"].confidence == "contested"
    assert contested([schedule(transposed(dtypes.float32), core)]) == ()


@pytest.mark.parametrize("name", CONTESTED)
def test_its_two_probes_decide_it(name: str) -> None:
    """Beside the kernel that rests on it stands one that does not, and the difference follows the fact."""
    (constant,) = (each for each in CONSTANTS if each.name == name)
    model = TimingModel("trn2", constant.kernels, (constant,))
    shown, beside = (model.programs[kernel.name] for kernel in constant.kernels)
    assert facts(shown) == (CONTESTED[name][0],) and facts(beside) == ()
    shipped = getattr(TRN2, name)

    def difference(value: float) -> float:
        core = replace(TRN2, **{name: value})
        return schedule(shown, core).latency_us - schedule(beside, core).latency_us

    more = [difference(factor * shipped) for factor in (1.0, 1.5, 2.0)]
    assert more[2] - more[1] == pytest.approx(more[1] - more[0], rel=0.05) and more[1] - more[0] > 5
