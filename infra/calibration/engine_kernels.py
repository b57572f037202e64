"""Kernels that tell what Vector, Scalar, GpSimd and Tensor take: an instruction, an element, a result's way on.

A stream goes round eight tiles, so that no instruction waits for the one before; a chain stays on one tile.
"""

from __future__ import annotations

from infra.calibration.kernel import CalibrationKernel, kernel_of

ROUND = 8
"""Tiles of a stream: more than an instruction's result takes to be ready, at any width."""

_LANES = '''\
@nki.jit
def kernel(x, y):
    """$repeats times one instruction, on $tiles tiles in turn."""
    out = nl.ndarray((P, $tiles * $columns), dtype=x.dtype, buffer=nl.shared_hbm)
    kept = nl.ndarray((P, $tiles, $columns), dtype=x.dtype, buffer=nl.sbuf)
    other = nl.ndarray((P, $columns), dtype=y.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=kept.reshape((P, $tiles * $columns)), src=x)
    nisa.dma_copy(dst=other, src=y)
    for i in range($repeats // $tiles):
        for j in range($tiles):
            $instruction
    nisa.dma_copy(dst=out, src=kept.reshape((P, $tiles * $columns)))
    return out
'''

_ADD = "nisa.tensor_tensor(dst=kept[:, j, :], data1=kept[:, j, :], data2=other, op=nl.add, engine=nisa.engine.{})"
_SCALE = (
    "nisa.tensor_scalar(dst=kept[:, j, :], data=kept[:, j, :], op0=nl.multiply, operand0=-1.0, engine=nisa.engine.{})"
)
_ACTIVATE = "nisa.activation(dst=kept[:, j, :], op=nl.copy, data=kept[:, j, :], scale=-1.0)"
_SCAN = (
    "nisa.tensor_tensor_scan(\n"
    "                dst=kept[:, j, :], data0=other, data1=kept[:, j, :], initial=0.0, op0=nl.multiply, op1=nl.add\n"
    "            )"
)

_ADDED = "return x + $repeats // $tiles * np.tile(y, (1, $tiles))"
_SIGNED = "return x * (-1.0) ** ($repeats // $tiles) + 0 * y[0, 0]"
_SCANNED = """\
kept = x.reshape(128, $tiles, $columns)
for _ in range($repeats // $tiles):
    last = np.zeros((128, $tiles))
    done = np.empty(kept.shape)
    for i in range($columns):
        last = y[:, i : i + 1] * last + kept[:, :, i]
        done[:, :, i] = last
    kept = done
return kept.reshape(x.shape)"""

_HALVES = """\
x = np.random.normal(size=(128, $tiles * $columns)).astype(np.float32)
return [x, np.random.uniform(-0.5, 0.5, size=(128, $columns)).astype(np.float32)]"""


def _lanes(
    name: str, title: str, instruction: str, result: str, columns: int, repeats: int, tiles: int = ROUND,
    inputs: str = "",
) -> CalibrationKernel:  # fmt: skip
    return kernel_of(
        name, title, _LANES, shapes=((128, tiles * columns), (128, columns)), result=result, inputs=inputs,
        repeats=repeats, tiles=tiles, columns=columns, instruction=instruction,
    )  # fmt: skip


VECTOR_NARROW = _lanes("vector 64", "Additions of 64 columns", _ADD.format("vector"), _ADDED, 64, 384)
VECTOR_WIDE = _lanes("vector 1024", "Additions of 1,024 columns", _ADD.format("vector"), _ADDED, 1024, 48)
VECTOR_CHAIN = _lanes(
    "vector chain", "Additions that wait for each other", _ADD.format("vector"), _ADDED, 64, 192, tiles=1
)
VECTOR_FAST = _lanes(
    "vector scaling", "One operand, within SBUF: Vector's fast mode", _SCALE.format("vector"), _SIGNED, 1024, 64
)
VECTOR_SCAN = _lanes("scan", "Scans of 512 columns", _SCAN, _SCANNED, 512, 16, inputs=_HALVES)
SCALAR_NARROW = _lanes("scalar 64", "Activations of 64 columns", _ACTIVATE, _SIGNED, 64, 384)
SCALAR_WIDE = _lanes("scalar 1024", "Activations of 1,024 columns", _ACTIVATE, _SIGNED, 1024, 48)
SCALAR_CHAIN = _lanes("scalar chain", "Activations that wait for each other", _ACTIVATE, _SIGNED, 64, 160, tiles=1)
SCALAR_COPIES = _lanes(
    "scalar scaling", "Instructions of Scalar without a function", _SCALE.format("scalar"), _SIGNED, 64, 192, tiles=1
)
GPSIMD_NARROW = _lanes("gpsimd 64", "Additions of 64 columns", _ADD.format("gpsimd"), _ADDED, 64, 256)
GPSIMD_WIDE = _lanes("gpsimd 1024", "Additions of 1,024 columns", _ADD.format("gpsimd"), _ADDED, 1024, 32)
GPSIMD_CHAIN = _lanes(
    "gpsimd chain", "Additions that wait for each other", _ADD.format("gpsimd"), _ADDED, 64, 160, tiles=1
)

