"""Inputs that no draw changes are read, shortcuts that cancel are refused, and an excuse has a size."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Evaluation, Incorrect, Measured, explain
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import Task
from infra.tasks.seed_index import task_from_text
from tests.mutations.judging import toolchain
from tests.redteam.row_kernels import HONEST, LICENCES, SHORTCUTS, each, task
from tests.redteam.row_kernels import kernel as row_kernel
from tests.slow import quick

REFERENCE = """
import numpy as np

R, C = 128, 64


def get_inputs():
    x = np.random.normal(size=(R, C)).astype(np.float32)
    return [x, {value}]


def forward(x, m):
    return {formula}
"""

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, m):
    R, C = x.shape
    P = m.shape[0]
    out = nl.ndarray((P, C), dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray((R, C), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    u = nl.ndarray(m.shape, dtype=m.dtype, buffer=nl.sbuf)
    LOADED
    w = nl.ndarray(m.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=w, src=u)
    v = nl.ndarray((P, C), dtype=nl.float32, buffer=nl.sbuf)
    COMPUTED
    nisa.dma_copy(dst=out, src=v)
    return out
"""

LOADED = "nisa.dma_copy(dst=u, src=m)"
MULTIPLIED = ("nisa.tensor_tensor(dst=v, data1=t, data2=w, op=nl.multiply)",)
ADDED = ("nisa.tensor_tensor(dst=v, data1=t, data2=w, op=nl.add)",)
WHERE_POSITIVE = ("nisa.tensor_scalar(dst=w, data=w, op0=nl.greater, operand0=0.0)", *MULTIPLIED)
PER_ROW = ("nisa.tensor_scalar(dst=v, data=t, op0=nl.multiply, operand0=w)",)
NEGATED = ("nisa.tensor_scalar(dst=w, data=w, op0=nl.multiply, operand0=-2.0, op1=nl.add, operand1=1.0)", *PER_ROW)
BEFORE_LENGTH = (
    "nisa.iota(dst=v, pattern=[[1, C]], channel_multiplier=0)",
    "nisa.tensor_scalar(dst=v, data=v, op0=nl.less, operand0=w)",
    "nisa.tensor_tensor(dst=v, data1=t, data2=v, op=nl.multiply)",
)
GATHERED = ("nisa.dma_copy(dst=v, src=x.ap([[C, P], [1, C]], vector_offset=u, indirect_dim=0))",)


@dataclass(frozen=True)
class Unmoved:
    """A task whose second input is the same in every draw of the reference."""

    value: str
    """In Python, as get_inputs() gives it."""
    formula: str
    computed: tuple[str, ...]
    usual: str
    """A line that makes the same without reading it."""
    changes: tuple[str, ...]
    """What may be done to what was loaded, so that it stays as it is in every draw of the reference."""

    @property
    def task(self) -> Task:
        return task_from_text(REFERENCE.format(value=self.value, formula=self.formula), "unmoved", "unmoved")

    def kernel(self, *loaded: str) -> str:
        lines = {"LOADED": loaded or (LOADED,), "COMPUTED": self.computed}
        source = KERNEL
        for name, instead in lines.items():
            source = source.replace(f"    {name}\n", "".join(f"    {line}\n" for line in instead))
        return source

    def attacks(self) -> Iterator[tuple[str, ...]]:
        yield (self.usual,)
        if "memset" in self.usual:
            yield self.usual, "nisa.dma_copy(dst=u[0 : P // 2], src=m[0 : P // 2])"
            yield LOADED, self.usual.replace("dst=u,", "dst=u[0:1, 0:1],")
            yield LOADED, "nisa.dma_copy(dst=u[1:P], src=m[0 : P - 1])"
        yield from ((LOADED, change) for change in self.changes)


def filled(value: float) -> str:
    return f"nisa.memset(dst=u, value={value})"


def changed(op: str, operand: float) -> str:
    return f"nisa.tensor_scalar(dst=u, data=u, op0=nl.{op}, operand0={operand})"


ABSOLUTE = "nisa.activation(dst=u, op=nl.abs, data=u)"

