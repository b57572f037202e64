"""What kernels would gain a whole model, by Amdahl's law from a table of them: no model runs, and it is simulated.

[model]
name = "qwen3-30b-a3b, one decode step"
step_us = 18_400            # what a step takes now; without it only shares and the speed-up are told
tokens_per_step = 8         # of the whole batch; with it throughput is told beside latency

[[kernel]]
name = "o_proj"
before = "kernels/matmul.py"            # paths start at the table's folder; one kernel of several: FILE.py:NAME
after = "checkpoints/.../best_kernel.py"
shapes = ["128x4096:bfloat16", "4096x2048:bfloat16"]    # of its tensors, in the order of its parameters
constants = [1e-6]                      # numbers that follow them
values = {M = 128, K = 4096}            # of the reference's shape constants: for --shapes, and not read here
calls = 48                              # in a step
share = 0.22                            # of the step's time, all calls together, as it is now
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.toml_files import BadToml, read_toml

_MOST = 1e15
"""Of anything that a table says; far beyond it a ratio would be no number."""


class BadTable(BadToml):
    """The table does not say what a projection needs: correct the named entry."""


@dataclass(frozen=True)
class KernelFile:
    path: Path
    function: str | None = None
    """None where it holds one kernel."""


@dataclass(frozen=True)
class KernelUse:
    """One kernel at one shape, and its part of a model's step."""

    name: str
    before: KernelFile
    after: KernelFile
    shapes: tuple[str, ...]
    constants: tuple[float, ...]
    calls: int
    share: float
    """Of the step's time, 0 to 1."""


@dataclass(frozen=True)
class ModelTable:
    name: str
    step_us: float | None
    kernels: tuple[KernelUse, ...]
    tokens_per_step: float | None = None
    """Of all requests of a batch together."""


@dataclass(frozen=True)
class Projected:
    """One kernel's part. Latencies are simulated, in µs, of one call."""

    name: str
    shapes: tuple[str, ...]
    calls: int
    share: float
    """Of the step as it is."""
    before_us: float
    after_us: float
    saved: float
    """Of the step as it is; negative where the kernel became slower."""


@dataclass(frozen=True)
class Projection:
    """Of a whole model. `speedup`: of its step."""

    model: str
    kernels: tuple[Projected, ...]
    speedup: float
    covered: float
    """The kernels' share of the step; the rest is taken to stay as it is."""
    step_us: float | None
    projected_step_us: float | None
    tokens_per_s: float | None
    """Of the whole batch, as it is; None where the table says not what a step takes, or makes."""
    projected_tokens_per_s: float | None


def projection(table: ModelTable, latencies_us: Sequence[tuple[float, float]]) -> Projection:
    """`latencies_us`: before and after of each kernel of the table, of one call.

    A kernel's share shrinks as its own latency does, and nothing else changes (Amdahl, 1967). Raises BadTable where the
    calls take longer than the step that they are part of.
    """
    calls_us = math.fsum(use.calls * before for use, (before, _) in zip(table.kernels, latencies_us))
    if table.step_us is not None and calls_us > table.step_us:
        calls = ", ".join(f"{use.name} {use.calls} x {us:.1f}" for use, (us, _) in zip(table.kernels, latencies_us))
        raise BadTable(
            f"step_us is {table.step_us:g}, and the calls of the kernels as they are take {calls_us:.0f} us: {calls}: "
            "correct step_us, calls or shapes"
        )
    rows = tuple(
        Projected(use.name, use.shapes, use.calls, use.share, before, after, use.share * (1 - after / before))
        for use, (before, after) in zip(table.kernels, latencies_us, strict=True)
    )
    left = 1 - math.fsum(row.saved for row in rows)
    step_us, tokens = table.step_us, table.tokens_per_step
    tokens_per_s = 1e6 * tokens / step_us if step_us is not None and tokens is not None else None
    return Projection(
        table.name, rows, 1 / left, math.fsum(row.share for row in rows), step_us, step_us and step_us * left,
        tokens_per_s, tokens_per_s and tokens_per_s / left,
    )  # fmt: skip


def read_table(path: Path) -> ModelTable:
    """Raises BadToml."""
    document = read_toml(path)
    _only(path, "it", document, ("model", "kernel"))
    model, rows = document.get("model", {}), document.get("kernel")
    if not isinstance(model, dict) or not isinstance(rows, list) or not rows:
        raise BadTable(f"{path}: write [model] once, and [[kernel]] for each kernel")
    _only(path, "[model]", model, ("name", "step_us", "tokens_per_step"))
    kernels = tuple(_use(path, number, row) for number, row in enumerate(rows, 1))
    covered = math.fsum(use.share for use in kernels)
    if covered > 1 + 1e-9:
        raise BadTable(f"{path}: the shares add up to {covered:g}: together they are at most 1")
    step_us, tokens = (
        _number(path, "[model]", model, key) if key in model else None for key in ("step_us", "tokens_per_step")
    )
    return ModelTable(str(model.get("name", path.stem)), step_us, kernels, tokens)


def _use(path: Path, number: int, row: Any) -> KernelUse:
    where = f"[[kernel]] {number}"
    if not isinstance(row, dict):
        raise BadTable(f"{path}: {where} is not a table")
    _only(path, where, row, ("name", "before", "after", "shapes", "constants", "values", "calls", "share"))
    for key in ("before", "after", "share"):
        if key not in row:
            raise BadTable(f"{path}: {where} has no {key}")
    shapes, constants = row.get("shapes"), row.get("constants", [])
    if not isinstance(shapes, list) or not shapes or not all(isinstance(shape, str) for shape in shapes):
        raise BadTable(f'{path}: {where}: shapes are a list as ["128x512:float32"]')
    if not isinstance(constants, list) or not all(map(_is_finite, constants)):
        raise BadTable(f"{path}: {where}: constants are a list of numbers")
    calls, share = row.get("calls", 1), _number(path, where, row, "share")
    if not isinstance(calls, int) or isinstance(calls, bool) or calls < 1:
        raise BadTable(f"{path}: {where}: calls is {calls!r}, not a count")
    if share > 1:
        raise BadTable(f"{path}: {where}: share is {share:g}; it is a fraction of 1")
    return KernelUse(
        str(row.get("name", Path(str(row["before"])).stem)),
        _file(path, row["before"]),
        _file(path, row["after"]),
        tuple(shapes),
        tuple(constants),
        calls,
        share,
    )


def _file(table: Path, said: Any) -> KernelFile:
    file, _, function = str(said).rpartition(":") if re.search(r"\.py:\w+$", str(said)) else (str(said), "", "")
    return KernelFile(table.parent / Path(file).expanduser(), function or None)


def _number(path: Path, where: str, row: Mapping[str, Any], key: str) -> float:
    value = row[key]
    if not _is_finite(value) or not 0 < value <= _MOST:
        raise BadTable(f"{path}: {where}: {key} is {value!r}, not a number above 0")
    return float(value)


def _is_finite(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and abs(value) < math.inf


def _only(path: Path, where: str, row: Mapping[str, Any], known: Sequence[str]) -> None:
    stray = sorted(set(row) - set(known))
    if stray:
        raise BadTable(f"{path}: {where} has no setting {stray[0]}; known: {', '.join(known)}")
