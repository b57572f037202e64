"""The text for the language model names what exists, in full where the kernel needs it, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from nki_sim.machine import MACHINES
from nki_sim.nki import isa, language
from nki_sim.reference import api_reference, instruction_list

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


def test_what_a_plan_names_is_there_in_full() -> None:
    heading = "### nisa.bn_stats("
    assert heading not in api_reference(KERNEL, "trn2")
    text = api_reference(KERNEL, "trn2", also="mean and variance by `nisa.bn_stats`, then bn_aggr(...)")
    assert heading in text and "### nisa.bn_aggr(" in text


def test_what_the_kernel_calls_is_there_in_full() -> None:
    heading = "### nisa.range_select("
    assert heading in api_reference(KERNEL, "trn2")
    assert heading not in api_reference("import nki", "trn2")
    assert "### nisa.nc_matmul(" in api_reference("not python at all (", "trn2")


def test_it_lists_what_the_kernel_breaks_already() -> None:
    broken = KERNEL.replace("nisa.range_select(dst=a", "nisa.range_selekt(dst=a")
    assert "nki.isa has no range_selekt; did you mean range_select" in api_reference(broken, "trn2")
    assert "already breaks" not in api_reference("import nki", "trn2")


def test_it_fits_a_prompt() -> None:
    assert len(api_reference(KERNEL, "trn2")) < 24_000


def test_names_are_those_of_the_versions_it_is_for() -> None:
    common, newest, oldest = (
        api_reference("import nki", "trn2", *versions) for versions in ((), (("0.7",),), (("0.2", "0.3"),))
    )
    assert "# NKI 0.3 to 0.7: " in common and "# NKI 0.7: " in newest
    for name in ("nl.tiles(", "scalar_load", "nl.fori_loop(", "int64"):
        assert name in newest and name not in common and name not in oldest
    assert "affine_range" not in common + newest and "dynamic_range" not in common + newest
    assert "affine_range(" in oldest and "dynamic_range(" in oldest


def test_what_the_kernel_uses_is_there_in_any_version() -> None:
    used = KERNEL + "    for i in nl.affine_range(2):\n        nl.tiles(a, tile_shape=(1, 1))\n"
    text = api_reference(used, "trn2")
    assert "`nl.affine_range(" in text and "`nl.tiles(" in text
    assert "nl.affine_range is deprecated" in text and "nki.language.tiles exists from NKI 0.7" in text


def test_an_unknown_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="0.6"):
        api_reference(KERNEL, "trn2", ("9.9",))


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


@pytest.mark.parametrize("machine", MACHINES)
def test_the_sizes_are_the_machines_whatever_the_environment_says(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "gen3")
    usable = MACHINES[machine].sbuf_partition_bytes
    assert f"`nl.tile_size.sbuf_fmax_bytes` = {usable}\n" in api_reference(KERNEL, machine)


def test_the_list_for_a_planner_is_the_machines_too() -> None:
    assert "range_select(" in instruction_list("trn2") and "range_select" not in instruction_list("trn1")
    assert "hwdge" in instruction_list("trn2") and "hwdge" not in instruction_list("trn1")
    assert "sendrecv" not in instruction_list("trn2"), "one core has nobody to send to"


@pytest.mark.parametrize("text", [lambda: api_reference(KERNEL, "trn9"), lambda: instruction_list("trn9")])
def test_an_unknown_machine_is_an_error(text: Callable[[], str]) -> None:
    with pytest.raises(KeyError, match="trn1, trn2, trn3"):
        text()
