"""Kernels as libraries have them: sizes in dataclasses, work in helpers that leave early, files beside files."""

from __future__ import annotations

import io
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import libcst as cst
import numpy as np
import pytest

import nki_sim
from accelopt_core.task import Surroundings
from accelopt_core.toolchain import TensorArgument
from accelopt_core.transforms.base import AnalysisContext, KernelModule, parse_kernel
from accelopt_core.transforms.group_loads import GroupLoads
from accelopt_core.transforms.normalize import NORMALIZE, normalized
from accelopt_core.transforms.normalize_returns import with_one_exit
from accelopt_core.transforms.split_columns import SplitColumns
from nki_sim.program import Program
from tests.transforms.running import random

X, W = random(300, 96), random(96, 1)
MODULE = "library.kernels.scaled"
CONTEXT = AnalysisContext(arguments=((TensorArgument((300, 96), "float32"),),))

KERNEL = """import nki
import nki.isa as nisa
import nki.language as nl

from ..common.kinds import Kind
from .scaled_parameters import build_config
from .scaled_work import load, scale_in_place


@nki.jit
def kernel(x, kind=Kind.TWICE, offset=None):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    cfg = build_config(x, kind=kind, offset=offset)
    columns = []
    for at in range(2):
        columns.append(column(cfg, value=1.0 + at))
    for at in range(cfg.rows.count):
        tile, size = load(x, cfg, at)
        scale_in_place(tile, size, cfg=cfg)
        # one more
        nisa.tensor_scalar(dst=tile[0:size, :], data=tile[0:size, :], op0=nl.add, operand0=columns[1][0:size, 0:1])
        nisa.dma_copy(dst=out[cfg.rows.start(at) : cfg.rows.start(at) + size, 0 : cfg.width], src=tile[0:size, :])
    return out


def column(cfg, value):
    made = nl.ndarray((cfg.rows.tile, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=made, value=value)
    return made
"""
FILES = {
    "library/__init__.py": "",
    "library/kernels/__init__.py": "",
    "library/common/__init__.py": "",
    "library/common/kinds.py": "from enum import Enum\n\n\nclass Kind(Enum):\n    ONCE = 0\n    TWICE = 1\n",
    "library/common/tiles.py": '''from dataclasses import dataclass
from typing import Optional

import nki.language as nl


def ceil(a, b):
    return (a + b - 1) // b


@dataclass
class Tiles(nl.NKIObject):
    """Of one dimension."""

    size: int
    tile: int
    count: int
    inner: "Optional[Tiles]" = None

    @staticmethod
    def of(size: int, tile: int, inner: "Tiles" = None) -> "Tiles":
        count = ceil(size, tile)
        return Tiles(size, tile, count, inner)

    def start(self, at):
        """Of one tile."""
        return at * self.tile

    def bound(self, at):
        left = self.size - self.start(at)
        return min(left, self.tile)

    def has_inner(self):
        return self.inner != None  # noqa: E711

    @property
    def first(self):
        return min(self.size, self.tile)
''',
    "library/kernels/scaled_parameters.py": '''from dataclasses import dataclass

import nki.language as nl

from ..common.kinds import Kind
from ..common.tiles import Tiles

LANES = 128


@dataclass
class Config(nl.NKIObject):
    rows: Tiles
    width: int
    scale: float = 0.0
    scaled: bool = False
    group: int = 1


def factor_of(kind):
    """By name."""
    if kind == Kind.ONCE:
        return 1.0
    elif kind == Kind.TWICE:
        return 2.0
    # any other
    return 3.0


def group_of(width):
    group = width
    while width % group or group > LANES // 4:
        group -= 1
    return group, group > 1


def build_config(x, kind, offset):
    if offset is not None:
        return Config(Tiles.of(offset, LANES), x.shape[1])
    inner = Tiles.of(LANES, 64)
    rows = Tiles.of(x.shape[0], LANES, inner=inner)
    group, is_grouped = group_of(x.shape[1])
    return Config(rows=rows, width=x.shape[1], scale=factor_of(kind), scaled=is_grouped, group=group)
''',
    "library/kernels/scaled_work.py": """import nki.isa as isa
import nki.language as nl

from .scaled_parameters import LANES


def load(x, cfg, at):
    size = cfg.rows.bound(at)
    tile = nl.ndarray((LANES, cfg.width), dtype=x.dtype, buffer=nl.sbuf)
    # some of its rows
    isa.dma_copy(dst=tile[0:size, 0 : cfg.width], src=x[cfg.rows.start(at) : cfg.rows.start(at) + size, 0 : cfg.width])
    return tile, size


def scale_in_place(tile, size, cfg):
    if not cfg.scaled:
        return
    assert cfg.rows.has_inner() and cfg.rows.first == LANES
    isa.tensor_scalar(dst=tile[0:size, :], data=tile[0:size, :], op0=nl.multiply, operand0=cfg.scale)
""",
}


