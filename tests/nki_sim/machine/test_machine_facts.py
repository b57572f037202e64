"""The machine table: every number has a source, and the published peaks follow from it."""

from __future__ import annotations

import csv
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest

from nki_sim.machine import (
    DEFAULT_MACHINE,
    ISA,
    MACHINES,
    TARGETS,
    TRN1,
    TRN2,
    TRN3,
    Confidence,
    InstructionSet,
    Machine,
    first_with,
    machine,
)

DATA = Path(__file__).resolve().parents[3] / "benchmarks" / "data"
MICRO = DATA / "trn2_micro.csv"
KERNELS = [file for file in sorted((*DATA.glob("*.csv"), *DATA.glob("trn2_device/*.csv"))) if file != MICRO]


def read(file: Path) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as rows:
        return list(csv.DictReader(rows))


@pytest.mark.parametrize("facts", [ISA, *MACHINES.values()], ids=["every", *MACHINES])
def test_every_number_of_every_generation_names_its_source(facts: InstructionSet | Machine) -> None:
    for field in fields(facts):
        if field.name in ("name", "product", "calibration", "sources"):
            continue
        source = facts.sources[field.name]
        assert source.text.strip(), field.name
        assert source.confidence in get_args(Confidence)


def test_a_fitted_number_names_the_rows_it_was_fitted_to() -> None:
    sources = {**TRN2.sources, **{f"rates {name}": rate.source for name, rate in TRN2.rates.items()}}
    fitted = {name: source.text for name, source in sources.items() if source.confidence == "fitted"}
    assert fitted
    ids = {row["id"] for file in (*KERNELS, MICRO) for row in read(file)}
    for name, text in fitted.items():
        named = set(re.findall(r"\b[A-Z]\d{2,3}\b", text))
        assert named and named <= ids, f"{name}: {text}"


@pytest.mark.parametrize(
    ("core", "bf16", "fp32", "vector", "dma"),
    [
        (TRN2, 78.64e3, 19.66e3, 276.5, 435.2),
        (TRN1, 91.75e3, 22.94e3, 322.6, 272.0),
        (TRN3, 78.64e3, 19.66e3, 307.2, 528.0),
    ],
    ids=["trn2", "trn1", "trn3"],
)
def test_the_peak_rates_follow_from_the_numbers(
    core: Machine, bf16: float, fp32: float, vector: float, dma: float
) -> None:
    assert core.matmul_bf16_flops_per_ns == pytest.approx(bf16, rel=1e-3)
    assert core.matmul_fp32_flops_per_ns == pytest.approx(fp32, rel=1e-3)
    assert core.vector_pool_ops_per_ns == pytest.approx(vector, rel=1e-3)
    assert core.dma_bytes_per_ns == pytest.approx(dma, rel=1e-3)


def test_a_machine_is_data_and_can_be_changed_for_a_what_if() -> None:
    assert replace(TRN2, dma_engines=32).dma_bytes_per_ns == pytest.approx(2 * TRN2.dma_bytes_per_ns)


def test_an_unknown_generation_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match="trn9.*trn1, trn2, trn3"):
        machine("trn9")


@pytest.mark.parametrize("core", MACHINES.values(), ids=MACHINES)
def test_a_machine_accepts_what_instructions_are_checked_against(core: Machine) -> None:
    shared = {field.name for field in fields(ISA)} & {field.name for field in fields(core)} - {"sources"}
    assert len(shared) == 7
    assert {name: getattr(core, name) for name in shared} == {name: getattr(ISA, name) for name in shared}


@pytest.mark.parametrize("core", MACHINES.values(), ids=MACHINES)
def test_a_machine_says_in_one_line_how_far_it_is_calibrated(core: Machine) -> None:
    assert core.calibration and "\n" not in core.calibration and len(core.calibration) <= 110
    assert core.calibration.startswith("calibrated: " if core.calibrated else "not calibrated: ")
    assert core.name in core.calibration


def test_only_trn2_rests_on_measurements_and_it_counts_them() -> None:
    assert [core.name for core in MACHINES.values() if core.calibrated] == ["trn2"]
    kernels = sum(bool(row.get("latency_us") or row.get("measured_us")) for file in KERNELS for row in read(file))
    micro = sum(bool(row["measured_ns"]) for row in read(MICRO))
    assert f"{kernels} whole kernels and {micro} micro rows" in TRN2.calibration


def test_every_name_of_a_target_means_one_machine() -> None:
    assert TARGETS["gen2"] == TARGETS["inf2"] == "trn1" and TARGETS["gen4"] == "trn3"
    assert len(TARGETS) == sum(len(core.targets) for core in MACHINES.values())
    assert DEFAULT_MACHINE in MACHINES
    assert [first_with(version) for version in (2, 4)] == ["trn1 (NeuronCore-v2)", "trn3 (NeuronCore-v4)"]
