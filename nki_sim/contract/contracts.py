"""What a program may say of an instruction: exactly which operands in which order, and which attributes.

Each opcode has one contract, written beside it (nki_sim.isa) and complete when it is defined: `Contract` raises for an
attribute without a check. Which operands there are and how each is accessed follows from the attributes, so a program
cannot say one thing to whoever checks and prices by role, and another to whoever executes by place.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from nki_sim.dtypes import ALL, DType, int32, int64, uint32, uint64
from nki_sim.errors import NkiValidationError
from nki_sim.machine import ISA, SIMULATED_VERSION
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Operand, Template

Attrs = Any
"""An instruction's attributes: a NamedTuple of its opcode's, or None."""

SBUF = frozenset({MemoryRegion.sbuf})
PSUM = frozenset({MemoryRegion.psum})
ON_CHIP = SBUF | PSUM
HBM = frozenset({MemoryRegion.private_hbm, MemoryRegion.shared_hbm})
REGISTER = frozenset({MemoryRegion.register})

LONG = frozenset({int64, uint64})
"""Of scalars (NKI 0.7) and of what moves and fills memory: no compute instruction takes them."""
ANY_DTYPE = frozenset(dtype for dtype in ALL.values() if dtype.since <= SIMULATED_VERSION) - LONG
FLOATS = frozenset(dtype for dtype in ANY_DTYPE if dtype.is_float)
INTEGERS = ANY_DTYPE - FLOATS
WORDS = frozenset({int32, uint32})
"""What registers hold."""

MOST_DIMENSIONS = 16
"""Of a tensor, and of a view of one."""

_MOST_INTEGER = 1 << 64
"""No attribute of an instruction has more bits."""
_BEYOND_FLOAT32 = float(np.finfo(np.float32).max) * (1 + 2.0**-25)
"""From here a number rounds to infinity; kernels write float32's largest in decimal digits, which lie above it."""


# --- operands -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """One operand that an instruction has, or several of one name, in its place."""

    role: str
    """The parameter's name; `srcs[*]` stands for srcs[0], srcs[1] and so on."""
    access: Callable[[Attrs], str]
    """`r` read, `w` written, `u` updated: as these attributes have it."""
    memories: frozenset[MemoryRegion]
    dtypes: frozenset[DType]
    count: Callable[[Attrs], tuple[int, int]]
    """How many there are with these attributes: at least, at most."""
    lanes: str | None = None
    """For a register of the engine: the operand whose partitions its lanes serve; empty for all lanes."""
    words: int = 0
    """For a register of the engine: elements of each lane."""

    def name(self, number: int) -> str:
        return self.role.replace("*", str(number))


def reads(
    role: str,
    memories: frozenset[MemoryRegion],
    dtypes: Collection[DType] = ANY_DTYPE,
    *,
    when: Callable[[Attrs], bool] | None = None,
) -> Slot:
    """`when`: it is there with these attributes and with no others."""
    return _slot("r", role, memories, dtypes, when)


def writes(
    role: str,
    memories: frozenset[MemoryRegion],
    dtypes: Collection[DType] = ANY_DTYPE,
    *,
    when: Callable[[Attrs], bool] | None = None,
    keeps: Callable[[Attrs], bool] | None = None,
) -> Slot:
    """All of it; with those attributes of which `keeps` is true, only some, so that it is updated."""
    if keeps is None:
        return _slot("w", role, memories, dtypes, when)
    kept = keeps
    return Slot(role, lambda attrs: "u" if kept(attrs) else "w", memories, frozenset(dtypes), _count(when))


def updates(role: str, memories: frozenset[MemoryRegion], dtypes: Collection[DType] = ANY_DTYPE) -> Slot:
    return _slot("u", role, memories, dtypes, None)


def perhaps(slot: Slot) -> Slot:
    """The same, and it may be missing: the caller decides, and no attribute says."""
    return replace(slot, count=lambda attrs: (0, slot.count(attrs)[1]))


def several(slot: Slot, number: Callable[[Attrs], int]) -> Slot:
    """As many as the attributes say."""
    return replace(slot, count=lambda attrs: (number(attrs), number(attrs)))


