"""Texts of kernels that hide what they do; `test_hostile_kernels.py` says what of them must not change."""

from __future__ import annotations

from tests.transforms.running import HEADER

MADE = {
    "T": "t = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)",
    "U": "u = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)",
    "C": "c = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)",
    "O": "nisa.dma_copy(dst=out, src=u)",
}
"""What a line of one letter stands for."""

BEFORE = """
import operator
from contextlib import nullcontext
from types import SimpleNamespace

GT = None
def clear():
    for a in BOX:
        nisa.memset(dst=a, value=0.0)
def clear2():
    nisa.memset(dst=clear.tile, value=0.0)
def clear3():
    nisa.memset(dst=GT, value=0.0)
def remember(a):
    BOX.append(a)
def same(a):
    return a
W = 64
WL = [64]
NEG = -32
NEG2 = -32
H = 128
BOX = []
class CFG:
    w = 64
def bump():
    global W
    W = 192 - W
    WL[0] = 192 - WL[0]
def halve():
    global H
    H = 64
def W2():
    global H
    H = 128
S = -8
NS = -8
def MN(a, b):
    return max(a, b) - 64
def help2(u, t, seen=[]):
    nisa.activation(dst=u, op=nl.exp, data=t)
class Obj:
    def __init__(self, a):
        self.a = a
    def wipe(self):
        nisa.memset(dst=self.a, value=0.0)
    def put(self, a):
        self.a = a
def puts(o, a):
    o.a = a
def putl(o, a):
    o.append(a)
def gen(a):
    yield nisa.memset(dst=a, value=0.0)"""


def written(statements: str) -> str:
    """The kernel of these statements, which stores 128 rows and columns to `out` or returns something itself."""
    arguments = "x, y, z" if "src=z" in statements else "x, y"
    lines = [
        f"@nki.jit\ndef kernel({arguments}):",
        "    out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)",
    ]
    for line in (*statements.strip("\n").split("\n"), "return out"):
        space = " " * (4 + len(line) - len(line.lstrip()))
        lines.append(space + MADE.get(line.strip(), line.strip()))
    return HEADER + BEFORE + "\n\n" + "\n".join(lines) + "\n"


def copied(made: str, wrote: str) -> str:
    """A tile is copied, written under another name, and its copy used."""
    copy = "nisa.dma_copy(dst=t, src=x[0:128, 0:128])\nnisa.tensor_copy(dst=c, src=t)"
    return written("\n".join(("T\nU\nC", made, copy, wrote, "nisa.activation(dst=u, op=nl.exp, data=c)", "O")))


_OTHER_NAMES = {
    "for over list": ("", "for a in [t]:\n    nisa.memset(dst=a, value=0.0)"),
    "for over tuple var": ("held = (t,)", "for a in held:\n    nisa.memset(dst=a, value=0.0)"),
    "list item": ("box = [None]\nbox[0] = t", "nisa.memset(dst=box[0], value=0.0)"),
    "dict item": ("box = {}\nbox['a'] = t", "nisa.memset(dst=box['a'], value=0.0)"),
    "dict get name": ("box = {}\nbox['a'] = t", "a = box['a']\nnisa.memset(dst=a, value=0.0)"),
    "extend": ("box = []\nbox.extend([t])", "nisa.memset(dst=box[0], value=0.0)"),
    "insert": ("box = []\nbox.insert(0, t)", "nisa.memset(dst=box[0], value=0.0)"),
    "walrus": ("if (a := t) is not None:\n    pass", "nisa.memset(dst=a, value=0.0)"),
    "walrus2": ("assert (a := t) is not None", "nisa.memset(dst=a, value=0.0)"),
    "default arg": ("def f(a=t):\n    nisa.memset(dst=a, value=0.0)", "nl_x = f()"),
    "closure": ("def f():\n    nisa.memset(dst=t, value=0.0)", "f()"),
    "lambda": ("f = lambda: nisa.memset(dst=t, value=0.0)", "f()"),
    "with": ("with nullcontext(t) as a:\n    pass", "nisa.memset(dst=a, value=0.0)"),
    "namespace": ("ns = SimpleNamespace()\nns.a = t", "nisa.memset(dst=ns.a, value=0.0)"),
    "global box": ("BOX.append(t)", "nisa.memset(dst=BOX[-1], value=0.0)"),
    "global box helper": ("BOX.append(t)", "clear()"),
    "global box helper2": ("BOX[:] = [t]", "clear()"),
    "helper remembers": ("remember(t)", "clear()"),
    "function attr": ("clear.tile = t", "clear2()"),
    "starred": ("a, *rest = (t, 1)", "nisa.memset(dst=a, value=0.0)"),
    "starred2": ("n, *rest = (1, t)", "nisa.memset(dst=rest[0], value=0.0)"),
    "iter": ("it = iter([t])", "a = next(it)\nnisa.memset(dst=a, value=0.0)"),
    "zip": ("", "for a, b in zip([t], [1]):\n    nisa.memset(dst=a, value=0.0)"),
    "enumerate": ("", "for i, a in enumerate([t]):\n    nisa.memset(dst=a, value=0.0)"),
    "match": ("match [t]:\n    case [a]:\n        pass", "nisa.memset(dst=a, value=0.0)"),
    "comp": ("box = [a for a in (t,)]", "nisa.memset(dst=box[0], value=0.0)"),
    "identity": ("a = same(t)", "nisa.memset(dst=a, value=0.0)"),
    "identity2": ("a = getattr(t, 'reshape')((128, 128))", "nisa.memset(dst=a, value=0.0)"),
    "view": ("a = t.reshape((128, 2, 64))", "nisa.memset(dst=a[0:128, 0, 0:64], value=0.0)"),
    "slice view": ("a = t[0:128, 0:64]", "nisa.memset(dst=a, value=0.0)"),
    "setdefault": ("box = {}\nbox.setdefault(0, t)", "nisa.memset(dst=box[0], value=0.0)"),
    "list mult": ("box = [t] * 2", "nisa.memset(dst=box[1], value=0.0)"),
    "dict lit": ("box = {'a': t}", "nisa.memset(dst=box['a'], value=0.0)"),
    "dict update": ("box = {}\nbox.update(a=t)", "nisa.memset(dst=box['a'], value=0.0)"),
    "nonlocal": ("a = None\ndef f():\n    nonlocal a\n    a = t\nf()", "nisa.memset(dst=a, value=0.0)"),
    "globalname": ("global GT\nGT = t", "clear3()"),
    "class": ("class Box:\n    a = t", "nisa.memset(dst=Box.a, value=0.0)"),
    "try": ("try:\n    a = t\nfinally:\n    pass", "nisa.memset(dst=a, value=0.0)"),
    "ifexp": ("a = t if x.shape[0] else None", "nisa.memset(dst=a, value=0.0)"),
}
"""How the tile gets another name, and what is done by it."""

ALIASES = {f"also called {name}": copied(*parts) for name, parts in _OTHER_NAMES.items()}
