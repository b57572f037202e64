"""Wrong kernels made by the hundred are caught; the honest ones that they are made of are not.

A few mutants of small kernels run here; all of them, and the honest kernels with thirty fresh seeds, under `-m slow`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from accelopt_core.judging.reference.verification import Reference
from tests.mutations.bases import bases
from tests.mutations.corpus import Mutant, corpus
from tests.mutations.honest import HONEST, refusals
from tests.mutations.judging import EQUAL_BEFORE_ROUNDING, Fate, Verdict, judged, small
from tests.mutations.operators import MUST_ALL_BE_CAUGHT, OPERATORS

QUICK = [m for m in corpus(("silu", "silu on two cores", "bmm")) if m.number == 0]
QUICK += [m for m in corpus(("mamba",)) if m.operator == "clamped" and m.number == 0]
"""The last is only seen in rows beside those that are beyond float32."""

SURVIVORS: dict[str, str] = {
    "matmul_add_rmsnorm: wrong epsilon 4": "1 / (N + 0.002) is 2e-6 off at N = 1024, and its root half of that: "
    "16 roundings, where a row of products may be 32 times its noise off",
    "matmul_add_rmsnorm after steps: wrong epsilon 4": "the same",
}
"""Wrong kernels that are not caught, by name, and why not."""


@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.name)
def test_a_wrong_kernel_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    verdict = judged(mutant, tmp_path)
    assert verdict.fate is not Fate.SURVIVED, f"{mutant.instead}: {verdict.why}"


@pytest.mark.parametrize("name", ["bmm_softmax", "gqa_full"])
def test_a_softmax_takes_out_what_is_added_to_all_of_one_factor(name: str) -> None:
    """So the mutants that are said to be equal before rounding are."""
    task = small(name)
    reference = Reference(task, task.full)
    first, second, *rest = (each.astype(float) for each in reference.inputs(0))
    (own,), (moved,) = (reference.expected([first, second + by, *rest]) for by in (0.0, 0.01))
    assert np.allclose(own, moved, rtol=1e-9, atol=1e-12)
    assert {name} <= {mutant.split(" ")[0] for mutant in EQUAL_BEFORE_ROUNDING}


@pytest.mark.slow
def test_the_corpus_is_the_same_every_time() -> None:
    first, again = ([(m.name, m.source) for m in corpus()] for _ in range(2))
    assert first == again
    assert len({name for name, _ in first}) == len(first) >= 300


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_nearly_all_wrong_kernels_are_caught_and_all_that_leave_work_out(tmp_path: Path) -> None:
    verdicts = [judged(mutant, tmp_path) for mutant in corpus()]
    wrong = [v for v in verdicts if v.fate in (Fate.CAUGHT, Fate.SURVIVED)]
    survivors = {v.mutant.name: _line(v) for v in wrong if v.fate is Fate.SURVIVED}
    assert len(wrong) >= 300
    assert set(Counter(v.mutant.operator for v in wrong)) == set(OPERATORS)
    assert {name: line for name, line in survivors.items() if name not in SURVIVORS} == {}
    assert len(survivors) <= len(wrong) / 100
    for verdict in wrong:
        known = verdict.fate is Fate.CAUGHT or verdict.mutant.name in SURVIVORS
        assert known or verdict.mutant.operator not in MUST_ALL_BE_CAUGHT, _line(verdict)


def _line(verdict: Verdict) -> str:
    return f"{verdict.mutant.instead} | {verdict.why}"


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("task", sorted(HONEST))
def test_no_honest_kernel_is_refused_in_thirty_judgements(task: str) -> None:
    assert refusals(task, range(1000, 1030)) == []


@pytest.mark.slow
@pytest.mark.parametrize("task", ["silu", "silu in bfloat16", "silu of bfloat16", "silu to float8"])
def test_an_honest_kernel_is_not_refused(task: str) -> None:
    assert refusals(task, range(3)) == []


def test_every_honest_kernel_that_wrong_ones_are_made_of_is_judged() -> None:
    assert {base.task for base in bases()} <= set(HONEST)
