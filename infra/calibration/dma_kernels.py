"""Kernels that tell what a transfer costs: issuing it, its latency, its rows, its bytes.

Each does one thing `repeats` times; the first does nothing, which every kernel pays besides.
"""

from __future__ import annotations

from infra.calibration.kernel import CalibrationKernel, kernel_of

SYNC = "engine=nisa.engine.sync, dge_mode=nisa.dge_mode.hwdge"
SCALAR = "engine=nisa.engine.scalar, dge_mode=nisa.dge_mode.hwdge"
GPSIMD = "engine=nisa.engine.gpsimd, dge_mode=nisa.dge_mode.swdge"
PREPARED = "engine=nisa.engine.sync, dge_mode=nisa.dge_mode.none"
PREPARED_ON_SCALAR = "engine=nisa.engine.scalar, dge_mode=nisa.dge_mode.none"

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
    """All through one tile: a load waits until the store before has read it, which needs no completion.

    A column stays empty: a tile that is filled as a whole would be a new one, and wait for nothing.
    """
    out = nl.ndarray((P, $width), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((P, $columns + 1), dtype=x.dtype, buffer=nl.sbuf)
    for i in range($repeats):
        nisa.dma_copy(dst=tile[:, :$columns], src=x[:, i * $columns : (i + 1) * $columns], $queue)
        nisa.dma_copy(dst=out[:, i * $columns : (i + 1) * $columns], src=tile[:, :$columns], $other_queue)
    return out
'''

_LOADS = '''\
@nki.jit
def kernel(x):
    """Loads that do not wait for each other, all on one queue; one store of them all."""
    out = nl.ndarray(($rows, $width), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(($rows, $width), dtype=x.dtype, buffer=nl.sbuf)
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


_AGAIN = '''\
@nki.jit
def kernel(x):
    """The same slow load again and again, small tiles in between: a compiler that remembers one leaves the next out."""
    out = nl.ndarray((P, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((P, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    singles = x.reshape((P, $columns, 2))
    for _ in range($repeats):
        again = nl.ndarray((P, $columns, 1), dtype=x.dtype, buffer=nl.sbuf)
        between = nl.ndarray((P, $columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=again, src=singles[:, :, 0:1], $queue)
        nisa.tensor_copy(
            dst=between[:, 0:64], src=again.reshape((P, $columns))[:, 0:64], engine=nisa.engine.vector
        )
        nisa.tensor_tensor(dst=total, data1=total, data2=between[:, 0:64], op=nl.add, engine=nisa.engine.vector)
    nisa.dma_copy(dst=out, src=total, $queue)
    return out
'''

_MANY = '''\
@nki.jit
def kernel(x):
    """More tiles at once than SBUF has room for: the compiler moves those out that are needed last, and back."""
    out = nl.ndarray((P, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((P, 64), dtype=x.dtype, buffer=nl.sbuf)
    first = nl.ndarray((P, $columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    nisa.dma_copy(dst=first, src=x, $queue)
    tiles = []
    for i in range($repeats):
        tile = nl.ndarray((P, $columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=tile, data=first, op0=nl.multiply, operand0=$repeats - i, engine=nisa.engine.vector)
        tiles.append(tile)
    for i in range($repeats):
        nisa.tensor_tensor(dst=total, data1=total, data2=tiles[i][:, 0:64], op=nl.add, engine=nisa.engine.vector)
    nisa.dma_copy(dst=out, src=total, $queue)
    return out
'''

_TURNED = '''\
@nki.jit
def kernel(x):
    """Four bytes an element, rows and columns exchanged on the way in."""
    out = nl.ndarray((P, $repeats * $rows), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((P, $repeats * $rows), dtype=x.dtype, buffer=nl.sbuf)
    for i in range($repeats):
        nisa.dma_transpose(dst=tile[:, i * $rows : (i + 1) * $rows], src=x[i * $rows : (i + 1) * $rows, :])
    nisa.dma_copy(dst=out, src=tile, $queue)
    return out
'''
_NOT_TURNED = '''\
@nki.jit
def kernel(x):
    """The same bytes by transfers that leave them as they are."""
    out = nl.ndarray((P, $repeats * $rows), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((P, $repeats * $rows), dtype=x.dtype, buffer=nl.sbuf)
    given = x.reshape((P, $repeats * $rows))
    for i in range($repeats):
        nisa.dma_copy(dst=tile[:, i * $rows : (i + 1) * $rows], src=given[:, i * $rows : (i + 1) * $rows])
    nisa.dma_copy(dst=out, src=tile, $queue)
    return out
'''


def _turned(name: str, title: str, body: str, result: str) -> CalibrationKernel:
    return kernel_of(
        name, title, body, shapes=((8 * 2048, 128),), result=result, repeats=8, rows=2048, queue=SYNC
    )  # fmt: skip


def _hops(
    name: str, title: str, repeats: int, columns: int, queue: str = SYNC, other_queue: str = SCALAR, rows: int = 128
) -> CalibrationKernel:
    """As wide as it takes for a transfer to outlast the time in which its queue issues the next but one."""
    return kernel_of(
        name, title, _HOPS, shapes=((rows, columns),), result=_SAME,
        repeats=repeats, rows=rows, columns=columns, queue=queue, other_queue=other_queue,
    )  # fmt: skip


def _through_sbuf(
    name: str, title: str, body: str, queue: str, repeats: int, columns: int, rows: int = 128
) -> CalibrationKernel:
    width = repeats * columns
    return kernel_of(
        name, title, body, shapes=((rows, width),), result=_SAME,
        repeats=repeats, columns=columns, width=width, rows=rows, queue=queue, other_queue=SCALAR,
    )  # fmt: skip


def _short_rows(repeats: int, each: int) -> CalibrationKernel:
    pairs = repeats * each
    return kernel_of(
        "short rows", "Loads of 8-byte rows", _SHORT_ROWS, shapes=((128, 4 * pairs),),
        result="return x.reshape(128, -1, 4)[:, :, 0:2].reshape(128, -1)",
        repeats=repeats, each=each, pairs=pairs, width=2 * pairs, queue=SYNC,
    )  # fmt: skip


NOTHING = _hops("nothing", "A small tile in and out again: what every kernel pays", 0, 64)
HOPS = _hops("hops", "Small transfers that wait for each other, on all DMA engines", 40, 256)
NARROW_HOPS = _hops("narrow hops", "The same within one partition, so on one DMA engine", 48, 4096, rows=1)
GPSIMD_HOPS = _hops("hops on gpsimd", "The same with software descriptors", 24, 1024, GPSIMD, GPSIMD)
PREPARED_HOPS = _hops("prepared hops", "The same, descriptors left in memory", 32, 256, PREPARED, PREPARED_ON_SCALAR)
ONE_TILE = _through_sbuf("one tile", "Loads and stores that share one tile", _ONE_TILE, SYNC, 24, 512)
SYNC_LOADS = _through_sbuf("loads on sync", "Small loads, descriptors made by hardware", _LOADS, SYNC, 96, 64)
SCALAR_LOADS = _through_sbuf("loads on scalar", "The same on Scalar's queue", _LOADS, SCALAR, 96, 64)
GPSIMD_LOADS = _through_sbuf("loads on gpsimd", "The same with software descriptors", _LOADS, GPSIMD, 96, 64)
ONE_ROW = _through_sbuf("rows on gpsimd", "Software descriptors, one each", _LOADS, GPSIMD, 256, 64, rows=1)
PREPARED_LOADS = _through_sbuf(
    "prepared loads", "Loads of a row, descriptors left in memory", _LOADS, PREPARED, 384, 16, rows=1
)
WIDE_LOADS = _through_sbuf("wide loads", "Loads of 16 KiB rows: the DMA engines' rate", _LOADS, SYNC, 8, 4096)
SHORT_ROWS = _short_rows(12, 64)
RELOADS = kernel_of(
    "loads again", "A slow load repeated: which of them the compiler leaves out", _AGAIN, shapes=((128, 2 * 512),),
    result="return $repeats * x.reshape(128, $columns, 2)[:, :64, 0]", repeats=256, columns=512, queue=SYNC,
)  # fmt: skip
SPILLS = kernel_of(
    "many tiles", "Tiles that do not fit at once: how many are moved out", _MANY, shapes=((128, 1792),),
    result="return $repeats * ($repeats + 1) // 2 * x[:, :64]", repeats=36, columns=1792, queue=SYNC,
)  # fmt: skip
TURNED = _turned("transposed loads", "Four-byte elements, transposed on the way", _TURNED, "return x.T")
NOT_TURNED = _turned("loads as they are", "The same bytes, not transposed", _NOT_TURNED, "return x.reshape(128, -1)")
