"""The DMA engines: data movement between HBM and SBUF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nki_sim.contract import rules
from nki_sim.contract.contracts import ANY_DTYPE, HBM, LONG, SBUF, integer, listed, one_of, reads, several, writes
from nki_sim.contract.opcodes import define
from nki_sim.errors import NkiValidationError
from nki_sim.isa.arithmetic import numerics, ops
from nki_sim.isa.constants import dge_mode as _dge_mode
from nki_sim.isa.constants import oob_mode as _oob_mode
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Operand, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor

_TRANSPOSES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


class DmaCopy(NamedTuple):
    queue: Engine
    dge_mode: _dge_mode
    oob_mode: _oob_mode


def _no_psum(template: Template, *operands: Operand) -> None:
    for operand in operands:
        if operand.region is MemoryRegion.psum:
            raise NkiValidationError(
                f"{template.opcode} cannot touch PSUM ({operand.role} {list(operand.shape)}): move it through SBUF "
                "with nisa.tensor_copy"
            )
        if operand.region.on_chip and operand.partition_start + operand.partitions > ISA.partitions:
            raise NkiValidationError(
                f"{template.opcode}: {operand.role} {list(operand.shape)} needs more than {ISA.partitions} partitions: "
                "tile the first dimension"
            )


def _indices(operands: Sequence[Operand]) -> bool:
    """Does one of them gather or scatter, an index for each row?"""
    return any(operand.indirection is not None and operand.indirection[0] == "vector" for operand in operands)


def _generator(mode: Any, *tensors: NkiTensor) -> _dge_mode:
    """Who makes the descriptors: software for what gathers or scatters, whom the compiler would choose too."""
    if not isinstance(mode, _dge_mode):
        mode = next((each for each in _dge_mode if isinstance(mode, int) and each.value == mode), mode)
    if not isinstance(mode, _dge_mode):
        raise NkiValidationError(f"dge_mode must be one of nisa.dge_mode, not {mode!r}")
    if mode is _dge_mode.unknown:
        for tensor in tensors:
            if tensor.indirection is not None and tensor.indirection.kind == "vector":
                return _dge_mode.swdge
    return mode


def _check_generator(template: Template, mode: _dge_mode, queue: Engine = Engine.unknown) -> None:
    """NKI's page on descriptor generation: only software descriptors gather or scatter, and prepared ones cannot be
    for places that only the device knows."""
    if mode is _dge_mode.none and any(operand.indirection is not None for operand in template.operands):
        raise NkiValidationError(
            f"{template.opcode} with dge_mode.none: descriptors prepared before the kernel runs cannot hold an address "
            "that only the device knows: leave dge_mode unset"
        )
    if not _indices(template.operands):
        return
    if mode is not _dge_mode.swdge:
        raise NkiValidationError(
            f"{template.opcode}: vector_offset needs dge_mode.swdge (or unknown, which becomes it), not {mode.name}: "
            "only software descriptors gather and scatter"
        )
    if queue not in (Engine.unknown, Engine.gpsimd):
        raise NkiValidationError(
            f"{template.opcode}: vector_offset is not for the hardware queue of {queue.name}: leave engine "
            "unset, GpSimd makes the descriptors"
        )


def _check_queue(template: Template, mode: _dge_mode, queue: Engine) -> None:
    if queue is not Engine.unknown and mode is _dge_mode.hwdge and queue not in (Engine.sync, Engine.scalar):
        raise NkiValidationError(
            f"{template.opcode} with dge_mode.hwdge is issued by nisa.engine.sync or scalar, not {queue.name}"
        )


# --- dma_copy -------------------------------------------------------------------------------------


def _check_copy(template: Template) -> None:
    dst, src = rules.get(template, "dst"), rules.get(template, "src")
    attrs: DmaCopy = template.attrs
    rules.engine(template, (Engine.dma,))
    _no_psum(template, dst, src)
    if dst.elements != src.elements:
        raise NkiValidationError(
            f"dma_copy moves {src.elements} elements of src {list(src.shape)} into {dst.elements} of "
            f"dst {list(dst.shape)}: the counts must match; clip both slices the same way"
        )
    if dst.dtype != src.dtype and (dst.dtype in LONG or src.dtype in LONG):
        raise NkiValidationError(
            f"dma_copy cannot cast {src.dtype} to {dst.dtype}: 64-bit integers are moved as they are (a cast goes "
            "through float32)"
        )
    if attrs.dge_mode is _dge_mode.hwdge and dst.dtype != src.dtype:
        raise NkiValidationError(
            f"dma_copy with dge_mode.hwdge cannot cast {src.dtype} to {dst.dtype}: leave dge_mode unset or cast on chip"
        )
    _check_queue(template, attrs.dge_mode, attrs.queue)
    _check_generator(template, attrs.dge_mode, attrs.queue)


def _compute_copy(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, src = arrays[0], arrays[1]
    if src.shape != dst.shape:
        src = src.reshape(dst.shape)
    if src.dtype == dst.dtype:
        dst[...] = src
    else:
        numerics.write(dst, numerics.read32(src))


_DMA_COPY = define(
    "dma_copy",
    writes("dst", HBM | SBUF, ANY_DTYPE | LONG),
    reads("src", HBM | SBUF, ANY_DTYPE | LONG),
    check=_check_copy,
    compute=_compute_copy,
    attrs_type=DmaCopy,
)


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: _oob_mode = _oob_mode.error,
    dge_mode: _dge_mode = _dge_mode.unknown,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Instruction:
    """dst = src, between HBM and SBUF in any combination (never PSUM); a cast goes through float32.

    Element counts must match; shapes need not. `engine` names the queue that issues the transfer: sync, scalar or
    gpsimd (also without it). dge_mode.hwdge takes sync or scalar only, and cannot cast. Views with
    .ap(scalar_offset= / vector_offset=) gather or scatter, those with vector_offset by software descriptors
    only; oob_mode.skip leaves out indices outside their dimension, error (default) raises.
    """
    attrs = DmaCopy(engine, _generator(dge_mode, dst, src), oob_mode)
    return current().emit(_DMA_COPY, Engine.dma, ("dst", "src"), "wr", (dst, src), attrs, name=name)


# --- dma_transpose --------------------------------------------------------------------------------


class DmaTranspose(NamedTuple):
    axes: tuple[int, ...]
    dge_mode: _dge_mode
    oob_mode: _oob_mode


def _check_transpose(template: Template) -> None:
    attrs: DmaTranspose = template.attrs
    dst, src = rules.get(template, "dst"), rules.get(template, "src")
    rules.engine(template, (Engine.dma,))
    _no_psum(template, dst, src)
    axes = _TRANSPOSES.get(len(src.pattern))
    if axes is None or attrs.axes != axes:
        legal = ", ".join(f"{a} for {n}-d" for n, a in _TRANSPOSES.items())
        raise NkiValidationError(f"dma_transpose: axes {attrs.axes} of src {list(src.shape)}; supported: {legal}")
    expected = tuple(src.shape[axis] for axis in axes)
    if _squeezed(dst.shape) != _squeezed(expected):
        raise NkiValidationError(
            f"dma_transpose: dst {list(dst.shape)} must be {list(expected)} for src {list(src.shape)}"
        )
    rules.same_dtype(template, src, dst)
    rules.region(template, dst, MemoryRegion.sbuf)
    if src.indirection is not None and src.region.on_chip:
        raise NkiValidationError("dma_transpose: an indirect src must be in HBM")
    _check_generator(template, attrs.dge_mode)
    if attrs.dge_mode is _dge_mode.hwdge:
        item, columns = ISA.dma_transpose_item_bytes, ISA.dma_transpose_columns
        if src.dtype.itemsize != item or src.shape[-1] > columns:
            raise NkiValidationError(
                f"dma_transpose with hwdge needs a {item}-byte dtype and src.shape[-1] <= {columns}, got {src.dtype} "
                f"{list(src.shape)}: leave dge_mode unset or use nc_transpose"
            )


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _compute_transpose(arrays: Sequence[np.ndarray], attrs: DmaTranspose) -> None:
    dst, src = arrays[0], arrays[1]
    dst[...] = src.transpose(attrs.axes).reshape(dst.shape)


_DMA_TRANSPOSE = define(
    "dma_transpose",
    writes("dst", SBUF),
    reads("src", HBM | SBUF),
    check=_check_transpose,
    compute=_compute_transpose,
    attrs_type=DmaTranspose,
    values={"axes": listed(integer(0, 3), 4, least=2)},
)


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: int | None = None,
    dge_mode: _dge_mode = _dge_mode.unknown,
    oob_mode: _oob_mode = _oob_mode.error,
    name: str | None = None,
) -> Instruction:
    """dst = src transposed by the DMA engines: axes (1, 0), (2, 1, 0) or (3, 1, 2, 0) by rank.

    dst in SBUF with src's dtype; src in HBM or SBUF. An indirect src (.ap(vector_offset=...)) gathers rows
    first. hwdge: 2-byte dtypes.
    """
    order = _TRANSPOSES.get(src.ndim, ()) if axes is None else tuple(int(a) for a in axes)
    attrs = DmaTranspose(order, _generator(dge_mode, src), oob_mode)
    return current().emit(_DMA_TRANSPOSE, Engine.dma, ("dst", "src"), "wr", (dst, src), attrs, name=name)


# --- dma_compute ----------------------------------------------------------------------------------


class DmaCompute(NamedTuple):
    reduce_op: str
    sources: int
    unique_indices: bool
    oob_mode: _oob_mode
    dge_mode: _dge_mode
    """Software where it gathers or scatters, else prepared in memory; nobody can choose."""


def _check_compute(template: Template) -> None:
    attrs: DmaCompute = template.attrs
    dst = rules.get(template, "dst")
    rules.engine(template, (Engine.dma,))
    if attrs.reduce_op != "add":
        raise NkiValidationError(f"dma_compute only adds: reduce_op must be nl.add, not nl.{attrs.reduce_op}")
    if not 1 <= attrs.sources <= ISA.dma_compute_sources:
        raise NkiValidationError(f"dma_compute takes 1 to {ISA.dma_compute_sources} srcs, got {attrs.sources}")
    sources = [rules.get(template, f"srcs[{i}]") for i in range(attrs.sources)]
    _no_psum(template, dst, *sources)
    for source in sources:
        if source.elements != dst.elements:
            raise NkiValidationError(
                f"dma_compute: {source.role} {list(source.shape)} and dst {list(dst.shape)} differ in size"
            )
    if attrs.dge_mode is not (_dge_mode.swdge if _indices(template.operands) else _dge_mode.none):
        raise NkiValidationError(f"dma_compute: dge_mode {attrs.dge_mode.name} is not the one that AWS names for it")
    if _indices(template.operands):
        if attrs.sources != 2 or not attrs.unique_indices:
            raise NkiValidationError("dma_compute with a vector_offset takes exactly 2 srcs and unique_indices=True")


def _compute_compute(arrays: Sequence[np.ndarray], attrs: DmaCompute) -> None:
    dst = arrays[0]
    total = numerics.read32(arrays[1]).reshape(dst.shape)
    for source in arrays[2:]:
        total = total + numerics.read32(source).reshape(dst.shape)
    numerics.write(dst, total)


_DMA_COMPUTE = define(
    "dma_compute",
    writes("dst", HBM | SBUF),
    several(reads("srcs[*]", HBM | SBUF), lambda attrs: int(attrs.sources)),
    check=_check_compute,
    compute=_compute_compute,
    attrs_type=DmaCompute,
    values={"reduce_op": one_of(("add",)), "sources": integer(1, ISA.dma_compute_sources)},
)


def dma_compute(
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Any,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: _oob_mode = _oob_mode.error,
    name: str | None = None,
) -> Instruction:
    """dst = srcs[0] + srcs[1] + ... in float32 by the DMA engines (reduce_op nl.add, scales all 1.0).

    Up to 16 sources in HBM or SBUF, as many elements as dst. Read-modify-write: pass dst, or its view with
    a vector_offset, as one of the two sources.
    """
    if scales is not None and (len(scales) != len(srcs) or any(s != 1.0 for s in scales)):
        raise NkiValidationError(f"dma_compute: scales must be 1.0 for each of {len(srcs)} srcs, not {list(scales)}")
    roles = ("dst", *[f"srcs[{i}]" for i in range(len(srcs))])
    generator = _generator(_dge_mode.unknown, dst, *srcs)
    generator = _dge_mode.none if generator is _dge_mode.unknown else generator
    attrs = DmaCompute(ops.name_of(reduce_op, "dma_compute"), len(srcs), bool(unique_indices), oob_mode, generator)
    return current().emit(_DMA_COMPUTE, Engine.dma, roles, "w" + "r" * len(srcs), (dst, *srcs), attrs, name=name)
