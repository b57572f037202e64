"""Functions of nki.language and views in normal form: the same instructions on the same operands, one by one."""

from __future__ import annotations

import re

import numpy as np
import pytest

from accelopt_core.transforms.base import parse_kernel
from accelopt_core.transforms.kernel_code import KernelCode, Kind
from accelopt_core.transforms.normalize import normalized
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, random, run, trace

X = random(32, 12, 16)


def kernel(body: str) -> str:
    lines = [
        "C, H, W = x.shape",
        "out = nl.ndarray((C, H, W), dtype=x.dtype, buffer=nl.shared_hbm)",
        "tile = nl.ndarray((C, H, W), dtype=x.dtype, buffer=nl.sbuf)",
        "nisa.dma_copy(dst=tile, src=x)",
        "nisa.dma_copy(dst=out, src=tile)",
        *body.strip("\n").splitlines(),
        "return out",
    ]
    return f"{HEADER}@nki.jit\ndef kernel(x):\n" + "".join(f"    {line}\n" for line in lines)


def normal(source: str) -> str:
    made = normalized(parse_kernel(source)).tree.code
    assert normalized(parse_kernel(made)).tree.code == made, "normalizing twice changes something"
    return made


def issued(source: str, *arrays: np.ndarray) -> list[tuple[object, ...]]:
    """Every instruction with what it is and where it reads and writes, buffers by the order in which they are made."""
    program = trace(source, *arrays)
    found = []
    for index, number in enumerate(program.template_ids):
        template, start = program.templates[number], int(program.operand_starts[index])
        places = program.operand_data[start : start + len(template.operands)]
        operands = [(o.pattern, o.dtype, o.access) for o in template.operands]
        found.append((template.opcode, template.engine, template.attrs, operands, places.tolist()))
    return found


def check_same(body: str) -> str:
    source = kernel(body)
    made = normal(source)
    assert issued(made, X) == issued(source, X)
    np.testing.assert_array_equal(run(made, X), run(source, X))
    assert proved_on(made, source, X).equivalence.finding is Finding.HELD
    return made


def unread(made: str) -> list[str]:
    """Statements that no transform understands."""
    code = KernelCode(parse_kernel(made))
    return [code.module.code_for_node(s.node).strip() for s in code.statements() if s.kind is Kind.OPAQUE]


SPELLINGS = {
    "a window's sum by an access pattern": """
pool = 2
windows = tile.ap([[H * W, C], [pool * W, H // pool], [pool, W // pool], [W, pool], [1, pool]])
# over the last two
total = nl.sum(windows, axis=[3, 4])
mean = nl.multiply(total, 1.0 / (pool * pool), dtype=nl.float32)
nisa.dma_copy(dst=out[0:C, 0 : H // pool, 0 : W // pool], src=mean)
""",
    "sizes kept, counted from the end": """
most = nl.max(tile, axis=-1, keepdims=True)
least = nl.min(tile, axis=(2,), keepdims=False)
nisa.dma_copy(dst=out[0:C, 0:H, 0:1], src=most)
nisa.dma_copy(dst=out[0:C, 0:H, 1], src=least)
""",
    "a mean of all that a partition has": """
average = nl.mean(tile, axis=[1, 2])
nisa.dma_copy(dst=out[0:C, 0, 0:1], src=average)
""",
    "calls within calls": """
most = nl.max(tile, axis=[1, 2], dtype=nl.float32)
y = nl.exp(nl.subtract(nl.copy(tile), most))
nisa.dma_copy(dst=out, src=nl.multiply(2.0, y))
""",
    "a number first": """
y = nl.subtract(1.0, tile)
z = nl.maximum(tile, nl.negative(y))
nisa.dma_copy(dst=out, src=nl.reciprocal(nl.square(z)))
""",
    "views by their names": """
rows = x[0:C, 2:6, 0:W]
part = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=part, src=rows)
upper = part[0:C, 0:2, 0:W]  # the first two
y = nl.ndarray(upper.shape, dtype=upper.dtype, buffer=nl.sbuf)
nisa.tensor_copy(dst=y, src=upper)
nisa.dma_copy(dst=out[0:C, 0:2, 0:W], src=y)
""",
    "a second name": """
same = tile  # the tile itself
for h in range(H):
    row = same[0:C, h, 0:W]
    again = row
    total = nl.sum(again, axis=1)
    result = total
    # kept
    stored = result
    nisa.dma_copy(dst=out[0:C, h, 0:1], src=stored)
""",
    "a view in a loop": """
for h in range(H):
    row = tile[0:C, h, 0:W]
    total = nl.sum(row, axis=1)
    nisa.dma_copy(dst=out[0:C, h, 0:1], src=total)
""",
    "another shape of one tile": """
flat = tile.reshape((C, H * W))
y = nl.relu(flat)
nisa.dma_copy(dst=out, src=y.reshape((C, H, W)))
""",
    "turned and multiplied": """
left = tile[0:C, 0, 0:W]
products = nl.matmul(left, left, transpose_x=True)
turned = nl.transpose(nl.copy(left))
nisa.dma_copy(dst=out[0:W, 0, 0:W], src=nl.copy(products))
nisa.dma_copy(dst=out[0:W, 1:3, 0:W], src=nl.copy(turned))
""",
}