_SUMS = '''\
@nki.jit
def kernel(x):
    """Sums along rows: a wide operand in, one number a row out."""
    out = nl.ndarray((P, $repeats), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((P, 8, $columns), dtype=x.dtype, buffer=nl.sbuf)
    sums = nl.ndarray((P, $repeats), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile.reshape((P, 8 * $columns)), src=x)
    for i in range($repeats):
        nisa.tensor_reduce(dst=sums[:, i : i + 1], op=nl.add, data=tile[:, i % 8, :], axis=1)
    nisa.dma_copy(dst=out, src=sums)
    return out
'''

ROW_SUMS = kernel_of(
    "row sums", "Sums along rows of 512", _SUMS, shapes=((128, 8 * 512),),
    result="return np.tile(x.reshape(128, 8, $columns).sum(axis=2), (1, $repeats // 8))",
    repeats=64, columns=512,
)  # fmt: skip

_TABLES = '''\
@nki.jit
def kernel(x):
    """Two functions in turn, each of which needs a table of its own."""
    out = nl.ndarray((P, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((P, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for _ in range($repeats // 2):
        nisa.activation(dst=tile, op=nl.exp, data=tile, scale=-2.0)
        nisa.activation(dst=tile, op=nl.rsqrt, data=tile, scale=7.389)
    nisa.dma_copy(dst=out, src=tile)
    return out
'''

TABLES = kernel_of(
    "tables", "Functions in turn: each loads its table", _TABLES, shapes=((128, 64),),
    # Numbers come closer to 1 by it, and so slowly that they stay apart.
    inputs="return [np.random.uniform(0.0, 0.9, size=(128, 64)).astype(np.float32)]",
    result="for _ in range($repeats // 2):\n    x = 1 / np.sqrt(7.389 * np.exp(-2 * x))\nreturn x",
    repeats=32,
)  # fmt: skip

_EVICTIONS = '''\
@nki.jit
def kernel(x, y):
    """One result in PSUM, copied out again and again."""
    out = nl.ndarray((P, $repeats * 512), dtype=x.dtype, buffer=nl.shared_hbm)
    turn = nl.ndarray((P, P), dtype=x.dtype, buffer=nl.sbuf)
    tile = nl.ndarray((P, 512), dtype=y.dtype, buffer=nl.sbuf)
    kept = nl.ndarray((P, $repeats, 512), dtype=x.dtype, buffer=nl.sbuf)
    full = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
    nisa.dma_copy(dst=turn, src=x)
    nisa.dma_copy(dst=tile, src=y)
    nisa.nc_matmul(dst=full, stationary=turn, moving=tile)
    for i in range($repeats):
        nisa.tensor_copy(dst=kept[:, i, :], src=full, engine=nisa.engine.$engine)
    nisa.dma_copy(dst=out, src=kept.reshape((P, $repeats * 512)))
    return out
'''

_SHUFFLE = "np.eye(128, dtype=np.float32)[np.random.permutation(128)]"


def _evictions(engine: str) -> CalibrationKernel:
    return kernel_of(
        f"{engine} from psum", "Copies from PSUM to SBUF", _EVICTIONS, shapes=((128, 128), (128, 512)),
        inputs=f"return [{_SHUFFLE}, np.random.normal(size=(128, 512)).astype(np.float32)]",
        result="return np.tile(x.T @ y, (1, $repeats))", repeats=48, engine=engine,
    )  # fmt: skip


VECTOR_EVICTIONS = _evictions("vector")
SCALAR_EVICTIONS = _evictions("scalar")