def state(
    role: str,
    access: Callable[[Attrs], str],
    dtype: DType,
    words: int,
    lanes: str = "",
    *,
    when: Callable[[Attrs], bool] | None = None,
) -> Slot:
    """Registers of the engine itself, of which there is one set: `words` for each partition of operand `lanes`."""
    return Slot(role, access, REGISTER, frozenset({dtype}), _count(when), lanes, words)


def _slot(
    letter: str,
    role: str,
    memories: frozenset[MemoryRegion],
    dtypes: Collection[DType],
    when: Callable[[Attrs], bool] | None,
) -> Slot:
    return Slot(role, lambda attrs: letter, memories, frozenset(dtypes), _count(when))


def _count(when: Callable[[Attrs], bool] | None) -> Callable[[Attrs], tuple[int, int]]:
    if when is None:
        return lambda attrs: (1, 1)
    there = when
    return lambda attrs: (1, 1) if there(attrs) else (0, 0)


# --- values of attributes -----------------------------------------------------------------------------------


class Value(NamedTuple):
    """What an attribute can be."""

    what: str
    """For people, behind "must be"."""
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return abs(value) <= _MOST_INTEGER
    return type(value) is float and (math.isinf(value) or abs(value) < _BEYOND_FLOAT32)


NUMBER = Value("a number that float32 holds, and not NaN", _is_number)
"""An immediate: engines compute in float32."""


def one_of(names: Collection[str]) -> Value:
    return Value(f"one of {len(names)} names", lambda value: type(value) is str and value in names)


def integer(low: int, high: int) -> Value:
    """low <= value <= high."""
    return Value(f"an integer from {low} to {high}", lambda value: type(value) is int and low <= value <= high)


FLAG = Value("true or false", lambda value: type(value) is bool)
INT32 = integer(-(1 << 31), (1 << 31) - 1)


def or_none(value: Value) -> Value:
    return Value(f"{value.what}, or nothing", lambda given: given is None or value.holds(given))


def listed(value: Value, most: int, least: int = 0) -> Value:
    """A tuple of such values."""
    return Value(
        f"{least} to {most} values, each {value.what}",
        lambda given: type(given) is tuple and least <= len(given) <= most and all(map(value.holds, given)),
    )


def _implied(hint: Any) -> Value | None:
    """What the declared type alone says completely: flags, immediates, and members of an enumeration; or nothing."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = set(typing.get_args(hint)) if is_union else {hint}
    given = kinds - {type(None)}
    kind = next(iter(given))
    if given == {bool}:
        found = FLAG
    elif float in given and given <= {int, float}:
        found = NUMBER
    elif len(given) == 1 and isinstance(kind, type) and issubclass(kind, Enum):
        found = Value(f"a member of {kind.__name__}", lambda value: type(value) is kind)
    else:
        return None
    return found if given == kinds else or_none(found)


@dataclass(frozen=True)
class Contract:
    """All that an instruction of one opcode may consist of. Raises ValueError where one is incomplete."""

    opcode: str
    operands: tuple[Slot, ...]
    """In the order in which `compute` finds them. Nothing else is an operand."""
    attrs_type: type | None = None
    """The NamedTuple that holds its attributes."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """By field of `attrs_type`; those of flags, immediates and enumerations follow from their types."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(self.attrs_type) if self.attrs_type is not None else {}
        complete = {name: self.values.get(name) or _implied(hint) for name, hint in hints.items()}
        missing = [name for name, value in complete.items() if value is None]
        unknown = sorted(set(self.values) - set(hints))
        if missing or unknown:
            raise ValueError(
                f"opcode {self.opcode}: "
                + (f"no values for attribute {missing[0]}" if missing else f"it has no attribute {unknown[0]}")
            )
        if not self.operands or len({slot.role for slot in self.operands}) != len(self.operands):
            raise ValueError(f"opcode {self.opcode}: operands must be declared, each once")
        object.__setattr__(self, "values", complete)


# --- what a template is held to -----------------------------------------------------------------------------


def check_contract(template: Template, contract: Contract) -> None:
    """The operands are the opcode's own, in its order, accessed as these attributes have it.

    Runs once per template. Raises NkiValidationError.
    """
    check_values(template, contract)
    own = _without_indices(template)
    at = 0
    for slot in contract.operands:
        least, most = slot.count(template.attrs)
        count = 0
        while count < most and at < len(own) and own[at].role == slot.name(count):
            _check_slot(template, own[at], slot)
            at, count = at + 1, count + 1
        if count < least:
            raise NkiValidationError(f"{template.opcode} needs an operand {slot.name(count)}")
    if at < len(own):
        raise _not_an_operand(template, own[at])


