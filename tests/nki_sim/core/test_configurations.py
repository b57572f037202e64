"""`nki.jit` takes NKI 0.7's configurations; nested kernels and degrees of a logical core have to agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nki_sim.errors import NkiValidationError
from nki_sim.nki import isa as nisa
from nki_sim.nki import jit, simulate
from nki_sim.nki import language as nl
from nki_sim.nki.compiler import AddressRotation, CompileConfig, SpecializationConfig

ARRAY = np.arange(32, dtype=np.float32).reshape(4, 8)


def moved(a: Any) -> Any:
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=a)
    return out


def cores_seen(a: Any) -> Any:
    """Each core writes its row, and how many there are."""
    out = nl.ndarray((2, 1), nl.float32, buffer=nl.shared_hbm)
    tile = nl.full((1, 1), nl.num_programs(0), nl.float32)
    for row in range(2) if nl.num_programs(0) == 1 else [nl.program_id(0)]:
        nisa.dma_copy(dst=out[row : row + 1, :], src=tile)
    return out


def test_a_configured_kernel_computes_the_same() -> None:
    config = CompileConfig(address_rotation=AddressRotation.DISABLE, barrier_check=True, prefetch_auto=True)
    kernel = jit(compile_config=config, specialization_config=SpecializationConfig())(moved)
    assert (kernel.compile_config, kernel.specialization_config) == (config, SpecializationConfig())
    assert kernel[1].compile_config is config and kernel.with_schedule([]).compile_config is config
    np.testing.assert_array_equal(kernel(ARRAY), ARRAY)
    np.testing.assert_array_equal(jit(jit(moved), compile_config=config)(ARRAY), ARRAY)


OTHER = CompileConfig(barrier_check=True)


@pytest.mark.parametrize(
    ("outer", "inner", "agrees"),
    [
        (None, None, True),
        (OTHER, OTHER, True),
        (OTHER, None, True),
        (None, CompileConfig(), True),
        (None, OTHER, False),
    ],
)
def test_a_nested_kernel_is_inlined_where_configurations_agree(outer: Any, inner: Any, agrees: bool) -> None:
    called = jit(moved, compile_config=inner)
    kernel = jit(lambda a: called(a), compile_config=outer)
    if agrees:
        np.testing.assert_array_equal(kernel(ARRAY), ARRAY)
    else:
        with pytest.raises(NkiValidationError, match="moved is called in a kernel with another compile_config"):
            kernel(ARRAY)


def test_a_differing_nested_configuration_can_be_allowed() -> None:
    called = jit(moved, compile_config=OTHER)
    kernel = jit(lambda a: called(a), specialization_config=SpecializationConfig(allow_nested_config_override=True))
    with pytest.warns(UserWarning, match="under the outer one's"):
        np.testing.assert_array_equal(kernel(ARRAY), ARRAY)


def test_the_environment_gives_the_degree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEURON_CC_FLAGS", raising=False)
    kernel = jit(cores_seen)
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    assert kernel(ARRAY)[0, 0] == 1 and kernel[2](ARRAY)[1, 0] == 2
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert kernel(ARRAY)[1, 0] == 2 and simulate(kernel)(ARRAY)[1, 0] == 2
    monkeypatch.setenv("NEURON_CC_FLAGS", "--lnc=2 -O1")
    assert kernel[2](ARRAY)[0, 0] == 2


@pytest.mark.parametrize(
    ("degree", "flags", "brackets"),
    [("2", "", 1), ("1", "", 2), ("", "--lnc 2", None), ("1", "--logical-nc-config=2", None), ("", "--lnc=1", 2)],
)
def test_degrees_that_differ_are_refused_as_by_the_compiler(degree, flags, brackets, monkeypatch) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", degree)
    monkeypatch.setenv("NEURON_CC_FLAGS", flags)
    kernel = jit(moved)
    with pytest.raises(NkiValidationError, match=r"NKI kernel 'moved' is configured with LNC=\d, .*NCC_EVRF066"):
        (kernel if brackets is None else kernel[brackets])(ARRAY)
