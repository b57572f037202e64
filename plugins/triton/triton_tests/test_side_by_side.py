"""Programs executed many at a time give the bits that they give one by one; other GPUs are compiled for, too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from nki_optimizer_triton.execution.on_cpu.worker import Worker
from nki_optimizer_triton.execution.verified import bytes_of
from nki_optimizer_triton.ir import executing
from nki_optimizer_triton.toolchain import TritonToolchain, open_triton_toolchain
from triton_tests.honest import CASES, agrees, specs, tensors

PARTED = ["softmax", "matmul", "decode_attention", "flash_attention", "dropout", "layernorm", "topk"]
"""With loops whose bounds differ, early returns, loops that the device ends, reductions and products."""


@pytest.mark.parametrize("name", PARTED)
def test_how_many_programs_run_side_by_side_changes_no_bit(
    name: str, on_cpu: TritonToolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in CASES if case.file == name)
    arguments = case.arguments(np.random.default_rng(3))
    artifact = on_cpu.compile(case.source, specs(arguments), 120)
    worker = Worker()
    request = {"do": "load", "program": 1, "plan": artifact.plan, "file": "kernels_0.py"}
    worker.answer(request, [bytearray(kernel.ttir.encode()) for kernel in artifact.distinct])
    inputs = [bytearray(each) for each in bytes_of(tensors(arguments))]
    found = set()
    for together, last_first in ((1 << 18, False), (1 << 13, False), (1 << 11, True)):
        monkeypatch.setattr(executing, "TOGETHER", together)
        run = {"do": "run", "program": 1, "pattern": 0, "last_first": last_first, "races": True, "inputs": True}
        _, outputs = worker.answer({**run, "most_work": 1e12, "most_operations": 1 << 40}, inputs)
        found.add(tuple(bytes(output) for output in outputs))
    assert len(found) == 1


@pytest.fixture(scope="module")
def on_cpu_for_a100() -> Iterator[TritonToolchain]:
    toolchain = open_triton_toolchain("a100", on_device=False)
    yield toolchain
    toolchain.close()


@pytest.mark.parametrize("name", ["host_descriptors", "descriptors", "matmul"])
def test_kernels_for_a_gpu_without_tensor_maps(name: str, on_cpu_for_a100: TritonToolchain) -> None:
    """There Triton takes descriptors apart into numbers."""
    case = next(case for case in CASES if case.file == name)
    arguments = case.arguments(np.random.default_rng(0))
    artifact = on_cpu_for_a100.compile(case.source, specs(arguments), 120)
    outputs = on_cpu_for_a100.run(artifact, tensors(arguments), 120)
    assert not [
        agrees(case, got, want) for got, want in zip(outputs, case.expected(*arguments)) if agrees(case, got, want)
    ]
    if name == "host_descriptors":
        kinds = [parameter[0] for parameter in artifact.plan["steps"][0]["parameters"]]
        assert kinds[0] == "pointer" and "map" not in kinds


@pytest.mark.parametrize("gpu", ["l4", "b200"])
@pytest.mark.slow
def test_kernels_for_other_gpus(gpu: str) -> None:
    toolchain = open_triton_toolchain(gpu, on_device=False)
    try:
        for case in CASES:
            if case.file != "block_pointers":
                arguments = case.arguments(np.random.default_rng(0))
                artifact = toolchain.compile(case.source, specs(arguments), 200)
                outputs = toolchain.run(artifact, tensors(arguments), 100)
                assert not [
                    why for got, want in zip(outputs, case.expected(*arguments)) if (why := agrees(case, got, want))
                ]
    finally:
        toolchain.close()


def test_without_namespaces_it_works_and_says_so() -> None:
    toolchain = open_triton_toolchain("h100", on_device=False, namespaces=False)
    try:
        case = CASES[0]
        arguments = case.arguments(np.random.default_rng(0))
        artifact = toolchain.compile(case.source, specs(arguments), 120)
        (got,) = toolchain.run(artifact, tensors(arguments), 60)
        assert not agrees(case, got, case.expected(*arguments)[0])
        assert toolchain.isolation.startswith("no namespaces (not wanted)")
    finally:
        toolchain.close()


def test_it_has_every_member_of_a_toolchain(on_cpu: TritonToolchain) -> None:
    from accelopt_core.toolchain import Toolchain

    wanted = {name for name in vars(Toolchain) if not name.startswith("_")}
    assert not [name for name in wanted if not hasattr(on_cpu, name)]
    case = CASES[0]
    artifact = on_cpu.compile(case.source, specs(case.arguments(np.random.default_rng(0))), 60)
    assert (on_cpu.simulated, on_cpu.parallel_runs, on_cpu.cores(artifact), on_cpu.counts(artifact)) == (
        False,
        1,
        1,
        False,
    )
    assert on_cpu.estimate_us(artifact) is None and on_cpu.prove(artifact, [], 0, 0, None, None, None) == ()
    assert on_cpu.memory_bytes(artifact) == 12_000 and on_cpu.facts(artifact).hbm_bytes == 36_000
    assert on_cpu.traced(case.source, (), 1) is None
    assert on_cpu.name.endswith("for NVIDIA H100 SXM, its IR executed on the CPU, not on a GPU")
    assert on_cpu.installed.compiler.startswith("triton ") and on_cpu.fingerprint.startswith("triton-cpu-for-h100-")
