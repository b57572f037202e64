"""Every kernel of `data/trn2_device` that a program can be written for: what the device took, and the program.

`rows()` is the list. A row that did not run on the device has no time but the compiler's reason.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import device_heads as heads
from benchmarks import device_lm_head as lm_head
from benchmarks import device_mamba as mamba
from benchmarks import device_matmuls as matmuls
from benchmarks import device_scoring as scoring
from benchmarks import device_small as small
from benchmarks import device_tasks as tasks
from nki_sim.program.program import Program

DATA = Path(__file__).with_name("data") / "trn2_device"


@dataclass(frozen=True)
class DeviceRow:
    id: str
    family: str
    """Of kernels that are measured alike: what error is reported by, and what is left out together."""
    grid: str
    """Rows measured together, so that ranking among them makes sense."""
    what: str
    make: Callable[[], Program]
    """Raises NkiError where the simulator refuses the kernel."""
    measured_us: float | None
    """None where the device's compiler refused it; `refused` says why."""
    refused: str = ""
    with_launch: bool = False
    """The figure holds the runtime's launch, which a profile does not."""
    profiled: bool = False
    """The figure is the total time of a profile, which holds more than the kernel's own."""
    slowed_transfers: bool = False
    """The capture slowed each software transfer down as well."""
    beta1: bool = False
    """Compiled by the compiler of NKI's first beta."""
    spilled_bytes: int | None = None
    """Moved by the compiler besides what the program asks for; below 0 where it left loads out."""
    moved_bytes: int | None = None
    """By all DMA engines, as the capture counted."""
    tensor_busy: float | None = None
    """Share of the time."""
    tensor_active_us: float | None = None
    tolerance: float = 0.0
    """How far the figure itself may be off, as a fraction, where its source gives reason to think so."""
    then: Callable[[], Program] | None = None
    """A second launch, whose time the figure holds as well."""


