"""Kernels as NKI 0.7 teaches them, written anew: scalars, device loops, tiles, plain Python; and configurations."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import nki_sim
from nki_sim.errors import NkiValidationError
from nki_sim.execution.executor import execute
from nki_sim.lint import check_source
from nki_sim.nki import isa as nisa
from nki_sim.nki import jit, simulate
from nki_sim.nki import language as nl
from nki_sim.nki.compiler import AddressRotation, CompileConfig, SpecializationConfig

nki_sim.install()

HEAD = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n\n"

ROW_BY_NUMBER = """
@nki.jit
def kernel(table, number):
    '''The row 2 n + 1, where n is known on the device only.'''
    rows, width = table.shape
    out = nl.ndarray((1, width), table.dtype, buffer=nl.shared_hbm)
    n = nisa.scalar_load(number)
    row = table.ap([[width, 1], [1, width]], scalar_offset=2 * n + 1, indirect_dim=0)
    nisa.dma_copy(dst=out, src=row)
    return out
"""


SUM_OF_ROWS = """
@nki.jit
def kernel(table, count):
    '''The sum of the first rows, as many as the device is told.'''
    rows, width = table.shape
    out = nl.ndarray((1, width), table.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((1, width), table.dtype)
    nisa.memset(total, value=0.0)

    def add_row(i):
        row = nl.ndarray((1, width), table.dtype)
        nisa.dma_copy(dst=row, src=table.select(0, i).reshape((1, width)))
        nisa.tensor_tensor(dst=total, data1=total, data2=row, op=nl.add)

    nl.fori_loop(0, nisa.scalar_load(count), add_row)
    nisa.dma_copy(dst=out, src=total)
    return out
"""


ADD_IN_TILES = """
TILE = (128, 512)


@nki.jit
def kernel(a, b):
    '''Sizes that tiles do not divide need no min().'''
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    left, right, result = (nl.tiles(t, tile_shape=TILE) for t in (a, b, out))
    rows, columns = result.shape
    for i in range(rows):
        for j in range(columns):
            x, y = nl.load(left[i, j].data), nl.load(right[i, j].data)
            nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)
            nisa.dma_copy(dst=result[i, j].data, src=x)
    return out
"""

ROW_SUMS_IN_BLOCKS = """
@nki.jit
def kernel(a):
    '''One transfer for each block of a row of tiles, then the tiles of the block one by one.'''
    out = nl.ndarray((a.shape[0], 1), a.dtype, buffer=nl.shared_hbm)
    sums = nl.tiles(out, tile_shape=(64, 1))
    source = nl.blocks(a, tile_shape=(64, 32), block_shape=(1, 4))
    held = nl.alloc_blocks(
        tile_shape=(64, 32), block_shape=(1, 4), element_shape=a.shape, buffer=nl.sbuf, dtype=a.dtype
    )
    for i in range(source.shape[0]):
        total = nl.zeros(sums[i, 0].element_shape, a.dtype)
        for j in range(source.shape[1]):
            block = held[i, j]
            assert block.is_data_representable
            nisa.dma_copy(dst=block.data, src=source[i, j].data)
            tiles = nl.tiles(block)
            for k in range(tiles.shape[1]):
                part = nl.ndarray(total.shape, a.dtype)
                nisa.tensor_reduce(dst=part, op=nl.add, data=tiles[0, k].data, axis=1)
                nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
        nisa.dma_copy(dst=sums[i, 0].data, src=total)
    return out
"""

PLAIN_PYTHON = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Scaling:
    factor: float = 2.0


class Halving(Scaling):
    def __init__(self):
        super().__init__(0.5)


def tiles_of(rows, size=128):
    for start in range(0, rows, size):
        yield start, min(size, rows - start)


@nki.jit
def scaled(tile, scaling):
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=scaling.factor)


@nki.jit
def kernel(a):
    '''Generators, classes, comprehensions, a nested kernel: what runs as Python is a kernel.'''
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    steps = {(kind.__name__,): kind() for kind in (Scaling, Halving, Halving)}
    for start, count in tiles_of(a.shape[0]):
        tile = nl.load(a[start : start + count, :])
        for scaling in steps.values():
            scaled(tile, scaling)
        nisa.dma_copy(dst=out[start : start + count, :], src=tile)
    return out
"""

RNG = np.random.default_rng(7)
TABLE = RNG.integers(-9, 9, (11, 6)).astype(np.float32)
WIDE_A, WIDE_B = (RNG.integers(-9, 9, (200, 700)).astype(np.float32) for _ in range(2))
NARROW = RNG.integers(-9, 9, (150, 300)).astype(np.float32)


def number(value: int, dtype: type[Any] = np.int32) -> np.ndarray:
    return np.array([[value]], dtype)


