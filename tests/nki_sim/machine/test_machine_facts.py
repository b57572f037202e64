"""The machine table: every number has a source, and the published peaks follow from it."""

from __future__ import annotations

import csv
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from nki_sim.machine import ISA, MACHINES, TRN1, TRN2, TRN3, Confidence, InstructionSet, Machine

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
def test_the_peak_rates_follow_from_the_numbers(core, bf16, fp32, vector, dma) -> None:
    assert core.matmul_bf16_flops_per_ns == pytest.approx(bf16, rel=1e-3)
    assert core.matmul_fp32_flops_per_ns == pytest.approx(fp32, rel=1e-3)
    assert core.vector_pool_ops_per_ns == pytest.approx(vector, rel=1e-3)
    assert core.dma_bytes_per_ns == pytest.approx(dma, rel=1e-3)


@pytest.mark.parametrize("core", MACHINES.values(), ids=MACHINES)
def test_a_machine_accepts_what_instructions_are_checked_against(core: Machine) -> None:
    shared = {field.name for field in fields(ISA)} & {field.name for field in fields(core)} - {"sources"}
    assert len(shared) == 7
    assert {name: getattr(core, name) for name in shared} == {name: getattr(ISA, name) for name in shared}


def test_only_trn2_rests_on_measurements_and_it_counts_them() -> None:
    assert [core.name for core in MACHINES.values() if core.calibrated] == ["trn2"]
    kernels = sum(bool(row.get("latency_us") or row.get("measured_us")) for file in KERNELS for row in read(file))
    micro = sum(bool(row["measured_ns"]) for row in read(MICRO))
    assert f"{kernels} whole kernels and {micro} micro rows" in TRN2.calibration
