"""The DMA engines: data movement between HBM and SBUF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nki_sim.errors import NkiValidationError
from nki_sim.isa import numerics
from nki_sim.isa.constants import dge_mode as _dge_mode
from nki_sim.isa.constants import oob_mode as _oob_mode
from nki_sim.memory import MemoryRegion
from nki_sim.opcodes import define
from nki_sim.program import Engine, Template
from nki_sim.session import Instruction, current
from nki_sim.tensor import NkiTensor


class DmaCopy(NamedTuple):
    queue: Engine
    dge_mode: _dge_mode
    oob_mode: _oob_mode


def _check_copy(template: Template) -> None:
    dst, src = template.operands[0], template.operand("src")
    assert src is not None
    for operand in (dst, src):
        if operand.region is MemoryRegion.psum:
            raise NkiValidationError(
                f"dma_copy cannot touch PSUM ({operand.role} {list(operand.shape)}): copy it to SBUF "
                "with tensor_copy first"
            )
    if dst.elements != src.elements:
        raise NkiValidationError(
            f"dma_copy moves {src.elements} elements of src {list(src.shape)} into {dst.elements} of "
            f"dst {list(dst.shape)}: the counts must match"
        )
    attrs: DmaCopy = template.attrs
    if attrs.dge_mode is _dge_mode.hwdge and dst.dtype != src.dtype:
        raise NkiValidationError(f"dma_copy with dge_mode.hwdge cannot cast {src.dtype} to {dst.dtype}")


def _compute_copy(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, src = arrays[0], arrays[1]
    if src.shape != dst.shape:
        src = src.reshape(dst.shape)
    if src.dtype == dst.dtype:
        dst[...] = src
    else:
        numerics.write(dst, numerics.read32(src))


_DMA_COPY = define("dma_copy", check=_check_copy, compute=_compute_copy, attrs_type=DmaCopy)


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: _oob_mode = _oob_mode.error,
    dge_mode: _dge_mode = _dge_mode.unknown,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Instruction:
    """dst = src, between HBM and SBUF in any combination; a cast goes through float32.

    `engine` names the queue that issues the transfer. Element counts must match; shapes need not.
    """
    return current().emit(_DMA_COPY, Engine.dma, ("dst", "src"), "wr", (dst, src), DmaCopy(engine, dge_mode, oob_mode))
