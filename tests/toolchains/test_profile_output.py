"""What the profiler prints, in every version known and in every way it can be broken."""

from __future__ import annotations

import json
import math

import pytest

from infra.neuron.profiling.profile import (
    ProfileUnreadable,
    narrow_matmuls,
    parse_instructions,
    parse_summary,
    resource_bound_us,
    summary_of_table,
)
from nki_sim.machine import TRN2

EXPLORER_2_32 = {
    "n_5f3c9a1b2d": {
        "total_time": 0.0012345, "total_active_time": 0.00121, "neuroncore_cycle_count": 1728300, "model_flops": 0,
        "hardware_flops": 2147483648, "transpose_flops": 0, "adjusted_hardware_flops": 8589934592,
        "adjusted_transpose_flops": 0, "mm_arithmetic_intensity": 85.3, "peak_flops_bandwidth_ratio": 232.1,
        "dma_active_time": 0.00098, "dma_active_time_percent": 0.794, "tensor_engine_active_time_percent": 0.91,
        "hbm_read_bytes": 25165824, "hbm_write_bytes": 8388608, "mbu_estimated_percent": 0.07,
        "mfu_estimated_percent": 0.11, "spill_save_bytes": 0, "throttle_avg_util_limit_nc0_percent": 1.0,
        "profile_name": "mlp",
    }
}  # fmt: skip
"""Schema 7.4.0 (SDK 2.31 and 2.32): names and units of profile-schema-reference.rst."""

PROFILE_2_26 = {"n_0": {"total_time": 0.017, "event_count": 11215, "pe_utilization": 0.4, "nc_idx": 1, "nd_idx": 2,
                        "hbm_read_bytes": None, "mfu_estimated_percent": float("nan")}}  # fmt: skip
"""The older neuron-profile: other fields, nulls and NaN among them."""


@pytest.mark.parametrize(
    ("printed", "total_time"),
    [
        (json.dumps(EXPLORER_2_32), 0.0012345),
        (json.dumps(EXPLORER_2_32, indent=4), 0.0012345),
        (json.dumps(PROFILE_2_26), 0.017),
        (f'time="…" level=info msg="{{}}"\n{json.dumps(PROFILE_2_26)}\ndone\n', 0.017),
        (json.dumps({"total_time": 0.5, "event_count": 3}), 0.5),
        (json.dumps({"summary": [{"total_time": 0.25}], "instruction": []}), 0.25),
        (json.dumps({"n_a": {"total_time": 0.1}, "n_b": {"total_time": 0.3}}), 0.3),
        (json.dumps({"n_a": {"total_time": 2, "neuroncore_cycle_count": 0}}), 2.0),
    ],
)
def test_a_summary_of_any_known_version_is_read(printed: str, total_time: float) -> None:
    assert parse_summary(printed)["total_time"] == total_time


def test_fields_keep_their_names_and_units_and_the_slowest_summary_decides() -> None:
    fields = parse_summary(json.dumps(EXPLORER_2_32))
    assert fields["dma_active_time_percent"] == 0.794, "a fraction of 1, as summary-json has it"
    assert fields["hbm_read_bytes"] == 25165824
    assert "profile_name" not in fields
    old = parse_summary(json.dumps(PROFILE_2_26))
    assert "hbm_read_bytes" not in old and "mfu_estimated_percent" not in old
    assert all(math.isfinite(value) for value in (*fields.values(), *old.values()))
    row = EXPLORER_2_32["n_5f3c9a1b2d"]
    assert summary_of_table([row, {**row, "total_time": 0.002, "cc_active_time": None}])["total_time"] == 0.002
    for rows in ([], [{**row, "total_time": 1.2345e6}], [{"hbm_read_bytes": 1}]):
        with pytest.raises(ProfileUnreadable):
            summary_of_table(rows)


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("", "no summary"),
        ("ERROR profile processing failed", "processing failed"),
        ("{}", "no summary"),
        (json.dumps({"n_a": {}}), "no number named total_time"),
        (json.dumps({"n_a": {"event_count": 3}}), "no number named total_time (it has 'event_count')"),
        (json.dumps({"n_a": {"total_time": "1.2 ms"}}), "no number named total_time"),
        (json.dumps({"n_a": {"total_time": None}}), "no number named total_time"),
        (json.dumps({"n_a": {"total_time": True}}), "no number named total_time"),
        (json.dumps({"n_a": {"total_time": float("inf")}}), "no number named total_time"),
        (json.dumps({"n_a": {"total_time": 0}}), "not the seconds"),
        (json.dumps({"n_a": {"total_time": -1e-3}}), "not the seconds"),
        (json.dumps({"n_a": {"total_time": 123456.0}}), "not the seconds"),
        (json.dumps({"n_a": {"total_time": 1.2, "neuroncore_cycle_count": 1728300}}), "a unit has changed"),
        (json.dumps(EXPLORER_2_32)[:300], "no summary"),
        ("[" * 100000, "no summary"),
        (json.dumps({"n_a": {"total_time": 1e-3}, "n_b": {}}), "no number named total_time"),
    ],
)
def test_a_summary_without_a_believable_latency_is_an_error_by_name(printed: str, says: str) -> None:
    with pytest.raises(ProfileUnreadable, match=r"(?s).") as error:
        parse_summary(printed)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("flops", "adjusted", "transpose", "adjusted_transpose", "narrow"),
    [
        (1000, 4000, 0, 0, False),
        (1000, 1000, 0, 0, True),
        (1000, 2500, 0, 0, True),
        (2000, 5000, 1000, 1000, False),
        (1000, 1000, 1000, 1000, False),
        (0, 0, 0, 0, False),
    ],
)
def test_the_summary_betrays_matmuls_below_float32(flops, adjusted, transpose, adjusted_transpose, narrow) -> None:
    fields = {"hardware_flops": flops, "adjusted_hardware_flops": adjusted, "transpose_flops": transpose,
              "adjusted_transpose_flops": adjusted_transpose}  # fmt: skip
    assert (narrow_matmuls(fields) is not None) is narrow
    assert narrow_matmuls({"hardware_flops": 1000.0}) is None


