"""What torch, and torch.compile, take for the shipped Triton tasks on this machine's GPU: a yardstick.

    python plugins/triton/triton_benchmarks/nvidia_torch.py TASK

Prints one JSON object: `torch_us` and `compiled_us`, or `why`. Each call is between two CUDA events and has a cold L2,
as the kernels have (`execution/on_device/timing.py`), but in a process of its own: torch keeps memory of the GPU for
itself. A function of torch's that does not compute what the task asks for is not timed.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from accelopt_core.judging.reference.verification import Reference
from infra.tasks.seed_index import load_seed

CALLS, WARMUP = 50, 10
MOST_RELATIVE_L2 = 0.02
"""Of torch's outputs: it may round as it does by itself (bf16, tf32), and not compute something else."""


def functions(torch: Any) -> dict[str, Callable[..., Any]]:
    """By task, as somebody writes it who has torch."""
    nn = torch.nn.functional

    def rope(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        c, s = cos[:, None, :], sin[:, None, :]
        return torch.cat([first * c - second * s, second * c + first * s], dim=-1)

    def silu_and_mul(x: Any) -> Any:
        gate, up = x.chunk(2, dim=-1)
        return nn.silu(gate) * up

    def attention_decode(q: Any, k: Any, v: Any) -> Any:
        attended = nn.scaled_dot_product_attention(q[:, :, None], k.transpose(1, 2), v.transpose(1, 2))
        return attended[:, :, 0]

    return {
        "rmsnorm": lambda x, weight: nn.rms_norm(x, (x.shape[-1],), weight, 1e-6),
        "softmax": lambda x: torch.softmax(x, dim=-1),
        "layernorm": lambda x, weight, bias: nn.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5),
        "rope": rope,
        "silu_and_mul": silu_and_mul,
        "gemm_bf16": torch.matmul,
        "attention_decode": attention_decode,
        "topk": lambda x: torch.topk(x, 8, dim=-1).values,
    }


def main(task_name: str) -> int:
    print(json.dumps(_figures(task_name)))
    return 0


def _figures(task_name: str) -> dict[str, Any]:
    if importlib.util.find_spec("torch") is None:
        return {"why": "torch is not installed"}
    import torch

    if not torch.cuda.is_available():
        return {"why": "torch sees no GPU"}
    task = load_seed(task_name).task()
    reference, function = Reference(task, task.full), functions(torch)[task_name]
    differs = relative_l2(torch, function, reference, task.seeds[0], "cuda")
    if not differs <= MOST_RELATIVE_L2:
        return {"why": f"torch {torch.__version__} computes something else: relative L2 {differs:.2g}"}
    given = tensors(torch, reference.inputs(task.seeds[0]), "cuda")
    return {
        "torch": torch.__version__,
        "torch_us": _time_us(torch, function, given),
        "compiled_us": _time_us(torch, torch.compile(function), given),
    }


def relative_l2(torch: Any, function: Callable[..., Any], reference: Reference, seed: int, device: str) -> float:
    """Of what the function makes of the reference's inputs, to what the reference makes of them in float64."""
    inputs = reference.inputs(seed)
    (expected,) = reference.expected(inputs)
    made = function(*tensors(torch, inputs, device)).double().cpu().numpy()
    return float(np.linalg.norm(made - expected) / np.linalg.norm(expected))


def tensors(torch: Any, inputs: list[Any], device: str) -> list[Any]:
    def on_device(array: Any) -> Any:
        if array.dtype.name == "bfloat16":  # which torch.from_numpy does not read
            return torch.from_numpy(array.view("int16")).to(device).view(torch.bfloat16)
        return torch.from_numpy(array).to(device)

    return [on_device(each) if isinstance(each, np.ndarray) else each for each in inputs]


def _time_us(torch: Any, function: Callable[..., Any], given: list[Any]) -> float:
    device = torch.cuda.get_device_properties(0)
    flushed = torch.empty(2 * device.L2_cache_size, dtype=torch.int8, device="cuda")
    samples = []
    for _ in range(WARMUP + CALLS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flushed.zero_()
        start.record()
        function(*given)
        end.record()
        torch.cuda.synchronize()
        samples.append(1e3 * start.elapsed_time(end))
    return statistics.median(samples[WARMUP:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
