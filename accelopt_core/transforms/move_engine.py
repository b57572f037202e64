"""Give one elementwise instruction to another engine, so that the busiest one has less to do.

Vector, Scalar and GpSimd run at the same time; an instruction without `engine=` runs on Vector.
Which engine can do what: NKI's documentation of each instruction (GpSimd has no path to PSUM; Scalar
only multiplies and adds).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import (
    AnalysisContext,
    IllegalSite,
    KernelModule,
    NotOfItsKind,
    Site,
    SiteGone,
)
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.syntax import parsed_expression

ENGINES = ("scalar", "gpsimd", "vector")
MOVABLE = ("tensor_copy", "tensor_scalar", "tensor_tensor")
FLOAT_OPERATORS = frozenset({"add", "subtract", "multiply", "maximum", "minimum"})
"""Operators with the same result on every engine, for floating-point tiles."""
SCALAR_FORMS = frozenset({("multiply", ""), ("add", ""), ("multiply", "add")})
OPERANDS = ("dst", "src", "data", "data1", "data2", "operand0", "operand1")


class MoveEngine:
    name = "move-elementwise-work"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.WAITING, Cause.TAIL})

    def describe(self) -> str:
        return "Run one copy or elementwise instruction on another engine than it runs on, to relieve the busiest."

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for name, statement in _candidates(code):
            for engine in ENGINES:
                try:
                    now = _check(code, statement, engine)
                    _check_relieves(statement, now, engine, context)
                except IllegalSite as error:
                    context.refuse(self.name, f"{name}@{engine}", statement.line, error)
                    continue
                found.append(
                    Site(
                        self.name,
                        f"{name}@{engine}",
                        f"run {statement.operation} into {name.partition('#')[0]} on the {engine} engine",
                        statement.line,
                        f"the {engine} engine has {statement.operation} for these operands, with the same arithmetic",
                        f"the {now} engine has less to do, and the {engine} engine works beside it",
                    )
                )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        name, _, engine = key.partition("@")
        statement = dict(_candidates(code)).get(name)
        if statement is None:
            raise SiteGone(f"{key}: the kernel has no elementwise instruction into {name}")
        if engine not in ENGINES:
            raise NotOfItsKind(f"{engine} is none of {', '.join(ENGINES)}")
        _check(code, statement, engine)
        call = statement.call
        assert call is not None and isinstance(call.func, cst.Attribute)
        isa = code.module.code_for_node(call.func.value)
        value = parsed_expression(f"{isa}.engine.{engine}")
        kept = [arg for arg in call.args if arg.keyword is None or arg.keyword.value != "engine"]
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        changed = call.with_changes(args=[*kept, cst.Arg(value, keyword=cst.Name("engine"), equal=equal)])
        return code.changed({call: changed})


def _check_relieves(statement: Statement, now: str, engine: str, context: AnalysisContext) -> None:
    """Work moves from a busier engine to a less busy one; where the profile does not say, anywhere."""
    here, there = (context.fields.get(f"{name}_engine_active_time") for name in (now, engine))
    if here is not None and there is not None and here <= there:
        raise IllegalSite(
            f"line {statement.line} runs on the {now} engine, which works {1e6 * here:,.1f} µs, and the {engine} "
            f"engine works {1e6 * there:,.1f} µs"
        )


def _candidates(code: KernelCode) -> Iterator[tuple[str, Statement]]:
    """Elementwise instructions by the name of what they write; the second one into it is `name#2`."""
    seen: dict[str, int] = {}
    for statement in code.statements():
        if statement.kind is Kind.INSTRUCTION and statement.operation in MOVABLE:
            dst = code.argument(statement, "dst", 0)
            if dst is None:
                continue
            while isinstance(dst, (cst.Subscript, cst.Attribute)):
                dst = dst.value
            if isinstance(dst, cst.Name):
                seen[dst.value] = seen.get(dst.value, 0) + 1
                number = seen[dst.value]
                yield (dst.value if number == 1 else f"{dst.value}#{number}"), statement


def _check(code: KernelCode, statement: Statement, engine: str) -> str:
    """The engine it runs on now. Raises IllegalSite when the other cannot do it or it cannot be told."""
    call = statement.call
    assert call is not None
    if not isinstance(call.func, cst.Attribute):
        raise IllegalSite(f"line {statement.line}: the name of nki.isa is not at hand")
    if any(arg.keyword is None for arg in call.args):
        raise IllegalSite(f"line {statement.line} passes operands by position")
    given = code.argument(statement, "engine")
    now = "vector" if given is None else code.qualified(given).rpartition(".")[2]
    if now not in ENGINES:
        raise IllegalSite(f"line {statement.line} chooses its engine in a way that is not understood")
    if now == engine:
        raise NotOfItsKind(f"line {statement.line} runs on the {engine} engine already")
    operators = tuple(_operator(code, statement, keyword) for keyword in ("op", "op0", "op1"))
    if any(operator and operator not in FLOAT_OPERATORS for operator in operators):
        raise IllegalSite(f"line {statement.line}: engines differ on nl.{'/'.join(filter(None, operators))}")
    regions: set[str] = set()
    for keyword in OPERANDS:
        value = code.argument(statement, keyword)
        if value is None or isinstance(value, (cst.Integer, cst.Float)):
            continue
        found = code.regions_of(value)
        if keyword in ("dst", "src", "data", "data1", "data2") and not found:
            raise IllegalSite(f"line {statement.line}: it cannot be told where {keyword} lies")
        regions |= found
        _check_dtype(code, statement, value)
    if not regions <= {"sbuf", "psum"}:
        raise IllegalSite(f"line {statement.line} touches {', '.join(sorted(regions))}")
    if engine == "gpsimd" and "psum" in regions:
        raise IllegalSite(f"line {statement.line} touches PSUM, to which GpSimd has no path")
    if engine == "scalar":
        if statement.operation == "tensor_tensor":
            raise IllegalSite("the Scalar engine does not combine two tiles")
        if statement.operation == "tensor_scalar":
            reverse = any(code.argument(statement, keyword) is not None for keyword in ("reverse0", "reverse1"))
            if operators[1:] not in SCALAR_FORMS or reverse:
                raise IllegalSite("the Scalar engine only multiplies and adds")
    return now


def _operator(code: KernelCode, statement: Statement, keyword: str) -> str:
    value = code.argument(statement, keyword)
    if value is None or (isinstance(value, cst.Name) and value.value == "None"):
        return ""
    return code.qualified(value).removeprefix("nki.language.") or "?"


def _check_dtype(code: KernelCode, statement: Statement, value: cst.BaseExpression) -> None:
    """Integers are exact on GpSimd and rounded to float32 on Vector, so they stay where they are."""
    for name in code.allocations_of(value):
        dtype = code.argument(name, "dtype", 1)
        text = code.qualified(dtype) if dtype is not None else ""
        if "int" in text.rpartition(".")[2]:
            raise IllegalSite(f"line {statement.line} works on integers, which engines round differently")