_STEPS = '''\
@nki.jit
def kernel(x, y):
    """Product, copy, product: each waits for the other's result. In bfloat16, so that both are short."""
    out = nl.ndarray((P, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    wide = nl.ndarray((P, P), dtype=x.dtype, buffer=nl.sbuf)
    turn = nl.ndarray((P, P), dtype=nl.bfloat16, buffer=nl.sbuf)
    tile = nl.ndarray((P, 64), dtype=y.dtype, buffer=nl.sbuf)
    moving = nl.ndarray((P, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=wide, src=x)
    nisa.dma_copy(dst=tile, src=y)
    nisa.tensor_copy(dst=turn, src=wide)
    nisa.tensor_copy(dst=moving, src=tile)
    for _ in range($repeats):
        done = nl.ndarray((P, 64), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=done, stationary=turn, moving=moving)
        nisa.tensor_copy(dst=moving, src=done, engine=nisa.engine.vector)
    nisa.tensor_copy(dst=tile, src=moving)
    nisa.dma_copy(dst=out, src=tile)
    return out
'''

_POWERS = "turned = y\nfor _ in range($repeats):\n    turned = x.T @ turned\nreturn turned"

STEPS = kernel_of(
    "matmul steps", "Products and copies that wait for each other", _STEPS, shapes=((128, 128), (128, 64)),
    inputs=f"return [{_SHUFFLE}, np.random.normal(size=(128, 64)).astype(np.float32)]",
    result=_POWERS, repeats=96,
)  # fmt: skip

_WEIGHTS = '''\
@nki.jit
def kernel(x, y):
    """Products so narrow that loading the weights takes longer; two weights in turn, so that none stays."""
    out = nl.ndarray((P, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    weights = nl.ndarray((P, P, $stride), dtype=x.dtype, buffer=nl.sbuf)
    moving = nl.ndarray((P, 64), dtype=y.dtype, buffer=nl.sbuf)
    total = nl.ndarray((P, 64), dtype=nl.float32, buffer=nl.psum)
    result = nl.ndarray((P, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights.reshape((P, P * $stride)), src=x)
    nisa.dma_copy(dst=moving, src=y)
    for _ in range($repeats // 2):
        nisa.nc_matmul(dst=total, stationary=weights[:, :, 0], moving=moving)
        nisa.nc_matmul(dst=total, stationary=weights[:, :, 1], moving=moving)
    nisa.tensor_copy(dst=result, src=total)
    nisa.dma_copy(dst=out, src=result)
    return out
'''


def _weights(name: str, title: str, stride: int) -> CalibrationKernel:
    return kernel_of(
        name, title, _WEIGHTS, shapes=((128, 128 * stride), (128, 64)),
        result="x = x.reshape(128, 128, $stride)\nreturn $repeats // 2 * (x[:, :, 0].T @ y + x[:, :, 1].T @ y)",
        repeats=256, stride=stride,
    )  # fmt: skip


WEIGHTS = _weights("spread weights", "Narrow products, the weights changing and far apart, so loaded slowly", 8)
CLOSE_WEIGHTS = _weights("weight loads", "The same, closer: at above 2 columns a cycle the products hide it", 2)

_NARROW = '''\
@nki.jit
def kernel(x, y):
    """Products of few columns with few weights: what a pass over the array takes besides."""
    out = nl.ndarray((32, $columns), dtype=nl.float32, buffer=nl.shared_hbm)
    weights = nl.ndarray((P, 32), dtype=x.dtype, buffer=nl.sbuf)
    moving = nl.ndarray((P, $columns), dtype=y.dtype, buffer=nl.sbuf)
    total = nl.ndarray((32, $columns), dtype=nl.float32, buffer=nl.psum)
    result = nl.ndarray((32, $columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights, src=x)
    nisa.dma_copy(dst=moving, src=y)
    for _ in range($repeats):
        nisa.nc_matmul(dst=total, stationary=weights, moving=moving)
    nisa.tensor_copy(dst=result, src=total)
    nisa.dma_copy(dst=out, src=result)
    return out
'''


def _passes(name: str, title: str, columns: int, repeats: int) -> CalibrationKernel:
    """Of so many that a hundredth of a pass shows."""
    return kernel_of(
        name, title, _NARROW, shapes=((128, 32), (128, columns)), result="return $repeats * (x.T @ y)",
        repeats=repeats, columns=columns,
    )  # fmt: skip


