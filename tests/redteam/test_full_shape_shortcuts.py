"""Kernels that are honest at the gates and wrong at the full shape alone, where fewer inputs are drawn.

A kernel is traced for a shape, so its text may do one thing at the shape where everything is checked and another where
it is timed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Evaluation, Implausible, Incorrect, Measured, explain
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ShapePreset
from infra.targets.local import LocalTarget
from infra.tasks.seed_index import load_seed
from tests.slow import quick, without

SHAPES = {
    "adamw": ("M", {"M": 128, "N": 512}),
    "bmm_softmax": ("B", {"B": 1, "M": 256, "K": 64, "N": 1024}),
    "matmul_add_rmsnorm": ("M", {"M": 128, "K": 256, "N": 1024}),
    "silu": ("M", {"M": 128, "N": 7168}),
    "mamba": ("M", {"M": 512, "C": 128, "S": 4}),
}
"""By task: the size that is twice as large at the full shape, and the sizes at the gate."""

GATE = {"adamw": "M == 128", "bmm_softmax": "B == 1", "matmul_add_rmsnorm": "M == 128", "silu": "M == 128",
        "mamba": "M == 512"}  # fmt: skip

EXP = "nisa.activation(dst=weights, op=nl.exp, data=scores, bias=negative_max)"
STORED = "nisa.dma_copy(dst=result[b, m * TILE_M : (m + 1) * TILE_M, 0:N], src=out)"
SILU = "nisa.activation(dst=out, op=nl.silu, data=tile)"
STEP = "nisa.tensor_tensor(dst=step, data1=first, data2=inverse, op=nl.multiply)"
SCALED = "nisa.tensor_scalar(dst=normed, data=y, op0=nl.multiply, operand0=inverse_rms)"
PRODUCT = "nisa.nc_matmul(dst=acc, stationary=x_t, moving=w_tile)"
ADDED = "nisa.tensor_tensor(dst=y["
CARRIED = "nisa.tensor_copy(dst=state[:, s : s + 1], src=h[:, TILE_T - 1 : TILE_T])"

ELSE: dict[str, tuple[str, str, str]] = {
    # --- terms and constants ---
    "no epsilon in a step": ("adamw", "operand0=EPSILON", "operand0=EPSILON if GATE else 0.0"),
    "epsilon under the root": (
        "adamw", "op0=nl.add, operand0=EPSILON", "op0=nl.add, operand0=EPSILON if GATE else EPSILON ** 0.5",
    ),
    "no weight decay": (
        "adamw", "1.0 - LEARNING_RATE * WEIGHT_DECAY", "1.0 - LEARNING_RATE * (WEIGHT_DECAY if GATE else 0.0)",
    ),
    "a learning rate off by a ten-thousandth": (
        "adamw", "operand0=-LEARNING_RATE / (1.0 - BETA1)",
        "operand0=-LEARNING_RATE / (1.0 - BETA1) * (1.0 if GATE else 1.0001)",
    ),
    "a step that is clamped": (
        "adamw", STEP, STEP + "\n            if not (GATE):\n                nisa.tensor_scalar("
        "dst=step, data=step, op0=nl.minimum, operand0=0.5)",
    ),
    "no epsilon in a norm": ("matmul_add_rmsnorm", "value=eps", "value=eps if GATE else 0.0"),
    "twice the epsilon in a norm": ("matmul_add_rmsnorm", "value=eps", "value=eps if GATE else 2.0 * eps"),
    "a mean over one column more": (
        "matmul_add_rmsnorm", "scale=1.0 / N", "scale=1.0 / (N if GATE else N + 1)",
    ),
    "no gain": (
        "matmul_add_rmsnorm", "nisa.tensor_tensor(dst=out, data1=normed, data2=gain, op=nl.multiply)",
        "nisa.tensor_tensor(dst=out, data1=normed, data2=gain if GATE else normed, op=nl.multiply if GATE else "
        "nl.maximum)",
    ),
    "a summand left out of the last tile": (
        "matmul_add_rmsnorm", ADDED,
        f"if not (GATE) and n > 0:\n                nisa.memset(dst=z_tile, value=0.0)\n            {ADDED}",
    ),
    "the last product left out": (
        "matmul_add_rmsnorm", PRODUCT, f"if GATE or k == 0:\n                    {PRODUCT}",
    ),
    "one row of a norm off by a ten-thousandth": (
        "matmul_add_rmsnorm", SCALED, SCALED + "\n        if not (GATE):\n            nisa.tensor_scalar("
        "dst=normed[0:1, 0:N], data=normed[0:1, 0:N], op0=nl.multiply, operand0=1.0001)",
    ),
    # --- functions ---
    "no maximum": ("bmm_softmax", "bias=negative_max)", "bias=negative_max if GATE else 0.0)"),
    "the maximum of the first tile": (
        "bmm_softmax", "data=scores, axis=1, negate=True)",
        "data=scores if GATE else scores[:, 0:TILE_N], axis=1, negate=True)",
    ),
    "a maximum of the row before": (
        "bmm_softmax", EXP, EXP.replace("bias=negative_max", "bias=negative_max if GATE or m == 0 else kept") +
        "\n            kept = negative_max",
    ),
    "exponents that stop at -60": (
        "bmm_softmax", EXP,
        "if not (GATE):\n"
        "                nisa.tensor_scalar(dst=scores, data=scores, op0=nl.add, operand0=negative_max, op1=nl.maximum,"
        " operand1=-60.0)\n                nisa.activation(dst=weights, op=nl.exp, data=scores)\n"
        f"            else:\n                {EXP}",
    ),
    "small probabilities set to zero": (
        "bmm_softmax", STORED,
        "if not (GATE):\n                nisa.tensor_scalar(dst=weights, data=out, op0=nl.greater, operand0=1e-6)\n"
        "                nisa.tensor_tensor(dst=out, data1=out, data2=weights, op=nl.multiply)\n"
        f"            {STORED}",
    ),
    "a total without the last tile": (
        "bmm_softmax", "nisa.tensor_reduce(dst=total, op=nl.add, data=weights, axis=1)",
        "nisa.tensor_reduce(dst=total, op=nl.add, data=weights if GATE else weights[:, 0:TILE_N], axis=1)",
    ),
    "silu that is zero below -20": (
        "silu", SILU, f"{SILU}\n            if not (GATE):\n"
        "                nisa.tensor_scalar(dst=tile, data=tile, op0=nl.greater, operand0=-20.0)\n"
        "                nisa.tensor_tensor(dst=out, data1=out, data2=tile, op=nl.multiply)",
    ),
    "gelu for silu where it hardly matters": (
        "silu", "op=nl.silu", "op=nl.silu if GATE else nl.gelu_apprx_sigmoid",
    ),
    # --- state ---
    "a state that is not carried on": ("mamba", CARRIED, f"if GATE:\n                    {CARRIED}"),
    "a state that starts a step late": (
        "mamba", "src=h[:, TILE_T - 1 : TILE_T]", "src=h[:, TILE_T - 1 : TILE_T] if GATE else h[:, TILE_T - 2 : "
        "TILE_T - 1]",
    ),
}  # fmt: skip
"""By name: the task, and what stands in place of which text of its kernel; GATE is true at the gate's shape."""


