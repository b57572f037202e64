"""A set of shapes in its folder, and its table for people, scripts and the docs."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from accelopt_core.dispatch.weights import Counting, ShapeSet, WeightedShape
from accelopt_core.evaluation import Likely
from accelopt_core.task import ShapePreset, Work
from benchmarks import many_shapes as benchmark
from infra.documents.run_document import shapes_document
from infra.documents.writing import as_json
from infra.journal import JournalDamaged, JournalError, JournalLocked
from infra.runs.run_folder import RunFolder, RunNotFound
from infra.runs.shape_set import BetweenRow, SetFolder, SetManifest, SetRow, SetTable, find_set, latest_set
from infra.terminal.shape_table import markdown, print_set
from tests.infra.samples import manifest
from tests.infra.test_documents import checked

LIKELY = Likely(3.0, 6.0, 0.8, ("149 measured kernels",))
SHAPES = ShapeSet(
    (
        WeightedShape(ShapePreset("decode", (("M", 128), ("N", 64)), Work(2, 3, 4)), 3.0),
        WeightedShape(ShapePreset("prefill", (("M", 512), ("N", 64))), 1.0),
    )
)
TABLE = SetTable(
    "simulated trn2", True, "", Counting.CALLS,
    (
        SetRow("decode", "M128 N64", 3.0, 3.0, 10.0, 5.0, 4.0, 1, ("decode (M128 N64): 7 seeds",), LIKELY),
        SetRow("prefill", "M512 N64", 1.0, 1.0, 40.0, 40.0, 40.0, 0, ("prefill (M512 N64): 7 seeds",)),
    ),
    (BetweenRow("M320 N64", "the input kernel's program, verified"), BetweenRow("M3 N64", "refused, as it is")),
    {}, ("the kernel of prefill is not used at decode: there it does not compile",), 75.0,
)  # fmt: skip


def a_set(checkpoints: Path, set_id: str = "s1") -> SetFolder:
    folder = SetFolder(checkpoints, set_id)
    asked = SetManifest(set_id, "2026-11-20T12:54:18+00:00", "/home/me/mine.py", "matmul", "0123", SHAPES)
    folder.create(asked, "[[shape]]\nM = 128\n", {"run": {"rounds": 3}})
    return folder


def printed(table: SetTable) -> str:
    console = Console(file=io.StringIO(), width=60)  # narrower than the table, which is shown whole
    print_set(console, table)
    return console.file.getvalue()


def test_weighted_sums_count_calls() -> None:
    assert (TABLE.before_us, TABLE.alone_us, TABLE.after_us) == (70.0, 55.0, 52.0)
    assert TABLE.kept_percent == pytest.approx(120.0) and TABLE.variants == 1
    assert replace(TABLE, rows=TABLE.rows[1:]).kept_percent is None


def test_a_set_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = a_set(tmp_path)
    assert folder.table() is None and folder.config() == {"run": {"rounds": 3}}
    folder.end("x = 1\n", "diff", TABLE)
    folder.close()
    again = SetFolder(tmp_path, "s1")
    assert again.exists and again.table() == TABLE and again.manifest().shapes == SHAPES
    assert again.best_kernel.read_text() == "x = 1\n" and again.shapes.read_text() == "[[shape]]\nM = 128\n"
    assert again.run("decode").run_id == "s1.decode"


def test_a_set_is_held_by_one_and_made_once(tmp_path: Path) -> None:
    folder = a_set(tmp_path)
    with pytest.raises(JournalLocked, match="set s1 is under way"):
        SetFolder(tmp_path, "s1").hold()
    folder.close()
    with pytest.raises(JournalError, match="choose another --run-id"):
        a_set(tmp_path)
    SetFolder(tmp_path, "s1").hold()


def test_a_set_is_found_by_its_id_and_by_its_newest_run(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="no set of shapes in"):
        latest_set(tmp_path)
    a_set(tmp_path)
    assert find_set(tmp_path, "s1") is not None and find_set(tmp_path, "s2") is None
    assert find_set(tmp_path, "latest") is None, "no run of it has begun"
    RunFolder.create(tmp_path, manifest("s1.decode", created="2026-11-20T13:00:00+00:00"), {}).close()
    found = find_set(tmp_path, "latest")
    assert found is not None and found.set_id == latest_set(tmp_path).set_id == "s1"
    RunFolder.create(tmp_path, manifest("s9.other", created="2026-11-20T14:00:00+00:00"), {}).close()
    assert find_set(tmp_path, "latest") is None and latest_set(tmp_path).set_id == "s1"


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": 3}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    folder = a_set(tmp_path)
    (folder.path / "result.json").write_text(text)
    with pytest.raises(JournalDamaged, match=r"result\.json"):
        folder.table()


def test_the_table_says_what_each_shape_takes_and_what_all_of_it_saves() -> None:
    lines = [" ".join(line.split()) for line in printed(TABLE).splitlines()]
    assert "decode 3 10.0 µs 5.0 µs 4.0 µs (3.0 to 6.0) 2.50x variant 1" in lines
    assert "weighted 1.00x 1.27x 1.35x" in lines
    partly = replace(TABLE, rows=tuple(replace(row, after_us=None, variant=0) for row in TABLE.rows), between=())
    assert "third: not begun" in printed(replace(partly, missing={"third": "not begun"}))
    assert partly.after_us == partly.before_us and not partly.is_complete
    shares = replace(TABLE, counting=Counting.SHARE, rows=tuple(replace(row, weight=0.25) for row in TABLE.rows))
    assert " 25 % " in printed(shares) and "| 25 % |" in markdown(shares)


def test_a_script_reads_the_same(tmp_path: Path) -> None:
    told = checked(as_json(shapes_document(a_set(tmp_path), TABLE)))
    assert told["complete"] and told["speedup"] == pytest.approx(70 / 52) and told["rows"][0]["after_us"] == 4.0
    empty = replace(TABLE, rows=())
    told = checked(as_json(shapes_document(SetFolder(tmp_path, "s1"), empty)))
    assert not told["complete"] and told["speedup"] is None and told["best_kernel"] is None


def test_a_page_keeps_the_tables_of_what_was_not_measured() -> None:
    text = f"# Page\n\n{benchmark.BEGIN}\n**matmul** (old)\n\n| a |\n\n**attention** (old)\n\n{benchmark.END}\nrest\n"
    new = {"rmsnorm_matmul": "**rmsnorm_matmul** (new)\n\n", "matmul": "**matmul** (new)\n\n"}
    written = benchmark.page(text, new)
    assert written == (
        f"# Page\n\n{benchmark.BEGIN}\n**matmul** (new)\n\n**rmsnorm_matmul** (new)\n\n**attention** (old)\n\n"
        f"{benchmark.END}\nrest\n"
    )
    assert benchmark.page(written, new) == written


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (TABLE, None),
        (replace(TABLE, missing={"third": "wrong"}), "not every shape has a result: third"),
        (replace(TABLE, rows=(replace(TABLE.rows[0], after_us=10.5), *TABLE.rows[1:])), "decode is slower"),
        (replace(TABLE, rows=(replace(TABLE.rows[0], verified=()), *TABLE.rows[1:])), "decode was not verified"),
        (replace(TABLE, between=()), "no shape between"),
        (replace(TABLE, rows=(replace(TABLE.rows[0], after_us=6.0), *TABLE.rows[1:])), "only 80.0 % of"),
    ],
)
def test_the_benchmark_fails_where_its_target_is_missed(table: SetTable, said: str | None) -> None:
    found = list(benchmark.faults("matmul", table))
    assert (not found) if said is None else any(said in fault for fault in found)


@pytest.mark.parametrize("case", benchmark.CASES, ids=lambda case: case.name)
def test_each_kernel_of_the_benchmark_has_six_shapes_with_tails_among_them(case: benchmark.Case) -> None:
    from infra.tasks.seed_index import load_seed
    from infra.tasks.shapes_file import read_shapes

    kernel = benchmark.KERNELS / f"{case.name}.py"
    shapes = read_shapes(benchmark.KERNELS / f"{case.name}.toml", load_seed(case.task).task(), kernel).shapes
    lengths = [[value for name, value in each.preset.values if name in ("M", "N")] for each in shapes]
    assert len(shapes) == 6 and sum(any(value % 128 for value in some) for some in lengths) >= 2
    assert kernel.is_file()
