"""The script that measures on a GPU: what it writes of what it found, and that it says so where it can find nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from accelopt_core.judging.reference.verification import Reference
from infra.tasks.seed_index import load_seed, seeds_of
from nki_optimizer_triton import gpu_doctor
from triton_benchmarks import nvidia
from triton_benchmarks.nvidia_torch import MOST_RELATIVE_L2, functions, relative_l2

REPORT = gpu_doctor.GpuReport(
    "host", 0.0, "Linux", "python", 8, 1 << 34, "/tmp", 1 << 34, (("triton", "3.9.0"),),
    (gpu_doctor.FoundGpu(0, "GPU-0", "NVIDIA H100 80GB HBM3", "h100", "9", 132, 80 << 30),), "12.8", "570.1",
    "NVIDIA H100", True, (), (), (), (),
)  # fmt: skip


def row(task: str, torch: Mapping[str, object], improved: bool = True) -> nvidia.Row:
    run = {
        "status": "finished", "improved": improved, "speedup": 2.0, "shape": "M64 N1000", "bound_us": 10.0,
        "baseline": {"latency_us": 40.0}, "best": {"latency_us": 20.0, "verified_full": True},
    }  # fmt: skip
    return nvidia.Row(task, run, torch)


def test_the_block_is_written_in_place_of_the_one_that_is_there() -> None:
    beside, without = {"torch_us": 30.0, "compiled_us": 25.0}, {"why": "torch is not installed"}
    rows = [row("rmsnorm", beside), row("topk", without, False)]
    text = nvidia.block(REPORT, "10 passed", rows, {"improved": True, "speedup": 1.5})
    assert "| rmsnorm | M64 N1000 | 40.0 | 20.0 | 2.00 | 50 % | 30.0 | 25.0 |" in text
    assert "| topk | M64 N1000 | 40.0 | 20.0 | 2.00 | 50 % | – | – |" in text
    assert "1 of 2 sweeps gain. Torch: torch is not installed." in text and "ended in a faster kernel: 1.50" in text
    page = (nvidia.ROOT / "plugins/triton/README.md").read_text(encoding="utf-8")
    changed = nvidia.in_place(page, text)
    assert text in changed and nvidia.in_place(changed, text) == changed
    with pytest.raises(ValueError, match="the page has no block"):
        nvidia.in_place("a page", text)


def test_without_a_gpu_it_measures_nothing_and_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = gpu_doctor.examine
    monkeypatch.setattr(gpu_doctor, "examine", lambda machine: real(machine, prove=False))
    if real("h100", prove=False).on_gpu:
        pytest.skip("this machine has a GPU")
    assert nvidia.main(["--without-tests"]) == nvidia.NO_GPU
    said = capsys.readouterr()
    assert "no figures without a GPU that evaluates kernels: no GPU can be used" in said.err


def test_torch_has_a_function_for_every_task_and_the_replayed_one_has_one_tunable() -> None:
    class Torch:
        def __getattr__(self, name: str) -> object:
            return Torch()

    assert set(functions(Torch())) == {seed.name for seed in seeds_of("triton")}
    (tunable,) = nvidia.declared_tunables(load_seed(nvidia.REPLAYED).kernel_source).tunables
    assert len(tunable.legal) > 2


@pytest.mark.parametrize("task", [seed.name for seed in seeds_of("triton")])
def test_what_torch_is_timed_at_is_what_the_task_asks_for(task: str) -> None:
    torch = pytest.importorskip("torch")
    held = load_seed(task).task()
    reference = Reference(held, held.presets[0])
    assert relative_l2(torch, functions(torch)[task], reference, held.seeds[0], "cpu") <= MOST_RELATIVE_L2
