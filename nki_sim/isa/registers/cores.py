"""Where the two cores of a logical core meet: `core_barrier` and `sendrecv` (LNC 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nki_sim.contract import rules
from nki_sim.contract.contracts import HBM, INT32, ON_CHIP, SBUF, integer, listed, reads, updates, writes
from nki_sim.contract.opcodes import define
from nki_sim.errors import NkiValidationError
from nki_sim.isa.constants import dma_engine as _dma_engine
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor


class SendRecv(NamedTuple):
    send_to_rank: int
    recv_from_rank: int
    pipe_id: int
    dma_engine: _dma_engine


class CoreBarrier(NamedTuple):
    cores: tuple[int, ...]


def _check_sendrecv(template: Template) -> None:
    src, dst = template.operands
    rules.engine(template, (Engine.dma,))
    for operand in (src, dst):
        if operand.region is not MemoryRegion.sbuf:
            raise NkiValidationError(f"sendrecv moves SBUF tensors; {operand.role} is in {operand.region.value}")
    if src.shape != dst.shape or src.dtype != dst.dtype:
        raise NkiValidationError(
            f"sendrecv: src {list(src.shape)} {src.dtype} and dst {list(dst.shape)} {dst.dtype} must be alike"
        )


def _copy_to_itself(arrays: Sequence[np.ndarray], attrs: SendRecv) -> None:
    """One core alone sends to itself."""
    arrays[1][...] = arrays[0]


def _check_barrier(template: Template) -> None:
    rules.engine(template, (Engine.tensor, Engine.vector, Engine.scalar, Engine.gpsimd, Engine.sync))
    if sorted(template.attrs.cores) != list(range(len(template.attrs.cores))):
        raise NkiValidationError(f"core_barrier: cores={template.attrs.cores} must be (0, 1)")


def _nothing(arrays: Sequence[np.ndarray], attrs: CoreBarrier) -> None:
    """A barrier changes no data."""


_RANK = integer(0, ISA.logical_core_cores - 1)
_SENDRECV = define(
    "sendrecv",
    reads("src", SBUF),
    writes("dst", SBUF),
    check=_check_sendrecv,
    compute=_copy_to_itself,
    attrs_type=SendRecv,
    values={"send_to_rank": _RANK, "recv_from_rank": _RANK, "pipe_id": INT32},
    meets="transfer",
)
_CORE_BARRIER = define(
    "core_barrier",
    updates("data", HBM | ON_CHIP),
    check=_check_barrier,
    compute=_nothing,
    attrs_type=CoreBarrier,
    values={"cores": listed(_RANK, ISA.logical_core_cores, least=1)},
    meets="barrier",
)


def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: _dma_engine = _dma_engine.dma,
    name: str | None = None,
) -> Instruction:
    """Send src to one core and receive dst from one, both in SBUF; both cores must call it with the same pipe_id."""
    attrs = SendRecv(int(send_to_rank), int(recv_from_rank), int(pipe_id), dma_engine)
    return current().emit(_SENDRECV, Engine.dma, ("src", "dst"), "rw", (src, dst), attrs, name)


def core_barrier(data: NkiTensor, cores: Any, engine: Engine = Engine.gpsimd, name: str | None = None) -> Instruction:
    """Both cores wait here until both have finished what they did to `data`, a tensor in shared_hbm."""
    where = Engine.gpsimd if engine is Engine.unknown else engine
    attrs = CoreBarrier(tuple(int(c) for c in cores))
    return current().emit(_CORE_BARRIER, where, ("data",), "u", (data,), attrs, name)
