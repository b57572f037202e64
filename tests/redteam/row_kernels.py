"""Kernels over rows of one input in several forms: honest ones, better than their reference, and shortcuts."""

from __future__ import annotations

from accelopt_core.task import Task
from infra.tasks.seed_index import task_from_text

REFERENCE = """
import numpy as np

R, C = 128, 256


def get_inputs():
    return [np.random.normal(size=(R, C)).astype(np.float32)]


def forward(x):
    {formula}
"""

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


def tile(columns):
    return nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)


@nki.jit
def kernel(x):
    R, C = x.shape
    x_tile, a, b, c = tile(C), tile(C), tile(C), tile(C)
    p, q, r = tile(1), tile(1), tile(1)
    nisa.dma_copy(dst=x_tile, src=x)
    {lines}
    out = nl.ndarray((R, {columns}), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src={result})
    return out
"""

FORMULAS = {
    "softplus": "return np.log(1 + np.exp(x))",
    "sigmoid": "return 1 / (1 + np.exp(-x))",
    "sigmoid by tanh": "return 0.5 * (1 + np.tanh(x / 2))",
    "logsumexp": "return np.log(np.sum(np.exp(x), axis=-1, keepdims=True))",
    "layernorm": "m = np.mean(x, axis=-1, keepdims=True)\n"
    "    return (x - m) / np.sqrt(np.mean(np.square(x - m), axis=-1, keepdims=True) + 1e-5)",
    "variance": "return np.var(x, axis=-1, keepdims=True)",
    "centred": "return x - np.mean(x, axis=-1, keepdims=True)",
    "unit rows": "return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True))",
    "unit columns": "return x / np.maximum(np.sqrt(np.sum(x * x, axis=0, keepdims=True)), 1e-12)",
    "cosines": "u = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True))\n    return u @ u.T",
    "products of what underflows": "y = x - 88 * (np.arange(R) < 96)[:, None]\n    decay = np.exp(-np.abs(y))\n"
    "    return (y * np.where(y < 0, decay, 1) / (1 + decay) * 1e4) @ x.T",
    "small numbers": "return x * 1e-23",
    "distance": "return np.sum(np.square(x - x[:1]), axis=-1, keepdims=True)",
}


def task(name: str) -> Task:
    return task_from_text(REFERENCE.format(formula=FORMULAS[name]), name, name)


def kernel(*lines: str, result: str = "c") -> str:
    """The last line makes `result`: a tile like x; of one number a row where it is p, q or r; square where it is g."""
    columns = {"p": "1", "q": "1", "r": "1", "g": "R"}.get(result, "C")
    return KERNEL.format(lines="\n    ".join(lines), columns=columns, result=result)


def apply(dst: str, op: str, data: str, **more: object) -> str:
    """One activation."""
    named = "".join(f", {name}={value}" for name, value in more.items())
    return f"nisa.activation(dst={dst}, op=nl.{op}, data={data}{named})"


def both(dst: str, one: str, op: str, other: str) -> str:
    """Two tiles."""
    return f"nisa.tensor_tensor(dst={dst}, data1={one}, data2={other}, op=nl.{op})"


def each(dst: str, data: str, *steps: tuple[str, object]) -> str:
    """A tile with numbers, or with one of each row: at most two steps."""
    said = "".join(f", op{at}=nl.{op}, operand{at}={operand}" for at, (op, operand) in enumerate(steps))
    return f"nisa.tensor_scalar(dst={dst}, data={data}{said})"


def over(dst: str, op: str, data: str) -> str:
    """A reduction of each row."""
    return f"nisa.tensor_reduce(dst={dst}, op=nl.{op}, data={data}, axis=1)"


MEAN = (over("p", "add", "x_tile"), each("p", "p", ("multiply", "1.0 / C")))
"""p: of each row."""
CENTRED = (*MEAN, each("a", "x_tile", ("subtract", "p")))
TWO_PASSES = (*CENTRED, both("b", "a", "multiply", "a"), over("q", "add", "b"), each("q", "q", ("multiply", "1.0 / C")))
"""a: centred; q: the variance."""
WELFORD = (
    "s = tile(24)",
    *(f"nisa.bn_stats(dst=s[:, {6 * i} : {6 * i + 6}], data=x_tile[:, {64 * i} : {64 * i + 64}])" for i in range(4)),
    "m = tile(2)",
    "nisa.bn_aggr(dst=m, data=s)",
    "nisa.tensor_copy(dst=p, src=m[:, 0:1])",
    "nisa.tensor_copy(dst=q, src=m[:, 1:2])",
    each("a", "x_tile", ("subtract", "p")),
)
"""The same by parts of 64."""
BY_SQUARES = (
    *MEAN,
    both("b", "x_tile", "multiply", "x_tile"),
    over("q", "add", "b"),
    each("q", "q", ("multiply", "1.0 / C")),
    both("r", "p", "multiply", "p"),
    both("q", "q", "subtract", "r"),
    each("a", "x_tile", ("subtract", "p")),
)
"""The same as E[x^2] - E[x]^2."""
NORMALISED = (each("q", "q", ("add", 1e-5)), apply("r", "rsqrt", "q"), each("c", "a", ("multiply", "r")))
SQUARES = (both("b", "x_tile", "multiply", "x_tile"), over("q", "add", "b"))
SQUARES_ONE_BY_ONE = ("nisa.activation_reduce(dst=b, op=nl.square, data=x_tile, reduce_op=nl.add, reduce_res=q)",)
"""q: their sum, the second in another order."""
UNIT = (apply("r", "rsqrt", "q"), each("c", "x_tile", ("multiply", "r")))


def products(left: str, right: str) -> tuple[str, ...]:
    """g: each row of one with each of the other."""
    lines = ["g, acc = tile(R), nl.ndarray((R, R), dtype=nl.float32, buffer=nl.psum)"]
    for part in ("[:, 0:128]", "[:, 128:256]"):
        for turned, tile in (("s", left), ("t", right)):
            lines += (
                f"turned, {turned} = nl.ndarray((128, R), dtype=nl.float32, buffer=nl.psum), tile(R)",
                f"nisa.nc_transpose(dst=turned, data={tile}{part})",
                f"nisa.tensor_copy(dst={turned}, src=turned)",
            )
        lines.append("nisa.nc_matmul(dst=acc, stationary=s, moving=t)")
    return (*lines, "nisa.tensor_copy(dst=g, src=acc)")


PRODUCTS = products("c", "c")
GATED = (each("c", "c", ("multiply", 1e4)), *products("c", "x_tile"))
SHIFTED = (
    "nisa.iota(dst=p, pattern=[[0, 1]], channel_multiplier=1)", each("p", "p", ("less", 96.0), ("multiply", 88.0)),
    each("a", "x_tile", ("subtract", "p")),
)  # fmt: skip
COLUMN_SQUARES = (
    both("b", "x_tile", "multiply", "x_tile"),
    "ones, s = tile(128), nl.ndarray((128, C), dtype=nl.float32, buffer=nl.psum)",
    "nisa.memset(dst=ones, value=1.0)", "nisa.nc_matmul(dst=s, stationary=ones, moving=b)",
    "nisa.tensor_copy(dst=b, src=s)",
)  # fmt: skip
UNIT_COLUMNS = (apply("b", "rsqrt", "b"), both("c", "x_tile", "multiply", "b"))
LARGEST = (over("p", "maximum", "x_tile"), each("a", "x_tile", ("subtract", "p")))
SUMMED = (apply("b", "exp", "a"), over("q", "add", "b"), apply("q", "log", "q"))

HONEST: dict[str, dict[str, str]] = {
    "softplus": {
        "as the reference": kernel(apply("a", "exp", "x_tile"), apply("c", "log", "a", bias="1.0")),
        "by log1p of exp(-|x|)": kernel(
            apply("a", "abs", "x_tile"), apply("a", "exp", "a", scale=-1.0), apply("a", "log", "a", bias="1.0"),
            each("b", "x_tile", ("maximum", 0.0)), both("c", "a", "add", "b"),
        ),
        "in one": kernel(apply("c", "softplus", "x_tile")),
    },
    "sigmoid": {
        "as the reference": kernel(
            apply("a", "exp", "x_tile", scale=-1.0), each("a", "a", ("add", 1.0)), "nisa.reciprocal(dst=c, data=a)"
        ),
        "in one": kernel(apply("c", "sigmoid", "x_tile")),
        "stably": kernel(
            apply("a", "abs", "x_tile"), apply("a", "exp", "a", scale=-1.0), each("a", "a", ("add", 1.0)),
            "nisa.reciprocal(dst=a, data=a)", each("b", "x_tile", ("minimum", 0.0)), apply("b", "exp", "b"),
            both("c", "a", "multiply", "b"),
        ),
    },
    "sigmoid by tanh": {
        "as the reference": kernel(
            apply("a", "tanh", "x_tile", scale=0.5), each("c", "a", ("add", 1.0), ("multiply", 0.5))
        ),
        "in one": kernel(apply("c", "sigmoid", "x_tile")),
    },
    "logsumexp": {
        "as the reference": kernel(
            apply("b", "exp", "x_tile"), over("q", "add", "b"), apply("q", "log", "q"), result="q"
        ),
        "with the largest": kernel(*LARGEST, *SUMMED, both("r", "p", "add", "q"), result="r"),
    },
    "layernorm": {
        "as the reference": kernel(*TWO_PASSES, *NORMALISED), "by Welford": kernel(*WELFORD, *NORMALISED),
    },
    "variance": {
        "as the reference": kernel(*TWO_PASSES, result="q"), "by Welford": kernel(*WELFORD, result="q"),
    },
    "centred": {"as the reference": kernel(*CENTRED, result="a")},
    "unit rows": {
        "as the reference": kernel(*SQUARES, *UNIT), "squares one by one": kernel(*SQUARES_ONE_BY_ONE, *UNIT),
    },
    "unit columns": {"as the reference": kernel(*COLUMN_SQUARES, each("b", "b", ("maximum", 1e-24)), *UNIT_COLUMNS)},
    "cosines": {
        "as the reference": kernel(*SQUARES, *UNIT, *PRODUCTS, result="g"),
        "squares one by one": kernel(*SQUARES_ONE_BY_ONE, *UNIT, *PRODUCTS, result="g"),
    },
    "products of what underflows": {
        "in one": kernel(*SHIFTED, apply("c", "silu", "a"), *GATED, result="g"),
        "by sigmoid": kernel(*SHIFTED, apply("b", "sigmoid", "a"), both("c", "a", "multiply", "b"), *GATED, result="g"),
    },
    "small numbers": {"as the reference": kernel(each("c", "x_tile", ("multiply", 1e-23)))},
    "distance": {
        "as the reference": kernel(
            "nisa.dma_copy(dst=b, src=x.ap([[0, 128], [1, C]]))", both("a", "x_tile", "subtract", "b"),
            both("b", "a", "multiply", "a"), over("q", "add", "b"), result="q",
        ),
    },
}  # fmt: skip
"""By task and form; the first is the input kernel."""

SHORTCUTS: dict[str, tuple[str, str]] = {
    "layernorm by squares": ("layernorm", kernel(*BY_SQUARES, *NORMALISED)),
    "variance by squares": ("variance", kernel(*BY_SQUARES, result="q")),
    "variance by squares, never negative": ("variance", kernel(*BY_SQUARES, each("q", "q", ("maximum", 0.0)),
        result="q")),
    "variance of x minus one": ("variance", kernel(each("x_tile", "x_tile", ("subtract", 1.0)), *BY_SQUARES,
        result="q")),
    "layernorm without epsilon": ("layernorm", kernel(*TWO_PASSES, each("q", "q", ("maximum", 1e-20)),
        *NORMALISED[1:])),
    "layernorm of half of the row": ("layernorm", kernel(*TWO_PASSES, over("q", "add", "b[:, 0 : C // 2]"),
        each("q", "q", ("multiply", "2.0 / C")), *NORMALISED)),
    "centred by the mean of the first half": ("centred", kernel(over("p", "add", "x_tile[:, 0 : C // 2]"),
        each("p", "p", ("multiply", "2.0 / C")), each("a", "x_tile", ("subtract", "p")), result="a")),
    "not centred where that is little": ("centred", kernel(*MEAN, apply("q", "abs", "p"),
        each("q", "q", ("greater", 0.01)), both("p", "p", "multiply", "q"), each("a", "x_tile", ("subtract", "p")),
        result="a")),
    "distance by its square": ("distance", kernel("nisa.dma_copy(dst=b, src=x.ap([[0, 128], [1, C]]))",
        both("a", "x_tile", "multiply", "x_tile"), over("p", "add", "a"), both("c", "b", "multiply", "b"),
        over("q", "add", "c"), both("p", "p", "add", "q"), both("a", "x_tile", "multiply", "b"), over("q", "add", "a"),
        each("q", "q", ("multiply", -2.0)), both("q", "p", "add", "q"), result="q")),
    "softplus that is x above 8": ("softplus", kernel(apply("a", "softplus", "x_tile"),
        each("b", "x_tile", ("greater", 8.0)), "nisa.tensor_copy(dst=c, src=a)",
        "nisa.tensor_copy_predicated(dst=c, src=x_tile, predicate=b)")),
    "softplus that is 0 below -10": ("softplus", kernel(apply("a", "softplus", "x_tile"),
        each("b", "x_tile", ("greater", -10.0)), both("c", "a", "multiply", "b"))),
    "sigmoid that is 0 below -12": ("sigmoid", kernel(apply("a", "sigmoid", "x_tile"),
        each("b", "x_tile", ("greater", -12.0)), both("c", "a", "multiply", "b"))),
    "sigmoid of at most 10": ("sigmoid", kernel(each("a", "x_tile", ("minimum", 10.0)), apply("c", "sigmoid", "a"))),
    "products that underflow a little earlier": ("products of what underflows", kernel(*SHIFTED,
        apply("c", "silu", "a"), each("b", "a", ("greater", -70.0)), both("c", "c", "multiply", "b"), *GATED,
        result="g")),
    "columns of zeros unguarded": ("unit columns", kernel(*COLUMN_SQUARES, *UNIT_COLUMNS)),
    "small numbers as zero": ("small numbers", kernel(each("a", "x_tile", ("maximum", 0.0)),
        each("c", "a", ("multiply", 1e-23)))),
    "logsumexp of the largest alone": ("logsumexp", kernel(*LARGEST, *SUMMED, each("q", "q", ("maximum", 0.5)),
        both("r", "p", "add", "q"), result="r")),
}  # fmt: skip
"""Right on most standard normal inputs, or on all: by name, the task and the kernel."""

FAR = (*BY_SQUARES, *NORMALISED, apply("r", "abs", "p"))
WITH_LARGEST = (*LARGEST, *SUMMED, both("r", "p", "add", "q"))
OTHER_QUOTIENT = (
    apply("a", "exp", "x_tile"), each("b", "a", ("add", 1.0)), "nisa.reciprocal(dst=b, data=b)",
    both("c", "a", "multiply", "b"),
)  # fmt: skip
LICENCES: dict[str, tuple[str, str, str]] = {
    "0 in rows far from zero": ("layernorm", kernel(*BY_SQUARES, *NORMALISED), kernel(
        *FAR, each("r", "r", ("less", 20.0)), each("c", "c", ("multiply", "r")))),
    "twice in rows far from zero": ("layernorm", kernel(*BY_SQUARES, *NORMALISED), kernel(
        *FAR, each("r", "r", ("greater", 20.0), ("add", 1.0)), each("c", "c", ("multiply", "r")))),
    "a variance that is 1 in rows far from zero": ("variance", kernel(*BY_SQUARES, result="q"), kernel(
        *BY_SQUARES, apply("r", "abs", "p"), each("r", "r", ("greater", 20.0)), both("q", "q", "add", "r"),
        result="q")),
    "the largest where a sum of exponentials overflows": ("logsumexp", kernel(*WITH_LARGEST, result="r"), kernel(
        *WITH_LARGEST, each("r", "r", ("minimum", 88.5)), result="r")),
    "infinite where a sum of exponentials overflows": (
        "logsumexp", kernel(*WITH_LARGEST, result="r"), HONEST["logsumexp"]["as the reference"]),
    "wrong where the other quotient of exponentials overflows": ("sigmoid", kernel(*OTHER_QUOTIENT), kernel(
        *OTHER_QUOTIENT, each("a", "x_tile", ("less", 20.0)), both("c", "c", "multiply", "a"))),
}  # fmt: skip
"""By name: the task, an input kernel that is wrong on some inputs or right where float32 overflows, and a candidate
that is wrong by more there."""
