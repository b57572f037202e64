"""The machine table: every number has a source, and the published peaks follow from it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from nki_sim.machine import MACHINES, TRN1, TRN2, TRN3, Machine, machine


@pytest.mark.parametrize("name", ["trn1", "trn2", "trn3"])
def test_every_number_of_every_generation_names_its_source(name: str) -> None:
    core = MACHINES[name]
    for field in fields(Machine):
        if field.name in ("name", "sources"):
            continue
        source = core.sources[field.name]
        assert source.text.strip(), field.name
        assert source.confidence in ("documented", "measured", "fitted", "prior")


def test_a_fitted_number_names_the_rows_it_was_fitted_to() -> None:
    for name, source in TRN2.sources.items():
        if source.confidence == "fitted":
            assert any(f"{kind}{n:02}" in source.text for kind in "CM" for n in range(1, 28)), name


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
