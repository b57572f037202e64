"""Functions of other files of the kernel's package: written out where they are called, in the kernel file's words."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import nki_sim
from accelopt_core.task import Surroundings
from accelopt_core.transforms.base import KernelModule, parse_kernel
from accelopt_core.transforms.normalize import normalized
from tests.transforms.running import random

X = random(256, 96)
MODULE = "package.kernels.scale"

KERNEL = """import nki
import nki.isa as nisa
import nki.language as nl

from ..helpers import tiles as T
from ..helpers.checks import check
from ..shared import load


@nki.jit
def kernel(x):
    N, W = x.shape
    check(N % 2 == 0, f"N is {N}")  # must hold
    out = nl.ndarray((N, W), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(T.count(N)):
        tile = load(x[i * 128 : (i + 1) * 128, 0:W], W)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, 0:W], src=tile)
    return out
"""

NEIGHBOURS = {
    "package/__init__.py": "",
    "package/kernels/__init__.py": "",
    "package/helpers/__init__.py": "",
    "package/helpers/checks.py": 'def check(right, why):\n    assert right, f"wrong: {why}"\n',
    "package/helpers/tiles.py": "ROWS = 128\n\n\ndef count(rows):\n    return (rows + ROWS - 1) // ROWS\n",
    "package/shared.py": "from .moving import load\n",
    "package/moving.py": """import nki.isa as instructions
import nki.language as language

from .helpers.tiles import ROWS


def doubled(tile):
    # twice
    instructions.tensor_scalar(dst=tile, data=tile, op0=language.multiply, operand0=2.0)


def load(source, width):
    made = language.ndarray((ROWS, width), dtype=source.dtype, buffer=language.sbuf)
    instructions.dma_copy(dst=made, src=source)
    doubled(made)
    return made
""",
}


def module(kernel: str = KERNEL, neighbours: Mapping[str, str] = NEIGHBOURS) -> KernelModule:
    return parse_kernel(kernel, ("kernel",), Surroundings("kernel", MODULE, tuple(neighbours.items())))


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Imports the kernel's text among its neighbours, and traces it."""
    nki_sim.install()
    monkeypatch.syspath_prepend(str(tmp_path))

    def of(kernel: str, neighbours: Mapping[str, str] = NEIGHBOURS) -> nki_sim.program.Program:
        for name in [each for each in sys.modules if each.partition(".")[0] == "package"]:
            del sys.modules[name]
        for path, text in {**neighbours, f"{MODULE.replace('.', '/')}.py": kernel}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        __import__(MODULE)
        return nki_sim.trace(sys.modules[MODULE].kernel, X)

    yield of
    for name in [each for each in sys.modules if each.partition(".")[0] == "package"]:
        del sys.modules[name]


def test_they_are_written_out_and_the_program_stays_the_same(traced):
    made = normalized(module()).text
    assert normalized(module(made)).text == made, "normalizing twice changes something"
    for gone in ("load(", "count(", "check(", "doubled("):
        assert gone not in made.partition("def kernel")[2], made
    assert 'assert N % 2 == 0, f"wrong: {why}"' in made.replace("(N % 2 == 0)", "N % 2 == 0")
    assert "nl.ndarray((ROWS, W)" in made and "from ..helpers.tiles import ROWS\n" in made
    assert "# twice" in made and "# must hold" in made
    before, after = traced(KERNEL), traced(made)
    assert [before.templates[at].opcode for at in before.template_ids] == [
        after.templates[at].opcode for at in after.template_ids
    ]
    assert np.array_equal(before.template_ids, after.template_ids)


def changed(path: str, old: str, new: str) -> dict[str, str]:
    assert old in NEIGHBOURS[path]
    return {**NEIGHBOURS, path: NEIGHBOURS[path].replace(old, new)}


TILES = "package/helpers/tiles.py"
EARLY = "    for i in range(rows):\n        return rows\n    return ("
EITHER = "try:\n    from x import ROWS\nexcept ImportError:\n    from y import ROWS\n"
KEPT = {
    "one that returns from a loop": (KERNEL, changed(TILES, "    return (", EARLY)),
    "one that is bound twice": (KERNEL, changed(TILES, "ROWS = 128\n", "ROWS = 128\ncount = len\n")),
    "one whose file means Python's own max": (
        KERNEL.replace("@nki.jit", "def max(a, b):\n    return a\n\n\n@nki.jit"),
        changed(TILES, "(rows + ROWS", "(max(rows, 1) + ROWS"),
    ),
    "one that needs a name with two meanings": (KERNEL, changed(TILES, "ROWS = 128\n", EITHER)),
    "what is no function": (KERNEL, changed(TILES, "def count(rows):\n    return", "count = lambda rows:")),
    "what does not parse": (KERNEL, changed(TILES, "ROWS = 128\n", "ROWS = = 128\n")),
    "what is not there": (KERNEL, {path: text for path, text in NEIGHBOURS.items() if path != TILES}),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_cannot_be_said_in_the_kernels_file_stays_a_call(case):
    kernel, neighbours = KEPT[case]
    assert "range(T.count(N))" in normalized(module(kernel, neighbours)).text


def test_one_that_calls_itself_stays_a_call():
    kernel = KERNEL.replace("helpers import tiles as T", "helpers.tiles import count").replace("T.count", "count")
    neighbours = changed(TILES, "return (rows", "return (count(0) if rows > 5 else rows")
    assert "from ..helpers.tiles import count" in kernel
    assert "range(count(N))" in normalized(module(kernel, neighbours)).text


def test_a_name_that_the_kernel_uses_otherwise_gets_another(traced):
    kernel = KERNEL.replace("    N, W = x.shape", "    ROWS, W = x.shape\n    N = ROWS")
    made = normalized(module(kernel)).text
    assert "from ..helpers.tiles import ROWS as ROWS_2\n" in made and "range(T.count" not in made
    assert np.array_equal(traced(kernel).template_ids, traced(made).template_ids)


def test_a_text_is_not_put_into_a_text(traced):
    kernel = KERNEL.replace('f"N is {N}"', '"N is odd"')
    made = normalized(module(kernel)).text
    assert 'why = "N is odd"' in made.replace("(", "").replace(")", "") and "check(" not in made
    assert np.array_equal(traced(kernel).template_ids, traced(made).template_ids)


def test_a_file_that_stands_beside_its_helpers_imports_them_by_their_names():
    imports = "import nki\nimport nki.language as nl\nfrom tiles import count\n"
    kernel = f"{imports}\n\n@nki.jit\ndef kernel(x):\n    return count(x.shape[0])\n"
    neighbours = (("tiles.py", NEIGHBOURS[TILES]),)
    made = normalized(parse_kernel(kernel, ("kernel",), Surroundings("kernel", "mine", neighbours))).text
    assert "from tiles import ROWS\n" in made and "(x.shape[0] + ROWS - 1) // ROWS" in made
