"""TensorE: matrix multiplication and transposition into PSUM."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nki_sim import dtypes
from nki_sim.contract import rules
from nki_sim.contract.contracts import FLAG, ON_CHIP, PSUM, SBUF, integer, listed, reads, updates, writes
from nki_sim.contract.opcodes import define
from nki_sim.errors import NkiValidationError
from nki_sim.isa.arithmetic import numerics
from nki_sim.isa.constants import matmul_perf_mode as _perf_mode
from nki_sim.machine import ISA, first_with
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Operand, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor

_FLOAT32S = (dtypes.float32, dtypes.tfloat32)
_FLOAT8S = (dtypes.float8_e4m3, dtypes.float8_e5m2)
_MATMUL_DTYPES = (*_FLOAT32S, dtypes.bfloat16, dtypes.float16, *_FLOAT8S)


class NcMatmul(NamedTuple):
    is_transpose: bool
    accumulate: bool | None
    tile_position: tuple[int, ...]
    tile_size: tuple[int, ...]
    perf_mode: _perf_mode
    onezero: tuple[bool, bool]
    """Promise that (stationary, moving) hold only 0 and 1: halves the time of float32."""


# --- nc_matmul ------------------------------------------------------------------------------------


def _check_matmul(template: Template) -> None:
    attrs: NcMatmul = template.attrs
    dst, stationary, moving = (rules.get(template, role) for role in ("dst", "stationary", "moving"))
    rules.engine(template, (Engine.tensor,))
    for operand in (stationary, moving):
        if operand.region is not MemoryRegion.sbuf:
            raise NkiValidationError(
                f"nc_matmul reads {operand.role} {list(operand.shape)} from SBUF, not {operand.region.value}"
            )
    if dst.region is not MemoryRegion.psum:
        raise NkiValidationError(f"nc_matmul writes to PSUM, not {dst.region.value}: allocate it with buffer=nl.psum")
    for operand in (dst, stationary, moving):
        rules.partitions(template, operand)
    if stationary.partitions != moving.partitions:
        raise NkiValidationError(
            f"nc_matmul contraction mismatch: stationary {list(stationary.shape)} is [K, M] and moving "
            f"{list(moving.shape)} is [K, N] with the same K on the partitions"
        )
    rows = _check_double_row(template, attrs, stationary, moving) if attrs.perf_mode is _perf_mode.double_row else 1
    m, n = stationary.free_size // rows, moving.free_size // rows
    if m > ISA.stationary_fmax or n > ISA.moving_fmax:
        raise NkiValidationError(
            f"nc_matmul limits: M {m} <= {ISA.stationary_fmax}, N {n} <= {ISA.moving_fmax} (stationary "
            f"{list(stationary.shape)}, moving {list(moving.shape)}): tile the larger dimension"
        )
    if (dst.partitions, dst.free_size) != (m, n):
        raise NkiValidationError(
            f"nc_matmul dst {list(dst.shape)} must be [M, N] = [{m}, {n}] for stationary {list(stationary.shape)} and "
            f"moving {list(moving.shape)}"
        )
    rules.one_bank(template, dst)
    _check_matmul_dtypes(template, attrs, dst, stationary, moving)
    _check_tiling(attrs, stationary.partitions, m)


def _check_double_row(template: Template, attrs: NcMatmul, stationary: Operand, moving: Operand) -> int:
    for operand in (stationary, moving):
        rules.dtype_in(template, operand, _FLOAT8S)
        if len(operand.shape) < 3 or operand.shape[1] != 2:
            raise NkiValidationError(f"nc_matmul double_row: {operand.role} {list(operand.shape)} must be [K, 2, n]")
    if attrs.is_transpose or (attrs.tile_size and attrs.tile_size[1] != ISA.tensor_columns):
        raise NkiValidationError("nc_matmul double_row excludes is_transpose and column tiling")
    return 2


def _check_matmul_dtypes(
    template: Template, attrs: NcMatmul, dst: Operand, stationary: Operand, moving: Operand
) -> None:
    if attrs.is_transpose:
        return  # moves bits of any dtype
    for operand in (stationary, moving):
        if operand.dtype == dtypes.float8_e4m3fn:
            raise NkiValidationError(
                f"nc_matmul: {operand.role} {list(operand.shape)} is float8_e4m3fn, whose product needs "
                f"{first_with(4)} and is not simulated: use float8_e4m3"
            )
        rules.dtype_in(template, operand, _MATMUL_DTYPES)
    if (stationary.dtype in _FLOAT32S) != (moving.dtype in _FLOAT32S):
        raise NkiValidationError(
            f"nc_matmul: stationary is {stationary.dtype} and moving is {moving.dtype}; a float32 operand "
            "needs a float32 partner: convert one with nisa.tensor_copy"
        )
    if dst.dtype not in (dtypes.float32, dtypes.bfloat16):
        raise NkiValidationError(f"nc_matmul accumulates in float32: dst {list(dst.shape)} cannot be {dst.dtype}")


def _check_tiling(attrs: NcMatmul, k: int, m: int) -> None:
    position, size = attrs.tile_position, attrs.tile_size
    if not position and not size:
        return
    if len(position) != 2 or len(size) != 2:
        raise NkiValidationError(
            f"nc_matmul tiling needs both tile_position and tile_size as (row, column), got {position} and {size}"
        )
    *smaller, whole = ISA.tensor_tile_sizes
    for what, start, extent, used in (("row", position[0], size[0], k), ("column", position[1], size[1], m)):
        if extent not in ISA.tensor_tile_sizes or start < 0 or start % extent or start + extent > whole:
            raise NkiValidationError(
                f"nc_matmul {what} tile: size {extent} must be {', '.join(map(str, smaller))} or {whole} and position "
                f"{start} a multiple of it below {whole}"
            )
        if used > extent:
            raise NkiValidationError(f"nc_matmul uses {used} {what}s, more than the tile's {extent}: enlarge tile_size")


_scratch = threading.local()


def _scratch_for(shape: tuple[int, int]) -> np.ndarray:
    """A reusable float32 buffer for products that are added to what is there."""
    buffers: dict[tuple[int, int], np.ndarray] | None = getattr(_scratch, "buffers", None)
    if buffers is None or len(buffers) > 64:
        buffers = _scratch.buffers = {}
    buffer = buffers.get(shape)
    if buffer is None:
        buffer = buffers[shape] = np.empty(shape, np.float32)
    return buffer


def _compute_matmul(arrays: Sequence[np.ndarray], attrs: NcMatmul, flags: Sequence[np.ndarray | None]) -> None:
    dst, stationary, moving = arrays[0], arrays[1], arrays[2]
    written = flags[0]
    assert written is not None
    if attrs.is_transpose:
        _put(dst, _transposed(stationary, moving).reshape(dst.shape))
        written[...] = True
        return
    k = stationary.shape[0]
    if attrs.perf_mode is _perf_mode.double_row:
        left = numerics.read32(stationary).reshape(2 * k, -1)
        right = numerics.read32(moving).reshape(2 * k, -1)
    else:
        left = numerics.read32(stationary)
        right = numerics.read32(moving)
        if left.ndim != 2:
            left = left.reshape(k, -1)
        if right.ndim != 2:
            right = right.reshape(k, -1)
    left = left.T
    adds = attrs.accumulate
    if adds is None:
        if not written.any():
            adds = False
        elif written.all():
            adds = True
    plain = dst.dtype == numerics.FLOAT32 and dst.ndim == 2
    if adds is False:
        if plain and dst.strides[1] == 4:
            np.matmul(left, right, out=dst)
        else:
            _put(dst, np.matmul(left, right).reshape(dst.shape))
    else:
        product = _scratch_for((left.shape[0], right.shape[1]))
        np.matmul(left, right, out=product)
        product = product.reshape(dst.shape)
        if adds and dst.dtype == numerics.FLOAT32:
            np.add(dst, product, out=dst)
        else:
            before = numerics.read32(dst)
            _put(dst, np.where(written, before + product, product) if adds is None else before + product)
    if not adds:
        written[...] = True


def _put(dst: np.ndarray, values: np.ndarray) -> None:
    if dst.dtype == values.dtype:
        dst[...] = values
    else:
        numerics.write(dst, numerics.read32(values))


def _transposed(stationary: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """Transpose mode moves values unchanged, NaN included, by way of an identity matrix.

    With any other moving matrix the instruction would be a product at the price of a transpose; AWS documents none.
    """
    left, right = stationary.reshape(stationary.shape[0], -1), moving.reshape(moving.shape[0], -1)
    if not _is_identity(right):
        raise NkiValidationError(
            f"nc_matmul with is_transpose=True: moving {list(moving.shape)} must be an identity matrix, with the "
            "tile to turn as stationary (NKI's page of nc_matmul, transpose mode): leave is_transpose out for a product"
        )
    return left.T


def _is_identity(matrix: np.ndarray) -> bool:
    return matrix.shape[0] == matrix.shape[1] and bool((matrix == np.eye(matrix.shape[0])).all())


_NC_MATMUL = define(
    "nc_matmul",
    updates("dst", PSUM),
    reads("stationary", SBUF),
    reads("moving", SBUF),
    check=_check_matmul,
    compute=_compute_matmul,
    attrs_type=NcMatmul,
    values={
        "tile_position": listed(integer(0, ISA.tensor_rows), 2),
        "tile_size": listed(integer(0, ISA.tensor_rows), 2),
        "onezero": listed(FLAG, 2, least=2),
    },
    uses_psum_flags=True,
)


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: Sequence[int] = (),
    tile_size: Sequence[int] = (),
    perf_mode: _perf_mode = _perf_mode.none,
    name: str | None = None,
) -> Instruction:
    """dst[M, N] (+)= stationary[K, M].T @ moving[K, N] on TensorE, accumulated in float32.

    K <= 128 on the partitions of both inputs (SBUF), M <= 128, N <= 512; dst: float32 in PSUM, within one
    2 KiB bank. float32 only with float32; bfloat16, float16 and float8 mix. accumulate: False overwrites,
    True adds, None (default) overwrites what no matmul has written yet and adds to the rest, so a loop
    over K needs no flag. double_row: float8 inputs [K, 2, n]. is_transpose: dst = stationary.T bit for bit, with an
    identity matrix as moving; any other raises when it is multiplied.
    """
    attrs = NcMatmul(
        bool(is_transpose),
        None if accumulate is None else bool(accumulate),
        tuple(tile_position or ()),
        tuple(tile_size or ()),
        perf_mode,
        (bool(is_stationary_onezero), bool(is_moving_onezero)),
    )
    return current().emit(
        _NC_MATMUL, Engine.tensor, ("dst", "stationary", "moving"), "urr", (dst, stationary, moving), attrs, name=name
    )


# --- nc_transpose ---------------------------------------------------------------------------------


def _check_transpose(template: Template) -> None:
    dst, data = rules.get(template, "dst"), rules.get(template, "data")
    rules.computed_on(template, Engine.tensor, Engine.vector)
    if (dst.partitions, dst.free_size) != (data.free_size, data.partitions):
        raise NkiValidationError(
            f"nc_transpose: dst {list(dst.shape)} must be [{data.free_size}, {data.partitions}] for data "
            f"{list(data.shape)}"
        )
    limit = ISA.tensor_rows if template.engine is Engine.tensor else ISA.vector_transpose_fmax
    if data.partitions > limit or data.free_size > limit:
        raise NkiValidationError(
            f"nc_transpose on {template.engine.name} takes at most [{limit}, {limit}], data is {list(data.shape)}: "
            + (
                "tile it"
                if template.engine is Engine.tensor
                else "use the tensor engine with data in SBUF and dst in PSUM, or tile it"
            )
        )
    if template.engine is Engine.tensor:
        if data.region is not MemoryRegion.sbuf or dst.region is not MemoryRegion.psum:
            raise NkiValidationError(
                f"nc_transpose on the tensor engine reads SBUF and writes PSUM; data is in {data.region.value}, dst in "
                f"{dst.region.value}"
            )
        rules.one_bank(template, dst)
    # the API page wants equal dtypes; kernels verified on hardware also widen into float32 PSUM, as a matmul would
    widens = template.engine is Engine.tensor and dst.dtype == dtypes.float32 and data.dtype in _MATMUL_DTYPES
    if dst.dtype != data.dtype and not widens:
        raise NkiValidationError(
            f"nc_transpose does not convert: data is {data.dtype}, dst is {dst.dtype}; allocate dst as {data.dtype} "
            "and convert when copying it out of PSUM"
        )


def _compute_transpose(arrays: Sequence[np.ndarray], attrs: Any, flags: Sequence[np.ndarray | None]) -> None:
    dst, data = arrays[0], arrays[1]
    _put(dst, data.reshape(data.shape[0], -1).T.reshape(dst.shape))
    if flags[0] is not None:
        flags[0][...] = True


_NC_TRANSPOSE = define(
    "nc_transpose",
    writes("dst", ON_CHIP),
    reads("data", ON_CHIP),
    check=_check_transpose,
    compute=_compute_transpose,
    uses_psum_flags=True,
)


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None
) -> Instruction:
    """dst[F, P] = data[P, F] transposed, bit for bit; all free dimensions of data count as one.

    Tensor engine: up to [128, 128], data in SBUF, dst in PSUM. Vector: up to [32, 32], either memory.
    dst has data's dtype (Tensor also widens to float32). Without `engine`: Vector for tiles it can hold, else Tensor.
    """
    if engine is Engine.unknown:
        pattern = data.pattern
        free = data.size // pattern[0][1]
        fits = pattern[0][1] <= ISA.vector_transpose_fmax and free <= ISA.vector_transpose_fmax
        tensor_can = data.buffer is MemoryRegion.sbuf and dst.buffer is MemoryRegion.psum
        engine = Engine.vector if fits or not tensor_can else Engine.tensor
    return current().emit(_NC_TRANSPOSE, engine, ("dst", "data"), "wr", (dst, data), name=name)
