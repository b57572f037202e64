"""With `exact` a kernel's outputs equal the input kernel's in every bit; what only comes close is refused at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Evaluation, Incorrect, Measured, explain
from accelopt_core.judging.inputs.draws import OF_DOMAINS
from accelopt_core.model.prompting import precision_text
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import DISTRIBUTIONS, ShapePreset, Task
from infra.commands.evaluate import evaluate
from infra.settings_reader import SettingsError
from infra.targets.local import LocalTarget
from tests.e2e.kernels import FAST, REFERENCE, SLOW

SMALL = ShapePreset("small", (("P", 128), ("N", 512), ("T", 1)))
TASK = Task("sum", REFERENCE, (SMALL, ShapePreset("full", (("P", 128), ("N", 512), ("T", 2)))), seeds=(0,), exact=True)
INPUT = SLOW
SAME_STEPS = FAST.replace("STEP = 2048", "STEP = 512")
THREE_TERMS = "            nisa.tensor_tensor(dst=c, data1={}, data2={}, op=nl.add)\n"


def of_three(first: str, second: str, third: str) -> str:
    """x + y + y in an order of its own, which rounds otherwise."""
    sums = THREE_TERMS.format(first, second) + THREE_TERMS.format("c", third)
    return SAME_STEPS.replace(THREE_TERMS.format("a", "b"), sums)


def judged(
    target: LocalTarget, task: Task, source: str, original: str, *, final: bool = False
) -> tuple[Evaluation, list[str]]:
    said: list[str] = []
    request = EvaluationRequest(
        task, Candidate("c", source, "input"), extra_seeds=(7,), original=Candidate("input", original), final=final,
        by_tool=True,
    )  # fmt: skip
    return target.evaluate(request, lambda step, detail: said.append(detail)), said


@pytest.mark.parametrize("final", [False, True])
def test_the_same_steps_are_bit_identical_on_every_draw(target: LocalTarget, final: bool) -> None:
    result, _ = judged(target, TASK, SAME_STEPS, INPUT, final=final)
    assert isinstance(result, Measured), explain(result)
    changed = len(DISTRIBUTIONS) - 1 - len(OF_DOMAINS)  # of an input that moves there is none
    small = len(TASK.seeds) + 1 + changed * (2 if final else 1)
    full = 3
    assert result.identical_draws == small + full
    assert f"bit-identical to the input kernel on {result.identical_draws} draws" in result.rests_on
    assert result.verified_full, "a proof up to reassociation is no reason not to execute it"


def test_another_order_of_a_sum_is_right_but_for_its_bits(target: LocalTarget) -> None:
    three = TASK.reference_source.replace("x + np.tile(y, (T, 1))", "x + 2 * np.tile(y, (T, 1))")
    task = replace(TASK, reference_source=three)
    original, other = of_three("a", "b", "b"), of_three("b", "b", "a")
    plain, _ = judged(target, replace(task, exact=False), other, original)
    assert isinstance(plain, Measured) and plain.is_proved_equal and plain.identical_draws == 0, explain(plain)
    exact, said = judged(target, task, other, original)
    assert isinstance(exact, Incorrect), explain(exact)
    assert "not bit-identical to the input kernel" in exact.failure.reason
    assert exact.failure.preset == "small" and exact.failure.seed == 0
    assert not [line for line in said if "T2" in line], "it costs the cheapest shape's first draw"


def test_models_are_told_and_records_differ() -> None:
    assert "bit-identical" in precision_text(TASK) and "bit-identical" not in precision_text(replace(TASK, exact=False))
    assert TASK.content_hash != replace(TASK, exact=False).content_hash


def test_a_kernel_by_itself_is_identical_to_what_is_named(tmp_path: Path) -> None:
    kernel, original, reference = (tmp_path / name for name in ("kernel.py", "original.py", "reference.py"))
    kernel.write_text(SAME_STEPS)
    original.write_text(INPUT)
    reference.write_text(REFERENCE.replace("P, N, T = 128, 2048, 4", "P, N, T = 128, 512, 1"))
    with pytest.raises(SettingsError, match="exact: equal to which kernel in every bit"):
        evaluate(kernel, reference, exact=True)
    result = evaluate(kernel, reference, original=original, exact=True)
    assert isinstance(result, Measured) and result.identical_draws > 10, explain(result)
    itself = evaluate(original, reference, original=original, exact=True)
    assert isinstance(itself, Measured) and itself.identical_draws == 0, explain(itself)
