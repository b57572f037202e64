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
    text = api_reference(KERNEL)
    for name in set(re.findall(r"`nisa\.(\w+)", text)) | set(re.findall(r"### nisa\.(\w+)", text)):
        assert hasattr(isa, name), name
    for name in set(re.findall(r"`nl\.(\w+)", text)):
        assert name == "tile_size" or hasattr(language, name), name


def test_every_instruction_has_an_entry_and_trn3_ones_have_none() -> None:
    text = api_reference(KERNEL)
    for name in ("dma_copy", "nc_matmul", "iota", "bn_stats", "register_load", "sendrecv", "topk"):
        assert f"nisa.{name}(" in text
    assert "quantize_mx" not in text and "exponential(" not in text


def test_what_the_kernel_calls_is_there_in_full() -> None:
    heading = "### nisa.range_select("
    assert heading in api_reference(KERNEL)
    assert heading not in api_reference("import nki")
    assert "### nisa.nc_matmul(" in api_reference("not python at all (")


def test_it_lists_what_the_kernel_breaks_already() -> None:
    broken = KERNEL.replace("nisa.range_select(dst=a", "nisa.range_selekt(dst=a")
    assert "nki.isa has no range_selekt; did you mean range_select" in api_reference(broken)
    assert "already breaks" not in api_reference("import nki")


def test_it_fits_a_prompt() -> None:
    assert len(api_reference(KERNEL)) < 24_000


def test_an_unknown_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="0.6"):
        api_reference(KERNEL, "9.9")
