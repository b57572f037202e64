"""One small call of every instruction of `nki.isa`, and what it leaves: its templates, a program, results.

A new instruction is not in the house before it is in this table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import nki_sim
from nki_sim.encoding import program_file
from nki_sim.execution.executor import execute
from nki_sim.isa.generations import SINCE
from nki_sim.machine import SIMULATED_VERSION
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.program.program import Program, Template
from nki_sim.tracing.session import current

P, N = 32, 64


def functions() -> dict[str, Callable[..., Any]]:
    """All that `nki.isa` exposes and that can be called in a kernel, by name."""
    found = {name: vars(nisa).get(name) for name in nisa.__all__}
    return {name: each for name, each in found.items() if inspect.isfunction(each)}


def simulated() -> list[str]:
    """Without those of a newer NeuronCore than the simulator runs, which refuse by name."""
    return sorted(name for name in functions() if SINCE.get(name, 0) <= SIMULATED_VERSION and name not in QUERIES)


QUERIES = {"get_nc_version", "get_nc_sub_version"}
"""They tell a kernel where it runs, and are no instructions."""
_random = np.random.default_rng(7)
ARRAYS = {
    "a": _random.uniform(0.5, 3.0, (P, N)).astype(np.float32),
    "b": _random.uniform(0.5, 3.0, (P, N)).astype(np.float32),
    "column": _random.uniform(1.0, 9.0, (P, 1)).astype(np.float32),
    "last": np.full((P, 1), N, np.float32),
    "narrow": _random.uniform(0.5, 3.0, (P, N)).astype(ml_dtypes.bfloat16),
    "mask": _random.integers(0, 2, (P, N)).astype(np.uint8),
    "counts": _random.integers(0, 2, (P, N)).astype(np.int32),
    "where": _random.integers(0, N, (P, 8)).astype(np.uint32),
    "group": _random.integers(0, N, (P, 4)).astype(np.uint16),
    "runs": np.array([[1, 1, 1, 4, 4, 0, 0, 7]], np.float32),
    "seed": np.array([[7]], np.int32),
    "state": _random.integers(1, 1 << 30, (128, 6)).astype(np.uint32),
}
"""What a call may read as `t.<name>`: a tile in SBUF that holds this. In HBM lies `t.hbm`, the same as `t.a`."""
BEFORE = 77
"""In every element of a destination, until something is written there."""


class Tiles(SimpleNamespace):
    """What a call is given. Whatever it writes it gets from `out`, and is looked at afterwards."""

    def out(self, *shape: int, dtype: Any = nl.float32, psum: bool = False) -> Any:
        """A new tile of `BEFORE`."""
        tile = nl.ndarray(shape, dtype, buffer=nl.psum if psum else nl.sbuf)
        self.prepared.add(current().issued)
        nisa.memset(dst=tile, value=BEFORE)
        self.made.append(tile)
        return tile


Call = Callable[[Tiles], object]

CALLS: dict[str, Call] = {
    # Tensor
    "nc_matmul": lambda t: nisa.nc_matmul(dst=t.out(N, N, psum=True), stationary=t.a, moving=t.b),
    "nc_transpose": lambda t: nisa.nc_transpose(dst=t.out(N, P, psum=True), data=t.a),
    # Vector, Scalar, GpSimd
    "activation": lambda t: nisa.activation(
        dst=t.out(P, N), op=nl.exp, data=t.a, reduce_op=nl.add, reduce_res=t.out(P, 1),
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    ),
    "activation_reduce": lambda t: nisa.activation_reduce(
        dst=t.out(P, N), op=nl.square, data=t.a, reduce_op=nl.add, reduce_res=t.out(P, 1)
    ),
    "affine_select": lambda t: nisa.affine_select(
        dst=t.out(P, N), pattern=[[-1, N]], channel_multiplier=1, on_true_tile=t.a, on_false_value=0.0,
        cmp_op=nl.greater_equal,
    ),
    "bn_stats": lambda t: nisa.bn_stats(dst=t.out(P, 6), data=t.a),
    "bn_aggr": lambda t: nisa.bn_aggr(dst=t.out(P, 2), data=t.a[:, 0:6]),
    "dropout": lambda t: nisa.dropout(dst=t.out(P, N), data=t.a, prob=0.5),
    "iota": lambda t: nisa.iota(dst=t.out(P, N, dtype=nl.int32), pattern=[[1, N]], offset=5),
    "local_gather": lambda t: nisa.local_gather(dst=t.out(P, N), src_buffer=t.a, index=t.group, num_valid_indices=N),
    "max8": lambda t: nisa.max8(dst=t.out(P, 8), src=t.a),
    "memset": lambda t: nisa.memset(dst=t.out(P, N), value=2.5),
    "nc_find_index8": lambda t: nisa.nc_find_index8(
        dst=t.out(P, 8, dtype=nl.uint32), data=t.a, vals=t.a[:, 8:16]
    ),
    "nc_match_replace8": lambda t: nisa.nc_match_replace8(
        dst=t.out(P, N), data=t.a, vals=t.a[:, 8:16], imm=0.0, dst_idx=t.out(P, 8, dtype=nl.uint32)
    ),
    "nc_n_gather": lambda t: nisa.nc_n_gather(dst=t.out(P, 8), data=t.a, indices=t.where),
    "nc_stream_shuffle": lambda t: nisa.nc_stream_shuffle(
        dst=t.out(P, N), src=t.a, shuffle_mask=[*range(1, 32), 0]
    ),
    "nonzero_with_count": lambda t: nisa.nonzero_with_count(dst=t.out(P, N + 1, dtype=nl.int32), src=t.counts),
    "range_select": lambda t: nisa.range_select(
        dst=t.out(P, N), on_true_tile=t.a, comp_op0=nl.greater_equal, comp_op1=nl.less, bound0=t.column,
        bound1=t.last, reduce_res=t.out(P, 1),
    ),
    "reciprocal": lambda t: nisa.reciprocal(dst=t.out(P, N), data=t.a),
    "rng": lambda t: nisa.rng(dst=t.out(P, N, dtype=nl.uint32)),
    "rand_get_state": lambda t: nisa.rand_get_state(dst=t.out(128, 6, dtype=nl.uint32)),
    "rand_set_state": lambda t: nisa.rand_set_state(src_seeds=t.state),
    "scalar_tensor_tensor": lambda t: nisa.scalar_tensor_tensor(
        dst=t.out(P, N), data=t.a, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=t.b
    ),
    "select_reduce": lambda t: nisa.select_reduce(
        dst=t.out(P, N), predicate=t.mask, on_true=t.a, on_false=0.0, reduce_res=t.out(P, 1),
        reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_op=nl.maximum,
    ),
    "sequence_bounds": lambda t: nisa.sequence_bounds(dst=t.out(1, 2, 8), segment_ids=t.runs),
    "set_rng_seed": lambda t: nisa.set_rng_seed(t.seed),
    "tensor_copy": lambda t: nisa.tensor_copy(dst=t.out(P, N), src=t.a),
    "tensor_copy_predicated": lambda t: nisa.tensor_copy_predicated(dst=t.out(P, N), src=t.a, predicate=t.mask),
    "tensor_partition_reduce": lambda t: nisa.tensor_partition_reduce(dst=t.out(1, N), op=nl.add, data=t.a),
    "tensor_reduce": lambda t: nisa.tensor_reduce(dst=t.out(P, 1), op=nl.add, data=t.a, axis=1),
    "tensor_scalar": lambda t: nisa.tensor_scalar(dst=t.out(P, N), data=t.a, op0=nl.multiply, operand0=t.column),
    "tensor_scalar_cumulative": lambda t: nisa.tensor_scalar_cumulative(
        dst=t.out(P, N), src=t.a, op0=nl.multiply, op1=nl.add, imm0=1.0
    ),
    "tensor_scalar_reduce": lambda t: nisa.tensor_scalar_reduce(
        dst=t.out(P, N), data=t.a, op0=nl.multiply, operand0=2.0, reduce_op=nl.add, reduce_res=t.out(P, 1)
    ),
    "tensor_tensor": lambda t: nisa.tensor_tensor(dst=t.out(P, N), data1=t.a, data2=t.b, op=nl.add),
    "tensor_tensor_scan": lambda t: nisa.tensor_tensor_scan(
        dst=t.out(P, N), data0=t.a, data1=t.b, initial=0.0, op0=nl.multiply, op1=nl.add
    ),
    "topk": lambda t: nisa.topk(
        val_dst=t.out(P, 8, dtype=nl.bfloat16), idx_dst=t.out(P, 8, dtype=nl.uint32), src=t.narrow, n=100
    ),
    # transfers
    "dma_compute": lambda t: nisa.dma_compute(dst=t.out(P, N), srcs=[t.a, t.b], reduce_op=nl.add),
    "dma_copy": lambda t: nisa.dma_copy(dst=t.out(P, N), src=t.hbm),
    "dma_transpose": lambda t: nisa.dma_transpose(dst=t.out(N, P, dtype=nl.bfloat16), src=t.narrow),
    "sendrecv": lambda t: nisa.sendrecv(src=t.a, dst=t.out(P, N), send_to_rank=0, recv_from_rank=0, pipe_id=0),
    # the sequencer
    "core_barrier": lambda t: nisa.core_barrier(data=t.result, cores=(0,)),
    "register_alloc": lambda t: nisa.register_alloc(3),
    "register_load": lambda t: nisa.register_load(nisa.register_alloc(), t.seed),
    "register_move": lambda t: nisa.register_move(nisa.register_alloc(), nisa.register_alloc(3)),
    "register_store": lambda t: nisa.register_store(t.out(1, 1, dtype=nl.int32), nisa.register_alloc(3)),
    "scalar_load": lambda t: nisa.scalar_load(t.seed),
    "scalar_store": lambda t: nisa.scalar_store(t.out(1, 1, dtype=nl.int32), 3 - nisa.scalar_load(t.seed) * 2),
}  # fmt: skip


@dataclass(frozen=True)
class Traced:
    program: Program
    own: tuple[Template, ...]
    """What the call itself recorded, without what is done before and after it."""


def inputs() -> list[np.ndarray]:
    return list(ARRAYS.values())


@cache
def traced(name: str, machine: str) -> Traced:
    """A kernel that loads `ARRAYS`, makes the call, and returns whatever the call was given to write."""
    rows: list[int] = []

    def kernel(**arrays: Any) -> Any:
        tiles = {key: nl.load(array) for key, array in arrays.items()}
        result = nl.ndarray((P, N), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result, src=tiles["a"])
        given = Tiles(**tiles, hbm=arrays["a"], result=result, made=[], prepared=set())
        before = current().issued
        CALLS[name](given)
        rows.extend(row for row in range(before, current().issued) if row not in given.prepared)
        outputs = [result]
        for tile in given.made:
            if tile.buffer is nl.psum:
                copy = nl.ndarray(tile.shape, tile.dtype)
                nisa.tensor_copy(dst=copy, src=tile)
                tile = copy
            outputs.append(nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm))
            nisa.dma_copy(dst=outputs[-1], src=tile)
        return tuple(outputs)

    program = nki_sim.trace(kernel, machine=machine, **ARRAYS)
    recorded = program.template_ids[rows].tolist()
    return Traced(program, tuple(program.templates[number] for number in dict.fromkeys(recorded)))


def through_a_file(program: Program) -> Program:
    return program_file.loads(program_file.dumps(program))


def results(program: Program) -> list[np.ndarray]:
    """Of the tiles that the call was given to write."""
    return execute(program, inputs())[1:]


def untouched(array: np.ndarray) -> bool:
    return bool((array.astype(np.float64) == BEFORE).all())
