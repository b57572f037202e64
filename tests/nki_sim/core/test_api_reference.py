"""The text for the language model names what exists, in full where the kernel needs it, and nothing else."""

from __future__ import annotations

import re

import pytest

from nki_sim.nki import isa, language
from nki_sim.reference import api_reference

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(a):
    nisa.range_select(dst=a, on_true_tile=a, comp_op0=nl.less, comp_op1=nl.less, bound0=a, bound1=a)
"""


def test_every_name_in_it_exists() -> None:
    text = api_reference(KERNEL, "trn2")
    for name in set(re.findall(r"`nisa\.(\w+)", text)) | set(re.findall(r"### nisa\.(\w+)", text)):
        assert hasattr(isa, name), name
    for name in set(re.findall(r"`nl\.(\w+)", text)):
        assert name == "tile_size" or hasattr(language, name), name


def test_every_instruction_is_named_and_trn3_ones_are_not() -> None:
    text = api_reference(KERNEL, "trn2")
    (others,) = re.findall(r"## Other nisa instructions\n\n(.*)", text)
    for name in ("iota", "bn_stats", "register_load", "sendrecv", "topk"):
        assert re.search(rf"\b{name}\b", others)
    assert "nisa.dma_copy(" in text and "nisa.nc_matmul(" in text
    assert "quantize_mx" not in text and "exponential" not in text


def test_what_the_kernel_calls_is_there_in_full() -> None:
    heading = "### nisa.range_select("
    assert heading in api_reference(KERNEL, "trn2")
    assert heading not in api_reference("import nki", "trn2")
    assert "### nisa.nc_matmul(" in api_reference("not python at all (", "trn2")


def test_names_are_those_of_the_versions_it_is_for() -> None:
    common, newest, oldest = (
        api_reference("import nki", "trn2", *versions) for versions in ((), (("0.7",),), (("0.2", "0.3"),))
    )
    assert "# NKI 0.3 to 0.7: " in common and "# NKI 0.7: " in newest
    for name in ("nl.tiles(", "scalar_load", "nl.fori_loop(", "int64"):
        assert name in newest and name not in common and name not in oldest
    assert "affine_range" not in common + newest and "dynamic_range" not in common + newest
    assert "affine_range(" in oldest and "dynamic_range(" in oldest


@pytest.mark.parametrize(
    ("machine", "there", "not_there"),
    [
        (
            "trn1",
            ["nisa.nc_matmul(", "none"],
            ["range_select", "sendrecv", "hwdge", "double_row", "nc_matmul_mx", "_x4"],
        ),
        ("trn2", ["range_select(", "sendrecv(", "hwdge", "double_row: float8"], ["nc_matmul_mx", "rand2", "_x4"]),
        (
            "trn3",
            [
                "range_select(",
                "### nisa.nc_matmul_mx\ntrn3 (NeuronCore-v4) only, not simulated",
                "not simulated: float4",
            ],
            [],
        ),
    ],
)
def test_what_another_generation_has_is_left_out(machine: str, there: list[str], not_there: list[str]) -> None:
    text = api_reference("import nki", machine, also="range_select, sendrecv, nc_matmul_mx or rand2")
    assert [name for name in there if name not in text] == []
    assert [name for name in not_there if name in text] == []
