"""One program written in four ways is one tree, with the same menu, the same time and the same winner."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest

import nki_sim
from accelopt_core.task import ALONE
from accelopt_core.toolchain import ArgumentSpec, TensorArgument
from infra.prediction.trees import Trees
from nki_sim.dtypes import as_dtype
from nki_sim.encoding.canonical import digest
from nki_sim.machine import TRN2
from nki_sim.migrate.beta1_to_current import migrate_beta1
from nki_sim.program.program import Program
from nki_sim.tracing import repeated
from nki_sim.tracing.session import TensorSpec

nki_sim.install()
ROWS, COLUMNS = 1024, 512
SHAPES = {"x": (ROWS, COLUMNS), "y": (ROWS, COLUMNS), "w": (128, COLUMNS)}

Work = tuple[str, ...]
"""`load t x`, `multiply t a b`, `exp t a`, `scale t a 0.5`, `sum t a`, `max t a`: first what is made."""
KERNELS: dict[str, Sequence[Work]] = {
    "scale by weights": [("load", "a", "x"), ("load", "b", "w"), ("multiply", "r", "a", "b")],
    "gate": [("load", "a", "x"), ("load", "b", "y"), ("sigmoid", "s", "a"), ("multiply", "r", "s", "b")],
    "scaled exponential": [("load", "a", "x"), ("scale", "s", "a", "0.5"), ("exp", "r", "s")],
    "three terms": [
        ("load", "a", "x"), ("load", "b", "y"), ("load", "c", "w"), ("add", "s", "a", "b"), ("multiply", "r", "s", "c"),
    ],
    "difference": [("load", "a", "x"), ("load", "b", "y"), ("subtract", "s", "a", "b"), ("scale", "r", "s", "2.0")],
}  # fmt: skip
_BINARY = ("add", "subtract", "multiply", "maximum")
_HEAD = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n"


def parameters(steps: Sequence[Work]) -> list[str]:
    return list(dict.fromkeys(step[2] for step in steps if step[0] == "load"))


def _where(name: str) -> str:
    return "w[0:128, :]" if name == "w" else f"{name}[i * 128 : (i + 1) * 128, :]"


def _around(steps: Sequence[Work], lines: Sequence[str], before: str = "") -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return (
        f"{_HEAD}{before}@nki.jit\ndef kernel({', '.join(parameters(steps))}):\n"
        f"    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"
        f"    for i in range(x.shape[0] // 128):\n{body}    return out\n"
    )


def _isa(step: Work) -> str:
    kind, made, *given = step
    if kind == "load":
        return f"nisa.dma_copy(dst={made}, src={_where(given[0])})"
    if kind in _BINARY:
        return f"nisa.tensor_tensor(dst={made}, data1={given[0]}, data2={given[1]}, op=nl.{kind})"
    if kind == "scale":
        return f"nisa.tensor_scalar(dst={made}, data={given[0]}, op0=nl.multiply, operand0={given[1]})"
    return f"nisa.activation(dst={made}, op=nl.{kind}, data={given[0]})"


def in_nisa(steps: Sequence[Work]) -> str:
    lines = []
    for step in steps:
        lines += [f"{step[1]} = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)", _isa(step)]
    return _around(steps, [*lines, f"nisa.dma_copy(dst={_where('out')}, src=r)"])


def _nl(step: Work) -> str:
    kind, made, *given = step
    if kind == "load":
        return f"{made} = nl.load({_where(given[0])})"
    return f"{made} = nl.{'multiply' if kind == 'scale' else kind}({', '.join(given)})"


def in_nl(steps: Sequence[Work]) -> str:
    return _around(steps, [*map(_nl, steps), f"nl.store({_where('out')}, value=r)"])


_HELPERS = """def fresh(like):
    return nl.ndarray((128, like.shape[1]), dtype=like.dtype, buffer=nl.sbuf)


