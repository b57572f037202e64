"""A tree's text is what libcst prints of it, also where parts of it were printed before."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest

from accelopt_core.transforms.base import AnalysisContext, TransformError, parse_kernel
from accelopt_core.transforms.printing import text_of_module
from accelopt_core.transforms.registry import STEPS

ROOT = Path(__file__).resolve().parents[2]
SEEDS = sorted(ROOT.glob("nkibench_seeds/*/kernel.py"))

ODD = {
    "nothing": "",
    "a comment": "# nothing else\n",
    "no newline at the end": "x = 1\nfor i in range(3):\n    x += i",
    "tabs and comments": "def f(x):\n\n\tif x:\n\t\t# deep\n\t\treturn 1\n\t# and out\n\n\treturn 2\n\n# the end\n",
    "other indents in one file": "if a:\n  b = 1\n  for c in d:\n        e = 2  # deeper\n  f = 3\n",
    "windows": "def f(x):\r\n    for i in x:\r\n        pass\r\n    return i\r\n",
    "branches": "if a:\n    b\nelif c:\n    d\nelse:\n    # nothing\n    e\nfor i in j:\n    k\nelse:\n    m\n",
    "on one line": "for i in j: k; m\nif a: b\nwhile a: pass\n",
    "the others": (
        "@one\n# between\n@two(3)\nclass A(B):\n    x: int = 1\n\n    async def f(self): return 1\n\n"
        "    @property\n    def g(self) -> int:\n        with a as b, c:\n            try:\n                d\n"
        "            except E as e:\n                raise\n            finally:\n                f\n        while g:\n"
        "            h; i\n\nasync def k():\n    async for m in n:\n        o\n    async with p:\n        q\n"
    ),
    "a docstring over lines": 'def f():\n    """One,\n  two.\n    """\n    x = (1,\n  2)\n    return x\n',
}  # fmt: skip


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_whatever_is_written(text: str) -> None:
    module = cst.parse_module(text)
    assert text_of_module(module) == module.code == text
    assert text_of_module(module) == text, "from what was kept"


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.parent.name)
def test_every_change_of_a_seed(path: Path) -> None:
    module = parse_kernel(path.read_text(encoding="utf-8"))
    changed = 0
    for transform in STEPS:
        for site in transform.analyze(module, AnalysisContext()):
            try:
                made = transform.apply(module, site.key)
            except TransformError:
                continue
            assert text_of_module(made) == made.code, (site.transform, site.key)
            changed += 1
    assert changed


def test_an_empty_block_is_printed_as_a_pass() -> None:
    module = cst.parse_module("for i in j:\n    k\n")
    loop = module.body[0]
    assert isinstance(loop, cst.For)
    emptied = module.with_changes(body=[loop.with_changes(body=loop.body.with_changes(body=[]))])
    assert text_of_module(emptied) == emptied.code == "for i in j:\n    pass\n"
