"""Random numbers: one XORWOW generator per lane, in Vector and in GpSimd.

AWS names the algorithm and the number of state words (rand_set_state page) but not how the seed becomes
the state, so sequences are reproducible here and differ from a device's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from nki_sim import dtypes
from nki_sim.contract import rules
from nki_sim.contract.contracts import FLOATS, ON_CHIP, SBUF, Slot, reads, state, writes
from nki_sim.contract.opcodes import define
from nki_sim.errors import NkiValidationError, NotSupported
from nki_sim.isa.arithmetic import accumulators, numerics, ops
from nki_sim.isa.arithmetic.shared import Number
from nki_sim.machine import ISA, first_with
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine, Template
from nki_sim.tracing.session import Instruction, current
from nki_sim.tracing.tensor import NkiTensor

STATE_WORDS = 6
_WEYL_STEP = np.uint32(362437)
_INTEGERS = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.uint8, dtypes.uint16, dtypes.uint32)


def seeded(seed: int) -> np.ndarray:
    """The generators' state uint32 [128, 6] for a 32-bit seed: splitmix64 over lane and word."""
    index = np.arange(ISA.partitions * STATE_WORDS, dtype=np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        z = np.uint64(seed & 0xFFFFFFFF) + index * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words: np.ndarray = (z ^ (z >> np.uint64(31))).astype(np.uint32).reshape(ISA.partitions, STATE_WORDS)
    return words | np.uint32(1)


def first_state() -> np.ndarray:
    """What the generators hold before the first instruction."""
    return seeded(0)


def _generators(engine: Engine, partitions: slice) -> NkiTensor:
    words = accumulators.state(engine, "random generators", STATE_WORDS, dtypes.uint32, first_state())
    return words[partitions]


def draw(state: np.ndarray, count: int) -> np.ndarray:
    """The next uint32 [P, count] of generators [P, 6], which advance in place."""
    x, y, z, w, v, d = (state[:, i].copy() for i in range(STATE_WORDS))
    result = np.empty((count, state.shape[0]), np.uint32)
    with np.errstate(over="ignore"):
        for i in range(count):
            t = x ^ (x >> np.uint32(2))
            x, y, z, w = y, z, w, v
            v = (v ^ (v << np.uint32(4))) ^ (t ^ (t << np.uint32(1)))
            d = d + _WEYL_STEP
            result[i] = d + v
    for i, word in enumerate((x, y, z, w, v, d)):
        state[:, i] = word
    return result.T


def _lanes_of(tensor: NkiTensor) -> slice:
    start = tensor.partition_start
    return slice(start, min(start + tensor.shape[0], ISA.partitions))


def _generator_words(letter: str, lanes: str) -> Slot:
    return state("state", lambda attrs: letter, dtypes.uint32, STATE_WORDS, lanes)


# --- rng ------------------------------------------------------------------------------------------


def _check_rng(template: Template) -> None:
    dst = rules.get(template, "dst")
    rules.get(template, "state")
    rules.computed_on(template, Engine.vector, Engine.gpsimd)
    rules.dtype_in(template, dst, _INTEGERS)


def _compute_rng(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, state = arrays[0], arrays[1]
    bits = draw(state, dst.size // dst.shape[0])
    dst[...] = bits.astype(f"u{dst.dtype.itemsize}").view(dst.dtype).reshape(dst.shape)


_RNG = define(
    "rng", writes("dst", ON_CHIP, _INTEGERS), _generator_words("u", "dst"), check=_check_rng, compute=_compute_rng
)


def rng(dst: NkiTensor, engine: Engine = Engine.vector, name: str | None = None) -> Instruction:
    """Fill an integer tile with random bits (the low bits of 32-bit numbers); Vector or GpSimd."""
    state = _generators(engine, _lanes_of(dst))
    return current().emit(_RNG, engine, ("dst", "state"), "wu", (dst, state), name=name)


# --- dropout --------------------------------------------------------------------------------------


class Dropout(NamedTuple):
    prob: Union[int, float] | None
    """None: a tensor [P, 1]."""


def _check_dropout(template: Template) -> None:
    attrs: Dropout = template.attrs
    dst, data = rules.get(template, "dst"), rules.get(template, "data")
    rules.get(template, "state")
    rules.computed_on(template, Engine.vector)
    rules.same_size(template, dst, data)
    rules.same_dtype(template, data, dst)
    prob = template.operand("prob")
    if (prob is None) == (attrs.prob is None):
        raise NkiValidationError("dropout: prob must be a number or a [P, 1] tile")
    if prob is not None:
        rules.per_partition(template, prob, data)
        if not prob.dtype.is_float or (not data.dtype.is_float and prob.dtype != dtypes.float32):
            raise NkiValidationError(f"dropout: prob must be float32 for {data.dtype} data, not {prob.dtype}")
    elif attrs.prob is not None and not 0 <= attrs.prob <= 1:
        raise NkiValidationError(f"dropout: prob {attrs.prob} is not a probability")


def _compute_dropout(arrays: Sequence[np.ndarray], attrs: Dropout) -> None:
    dst, data, state = arrays[0], numerics.shaped(arrays[1], arrays[0].shape), arrays[2]
    prob: Any = numerics.column(arrays[3], 2) if attrs.prob is None else np.float32(attrs.prob)
    uniform = draw(state, dst.size // dst.shape[0]) / 2**32
    dropped = (uniform < prob).reshape(dst.shape)
    dst[...] = np.where(dropped, np.zeros((), dst.dtype), data)


_DROPOUT = define(
    "dropout",
    writes("dst", ON_CHIP),
    reads("data", ON_CHIP),
    _generator_words("u", "data"),
    reads("prob", ON_CHIP, FLOATS, when=lambda attrs: attrs.prob is None),
    check=_check_dropout,
    compute=_compute_dropout,
    attrs_type=Dropout,
)


def dropout(dst: NkiTensor, data: NkiTensor, prob: Number | NkiTensor, name: str | None = None) -> Instruction:
    """dst = data with each element zeroed with probability `prob` (number or tile [P, 1]); no rescaling. Vector."""
    roles: tuple[str, ...] = ("dst", "data", "state")
    operands: tuple[NkiTensor, ...] = (dst, data, _generators(Engine.vector, _lanes_of(data)))
    number: Number | None = None
    if isinstance(prob, NkiTensor):
        roles, operands = (*roles, "prob"), (*operands, prob)
    else:
        number = ops.scalar(prob, "dropout: prob")
    return current().emit(_DROPOUT, Engine.vector, roles, "wrur"[: len(roles)], operands, Dropout(number), name=name)


# --- seeds and states -----------------------------------------------------------------------------


def _check_seed(template: Template) -> None:
    seed = rules.get(template, "src_seeds")
    rules.get(template, "state")
    rules.computed_on(template, Engine.vector)
    if seed.elements != 1 or seed.dtype.itemsize != 4:
        raise NkiValidationError(
            f"set_rng_seed: src_seeds {list(seed.shape)} {seed.dtype} must be one 32-bit value, [1, 1]"
        )


def _compute_seed(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    arrays[0][...] = seeded(int(arrays[1].reshape(-1).view(np.uint32)[0]))


_SEED = define(
    "set_rng_seed", _generator_words("w", ""), reads("src_seeds", ON_CHIP), check=_check_seed, compute=_compute_seed
)


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> Instruction:
    """Seed Vector's generators with the 32-bit value in a [1, 1] tile: the same seed, the same numbers."""
    state = _generators(Engine.vector, slice(0, ISA.partitions))
    return current().emit(_SEED, Engine.vector, ("state", "src_seeds"), "wr", (state, src_seeds), name=name)


def _check_state(template: Template) -> None:
    tile = template.operand("src_seeds") or rules.get(template, "dst")
    rules.get(template, "state")
    rules.computed_on(template, Engine.gpsimd)
    rules.region(template, tile, MemoryRegion.sbuf)
    rules.dtype_in(template, tile, (dtypes.uint32,))
    rules.free_range(template, tile, STATE_WORDS, STATE_WORDS)


def _compute_state(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    arrays[0][...] = arrays[1].reshape(arrays[0].shape)


_SET_STATE = define(
    "rand_set_state",
    _generator_words("w", "src_seeds"),
    reads("src_seeds", SBUF, (dtypes.uint32,)),
    check=_check_state,
    compute=_compute_state,
)
_GET_STATE = define(
    "rand_get_state",
    writes("dst", SBUF, (dtypes.uint32,)),
    _generator_words("r", "dst"),
    check=_check_state,
    compute=_compute_state,
)


def _only_gpsimd(engine: Engine, what: str) -> None:
    if engine is not Engine.gpsimd:
        raise NotSupported(f"{what} on {engine.name} needs {first_with(4)}: use nisa.engine.gpsimd")


def rand_set_state(src_seeds: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> Instruction:
    """Set GpSimd's generators from a uint32 tile [P, 6], one generator for each partition."""
    _only_gpsimd(engine, "rand_set_state")
    state = _generators(Engine.gpsimd, _lanes_of(src_seeds))
    return current().emit(_SET_STATE, Engine.gpsimd, ("state", "src_seeds"), "wr", (state, src_seeds), name=name)


def rand_get_state(dst: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> Instruction:
    """Store GpSimd's generators in a uint32 tile [P, 6]."""
    _only_gpsimd(engine, "rand_get_state")
    state = _generators(Engine.gpsimd, _lanes_of(dst))
    return current().emit(_GET_STATE, Engine.gpsimd, ("dst", "state"), "wr", (dst, state), name=name)
