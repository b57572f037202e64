"""A kernel that a run has judged before in other words is told apart by its program, at the first stage that can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Duplicate, Evaluation, Incorrect, Measured
from accelopt_core.ports import EvaluationRequest, KnownProgram
from accelopt_core.task import ShapePreset, Task
from infra.targets.local import LocalTarget
from tests.e2e.kernels import FAST, REFERENCE, SLOW, WRONG

SMALL = ShapePreset("small", (("N", 2048), ("T", 1)))
TASK = Task("add", REFERENCE, (SMALL, ShapePreset("full", (("N", 2048), ("T", 4)))), seeds=(0,))
INPUT = Candidate("input", SLOW)


def judged(target: LocalTarget, source: str, *known: tuple[str, Evaluation]) -> tuple[Evaluation, list[str]]:
    """The evaluation, and what was told on the way."""
    told: list[str] = []
    earlier = tuple(
        KnownProgram(name, result.programs, f"what {name} came to")
        for name, result in known
        if isinstance(result, (Measured, Incorrect))
    )
    request = EvaluationRequest(TASK, Candidate("r009t1", source, "input"), extra_seeds=(5,), original=INPUT)
    return target.evaluate(replace(request, known=earlier), lambda step, detail: told.append(detail)), told


@pytest.fixture(scope="module")
def fast(target: LocalTarget) -> Evaluation:
    return judged(target, FAST)[0]


IN_OTHER_WORDS = FAST.replace("a = nl", "left = nl").replace("dst=a", "dst=left").replace("data1=a", "data1=left")


def test_a_right_kernel_in_other_words_is_neither_run_nor_timed(target: LocalTarget, fast: Evaluation) -> None:
    assert isinstance(fast, Measured) and len(fast.programs) == 2
    result, told = judged(target, f"# at last\n{IN_OTHER_WORDS}", ("r001t1", fast))
    assert result == Duplicate("r001t1", "what r001t1 came to")
    assert not [line for line in told if "seeds" in line or "N2048" in line]
    alone, told = judged(target, IN_OTHER_WORDS)
    assert isinstance(alone, Measured) and alone.latency_us == fast.latency_us and alone.programs == fast.programs
    assert [line for line in told if "seeds" in line]


def test_a_wrong_kernel_is_known_by_the_shapes_that_it_came_to(target: LocalTarget) -> None:
    wrong, _ = judged(target, WRONG)
    assert isinstance(wrong, Incorrect) and len(wrong.programs) == 1
    again, _ = judged(target, WRONG.replace("STEP", "WIDTH"), ("r002t1", wrong))
    assert again == Duplicate("r002t1", "what r002t1 came to")


def test_what_is_the_same_at_the_cheap_shape_alone_is_judged(target: LocalTarget, fast: Evaluation) -> None:
    twice = FAST.replace("rows // 128", "(rows // 128 if rows < 512 else 2 * (rows // 256))")
    slower = FAST.replace("    return out", "    if rows > 128:\n        spare = nl.ndarray((128, 8), dtype=x.dtype, "
                          "buffer=nl.sbuf)\n        nisa.memset(dst=spare, value=0.0)\n    return out")  # fmt: skip
    assert judged(target, twice, ("r001t1", fast))[0] == Duplicate("r001t1", "what r001t1 came to")
    result, _ = judged(target, slower, ("r001t1", fast))
    assert isinstance(result, Measured) and isinstance(fast, Measured)
    assert result.programs[0] == fast.programs[0] and result.programs[1] != fast.programs[1]


def test_a_hostile_text_is_refused_whatever_its_program(target: LocalTarget, fast: Evaluation) -> None:
    result, _ = judged(
        target, FAST.replace("STEP = 2048", "STEP = 2048 + 0 * len(open('/proc/version').read())"), ("r001t1", fast)
    )
    assert result.kind == "compile_failed"
