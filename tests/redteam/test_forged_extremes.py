"""More forged programs: what is said twice, said by numbers that are none, or said a hundred thousand times."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from accelopt_core.evaluation import Measured, explain
from nki_sim.encoding.program_file import MAGIC
from tests.e2e import kernels
from tests.redteam.forged_programs import before_all, every, on
from tests.redteam.forgeries import Change, Forgery, again, forged
from tests.redteam.test_forged_programs import assert_refused, judged
from tests.slow import without


def header_with(old: str, new: str) -> Change:
    """The header's text with something else in place of `old`, once."""

    def change(forgery: Forgery) -> bytes:
        data = forgery.dumps()
        length = int.from_bytes(data[8:16], "little")
        text = data[16 : 16 + length].decode()
        assert old in text
        text = text.replace(old, new, 1)
        return b"".join((MAGIC, len(text.encode()).to_bytes(8, "little"), text.encode(), data[16 + length :]))

    return change


def array(name: str, like: str, shape: list[int] | None = None) -> Change:
    """One array more, or another in place of one, with the contents of `like`."""

    def change(forgery: Forgery) -> None:
        contents = forgery.arrays[like].copy()
        forgery.arrays[name] = contents if shape is None else contents.reshape(shape)

    return change


def loop(nth: int, *fields: tuple[int, Any]) -> Change:
    """[kind, start, end, counter, lower, upper, step, next]."""

    def change(forgery: Forgery) -> None:
        for number, value in fields:
            forgery.header["loops"][nth][number] = value

    return change


def around_the_store(passes: int) -> Change:
    """The last instruction, which stores the result, in a loop of its own."""

    def change(forgery: Forgery) -> None:
        last = len(forgery.arrays["template_ids"])
        counter = forgery.header["loops"][0][3]
        forgery.header["loops"].append(["for", last - 1, last, counter, [0, None], [passes, None], 1, -1])

    return change


def answers_of_seed(seed: int) -> Change:
    """The result lies there before the first instruction, and is not computed."""

    def change(forgery: Forgery) -> None:
        namespace: dict[str, Any] = {}
        exec(kernels.REFERENCE, namespace)
        namespace.update(P=128, N=512, T=1)
        np.random.seed(seed)
        forgery.constant(forgery.header["outputs"][0][0], namespace["forward"](*namespace["get_inputs"]()))
        around_the_store(0)(forgery)

    return change


def returned(nth: int) -> Change:
    """An input in place of the result."""
    return on(lambda f: f.header.__setitem__("outputs", [again(f.header["inputs"][nth])]))


def index(kind: str, stride: int, dim: int, extent: int) -> Change:
    """The load of the first input starts where a tile says that holds 1, 2, 3 and so on."""

    def change(forgery: Forgery) -> None:
        operands = forgery.template("dma_copy")[3]
        operands[1][7] = [kind, stride, dim, extent]
        rows, whole = forgery.rows("dma_copy"), forgery.buffer("iota", "dst")
        pattern = [[512, 128], [1, 1]] if kind == "vector" else [[512, 1], [1, 1]]
        forgery.add_operand("dma_copy", ["src.index", "r", "sbuf", "int32", pattern, 0, 512, None, 0], whole)
        assert rows

    return change


def a_peer_of_itself(times: int) -> Change:
    def change(forgery: Forgery) -> None:
        inside = np.frombuffer(forgery.dumps(), np.uint8)
        for number in range(times):
            forgery.arrays[f"peer {number}"] = inside

    return change


def a_peer_of_a_peer(forgery: Forgery) -> None:
    a_peer_of_itself(1)(forgery)
    a_peer_of_itself(1)(forgery)


