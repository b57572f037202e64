"""Arithmetic: shortcuts that pass on standard normal inputs are rejected, honest ways of computing the same are not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Evaluation, Incorrect, Measured, explain
from accelopt_core.ports import EvaluationRequest
from infra.targets.local import LocalTarget
from infra.tasks.seed_index import load_seed
from tests.slow import quick

EXP = "nisa.activation(dst=weights, op=nl.exp, data=scores, bias=negative_max"
LOADED_RHS = "nisa.nc_matmul(dst=acc, stationary=lhs_t, moving=rhs_tile)"
SPLIT = """
                parts = []
                for wide, width in ((lhs_t, TILE_M), (rhs_tile, TILE_N)):
                    high = nl.ndarray((TILE_K, width), dtype=nl.bfloat16, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=high, src=wide)
                    low = nl.ndarray((TILE_K, width), dtype=nl.bfloat16, buffer=nl.sbuf)
                    nisa.tensor_tensor(dst=low, data1=wide, data2=high, op=nl.subtract)
                    parts.append((high, low))
                nisa.nc_matmul(dst=acc, stationary=parts[0][0], moving=parts[1][0])
                nisa.nc_matmul(dst=acc, stationary=parts[0][0], moving=parts[1][1])
                nisa.nc_matmul(dst=acc, stationary=parts[0][1], moving=parts[1][0])
