"""Registers: `register_alloc` makes one, the others are instructions of the sequencer (SyncE's here)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nki_sim.contract import rules
from nki_sim.contract.contracts import HBM, REGISTER, SBUF, WORDS, integer, reads, writes
from nki_sim.contract.opcodes import Opcode, define
from nki_sim.dtypes import int32
from nki_sim.errors import NkiValidationError
from nki_sim.isa.registers.scalars import NkiScalar
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Template
from nki_sim.tracing.session import Instruction, VirtualRegister, current, new_register
from nki_sim.tracing.tensor import NkiTensor


class RegisterSet(NamedTuple):
    value: int


def _check_set(template: Template) -> None:
    rules.engine(template, (Engine.sync,))
    if template.operands[0].region is not MemoryRegion.register or not -(1 << 31) <= template.attrs.value < 1 << 32:
        raise NkiValidationError(f"register_move: {template.attrs.value} does not fit a 32-bit register")


def _compute_set(arrays: Sequence[np.ndarray], attrs: RegisterSet) -> None:
    arrays[0][...] = np.array(attrs.value, np.int64).astype(np.int32)


def _check_move(template: Template) -> None:
    rules.engine(template, (Engine.sync,))
    dst, src = template.operands
    if dst.elements != 1 or src.elements != 1:
        raise NkiValidationError(
            f"{template.opcode} moves one value: src {list(src.shape)} and dst {list(dst.shape)} must hold one element"
        )
    wanted = {
        "register_copy": (MemoryRegion.register, MemoryRegion.register),
        "register_load": (MemoryRegion.register, None),
        "register_store": (None, MemoryRegion.register),
    }[template.opcode]
    for operand, region in zip((dst, src), wanted):
        if (operand.region is MemoryRegion.register) != (region is MemoryRegion.register):
            raise NkiValidationError(f"{template.opcode}: {operand.role} is in {operand.region.value}")
        if operand.region is MemoryRegion.psum:
            raise NkiValidationError(f"{template.opcode} reaches SBUF and HBM, not PSUM: copy it to SBUF first")
        if operand.dtype.itemsize != 4 or operand.dtype.is_float:
            raise NkiValidationError(f"{template.opcode}: {operand.role} is {operand.dtype}, not int32 or uint32")


def _compute_move(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, src = arrays
    dst[...] = src.astype(dst.dtype).reshape(dst.shape)


def _moves(name: str, into: frozenset[MemoryRegion], out_of: frozenset[MemoryRegion]) -> Opcode:
    dst, src = writes("dst", into, WORDS), reads("src", out_of, WORDS)
    return define(name, dst, src, check=_check_move, compute=_compute_move)


_SET = define(
    "register_set",
    writes("dst", REGISTER, WORDS),
    check=_check_set,
    compute=_compute_set,
    attrs_type=RegisterSet,
    values={"value": integer(-(1 << 31), (1 << 32) - 1)},
)
_COPY = _moves("register_copy", REGISTER, REGISTER)
_LOAD = _moves("register_load", REGISTER, HBM | SBUF)
_STORE = _moves("register_store", HBM | SBUF, REGISTER)


def register_alloc(x: int | None = None) -> VirtualRegister:
    """A new 32-bit register, set to `x` when it is given."""
    register = new_register(current(), None)
    if x is not None:
        register_move(register, x)
    return register


def register_move(dst: VirtualRegister, src: Any, name: str | None = None) -> Instruction:
    """dst = src, an integer constant, another register, or an int32 scalar (the index of a device loop)."""
    _need_register(dst, "register_move", "dst")
    if isinstance(src, (NkiScalar, VirtualRegister)):
        src = _register_of(src, "register_move")
        return current().emit(_COPY, Engine.sync, ("dst", "src"), "wr", (dst, src), name=name)
    try:
        value = operator.index(src)
    except TypeError:
        raise NkiValidationError(f"register_move: src must be an integer or a register, not {src!r}") from None
    return current().emit(_SET, Engine.sync, ("dst",), "w", (dst,), RegisterSet(value), name)


def register_load(dst: VirtualRegister, src: NkiTensor, name: str | None = None) -> Instruction:
    """dst = the one 32-bit integer in src, a tensor in SBUF or HBM."""
    _need_register(dst, "register_load", "dst")
    return current().emit(_LOAD, Engine.sync, ("dst", "src"), "wr", (dst, src), name=name)


def register_store(dst: NkiTensor, src: Any, name: str | None = None) -> Instruction:
    """The one 32-bit integer in dst, a tensor in SBUF or HBM, = src, a register or the index of a device loop."""
    src = _register_of(src, "register_store")
    return current().emit(_STORE, Engine.sync, ("dst", "src"), "wr", (dst, src), name=name)


def _register_of(value: Any, what: str) -> NkiTensor:
    """A register, or that of an int32 scalar: up to NKI 0.6 a loop's index was a register, and kernels move it."""
    if isinstance(value, NkiScalar) and value.dtype == int32:
        return value.steering()
    _need_register(value, what, "src")
    register: NkiTensor = value
    return register


def _need_register(value: Any, what: str, role: str) -> None:
    if not isinstance(value, VirtualRegister):
        raise NkiValidationError(f"{what}: {role} must come from nisa.register_alloc(), not {value!r}")
