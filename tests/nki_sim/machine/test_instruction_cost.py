"""What single instructions cost, checked against the documented formulas by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from traced_kernels import P, instruction, nisa, nl, tile, traced

from nki_sim.contract.opcodes import OPCODES
from nki_sim.errors import NotSupported
from nki_sim.machine import TRN1, TRN2, Machine
from nki_sim.program.program import Engine, Template
from nki_sim.timing.cost import Cost, cost

PE_CYCLE, VECTOR_CYCLE, SCALAR_CYCLE, GPSIMD_CYCLE = 1 / 2.4, 1 / 0.96, 1 / 1.2, 1 / 1.2


def price(body: Callable[[], Any], machine: Machine = TRN2, which: int = 0) -> Cost:
    return cost(instruction(body).templates[which], machine)


def matmul(k: int, m: int, n: int, dtype: Any, **options: Any) -> Callable[[], Any]:
    return lambda: nisa.nc_matmul(
        dst=tile(n, buffer=nl.psum, partitions=m),
        stationary=tile(m, dtype, partitions=k),
        moving=tile(n, dtype, partitions=k),
        **options,
    )


@pytest.mark.parametrize(
    ("k", "m", "n", "dtype", "cycles"),
    [
        (128, 128, 512, nl.bfloat16, 512),
        (128, 128, 512, nl.float32, 4 * 512),
        (1, 1, 512, nl.bfloat16, 512),  # unused rows and columns are wasted
        (128, 128, 256, nl.float16, 256),
        (128, 32, 8, nl.bfloat16, 64),  # the least issue interval
    ],
)
def test_a_matmul_takes_its_moving_columns_times_its_passes(k: int, m: int, n: int, dtype: Any, cycles: int) -> None:
    passes = 4 if dtype is nl.float32 else 1
    assert price(matmul(k, m, n, dtype)).busy_ns == pytest.approx(cycles * PE_CYCLE + passes * TRN2.tensor_pass_ns)


def test_flops_count_multiply_and_add_and_transposes_apart() -> None:
    product = price(matmul(128, 128, 512, nl.bfloat16))
    assert (product.flops, product.transpose_flops) == (2 * 128 * 128 * 512, 0)
    transpose = price(lambda: nisa.nc_transpose(dst=tile(P, buffer=nl.psum), data=tile(P), engine=nisa.engine.tensor))
    assert transpose.flops == transpose.transpose_flops == 2 * 128**3
    assert transpose.busy_ns == pytest.approx(2 * (128 * PE_CYCLE + TRN2.tensor_pass_ns))  # float32: two passes


def test_matmuls_on_a_part_of_the_array_leave_the_rest_to_others() -> None:
    whole = price(matmul(32, 128, 512, nl.bfloat16))
    quarter = price(matmul(32, 128, 512, nl.bfloat16, tile_position=(0, 0), tile_size=(32, 128)))
    assert quarter.busy_ns == pytest.approx(whole.busy_ns / 4)
    assert quarter.array_tile is not None and quarter.array_tile.hold_ns == whole.busy_ns
    assert whole.array_tile is None
    assert price(matmul(128, 128, 512, nl.bfloat16, tile_position=(0, 0), tile_size=(128, 128))).array_tile is None


def test_double_row_doubles_the_flops_of_the_same_time() -> None:
    def pair() -> Any:
        return nisa.nc_matmul(
            dst=tile(512, buffer=nl.psum),
            stationary=nl.ndarray((P, 2, P), dtype=nl.float8_e4m3, buffer=nl.sbuf),
            moving=nl.ndarray((P, 2, 512), dtype=nl.float8_e4m3, buffer=nl.sbuf),
            perf_mode=nisa.matmul_perf_mode.double_row,
        )

    single, double = price(matmul(128, 128, 512, nl.bfloat16)), price(pair)
    assert (double.busy_ns, double.flops) == (single.busy_ns, 2 * single.flops)
    with pytest.raises(NotSupported, match="double_row.*trn1"):
        price(pair, TRN1)


def test_a_transpose_on_vector_costs_no_flops() -> None:
    transpose = price(
        lambda: nisa.nc_transpose(dst=tile(32, partitions=32), data=tile(32, partitions=32), engine=nisa.engine.vector)
    )
    assert (transpose.resource, transpose.flops) == ("vector", 0)


ISSUE, SCALAR_ISSUE = TRN2.vector_issue_cycles, TRN2.scalar_issue_cycles
PSUM_ISSUE = TRN2.vector_psum_issue_cycles


def added(dtype: Any, columns: int = 512, **options: Any) -> Callable[[], Any]:
    return lambda: nisa.tensor_tensor(*(tile(columns, dtype) for _ in range(3)), nl.add, **options)


def copied(dtype: Any, out_of: Any) -> Callable[[], Any]:
    return lambda: nisa.tensor_copy(dst=tile(512, dtype), src=tile(512, dtype, out_of))


SUMMED = {"reduce_op": nl.add, "reduce_cmd": nisa.reduce_cmd.reset_reduce}
ELEMENTWISE = {
    "tensor_tensor": (added(nl.float32), "vector", (512 + ISSUE) * VECTOR_CYCLE),
    "short": (added(nl.float32, 4), "vector", (64 + ISSUE) * VECTOR_CYCLE),
    "all bf16": (added(nl.bfloat16), "vector", (256 + ISSUE) * VECTOR_CYCLE),
    "copy bf16": (copied(nl.bfloat16, nl.sbuf), "vector", (128 + ISSUE) * VECTOR_CYCLE),
    "copy bf16 from psum": (copied(nl.bfloat16, nl.psum), "vector", (256 + PSUM_ISSUE) * VECTOR_CYCLE),
    "copy fp32 from psum": (copied(nl.float32, nl.psum), "vector", (512 + PSUM_ISSUE) * VECTOR_CYCLE),
    "reciprocal": (lambda: nisa.reciprocal(tile(128), tile(128)), "vector", (8 * 128 + ISSUE) * VECTOR_CYCLE),
    "activation": (lambda: nisa.activation(tile(), nl.exp, tile()), "scalar", (512 + SCALAR_ISSUE) * SCALAR_CYCLE),
    "activation with sum": (
        lambda: nisa.activation(tile(), nl.exp, tile(), reduce_res=tile(1), **SUMMED),
        "scalar",
        (512 + 64 + SCALAR_ISSUE) * SCALAR_CYCLE,
    ),
    "gpsimd": (added(nl.float32, engine=nisa.engine.gpsimd), "gpsimd", (512 + 150) * GPSIMD_CYCLE),
}


@pytest.mark.parametrize(("body", "engine", "ns"), ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_elementwise_instructions_follow_the_published_formulas(body, engine, ns) -> None:
    paid = price(body)
    assert (paid.resource, paid.busy_ns) == (engine, pytest.approx(ns))


def test_a_wide_stride_in_sbuf_halves_the_rate() -> None:
    packed = price(lambda: nisa.tensor_tensor(tile(), tile(), tile(), nl.add))
    strided = price(lambda: nisa.tensor_tensor(tile(), tile(512 * 8)[:, ::8], tile(), nl.add))
    assert strided.busy_ns - packed.busy_ns == pytest.approx(512 * VECTOR_CYCLE)


def test_trn1_has_no_performance_mode() -> None:
    copy = instruction(lambda: nisa.tensor_copy(dst=tile(512, nl.bfloat16), src=tile(512, nl.bfloat16)))
    assert cost(copy.templates[0], TRN1).busy_ns == pytest.approx((512 + TRN1.vector_issue_cycles) / 1.12)


def test_an_opcode_without_a_price_is_refused_by_name() -> None:
    template = instruction(lambda: nisa.tensor_tensor(tile(), tile(), tile(), nl.add)).templates[0]
    strange = Template("nc_teleport", Engine.vector, None, template.operands, 7)
    with pytest.raises(NotSupported, match="nc_teleport.*line 7"):
        cost(strange, TRN2)


def test_every_instruction_of_the_simulator_has_a_price() -> None:
    special = (
        "nc_matmul", "dma_", "register_", "scalar_arithmetic", "scalar_load", "scalar_store", "core_barrier",
        "sendrecv",
    )  # fmt: skip
    missing = [name for name in OPCODES if name not in TRN2.rates and not name.startswith(special)]
    assert not missing


def test_scalars_are_the_sequencers_and_cost_what_registers_do() -> None:
    """Loads and stores are register accesses; arithmetic has a prior of its own (nki_sim/machine.py)."""

    def body() -> None:
        number = nl.ndarray((1, 1), nl.int32)
        nisa.scalar_store(number, nisa.scalar_load(number) * 3)

    paid = {template.opcode: cost(template, TRN2) for template in instruction(body).templates}
    assert {each.resource for name, each in paid.items() if name.startswith("scalar_")} == {"sync"}
    assert paid["scalar_load"].busy_ns == paid["scalar_store"].busy_ns == TRN2.register_access_ns
    assert paid["scalar_arithmetic"].busy_ns == TRN2.scalar_arithmetic_ns > 0


def transfer(columns: int, partitions: int = P, stop: int | None = None, machine: Machine = TRN2) -> Any:
    def body(source: Any, result: Any) -> None:
        nisa.dma_copy(dst=tile(columns, partitions=partitions), src=source[:partitions, : stop or columns])
        nisa.dma_copy(dst=result, src=source)

    paid = cost(traced(body, 4096).templates[0], machine)
    assert paid.transfer is not None
    return paid.transfer


def per_row_ns(nbytes: int) -> float:
    return 7.0 + nbytes / (27.2 * 0.955)


@pytest.mark.parametrize(
    ("columns", "partitions", "engines", "rows_on_busiest"),
    [(512, 128, 16, 8), (512, 64, 8, 8), (512, 8, 1, 8), (512, 1, 1, 1), (16, 128, 16, 8)],
)
def test_rows_are_dealt_to_engines_by_partition(columns, partitions, engines, rows_on_busiest) -> None:
    moved = transfer(columns, partitions)
    assert (moved.first_engine, moved.last_engine) == (0, engines - 1)
    assert moved.rows == partitions
    assert moved.row_bytes == 4 * columns
    assert moved.engine_ns == pytest.approx(rows_on_busiest * per_row_ns(4 * columns))


@pytest.mark.parametrize(
    ("width", "columns", "ends_within"),
    [
        (4096, 684, True),
        (4096, 1368, True),
        (4096, 912, False),
        (4096, 3, False),  # within one
        (1000, 512, True),  # 4,000 bytes apart
        (684, 684, False),  # one run
    ],
)
def test_rows_that_end_within_what_hbm_moves_at_once_cost_more(width: int, columns: int, ends_within: bool) -> None:
    def body(source: Any, result: Any) -> None:
        nisa.dma_copy(dst=tile(columns), src=source[:, :columns])
        nisa.dma_copy(dst=result, src=source)

    moved = cost(traced(body, width).templates[0], TRN2).transfer
    assert moved is not None
    more = TRN2.dma_unaligned_row_ns if ends_within else 0.0
    assert moved.engine_ns == pytest.approx(8 * (per_row_ns(4 * columns) + more))


def test_a_strided_source_is_moved_element_by_element() -> None:
    def body(source: Any, result: Any) -> None:
        nisa.dma_copy(dst=tile(512), src=source[:, ::2])
        nisa.dma_copy(dst=result, src=source)

    moved = cost(traced(body, 1024).templates[0], TRN2).transfer
    assert moved is not None
    assert (moved.rows, moved.row_bytes) == (P * 512, 4)
    assert moved.engine_ns > 10 * transfer(512).engine_ns


@pytest.mark.parametrize(("dtype", "slowdown"), [(nl.bfloat16, 1.0), (nl.float32, 4.0)])
def test_a_transposing_transfer_loses_a_tenth_and_four_byte_types_more(dtype: Any, slowdown: float) -> None:
    def body(source: Any, result: Any) -> None:
        nisa.dma_transpose(dst=tile(P, dtype), src=source[:, :P])
        nisa.dma_copy(dst=result, src=source)

    moved = cost(traced(body, P, dtype).templates[0], TRN2).transfer
    assert moved is not None
    nbytes = P * P * dtype.itemsize
    assert moved.peak_engine_ns == pytest.approx(nbytes / 16 / (27.2 * 0.9) * slowdown)


def test_between_hbm_tensors_all_engines_share_a_contiguous_copy() -> None:
    moved = cost(traced(lambda source, result: nisa.dma_copy(dst=result, src=source)).templates[0], TRN2).transfer
    assert moved is not None
    assert (moved.first_engine, moved.last_engine) == (0, 15)


SOFTWARE_ISSUE_NS = TRN2.dma_software_issue_ns + TRN2.dma_engines * TRN2.dma_software_descriptor_ns
"""Between two HBM tensors: the rows are dealt to all engines, a descriptor each."""


@pytest.mark.parametrize(
    ("engine", "queue", "issue_ns"),
    [
        (nisa.engine.unknown, "dma.gpsimd", SOFTWARE_ISSUE_NS),
        (nisa.engine.sync, "dma.sync", TRN2.dma_hardware_issue_ns),
        (nisa.engine.scalar, "dma.scalar", TRN2.dma_hardware_issue_ns),
        (nisa.engine.gpsimd, "dma.gpsimd", SOFTWARE_ISSUE_NS),
    ],
)
def test_the_issuing_engine_decides_the_queue(engine: Any, queue: str, issue_ns: float) -> None:
    paid = cost(traced(lambda source, result: nisa.dma_copy(dst=result, src=source, engine=engine)).templates[0], TRN2)
    assert (paid.resource, paid.busy_ns) == (queue, issue_ns)


def test_an_address_in_sbuf_costs_a_register_access_and_one_in_a_register_does_not() -> None:
    """Of rows P009 to P012 and P021 to P024, some 0.65 us for each row gathered so."""

    def load(*, indirect: bool) -> Callable[[Any, Any], None]:
        def body(source: Any, result: Any) -> None:
            index = tile(1, nl.int32, partitions=1)
            at = {"scalar_offset": index, "indirect_dim": 1} if indirect else {}
            nisa.dma_copy(dst=tile(1, partitions=1), src=source.ap([[512, 1], [1, 1]], **at))
            nisa.dma_copy(dst=result, src=source)

        return body

    steered, plain = (cost(traced(load(indirect=each)).templates[0], TRN2) for each in (True, False))
    assert steered.busy_ns - plain.busy_ns == pytest.approx(TRN2.register_access_ns)


def test_vector_issues_later_where_it_reads_psum_and_its_result_is_there_as_early() -> None:
    """M22, M23: the sum of both; C04 and the bf16 rows: the issue alone, 617 ns for 512 columns."""

    def added(to: Any, of: Any) -> Cost:
        return price(lambda: nisa.tensor_tensor(dst=tile(buffer=to), data1=tile(), data2=tile(buffer=of), op=nl.add))

    reading, writing = added(nl.sbuf, nl.psum), added(nl.psum, nl.sbuf)
    assert reading.busy_ns == pytest.approx((512 + 65) / TRN2.vector_clock_ghz)
    assert reading.busy_ns - writing.busy_ns == pytest.approx(45 / TRN2.vector_clock_ghz)
    assert reading.busy_ns + reading.latency_ns == pytest.approx(writing.busy_ns + writing.latency_ns)


def test_traffic_is_counted_where_it_happens() -> None:
    load = cost(
        traced(lambda source, result: (nisa.dma_copy(tile(), source), nisa.dma_copy(result, source))).templates[0], TRN2
    ).traffic
    assert (load.hbm_read, load.sbuf_write, load.hbm_write, load.sbuf_read) == (P * 2048, P * 2048, 0, 0)
    product = price(matmul(128, 128, 512, nl.float32)).traffic
    assert (product.sbuf_read, product.psum_write) == (4 * 128 * (128 + 512), 4 * 128 * 512)
    assert product.psum_read == 0  # accumulation happens inside PSUM
