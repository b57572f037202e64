"""Whether the iterations of a loop may run in any order, or interleaved: nothing passes from one to another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from accelopt_core.transforms.base import IllegalSite, NotPlain
from accelopt_core.transforms.index_algebra import Indices, Polynomial
from accelopt_core.transforms.isa_effects import STATIC_ATTRIBUTES, WRITTEN_ARGUMENTS
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.plain_names import begins_anew
from accelopt_core.transforms.syntax import content_names, descendants, loaded_names


@dataclass(frozen=True)
class _Stride:
    """One dimension of a write that moves on with the loop: [step * variable + start, at most step further)."""

    dimension: int
    step: Polynomial
    start: Polynomial


def check_independent(code: KernelCode, loop: Statement) -> None:
    """Raises IllegalSite naming what one iteration may hand to another."""
    inside = check_names_and_order(code, loop)
    own = made_in(code, inside)
    written: dict[str, list[Statement]] = {}
    for statement in inside:
        for root in code.changed_by(statement) - own if statement.body is None else ():
            written.setdefault(root, []).append(statement)
    for statement in inside:
        for root in sorted(read_by(code, statement) & set(written)):
            said = f"line {statement.line} reads {root}, which the loop over {loop.variable} writes"
            raise NotPlain(said) if begins_anew(code, root, inside) else IllegalSite(said)
    indices = Indices(code)
    for root, writers in written.items():
        if begins_anew(code, root, inside):
            at = code.bindings(root)[0].line
            raise NotPlain(f"every iteration of the loop over {loop.variable} fills {root}, made before it (line {at})")
        strides = [_strides(code, indices, statement, root, loop) for statement in writers]
        if not any(all(stride in others for others in strides) for stride in strides[0]):
            raise IllegalSite(
                f"two iterations of the loop over {loop.variable} may write the same part of {root} (line "
                f"{writers[0].line})"
            )


def check_names_and_order(code: KernelCode, loop: Statement, lists_may_grow: bool = False) -> list[Statement]:
    """The statements in the loop. Raises IllegalSite where iterations need their order for more than their buffers."""
    if loop.count is None:
        raise IllegalSite(f"the loop over {loop.variable} does not simply count up from 0")
    if loop.leaves:
        raise IllegalSite(f"the loop over {loop.variable} can be left early")
    inside = [statement for statement in code.statements() if loop in statement.block.loops()]
    for statement in inside:
        if statement.kind is Kind.OPAQUE:
            raise IllegalSite(f"line {statement.line} is not understood")
        if statement.stateful and statement.body is None:
            raise IllegalSite(f"line {statement.line} depends on earlier instructions in ways its operands do not show")
    _check_names(code, loop, inside)
    for statement in inside:
        if statement.kind is Kind.APPEND and not lists_may_grow:
            (grown,) = statement.written
            if not any(b in inside for b in code.bindings(grown)):
                raise IllegalSite(f"the list {grown} grows with every iteration (line {statement.line})")
    return inside


def check_no_shapes(tiles: frozenset[str], loop: Statement) -> None:
    """Of tiles that get another shape. Raises NotPlain where the loop asks for it: in normal form sizes are written
    out."""
    for node, name in shapes_asked(loop.node):
        if name in tiles:
            raise NotPlain(f"the loop over {loop.variable} asks for the {node.attr.value} of {name}")


@lru_cache(1 << 12)
def shapes_asked(root: cst.CSTNode) -> tuple[tuple[cst.Attribute, str], ...]:
    """Every `x.shape` in it, or what else of x changes with its shape, with the names that x is written with."""
    return tuple(
        (node, name)
        for node in descendants(root)
        if isinstance(node, cst.Attribute) and node.attr.value in STATIC_ATTRIBUTES - {"dtype"}
        for name in sorted(loaded_names(node.value))
    )


def made_in(code: KernelCode, inside: list[Statement]) -> frozenset[str]:
    """Buffers that every iteration makes anew."""
    made = frozenset(name for s in inside if s.kind is Kind.ALLOCATE for name in s.binds)
    return frozenset(name for name in made if all(binding in inside for binding in code.bindings(name)))


def changing_names(loop: Statement, inside: list[Statement]) -> frozenset[str]:
    """The variable, and every number that is defined with it."""
    changing = {loop.variable}
    for statement in inside:
        if statement.kind is Kind.DEFINE and statement.uses & changing:
            changing |= statement.binds
    return frozenset(changing)


def read_by(code: KernelCode, statement: Statement) -> frozenset[str]:
    """Buffers whose contents the statement itself (not what is inside it) may read, or hand on under a name."""
    if statement.kind is Kind.INSTRUCTION and statement.call is not None:
        written = WRITTEN_ARGUMENTS[statement.operation]
        names: set[str] = set()
        for position, arg in enumerate(statement.call.args):
            keyword = arg.keyword.value if arg.keyword is not None else ("dst" if position == 0 else "")
            if keyword not in written:
                names |= content_names(arg.value)
        return code.roots_of(frozenset(names))
    if statement.body is not None:
        return code.roots_of(statement.header_uses)
    return code.roots_of(statement.contents)


def _check_names(code: KernelCode, loop: Statement, inside: list[Statement]) -> None:
    """Every name bound in the loop is bound once there (inner loops may share a variable), before its uses, and
    means nothing outside."""
    bound = loop.binds | {loop.variable}
    if code.captured & bound:
        raise IllegalSite(f"a nested function uses {', '.join(sorted(code.captured & bound))}")
    for name in sorted(bound):
        everywhere = code.bindings(name)
        here = [binding for binding in everywhere if binding in inside or binding is loop]
        if len(here) != 1 and (loop in here or any(binding.kind is not Kind.LOOP for binding in here)):
            raise NotPlain(f"{name} is bound {len(here)} times in the loop over {loop.variable}")
        others = [binding for binding in everywhere if binding not in here]
        for statement in code.statements():
            if name not in statement.own_uses or statement is loop:
                continue
            if statement in inside:
                if not any(_in_scope(binding, statement) for binding in here):
                    raise IllegalSite(f"{name} is used on line {statement.line} before or beside what binds it")
            elif not any(_in_scope(other, statement) for other in others):
                raise IllegalSite(f"{name} is used on line {statement.line}, after the loop over {loop.variable}")
    if loop.variable in loop.header_uses:
        raise IllegalSite(f"the length of the loop over {loop.variable} is set with {loop.variable}")


def _in_scope(binding: Statement, statement: Statement) -> bool:
    """The binding comes first whenever the statement runs."""
    around = statement.block.loops()
    if binding.kind is Kind.LOOP:
        return binding in around
    blocks = (statement.block, *(owner.block for owner in around))
    return binding.block in blocks and binding.line < statement.line


def _strides(code: KernelCode, indices: Indices, statement: Statement, root: str, loop: Statement) -> list[_Stride]:
    target = code.argument(statement, "dst", 0)
    if not isinstance(target, cst.Subscript) or not isinstance(target.value, cst.Name) or target.value.value != root:
        raise IllegalSite(f"line {statement.line} writes {root} in a way that does not show which part")
    if any(root in content_names(arg.value) for arg in _others(statement, target)):
        raise IllegalSite(f"line {statement.line} writes {root} in more than one argument")
    changing = loop.binds | {loop.variable}
    found = []
    for dimension, element in enumerate(target.slice):
        part = element.slice
        interval = _interval(code, indices, part, statement)
        if interval is not None:
            lower, length = interval
            step, start = lower.split(loop.variable)
            covered = indices.at_most(length, step)
        elif isinstance(part, cst.Slice):
            continue
        else:
            if not isinstance(part, cst.Index) or isinstance(part.value, cst.Ellipsis):
                break
            step, start = indices.polynomial(part.value, statement).split(loop.variable)
            covered = set(step.terms) == {()}
        if step.terms and covered and not (indices.names(step) | indices.names(start)) & changing:
            found.append(_Stride(dimension, step, start))
    return found


def _interval(
    code: KernelCode, indices: Indices, part: cst.BaseSlice, at: Statement
) -> tuple[Polynomial, Polynomial] | None:
    """First and length of `a : b`, or of `nl.ds(a, length)`; None for anything else."""
    if isinstance(part, cst.Slice):
        if part.lower is None or part.upper is None or part.step is not None:
            return None
        lower = indices.polynomial(part.lower, at)
        return lower, indices.polynomial(part.upper, at) - lower
    if not isinstance(part, cst.Index) or not isinstance(part.value, cst.Call):
        return None
    given = part.value.args
    if (
        code.qualified(part.value.func) != "nki.language.ds"
        or len(given) != 2
        or any(a.keyword or a.star for a in given)
    ):
        return None
    return indices.polynomial(given[0].value, at), indices.polynomial(given[1].value, at)


def _others(statement: Statement, target: cst.BaseExpression) -> list[cst.Arg]:
    assert statement.call is not None
    return [arg for arg in statement.call.args if arg.value is not target]
