"""Programs that differ in words only have one digest; whatever changes a bit or a nanosecond changes it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nki_sim
from nki_sim.dtypes import float32
from nki_sim.encoding.canonical import digest
from nki_sim.machine import TRN2
from nki_sim.program.allocations import Allocations
from nki_sim.program.program import Program
from nki_sim.timing.schedule import schedule
from nki_sim.tracing.session import TensorSpec
from tests.nki_sim.compiler.random_kernels import rotating_tiles, shared_tiles

KERNEL = """
import nki.isa as nisa
import nki.language as nl

def kernel(a, b):
    out = nl.ndarray((128, 256), nl.float32, buffer=nl.shared_hbm)
    total = nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    for k in range(4):
        left = nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf)
        right = nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a[k])
        nisa.dma_copy(dst=right, src=b[k])
        nisa.tensor_tensor(dst=left, data1=left, data2=right, op=nl.multiply)
        nisa.tensor_tensor(dst=total, data1=total, data2=left, op=nl.add)
    nisa.dma_copy(dst=out, src=total)
    return out
"""


def traced(source: str) -> Program:
    nki_sim.install()
    module: dict[str, Any] = {}
    exec(compile(source, "candidate.py", "exec"), module)
    return nki_sim.trace(module["kernel"], TensorSpec((4, 128, 256), float32), TensorSpec((4, 128, 256), float32))


def edited(*changes: tuple[str, str]) -> str:
    source = KERNEL
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return source


_LEFT = "        left = nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf)\n"
_RIGHT = "        right = nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf)\n"

SAME = {
    "other names": edited(("left", "x"), ("right", "y"), ("total", "acc")),
    "comments and blank lines": edited(("    for k", "    # over the batches\n\n    for k")),
    "declared in another order": edited((_LEFT + _RIGHT, _RIGHT + _LEFT)),
    "declared and never used": edited((_LEFT, _LEFT + _LEFT.replace("left", "spare"))),
    "the same numbers by other arithmetic": edited(("range(4)", "range(2 + 2)"), ("a[k]", "a[k + 0]")),
    "a branch that is never taken": edited(
        ("    for k", "    if False:\n        nisa.memset(dst=total, value=1.0)\n    for k")),
}  # fmt: skip
OTHER = {
    "another constant": edited(("value=0.0", "value=1.0")),
    "another operation": edited(("nl.multiply", "nl.subtract")),
    "another engine": edited(("op=nl.multiply)", "op=nl.multiply, engine=nisa.gpsimd_engine)")),
    "another order of instructions": edited(
        ("        nisa.dma_copy(dst=left, src=a[k])\n        nisa.dma_copy(dst=right, src=b[k])\n",
         "        nisa.dma_copy(dst=right, src=b[k])\n        nisa.dma_copy(dst=left, src=a[k])\n")),
    "another argument": edited(("src=b[k]", "src=a[k]")),
    "another place of it": edited(("src=b[k]", "src=b[3 - k]")),
    "fewer columns": edited(("dst=right, src=b[k]", "dst=right[:, :128], src=b[k, :, :128]")),
    "one tile for all iterations": edited((_LEFT, ""), ("    for k", _LEFT[4:] + "    for k")),
    "an element type": edited((_RIGHT, _RIGHT.replace("float32", "bfloat16"))),
    "another iteration": edited(("range(4)", "range(3)")),
}  # fmt: skip


@pytest.mark.parametrize("source", SAME.values(), ids=SAME)
def test_what_differs_in_words_only_is_the_same(source: str) -> None:
    assert digest(traced(source)) == digest(traced(KERNEL))


def test_all_others_differ_from_it_and_from_each_other() -> None:
    digests = [digest(traced(source)) for source in (KERNEL, *OTHER.values())]
    assert len(set(digests)) == len(digests)


FIELDS: dict[str, Callable[[Program], Program]] = {
    "machine": lambda p: replace(p, machine="trn1"),
    "returns_tuple": lambda p: replace(p, returns_tuple=not p.returns_tuple),
    "outputs": lambda p: replace(p, outputs=p.inputs),
    "inputs": lambda p: replace(p, inputs=p.inputs[::-1]),
    "constants": lambda p: replace(p, constants={0: np.ones(3, np.float32)}),
    "edges": lambda p: replace(p, edges=(nki_sim.program.program.Edge(0, 2),)),
    "peers": lambda p: replace(p, peers=(p,)),
}


@pytest.mark.parametrize("change", FIELDS.values(), ids=FIELDS)
def test_a_field_that_is_no_instruction_counts_too(change: Callable[[Program], Program]) -> None:
    program = traced(KERNEL)
    assert digest(change(program)) != digest(program)


def declared_otherwise(program: Program, seed: int) -> Program:
    """The same instructions on the same buffers, some of which are declared earlier or later."""
    order, choose = list(range(len(program.allocations))), random.Random(seed)
    for _ in range(4**seed):
        order.insert(choose.randrange(len(order)), order.pop(choose.randrange(len(order))))
    numbers = np.argsort(order)
    data = program.operand_data.copy()
    data[:, 0] = numbers[data[:, 0]]
    moved = Allocations.of(program.allocations[old] for old in order)

    def ref(each: Any) -> Any:
        return replace(each, allocation=int(numbers[each.allocation]))

    return replace(
        program, allocations=moved, operand_data=data, inputs=tuple(map(ref, program.inputs)),
        outputs=tuple(map(ref, program.outputs)),
        constants={int(numbers[key]): value for key, value in program.constants.items()},
    )  # fmt: skip


def test_programs_of_one_digest_take_the_same_time_to_the_bit() -> None:
    for seed in range(16):
        program = rotating_tiles(seed) if seed % 2 else shared_tiles(seed, 60, 0.5)
        there = schedule(program, TRN2)
        for shuffle in range(4):
            other = declared_otherwise(program, shuffle)
            assert digest(other) == digest(program)
            again = schedule(other, TRN2)
            assert again.latency_us == there.latency_us
            assert (again.start_ns == there.start_ns).all() and (again.end_ns == there.end_ns).all()
