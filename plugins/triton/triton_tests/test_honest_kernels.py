"""Kernels as people write them are traced, compiled for sm_90, executed on the CPU, and right."""

from __future__ import annotations

import re

import numpy as np
import pytest

from nki_optimizer_triton.toolchain import TritonToolchain, triton_version
from triton_tests.honest import CASES, Case, agrees, specs, tensors

VERSION = tuple(int(part) for part in re.findall(r"\d+", triton_version())[:2])


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case.file}" for n, case in enumerate(CASES)])
def test_an_honest_kernel_is_right(case: Case, on_cpu: TritonToolchain) -> None:
    low, high = case.triton
    arguments = case.arguments(np.random.default_rng(0))
    if not low <= VERSION <= high:
        with pytest.raises(Exception, match="removed"):
            on_cpu.compile(case.source, specs(arguments), 120)
        return
    artifact = on_cpu.compile(case.source, specs(arguments), 120)
    outputs = on_cpu.run(artifact, tensors(arguments), 120)
    expected = case.expected(*arguments)
    assert len(outputs) == len(expected)
    for got, want in zip(outputs, expected):
        assert not agrees(case, got, want)