def read(name: str) -> list[dict[str, str]]:
    with open(DATA / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _number(text: str) -> float | None:
    return float(text) if text else None


def blocked_rows() -> list[DeviceRow]:
    """Without the settings that the kernel's own assertion rejects: no compiler ever saw those."""
    found = []
    for row in read("blocked_fp32.csv"):
        if "assertion" in row["error_kind"]:
            continue
        k, m, n, tm, tn, tk = (int(row[name]) for name in ("K", "M", "N", "tm", "tn", "tk"))
        found.append(
            DeviceRow(
                row["id"], "blocked_fp32", row["grid"], f"K{k} M{m} N{n} {(tm, tn, tk)}",
                partial(matmuls.blocked, k, m, n, tm, tn, tk),
                _number(row["measured_us"]), row["error_kind"], profiled=True, slowed_transfers=True,
                spilled_bytes=int(row["excess_bytes"]) if row["excess_bytes"] else None,
                moved_bytes=int(row["dma_bytes"]) if row["dma_bytes"] else None,
                tensor_busy=_number(row["tensor_busy"]),
            )
        )  # fmt: skip
    return found


def ladder_rows() -> list[DeviceRow]:
    makers: dict[str, Callable[[], Program]] = {
        "tiled": partial(matmuls.tiled, 2048, 2048, 2048),
        "row_resident": partial(matmuls.tiled, 2048, 2048, 2048, row_resident=True),
        "square_blocks": partial(matmuls.square_blocks, 2048, 2048, 2048, 2, 2),
        "blocked": partial(matmuls.blocked, 2048, 2048, 2048, 16, 2, 8),
    }
    return [
        DeviceRow(
            row["id"], "ladder_fp32", row["grid"], f"{row['kernel']} 2048^3", makers[row["kernel"]],
            _number(row["measured_us"]), profiled=True, slowed_transfers=True, moved_bytes=int(row["dma_bytes"]),
            tensor_busy=_number(row["tensor_busy"]),
        )
        for row in read("ladder_fp32.csv")
    ]  # fmt: skip


def qwen_rows() -> list[DeviceRow]:
    """Without the row that was numerically wrong on the device: it has no time."""
    found = []
    for row in read("qwen_bf16.csv"):
        if not row["measured_us"]:
            continue
        if row["grid"] == "qwen_structures":
            found.append(_panels(row))
            continue
        k, m, n = (int(size) for size in row["shapes"].split("x"))
        blocks = [int(row[name]) for name in ("tm", "tn", "tk") if row[name]]
        if row["kernel"] == "tiled":
            make = partial(matmuls.tiled, k, m, n, row["dtype"])
        else:
            tm, tn, tk = blocks
            make = partial(matmuls.blocked, k, m, n, tm, tn, tk, row["dtype"], row["acc"])
        found.append(
            DeviceRow(
                row["id"], "qwen_bf16", row["grid"], f"{row['kernel']} {row['shapes']} {tuple(blocks)} {row['acc']}",
                make, _number(row["measured_us"]), with_launch=True,
            )
        )  # fmt: skip
    return found


def _panels(row: dict[str, str]) -> DeviceRow:
    """Two products, a launch each."""
    shared = "shared=1" in row["kernel"]
    first, second = (
        partial(matmuls.panel_resident, *map(int, shape.split("x")), row["dtype"], shared=shared)
        for shape in row["shapes"].split("+")
    )
    return DeviceRow(
        row["id"], "qwen_bf16", row["grid"], f"{row['kernel']} {row['shapes']}", first, float(row["measured_us"]),
        with_launch=True, then=second,
    )  # fmt: skip


MATMUL, BMM, ROPE, MAMBA = (4096, 5120, 12288), (16, 4096, 64, 4096), (64, 262144), (256, 7168, 16)
"""Shapes of the tasks: M K N; batches M K N; half of the rows, columns; channels, length, states."""

TASKS: dict[tuple[str, str], Callable[[], Program]] = {
    ("matmul", "v1"): partial(tasks.matmul, *MATMUL, 1),
    ("matmul", "v2_b2"): partial(tasks.matmul, *MATMUL, 2),
    ("matmul", "v2_b4"): partial(tasks.matmul, *MATMUL, 4),
    ("matmul", "v2_b8"): partial(tasks.matmul, *MATMUL, 8),
    ("matmul", "v3_bf16_split"): partial(tasks.matmul, *MATMUL, 4, "split"),
    ("matmul", "probe_bf16"): partial(tasks.matmul, *MATMUL, 4, "bfloat16"),
    ("bmm", "v1"): partial(tasks.bmm, *BMM, 1, 512, buffers=4),
    ("bmm", "d1_wide1024"): partial(tasks.bmm, *BMM, 1, 1024, buffers=4),
    ("bmm", "d1_twophase"): partial(tasks.bmm, *BMM, 8, 1024, buffers=4),
    ("bmm", "d1_twophase_m16"): partial(tasks.bmm, *BMM, 16, 1024, buffers=4),
    ("bmm", "v2"): partial(tasks.bmm, *BMM, 32, 1024, buffers=4),
    ("bmm", "d1_bblk2"): partial(tasks.bmm, *BMM, 32, 1024, 2, buffers=4),
    ("bmm", "d1_bblk4"): partial(tasks.bmm, *BMM, 32, 1024, 4, buffers=4),
    ("bmm", "probe_bf16_calib"): partial(tasks.bmm, *BMM, 1, 512, dtype="bfloat16", buffers=4),
    ("rope", "baseline"): partial(tasks.rope_baseline, *ROPE),
    ("rope", "v1_w512"): partial(tasks.rope_halves, *ROPE, 512),
    ("rope", "v1_w1024"): partial(tasks.rope_halves, *ROPE, 1024),
    ("rope", "v1"): partial(tasks.rope_halves, *ROPE, 2048),
    ("rope", "v1_w4096"): partial(tasks.rope_halves, *ROPE, 4096, buffers=2),  # SBUF has no room for three
    ("rope", "v2_layoutB_scalar_w256"): partial(tasks.rope_packed, *ROPE, 256),
    ("rope", "v2_layoutB_scalar_w512"): partial(tasks.rope_packed, *ROPE, 512),
    ("rope", "v2_layoutB_scalar_w1024"): partial(tasks.rope_packed, *ROPE, 1024),
    ("rope", "v2_layoutB_scalar"): partial(tasks.rope_packed, *ROPE, 2048),
    ("rope", "v2_layoutB_scalar_w4096"): partial(tasks.rope_packed, *ROPE, 4096),
    ("rope", "v3_layoutB_pe_w128"): partial(tasks.rope_packed, *ROPE, 128, on_tensor=True),
    ("rope", "v3_layoutB_pe_w256"): partial(tasks.rope_packed, *ROPE, 256, on_tensor=True),
    ("rope", "v3_layoutB_pe"): partial(tasks.rope_packed, *ROPE, 512, on_tensor=True),
    ("mamba", "baseline"): partial(mamba.mamba_baseline, *MAMBA),
    ("mamba", "v1"): partial(mamba.mamba, *MAMBA, 7168, buffers=0),  # as above, for two
    ("mamba", "v2_w256"): partial(mamba.mamba, *MAMBA, 256),
    ("mamba", "v2"): partial(mamba.mamba, *MAMBA, 512),
    ("mamba", "v2_w896"): partial(mamba.mamba, *MAMBA, 896),
    ("mamba", "v2_w1024"): partial(mamba.mamba, *MAMBA, 1024),
    ("mamba", "v4"): partial(mamba.mamba_shared, *MAMBA, 512),
    ("mamba", "v4_s4unroll"): partial(mamba.mamba_shared, *MAMBA, 512),  # unrolled: the same program
}
"""(task, variant) of `kda_beta1.csv` to its program."""


def task_rows() -> list[DeviceRow]:
    """Times are the published ones doubled, which is why none is exact (`data/README.md`)."""
    return [
        DeviceRow(
            row["id"], "kda_beta1", f"kda_{row['task']}", f"{row['task']} {row['variant']} {row['shape']}",
            TASKS[row["task"], row["variant"]], float(row["measured_us"]),
            tensor_active_us=_number(row["measured_tensor_active_us"]), beta1=True,
            tolerance=0.10 if row["task"] == "bmm" else 0.02,
        )
        for row in read("kda_beta1.csv")
    ]  # fmt: skip


def stream_rows() -> list[DeviceRow]:
    makers = {"copy_rows": small.copy_rows, "copy_packed": small.copy_packed, "rms": small.rms}
    found = []
    for row in read("streams.csv"):
        shapes = []
        for shape in row["shape"].split("+"):  # several tensors in one kernel
            height, width = (int(size) for size in shape.split("x"))
            shapes.append((height, width))
        found.append(
            DeviceRow(
                row["id"], "streams", row["grid"], f"{row['kernel']} {row['shape']}",
                partial(makers[row["kernel"]], shapes, row["dtype"]), float(row["measured_us"]), with_launch=True,
            )
        )  # fmt: skip
    return found


def attention_rows() -> list[DeviceRow]:
    found = []
    for row in read("attention_fp32.csv"):
        if row["kernel"] in heads.KERNELS:
            n, count, d = (int(size) for size in row["shape"].split("x"))
            found.append(
                DeviceRow(
                    row["id"], row["grid"], row["grid"], f"{row['kernel']} {row['shape']}",
                    partial(heads.KERNELS[row["kernel"]], n, count, d), float(row["measured_us"]), with_launch=True,
                )
            )  # fmt: skip
            continue
        n, d = (int(size) for size in row["shape"].split("x"))
        form = int(row["form"])
        found.append(
            DeviceRow(
                row["id"], "attention_fp32", row["grid"], f"attention form {form} {row['shape']}",
                partial(small.attention, form, n, d), float(row["measured_us"]), with_launch=True,
            )
        )  # fmt: skip
    return found


def _settings(text: str) -> list[int]:
    """Values of `name=value name=value`."""
    return [int(each.split("=")[1]) for each in text.split()]


def scoring_rows() -> list[DeviceRow]:
    found = []
    for row in read("token_scoring.csv"):
        tokens, vocabulary = (int(size) for size in row["shape"].split("x"))
        tall, wide = _settings(row["params"])
        found.append(
            DeviceRow(
                row["id"], "token_scoring", row["grid"], f"{row['kernel']} {row['shape']} {(tall, wide)}",
                partial(scoring.KERNELS[row["kernel"]], tokens, vocabulary, tall, wide), float(row["measured_us"]),
                with_launch=True,
            )
        )  # fmt: skip
    return found


def lm_head_rows() -> list[DeviceRow]:
    """GpSimd took 0.648 us for each of G001's transfers under the profiler: no more than without one."""
    makers = {"head_streamed": lm_head.streamed, "head_packed": lm_head.packed}
    found = []
    for row in read("lm_head.csv"):
        hidden, _, vocabulary = (int(size) for size in row["shape"].split("x"))
        found.append(
            DeviceRow(
                row["id"], "lm_head", row["grid"], f"{row['kernel']} {row['shape']}",
                partial(makers[row["kernel"]], hidden, vocabulary, _settings(row["params"])[0]),
                float(row["measured_us"]), profiled=True, moved_bytes=int(row["dma_bytes"]),
            )
        )  # fmt: skip
    return found


def rows() -> list[DeviceRow]:
    """Every family, in the order of the files."""
    return [
        *blocked_rows(),
        *ladder_rows(),
        *qwen_rows(),
        *task_rows(),
        *stream_rows(),
        *attention_rows(),
        *scoring_rows(),
        *lm_head_rows(),
    ]