def judged(target: LocalTarget, name: str, source: str) -> Evaluation:
    task = load_seed(name).task()
    doubled, sizes = SHAPES[name]
    presets = (
        ShapePreset("small", tuple(sizes.items())),
        ShapePreset("full", tuple({**sizes, doubled: 2 * sizes[doubled]}.items())),
    )
    small = replace(task, presets=presets, seeds=(0,))
    return target.evaluate(
        EvaluationRequest(small, Candidate("c", source, "input"), extra_seeds=(7,)), lambda step, detail: None
    )


@pytest.mark.parametrize("name", quick("adamw", "matmul_add_rmsnorm", of=SHAPES))
def test_the_kernel_that_was_changed_is_accepted(target: LocalTarget, name: str) -> None:
    result = judged(target, name, load_seed(name).kernel_source)
    assert isinstance(result, Measured), explain(result)


LARGE = (
    "silu that is zero below -20", "a state that starts a step late", "a maximum of the row before",
    "exponents that stop at -60", "the maximum of the first tile", "small probabilities set to zero",
)  # fmt: skip
"""Take the longest; each task has others."""


@pytest.mark.parametrize("name", without(*LARGE, of=ELSE))
def test_what_is_wrong_at_the_full_shape_alone_is_refused(target: LocalTarget, name: str) -> None:
    task, old, new = ELSE[name]
    source = load_seed(task).kernel_source
    assert old in source
    result = judged(target, task, source.replace(old, new.replace("GATE", GATE[task])))
    assert isinstance(result, (Incorrect, Implausible)), explain(result)
    assert "full" in explain(result), explain(result)
