"""A table of shapes: what it may say, and the one line in which it is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from accelopt_core.dispatch.weights import Counting
from infra.tasks.model_shapes import shapes_text
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.seed_index import load_seed, task_from_text
from infra.tasks.shapes_file import at_shape, model_rows, read_shapes

TASK = load_seed("matmul").task()
KERNEL = load_seed("matmul").kernel_path


def table(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "shapes.toml"
    path.write_text("".join(f"[[shape]]\n{row}\n" for row in rows), encoding="utf-8")
    return path


def test_shapes_have_names_weights_and_the_constants_that_they_do_not_name(tmp_path: Path) -> None:
    read = read_shapes(
        table(tmp_path, "M = 256\ncalls = 3", 'K = 128\nN = 100\nname = "tail"\ncalls = 0.5'), TASK, KERNEL
    )
    assert [(each.name, dict(each.preset.values), each.weight) for each in read.shapes] == [
        ("M256", {"M": 256, "K": 5120, "N": 12288}, 3.0),
        ("tail", {"M": 4096, "K": 128, "N": 100}, 0.5),
    ]
    assert read.counting is Counting.CALLS


@pytest.mark.parametrize(
    ("key", "counting"), [("calls", Counting.CALLS), ("weight", Counting.CALLS), ("share", Counting.SHARE)]
)
def test_a_weight_is_calls_or_a_share(tmp_path: Path, key: str, counting: Counting) -> None:
    read = read_shapes(table(tmp_path, f"M = 256\n{key} = 0.25", f"M = 512\n{key} = 0.5"), TASK, KERNEL)
    assert read.counting is counting and [each.weight for each in read.shapes] == [0.25, 0.5]


def test_a_shape_has_the_work_that_the_reference_declares(tmp_path: Path) -> None:
    work = 'WORK = {"matmul_flops": 0, "vector_ops": M * K * N, "hbm_bytes": 8 * N}\n'
    task = task_from_text(TASK.reference_source + work, "ref.py", "mine")
    (shape,) = read_shapes(table(tmp_path, "M = 2\nK = 3\nN = 5"), task, KERNEL).shapes
    assert shape.preset.work is not None and shape.preset.work.vector_ops == 30
    (shape,) = read_shapes(table(tmp_path, 'name = "as-shipped"'), TASK, KERNEL).shapes
    assert shape.preset.work == TASK.full.work and shape.preset.work is not None


@pytest.mark.parametrize(
    ("shape", "gates"),
    [
        ("M = 512\nK = 512\nN = 2048", ["small"]),
        ("M = 512\nK = 512\nN = 2000", []),  # a rest of every tile from 32 up, which the gate does not have
        ("M = 384\nK = 512\nN = 2048", []),
        ("M = 128\nK = 512\nN = 2048", []),  # smaller than the gate
        ("M = 256\nK = 256\nN = 1024", []),  # it is the gate
    ],
)
def test_a_gate_has_the_tails_of_its_shape(tmp_path: Path, shape: str, gates: list[str]) -> None:
    (read,) = read_shapes(table(tmp_path, f'name = "it"\n{shape}'), TASK, KERNEL).shapes
    assert [preset.name for preset in at_shape(TASK, read).presets] == [*gates, "it"]


BAD = {
    "": "it has no shapes: write each under", "[[shapes]]\nM = 3": "it has no shapes",
    "shape = 3": "it has no shapes", "[[shape]]\nM = 3\n[other]\n": "'other' is nothing known",
    "[[shape]\n": "correct it",
    "[[shape]]\nM = 3\ncalls = 1\n[[shape]]\nM = 4\nshare = 0.1": "calls and share in one table",
    "[[shape]]\nM = 3\ncalls = 1\n[[shape]]\nM = 4": "shape 2: no calls, which others have",
    "[[shape]]\nm = 3": "shape 1: the reference has no m; its constants are M, K, N",
    "[[shape]]\nM = 3.0": "M = 3.0 is no size", "[[shape]]\nM = 0": "M = 0 is no size",
    "[[shape]]\nM = true": "M = True is no size", '[[shape]]\nM = 3\nname = "a b"': "'a b' is no name",
    '[[shape]]\nM = 3\nname = "../up"': "is no name",
    '[[shape]]\nM = 3\nname = "small"': "small is a preset of the reference",
    "[[shape]]\nM = 3\ncalls = 0": "0 is no weight", "[[shape]]\nM = 3\ncalls = inf": "inf is no weight",
    '[[shape]]\nM = 3\ncalls = "2"': "'2' is no weight",
    "[[shape]]\nM = 3\n[[shape]]\nM = 3": "shapes 1 and 2 are both called M3",
    '[[shape]]\nM = 3\n[[shape]]\nM = 3\nname = "again"': "shapes 1 and 2 are the same",
    "[[shape]]\nM = 3\nshare = 0.9\n[[shape]]\nM = 4\nshare = 0.2": "more than a whole step",
    "".join(f"[[shape]]\nM = {n}\n" for n in range(1, 40)): "39 shapes, and at most 32",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD, ids=BAD.values())
def test_a_table_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TaskInvalid, match=re.escape(BAD[text])) as refused:
        read_shapes(path, TASK, KERNEL)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


OTHER = '[[kernel]]\nname = "mlp"\nbefore = "mlp.py"\nafter = "b.py"\nshapes = ["3x4"]\nshare = 0.5\n'
ITS = '[[kernel]]\nbefore = "mine.py:kernel"\nafter = "b.py"\nshapes = ["512x256"]\n'


def of_model(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "model.toml"
    path.write_text('[model]\nname = "one step"\n' + OTHER + "".join(ITS + row for row in rows), encoding="utf-8")
    return path


def test_a_models_table_has_the_rows_of_the_kernel_with_their_shares(tmp_path: Path) -> None:
    path = of_model(
        tmp_path, "values = {M = 256, K = 512}\nshare = 0.25\n", 'name = "o"\nvalues = {N = 100}\nshare = 0.1\n'
    )
    read = read_shapes(path, TASK, tmp_path / "mine.py")
    assert read.counting is Counting.SHARE
    assert [(each.name, dict(each.preset.values), each.weight) for each in read.shapes] == [
        ("M256-K512", {"M": 256, "K": 512, "N": 12288}, 0.25),
        ("o", {"M": 4096, "K": 5120, "N": 100}, 0.1),
    ]
    rows = model_rows(path, tmp_path / "mine.py")
    assert rows is not None and [row.tensors for row in rows] == [("512x256",), ("512x256",)]
    (tmp_path / "copy.toml").write_text(shapes_text(rows), encoding="utf-8")
    assert read_shapes(tmp_path / "copy.toml", TASK, Path("elsewhere.py")) == read


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("share = 0.2\n", "[[kernel]] 2: --shapes asks for values = {NAME = size}"),
        ("values = {}\nshare = 0.2\n", "asks for values"),
        ("values = {M = 128}\n", "[[kernel]] 2 has no share"),
        ("values = {M = 1.5}\nshare = 0.2\n", "M = 1.5 is no size"),
        ("values = {M = 128, calls = 3}\nshare = 0.2\n", "calls stands beside values"),
        ("values = {Q = 128}\nshare = 0.2\n", "the reference has no Q"),
    ],
)
def test_a_models_row_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, row: str, said: str) -> None:
    with pytest.raises(TaskInvalid, match=re.escape(said)):
        read_shapes(of_model(tmp_path, row), TASK, tmp_path / "mine.py")