UNMOVED = {
    "a mask of ones, of integers": Unmoved(
        "np.ones((R, C), np.int32)", "x * m", MULTIPLIED, filled(1), (changed("maximum", 1), changed("bitwise_or", 1))
    ),
    "a mask of ones, of bytes": Unmoved(
        "np.ones((R, C), np.uint8)", "np.where(m != 0, x, 0)", MULTIPLIED, filled(1), (changed("maximum", 1),)
    ),
    "a mask of ones, of float32": Unmoved(
        "np.ones((R, C), np.float32)", "np.where(m > 0, x, 0)", WHERE_POSITIVE, filled(1.0),
        (changed("maximum", 1.0), changed("add", 0.5)),
    ),
    "a mask to be added": Unmoved(
        "np.zeros((R, C), np.float32)", "x + m", ADDED, filled(0.0),
        (changed("minimum", 0.0), changed("multiply", 1e-3), changed("multiply", -1.0)),
    ),
    "lengths of C": Unmoved(
        "np.full((R, 1), C, np.int32)", "np.where(np.arange(C) < m, x, 0)", BEFORE_LENGTH, filled(64),
        (changed("maximum", 64), changed("maximum", 60), changed("bitwise_and", 64)),
    ),
    "two lengths of C, the first of which need not be the least": Unmoved(
        "np.full((R, 2), C, np.int32)", "np.where(np.arange(C) < m.min(axis=1, keepdims=True), x, 0)",
        ("nisa.tensor_tensor(dst=w[:, 0:1], data1=w[:, 0:1], data2=w[:, 1:2], op=nl.minimum)", "w = w[:, 0:1]",
         *BEFORE_LENGTH), filled(64), ("nisa.tensor_copy(dst=u[:, 1:2], src=u[:, 0:1])",),
    ),
    "where a part begins and ends": Unmoved(
        "np.tile(np.array([0, C], np.int32), (R, 1))",
        "np.where((np.arange(C) >= m[:, :1]) & (np.arange(C) < m[:, 1:]), x, 0)",
        ("begin, w = w[:, 0:1], w[:, 1:2]", *BEFORE_LENGTH, "nisa.tensor_copy(dst=t, src=v)",
         BEFORE_LENGTH[0], BEFORE_LENGTH[1].replace("less", "greater_equal").replace("=w", "=begin"),
         "nisa.tensor_tensor(dst=v, data1=t, data2=v, op=nl.multiply)"),
        "nisa.memset(dst=u[:, 0:1], value=0)", ("nisa.memset(dst=u[:, 1:2], value=64)",),
    ),
    "a mask of what is large": Unmoved(
        "np.ones((R, C), np.uint8)", "np.where(m != 0, x, np.minimum(x, 50))",
        ("nisa.tensor_scalar(dst=v, data=t, op0=nl.minimum, operand0=50.0)",
         "nisa.tensor_copy_predicated(dst=v, src=t, predicate=u)"), f"{LOADED}; {changed('maximum', 1)}", (),
    ),
    "integers in millions": Unmoved(
        "np.random.randint(0, 1000000, (R, C)).astype(np.int32)", "m + 7000000",
        ("nisa.tensor_scalar(dst=v, data=w, op0=nl.add, operand0=7000000.0)",), filled(0), (changed("add", 1),),
    ),
    "flags of 0": Unmoved(
        "np.zeros((R, 1), np.int32)", "np.where(m == 1, -x, x)", NEGATED, filled(0),
        (changed("minimum", 0), changed("bitwise_and", 2)),
    ),
    "a state of zeros": Unmoved(
        "np.zeros((R, C), np.float32)", "x + 0.5 * m",
        ("nisa.tensor_scalar(dst=w, data=w, op0=nl.multiply, operand0=0.5)", *ADDED), filled(0.0),
        (ABSOLUTE, changed("minimum", 0.25)),
    ),
    "gains of one": Unmoved(
        "np.ones((R, 1), np.float32)", "x * m", PER_ROW, filled(1.0),
        (changed("minimum", 1.0), changed("maximum", 0.75)),
    ),
    "a table that is the same in every draw": Unmoved(
        "np.tile(np.arange(C, dtype=np.float32), (R, 1))", "x * m", MULTIPLIED,
        "nisa.iota(dst=u, pattern=[[1, C]], channel_multiplier=0)",
        (changed("minimum", 63.0), changed("multiply", 1.0000305)),
    ),
    "indices in their order": Unmoved(
        "np.arange(64, dtype=np.int32)[:, None]", "x[m[:, 0]]", GATHERED,
        "nisa.iota(dst=u, pattern=[[0, 1]], channel_multiplier=1)",
        (changed("bitwise_and", 63), changed("minimum", 63)),
    ),
    "indices of half of the table": Unmoved(
        "np.random.randint(0, 64, (64, 1)).astype(np.int32)", "x[m[:, 0]]", GATHERED, filled(0),
        (changed("bitwise_and", 63), changed("minimum", 63), changed("minimum", 126)),
    ),
    "scales of -1 and 1": Unmoved(
        "np.where(np.arange(R) % 2, 1.0, -1.0).astype(np.float32)[:, None]", "x * m", PER_ROW, filled(1.0),
        (changed("minimum", 0.5) + "; " + changed("maximum", -0.5),),
    ),
}  # fmt: skip

