"""Each rule of the hardware, broken once: the error names the rule and the shape, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nki_sim
from nki_sim.errors import NkiError, NkiValidationError, NotSupported
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl

F32, BF16, I32, U32, U8 = nl.float32, nl.bfloat16, nl.int32, nl.uint32, nl.uint8


def sb(*shape: int, dtype: Any = F32) -> Any:
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def ps(*shape: int, dtype: Any = F32) -> Any:
    return nl.ndarray(shape, dtype, buffer=nl.psum)


def hbm(*shape: int, dtype: Any = F32) -> Any:
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


def matmul(dst: Any, stationary: Any, moving: Any, **options: Any) -> None:
    nisa.nc_matmul(dst=dst, stationary=stationary, moving=moving, **options)


def scalar(dst: Any, data: Any, op0: Any, operand0: Any, **options: Any) -> None:
    nisa.tensor_scalar(dst=dst, data=data, op0=op0, operand0=operand0, **options)


def tensor(dst: Any, data1: Any, data2: Any, op: Any, **options: Any) -> None:
    nisa.tensor_tensor(dst=dst, data1=data1, data2=data2, op=op, **options)


ENGINE = nisa.engine
Case = tuple[Callable[[], Any], str]

MEMORY: list[Case] = [
    (lambda: nisa.tensor_copy(sb(8, 8), hbm(8, 8)), "cannot access src.*dma_copy"),
    (lambda: nisa.dma_copy(hbm(8, 8), ps(8, 8)), "cannot touch PSUM.*tensor_copy"),
    (lambda: nisa.dma_copy(ps(8, 8), hbm(8, 8)), "cannot touch PSUM"),
    (lambda: tensor(sb(8, 8), ps(8, 8), ps(8, 8), nl.add), "cannot both be in PSUM.*copy"),
    (lambda: nisa.scalar_tensor_tensor(sb(8, 8), ps(8, 8), nl.add, 1.0, nl.add, ps(8, 8)), "cannot both be in PSUM"),
    (lambda: nisa.tensor_tensor_scan(sb(8, 8), ps(8, 8), ps(8, 8), 0.0, nl.multiply, nl.add), "cannot both be in PSUM"),
    (lambda: nisa.tensor_copy(sb(8, 8), ps(8, 8), engine=ENGINE.gpsimd), "GpSimd cannot access PSUM"),
    (lambda: nisa.memset(ps(8, 8), 0.0, engine=ENGINE.gpsimd), "GpSimd cannot access PSUM"),
    (lambda: nisa.iota(ps(8, 8), [[1, 8]]), "GpSimd cannot access PSUM"),
    (lambda: nisa.affine_select(sb(8, 8), [[1, 8]], 1, ps(8, 8), 0.0), "GpSimd cannot access PSUM"),
    (lambda: tensor(sb(8, 8), ps(8, 8), sb(8, 8), nl.power), "power runs on GpSimd"),
    (lambda: nl.rsqrt(ps(8, 8)), "GpSimd.*copy"),
    (lambda: matmul(ps(8, 8), ps(8, 8), sb(8, 8)), "stationary.*from SBUF"),
    (lambda: matmul(sb(8, 8), sb(8, 8), sb(8, 8)), "writes to PSUM"),
    (lambda: nisa.nc_transpose(sb(8, 8), sb(8, 8), engine=ENGINE.tensor), "reads SBUF and writes PSUM"),
    (lambda: nisa.dma_transpose(hbm(8, 8), hbm(8, 8)), "must be in sbuf"),
    (lambda: nisa.memset(ps(8, 8, dtype=BF16), 0.0), "NCC_IBIR441"),
    (lambda: nisa.local_gather(sb(16, 16), ps(16, 8), sb(16, 1, dtype=nl.uint16)), "PSUM"),
]

PARTITIONS: list[Case] = [
    (lambda: nisa.memset(sb(128, 8)[16:32], 0.0), "partition 16.*0 or 32 or 64 or 96"),
    (lambda: nisa.memset(sb(128, 8)[32:65], 0.0), "partition 32.*0 or 64"),
    (lambda: nisa.memset(sb(128, 8)[32:97], 0.0), "partition 32.*at 0:"),
    (lambda: tensor(sb(8, 8), sb(8, 8), sb(32, 8)[10:18], nl.add), "data2.*partition 10.*dma_copy"),
    (lambda: matmul(ps(8, 8), sb(64, 8)[8:16], sb(8, 8)), "stationary.*partition 8"),
    (lambda: nisa.nc_stream_shuffle(sb(128, 8)[32:96], sb(128, 8)[0:64], [0] * 32), "partition 32.*64 active"),
    (lambda: nisa.nc_stream_shuffle(sb(32, 8), sb(4, 8), list(range(32))), "sends partition 4"),
    (lambda: nisa.nc_stream_shuffle(sb(32, 8), sb(32, 8), [0] * 31), "32 numbers"),
    (lambda: nisa.nc_stream_shuffle(sb(32, 8), sb(32, 8), [32] * 32), "0 to 31"),
]

SHAPES: list[Case] = [
    (lambda: nisa.tensor_copy(sb(8, 8), sb(8, 9)), "same partitions and elements"),
    (lambda: tensor(sb(8, 8), sb(8, 8), sb(8, 1), nl.add), r"data2 \[8, 1\].*nisa.tensor_scalar"),
    (lambda: tensor(sb(8, 8), sb(8, 8), sb(1, 8), nl.add), "repeat one row.*nc_matmul"),
    (lambda: scalar(sb(8, 8), sb(8, 8), nl.add, sb(8, 8)), r"shape \[8, 1\]"),
    (lambda: nisa.activation(sb(8, 8), nl.exp, sb(8, 8), bias=sb(4, 1)), "bias"),
    (lambda: nisa.activation_reduce(sb(8, 8), nl.exp, sb(8, 8), nl.add, sb(8, 8)), "one element for each partition"),
    (lambda: nisa.dma_copy(sb(8, 8), hbm(8, 9)), "72 elements.*64"),
    (lambda: nisa.tensor_reduce(sb(8, 8), nl.add, sb(8, 8), 1), "8 partitions of 1"),
    (lambda: nisa.tensor_reduce(sb(1, 8), nl.add, sb(8, 8), 0), "last free.*nc_transpose"),
    (lambda: nisa.tensor_reduce(sb(8, 4), nl.add, sb(8, 2, 4), 1), "last free dimension"),
    (lambda: matmul(ps(8, 8), sb(16, 8), sb(8, 8)), "contraction mismatch"),
    (lambda: matmul(ps(128, 8), sb(8, 129), sb(8, 8)), "M 129 <= 128"),
    (lambda: matmul(ps(8, 8), sb(8, 8), sb(8, 513)), "N 513 <= 512"),
    (lambda: matmul(ps(8, 9), sb(8, 8), sb(8, 8)), r"\[M, N\] = \[8, 8\]"),
    (lambda: matmul(ps(8, 1024)[:, 256:768], sb(8, 8), sb(8, 512)), "crosses a bank"),
    (lambda: nisa.nc_transpose(ps(128, 128), sb(128, 129)), r"must be \[129, 128\]"),
    (lambda: nisa.nc_transpose(sb(64, 64), sb(64, 64), engine=ENGINE.vector), r"at most \[32, 32\]"),
    (lambda: nisa.nc_transpose(ps(8, 16), sb(8, 16)), r"must be \[16, 8\]"),
    (lambda: nisa.dma_transpose(sb(8, 16), hbm(8, 16)), r"must be \[16, 8\]"),
    (lambda: nisa.dma_transpose(sb(8, 4, 2), hbm(8, 4, 2), axes=(0, 2, 1)), "axes"),
    (lambda: nisa.iota(sb(8, 8), [[1, 7]]), "7 elements"),
    (lambda: nisa.iota(sb(8, 1), [[1, 1]] * 5), "1 to 4 pairs"),
    (lambda: nisa.max8(sb(8, 8), sb(8, 7)), "8 to 16384"),
    (lambda: nisa.max8(sb(1, 8), sb(1, 16385)), "8 to 16384"),
    (lambda: nisa.max8(sb(8, 9), sb(8, 20)), r"must be \[8, 8\]"),
    (lambda: nisa.nc_find_index8(sb(8, 8, dtype=U32), sb(8, 20), sb(8, 4)), "vals"),
    (lambda: nisa.bn_stats(sb(8, 6), sb(8, 513)), "1 to 512"),
    (lambda: nisa.bn_stats(sb(8, 7), sb(8, 12)), r"\[8, 6\]"),
    (lambda: nisa.bn_aggr(sb(8, 2), sb(8, 7)), "triples"),
    (lambda: nisa.tensor_partition_reduce(sb(2, 8), nl.add, sb(8, 8)), r"\[1, 8\]"),
    (lambda: nisa.nonzero_with_count(sb(8, 8, dtype=I32), sb(8, 8)), "more than src"),
    (lambda: nisa.local_gather(sb(24, 16), sb(24, 8), sb(24, 1, dtype=nl.uint16)), "multiple of 16"),
    (lambda: matmul(ps(8, 8), sb(8, 8), sb(8, 8), tile_position=(0, 0)), "both tile_position and tile_size"),
    (lambda: matmul(ps(8, 8), sb(8, 8), sb(8, 8), tile_position=(0, 0), tile_size=(48, 128)), "32, 64 or 128"),
    (
        lambda: matmul(ps(8, 8), sb(64, 8), sb(64, 8), tile_position=(0, 0), tile_size=(32, 128)),
        "64 rows, more than the tile's 32",
    ),
    (lambda: nisa.topk(sb(16, 8, dtype=BF16), sb(16, 8, dtype=U32), sb(16, 1, dtype=BF16), 7), "8 <= n"),
]

DTYPES: list[Case] = [
    (lambda: matmul(ps(8, 8), sb(8, 8), sb(8, 8, dtype=BF16)), "float32 partner.*tensor_copy"),
    (lambda: matmul(ps(8, 8), sb(8, 8, dtype=I32), sb(8, 8, dtype=I32)), "stationary.*int32"),
    (lambda: matmul(ps(8, 8), sb(8, 8, dtype=nl.float8_e4m3fn), sb(8, 8, dtype=nl.float8_e4m3fn)), ": use float8_e4m3"),
    (lambda: matmul(ps(8, 8, dtype=I32), sb(8, 8), sb(8, 8)), "accumulates in float32"),
    (
        lambda: matmul(
            ps(8, 8), sb(8, 2, 8, dtype=BF16), sb(8, 2, 8, dtype=BF16), perf_mode=nisa.matmul_perf_mode.double_row
        ),
        "float8_e4m3 or float8_e5m2",
    ),
    (
        lambda: matmul(
            ps(8, 8),
            sb(8, 8, dtype=nl.float8_e4m3),
            sb(8, 8, dtype=nl.float8_e4m3),
            perf_mode=nisa.matmul_perf_mode.double_row,
        ),
        r"\[K, 2, n\]",
    ),
    (lambda: nisa.nc_transpose(ps(8, 8, dtype=BF16), sb(8, 8)), "does not convert"),
    (lambda: nisa.dma_transpose(sb(8, 8), hbm(8, 8, dtype=BF16)), "does not convert"),
    (
        lambda: nisa.dma_copy(sb(8, 8), hbm(8, 8, dtype=BF16), dge_mode=nisa.dge_mode.hwdge),
        "cannot cast bfloat16 to float32",
    ),
    (lambda: nisa.dma_transpose(sb(16, 16), hbm(16, 16), dge_mode=nisa.dge_mode.hwdge), "2-byte"),
    (lambda: scalar(sb(8, 8), sb(8, 8), nl.add, sb(8, 1, dtype=BF16)), "operand0.*must be float32"),
    (lambda: nisa.activation(sb(8, 8), nl.exp, sb(8, 8), scale=sb(8, 1, dtype=BF16)), "scale.*must be float32"),
    (lambda: tensor(sb(8, 8), sb(8, 8), sb(8, 8), nl.bitwise_and), "need integers.*view"),
    (lambda: scalar(sb(8, 8, dtype=I32), sb(8, 8, dtype=I32), nl.left_shift, 1.5), "integer operand0"),
    (lambda: nisa.memset(sb(8, 8, dtype=I32), 0.5), "0.5 is not a int32"),
    (lambda: nisa.memset(sb(8, 8, dtype=U8), 256), "256 is not a uint8"),
    (lambda: nisa.nc_find_index8(sb(8, 8), sb(8, 20), sb(8, 8)), "uint32 or uint16"),
    (lambda: nisa.nc_n_gather(sb(8, 8), sb(8, 8), sb(8, 8, dtype=I32)), "indices.*uint32"),
    (lambda: nisa.nc_n_gather(sb(8, 8, dtype=BF16), sb(8, 8), sb(8, 8, dtype=U32)), "convert"),
    (lambda: nisa.tensor_copy_predicated(sb(8, 8), sb(8, 8), sb(8, 8)), "predicate.*uint8"),
    (
        lambda: nisa.range_select(sb(8, 8), sb(8, 8), nl.less, nl.less, sb(8, 1, dtype=I32), sb(8, 1, dtype=I32)),
        "bound0.*float32",
    ),
    (lambda: nisa.rng(sb(8, 8)), "dst.*float32, must be int8"),
    (lambda: nisa.tensor_scalar_cumulative(sb(8, 8, dtype=I32), sb(8, 8), nl.add, nl.add, 0.0), "int32"),
    (lambda: nisa.nc_stream_shuffle(sb(32, 8, dtype=BF16), sb(32, 8), [0] * 32), "convert"),
]

OPERATORS: list[Case] = [
    (lambda: tensor(sb(8, 8), sb(8, 8), sb(8, 8), nl.divide), "nl.divide.*reciprocal"),
    (lambda: scalar(sb(8, 8), sb(8, 8), nl.mod, 2.0), "no engine computes remainders"),
    (lambda: scalar(sb(8, 8), sb(8, 8), nl.exp, 0.0), "nisa.activation"),
    (lambda: nisa.activation(sb(8, 8), nl.add, sb(8, 8)), "nisa.tensor_scalar or"),
    (lambda: nisa.activation(sb(8, 8), nl.cos, sb(8, 8)), r"sin\(x \+ pi/2\)"),
    (lambda: tensor(sb(8, 8), sb(8, 8), sb(8, 8), nl.square), "takes one"),
    (lambda: scalar(sb(8, 8), sb(8, 8), nl.abs, 2.0), "takes no operand0"),
    (lambda: scalar(sb(8, 8), sb(8, 8), nl.add, None), "needs operand0"),
    (lambda: scalar(sb(8, 8), sb(8, 8), nl.add, 1.0, operand1=2.0), "without op1"),
    (
        lambda: scalar(sb(8, 8, dtype=I32), sb(8, 8, dtype=I32), nl.bitwise_and, 1, op1=nl.add, operand1=1.0),
        "cannot mix",
    ),
    (lambda: scalar(sb(8, 8), sb(8, 8), 3, 1.0), "not an operator"),
    (lambda: nisa.tensor_reduce(sb(8, 1), nl.less, sb(8, 8), 1), "not a reduction"),
    (lambda: nisa.activation_reduce(sb(8, 8), nl.exp, sb(8, 8), nl.maximum, sb(8, 1)), "reduce_op must be nl.add"),
    (lambda: nisa.scalar_tensor_tensor(sb(8, 8), sb(8, 8), nl.bitwise_and, 1, nl.add, sb(8, 8)), "bit operator"),
    (lambda: nisa.range_select(sb(8, 8), sb(8, 8), nl.not_equal, nl.less, sb(8, 1), sb(8, 1)), "not one of"),
    (
        lambda: nisa.range_select(sb(8, 8), sb(8, 8), nl.less, nl.less, sb(8, 1), sb(8, 1), on_false_value=0.0),
        "on_false_value must be",
    ),
    (lambda: nisa.range_select(sb(8, 8), sb(8, 8), nl.less, nl.less, sb(8, 1), sb(8, 1), range_start=2**24), "2\\^24"),
    (lambda: nisa.dma_compute(sb(8, 8), [hbm(8, 8)], nl.multiply), "only adds"),
    (lambda: nisa.dma_compute(sb(8, 8), [hbm(8, 8)], nl.add, scales=[2.0]), "must be 1.0"),
    (lambda: nisa.dma_compute(sb(8, 8), [hbm(8, 8)] * 17, nl.add), "1 to 16"),
    (lambda: nisa.tensor_scalar_reduce(sb(8, 8), sb(8, 8), nl.add, 0.0, nl.add, reduce_init=1.0), "load_reduce"),
]

ENGINES: list[Case] = [
    (lambda: scalar(sb(8, 8), sb(8, 8), nl.maximum, 0.0, engine=ENGINE.scalar), "leave engine unset"),
    (lambda: tensor(sb(8, 8), sb(8, 8), sb(8, 8), nl.add, engine=ENGINE.scalar), "not run on scalar"),
    (lambda: tensor(*[sb(8, 8, dtype=I32)] * 3, nl.bitwise_or, engine=ENGINE.gpsimd), "not run on gpsimd"),
    (lambda: nisa.tensor_copy(sb(8, 8), sb(8, 8), engine=ENGINE.tensor), "not run on tensor"),
    (lambda: nisa.nc_transpose(ps(8, 8), sb(8, 8), engine=ENGINE.scalar), "not run on scalar"),
    (lambda: nisa.dma_copy(sb(8, 8), hbm(8, 8), dge_mode=nisa.dge_mode.hwdge, engine=ENGINE.vector), "sync or scalar"),
    (lambda: nisa.rand_get_state(sb(8, 6, dtype=U32), engine=ENGINE.vector), "trn3"),
]

ALL = [*MEMORY, *PARTITIONS, *SHAPES, *DTYPES, *OPERATORS, *ENGINES]


@pytest.mark.parametrize(("body", "message"), ALL, ids=[message for _, message in ALL])
def test_breaking_a_rule_says_which(body: Callable[[], Any], message: str) -> None:

    def kernel() -> None:
        body()

    with pytest.raises(NkiError, match=f"(?s){message}") as raised:
        nki_sim.trace(kernel)
    assert isinstance(raised.value, (NkiValidationError, NotSupported))
    assert "\n" not in str(raised.value), "an error is one line"
    assert raised.value.line is not None


VALID: list[tuple[str, Callable[[], Any]]] = [
    ("quadrants", lambda: [nisa.memset(sb(128, 4)[start : start + 32], 0.0) for start in (0, 32, 64, 96)]),
    ("halves", lambda: [nisa.memset(sb(128, 4)[start : start + 64], 0.0) for start in (0, 64)]),
    ("DMA at any partition", lambda: nisa.dma_copy(sb(128, 4)[10:90], hbm(80, 4))),
    ("DMA between shapes", lambda: nisa.dma_copy(sb(16, 8), hbm(128))),
    ("matmul in the last bank", lambda: matmul(ps(8, 4096)[:, 3584:4096], sb(8, 8), sb(8, 512))),
    ("matmul of two 16-bit dtypes", lambda: matmul(ps(8, 8), sb(8, 8, dtype=BF16), sb(8, 8, dtype=nl.float16))),
    ("row tile", lambda: matmul(ps(8, 8), sb(32, 8), sb(32, 8), tile_position=(32, 0), tile_size=(32, 128))),
    ("Vector over all of PSUM", lambda: nisa.tensor_copy(sb(128, 4096), ps(128, 4096))),
    ("widening transpose", lambda: nisa.nc_transpose(ps(64, 64), sb(64, 64, dtype=BF16))),
    ("small transpose in SBUF", lambda: nisa.nc_transpose(sb(16, 32), sb(32, 16))),
    ("one input in PSUM", lambda: tensor(sb(8, 8), ps(8, 8), sb(8, 8), nl.add)),
    ("broadcast view", lambda: tensor(sb(8, 8), sb(8, 8), sb(8, 1).broadcast(1, 8), nl.add)),
    ("rank mismatch", lambda: nisa.tensor_copy(sb(8, 2, 4), sb(8, 8))),
    ("bias of any dtype", lambda: nisa.activation(sb(8, 8), nl.exp, sb(8, 8), bias=sb(8, 1, dtype=BF16))),
    ("address arithmetic", lambda: scalar(*[sb(8, 8, dtype=I32)] * 2, nl.add, sb(8, 1, dtype=I32))),
    ("integral float in an integer tile", lambda: nisa.memset(sb(8, 8, dtype=I32), 0.0)),
    ("NumPy ufuncs as operators", lambda: tensor(sb(8, 8), sb(8, 8), sb(8, 8), np.add)),
    ("NumPy numbers", lambda: scalar(sb(8, 8), sb(8, 8), nl.multiply, np.float32(2.0))),
    ("reduce all free dimensions", lambda: nisa.tensor_reduce(sb(8, 1), nl.add, sb(8, 2, 3), axis=[1, 2])),
    ("negative axis", lambda: nisa.tensor_reduce(sb(8, 2, 1), nl.add, sb(8, 2, 3), axis=-1, keepdims=True)),
]


@pytest.mark.parametrize(("what", "body"), VALID, ids=[case[0] for case in VALID])
def test_no_false_alarm(what: str, body: Callable[[], Any]) -> None:
    """Given an instruction at the edge of what is allowed, when it is traced, then it is accepted."""

    def kernel() -> None:
        body()

    assert len(nki_sim.trace(kernel)) >= 1


ENGINE_CHOICES = [
    ("float tensor_tensor", lambda: tensor(sb(8, 8), sb(8, 8), sb(8, 8), nl.add), "vector"),
    ("int32 tensor_tensor", lambda: tensor(*[sb(8, 8, dtype=I32)] * 3, nl.add), "gpsimd"),
    (
        "int32 tensor_tensor in PSUM",
        lambda: tensor(sb(8, 8, dtype=I32), ps(8, 8, dtype=I32), sb(8, 8, dtype=I32), nl.add),
        "vector",
    ),
    ("int32 bits", lambda: tensor(*[sb(8, 8, dtype=I32)] * 3, nl.bitwise_and), "vector"),
    ("power", lambda: tensor(sb(8, 8), sb(8, 8), sb(8, 8), nl.power), "gpsimd"),
    ("tensor_scalar", lambda: scalar(sb(8, 8), sb(8, 8), nl.maximum, 0.0), "vector"),
    ("rsqrt of SBUF", lambda: scalar(sb(8, 8), sb(8, 8), nl.rsqrt, None), "gpsimd"),
    ("large transpose", lambda: nisa.nc_transpose(ps(64, 64), sb(64, 64)), "tensor"),
    ("small transpose", lambda: nisa.nc_transpose(ps(32, 32), sb(32, 32)), "vector"),
    ("activation", lambda: nisa.activation(sb(8, 8), nl.exp, sb(8, 8)), "scalar"),
    ("iota", lambda: nisa.iota(sb(8, 8), [[1, 8]]), "gpsimd"),
    ("copy as asked", lambda: nisa.tensor_copy(sb(8, 8), ps(8, 8), engine=ENGINE.scalar), "scalar"),
]


@pytest.mark.parametrize(("what", "body", "engine"), ENGINE_CHOICES, ids=[case[0] for case in ENGINE_CHOICES])
def test_engine_is_chosen_as_documented(what: str, body: Callable[[], Any], engine: str) -> None:
    def kernel() -> None:
        body()

    assert nki_sim.trace(kernel).templates[0].engine.name == engine
