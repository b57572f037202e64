"""How a kernel is written says nothing of its time: names, lines, helpers and idle tiles make none faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nki_sim
from infra.tasks.seed_index import load_seed, seed_index
from nki_sim import dtypes
from nki_sim.machine import TRN2, Machine
from nki_sim.profile.profile import timelines
from nki_sim.program.allocations import Allocations
from nki_sim.program.passes import unrolled
from nki_sim.program.program import Program
from nki_sim.timing.schedule import Timeline
from nki_sim.tracing.session import TensorSpec
from tests.nki_sim.compiler.random_kernels import TILE_BYTES, rotating_tiles, shared_tiles
from tests.nki_sim.machine.traced_kernels import P, nisa, nl, task_kernel, tile, traced

WINNERS = Path(__file__).resolve().parents[2] / "model_benchmark" / "winners"
CRAMPED = replace(TRN2, sbuf_partition_bytes=9 * TILE_BYTES)
"""So that random kernels hand on memory, and some spill."""
MAY_GAIN = 0.005


@cache
def shipped() -> Mapping[str, Callable[[], Program]]:
    """Every seed at its smallest shape, and the kept winners."""
    found: dict[str, Callable[[], Program]] = {}
    for seed in seed_index():
        text = load_seed(seed.name).kernel_path.read_text(encoding="utf-8")
        found[seed.name] = lambda text=text, name=seed.name: task_kernel(text, name)
    for path in sorted(WINNERS.glob("*.py")):
        text, task = path.read_text(encoding="utf-8"), path.stem
        found[f"{task}, winner"] = lambda text=text, task=task: task_kernel(text, task)
    return found


def rewritten(program: Program, line: Callable[[int], int]) -> Program:
    """The same instructions from other lines (`line` of each), on tiles of other names."""
    allocations = program.allocations
    kinds = [kind._replace(line=line(kind.line), name=f"other {kind.name}") for kind in allocations.kinds]
    moved = Allocations(tuple(kinds), allocations.kind_of, allocations.allocated_at)
    templates = tuple(replace(template, line=line(template.line)) for template in program.templates)
    return replace(program, templates=templates, allocations=moved)


def same(one: Program, other: Program, machine: Machine = TRN2) -> None:
    """Of one time, to the bit and for each instruction."""
    for mine, its in zip(timelines(one, machine), timelines(other, machine), strict=True):
        assert mine.latency_us == its.latency_us
        assert (mine.start_ns == its.start_ns).all() and (mine.end_ns == its.end_ns).all()


def everywhere(line: int) -> int:
    return line * 7919 % 1009


def on_one_line(line: int) -> int:
    return 1


@pytest.mark.parametrize("line", [everywhere, on_one_line])
@pytest.mark.parametrize("name", sorted(shipped()))
def test_other_lines_and_names_change_nothing(name: str, line: Callable[[int], int]) -> None:
    program = shipped()[name]()
    same(program, rewritten(program, line))


@pytest.mark.parametrize("seed", range(12))
def test_other_lines_and_names_change_nothing_of_random_kernels(seed: int) -> None:
    program = rotating_tiles(seed) if seed % 2 else shared_tiles(seed, 60, 0.5)
    for machine in (TRN2, CRAMPED):
        same(program, rewritten(program, on_one_line), machine)


HELPER = "def made(shape):\n    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)\n\n"
STREAM = """def kernel(x, cos, sin):
    P, S = x.shape
    out = nl.ndarray((P, S), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(S // {width}):
        here = slice(i * {width}, (i + 1) * {width})
        a = {tile}((P, {width}){rest})
        nisa.dma_copy(dst=a, src=x[:, here], dge_mode=nisa.dge_mode.none)
        c = {tile}((P, {width}){rest})
        nisa.dma_copy(dst=c, src=cos[:, here], dge_mode=nisa.dge_mode.none)
        s = {tile}((P, {width}){rest})
        nisa.dma_copy(dst=s, src=sin[:, here], dge_mode=nisa.dge_mode.none)
        u = {tile}((P, {width}){rest})
        nisa.tensor_tensor(dst=u, data1=a, data2=c, op=nl.multiply)
        v = {tile}((P, {width}){rest})
        nisa.tensor_tensor(dst=v, data1=a, data2=s, op=nl.multiply)
        y = {tile}((P, {width}){rest})
        nisa.tensor_tensor(dst=y, data1=u, data2=v, op=nl.add)
        nisa.dma_copy(dst=out[:, here], src=y, dge_mode=nisa.dge_mode.none)
    return out
"""


def streamed(width: int, by_helper: bool, repeats: int = 64) -> Program:
    how = {"tile": "made", "rest": ""} if by_helper else {"tile": "nl.ndarray", "rest": ", nl.float32, buffer=nl.sbuf"}
    module: dict[str, Any] = {"nl": nl, "nisa": nisa}
    exec(compile(HELPER + STREAM.format(width=width, **how), "written.py", "exec"), module)
    return nki_sim.trace(module["kernel"], *[TensorSpec((P, width * repeats), dtypes.float32)] * 3)


@pytest.mark.parametrize("width", [64, 128, 256, 512])
def test_tiles_made_by_a_helper_are_no_slower_and_no_faster(width: int) -> None:
    same(streamed(width, False), streamed(width, True))
    same(streamed(width, False), streamed(width, True), replace(TRN2, sbuf_partition_bytes=40 * width))


def with_an_idle_tile(program: Program, columns: int) -> Program:
    """The program without loops, with a tile that is filled before all else and read at the end, for nothing."""

    def body(given: Any, result: Any) -> None:
        idle = tile(columns)
        nisa.memset(dst=idle, value=0.0)
        nisa.tensor_scalar(dst=idle, data=idle, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=result, src=given)

    piece = traced(body, columns)
    mine = [int(piece.operand_data[piece.operand_starts[row], 0]) for row in range(2)]
    assert mine[0] == mine[1] and not piece.operand_data[: piece.operand_starts[2], 1].any()
    kind = piece.allocations.kinds[piece.allocations.kind_of[mine[0]]]
    first, last = len(program.templates), len(program.templates) + 1
    added = np.diff(piece.operand_starts[:3])
    counts = np.concatenate((added[:1], np.diff(program.operand_starts), added[1:]))
    idle = np.array([[len(program.allocations), 0]])
    return replace(
        program,
        templates=(*program.templates, *(piece.templates[piece.template_ids[row]] for row in range(2))),
        template_ids=np.concatenate(([first], program.template_ids, [last])).astype(np.int32),
        allocations=program.allocations.followed_by([kind], np.zeros(1, np.int64), np.zeros(1, np.int64)),
        operand_starts=np.concatenate(([0], np.cumsum(counts))),
        operand_data=np.concatenate(
            (np.repeat(idle, added[0], axis=0), program.operand_data, np.repeat(idle, added[1], axis=0))
        ),
    )


def latency_us(program: Program, machine: Machine = TRN2) -> float:
    found: Timeline = timelines(program, machine)[0]
    return found.latency_us


@pytest.mark.parametrize("name", sorted(shipped()))
def test_an_idle_tile_makes_no_kernel_faster(name: str) -> None:
    program = unrolled(shipped()[name]())
    honest = latency_us(program)
    for columns in (1, 64, 512):
        assert latency_us(with_an_idle_tile(program, columns)) >= honest * (1 - MAY_GAIN)


def test_idle_tiles_of_the_loops_own_line_make_it_no_faster() -> None:
    """They live from one end of the kernel to the other, beside the one that the loop makes anew."""

    def kernel(idle: int) -> Program:
        def body(source: Any, result: Any) -> None:
            kept = []
            for at in range(64 + idle):
                loaded = tile(1024)
                if at < idle:
                    nisa.memset(dst=loaded, value=0.0)
                    kept.append(loaded)
                    continue
                nisa.dma_copy(dst=loaded, src=source)
                for _ in range(2):
                    nisa.activation(dst=tile(1024, nl.bfloat16), op=nl.exp, data=loaded)
            for each in kept:
                nisa.tensor_scalar(dst=each, data=each, op0=nl.add, operand0=1.0)
            nisa.dma_copy(dst=result, src=loaded)

        return traced(body, 1024)

    machine = replace(TRN2, reload_window_bytes=0)
    honest = latency_us(kernel(0), machine)
    for idle in (1, 4, 16):
        assert latency_us(kernel(idle), machine) >= honest * (1 - MAY_GAIN)