REFUSED: dict[str, Change] = {
    # --- said twice, or not as it is written ---
    "a constant by two names": every(
        on(lambda f: f.constant(f.header["outputs"][0][0], np.zeros((128, 512), np.float32))),
        on(lambda f: f.arrays.__setitem__(
            f"constant 0{f.header['outputs'][0][0]}", np.zeros(128 * 512 * 4, np.uint8))),
    ),
    "a constant by digits of another script": on(
        lambda f: f.arrays.__setitem__("constant \u0663", np.zeros(128 * 512 * 4, np.uint8))
    ),
    "rows in a column": lambda f: array("template_ids", "template_ids", [-1, 1])(f),
    "places in one line": lambda f: array("operand_data", "operand_data", [-1])(f),
    "a number with an exponent": header_with('"version": 5', '"version": 5e0'),
    "a version that is true": header_with('"version": 5', '"version": true'),
    "a number that is none": header_with('"version": 5', '"version": NaN'),
    "a name without end": on(lambda f: f.header.__setitem__("source_file", "a" * 100_000)),
    "a field more": on(lambda f: f.header.__setitem__("tolerance", 1)),
    "a buffer of negative size": on(lambda f: f.header["allocations"][-1].__setitem__(1, [-128, -512])),
    "a buffer of no dimension": on(lambda f: f.header["allocations"][-1].__setitem__(1, [])),
    "a buffer of true elements": on(lambda f: f.header["allocations"][-1].__setitem__(1, [True, True])),
    # --- loops ---
    "a step of nothing": loop(0, (6, 0)),
    "a step beyond all": loop(0, (6, 1 << 60)),
    "a loop that ends before it starts": on(lambda f: f.header["loops"][0].__setitem__(2, 0)),
    "a counter that is a tile": on(lambda f: f.header["loops"][0].__setitem__(3, f.buffer("tensor_copy", "dst"))),
    "a bound beyond its register": loop(0, (5, [1 << 40, None])),
    "a bound that is never loaded": on(
        lambda f: f.header["loops"][0].__setitem__(5, [0, f.add_buffer("register", [1, 1], "int32")])
    ),
    "a while loop without what decides": loop(0, (0, "while"), (7, -1)),
    "a for loop with what decides a while loop": loop(0, (7, 0)),
    "a store that is not executed": around_the_store(0),
    # --- results that are not computed ---
    "the answers of a published seed": answers_of_seed(0),
    "the first input": returned(0),
    "the second input": returned(1),
    # --- places that only the device knows ---
    "rows beyond the tensor": index("vector", 512 * 128, 0, 1 << 40),
    "rows of an extent that is not the tensor's": index("vector", 1, 0, 1),
    "a place beyond the tensor": index("scalar", 1 << 40, 0, 1),
    "an index on the wrong side": index("vector", -512, 0, 128),
    # --- cores ---
    "a core too many": a_peer_of_itself(2),
    "a core of a core": a_peer_of_a_peer,
}  # fmt: skip
"""None of them is a program of the task's sum."""


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    assert_refused(judged(forged(REFUSED[name])))


def edges(count: int) -> Change:
    """The last instruction waits for the first, as often as that."""

    def change(forgery: Forgery) -> None:
        forgery.header["edges"] = [[0, len(forgery.arrays["template_ids"]) - 1]] * count

    return change


def views_in_hbm(count: int) -> Change:
    """So many transfers between views of two tensors, each of which crosses hundreds of others."""

    def change(forgery: Forgery) -> None:
        template = again(forgery.template("dma_copy"))
        buffers = [forgery.add_buffer("private_hbm", [1 << 22]) for _ in range(2)]
        for operand in template[3]:
            operand[2:7] = ["private_hbm", "float32", [[1000, 30], [7, 30]], 0, 0]
        forgery.header["templates"].append(template)
        ids = np.full(count, len(forgery.header["templates"]) - 1)
        places = [np.stack((np.full(count, b), np.arange(count) * step), 1) for b, step in zip(buffers, (3, 5))]
        before_all(forgery, ids, np.stack(places, 1).reshape(-1, 2), np.full(count, 2))

    return change


OFTEN: dict[str, Change] = {
    "a million edges between two instructions": edges(1_000_000),
    "tens of thousands of views that cross": views_in_hbm(60_000),
}


@pytest.mark.parametrize("name", without("a million edges between two instructions", of=OFTEN))
def test_what_is_said_often_is_judged_in_time(name: str) -> None:
    """Whatever the verdict; some of it is harmless."""
    result = judged(forged(OFTEN[name]))
    if not isinstance(result, Measured):
        assert_refused(result)
    assert json.dumps(explain(result))
