"""A kernel has one hash, whichever Python computes it: a host's is told from ours by no more than its version."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from accelopt_core.candidate import source_hash
from tests.house.structure import ROOT
from tests.interpreters import interpreters
from tests.processes import PATIENCE_S

FORMS = r'''
"""A docstring."""
import a.b as c
from ..d import e
from typing import Literal


@c.jit(1, mode="x")
def kernel(x: int = 1, /, y=-0.0, *rest, z: "str" = u"z", **more) -> None:
    """Another."""
    left, *right = x[1:2, ::3, ...], {**more, 1: 2}, {1, 2}, 1e999, 1e999j, b"\xff"
    print(f"{x!r:>{y}.{z}}" f"a{{b}}{x}d" "e", f"{x = }", f"{x:}", f"", rf"\d{y:%H}", f"{x:{y}}", f"{ {1: 2}[1] }")
    with (c as d, e): pass
    for i in range(4):
        if (n := i) is not None or not y: continue
        else: break
    try: del left[0], right
    except (A, B) as error: raise C from error
    else: assert True, None
    finally: x @= y
    match x:
        case {"a": 1, **rest} | [1, *_] | C(b=2): pass
        case None if y: pass
        case _: pass
    return [i async for i in x if i], lambda a, *, b, c=2: (yield a), "é…\U0001fae9\u0378", x if y else z


class D(E, metaclass=F):
    x: (int)
    async def f(self): await x
'''
HUGE = f"X = 0x{'f' * 6000}\n"
DEEP = f"X = {'-' * 400}1\n"

ELSEWHERE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from accelopt_core.candidate import source_hash
print(json.dumps([source_hash(text) for text in json.load(sys.stdin)]))
"""
SEEDS = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "nkibench_seeds").glob("*/kernel.py"))]
OTHERS = [version for version in ("3.10", "3.11", "3.12", "3.13", "3.14") if interpreters(version)]


def test_the_hashes_that_journals_hold_stay_what_they_are() -> None:
    assert source_hash(FORMS) == "e47266d860d9d84d"
    assert source_hash(HUGE) == "f5b4655649db03e6", "more digits than Python writes"
    assert source_hash(DEEP) == "d7702a08ac6be9b0", "a tree deeper than Python's stack"
    assert source_hash("def kernel(:") == "695e1777fe0451a7"


@pytest.mark.parametrize("version", OTHERS)
def test_every_python_of_this_machine_says_the_same(version: str) -> None:
    """A host's Python, with nothing installed."""
    texts = [*SEEDS, FORMS, HUGE, DEEP]
    python = [str(interpreters(version)[0]), "-I", "-c", ELSEWHERE, str(ROOT)]
    done = subprocess.run(python, input=json.dumps(texts), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [source_hash(text) for text in texts]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="`ast.dump` of later Pythons writes something else")
@pytest.mark.parametrize("text", [each for each in SEEDS if each.isascii()])
def test_what_runs_were_filed_by_before_is_known_still(text: str) -> None:
    from ka_extensions.canonical_source import canonical

    tree = ast.parse(text)
    assert canonical(tree) == ast.dump(tree)


@pytest.mark.parametrize(
    "text",
    [
        *SEEDS,
        FORMS,
        HUGE,
        DEEP,
        "x = 'é'; y = f'{x}'\n",
        "a = 1\r\nb = 2\r\n",
        "if a:\n    b = 1; c = (2,\n  3)\n",
        "\fa = 1\n",
    ],
)
def test_what_is_remembered_of_statements_changes_no_text(text: str) -> None:
    from ka_extensions.canonical_source import canonical

    tree = ast.parse(text)
    for _ in range(2):
        assert canonical(tree, text) == canonical(tree)


def test_a_statement_that_many_kernels_have_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from ka_extensions import canonical_source

    monkeypatch.setattr(canonical_source, "_of_statements", {})
    told: list[ast.AST] = []
    parts = canonical_source._parts_of_node
    monkeypatch.setattr(canonical_source, "_parts_of_node", lambda node: told.append(node) or parts(node))
    line = "    c = a[i * 128 : (i + 1) * 128] + b.view(1, 2, 3)\n"
    for count in (1, 2, 3):
        text = "for i in range(4):\n" + count * line
        canonical_source.canonical(ast.parse(text), text)
        assert sum(isinstance(node, ast.Assign) for node in told) == 1


def test_words_that_no_run_can_tell_are_no_part_of_it_and_all_else_is() -> None:
    same = FORMS.replace("A docstring.", "Other words.").replace("    with (c", "    # a comment\n    with (c")
    assert source_hash(same) == source_hash(FORMS) != source_hash(FORMS.replace("-0.0", "0.0"))
    for one, other in (("f'{x}'", "f'x'"), ("f'{x}a'", "f'{x}' 'b'"), ("[1, 2]", "[12]"), ("True", "1"), ("x", "'x'")):
        assert source_hash(one) != source_hash(other)
    assert source_hash("f'a' 'b' f'{x}' ''") == source_hash("f'ab{x}'")