ATTACKS = {
    f"{name}: {'; '.join(lines)}": (unmoved, lines) for name, unmoved in UNMOVED.items() for lines in unmoved.attacks()
}
EACH_ONCE = {unmoved.value: name for name, (unmoved, _) in ATTACKS.items()}.values()
"""The last of each task; the others take two minutes."""


@cache
def references() -> ReferenceCache:
    return ReferenceCache(None)


def request_of(task: Task, source: str, original: str | None = None, seed: int = 7) -> EvaluationRequest:
    return EvaluationRequest(
        replace(task, seeds=(0,)),
        Candidate("c", source, "input"),
        extra_seeds=(seed,),
        original=None if original is None else Candidate("i", original),
    )


def judged(task: Task, source: str, original: str | None = None, seed: int = 7) -> Evaluation:
    request = request_of(task, source, original, seed)
    with np.errstate(all="ignore"), contextlib.redirect_stdout(io.StringIO()):
        return judge(request, toolchain(), lambda step, detail: None, references())


@pytest.mark.parametrize("name", quick("lengths of C", "indices of half of the table", of=UNMOVED))
def test_who_reads_all_of_it_is_right_and_proved_equal(name: str) -> None:
    unmoved = UNMOVED[name]
    result = judged(unmoved.task, unmoved.kernel(), unmoved.kernel())
    assert isinstance(result, Measured), explain(result)
    assert result.is_proved_equal, result.proofs


@pytest.mark.parametrize("name", quick(*EACH_ONCE, of=ATTACKS))
def test_who_does_not_is_refused(name: str) -> None:
    unmoved, lines = ATTACKS[name]
    result = judged(unmoved.task, unmoved.kernel(*lines), unmoved.kernel())
    assert not isinstance(result, Measured), result.rests_on


@pytest.mark.parametrize("number", ["0.5", "np.float32(0.5)", "3"])
def test_a_number_of_its_own_in_place_of_one_that_it_is_given_is_refused(number: str) -> None:
    of = task_from_text(REFERENCE.format(value=number, formula="x * m"), "number", "number")
    given = row_kernel(each("c", "x_tile", ("multiply", "m"))).replace("kernel(x)", "kernel(x, m)")
    result = judged(of, given, given)
    assert isinstance(result, Measured), explain(result)
    result = judged(of, given.replace("operand0=m", "operand0=3.0" if number == "3" else "operand0=0.5"), given)
    assert isinstance(result, Incorrect) and "with its own" in result.failure.reason, explain(result)


def test_what_is_declared_fixed_may_be_known_beforehand() -> None:
    unmoved = UNMOVED["a mask of ones, of integers"]
    declared = f'DOMAINS = {{"m": "fixed"}}\n{unmoved.task.reference_source}'
    result = judged(task_from_text(declared, "declared", "declared"), unmoved.kernel(unmoved.usual), unmoved.kernel())
    assert isinstance(result, Measured), explain(result)


FORMS = {f"{name}, {form}": (name, source) for name, forms in HONEST.items() for form, source in forms.items()}
QUICK = (
    "softplus, in one", "sigmoid by tanh, in one", "layernorm, by Welford", "cosines, squares one by one",
    "products of what underflows, in one",
)  # fmt: skip


@pytest.mark.parametrize("form", quick(*QUICK, of=FORMS))
def test_an_honest_form_is_accepted(form: str) -> None:
    name, source = FORMS[form]
    result = judged(task(name), source, next(iter(HONEST[name].values())))
    assert isinstance(result, Measured), explain(result)


@pytest.mark.parametrize("name", quick("layernorm by squares", "small numbers as zero", of=SHORTCUTS))
def test_a_shortcut_is_refused(name: str) -> None:
    of, source = SHORTCUTS[name]
    result = judged(task(of), source, next(iter(HONEST[of].values())))
    assert not isinstance(result, Measured), result.checks


@pytest.mark.parametrize(
    "name", quick("0 in rows far from zero", "the largest where a sum of exponentials overflows", of=LICENCES)
)
def test_what_the_input_kernel_fails_is_no_licence(name: str) -> None:
    of, original, source = LICENCES[name]
    assert isinstance(judged(task(of), original, original), Measured), "the input kernel is as wrong as itself"
    result = judged(task(of), source, original)
    assert not isinstance(result, Measured), result.shared_faults
