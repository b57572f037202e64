"""Candidates that do no harm and are no use: each is judged, and none is taken for a fault of the task or the machine.

Whatever were raised instead of judged would end a run in the middle.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Evaluation, Incorrect, Measured, explain
from accelopt_core.ports import EvaluationRequest, TaskFault
from infra.targets.local import LocalTarget
from tests.e2e import kernels
from tests.redteam.test_redteam import HONEST, TASK

HEAD = "import nki\nimport nki.language as nl\n\n@nki.jit\n"
SCRATCH = "    scratch = nl.ndarray((1 << 16, 1 << 17), dtype=x.dtype, buffer=nl.shared_hbm)\n    for t in"
USED = "            nisa.dma_copy(dst=scratch[0:128, 0:STEP], src=a)\n            c = nl"
IN_PLACE = HONEST.replace("dst=out[", "dst=x[").replace("return out", "return x")
CLOBBERED = HONEST.replace(
    "            c = nl", "            nisa.dma_copy(dst=y[0:128, 0:STEP], src=a)\n            c = nl"
)

STOPPERS: dict[str, tuple[str, type, str]] = {
    "half a character": ("x = '\ud800'\n" + HONEST, CompileFailed, "not UTF-8"),
    "a null byte": ("x = '\0'\n" + HONEST, CompileFailed, "null bytes"),
    "brackets without end": ("x = " + "(" * 5000 + ")" * 5000 + "\n" + HONEST, CompileFailed, "parenthes"),
    "attributes without end": ("x = a" + ".b" * 50_000 + "\n" + HONEST, CompileFailed, ""),
    "a kernel of nothing": (HEAD + "def kernel(x, y):\n    return None\n", Incorrect, "the kernel returns nothing"),
    "one output of two": (
        HONEST.replace("return out", "return out, out"), Incorrect, "the kernel returns [128, 512], [128, 512]",
    ),
    "another shape": (
        HONEST.replace("ndarray((rows, n), dtype=x.dtype, buffer=nl.shared_hbm", "ndarray((rows, 2 * n), dtype=x.dtype,"
        " buffer=nl.shared_hbm"), Incorrect, "cannot reshape array of size",
    ),
    "more memory than there is": (
        HONEST.replace("    for t in", SCRATCH).replace("            c = nl", USED), CompileFailed, "MiB of HBM",
    ),
    "an input left changed": (CLOBBERED, CompileFailed, "writes to its parameter 1"),
}  # fmt: skip


def _judged(target: LocalTarget, source: str, parent: str | None, reference: str = TASK.reference_source) -> Evaluation:
    task = replace(TASK, reference_source=reference, seeds=(0,))
    return target.evaluate(EvaluationRequest(task, Candidate("c", source, parent)), lambda step, detail: None)


@pytest.mark.parametrize("name", STOPPERS)
def test_it_is_judged(target: LocalTarget, name: str) -> None:
    source, kind, said = STOPPERS[name]
    assert source != HONEST
    result = _judged(target, source, "input")
    assert isinstance(result, kind) and said in explain(result), explain(result)


def test_an_input_that_is_updated_and_returned_is_an_output(target: LocalTarget) -> None:
    assert isinstance(_judged(target, IN_PLACE, "input"), Measured)


REFERENCES = {
    "compares with itself": ("return [np.reshape(result, reference.shape)]", "return [reference]", "every kernel"),
    "is nowhere finite": ("return x + np.tile(y, (T, 1))", "return x * np.nan", "no finite value"),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_that_anything_would_pass_is_the_tasks_fault(target: LocalTarget, name: str) -> None:
    old, new, said = REFERENCES[name]
    assert old in kernels.REFERENCE
    with pytest.raises(TaskFault, match=said):
        _judged(target, HONEST, None, kernels.REFERENCE.replace(old, new))