@pytest.mark.parametrize(
    ("summary", "bound_us"),
    [
        ({"adjusted_hardware_flops": 78.6432e9}, 1000.0),
        ({"hbm_read_bytes": 870.4e6, "hbm_write_bytes": 0.0}, 1000.0),
        ({"adjusted_hardware_flops": 1e9, "hbm_read_bytes": 870.4e6, "hbm_write_bytes": 870.4e6}, 2000.0),
        ({"hbm_read_bytes": 5e6}, None),
        ({}, None),
    ],
)
def test_the_counters_themselves_bound_the_latency(summary: dict[str, float], bound_us: float | None) -> None:
    found = resource_bound_us(summary, TRN2)
    assert found is None if bound_us is None else found == pytest.approx(bound_us, rel=1e-3)


def _row(line: int, engine: str, start: int, end: int, **more: object) -> dict[str, object]:
    return {"start_ts": start, "end_ts": end, "duration_ns": end - start, "engine": engine, "opcode": "MATMUL",
            "operands": "src=fp32@0x0", "nki_source_location": [f"/tmp/w/candidate.py:{line}"], **more}  # fmt: skip


def test_each_line_is_charged_for_the_union_of_its_instructions_on_its_busiest_engine() -> None:
    rows = [
        _row(12, "tensor", 0, 1000), _row(12, "tensor", 500, 1500), _row(12, "vector", 0, 300),
        _row(20, "scalar", 2000, 2100), _row(20, "scalar", 0, 50_000, opcode="EVENT_SEMAPHORE"),
        _row(9, "vector", 0, 9, nki_source_location="/opt/nki/kernels/other.py:9"),
    ]  # fmt: skip
    facts = parse_instructions(json.dumps({"instruction": rows}), source_name="candidate.py", total_time_s=1e-4)
    assert [(hot.line, hot.engine, hot.active_us, hot.instructions) for hot in facts.hot_lines] == [
        (12, "tensor", 1.5, 2),
        (20, "scalar", 0.1, 1),
    ]
    assert facts.low_precision == ()


@pytest.mark.parametrize(("ticks_per_us", "unit"), [(1_000, "ns"), (1_000_000, "ps")])
def test_the_unit_of_an_old_table_follows_from_the_latency(ticks_per_us: int, unit: str) -> None:
    rows = [{"timestamp": 5 * ticks_per_us, "duration": 40 * ticks_per_us, "label": "TensorMatrix", "opcode": "MATMUL",
             "operands": "S[5] src=fp16@0x5600[1,0,0][3,1,1] dst=0x2000000", "nki_source_location": "candidate.py:3"}
            ]  # fmt: skip
    facts = parse_instructions(json.dumps({"instruction": rows}), source_name="candidate.py", total_time_s=50e-6)
    assert [(hot.line, hot.engine, hot.active_us) for hot in facts.hot_lines] == [(3, "tensor", pytest.approx(40.0))], (
        unit
    )
    assert facts.low_precision == ("float16",)


@pytest.mark.parametrize(
    ("operands", "narrow"),
    [
        ("src=bf16@0x0 dst=fp32@0x100", ("bfloat16",)),
        ("src=fp32@0x0 dst=fp32@0x100", ()),
        ("src=fp8e4@0x0", ("fp8e4",)),
        ("in=float16[128] in2=bfloat16[128]", ("bfloat16", "float16")),
        ("dst=ifp16x@0x0 name=bf16ish", ()),
    ],
)
def test_narrow_dtypes_are_read_from_the_operands_of_instructions(operands: str, narrow: tuple[str, ...]) -> None:
    table = json.dumps({"instruction": [_row(1, "vector", 0, 10, operands=operands)]})
    assert parse_instructions(table, source_name="candidate.py", total_time_s=1e-6).low_precision == narrow


@pytest.mark.parametrize(
    "table",
    [
        "",
        "[]",
        "{}",
        '{"instruction": 3}',
        '{"instruction": [3]}',
        '{"instruction": [{"opcode": "MATMUL"}]}',
        '{"instruction": [{"opcode": "MATMUL", "timestamp": 0, "duration": "x"}]}',
        '{"instruction": [{"opcode": "MATMUL", "timestamp": 0, "duration": 7}]}',
        '{"instruction": [',
    ],
)
def test_a_table_that_makes_no_sense_is_an_error_by_name(table: str) -> None:
    with pytest.raises(ProfileUnreadable):
        parse_instructions(table, source_name="candidate.py", total_time_s=1e-3)
