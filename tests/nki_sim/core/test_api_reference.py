"""The text for the language model names what exists, in full where the kernel needs it, and nothing else."""

from __future__ import annotations

import re

import pytest

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
    text = api_reference(KERNEL, "trn2", also="activation, nc_matmul, nl.load, nl.shared_identity_matrix")
    for name in set(re.findall(r"`nisa\.(\w+)", text)) | set(re.findall(r"### nisa\.(\w+)", text)):
        assert hasattr(isa, name), name
    for name in set(re.findall(r"`nl\.(\w+)", text)):
        assert hasattr(language, name), name


def test_every_instruction_that_may_be_planned_is_named_and_trn3_ones_are_not() -> None:
    text = instruction_list("trn2")
    for name in ("iota", "bn_stats", "topk", "dma_copy", "nc_matmul", "shared_identity_matrix", "silu", "ap"):
        assert re.search(rf"\b{name}\b", text), name
    assert "quantize_mx" not in text and "exponential" not in text and "register_load" not in text
    assert all(hasattr(isa, name) for name in text.split("; their")[0].removeprefix("- `nisa`: ").split(", "))


def test_what_a_plan_names_is_there_in_full() -> None:
    named = "### nisa.range_select("
    assert named in api_reference(KERNEL, "trn2"), "what it calls, where the plan names nothing"
    assert named in api_reference(KERNEL, "trn2", also="with range_select")
    assert named not in api_reference(KERNEL, "trn2", also="with activation")
    assert "range_select" not in api_reference("import nki", "trn2")
    assert "### nisa.nc_matmul(" in api_reference("not python at all (", "trn2", also="nc_matmul")
    text = api_reference("x = a.reshape((1, 2))", "trn2", also="nl.load and nl.exp")
    assert "`nl.load(" in text and "`t.reshape(" in text and "`nl.exp(" not in text


def test_names_are_those_of_the_versions_it_is_for() -> None:
    common, newest, oldest = (instruction_list("trn2", *of) for of in ((), (("0.7",),), (("0.2", "0.3"),)))
    assert "of NKI 0.7 " in api_reference("import nki", "trn2", ("0.7",))
    for name in ("tiles", "fori_loop"):
        assert re.search(rf"\b{name}\b", newest) and not re.search(rf"\b{name}\b", common + oldest)
    assert "affine_range" not in common + newest and "dynamic_range" not in common + newest
    assert "affine_range" in oldest and "dynamic_range" in oldest


@pytest.mark.parametrize(
    ("machine", "there", "not_there"),
    [
        ("trn1", [], ["range_select", "sendrecv", "hwdge", "double_row", "nc_matmul_mx", "_x4"]),
        ("trn2", ["range_select(", "sendrecv(", "hwdge", "double_row: float8"], ["nc_matmul_mx", "rand2", "_x4"]),
        ("trn3", ["range_select(", "### nisa.nc_matmul_mx\ntrn3 (NeuronCore-v4) only, not simulated", "float4"], []),
    ],
)
def test_what_another_generation_has_is_left_out(machine: str, there: list[str], not_there: list[str]) -> None:
    named = api_reference("import nki", machine, also="nc_matmul, range_select, sendrecv, nc_matmul_mx or rand2")
    text = instruction_list(machine) + named
    assert [name for name in there if name not in text] == []
    assert [name for name in not_there if name in text] == []
