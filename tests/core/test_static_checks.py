"""What a kernel's text gives away, and what must never be held against it."""

from __future__ import annotations

import pytest

from accelopt_core.languages.nki.static_checks import RULES, dialect, forbidden
from accelopt_core.languages.python_rules import lines_with_code
from infra.tasks.seed_index import seed_index
from tests.e2e import kernels

HEAD = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\nimport numpy as np\n"


def kernel(statement: str, top: str = "") -> str:
    body = f"    y = nl.ndarray(x.shape, dtype=x.dtype)\n    {statement}\n    return y\n"
    return f"{HEAD}{top}\n@nki.jit\ndef kernel(x):\n{body}"


FOUND = [
    ("unusual-import", kernel("nisa.x(os.environ)", "import os")),
    ("unusual-import", kernel("pass", "from ctypes import *")),
    ("unusual-import", kernel("nisa.x(t())", "from time import perf_counter as t")),
    ("unusual-import", kernel("s.Tracer", "import nki_sim.tracing.session as s")),
    ("outside-access", kernel("z = open('x')")),
    ("outside-access", kernel("z = eval('1')")),
    ("dunder-tricks", kernel("z = x.__class__.__subclasses__()")),
    ("dunder-tricks", kernel("z = x.f_back")),
    ("computed-attribute", kernel("z = getattr(nisa, 'a' + 'b')")),
    ("computed-attribute", kernel("setattr(np, 'square', None)")),
    ("patched-module", kernel("pass", "np.square = abs")),
    ("environment", kernel("pass", "import os as o\no.environ['NEURON_CC_FLAGS'] = '--auto-cast all'")),
    ("environment", kernel("pass", "import os\ngetattr(os, 'putenv')('NEURON_CC_FLAGS', '--auto-cast all')")),
    ("simulator-internals", kernel("z = np.ctypeslib.ctypes")),
    ("behind-a-neighbour", kernel("z = files.getcwd()", "from .helpers import os as files")),
    ("host-computation", kernel("z = np.matmul(x, x)")),
    ("file-formats", kernel("pass", "TABLE = np.load('x.npy')")),
]


@pytest.mark.parametrize(("rule", "source"), FOUND)
def test_each_rule_finds_what_it_is_for(rule: str, source: str) -> None:
    assert rule in {finding.rule for finding in forbidden(source)}


def test_every_rule_is_tried_above() -> None:
    assert {rule for rule, _ in FOUND} == set(RULES)


@pytest.mark.parametrize(
    "source",
    [
        kernel("pass", "# open('x'), os.environ and eval in a comment\nTEXT = 'import os; float16'"),
        kernel("z = getattr(nl, 'add')"),
        kernel("z = np.prod(x.shape)"),
        kernel("compile = 3"),
        kernel("pass", "import os\nimport time")
        + "if __name__ == '__main__':\n    print(time.time(), open(os.devnull))\n",
        kernels.SLOW,
        kernels.FAST,
        *(seed.kernel_source for seed in seed_index()),
    ],
)
def test_honest_text_is_left_alone(source: str) -> None:
    assert forbidden(source) == []


def test_lines_of_code_are_told_from_words_and_from_what_is_no_python() -> None:
    assert forbidden("def kernel(:") == [] and lines_with_code("def kernel(:") == frozenset()
    code = lines_with_code('"""doc"""\n\n# remark\nx = f(\n    1,\n)\n"text"\n')
    assert code == {4, 5, 6}


def test_a_note_says_which_nki_rejects_what() -> None:
    assert dialect(kernel("z = nl.dynamic_range(3)"))[0].message.endswith(", from NKI 0.7")
    assert dialect(kernel("z = (i for i in x)"))[0].message.endswith(", up to NKI 0.6")
    assert dialect(kernel("for i in range(3): pass")) == []
