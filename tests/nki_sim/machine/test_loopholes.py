"""Programs that looked faster than AWS's rules allow: each is refused by name, or costs what the honest form costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from traced_kernels import P, filled, instruction, nisa, nl, tile, traced, vector_ns

import nki_sim
from nki_sim.dtypes import bfloat16, float32
from nki_sim.encoding import program_file
from nki_sim.errors import NkiValidationError, ProgramFormatError
from nki_sim.execution.executor import execute
from nki_sim.isa.arithmetic import numerics
from nki_sim.machine import TRN2
from nki_sim.program.allocations import Allocations
from nki_sim.program.program import Engine, Operand, Program, Template
from nki_sim.timing.cost import Cost, cost
from nki_sim.timing.schedule import Timeline, schedule
from nki_sim.tracing.session import TensorSpec

WIDE = 40_000
"""Elements of bfloat16 per partition."""


def copied(pattern: Any, columns: int = 512, dtype: Any = nl.float32) -> Callable[[], Any]:
    shape = [n for _, n in pattern]
    return lambda: nisa.tensor_copy(
        dst=nl.ndarray(shape, dtype, buffer=nl.sbuf), src=tile(columns, dtype).ap(pattern=pattern)
    )


PATTERNS: dict[str, tuple[Callable[[], Any], str]] = {
    "every second partition": (copied([[1024, 64], [1, 512]]), r"steps 2 partitions.*adjacent"),
    "one partition for all": (copied([[0, P], [1, 512]]), r"steps 0 partitions.*adjacent"),
    "a slice of every second partition": (
        lambda: nisa.tensor_copy(dst=tile(8, partitions=32), src=tile(8)[0:64:2, :]),
        "steps 2 partitions",
    ),
    "a transfer of every second partition": (
        lambda: nisa.dma_copy(dst=tile(8, partitions=32), src=tile(8)[0:64:2, :]),
        "steps 2 partitions.*HBM",
    ),
    "five dimensions": (copied([[512, P], [256, 2], [64, 2], [16, 2], [4, 2], [1, 2]]), "walks 5 dimensions.*has 4"),
    "a product's five dimensions": (
        lambda: nisa.nc_matmul(
            dst=tile(32, buffer=nl.psum),
            stationary=tile(P),
            moving=tile(512).ap(pattern=[[512, P], [256, 2], [64, 2], [16, 2], [4, 2], [1, 2]]),
        ),
        "nc_matmul: moving .* walks 5 dimensions",
    ),
    "a stride beyond 16 bits": (copied([[WIDE, P], [32_768, 2]], WIDE, nl.bfloat16), "steps 32768 elements.*32767"),
    "more elements than one instruction takes": (copied([[8, P], [0, 16_384], [1, 8]], 8), "131072 elements.*65536"),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_that_the_hardware_cannot_walk_is_refused(name: str) -> None:
    body, message = PATTERNS[name]
    with pytest.raises(NkiValidationError, match=message):
        instruction(body)


def test_patterns_at_the_limits_are_accepted() -> None:
    instruction(copied([[512, P], [256, 2], [64, 2], [16, 2], [4, 2]]))
    instruction(copied([[512, P], [256, 2], [128, 2], [64, 2], [32, 2], [16, 2], [1, 16]]))  # two after merging
    instruction(copied([[WIDE, P], [32_767, 2]], WIDE, nl.bfloat16))
    instruction(copied([[8, P], [0, 8192], [1, 8]], 8, nl.uint8))
    instruction(lambda: nisa.tensor_copy(dst=tile(8, partitions=1), src=tile(8)[32:33, :]))


def with_operand(program: Program, opcode: str, role: str, **changes: Any) -> Program:
    """One operand of one template is another, as a candidate's process could forge it."""

    def forged(template: Template) -> Template:
        operands = tuple(replace(o, **changes) if o.role == role else o for o in template.operands)
        return replace(template, operands=operands) if template.opcode == opcode else template

    assert any(t.opcode == opcode and t.operand(role) for t in program.templates)
    return changed(program, templates=tuple(map(forged, program.templates)))