EXAMPLES: dict[str, tuple[str, list[np.ndarray], np.ndarray]] = {
    "a row by its number": (ROW_BY_NUMBER, [TABLE, number(4)], TABLE[9:10]),
    "a row by a 64-bit number": (ROW_BY_NUMBER, [TABLE, number(2, np.int64)], TABLE[5:6]),
    "a sum of so many rows": (SUM_OF_ROWS, [TABLE, number(7)], TABLE[:7].sum(0, keepdims=True)),
    "a sum of no rows": (SUM_OF_ROWS, [TABLE, number(0)], np.zeros((1, 6), np.float32)),
    "a sum in tiles": (ADD_IN_TILES, [WIDE_A, WIDE_B], WIDE_A + WIDE_B),
    "row sums in blocks": (ROW_SUMS_IN_BLOCKS, [NARROW], NARROW.sum(1, keepdims=True)),
    "plain Python": (PLAIN_PYTHON, [WIDE_A], WIDE_A),
}  # fmt: skip


@pytest.mark.parametrize("text, arrays, wanted", EXAMPLES.values(), ids=EXAMPLES)
def test_it_is_valid_and_right(text: str, arrays: list[np.ndarray], wanted: np.ndarray) -> None:
    import nki

    module = types.ModuleType("example")
    exec(compile(HEAD + text, "example.py", "exec", dont_inherit=True), module.__dict__)

    assert check_source(HEAD + text, "0.7") == []
    np.testing.assert_array_equal(nki.simulate(module.kernel)(*arrays), wanted)
    (executed,) = execute(nki_sim.trace(module.kernel, *arrays), arrays)
    np.testing.assert_array_equal(executed, wanted)


ARRAY = np.arange(32, dtype=np.float32).reshape(4, 8)


def moved(a: Any) -> Any:
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=a)
    return out


def cores_seen(a: Any) -> Any:
    """Each core writes its row, and how many there are."""
    out = nl.ndarray((2, 1), nl.float32, buffer=nl.shared_hbm)
    tile = nl.full((1, 1), nl.num_programs(0), nl.float32)
    for row in range(2) if nl.num_programs(0) == 1 else [nl.program_id(0)]:
        nisa.dma_copy(dst=out[row : row + 1, :], src=tile)
    return out


def test_a_configured_kernel_computes_the_same() -> None:
    config = CompileConfig(address_rotation=AddressRotation.DISABLE, barrier_check=True, prefetch_auto=True)
    kernel = jit(compile_config=config, specialization_config=SpecializationConfig())(moved)
    assert (kernel.compile_config, kernel.specialization_config) == (config, SpecializationConfig())
    assert kernel[1].compile_config is config and kernel.with_schedule([]).compile_config is config
    np.testing.assert_array_equal(kernel(ARRAY), ARRAY)
    np.testing.assert_array_equal(jit(jit(moved), compile_config=config)(ARRAY), ARRAY)


OTHER = CompileConfig(barrier_check=True)


@pytest.mark.parametrize(
    ("outer", "inner", "agrees"),
    [
        (None, None, True),
        (OTHER, OTHER, True),
        (OTHER, None, True),
        (None, CompileConfig(), True),
        (None, OTHER, False),
    ],
)
def test_a_nested_kernel_is_inlined_where_configurations_agree(outer: Any, inner: Any, agrees: bool) -> None:
    called = jit(moved, compile_config=inner)
    kernel = jit(lambda a: called(a), compile_config=outer)
    if agrees:
        np.testing.assert_array_equal(kernel(ARRAY), ARRAY)
    else:
        with pytest.raises(NkiValidationError, match="moved is called in a kernel with another compile_config"):
            kernel(ARRAY)


def test_a_differing_nested_configuration_can_be_allowed() -> None:
    called = jit(moved, compile_config=OTHER)
    kernel = jit(lambda a: called(a), specialization_config=SpecializationConfig(allow_nested_config_override=True))
    with pytest.warns(UserWarning, match="under the outer one's"):
        np.testing.assert_array_equal(kernel(ARRAY), ARRAY)


def test_the_environment_gives_the_degree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEURON_CC_FLAGS", raising=False)
    kernel = jit(cores_seen)
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    assert kernel(ARRAY)[0, 0] == 1 and kernel[2](ARRAY)[1, 0] == 2
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert kernel(ARRAY)[1, 0] == 2 and simulate(kernel)(ARRAY)[1, 0] == 2
    monkeypatch.setenv("NEURON_CC_FLAGS", "--lnc=2 -O1")
    assert kernel[2](ARRAY)[0, 0] == 2


@pytest.mark.parametrize(
    ("degree", "flags", "brackets"),
    [("2", "", 1), ("1", "", 2), ("", "--lnc 2", None), ("1", "--logical-nc-config=2", None), ("", "--lnc=1", 2)],
)
def test_degrees_that_differ_are_refused_as_by_the_compiler(degree, flags, brackets, monkeypatch) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", degree)
    monkeypatch.setenv("NEURON_CC_FLAGS", flags)
    kernel = jit(moved)
    with pytest.raises(NkiValidationError, match=r"NKI kernel 'moved' is configured with LNC=\d, .*NCC_EVRF066"):
        (kernel if brackets is None else kernel[brackets])(ARRAY)
