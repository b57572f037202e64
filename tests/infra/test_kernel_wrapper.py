"""NKIKernel, as NKIBench's users call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelopt_core.evaluation import CompileFailed, Incorrect
from infra.targets import kernel_wrapper
from tests.e2e import kernels

SMALL = kernels.REFERENCE.replace("P, N, T = 128, 2048, 4", "P, N, T = 128, 512, 1")


@pytest.fixture
def reference(tmp_path: Path) -> str:
    path = tmp_path / "reference.py"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def kernel(folder: Path, source: str) -> str:
    path = folder / "kernel.py"
    path.write_text(source, encoding="utf-8")
    return str(path)


def test_a_right_kernel_has_latencies_and_the_fields_asked_for(tmp_path: Path, reference: str) -> None:
    result = kernel_wrapper(kernel(tmp_path, kernels.SLOW), reference).profile(["hbm_read_bytes"])
    assert result.compiled and result.runnable and result.correct
    assert 0 < result.metadata["min_ms"] <= result.metadata["latency"] <= result.metadata["max_ms"]
    assert result.metadata["hbm_read_bytes"] == 2 * 128 * 512 * 4 and result.metadata["simulated"]


def test_a_field_that_does_not_exist_is_named(tmp_path: Path, reference: str) -> None:
    with pytest.raises(KeyError, match="no_such_field"):
        kernel_wrapper(kernel(tmp_path, kernels.SLOW), reference).profile(["no_such_field"])


@pytest.mark.parametrize(
    ("source", "flags", "kind"),
    [
        (kernels.BROKEN, (False, False, False), CompileFailed),
        (kernels.SLOW.replace("op=nl.add", "op=nl.subtract"), (True, True, False), Incorrect),
    ],
)
def test_a_faulty_kernel_says_how_far_it_came(
    tmp_path: Path, reference: str, source: str, flags: tuple[bool, bool, bool], kind: type
) -> None:
    result = kernel_wrapper(kernel(tmp_path, source), reference).profile()
    assert (result.compiled, result.runnable, result.correct) == flags
    assert isinstance(result.metadata["error"], kind)
