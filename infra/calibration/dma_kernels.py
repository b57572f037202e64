"""Kernels that tell what a transfer costs: issuing it, its latency, its rows, its bytes.

Each does one thing `repeats` times; the first does nothing, which every kernel pays besides.
"""

from __future__ import annotations

from infra.calibration.kernel import CalibrationKernel, kernel_of

SYNC = "engine=nisa.engine.sync, dge_mode=nisa.dge_mode.hwdge"
SCALAR = "engine=nisa.engine.scalar, dge_mode=nisa.dge_mode.hwdge"
GPSIMD = "engine=nisa.engine.gpsimd, dge_mode=nisa.dge_mode.swdge"

_SAME = "return x"

_HOPS = '''\
@nki.jit
def kernel(x):
    """A tile goes from one place of SBUF to another and back: each transfer waits for the one before, and for nothing
    else, since two queues take turns.
    """
    out = nl.ndarray(($rows, $columns), dtype=x.dtype, buffer=nl.shared_hbm)
    here = nl.ndarray(($rows, $columns), dtype=x.dtype, buffer=nl.sbuf)
    there = nl.ndarray(($rows, $columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=x, $queue)
    for _ in range($repeats // 2):
        nisa.dma_copy(dst=there, src=here, $queue)
        nisa.dma_copy(dst=here, src=there, $other_queue)
    nisa.dma_copy(dst=out, src=here, $queue)
    return out
'''

_ONE_TILE = '''\
@nki.jit
def kernel(x):
    """All through one tile: a load waits until the store before has read it, which needs no completion."""
    out = nl.ndarray((P, $width), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((P, $columns), dtype=x.dtype, buffer=nl.sbuf)
    for i in range($repeats):
        nisa.dma_copy(dst=tile, src=x[:, i * $columns : (i + 1) * $columns], $queue)
        nisa.dma_copy(dst=out[:, i * $columns : (i + 1) * $columns], src=tile, $other_queue)
    return out
'''

_LOADS = '''\
@nki.jit
def kernel(x):
    """Loads that do not wait for each other, all on one queue; one store of them all."""
    out = nl.ndarray((P, $width), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((P, $width), dtype=x.dtype, buffer=nl.sbuf)
    for i in range($repeats):
        nisa.dma_copy(
            dst=tile[:, i * $columns : (i + 1) * $columns], src=x[:, i * $columns : (i + 1) * $columns], $queue
        )
    nisa.dma_copy(dst=out, src=tile, $queue)
    return out
'''

_SHORT_ROWS = '''\
@nki.jit
def kernel(x):
    """Every other pair of numbers: rows of 8 bytes, and so many that nothing else counts."""
    out = nl.ndarray((P, $width), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((P, $pairs, 2), dtype=x.dtype, buffer=nl.sbuf)
    pairs = x.reshape((P, $pairs, 4))
    for i in range($repeats):
        nisa.dma_copy(
            dst=tile[:, i * $each : (i + 1) * $each, :], src=pairs[:, i * $each : (i + 1) * $each, 0:2], $queue
        )
    nisa.dma_copy(dst=out, src=tile.reshape((P, $width)), $queue)
    return out
'''


def _hops(name: str, title: str, rows: int, repeats: int) -> CalibrationKernel:
    return kernel_of(
        name, title, _HOPS, shapes=((rows, 64),), result=_SAME,
        repeats=repeats, rows=rows, columns=64,
        queue=SYNC, other_queue=SCALAR,
    )  # fmt: skip


def _through_sbuf(name: str, title: str, body: str, queue: str, repeats: int, columns: int) -> CalibrationKernel:
    width = repeats * columns
    return kernel_of(
        name, title, body, shapes=((128, width),), result=_SAME,
        repeats=repeats, columns=columns, width=width, queue=queue, other_queue=SCALAR,
    )  # fmt: skip


def _short_rows(repeats: int, each: int) -> CalibrationKernel:
    pairs = repeats * each
    return kernel_of(
        "short rows", "Loads of 8-byte rows", _SHORT_ROWS, shapes=((128, 4 * pairs),),
        result="return x.reshape(128, -1, 4)[:, :, 0:2].reshape(128, -1)",
        repeats=repeats, each=each, pairs=pairs, width=2 * pairs, queue=SYNC,
    )  # fmt: skip


NOTHING = _hops("nothing", "A small tile in and out again: what every kernel pays", 128, 0)
HOPS = _hops("hops", "Small transfers that wait for each other, on all DMA engines", 128, 24)
NARROW_HOPS = _hops("narrow hops", "The same within one partition, so on one DMA engine", 1, 24)
ONE_TILE = _through_sbuf("one tile", "Loads and stores that share one tile", _ONE_TILE, SYNC, 12, 64)
SYNC_LOADS = _through_sbuf("loads on sync", "Small loads, descriptors made by hardware", _LOADS, SYNC, 48, 64)
SCALAR_LOADS = _through_sbuf("loads on scalar", "The same on Scalar's queue", _LOADS, SCALAR, 48, 64)
GPSIMD_LOADS = _through_sbuf("loads on gpsimd", "The same with software descriptors", _LOADS, GPSIMD, 48, 64)
WIDE_LOADS = _through_sbuf("wide loads", "Loads of 16 KiB rows: the DMA engines' rate", _LOADS, SYNC, 8, 4096)
SHORT_ROWS = _short_rows(8, 64)