"""
STORED = "nisa.dma_copy(dst=result[b, m * TILE_M : (m + 1) * TILE_M, 0:N], src=out)"
FLUSHED = """
            large = nl.ndarray((TILE_M, N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=large, data=out, op0=nl.greater, operand0=1e-6)
            nisa.tensor_tensor(dst=out, data1=out, data2=large, op=nl.multiply)
            nisa.dma_copy(dst=result[b, m * TILE_M : (m + 1) * TILE_M, 0:N], src=out)
"""

SHORTCUTS = {
    "adamw without weight decay": ("adamw", "1.0 - LEARNING_RATE * WEIGHT_DECAY", "1.0"),
    "adamw without epsilon": ("adamw", "op0=nl.add, operand0=EPSILON", "op0=nl.add, operand0=0.0"),
    "rmsnorm without epsilon, before a product": ("add_rmsnorm_matmul", "value=eps", "value=0.0"),
    "rmsnorm without epsilon, after one": ("matmul_add_rmsnorm", "value=eps", "value=0.0"),
    "softmax without the maximum": ("bmm_softmax", EXP, "nisa.activation(dst=weights, op=nl.exp, data=scores"),
    "attention without the maximum": ("gqa_full", EXP, "nisa.activation(dst=weights, op=nl.exp, data=scores"),
    "small probabilities set to zero": ("bmm_softmax", STORED, FLUSHED.strip()),
    "three bfloat16 products": ("matmul", LOADED_RHS, SPLIT.strip()),
}

TILINGS = {
    "matmul": ("TILE_N", 256), "transpose_matmul": ("", 0), "bmm": ("TILE_N", 128), "bmm_softmax": ("TILE_N", 256),
    "rmsnorm_matmul": ("TILE_N", 128), "add_rmsnorm_matmul": ("TILE_N", 256), "matmul_add_rmsnorm": ("TILE_N", 128),
    "swiglu": ("TILE_N", 256), "lora": ("TILE_N", 256), "gqa_full": ("", 0), "rope_single_freq_apply": ("TILE_T", 4096),
    "silu": ("TILE_N", 7168), "adamw": ("", 0), "mamba": ("TILE_T", 128),
}  # fmt: skip
"""Another tiling of each shipped kernel, where it has one; that sums in another order where it sums."""

OTHER_FORMS = {
    "square by a product": (
        "add_rmsnorm_matmul",
        "nisa.activation(dst=squares, op=nl.square, data=summed)",
        "nisa.tensor_tensor(dst=squares, data1=summed, data2=summed, op=nl.multiply)",
    ),
    "contraction backwards": (
        "matmul",
        "src=rhs[k * TILE_K : (k + 1) * TILE_K",
        "src=rhs[(K // TILE_K - 1 - k) * TILE_K : (K // TILE_K - k) * TILE_K",
    ),
    "exponentials and their sum in one": (
        "bmm_softmax",
        "nisa.tensor_reduce(dst=total, op=nl.add, data=weights, axis=1)",
        EXP.replace("activation", "activation_reduce") + ", reduce_op=nl.add, reduce_res=total)",
    ),
    "sum of squares in one": (
        "matmul_add_rmsnorm",
        "nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)",
        "nisa.activation_reduce(dst=squares, op=nl.square, data=y, reduce_op=nl.add, reduce_res=total)",
    ),
    "moment by another route": (
        "adamw",
        "nisa.activation(dst=g_squared, op=nl.square, data=g_tile)",
        "nisa.tensor_tensor(dst=g_squared, data1=g_tile, data2=g_tile, op=nl.multiply)",
    ),
}


def judged(target: LocalTarget, name: str, source: str) -> Evaluation:
    """At the small shape, with one published and one secret seed and every distribution."""
    task = load_seed(name).task()
    small = replace(task, presets=task.presets[:1], seeds=(0,))
    return target.evaluate(
        EvaluationRequest(small, Candidate("c", source, "input"), extra_seeds=(7,)), lambda step, detail: None
    )


def changed(name: str, old: str, new: str) -> str:
    source = load_seed(name).kernel_source
    assert old in source, f"{name} no longer has {old!r}"
    return source.replace(old, new)


DEBUG = 'import os\n\nos.environ["NEURON_FRAMEWORK_DEBUG"] = "1"\n'


def test_another_variable_for_the_compiler_is_refused_and_the_users_own_is_not(target: LocalTarget) -> None:
    """A file of the user's that sets one is no licence to have the kernel compiled with other arithmetic."""
    task, source = load_seed("silu").task(), load_seed("silu").kernel_source
    small = replace(task, presets=task.presets[:1])
    for setting, right in ((DEBUG, True), (DEBUG.replace("FRAMEWORK_DEBUG", "CC_FLAGS"), False)):
        changed_one = Candidate("c", setting + source + "\n# changed\n", "input")
        request = EvaluationRequest(small, changed_one, original=Candidate("input", DEBUG + source))
        result = target.evaluate(request, lambda step, detail: None)
        assert isinstance(result, Measured) is right, explain(result)
        assert right or "environment" in explain(result)


READS = 'import os\n\nDEPTH = int(os.environ.get("DEPTH", "2"))\n'


def test_a_variant_s_own_name_for_what_the_user_reads_of_the_environment_is_no_other_line(target: LocalTarget) -> None:
    task, source = load_seed("silu").task(), load_seed("silu").kernel_source
    small = replace(task, presets=task.presets[:1])
    read = 'DEPTH_v1 = int(os.environ.get("DEPTH", "2"))'
    for line, right in (
        (read, True),
        (read.replace('"DEPTH', '"DEPTH_v1'), False),
        ('DEPTH_v1 = os.environ["X"]', False),
    ):
        changed_one = Candidate("c", f"{READS}{source}\n{line}\n", "input")
        request = EvaluationRequest(small, changed_one, original=Candidate("input", READS + source))
        assert isinstance(result := target.evaluate(request, lambda step, detail: None), Measured) is right, result


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_shortcut_is_rejected(target: LocalTarget, name: str) -> None:
    result = judged(target, SHORTCUTS[name][0], changed(*SHORTCUTS[name]))
    assert isinstance(result, Incorrect), explain(result)


@pytest.mark.parametrize("name", quick("matmul", "rmsnorm_matmul", of=TILINGS))
def test_an_honest_kernel_is_accepted_in_another_tiling(target: LocalTarget, name: str) -> None:
    constant, value = TILINGS[name]
    source = load_seed(name).kernel_source
    if constant:
        source, count = re.subn(rf"(?m)^{constant} = \d+$", f"{constant} = {value}", source)
        assert count == 1
    result = judged(target, name, source)
    assert isinstance(result, Measured), explain(result)


@pytest.mark.parametrize("name", quick("contraction backwards", "sum of squares in one", of=OTHER_FORMS))
def test_an_honest_kernel_is_accepted_in_another_form(target: LocalTarget, name: str) -> None:
    source = changed(*OTHER_FORMS[name])
    if name == "contraction backwards":
        source = source.replace("lhs[m * TILE_M : (m + 1) * TILE_M, k * TILE_K : (k + 1) * TILE_K]", BACKWARDS)
    result = judged(target, OTHER_FORMS[name][0], source)
    assert isinstance(result, Measured), explain(result)


BACKWARDS = "lhs[m * TILE_M : (m + 1) * TILE_M, (K // TILE_K - 1 - k) * TILE_K : (K // TILE_K - k) * TILE_K]"
