"""A kernel in the place of a model's function: the one function is replaced, and every other byte is as it was."""

from __future__ import annotations

import pytest

from infra.model_benchmark.named import places_of
from infra.model_benchmark.placing import CannotPlace, Kernel, Place, placed

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