def module(kernel: str = KERNEL, files: Mapping[str, str] = FILES) -> KernelModule:
    return parse_kernel(kernel, ("kernel",), Surroundings("kernel", MODULE, tuple(files.items())))


Traced = Callable[..., Program]


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    """Imports the kernel's text among its files, and traces it."""
    nki_sim.install()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def forget() -> None:
        for name in [each for each in sys.modules if each.partition(".")[0] == "library"]:
            del sys.modules[name]

    def of(kernel: str, *arrays: np.ndarray, files: Mapping[str, str] = FILES) -> Program:
        forget()
        for path, text in {**files, f"{MODULE.replace('.', '/')}.py": kernel}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        __import__(MODULE)
        return nki_sim.trace(sys.modules[MODULE].kernel, *(arrays or (X,)))

    yield of
    forget()


def comments(source: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return Counter(token.string.strip() for token in tokens if token.type == tokenize.COMMENT)


def same(traced: Traced, before: str, after: str, *arrays: np.ndarray, files: Mapping[str, str] = FILES) -> None:
    one, other = traced(before, *arrays, files=files), traced(after, *arrays, files=files)
    assert np.array_equal(one.template_ids, other.template_ids)
    assert one.templates == other.templates or [x.opcode for x in one.templates] == [x.opcode for x in other.templates]


def body(text: str) -> str:
    return text.partition("def kernel")[2].partition("\ndef column")[0]


def taken(source: KernelModule) -> KernelModule:
    keys = [site.key for site in NORMALIZE.analyze(source, CONTEXT) if "if:" in site.key]
    assert len(keys) == 1, keys
    return source.changed(NORMALIZE.apply(source, keys[0]))


def test_what_stands_in_helpers_and_objects_is_written_out(traced):
    made = normalized(module()).text
    assert normalized(module(made)).text == made, "normalizing twice changes something"
    assert comments(KERNEL) <= comments(made)
    assert not any(f"{name}(" in body(made) for name in ("load", "scale_in_place", "build_config", "column"))
    assert "# some of its rows" in made
    same(traced, KERNEL, made)


def test_at_its_shapes_no_object_is_left_and_other_transforms_see_the_loop(traced):
    source = module()
    made = taken(source)
    assert not any(word in body(made.text) for word in ("cfg.", "rows.", "Config", "Tiles", "if ", "column(")), (
        made.text
    )
    for transform in (GroupLoads(), SplitColumns()):
        assert transform.analyze(source, CONTEXT) == ()
        assert transform.analyze(made, CONTEXT), made.text
    same(traced, KERNEL, made.text)
    again = [site.key for site in NORMALIZE.analyze(module(made.text), CONTEXT)]
    assert not any("if:" in key for key in again), again


WHOLE = {
    "something needs it": (
        "    for at in range(cfg.rows.count):",
        "    seen = [cfg]\n    for at in range(cfg.rows.count):",
    ),
    "it makes more of itself": ("", "    def __post_init__(self):\n        self.width = self.width // 1\n\n"),
    "its fields are made for each": ("", "    names: list = field(default_factory=list)\n\n"),
    "it is compared with another": ("    columns = []\n", "    columns = []\n    assert cfg != 3\n"),
}


@pytest.mark.parametrize("why", WHOLE)
def test_an_object_stays_where(traced, why):
    old, new = WHOLE[why]
    kernel, files = KERNEL.replace(old, new) if old else KERNEL, dict(FILES)
    if not old:
        path = "library/kernels/scaled_parameters.py"
        files[path] = files[path].replace("import dataclass\n", "import dataclass, field\n")
        files[path] = files[path].replace("    group: int = 1\n", f"    group: int = 1\n{new}")
    made = taken(module(kernel, files)).text
    assert "cfg = Config(" in body(made), made
    same(traced, kernel, made, files=files)


EARLIER = """    last = Tiles.of(128, 128)
    for at in range(cfg.rows.count):
        now = Tiles.of(at + 1, 128)
        nisa.memset(dst=columns[0], value=1.0 * last.size)
        last = now
"""


def test_an_object_of_the_iteration_before_stays_that_one(traced):
    kernel = KERNEL.replace("    for at in range(cfg.rows.count):\n", EARLIER, 1) + ""
    kernel = kernel.replace("import build_config\n", "import build_config\nfrom ..common.tiles import Tiles\n")
    same(traced, kernel, taken(module(kernel)).text)
    values = [each for each in traced(kernel).templates if each.opcode == "memset"]
    assert values


def test_a_call_is_not_moved_before_what_it_changes(traced):
    more = "\n\ndef grown(columns):\n    made = columns[0]\n    columns.insert(0, made)\n    return made\n"
    pair = "        nisa.tensor_copy(dst=columns[1], src=grown(columns))\n"
    kernel = KERNEL.replace(
        "    for at in range(cfg.rows.count):\n",
        f"    for at in range(2):\n{pair}    for at in range(cfg.rows.count):\n",
    )
    kernel += more
    made = normalized(module(kernel)).text
    assert "grown(columns)" in body(made)
    same(traced, kernel, made)


LEAVES = {
    "one after the other": """
    if a > 2:
        return 1
    if b > 1:
        return 2
    return a + b
""",
    "in else": """
    if a > 2:
        c = a
    else:
        return b
    c += 1
    return c
""",
    "of three": """
    if a == 0:
        return b
    elif a == 1:
        c = 3
    elif a == 2:
        return 7
    else:
        c = 4
    return c * 2
""",
    "one in the other": """
    if a > 1:
        if b > 1:
            return a
        return b
    return -1
""",
    "two values": """
    if a > 1:
        return b, a
    a, b = b, a
    return a, b + 1
""",
    "sometimes none": """
    if a > 1:
        return b
    if b:
        a = 3
""",
    "nothing": """
    if a > 1:
        return
    seen.append(b)
""",
    "or it fails": """
    if a > 1:
        if b:
            raise ValueError
        return 3
    return a
""",
    "lengths that differ": """
    if a > 1:
        return a, b
    return a, b, 1
""",
    "on one line": """
    if a: return b
    return 5
""",
}


def behaviour(text: str) -> list[object]:
    seen: list[object] = []
    names: dict[str, Any] = {"seen": seen}
    exec(text, names)
    came: list[object] = []
    for a in range(4):
        for b in range(4):
            try:
                came.append(names["f"](a, b))
            except ValueError:
                came.append("fails")
    return [came, seen]


@pytest.mark.parametrize("how", LEAVES)
def test_a_function_that_leaves_early_has_one_way_out(how):
    function = cst.parse_module(f"def f(a, b):{LEAVES[how]}").body[0]
    assert isinstance(function, cst.FunctionDef)
    one = with_one_exit(function, list(function.body.body))
    assert one is not None and not any("return" in cst.Module([each]).code for each in one.body)
    last = [cst.SimpleStatementLine([cst.Return(one.result)])] if one.result is not None else []
    made = function.with_changes(body=cst.IndentedBlock([*one.body, *last]))
    assert behaviour(cst.Module([made]).code) == behaviour(f"def f(a, b):{LEAVES[how]}")


@pytest.mark.parametrize(
    "text",
    [
        "def f(a):\n    for i in range(a):\n        if i:\n            return i\n    return 0\n",
        "def f(a):\n    if a:\n        if a > 1:\n            return 1\n        a = 5\n"
        + "    a += 1\n" * 3
        + "    return a\n",
    ],
    ids=["from a loop", "from a branch that may go on"],
)
def test_one_that_leaves_from_elsewhere_stays(text):
    function = cst.parse_module(text).body[0]
    assert isinstance(function, cst.FunctionDef)
    assert with_one_exit(function, list(function.body.body)) is None