def check_values(template: Template, contract: Contract) -> None:
    """The attributes are of the opcode's type, and each is what it can be. Raises NkiValidationError."""
    attrs = template.attrs
    if contract.attrs_type is None:
        if attrs is not None:
            raise NkiValidationError(f"{template.opcode} takes no attributes")
        return
    if type(attrs) is not contract.attrs_type:
        raise NkiValidationError(f"{template.opcode}: its attributes are not a {contract.attrs_type.__name__}")
    for name, value in contract.values.items():
        given = getattr(attrs, name)
        if not value.holds(given):
            raise NkiValidationError(f"{template.opcode}: {name} is {str(given)[:60]}, and must be {value.what}")


def _check_slot(template: Template, operand: Operand, slot: Slot) -> None:
    if operand.access != slot.access(template.attrs):
        raise _not_an_operand(template, operand)
    if operand.region not in slot.memories:
        allowed = " or ".join(sorted({region.value for region in slot.memories}))
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} is in {operand.region.value}, must be in "
            f"{allowed}"
        )
    if operand.dtype not in slot.dtypes:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} cannot be {operand.dtype}: use "
            f"{' or '.join(sorted(slot.dtypes)[:8])}"
        )
    if slot.lanes is not None:
        _check_lanes(template, operand, slot)


def _check_lanes(template: Template, operand: Operand, slot: Slot) -> None:
    served = template.operand(slot.lanes) if slot.lanes else None
    count = ISA.partitions if served is None else served.partitions
    if operand.pattern != ((slot.words, count), (1, slot.words)) or operand.indirection is not None:
        raise NkiValidationError(
            f"{template.opcode}: {operand.role} {list(operand.shape)} are not the registers of its {count} lanes"
        )


def lanes_start(template: Template, slot: Slot) -> int:
    """The element of the engine's registers at which those of this instruction's lanes begin."""
    served = template.operand(slot.lanes) if slot.lanes else None
    return 0 if served is None else served.partition_start * slot.words


def _without_indices(template: Template) -> list[Operand]:
    """The operands without the tensors that steer them, each of which is checked."""
    own: list[Operand] = []
    for at, operand in enumerate(template.operands):
        steered = template.operands[at - 1] if at else None
        if steered is None or steered.indirection is None:
            own.append(operand)
        elif operand.indirection is not None or operand.role != f"{steered.role}.index" or operand.access != "r":
            raise _not_an_operand(template, operand)
        else:
            _check_index(template, operand, steered)
    if template.operands and template.operands[-1].indirection is not None:
        raise NkiValidationError(f"{template.opcode}: {template.operands[-1].role} has no index behind it")
    return own


def _check_index(template: Template, index: Operand, steered: Operand) -> None:
    """NKI access patterns: a scalar_offset is a register or in SBUF, a vector_offset is in SBUF. NKI's page of
    scalar_load: an int64 scalar is an offset into HBM only."""
    vector = steered.indirection is not None and steered.indirection[0] == "vector"
    if index.region is not MemoryRegion.sbuf and (index.region is not MemoryRegion.register or vector):
        raise NkiValidationError(
            f"{template.opcode}: {index.role} {list(index.shape)} is in {index.region.value}, an index is read from "
            "SBUF: load it with nisa.dma_copy"
        )
    if index.dtype == int64 and index.region is MemoryRegion.register:
        if steered.region.on_chip:
            raise NkiValidationError(
                f"{template.opcode}: {steered.role} {list(steered.shape)} is in {steered.region.value}, where an "
                "offset is an int32 scalar: load it from an int32 tile"
            )
        return
    if index.dtype not in INTEGERS:
        raise NkiValidationError(
            f"{template.opcode}: {index.role} {list(index.shape)} is {index.dtype}, not an integer"
        )


def _not_an_operand(template: Template, operand: Operand) -> NkiValidationError:
    return NkiValidationError(
        f"{template.opcode} has no operand {operand.role[:40]!r} in that place with access {operand.access}"
    )