def loaded(view):
    made = fresh(view)
    nisa.dma_copy(dst=made, src=view)
    return made


def combined(op, *given):
    made = fresh(given[0])
    if len(given) == 1:
        nisa.activation(dst=made, op=op, data=given[0])
    elif isinstance(given[1], float):
        nisa.tensor_scalar(dst=made, data=given[0], op0=op, operand0=given[1])
    else:
        nisa.tensor_tensor(dst=made, data1=given[0], data2=given[1], op=op)
    return made


"""


def by_helpers(steps: Sequence[Work]) -> str:
    lines = []
    for kind, made, *given in steps:
        if kind == "load":
            lines.append(f"{made} = loaded({_where(given[0])})")
        else:
            op = "multiply" if kind == "scale" else kind
            lines.append(f"{made} = combined(nl.{op}, {', '.join(given)})")
    return _around(steps, [*lines, f"nisa.dma_copy(dst={_where('out')}, src=r)"], _HELPERS)


def from_beta1(steps: Sequence[Work]) -> str:
    def where(name: str) -> str:
        return "w[rows, columns]" if name == "w" else f"{name}[i * 128 + rows, columns]"

    lines = []
    for kind, made, *given in steps:
        op = "multiply" if kind == "scale" else kind
        lines.append(
            f"{made} = nl.load({where(given[0])})" if kind == "load" else f"{made} = nl.{op}({', '.join(given)})"
        )
    body = "".join(f"        {line}\n" for line in [*lines, f"nl.store({where('out')}, value=r)"])
    names = parameters(steps)
    text = (
        "import neuronxcc.nki as nki\nimport neuronxcc.nki.language as nl\n\n\n"
        f"@nki.jit\ndef kernel({', '.join(names)}):\n"
        "    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"
        "    rows = nl.arange(128)[:, None]\n    columns = nl.arange(x.shape[1])[None, :]\n"
        f"    for i in nl.affine_range(x.shape[0] // 128):\n{body}    return out\n"
    )
    given = [np.zeros(SHAPES[name], np.float32) for name in names]
    return migrate_beta1(text, "kernel", given).source


WAYS: tuple[Callable[[Sequence[Work]], str], ...] = (in_nisa, in_nl, by_helpers, from_beta1)
_number = count()


def traced(source: str, presets: Sequence[Sequence[ArgumentSpec]]) -> list[Program]:
    file = f"<spelling {next(_number)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names: dict[str, Any] = {"__name__": "spelling"}
    exec(repeated.compiled(source, file, names), names)
    made = []
    for arguments in presets:
        shapes = [each.shape for each in arguments if isinstance(each, TensorArgument)]
        float32 = as_dtype(np.dtype(np.float32))
        made.append(nki_sim.trace(names["kernel"], *(TensorSpec(shape, float32) for shape in shapes)))
    return made


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_however_it_is_written_it_is_one_program_with_one_menu_and_one_winner(name: str) -> None:
    steps = KERNELS[name]
    presets = [[TensorArgument(SHAPES[each], "float32") for each in parameters(steps)]]
    found = []
    for way in WAYS:
        source = way(steps)
        trees = Trees(traced, TRN2, presets, ALONE)
        job = {"source": source, "seconds": 600.0, "allowed": [], "excluded": [], "enough_us": 0.0, "most_priced": 15}
        menu = trees.answer({**job, "tree": "single steps"})
        assert "no_tree" not in menu, (way.__name__, menu)
        steps_there = {(*each["name"], each["after_us"]) for each in menu["steps"]}
        best = trees.answer({**job, "tree": "way", "begin": True})
        assert best["after_us"] < best["before_us"]
        winner = digest(traced(best["source"], presets)[0])
        found.append((digest(traced(source, presets)[0]), menu["latency_us"], steps_there, best["after_us"], winner))
    for way, other in zip(WAYS[1:], found[1:]):
        assert other == found[0], way.__name__
