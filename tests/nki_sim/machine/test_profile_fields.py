"""What is said about a timeline: counters equal to hand counts, times that add up, lines and stalls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import traced_kernels
from traced_kernels import P, instruction, matmul, nisa, nl, stream, tile

import nki_sim
from benchmarks import calibration_kernels as calibration
from nki_sim import dtypes
from nki_sim.commands import gantt
from nki_sim.machine import TRN2
from nki_sim.profile import profile
from nki_sim.timing.cost import RESOURCES
from nki_sim.timing.schedule import schedule
from nki_sim.tracing.session import TensorSpec

NKIBENCH = [
    *(f"{memory}_{way}_bytes" for memory in ("hbm", "psum", "sbuf") for way in ("read", "write")),
    *(f"{engine}_engine_active_time_percent" for engine in ("scalar", "vector", "gpsimd", "tensor")),
    *("spill_reload_bytes", "spill_save_bytes", "hardware_flops", "transpose_flops", "mm_arithmetic_intensity"),
    *("latency", "peak_flops_bandwidth_ratio", "hfu_estimated_percent", "dma_active_time"),
]

ALL_LOADS = replace(TRN2, reload_window_bytes=0)
"""On it, every load that a kernel asks for is carried out."""

K, M, N = 512, 256, 1024
F32 = 4


def counted(k_loads_of_lhs: int, k_loads_of_rhs: int) -> tuple[int, int]:
    """(HBM bytes read, written) of a K x M x N float32 product that loads each operand that many times."""
    return F32 * (k_loads_of_lhs * K * M + k_loads_of_rhs * K * N), F32 * M * N


@pytest.mark.parametrize(
    ("program", "lhs_loads", "rhs_loads"),
    [
        (lambda: calibration.matmul_loads_inside(K, M, N), N // 512, M // P),
        (lambda: calibration.matmul_blocked(K, M, N, 1, 1), 1, M // P),
        (lambda: calibration.matmul_blocked(K, M, N, 2, 2), 1, M // P // 2),
        (lambda: calibration.matmul_fully_blocked(K, M, N, 2, 1, 2), N // 512, 1),
    ],
    ids=["v2", "v3", "v4", "v5"],
)
def test_matmul_counters_equal_hand_counts(program: Any, lhs_loads: int, rhs_loads: int) -> None:
    fields = profile.profile(schedule(program(), ALL_LOADS))
    read, written = counted(lhs_loads, rhs_loads)
    assert fields["hbm_read_bytes"] == read
    assert fields["hbm_write_bytes"] == written
    assert fields["hardware_flops"] == 2 * K * M * N
    assert fields["transpose_flops"] == 0
    assert fields["matmul_instruction_count"] == (K // P) * (M // P) * (N // 512)
    assert fields["psum_write_bytes"] == F32 * (K // P) * M * N
    assert fields["dma_transfer_total_bytes"] == read + written
    assert fields["mm_arithmetic_intensity"] == pytest.approx(2 * K * M * N / (read + written))


@pytest.mark.parametrize(
    "program",
    [
        lambda: calibration.matmul_loads_inside(K, M, N),
        lambda: calibration.matmul_blocked(K, M, N, 1, 1),
        lambda: calibration.matmul_fully_blocked(K, M, N, 2, 1, 2),
    ],
    ids=["v2", "v3", "v5"],
)
def test_operands_that_fit_in_the_window_are_loaded_once(program: Any) -> None:
    read, written = counted(1, 1)
    results = F32 * (K // P) * (M // P) * N + F32 * (M // P) * N  # per partition, even if each sum had its own tile
    assert read // P + results < TRN2.reload_window_bytes
    fields = profile.measure(program()).fields
    assert (fields["hbm_read_bytes"], fields["hbm_write_bytes"]) == (read, written)
    assert fields["dma_transfer_total_bytes"] == read + written
    assert fields["mm_arithmetic_intensity"] == pytest.approx(2 * K * M * N / (read + written))


def test_adamw_counters_equal_hand_counts() -> None:
    rows, width, columns = 256, 512, 256
    fields = profile.measure(calibration.adamw(columns, rows, width)).fields
    tiles = rows * width // P // columns
    assert fields["hbm_read_bytes"] == 4 * F32 * rows * width
    assert fields["hbm_write_bytes"] == F32 * rows * width
    assert fields["vector_engine_instruction_count"] == 4 * tiles
    assert fields["scalar_engine_instruction_count"] == 2 * tiles
    assert fields["dma_transfer_count"] == 5 * tiles
    assert fields["dma_transfer_average_bytes"] == F32 * P * columns
    assert fields["hardware_flops"] == 0


def test_the_names_nkibench_reports_are_all_there_in_profiler_units() -> None:
    measured = profile.measure(matmul(K, M, N))
    for name in NKIBENCH:
        assert name in measured.fields
    fields = measured.fields
    assert fields["total_time"] == pytest.approx(measured.latency_us / 1e6)  # seconds
    assert fields["latency"] == pytest.approx(measured.latency_us / 1e3)  # milliseconds
    for name, value in fields.items():
        if name.endswith("_percent"):
            assert 0 <= value <= 1, name  # fractions
    flops, peak = 2 * K * M * N, 78.6432e12
    assert fields["hfu_estimated_percent"] == pytest.approx(flops / peak / fields["total_time"])
    assert fields["peak_flops_bandwidth_ratio"] == pytest.approx(109.84, rel=1e-4)
    assert fields["dma_active_time"] <= fields["total_time"]


def test_transposes_count_as_hardware_but_not_as_model_flops() -> None:
    def transpose() -> None:
        nisa.nc_transpose(dst=tile(P, buffer=nl.psum), data=tile(P), engine=nisa.engine.tensor)

    fields = profile.measure(instruction(transpose)).fields
    assert fields["transpose_flops"] == fields["hardware_flops"] == 2 * P**3
    assert fields["model_flops"] == 0


def test_useful_work_is_counted_for_tasks_that_declare_none() -> None:
    measured = profile.measure(stream(512, 4))
    assert measured.matmul_flops == 0
    assert measured.vector_ops == P * 512 * 4
    assert measured.io_bytes == 2 * F32 * P * 512 * 4


def test_lines_say_which_engine_they_occupy_and_for_how_long() -> None:
    measured = profile.measure(matmul(K, M, N))
    products = next(line for line in measured.lines if line.engine == "tensor")
    assert products.instructions == 16
    each = TRN2.tensor_fp32_passes * (512 / TRN2.tensor_clock_ghz + TRN2.tensor_pass_ns)
    assert products.active_us == pytest.approx(16 * each / 1e3)
    loads = (K // P) * (M // P) + (K // P) * (N // 512)  # each tile once: the second time, its copy is near
    assert sum(line.instructions for line in measured.lines) == 16 + loads + 4 * 2
    assert [line.active_us for line in measured.lines] == sorted((n.active_us for n in measured.lines), reverse=True)


def test_stalls_name_what_an_engine_waited_for() -> None:
    measured = profile.measure(stream(512, 8))
    waiting = {(stall.engine, stall.waiting_on): stall.us for stall in measured.stalls}
    assert waiting["scalar", "dma"] > 0.5 * measured.latency_us
    assert measured.fields["scalar_engine_active_time"] * 1e6 + sum(waiting.values()) <= measured.latency_us


def test_idle_stretches_are_those_of_the_busiest_engine_with_the_lines_on_both_sides() -> None:
    timeline = schedule(matmul(256, 128, 1024), TRN2)
    measured = profile.summarise(timeline)
    assert measured.idle and {stretch.engine for stretch in measured.idle} == {"tensor"}
    first = measured.idle[0]
    lines = Path(traced_kernels.__file__).read_text().splitlines()
    assert first.begin_us == 0 and first.waiting_on == "dma"
    assert "nc_matmul" in lines[first.line - 1] and "dma_copy" in lines[first.waiting_on_line - 1]
    products = timeline.program.template_ids == [t.opcode for t in timeline.program.templates].index("nc_matmul")
    assert first.end_us == pytest.approx(timeline.start_ns[products].min() / 1e3)
    for stretch, after in zip(measured.idle, measured.idle[1:]):
        assert stretch.begin_us < stretch.end_us <= after.begin_us
    tensor = sum(stall.us for stall in measured.stalls if stall.engine == "tensor")
    assert sum(stretch.end_us - stretch.begin_us for stretch in measured.idle) <= tensor + 1e-9


def test_a_program_without_instructions_takes_no_time() -> None:
    program = nki_sim.trace(lambda x: x, TensorSpec((P, 8), dtypes.float32))
    measured = profile.measure(program)
    assert measured.latency_us == 0
    assert measured.lines == measured.stalls == ()


def test_the_perfetto_file_holds_every_instruction_on_its_track(tmp_path: Path) -> None:
    program = stream(512, 4)
    timeline = schedule(program, TRN2)
    with open(tmp_path / "trace.json", "w", encoding="utf-8") as file:
        gantt.write_timeline(timeline, file)
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tuple(tracks.values()) == RESOURCES
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == len(program) == 12
    assert [e["ts"] for e in spans] == pytest.approx((timeline.start_ns / 1e3).tolist(), abs=1e-3)
    scalar = [e for e in spans if tracks[e["tid"]] == "scalar"]
    assert len(scalar) == 4
    assert "nisa.activation" in scalar[0]["name"]  # the source line names it
    assert scalar[0]["args"]["waited for"] == 0
