"""VectorE: mean and variance in two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nki_sim.contracts import ON_CHIP, reads, writes
from nki_sim.errors import NkiValidationError
from nki_sim.isa import numerics, rules
from nki_sim.machine import ISA
from nki_sim.opcodes import define
from nki_sim.program import Engine, Template
from nki_sim.session import Instruction, current
from nki_sim.tensor import NkiTensor


def _check_stats(template: Template) -> None:
    dst, data = rules.get(template, "dst"), rules.get(template, "data")
    rules.on_chip(template)
    rules.engine(template, (Engine.vector,))
    rules.free_range(template, data, 1, ISA.bn_stats_fmax)
    if dst.partitions != data.partitions or dst.free_size != 6:
        raise NkiValidationError(
            f"bn_stats: dst {list(dst.shape)} must be [{data.partitions}, 6] for data {list(data.shape)}"
        )


def _compute_stats(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, data = arrays[0], numerics.read32(arrays[1])
    rows = data.reshape(data.shape[0], -1)
    result = np.zeros((rows.shape[0], 6), np.float32)
    for at, half in ((0, rows[:, 0::2]), (3, rows[:, 1::2])):
        count = half.shape[1]
        if count:
            mean = half.mean(axis=1, dtype=np.float32)
            result[:, at] = count
            result[:, at + 1] = mean
            result[:, at + 2] = np.square(half - mean[:, None]).sum(axis=1)
    numerics.write(dst, result.reshape(dst.shape))


_BN_STATS = define(
    "bn_stats", writes("dst", ON_CHIP), reads("data", ON_CHIP), check=_check_stats, compute=_compute_stats
)


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """dst[P, 6] = (count, mean, variance * count) of the even, then of the odd elements of data; on Vector.

    At most 512 elements per partition; several results side by side go to bn_aggr.
    """
    return current().emit(_BN_STATS, Engine.vector, ("dst", "data"), "wr", (dst, data), name=name)


def _check_aggr(template: Template) -> None:
    dst, data = rules.get(template, "dst"), rules.get(template, "data")
    rules.on_chip(template)
    rules.engine(template, (Engine.vector,))
    if data.free_size % 3:
        raise NkiValidationError(
            f"bn_aggr: data {list(data.shape)} must hold whole (count, mean, variance * count) triples from bn_stats"
        )
    if dst.partitions != data.partitions or dst.free_size != 2:
        raise NkiValidationError(
            f"bn_aggr: dst {list(dst.shape)} must be [{data.partitions}, 2] for data {list(data.shape)}"
        )


def _compute_aggr(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, data = arrays[0], numerics.read32(arrays[1])
    triples = data.reshape(data.shape[0], -1, 3)
    count, mean, scaled = triples[..., 0], triples[..., 1], triples[..., 2]
    total = count.sum(axis=1)
    overall = (count * mean).sum(axis=1) / total
    spread = scaled.sum(axis=1) + (count * np.square(mean - overall[:, None])).sum(axis=1)
    numerics.write(dst, np.stack([overall, spread / total], axis=1).reshape(dst.shape))


_BN_AGGR = define("bn_aggr", writes("dst", ON_CHIP), reads("data", ON_CHIP), check=_check_aggr, compute=_compute_aggr)


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """dst[P, 2] = mean and (population) variance from one or more bn_stats results in data[P, 3 n]; on Vector."""
    return current().emit(_BN_AGGR, Engine.vector, ("dst", "data"), "wr", (dst, data), name=name)
