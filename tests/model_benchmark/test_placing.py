"""A kernel in the place of a model's function, byte for byte; and Amdahl's law on a table of kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infra.model_benchmark.named import places_of
from infra.model_benchmark.placing import CannotPlace, Kernel, Place, placed
from infra.model_benchmark.projection import BadTable, KernelFile, KernelUse, ModelTable, projection, read_table
from infra.toml_files import BadToml

PLACE = Place("layers/norm.py", "rmsnorm")
MODEL = b"""# a model's file
import nki


@nki.jit(
    mode="auto",
)
def rmsnorm(x, weight, eps):
    def rmsnorm_inner():
        rmsnorm = 1
        return rmsnorm

    return x


class Layer:
    def rmsnorm(self, x):
        return rmsnorm(x, self.w, eps=1e-6)
"""
KERNEL = Kernel("best.py", "import nki\n\n@nki.jit\ndef kernel(x, weight, eps=1e-6):\n    return x\n", "kernel")


def test_an_import_stands_where_the_function_stood() -> None:
    made = placed(KERNEL, PLACE, MODEL, in_package=False)
    before, after = MODEL.split(b"@nki.jit(\n")[0], MODEL[MODEL.index(b"\n\n\nclass Layer") :]
    line = b"from nki_optimizer_rmsnorm import kernel as rmsnorm"
    assert made.files == {
        "layers/norm.py": before + line + after,
        "layers/nki_optimizer_rmsnorm.py": KERNEL.source.encode(),
    }
    assert made.notes == ()


def test_a_byte_order_mark_and_line_ends_stay() -> None:
    windows = b"\xef\xbb\xbf" + MODEL.replace(b"\n", b"\r\n")
    text = placed(KERNEL, PLACE, windows, in_package=False).files[PLACE.file]
    assert text.startswith(b"\xef\xbb\xbf# a model") and text.count(b"\n") == text.count(b"\r\n")
    compile(text.decode("utf-8-sig"), "norm.py", "exec")


@pytest.mark.parametrize(
    ("model", "kernel", "said"),
    [
        (b"def rmsnorm(x) return", KERNEL.source, "layers/norm.py is not Python"),
        (b"\xff\xfe", KERNEL.source, "layers/norm.py is not Python"),
        (b"def softmax(x): return x\n", KERNEL.source, "defines no rmsnorm; its functions: softmax"),
        (b"from .kernels import rmsnorm\n", KERNEL.source, "imports rmsnorm from kernels: name the file"),
        (b"def rmsnorm(x, w): return x\nrmsnorm = jit(rmsnorm)\n", KERNEL.source, "binds rmsnorm in line 1, 2"),
        (b"if True:\n    def rmsnorm(x, w): return x\n", KERNEL.source, "one function at the top level"),
        (b"class rmsnorm: pass\n", KERNEL.source, "one function at the top level"),
        (b"def rmsnorm(x): return x\n", KERNEL.source, "would call it with other arguments"),
        (b"def rmsnorm(x, w, eps, z): return x\n", KERNEL.source, "would call it with other arguments"),
        (b"def rmsnorm(x, w, *, out): return x\n", KERNEL.source, "takes no out"),
        (MODEL, KERNEL.source.replace("@nki.jit\n", ""), "nothing decorates kernel"),
        (MODEL, "def kernel(:", "best.py is not Python"),
    ],
)
def test_what_does_not_fit_is_refused(model: bytes, kernel: str, said: str) -> None:
    with pytest.raises(CannotPlace, match=said):
        placed(Kernel("best.py", kernel, "kernel"), PLACE, model, in_package=False)


def test_places_as_they_are_written() -> None:
    assert places_of(["runs/a/best.py=layers/norm.py:rmsnorm", "norm.py:f"]) == (
        ("runs/a/best.py", PLACE), ("", Place("norm.py", "f")),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("best.py", "write KERNEL=FILE:FUNCTION"),
        ("a.py=norm.py:2f", "write KERNEL=FILE:FUNCTION"),
        ("a.py=/etc/norm.py:f", "no Python file below the checkout"),
        ("a.py=../norm.py:f", "no Python file below the checkout"),
        ("a.py=norm.txt:f", "no Python file below the checkout"),
    ],
)
def test_what_is_no_place_is_refused(word: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        places_of([word])
    with pytest.raises(ValueError, match="two kernels for norm.py:f"):
        places_of(["a.py=norm.py:f", "b.py=norm.py:f"])


USE = KernelUse("mm", KernelFile(Path("a.py")), KernelFile(Path("b.py")), ("128x128",), (), 48, 0.5)


def test_what_no_kernel_covers_stays_as_it_is() -> None:
    found = projection(ModelTable("m", 1000.0, (USE, replace(USE, share=0.25))), [(10.0, 5.0), (8.0, 2.0)])
    assert found.speedup == 1 / (0.25 + 0.25 + 0.25 / 4) and found.covered == 0.75
    assert found.projected_step_us == 562.5
    assert [row.saved for row in found.kernels] == [0.25, 0.1875]
    assert (found.tokens_per_s, found.projected_tokens_per_s) == (None, None)


def test_a_kernel_that_became_slower_costs_and_a_step_without_a_time_has_only_a_speed_up() -> None:
    found = projection(ModelTable("m", None, (USE,)), [(10.0, 20.0)])
    assert found.speedup == 1 / 1.5 and found.kernels[0].saved == -0.5
    assert (found.step_us, found.projected_step_us) == (None, None)


def test_calls_that_no_step_has_the_time_for_are_no_projection() -> None:
    """48 calls of 10 us and 3 of 40 are 600 us."""
    other = replace(USE, name="norm", calls=3, share=0.25)
    latencies = [(10.0, 5.0), (40.0, 20.0)]
    assert projection(ModelTable("m", 600.0, (USE, other)), latencies).speedup == 1.6
    with pytest.raises(BadTable, match=r"step_us is 599, and the calls .* 600 us: mm 48 x 10\.0, norm 3 x 40\.0"):
        projection(ModelTable("m", 599.0, (USE, other)), latencies)


ROW = 'before = "a.py"\nafter = "/b.py:mm"\nshapes = ["128x512:float32"]\nshare = 0.5\n'


def test_a_table_is_read_with_its_paths_beside_it(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        f"[model]\nstep_us = 12.5\ntokens_per_step = 8\n[[kernel]]\n{ROW}calls = 3\nconstants = [1e-6]\n"
    )
    table = read_table(tmp_path / "t.toml")
    use = KernelUse(
        "a", KernelFile(tmp_path / "a.py"), KernelFile(Path("/b.py"), "mm"), ("128x512:float32",), (1e-6,), 3, 0.5
    )
    assert table == ModelTable("t", 12.5, (use,), 8.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"\[\[kernel\]\] for each"),
        ("[kernel]\n" + ROW, r"\[\[kernel\]\] for each"),
        ("[[kernel]]\n" + ROW.replace("share = 0.5", ""), "1 has no share"),
        ("[[kernel]]\n" + ROW.replace("0.5", "1.5"), "a fraction of 1"),
        ("[[kernel]]\n" + ROW.replace("0.5", "-1"), "not a number above 0"),
        ("[[kernel]]\n" + ROW.replace("0.5", "nan"), "not a number above 0"),
        ("[[kernel]]\n" + ROW + "[[kernel]]\n" + ROW + "[[kernel]]\n" + ROW, "add up to 1.5"),
        ("[[kernel]]\n" + ROW + "calls = 0\n", "calls is 0, not a count"),
        ("[[kernel]]\n" + ROW.replace('["128x512:float32"]', "128"), "shapes are a list"),
        ("[[kernel]]\n" + ROW + 'constants = ["x"]\n', "constants are a list of numbers"),
        ("[[kernel]]\n" + ROW + "constants = [true]\n", "constants are a list of numbers"),
        ("[[kernel]]\n" + ROW + "constants = [nan]\n", "constants are a list of numbers"),
        ("[[kernel]]\n" + ROW.replace("0.5", "1" + 400 * "0"), "not a number above 0"),
        ("[model]\nstep_us = 1%s\n[[kernel]]\n" % (400 * "0") + ROW, "not a number above 0"),
        ("[model]\ntokens_per_step = 0\n[[kernel]]\n" + ROW, "tokens_per_step is 0, not a number above 0"),
        ("[[kernel]]\n" + ROW + "cals = 3\n", "no setting cals; known: name"),
        ("[model]\nstep_ms = 3\n[[kernel]]\n" + ROW, "no setting step_ms"),
        ("[[kernel]\n", "correct it"),
    ],
)
def test_a_table_that_says_too_little_or_too_much_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(BadToml, match=said):
        read_table(tmp_path / "t.toml")