FORGED_PATTERNS = {
    "partition stride 2": ([[1024, 64], [1, 512]], "steps 2 partitions"),
    "partition stride 0": ([[0, P], [1, 256]], "steps 0 partitions"),
    "eight dimensions": ([[512, P], [256, 2], [64, 2], [16, 2], [4, 2], [1, 2], [0, 2], [0, 2], [0, 4]], "dimensions"),
}


@pytest.mark.parametrize("name", FORGED_PATTERNS)
def test_a_forged_pattern_is_refused_when_the_file_is_read(name: str) -> None:
    pattern, message = FORGED_PATTERNS[name]
    honest = instruction(lambda: nisa.memset(dst=tile(512), value=0.0))
    assert len(program_file.loads(program_file.dumps(honest))) == 2
    forged = with_operand(honest, "memset", "dst", pattern=tuple(map(tuple, pattern)))
    with pytest.raises(ProgramFormatError, match=message):
        program_file.loads(program_file.dumps(forged))


def price(body: Callable[[], Any]) -> Cost:
    return cost(instruction(body).templates[0], TRN2)


def tensor_ns(cycles: float, passes: int = 1) -> float:
    return passes * (cycles / TRN2.tensor_clock_ghz + TRN2.tensor_pass_ns)


def strided(columns: int, step: int, dtype: Any = nl.float32, buffer: Any = None, partitions: int = P) -> Any:
    """[partitions, columns], of which every `step`th element is touched."""
    wide = tile(columns * step, dtype, buffer, partitions)
    return wide.ap(pattern=[[columns * step, partitions], [step, columns]])


LONG, SHORT = 8, 4
"""Elements of float32: 32 bytes, which is too far, and 16, which is not."""

STRIDED: dict[str, Callable[[int], Any]] = {
    "a copy out of PSUM": lambda step: nisa.tensor_copy(dst=tile(256), src=strided(256, step, buffer=nl.psum)),
    "a copy into PSUM": lambda step: nisa.tensor_copy(dst=strided(256, step, buffer=nl.psum), src=tile(256)),
    "an activation of PSUM": lambda step: nisa.activation(tile(256), nl.exp, strided(256, step, buffer=nl.psum)),
    "the moving operand of a product": lambda step: nisa.nc_matmul(
        dst=tile(512, buffer=nl.psum), stationary=tile(P), moving=strided(512, step)
    ),
    "the result of a product": lambda step: nisa.nc_matmul(
        dst=strided(64, step, buffer=nl.psum, partitions=32), stationary=tile(32), moving=tile(64)
    ),
    "the result of a transpose": lambda step: nisa.nc_transpose(
        dst=strided(64, step, buffer=nl.psum, partitions=32), data=tile(32, partitions=64), engine=nisa.engine.tensor
    ),
}


@pytest.mark.parametrize("name", STRIDED)
def test_a_stride_above_16_bytes_halves_the_rate_in_psum_and_for_tensor(name: str) -> None:
    body = STRIDED[name]
    long, short = price(lambda: body(LONG)), price(lambda: body(SHORT))
    fixed = {
        "vector": vector_ns(0) if "into" in name else TRN2.vector_psum_issue_cycles / TRN2.vector_clock_ghz,
        "scalar": TRN2.scalar_issue_cycles / TRN2.scalar_clock_ghz,
        "tensor": tensor_ns(0, 4 if "product" in name else 2),
    }[long.resource]
    assert long.busy_ns - fixed == pytest.approx(2 * (short.busy_ns - fixed))


