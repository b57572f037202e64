"""Run one instruction on views of tiles, and compare whole buffers with what NumPy says.

A tile is a base array and a view of it; the same view is taken of the NumPy base and of the tensor on the
device. Destinations are filled with known values first, so a write outside the view shows as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

import nki_sim
from nki_sim.encoding import program_file
from nki_sim.execution.executor import execute
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl

FLOATS = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
INTS = {
    "int32": np.int32,
    "uint32": np.uint32,
    "int16": np.int16,
    "uint16": np.uint16,
    "int8": np.int8,
    "uint8": np.uint8,
}
DTYPES = {**FLOATS, **INTS}
EPS = {"float32": 2e-6, "bfloat16": 2**-7, "float16": 2**-10}
VIEWS = ("whole", "offset", "strided", "permuted")


@dataclass(frozen=True)
class Tile:
    """What an operand looks like: partitions, free shape, dtype, view, memory, and a seed for its contents."""

    partitions: int
    free: tuple[int, ...]
    dtype: str
    view: str = "whole"
    psum: bool = False
    seed: int = 0
    low: float = -3.0
    high: float = 3.0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.partitions, *self.free)

    @property
    def size(self) -> int:
        return prod(self.free)

    def base(self) -> np.ndarray:
        *outer, last = self.free
        shape = {
            "whole": self.shape,
            "offset": (self.partitions, *outer, last + 3),
            "strided": (self.partitions, *outer, 2 * last),
            "permuted": (self.partitions, last, *outer),
        }[self.view]
        random = np.random.default_rng(self.seed)
        numbers = random.uniform(self.low, self.high, shape)
        kind = DTYPES[self.dtype]
        if self.dtype in INTS:
            info = np.iinfo(kind)
            return random.integers(max(info.min, int(self.low)), min(info.max, int(self.high)) + 1, shape).astype(kind)
        return numbers.astype(np.float32).astype(kind)

    def of(self, base: Any) -> Any:
        """The view of a NumPy base or of a tensor on the device."""
        last = self.free[-1]
        if self.view == "offset":
            return base[..., 2 : 2 + last]
        if self.view == "strided":
            return base[..., 0 : 2 * last : 2]
        if self.view == "permuted":
            order = (0, *range(2, len(self.shape)), 1)
            return base.transpose(order) if isinstance(base, np.ndarray) else base.permute(order)
        return base

    def values(self) -> np.ndarray:
        """The operand as NumPy sees it, contiguous."""
        return np.ascontiguousarray(self.of(self.base()))

    def values64(self) -> np.ndarray:
        return self.values().astype(np.float64)


def run(body: Callable[..., Any], inputs: list[Tile], outputs: list[Tile]) -> list[np.ndarray]:
    """The output bases after `body(*output views, *input views)` ran on the device.

    The kernel runs twice: as Python, and as a program that went through a file. Both must agree bit by bit.
    """

    def kernel(*arrays: Any) -> Any:
        tensors = []
        for array, tile in zip(arrays, [*outputs, *inputs]):
            on_chip = nl.ndarray(array.shape, array.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=on_chip, src=array)
            if tile.psum:
                in_psum = nl.ndarray(array.shape, array.dtype, buffer=nl.psum)
                nisa.tensor_copy(dst=in_psum, src=on_chip)
                on_chip = in_psum
            tensors.append(on_chip)
        body(*[tile.of(tensor) for tile, tensor in zip([*outputs, *inputs], tensors)])
        results = []
        for array, tile, tensor in zip(arrays, outputs, tensors):
            if tile.psum:
                copy = nl.ndarray(array.shape, array.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=copy, src=tensor)
                tensor = copy
            result = nl.ndarray(array.shape, array.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=result, src=tensor)
            results.append(result)
        return tuple(results)

    arrays = [tile.base() for tile in [*outputs, *inputs]]
    results = list(nki_sim.simulate(kernel)(*arrays))
    stored = program_file.loads(program_file.dumps(nki_sim.trace(kernel, *arrays)))
    for result, again in zip(results, execute(stored, arrays)):
        np.testing.assert_array_equal(
            result.view(np.uint8), again.view(np.uint8), "the stored program computes something else"
        )
    return results


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float results as the device stores them: to nearest even; integers saturate."""
    kind = DTYPES[dtype]
    if dtype in INTS:
        info = np.iinfo(kind)
        return np.clip(np.rint(values.astype(np.float64)), info.min, info.max).astype(kind)
    return values.astype(np.float32).astype(kind)


def check(
    body: Callable[..., Any],
    inputs: list[Tile],
    outputs: list[Tile],
    expected: list[np.ndarray],
    *,
    tolerance: float | None = None,
    exact: bool = False,
) -> None:
    """Given operands, when the instruction runs, then each output view holds `expected` and nothing else changed."""
    results = run(body, inputs, outputs)
    for tile, result, want in zip(outputs, results, expected):
        untouched = np.ones(result.shape, np.bool_)
        tile.of(untouched)[...] = False
        np.testing.assert_array_equal(
            result[untouched].astype(np.float64), tile.base()[untouched].astype(np.float64), "written outside the view"
        )
        got = np.ascontiguousarray(tile.of(result)).reshape(want.shape)
        if exact:
            np.testing.assert_array_equal(got, want.astype(got.dtype))
        elif tile.dtype in INTS:
            off_by = np.abs(got.astype(np.float64) - rounded(want, tile.dtype).astype(np.float64))
            assert off_by.max(initial=0) <= 1, f"integers differ by {off_by.max()}"
        else:
            limit = tolerance or EPS[tile.dtype]
            stored = rounded(want, tile.dtype).astype(np.float64)
            np.testing.assert_allclose(got.astype(np.float64), stored, rtol=limit, atol=limit)


def free_shapes(most: int = 48, ndim: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    sizes = st.integers(1, 7)
    return st.one_of(st.tuples(st.integers(1, most)), *[st.tuples(*[sizes] * n) for n in range(2, ndim + 1)])


@st.composite
def tiles(
    draw: st.DrawFn,
    partitions: int,
    free: tuple[int, ...],
    dtypes: Any = tuple(FLOATS),
    psum: bool | None = None,
    views: tuple[str, ...] = VIEWS,
    low: float = -3.0,
    high: float = 3.0,
) -> Tile:
    in_psum = draw(st.booleans()) if psum is None else psum
    dtype = draw(st.sampled_from(tuple(dtypes)))
    view = draw(st.sampled_from(views))
    return Tile(partitions, free, dtype, view, in_psum, draw(st.integers(0, 2**31)), low, high)


def column(partitions: int, seed: int, low: float = -3.0, high: float = 3.0, dtype: str = "float32") -> Tile:
    """A [P, 1] operand."""
    return Tile(partitions, (1,), dtype, "whole", False, seed, low, high)


def along(values: np.ndarray, ndim: int) -> np.ndarray:
    """A [P, 1] array shaped to broadcast over `ndim` - 1 free dimensions."""
    return values.astype(np.float64).reshape((values.shape[0],) + (1,) * (ndim - 1))
