"""Data sets in FlashInfer-Bench's published form, written by us: small, with what tests change in them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RMSNORM = """\
import numpy as np


def run(hidden_states, weight, eps):
    mean = np.mean(np.square(hidden_states), axis=-1, keepdims=True)
    return hidden_states / np.sqrt(mean + eps) * weight
"""

IN_TORCH = """\
import torch


@torch.no_grad()
def run(hidden_states, weight, eps):
    x = hidden_states.to(torch.float32)
    scaled = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)
    return (scaled * weight.to(torch.float32)).to(hidden_states.dtype)
"""

KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def rmsnorm_rows(x, weight, out, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < N
    values = tl.load(x + row * N + columns, mask=inside, other=0.0).to(tl.float32)
    scaled = values / tl.sqrt(tl.sum(values * values, axis=0) / N + eps)
    scaled *= tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * N + columns, scaled.to(out.dtype.element_ty), mask=inside)
"""

INTO_OUTPUT = """

def run(hidden_states, weight, eps, output):
    M, N = hidden_states.shape
    rmsnorm_rows[(M,)](hidden_states, weight, output, N, eps, BLOCK=triton.next_power_of_2(N))
"""

RETURNING = """

def run(hidden_states, weight, eps):
    output = torch.empty_like(hidden_states)
    M, N = hidden_states.shape
    rmsnorm_rows[(M,)](hidden_states, weight, output, N, eps, BLOCK=triton.next_power_of_2(N))
    return output
"""

SMALL, LARGE = "11111111-small", "22222222-large"


def definition(dtype: str = "float32", reference: str = RMSNORM, **changed: Any) -> dict[str, Any]:
    rows = ["batch_size", "hidden_size"]
    return {
        "name": "rmsnorm_h96",
        "op_type": "rmsnorm",
        "tags": ["status:verified"],
        "axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 96}},
        "inputs": {
            "hidden_states": {"shape": rows, "dtype": dtype},
            "weight": {"shape": ["hidden_size"], "dtype": dtype},
            "eps": {"shape": None, "dtype": "float32"},
        },
        "outputs": {"output": {"shape": rows, "dtype": dtype}},
        "reference": reference,
        **changed,
    }


def workload(uuid: str, rows: int, **inputs: Mapping[str, Any]) -> dict[str, Any]:
    """As a line of the data set."""
    random, eps = {"type": "random"}, {"type": "scalar", "value": 1e-6}
    given = {"hidden_states": random, "weight": random, "eps": eps, **inputs}
    body = {"uuid": uuid, "axes": {"batch_size": rows}, "inputs": given}
    return {"definition": "rmsnorm_h96", "workload": body, "solution": None, "evaluation": None}


def solution(
    content: str = KERNEL + INTO_OUTPUT, spec: Mapping[str, Any] | None = None, **changed: Any
) -> dict[str, Any]:
    usual = {"language": "triton", "target_hardware": ["NVIDIA_H100"], "entry_point": "main.py::run"}
    return {
        "name": "by_hand",
        "definition": "rmsnorm_h96",
        "author": "tests",
        "spec": {**usual, **(spec or {})},
        "sources": [{"path": "main.py", "content": content}],
        **changed,
    }


def write_set(
    folder: Path,
    defined: Mapping[str, Any] | None = None,
    workloads: Sequence[Mapping[str, Any]] | None = None,
    solved: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """The definition's file, and the solution's."""
    about = definition() if defined is None else defined
    lines = [workload(LARGE, 5), workload(SMALL, 3)] if workloads is None else workloads
    place = folder / "definitions" / "rmsnorm" / "rmsnorm_h96.json"
    written = folder / "solutions" / "rmsnorm" / "rmsnorm_h96" / "by_hand.json"
    of_workloads = folder / "workloads" / "rmsnorm" / "rmsnorm_h96.jsonl"
    for path, text in (
        (place, json.dumps(about, indent=2)),
        (written, json.dumps(solution() if solved is None else solved, indent=2)),
        (of_workloads, "".join(json.dumps(line) + "\n" for line in lines)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return place, written


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], kinds: Mapping[str, str]) -> None:
    """By the format's published description. `kinds`: of each tensor, as the format calls it."""
    header: dict[str, Any] = {"__metadata__": {"by": "tests"}}
    data = b""
    for name, array in tensors.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kinds[name], "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