def test_loading_strided_weights_takes_twice_as_long() -> None:
    """Nothing hides the load where the product is short."""

    def product(step: int) -> Cost:
        return price(lambda: nisa.nc_matmul(dst=tile(64, buffer=nl.psum), stationary=strided(P, step), moving=tile(64)))

    loading_ns = 4 * P / (TRN2.stationary_columns_per_cycle * TRN2.tensor_clock_ghz)
    assert product(SHORT).busy_ns == pytest.approx(loading_ns)
    assert product(LONG).busy_ns == pytest.approx(2 * loading_ns)


def test_a_strided_sum_does_not_slow_what_is_summed() -> None:
    one = price(lambda: nisa.tensor_tensor(tile(512), tile(512), tile(512), nl.add)).busy_ns
    halves = price(
        lambda: nisa.tensor_reduce(dst=strided(2, LONG), op=nl.add, data=tile(512).reshape((P, 2, 256)), axis=2)
    )
    assert halves.busy_ns == pytest.approx(one)


QUARTERS = (0, 32, 64, 96)


def quarter_products(rows: Sequence[int], positions: Sequence[int], buffers: int = 1, partitions: int = P) -> Program:
    """Products of 32 rows each: operands at `rows` of as many buffers, on the array's rows at `positions`."""

    def body() -> None:
        pairs = [(tile(P, nl.bfloat16, partitions=partitions), tile(dtype=nl.bfloat16, partitions=partitions))
                 for _ in range(buffers)]  # fmt: skip
        for at, (row, position) in enumerate(zip(rows, positions)):
            weights, values = pairs[at % buffers]
            nisa.nc_matmul(
                dst=tile(buffer=nl.psum),
                stationary=weights[row : row + 32],
                moving=values[row : row + 32],
                tile_position=(position, 0),
                tile_size=(32, 128),
            )

    return instruction(body)


def test_a_tile_takes_the_rows_that_its_operands_partitions_feed() -> None:
    quarter_products(QUARTERS, QUARTERS)
    with pytest.raises(NkiValidationError, match=r"rows 32 to 63.*stationary is partitions 0 to 31 of.*cannot lie"):
        quarter_products([0] * 4, QUARTERS)


def test_a_small_buffer_lies_in_one_place() -> None:
    """The compiler may put it on any quarter, as in AWS's own example of tiled products, but not on four at once."""
    quarter_products([0] * 4, QUARTERS, buffers=4, partitions=32)
    with pytest.raises(NkiValidationError, match="rows 32 to 63"):
        quarter_products([0] * 4, QUARTERS, buffers=1, partitions=32)


def test_a_tile_writes_the_partitions_of_its_columns() -> None:
    def product(column: int, start: int) -> Callable[[], Any]:
        return lambda: nisa.nc_matmul(
            dst=tile(buffer=nl.psum)[start : start + 64],
            stationary=tile(64, nl.bfloat16),
            moving=tile(dtype=nl.bfloat16),
            tile_position=(0, column),
            tile_size=(128, 64),
        )

    instruction(product(64, 64))
    with pytest.raises(NkiValidationError, match=r"columns 64 to 127.*dst is partitions 0 to 63"):
        instruction(product(64, 0))


def test_a_forged_tile_position_is_refused_when_the_file_is_read() -> None:
    honest = quarter_products([0], [0])
    templates = tuple(
        replace(t, attrs=t.attrs._replace(tile_position=(96, 0))) if t.opcode == "nc_matmul" else t
        for t in honest.templates
    )
    forged = changed(honest, templates=templates)
    with pytest.raises(ProgramFormatError, match="rows 96 to 127"):
        program_file.loads(program_file.dumps(forged))


@pytest.mark.parametrize("dtype, passes", [(nl.bfloat16, 1), (nl.float32, 4)])
def test_tensor_issues_no_faster_on_small_tiles_than_on_the_whole_array(dtype: Any, passes: int) -> None:
    def product(columns: int) -> Cost:
        return price(
            lambda: nisa.nc_matmul(
                dst=tile(columns, buffer=nl.psum)[0:32],
                stationary=tile(32, dtype)[0:32],
                moving=tile(columns, dtype)[0:32],
                tile_position=(0, 0),
                tile_size=(32, 32),
            )
        )

    issue_ns = passes * TRN2.tensor_min_cycles / TRN2.tensor_clock_ghz
    assert product(64).busy_ns == product(512).busy_ns == pytest.approx(issue_ns)
    assert product(512).array_tile is not None


