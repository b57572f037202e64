"""From tuned kernels to one: what is only fast, or only right, at its own shape stays there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.dispatch.weights import ShapeSet
from accelopt_core.ports import EvaluationLimits
from accelopt_core.task import Task
from infra.commands import joined_kernel
from infra.commands.joined_kernel import JoinedKernel, Joining, Tuned
from infra.prediction.predictor import Predictor, kernel_arguments
from infra.targets.local import LocalTarget
from infra.tasks.seed_index import task_from_text
from infra.tasks.shapes_file import read_shapes
from tests.e2e.test_many_shapes import KERNEL, REFERENCE
from tests.infra.samples import measured

SHAPES = "[[shape]]\nN = 1024\ncalls = 3\n[[shape]]\nN = 508\ncalls = 1\n"
WIDE = KERNEL.replace("STEP = 128", "STEP = 1024")
MIDDLE = KERNEL.replace("STEP = 128", "STEP = 508")
ONLY_THERE = WIDE.replace(
    "            nisa.dma_copy(dst=b, src", "            if n == 1024:\n                nisa.dma_copy(dst=b, src"
).replace(
    "            nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)",
    "            nisa.tensor_tensor(dst=c, data1=a, data2=b if n == 1024 else a, op=nl.add)",
)
"""Right where it was tuned, and elsewhere faster than any that is right."""
NOT_ELSEWHERE = WIDE.replace("    out = nl", '    assert n == 1024, "made for this"\n    out = nl')
NOT_ELSEWHERE_EITHER = MIDDLE.replace("    out = nl", '    assert n == 508, "made for this"\n    out = nl')


@pytest.fixture(autouse=True)
def one_shape_beside_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes seconds; test_many_shapes.py has more of them."""
    monkeypatch.setattr(joined_kernel, "MOST_BETWEEN", 1)


def joined(target: LocalTarget, folder: Path, sources: Mapping[str, str], given: str = KERNEL) -> JoinedKernel:
    """`sources`: by shape what its run is to have come to."""
    (folder / "shapes.toml").write_text(SHAPES, encoding="utf-8")
    task = replace(task_from_text(REFERENCE, "ref.py", "add"), seeds=(5,))
    shapes = read_shapes(folder / "shapes.toml", task, folder / "kernel.py")
    presets = tuple(shape.preset for shape in shapes.shapes)
    arguments = dict(zip(sources, kernel_arguments(replace(task, presets=presets))))
    tuned = {name: tuned_at(task, shapes, name, given, source) for name, source in sources.items()}
    return Joining(
        task, shapes, given, tuned, arguments, target, lambda task: Predictor(task, "trn2"), EvaluationLimits(), 1,
        0.0191, lambda step, detail: None, lambda line: None,
    ).kernel()  # fmt: skip


def tuned_at(task: Task, shapes: ShapeSet, name: str, given: str, source: str) -> Tuned:
    (preset,) = (shape.preset for shape in shapes.shapes if shape.name == name)
    predictor = Predictor(replace(task, presets=(preset,)), "trn2")
    try:
        prices = predictor([given, source])
    finally:
        predictor.close()
    before, now = prices[given], prices[source]
    assert before is not None and now is not None
    return Tuned(measured(before), source, measured(now))


@pytest.mark.slow
def test_a_kernel_that_is_wrong_elsewhere_is_found_out_and_the_choice_made_anew(target, tmp_path) -> None:
    made = joined(target, tmp_path, {"N1024": ONLY_THERE, "N508": NOT_ELSEWHERE_EITHER})
    wide, middle = made.table.rows
    assert wide.variant and middle.variant and wide.variant != middle.variant
    assert any("the kernel of N1024 is not used at N508: wrong" in note for note in made.table.notes)
    assert wide.after_us == pytest.approx(wide.alone_us) and middle.after_us == pytest.approx(middle.alone_us)
    assert made.source.count("if n == 1024") == 2 and len(made.table.between) >= 1
    assert made.table.kept_percent == pytest.approx(100)


@pytest.mark.slow
def test_one_that_does_not_compile_elsewhere_stays_where_it_does(target: LocalTarget, tmp_path: Path) -> None:
    made = joined(target, tmp_path, {"N1024": NOT_ELSEWHERE, "N508": KERNEL})
    assert [row.variant for row in made.table.rows] == [1, 0] and not made.table.notes
    assert made.source.count("made for this") == 1


@pytest.mark.slow
def test_one_that_is_as_good_for_both_is_the_only_variant(target: LocalTarget, tmp_path: Path) -> None:
    made = joined(target, tmp_path, {"N1024": WIDE, "N508": MIDDLE})
    assert [row.variant for row in made.table.rows] == [1, 1]
    assert made.table.variants == 1 and all(row.after_us < row.input_us for row in made.table.rows if row.after_us)


@pytest.mark.slow
def test_one_that_cannot_be_joined_is_said_and_the_others_are(target: LocalTarget, tmp_path: Path) -> None:
    star = WIDE.replace("import nki.isa as nisa", "import nki.isa as nisa\nfrom nki.isa import *")
    made = joined(target, tmp_path, {"N1024": star, "N508": MIDDLE})
    (note,) = made.table.notes
    assert "the kernel of N1024 cannot be joined to the others: variant 1: it has `from ... import *`" in note
    assert made.table.variants == 1 and made.table.rows[0].after_us < made.table.rows[0].input_us  # type: ignore[operator]


def test_where_nothing_is_faster_the_input_kernel_stays_as_it_is(target: LocalTarget, tmp_path: Path) -> None:
    made = joined(target, tmp_path, {"N1024": WIDE, "N508": WIDE}, given=WIDE)
    assert made.source == WIDE and made.table.variants == 0 and made.table.kept_percent is None
    assert all(row.after_us == row.input_us for row in made.table.rows) and made.table.is_complete