PASSES = _passes("narrow products", "Products of few columns and weights", 64, 1024)
MORE_PASSES = _passes("more products", "The same, somewhat wider", 72, 896)

_HALVES_OF_THE_ARRAY = '''\
@nki.jit
def kernel(x, y):
    """Products on half of the array's rows each: all on one half, or on both in turn, which may work at once.

    They use a quarter of the array, so that it is cold all along.
    """
    out = nl.ndarray((2 * P, $columns), dtype=nl.float32, buffer=nl.shared_hbm)
    weights = nl.ndarray((P, P), dtype=x.dtype, buffer=nl.sbuf)
    moving = nl.ndarray((P, $columns), dtype=y.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights, src=x)
    nisa.dma_copy(dst=moving, src=y)
    first = nl.ndarray((P, $columns), dtype=nl.float32, buffer=nl.psum)
    second = nl.ndarray((P, $columns), dtype=nl.float32, buffer=nl.psum)
    for _ in range($repeats // 2):
        nisa.nc_matmul(
            dst=first, stationary=weights[0:32, :], moving=moving[0:32, :], tile_position=(0, 0), tile_size=(64, P)
        )
        nisa.nc_matmul(
            dst=second, stationary=weights[$row : $row + 32, :], moving=moving[$row : $row + 32, :],
            tile_position=($row, 0), tile_size=(64, P),
        )
    result = nl.ndarray((P, $columns), dtype=nl.float32, buffer=nl.sbuf)
    other = nl.ndarray((P, $columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=first)
    nisa.tensor_copy(dst=other, src=second)
    nisa.dma_copy(dst=out[0:P, :], src=result)
    nisa.dma_copy(dst=out[P : 2 * P, :], src=other)
    return out
'''


def _on_halves(name: str, title: str, row: int) -> CalibrationKernel:
    """`row`: where the other half begins; 0: it is the same."""
    return kernel_of(
        name, title, _HALVES_OF_THE_ARRAY, shapes=((128, 128), (128, 512)),
        result="first = $repeats // 2 * x[0:32].T @ y[0:32]\n"
        "second = $repeats // 2 * x[$row : $row + 32].T @ y[$row : $row + 32]\n"
        "return np.concatenate((first, second))",
        repeats=64, columns=512, row=row,
    )  # fmt: skip


BOTH_HALVES = _on_halves(
    "matmul on both halves", "Products on one half of the array's rows and on the other in turn", 64
)
ONE_HALF = _on_halves("matmul on one half", "The same, all on one half", 0)

_FETCHED = '''\
@nki.jit
def kernel(x, y):
    """Products whose operands came in several transfers. The first needs some of each, so all are there by then."""
    out = nl.ndarray((32, 128), dtype=nl.float32, buffer=nl.shared_hbm)
    weights = nl.ndarray((P, 32), dtype=x.dtype, buffer=nl.sbuf)
    ready = nl.ndarray((P, 32), dtype=x.dtype, buffer=nl.sbuf)
    moving = nl.ndarray((P, $repeats, 128), dtype=y.dtype, buffer=nl.sbuf)
    every = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nothing = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((32, 128), dtype=nl.float32, buffer=nl.psum)
    result = nl.ndarray((32, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights, src=x)
    given = y.reshape((P, $repeats, 128))
    for i in range($repeats // $each):
        nisa.dma_copy(
            dst=moving[:, i * $each : (i + 1) * $each, :], src=given[:, i * $each : (i + 1) * $each, :],
            engine=nisa.engine.sync, dge_mode=nisa.dge_mode.none,
        )
    nisa.tensor_reduce(dst=every, op=nl.add, data=moving[:, :, 0], axis=1)
    nisa.tensor_scalar(dst=nothing, data=every, op0=nl.multiply, operand0=0.0)
    nisa.tensor_scalar(dst=ready, data=weights, op0=nl.add, operand0=nothing)
    for i in range($repeats):
        nisa.nc_matmul(dst=total, stationary=ready, moving=moving[:, i, :])
    nisa.tensor_copy(dst=result, src=total)
    nisa.dma_copy(dst=out, src=result)
    return out
'''


def _fetched(name: str, title: str, repeats: int, each: int) -> CalibrationKernel:
    return kernel_of(
        name, title, _FETCHED, shapes=((128, 32), (128, 128 * repeats)),
        result="return x.T @ y.reshape(128, $repeats, 128).sum(axis=1)", repeats=repeats, each=each,
    )  # fmt: skip


