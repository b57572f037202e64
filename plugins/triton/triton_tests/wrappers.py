"""Candidate files around one plain kernel: what stands in `run` is what a test is about."""

from __future__ import annotations

KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


def launch(x, y, n=None):
    n = x.numel() if n is None else n
    double[(triton.cdiv(n, 256),)](x, y, n, BLOCK=256)

"""


def wrapper(body: str, before: str = "", signature: str = "x") -> str:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return f"{KERNEL}{before}\n\ndef run({signature}):\n{lines}\n"


HONEST = wrapper("y = torch.empty_like(x)\nlaunch(x, y)\nreturn y")
