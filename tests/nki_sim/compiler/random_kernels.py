"""Random kernels on the same few tiles, for comparing what they compute before and after the compiler's stage."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from nki_sim.program.program import Program
from tests.nki_sim.machine.traced_kernels import P, nisa, nl, tile, traced

COLUMNS = 64
TILE_BYTES = 4 * COLUMNS
"""Of a partition."""


def source() -> np.ndarray:
    """The input that every random kernel takes."""
    return np.random.default_rng(0).standard_normal((P, COLUMNS)).astype(np.float32)


def shared_tiles(seed: int, length: int, whole: float) -> Program:
    """Loads, memsets, sums, products and stores of some tiles that live long; `whole`: how often of all of a tile.

    Every tile is written before it is read, and all contribute to the result.
    """
    choose = random.Random(seed)

    def body(given: Any, result: Any) -> None:
        scratch = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.private_hbm)
        nisa.dma_copy(dst=scratch, src=given)
        tiles = [tile(COLUMNS) for _ in range(7)]
        for each in tiles:
            if choose.random() < 0.3:
                nisa.dma_copy(dst=each, src=given)
            else:
                nisa.memset(dst=each, value=choose.random())
        total = tile(COLUMNS, buffer=nl.psum)
        nisa.memset(dst=total, value=0.0)
        weights = tile(P)
        nisa.memset(dst=weights, value=0.01)

        def span() -> slice:
            start = choose.choice((0, 16, 32, 48))
            return slice(0, COLUMNS) if choose.random() < whole else slice(start, start + 16)

        def some() -> Any:
            return choose.choice(tiles)

        for _ in range(length):
            kind, here = choose.randrange(10), span()
            if kind == 0:
                tiles.append(tile(COLUMNS))
                nisa.dma_copy(dst=tiles[-1], src=given)
            elif kind == 1:
                nisa.dma_copy(dst=some()[:, here], src=given[:, here])
            elif kind == 2:
                nisa.dma_copy(dst=some()[:, here], src=scratch[:, here])
            elif kind == 3:
                nisa.dma_copy(dst=choose.choice((result, scratch))[:, here], src=some()[:, here])
            elif kind == 4:
                nisa.memset(dst=some()[:, here], value=choose.random())
            elif kind == 5:
                nisa.tensor_reduce(dst=(changed := some())[:, :1], op=nl.maximum, data=changed[:, here], axis=1)
            elif kind == 6:
                nisa.nc_matmul(dst=total, stationary=weights, moving=some())
                nisa.tensor_copy(dst=some(), src=total)
            else:
                nisa.tensor_tensor(dst=some()[:, here], data1=some()[:, here], data2=some()[:, here], op=nl.maximum)
        kept = tile(COLUMNS)
        nisa.dma_copy(dst=kept, src=scratch)
        for each in tiles:
            nisa.tensor_tensor(dst=kept, data1=kept, data2=each, op=nl.add)
        nisa.dma_copy(dst=result, src=kept)

    return traced(body, COLUMNS)


def rotating_tiles(seed: int) -> Program:
    """A loop that loads, computes and stores in fresh tiles, some of which several instructions write part by part."""
    choose = random.Random(seed)

    def body(given: Any, result: Any) -> None:
        kept = [tile(COLUMNS) for _ in range(2)]
        for each in kept:
            nisa.memset(dst=each, value=1.0)
        in_parts, also_narrow = choose.random() < 0.5, choose.random() < 0.3
        for _ in range(choose.randrange(1, 24)):
            loaded, squared = tile(COLUMNS), tile(COLUMNS)
            for start in range(0, COLUMNS, 16 if in_parts else COLUMNS):
                here = slice(start, start + (16 if in_parts else COLUMNS))
                nisa.dma_copy(dst=loaded[:, here], src=given[:, here])
            if choose.random() < 0.5:
                nisa.activation(dst=squared[:, :32], op=nl.square, data=loaded[:, :32])
                nisa.tensor_tensor(dst=squared[:, 32:], data1=loaded[:, 32:], data2=loaded[:, 32:], op=nl.multiply)
            else:
                nisa.activation(dst=squared, op=nl.square, data=loaded)
            if choose.random() < 0.3:
                nisa.memset(dst=tile(choose.choice((8, COLUMNS, 2 * COLUMNS))), value=0.0)
            if choose.random() < 0.3:
                nisa.tensor_tensor(dst=kept[0], data1=kept[1], data2=squared, op=nl.add)
            nisa.dma_copy(dst=result, src=squared)
            if also_narrow:
                narrow = tile(COLUMNS, partitions=32)
                nisa.dma_copy(dst=narrow, src=given[:32])
                nisa.dma_copy(dst=result[:32], src=narrow)

    return traced(body, COLUMNS)
