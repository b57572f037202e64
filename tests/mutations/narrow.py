"""Seeds that take or give narrow types, made from the float32 ones: honest kernels of float32 arithmetic."""

from __future__ import annotations

import re
from dataclasses import replace

from accelopt_core.task import Task
from infra.tasks.seed_index import load_seed
from tests.mutations.judging import small

BFLOAT16_WITHIN = ("matmul", "transpose_matmul", "bmm", "bmm_softmax", "rope_single_freq_apply", "silu", "adamw")
"""Seeds whose tiles may have their arguments' types: what is loaded stays bfloat16 up to the arithmetic."""

_REFERENCE = """{original}

import ml_dtypes as _ml_dtypes

_wide_inputs, _wide_forward = get_inputs, forward


def get_inputs():
    return [a.astype(_ml_dtypes.{taken}) if isinstance(a, np.ndarray) else a for a in _wide_inputs()]


def forward(*inputs):
    wide = [a.astype(np.float32) if isinstance(a, np.ndarray) else a for a in inputs]
    return _wide_forward(*wide).astype(_ml_dtypes.{given})
"""


def in_bfloat16(name: str) -> tuple[Task, str]:
    """The task at its small shape with arguments and result in bfloat16, and its kernel: DMA widens what it loads and
    rounds what it stores."""
    return _task(name, "bfloat16", "bfloat16"), re.sub(
        r"dtype=\w+\.dtype, buffer=nl\.(?!shared_hbm)", _wide, kernel_of(name)
    )


def in_bfloat16_within(name: str) -> tuple[Task, str]:
    """The same with the seed's kernel as it is: its tiles have the types of its arguments."""
    return _task(name, "bfloat16", "bfloat16"), kernel_of(name)


def giving_float8(name: str) -> tuple[Task, str]:
    """The task at its small shape with its result in float8_e4m3, and its kernel, which rounds once at the end."""
    source = re.sub(r"(result = nl\.ndarray\(.*dtype=)\w+\.dtype", r"\1nl.float8_e4m3", kernel_of(name))
    return _task(name, "float32", "float8_e4m3"), source


def kernel_of(name: str) -> str:
    return load_seed(name).kernel_source


def _wide(found: re.Match[str]) -> str:
    return re.sub(r"\w+\.dtype", "nl.float32", found[0])


def _task(name: str, taken: str, given: str) -> Task:
    task = small(name)
    source = _REFERENCE.format(original=task.reference_source, taken=taken, given=given)
    if taken == "float32":
        source = source.replace("_ml_dtypes.float32", "np.float32")
    return replace(task, reference_source=source)
