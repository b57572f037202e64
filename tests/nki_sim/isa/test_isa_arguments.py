"""Calls that Python refuses: the error says which argument of which instruction, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nki_sim
from nki_sim.errors import NkiValidationError
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl


def sb(*shape: int) -> Any:
    return nl.ndarray(shape, nl.float32, buffer=nl.sbuf)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: nisa.tensor_tensor(sb(8, 8), sb(8, 8), 2.0, nl.add), "tensor_tensor: data2 .*got 2.0"),
    (lambda: nisa.tensor_copy(dst=sb(8, 8), src=nisa.memset(sb(8, 8), 0.0)), "tensor_copy: src must be a tensor"),
    (lambda: nisa.reciprocal(dst=None, data=sb(8, 8)), "reciprocal: dst must be a tensor.*nl.ndarray"),
    (lambda: nisa.dma_copy(dst=sb(8, 8), src=np.zeros((8, 8))), "dma_copy: src .*NumPy array.*shared_constant"),
    (lambda: nisa.activation(sb(8, 8), nl.exp, sb(8, 8), bias=[1.0]), "bias"),
    (lambda: nisa.dma_compute(sb(8, 8), [sb(8, 8), 3], nl.add), "srcs must be a list.*got 3"),
    (lambda: nisa.tensor_copy(sb(8, 8), sb(8, 8), mask=None), "unexpected keyword argument 'mask'"),
    (lambda: nisa.tensor_tensor(data1=sb(8, 8), data2=sb(8, 8), op=nl.add), "instructions return no tensor"),
    (lambda: nisa.reciprocal(sb(8, 8), sb(8, 8), "name", 1), "takes.*parameters are"),
]


@pytest.mark.parametrize(("body", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_wrong_argument_is_named(body: Callable[[], Any], message: str) -> None:
    def kernel() -> None:
        body()

    with pytest.raises(NkiValidationError, match=f"(?s){message}") as raised:
        nki_sim.trace(kernel)
    assert raised.value.line is not None and "\n" not in str(raised.value)