FETCHED = _fetched("fetched products", "Products whose operands came by a transfer each", 96, 1)
FETCHED_AT_ONCE = _fetched("products at once", "The same, their operands by one transfer", 96, 96)

_BURSTS = '''\
def bursts(turn, moving, pad, times, products, columns, pause):
    for _ in range(times):
        done = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
        for _ in range(products):
            nisa.nc_matmul(dst=done[:, 0:columns], stationary=turn, moving=moving[:, 0:columns])
        nisa.tensor_scalar(
            dst=pad[:, 0:64], data=done[:, 0:64], op0=nl.multiply, operand0=1.0 / products, engine=nisa.engine.vector
        )
        if pause > 0:
            nisa.tensor_tensor(
                dst=pad[:, 0:pause], data1=pad[:, 0:pause], data2=pad[:, 0:pause], op=nl.maximum,
                engine=nisa.engine.vector,
            )
        nisa.tensor_copy(dst=moving[:, 0:64], src=pad[:, 0:64], engine=nisa.engine.vector)


@nki.jit
def kernel(x, y):
    """Bursts of products, each waiting for a short copy of the one before, and for a pause in which Vector works."""
    out = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    wide = nl.ndarray((P, P), dtype=x.dtype, buffer=nl.sbuf)
    turn = nl.ndarray((P, P), dtype=nl.$dtype, buffer=nl.sbuf)
    pad = nl.ndarray((P, $longest), dtype=y.dtype, buffer=nl.sbuf)
    moving = nl.ndarray((P, 512), dtype=nl.$dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=wide, src=x)
    nisa.dma_copy(dst=pad, src=y)
    nisa.tensor_copy(dst=turn, src=wide)
    nisa.tensor_copy(dst=moving, src=pad[:, 0:512])
$calls
    nisa.tensor_copy(dst=pad[:, 0:512], src=moving)
    nisa.dma_copy(dst=out, src=pad[:, 0:512])
    return out
'''

_FIRST_COLUMNS_TURNED = """\
turned = y[:, :512].copy()
for _ in range($repeats):
    turned[:, :64] = x.T @ turned[:, :64]
return turned"""


Section = tuple[int, int, int, int]
"""How often; products of a burst; their columns; columns that Vector works on in the pause (0: none)."""


def _bursts(name: str, title: str, sections: tuple[Section, ...], dtype: str) -> CalibrationKernel:
    longest = max(512, *(pause for *_, pause in sections))
    return kernel_of(
        name, title, _BURSTS, shapes=((128, 128), (128, longest)),
        inputs=f"return [{_SHUFFLE}, np.random.randint(-8, 9, size=(128, {longest})).astype(np.float32)]",
        result=_FIRST_COLUMNS_TURNED, repeats=sum(times for times, *_ in sections),
        longest=longest, dtype=dtype,
        calls="\n".join("    bursts(turn, moving, pad, " + ", ".join(map(str, each)) + ")" for each in sections),
    )  # fmt: skip


def _falling_load() -> tuple[Section, ...]:
    """Tensor busy for 0.85 to 0.2 of the time, a twentieth less each, for some 11 us, which is more than two windows.

    The widths differ, so that not all sections have shares which are multiples of one product's.
    """
    sections: list[Section] = []
    share = 0.85
    while share > 0.2:
        burst = next(count for count, least in ((8, 0.65), (4, 0.5), (2, 0.33), (1, 0.0)) if share > least)
        columns = (512, 448, 384, 320)[len(sections) % 4]
        busy_ns = burst * columns / 2.4
        pause_ns = busy_ns * (1 / share - 1) - 600.0
        times = max(4, round(11_000 * share / busy_ns))
        sections.append((times, burst, columns, 64 * max(0, round((pause_ns - 160) / 67))))
        share *= 19 / 20
    return tuple(sections)


_LONG = 8192
"""Columns that keep Vector busy for longer than the throttle looks back, at any rate of it that is plausible."""
PAUSES = _bursts("pauses", "A narrow product after each long pause", ((16, 1, 64, _LONG),), "float32")
COLD = _bursts("cold products", "Two wide products after each: Tensor is cold", ((16, 2, 512, _LONG),), "float32")
COOLING = _bursts(
    "cooling products", "Bursts at a falling load: from where on Tensor is cold", _falling_load(), "bfloat16"
)