@pytest.mark.parametrize("view", [nl.int32, nl.uint32, nl.tfloat32, nl.float32])
def test_a_transpose_of_four_bytes_costs_two_passes_whatever_they_are_called(view: Any) -> None:
    turned = price(
        lambda: nisa.nc_transpose(
            dst=tile(P, view, nl.psum), data=tile(P, nl.float32).view(view), engine=nisa.engine.tensor
        )
    )
    multiplied = price(
        lambda: nisa.nc_matmul(
            dst=tile(P, view, nl.psum), stationary=tile(P).view(view), moving=tile(P).view(view), is_transpose=True
        )
    )
    assert turned.busy_ns == multiplied.busy_ns == pytest.approx(tensor_ns(P, passes=2))


IDENTITY = np.eye(P, dtype=np.float32)
NO_IDENTITY = {
    "a full matrix": np.random.default_rng(0).standard_normal((P, P)).astype(np.float32),
    "a permutation": IDENTITY[::-1],
    "a scaled identity": 2 * IDENTITY,
    "512 columns": np.ones((P, 512), np.float32),
}


def turned(values: Any, by: Any) -> Any:
    out = nl.ndarray((P, by.shape[1]), nl.float32, buffer=nl.shared_hbm)
    result = nl.ndarray((P, by.shape[1]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=result, stationary=nl.load(values), moving=nl.load(by), is_transpose=True)
    nl.store(out, nl.copy(result))
    return out


@pytest.mark.parametrize("name", NO_IDENTITY)
def test_transpose_mode_is_no_cheap_product(name: str) -> None:
    """Two passes instead of four, and no FLOPs: only what turns a tile has that price."""
    values, by = np.arange(P * P, dtype=np.float32).reshape(P, P), NO_IDENTITY[name]
    program = nki_sim.trace(turned, TensorSpec((P, P), float32), TensorSpec(by.shape, float32))
    with pytest.raises(NkiValidationError, match="is_transpose.*moving.*must be an identity"):
        execute(program, [values, by])
    with pytest.raises(NkiValidationError, match="must be an identity"):
        nki_sim.simulate(turned)(values, by)
    np.testing.assert_array_equal(nki_sim.simulate(turned)(values, IDENTITY), values.T)


def test_float32_called_tfloat32_is_multiplied_as_tfloat32() -> None:
    """One pass instead of four is for ten bits of mantissa."""

    def product(left: Any, right: Any) -> Any:
        out = nl.ndarray((P, 64), nl.float32, buffer=nl.shared_hbm)
        result = nl.ndarray((P, 64), nl.float32, buffer=nl.psum)
        short = [nl.load(each).view(nl.tfloat32) for each in (left, right)]
        nisa.nc_matmul(dst=result, stationary=short[0], moving=short[1])
        nl.store(out, nl.copy(result))
        return out

    rng = np.random.default_rng(1)
    left, right = (rng.standard_normal((P, n)).astype(np.float32) for n in (P, 64))
    got, exact = nki_sim.simulate(product)(left, right), left.astype(np.float64).T @ right
    assert 1e-4 < np.linalg.norm(got - exact) / np.linalg.norm(exact) < 1e-3
    program = nki_sim.trace(product, *[TensorSpec(each.shape, float32) for each in (left, right)])
    np.testing.assert_array_equal(execute(program, [left, right])[0], got)


@pytest.mark.parametrize(
    "value, kept",
    [(1.0, 1.0), (1 + 2**-10, 1 + 2**-10), (1 + 2**-11, 1.0), (1 + 3 * 2**-11, 1 + 2**-9), (-1 - 2**-12, -1.0),
     (np.inf, np.inf), (np.nan, np.nan), (0.0, 0.0)],
)  # fmt: skip
def test_tfloat32_rounds_to_nearest_even(value: float, kept: float) -> None:
    np.testing.assert_array_equal(numerics.tfloat32(np.array([value], np.float32)), np.array([kept], np.float32))


def gathered(**options: Any) -> Callable[[], Any]:
    """64 rows of HBM, picked by a vector of indices."""

    def body() -> None:
        rows = nl.ndarray((P, 64), nl.float32, buffer=nl.private_hbm)
        where = nl.ndarray((64, 1), nl.int32, buffer=nl.sbuf)
        picked = rows.ap(pattern=[[64, 64], [1, 64]], vector_offset=where, indirect_dim=0)
        nisa.dma_copy(dst=tile(64, partitions=64), src=picked, **options)

    return body


SYNC, SCALAR, HARDWARE = nisa.engine.sync, nisa.engine.scalar, nisa.dge_mode.hwdge

GATHERS: dict[str, tuple[dict[str, Any], str]] = {
    "by hardware descriptors": ({"dge_mode": HARDWARE}, "vector_offset needs dge_mode.swdge.*not hwdge"),
    "by hardware descriptors, as a number": ({"dge_mode": 2}, "not hwdge"),
    "by prepared descriptors": ({"dge_mode": nisa.dge_mode.none}, "prepared before the kernel runs"),
    "on Sync's queue": ({"engine": SYNC}, "hardware queue of sync"),
    "on Scalar's queue": ({"engine": SCALAR}, "hardware queue of scalar"),
}


@pytest.mark.parametrize("name", GATHERS)
def test_only_software_descriptors_gather(name: str) -> None:
    options, message = GATHERS[name]
    with pytest.raises(NkiValidationError, match=message):
        instruction(gathered(**options))


@pytest.mark.parametrize("options", [{}, {"dge_mode": nisa.dge_mode.swdge}, {"engine": nisa.engine.gpsimd}])
def test_a_gather_is_issued_by_gpsimd(options: dict[str, Any]) -> None:
    assert price(gathered(**options)).resource == "dma.gpsimd"


@pytest.mark.parametrize("mode", ["unknown", "hwdge", "none"])
def test_a_forged_gather_on_a_hardware_queue_is_refused_when_the_file_is_read(mode: str) -> None:
    honest = instruction(gathered())
    templates = tuple(
        replace(t, attrs=t.attrs._replace(dge_mode=nisa.dge_mode[mode])) if t.operands[1].indirection else t
        for t in honest.templates
    )
    forged = changed(honest, templates=templates)
    with pytest.raises(ProgramFormatError, match="vector_offset needs|prepared before"):
        program_file.loads(program_file.dumps(forged))


def test_a_compute_engine_does_not_choose_its_partition_on_the_device() -> None:
    def body() -> None:
        where = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(
            dst=tile(64, partitions=32),
            src=tile(64).ap(pattern=[[64, 32], [1, 64]], scalar_offset=where, indirect_dim=0),
        )

    with pytest.raises(NkiValidationError, match="partition that is only known on the device"):
        instruction(body)


def test_a_place_known_on_the_device_takes_600_cycles_at_least() -> None:
    def copied_from(columns: int) -> Cost:
        def body() -> None:
            where = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
            here = tile(2048).ap(pattern=[[2048, P], [1, columns]], scalar_offset=where, indirect_dim=1)
            nisa.tensor_copy(dst=tile(columns, buffer=nl.psum), src=here)

        return price(body)

    assert copied_from(8).busy_ns == copied_from(512).busy_ns == pytest.approx(vector_ns(600))
    assert copied_from(1024).busy_ns == pytest.approx(vector_ns(1024))


REGISTER = type(nl.sbuf).register


def doubled_in(region: Any) -> Program:
    def body(source: Any, result: Any) -> None:
        values = nl.ndarray((P, 512), nl.float32, buffer=region)
        nisa.dma_copy(dst=values, src=source)
        nisa.tensor_tensor(dst=values, data1=values, data2=values, op=nl.add)
        nisa.dma_copy(dst=result, src=values)

    return traced(body)


def test_tiles_are_not_kept_in_registers() -> None:
    """They had no partitions to be counted, no elements to be priced and no size to be held."""
    with pytest.raises(NkiValidationError, match="one of nl.sbuf"):
        doubled_in(REGISTER)
    honest = doubled_in(nl.sbuf)
    number = next(a.id for a in honest.allocations if a.region is nl.sbuf)
    allocations = Allocations.of(a._replace(region=REGISTER) if a.id == number else a for a in honest.allocations)
    templates = tuple(
        replace(t, operands=tuple(replace(o, region=REGISTER, partition_elements=0) if o.region is nl.sbuf else o
                                  for o in t.operands))
        for t in honest.templates
    )  # fmt: skip
    forged = changed(honest, allocations=allocations, templates=templates)
    with pytest.raises(ProgramFormatError, match="is in register, must be in"):
        program_file.loads(program_file.dumps(forged))


def changed(program: Program, **fields: Any) -> Program:
    return Program(**{**{name: getattr(program, name) for name in program.__dataclass_fields__}, **fields})


def product() -> Program:
    def body(source: Any, result: Any) -> None:
        total, stored = tile(buffer=nl.psum), tile()
        nisa.dma_copy(dst=stored, src=source)
        nisa.nc_matmul(dst=total, stationary=stored[:, 0:P], moving=stored)
        nisa.tensor_copy(dst=stored, src=total)
        nisa.dma_copy(dst=result, src=stored)

    return traced(body)


def operands_of(program: Program, opcode: str, change: Callable[[tuple[Operand, ...]], tuple[Operand, ...]]) -> bytes:
    """The file of a program in which a template, used by one row, has other operands; more are of its last buffer."""
    number = next(n for n, t in enumerate(program.templates) if t.opcode == opcode)
    old = program.templates[number]
    forged = replace(old, operands=change(old.operands))
    extra = len(forged.operands) - len(old.operands)
    (row,) = np.flatnonzero(program.template_ids == number)
    end = program.operand_starts[row + 1]
    data = np.insert(program.operand_data, [end] * extra, [program.operand_data[end - 1, 0], 0], axis=0)
    starts = program.operand_starts + extra * (np.arange(len(program) + 1) > row)
    templates = program.templates[:number] + (forged,) + program.templates[number + 1 :]
    return program_file.dumps(changed(program, templates=templates, operand_data=data, operand_starts=starts))


def row_of(role: str, like: Operand, columns: int) -> Operand:
    """One partition of bfloat16, as many columns."""
    pattern = ((2 * like.partition_elements, 1), (1, columns))
    return replace(like, role=role, pattern=pattern, dtype=bfloat16, partition_elements=2 * like.partition_elements)


FORGED_OPERANDS: dict[str, tuple[Callable[[tuple[Operand, ...]], tuple[Operand, ...]], str]] = {
    "checked and priced by operands that are not multiplied": (
        lambda o: (o[0], replace(o[1], role="a"), replace(o[2], role="b"), row_of("stationary", o[1], P),
                   row_of("moving", o[2], 512)), "needs an operand stationary|no operand 'a'",
    ),
    "one operand more": (lambda o: (*o, row_of("moving", o[2], 512)), "no operand 'moving' in that place"),
    "one of them called an index": (lambda o: (o[0], o[1], replace(o[2], role="moving.index")), "moving"),
    "a destination that is only read": (lambda o: (replace(o[0], access="r"), *o[1:]), "'dst'.*access r"),
    "a source that is written": (lambda o: (o[0], o[1], replace(o[2], access="w")), "'moving'.*access w"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED_OPERANDS)
def test_operands_are_the_instructions_own_in_its_order(name: str) -> None:
    """What is checked and priced by role is what is computed by place."""
    change, message = FORGED_OPERANDS[name]
    with pytest.raises(ProgramFormatError, match=message):
        program_file.loads(operands_of(product(), "nc_matmul", change))


@pytest.mark.parametrize(
    "opcode, body, engine",
    [
        ("memset", lambda: nisa.memset(dst=tile(), value=0.0), Engine.scalar),
        ("register_set", lambda: nisa.register_alloc(3), Engine.tensor),
        ("register_set", lambda: nisa.register_alloc(3), Engine.dma),
        ("set_rng_seed", lambda: nisa.set_rng_seed(filled(tile(1, nl.int32, partitions=1))), Engine.dma),
    ],
)
def test_an_instruction_runs_on_an_engine_that_has_it(opcode: str, body: Any, engine: Engine) -> None:
    honest = instruction(body)
    templates = tuple(replace(t, engine=engine) if t.opcode == opcode else t for t in honest.templates)
    with pytest.raises(ProgramFormatError, match=f"{opcode} does not run on {engine.name}"):
        program_file.loads(program_file.dumps(changed(honest, templates=templates)))


def test_a_barrier_blocks_the_engine_that_executes_it_and_moves_nothing() -> None:
    def body(source: Any, result: Any) -> None:
        nisa.core_barrier(data=result, cores=(0,), engine=nisa.engine.vector)
        nisa.dma_copy(dst=result, src=source)

    barrier = cost(traced(body).templates[0], TRN2)
    assert (barrier.resource, barrier.traffic.hbm_read) == ("vector", 0)


@pytest.mark.parametrize("form", ["tensor_scalar", "second operator", "scalar_tensor_tensor"])
def test_a_reciprocal_on_vector_takes_eight_cycles_in_every_form(form: str) -> None:
    """AWS's page on choosing engines: 8N cycles on Vector."""

    def body() -> Any:
        if form == "tensor_scalar":
            return nisa.tensor_scalar(dst=tile(), data=tile(), op0=nl.reciprocal, operand0=None)
        if form == "second operator":
            return nisa.tensor_scalar(dst=tile(), data=tile(), op0=nl.add, operand0=1.0, op1=nl.reciprocal)
        return nisa.scalar_tensor_tensor(tile(), tile(), nl.reciprocal, None, nl.multiply, tile())

    assert price(body).busy_ns == pytest.approx(price(lambda: nisa.reciprocal(tile(), tile())).busy_ns)


def test_a_root_on_gpsimd_takes_four_cycles() -> None:
    """AWS's page on choosing engines: four times Scalar's."""
    root = price(lambda: nisa.tensor_scalar(dst=tile(), data=tile(), op0=nl.rsqrt, operand0=None))
    assert (root.resource, root.busy_ns) == ("gpsimd", pytest.approx((150 + 4 * 512) / 1.2))
    forced = price(
        lambda: nisa.tensor_scalar(dst=tile(), data=tile(), op0=nl.rsqrt, operand0=None, engine=nisa.engine.vector)
    )
    assert forced.busy_ns > root.busy_ns


def in_order(order: str, mine: Sequence[Callable[[], Any]], others: Sequence[Callable[[], Any]]) -> None:
    """All of `mine` first, all of `others` first, or one of each in turn."""
    if order == "in turn":
        for one, other in zip(mine, others, strict=True):
            one()
            other()
        return
    for each in (*mine, *others) if order == "mine first" else (*others, *mine):
        each()


def held_us(timeline: Timeline, holds: Callable[[Cost], bool]) -> float:
    prices = [timeline.costs[number] for number in timeline.program.template_ids.tolist()]
    return sum(price.busy_ns for price in prices if holds(price)) / 1e3


ORDERS = ("mine first", "others first", "in turn")


@pytest.mark.parametrize("order", ORDERS)
def test_gpsimd_does_not_compute_while_its_cores_write_descriptors(order: str) -> None:
    def body(source: Any, result: Any) -> None:
        values, total = [filled(tile(512)) for _ in range(3)], filled(tile(64))

        def compute(at: int) -> None:
            here = values[at % 3]
            nisa.tensor_tensor(dst=here, data1=here, data2=here, op=nl.add, engine=nisa.engine.gpsimd)

        def load(at: int) -> None:
            loaded = tile(64)
            nisa.dma_copy(dst=loaded, src=source[:, 8 * at : 8 * at + 64])
            nisa.tensor_tensor(dst=total, data1=total, data2=loaded, op=nl.add, engine=nisa.engine.vector)

        in_order(order, [partial(compute, at) for at in range(40)], [partial(load, at) for at in range(40)])
        nisa.dma_copy(dst=result[:, :64], src=total)

    timeline = schedule(traced(body), TRN2)
    cores_us = held_us(timeline, lambda price: price.resource in ("gpsimd", "dma.gpsimd"))
    assert timeline.latency_us >= timeline.resource_bound_us >= cores_us * (1 - 1e-9)
    assert timeline.resource_bound_us > 1.3 * max(
        timeline.resource_us[name] for name in ("gpsimd", "dma.gpsimd", "dma")
    )


@pytest.mark.parametrize("order", ORDERS)
def test_vector_and_gpsimd_take_turns_at_their_port_whoever_is_written_first(order: str) -> None:
    def body(source: Any, result: Any) -> None:
        narrow, wide = filled(tile(512, nl.bfloat16)), [filled(tile(512)) for _ in range(30)]

        def vector() -> None:
            for _ in range(4):
                nisa.tensor_copy(dst=tile(512, nl.bfloat16), src=narrow, engine=nisa.engine.vector)

        def gpsimd(at: int) -> None:
            nisa.tensor_tensor(dst=wide[at], data1=wide[at], data2=wide[at], op=nl.add, engine=nisa.engine.gpsimd)

        in_order(order, [vector] * 30, [partial(gpsimd, at) for at in range(30)])
        nisa.dma_copy(dst=result, src=wide[0])

    timeline = schedule(traced(body), TRN2)
    port_us = held_us(timeline, lambda price: "sbuf" in price.ports)
    assert timeline.latency_us >= timeline.resource_bound_us >= port_us * (1 - 1e-9)
    assert port_us > 1.3 * max(timeline.resource_us[name] for name in ("vector", "gpsimd"))


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("columns", [1024, 2048])
def test_no_more_is_moved_than_there_was_time_for(columns: int, behind: bool) -> None:
    """Stores that wait for nothing, written among loads that somebody waits for, or behind them all: what they take
    from the loads the loads do not have."""

    def body(source: Any, result: Any) -> None:
        values, total = filled(tile(columns)), filled(tile(64))
        for at in range(60):
            loaded = tile(columns)
            nisa.dma_copy(dst=loaded, src=source[:, 8 * at : 8 * at + columns])
            nisa.tensor_tensor(dst=total, data1=total, data2=loaded[:, :64], op=nl.add, engine=nisa.engine.vector)
            if not behind:
                nisa.dma_copy(dst=result[:, :columns], src=values)
        for _ in range(60 if behind else 0):
            nisa.dma_copy(dst=result[:, :columns], src=values)
        nisa.dma_copy(dst=result[:, :64], src=total)

    timeline = schedule(traced(body, 2 * columns), TRN2)
    prices = [timeline.costs[number] for number in timeline.program.template_ids.tolist()]
    ends = [
        (end, price.transfer.engine_ns) for end, price in zip(timeline.end_ns, prices) if price.transfer is not None
    ]
    due, work_ns = np.array(sorted(ends)).T
    assert (np.cumsum(work_ns) <= due + 2 * work_ns.max()).all()