@pytest.mark.parametrize("body", SPELLINGS.values(), ids=SPELLINGS)
def test_the_same_instructions_are_issued(body):
    made = check_same(body)
    assert not unread(made)
    assert all(comment in made for comment in re.findall("#.*", body))
    assert not re.search(r"\b(same|again|row|result|stored|upper|rows)\b", made)


STAYS = {
    "how many dimensions an argument has does not show": (
        "y = nl.exp(z)\nnisa.dma_copy(dst=out, src=y)", "C, H, W = x.shape", "C, H, W = 32, 12, 16",
        "z = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)\nnisa.dma_copy(dst=z, src=x)\n", "y = nl.exp(z)",
    ),
    "a name for two views": (
        "view = tile[0:C, 0:1, 0:W]\nif H > 1:\n    view = tile[0:C, 1:2, 0:W]\ny = nl.exp(view)\n"
        "nisa.dma_copy(dst=out[0:C, 0:1, 0:W], src=y)", "", "", "", "y = nl.exp(view)",
    ),
    "which axis does not show": (
        "axis = 2\ny = nl.sum(tile, axis=axis)\nnisa.dma_copy(dst=out[0:C, 0:H, 0], src=y)", "", "", "", "y = nl.sum(",
    ),
    "a loop over tiles": (
        "for each in [tile, tile]:\n    y = nl.multiply(tile, each)\n    nisa.dma_copy(dst=out, src=y)",
        "", "", "", "y = nl.multiply(tile, each)",
    ),
    "a loop over tiles and their numbers": (
        "for k, each in enumerate([tile, tile]):\n    y = nl.multiply(tile, each)\n    nisa.dma_copy(dst=out, src=y)",
        "", "", "", "y = nl.multiply(tile, each)",
    ),
    "what is carried from iteration to iteration": (
        "total = nl.copy(tile)\nfor k in range(3):\n    total = nl.add(total, tile)\n"
        "nisa.dma_copy(dst=out, src=total)", "", "", "", "total = nl.add(total, tile)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STAYS)
def test_what_does_not_show_stays(case):
    body, old, new, before, stays = STAYS[case]
    source = kernel(before + body)
    if old:
        assert old in source
        source = source.replace(old, new)

    made = normal(source)

    assert stays in made
    np.testing.assert_array_equal(run(made, X), run(source, X))


def test_a_view_of_what_has_changed_since_is_not_moved():
    """Its name is bound where the loop's variable meant something else."""
    body = """
for h in range(2):
    row = tile[0:C, h, 0:W]
for h in range(3):
    nisa.dma_copy(dst=out[0:C, h, 0:W], src=row)
"""
    made = check_same(body)
    assert "src=row" in made
