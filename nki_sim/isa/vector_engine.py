"""VectorE, and the elementwise instructions that Scalar and GpSimd share with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nki_sim.errors import NkiValidationError
from nki_sim.isa import numerics
from nki_sim.opcodes import define
from nki_sim.program import Engine, Template
from nki_sim.session import Instruction, current
from nki_sim.tensor import NkiTensor


def _check_copy(template: Template) -> None:
    dst, src = template.operands[:2]
    if (dst.partitions, dst.free_size) != (src.partitions, src.free_size):
        raise NkiValidationError(f"tensor_copy: src {list(src.shape)} and dst {list(dst.shape)} differ in size")


def _compute_copy(arrays: Sequence[np.ndarray], attrs: Any) -> None:
    dst, src = arrays[0], arrays[1]
    numerics.write(dst, src.reshape(dst.shape))


_TENSOR_COPY = define("tensor_copy", check=_check_copy, compute=_compute_copy)


def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None
) -> Instruction:
    """dst = src on chip, cast to dst's dtype."""
    where = Engine.vector if engine is Engine.unknown else engine
    return current().emit(_TENSOR_COPY, where, ("dst", "src"), "wr", (dst, src))
