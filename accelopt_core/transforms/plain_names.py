"""Names bound once and tiles made where they are filled: what the transforms ask of a kernel's text.

A kernel in normal form has both, so what is refused for want of them is refused for how it is written (`NotPlain`).
"""

from __future__ import annotations

import libcst as cst

from accelopt_core.transforms.base import IllegalSite, NotPlain
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.syntax import content_names, loaded_names

ON_CHIP = frozenset({"sbuf", "psum"})


def bound_once(code: KernelCode, name: str) -> Statement:
    """Raises NotPlain when several statements bind it, IllegalSite when none does or nobody can tell."""
    bindings = code.bindings(name)
    if len(bindings) > 1:
        lines = " and ".join(str(binding.line) for binding in bindings[:3])
        raise NotPlain(f"{name} is bound {len(bindings)} times (lines {lines}{' ...' if len(bindings) > 3 else ''})")
    if not bindings:
        raise IllegalSite(f"{name} is not made in the kernel")
    return bindings[0]


def made_once(code: KernelCode, name: str) -> Statement:
    """The allocation of a tile."""
    made = bound_once(code, name)
    if made.kind is not Kind.ALLOCATE:
        raise IllegalSite(f"{name} is not a tile but a {made.kind.value} (line {made.line})")
    if name in code.captured:
        raise IllegalSite(f"{name} is used by a nested function or declared global")
    return made


def made_beside(code: KernelCode, name: str, statement: Statement) -> Statement:
    """The allocation of a tile, in the block of a statement that uses it."""
    made = made_once(code, name)
    if made.block is not statement.block:
        raise NotPlain(
            f"{name} is made on line {made.line}, in another block than where line {statement.line} works on it"
        )
    return made


def named_language(code: KernelCode, allocation: Statement) -> str:
    """What the kernel calls nki.language, as the allocation says it. Raises IllegalSite."""
    buffer = code.argument(allocation, "buffer", 2)
    if not isinstance(buffer, cst.Attribute):
        raise IllegalSite(f"line {allocation.line} does not say where what it makes lies")
    return code.module.code_for_node(buffer.value)


def check_fixed(code: KernelCode, expressions: list[cst.BaseExpression], what: str, at: Statement) -> None:
    """Every name in them has one value only. Raises NotPlain."""
    for name in sorted(frozenset[str]().union(*(loaded_names(expression) for expression in expressions))):
        if len(code.bindings(name)) > 1:
            raise NotPlain(f"{name}, which {what} is made with, may have changed by line {at.line}")


def check_same_meaning(code: KernelCode, names: frozenset[str], one: Statement, other: Statement) -> None:
    """Each name stands for the same value at both. Raises NotPlain."""
    for name in sorted(names):
        bindings = code.bindings(name)
        if len(bindings) < 2:
            continue
        around, others = ([loop for loop in at.block.loops() if loop in bindings] for at in (one, other))
        if around != others or len(around) != 1 or any(around[0] in each.block.loops() for each in bindings):
            raise NotPlain(f"{name} may stand for something else on line {other.line} than on line {one.line}")


def begins_anew(code: KernelCode, buffer: str, inside: list[Statement]) -> bool:
    """Whether the first of these statements that touches a tile on chip overwrites it: it could have one of its own."""
    if {statement.region for statement in code.bindings(buffer)} - ON_CHIP or not code.bindings(buffer):
        return False
    for statement in inside:
        if statement.body is not None or buffer not in code.roots_of(statement.uses | statement.written):
            continue
        target = code.argument(statement, "dst", 0) if statement.kind is Kind.INSTRUCTION else None
        others = [arg.value for arg in statement.call.args if arg.value is not target] if statement.call else []
        reads = any(buffer in code.roots_of(content_names(value)) for value in others)
        return isinstance(target, cst.Name) and target.value == buffer and not reads and not statement.stateful
    return False
