"""Give every iteration a buffer of its own, where one buffer made before the loop makes iterations wait.

    tile = ndarray((128, W))                 for n in range(N):
    for n in range(N):                           tile = ndarray((128, W))
        dma_copy(tile, x[n])          ->         dma_copy(tile, x[n])
        work(tile)                               work(tile)

With one buffer that is filled in parts the next load has to wait until the last reader is done. Of buffers made in the
loop the compiler has as many in flight as fit. (One that an instruction overwrites as a whole it renames by itself.)
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import (
    AnalysisContext,
    IllegalSite,
    KernelModule,
    NotOfItsKind,
    NotPlain,
    Site,
    SiteGone,
)
from accelopt_core.transforms.index_algebra import number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.loop_independence import changing_names
from accelopt_core.transforms.loop_sites import loop_at
from accelopt_core.transforms.operand_access import ONE, AccessReader, Dim
from accelopt_core.transforms.plain_names import ON_CHIP, begins_anew, bound_once
from accelopt_core.transforms.syntax import loaded_names, parsed_statement, replace_nodes

OVERWRITES = frozenset(
    {
        "activation",
        "activation_reduce",
        "affine_select",
        "dma_copy",
        "dma_transpose",
        "iota",
        "memset",
        "nc_matmul",
        "nc_transpose",
        "reciprocal",
        "scalar_tensor_tensor",
        "tensor_copy",
        "tensor_reduce",
        "tensor_scalar",
        "tensor_tensor",
    }
)
"""Instructions that leave nothing of what `dst` held before; nc_matmul only when told not to accumulate."""


@dataclass(frozen=True)
class _Rotation:
    allocation: Statement
    loop: Statement
    filled_by: Statement
    """The instruction that overwrites it, or the loop that does so part by part."""
    covered_if: str = ""
    """What must hold for all parts together to be the whole; empty where it shows."""


class RotateBuffers:
    name = "rotate-buffers"
    addresses = frozenset({Cause.WAITING, Cause.THROTTLED})

    def describe(self) -> str:
        return (
            "Make a buffer inside the loop whose every iteration overwrites it, instead of once before it, so that "
            "one iteration need not wait for the readers of the one before."
        )

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for statement in code.statements():
            if statement.kind is not Kind.ALLOCATE:
                continue
            (tile,) = statement.binds
            innermost: Site | None = None
            for place, loop in enumerate(code.loops()):
                try:
                    rotation = _plan(code, tile, loop)
                except IllegalSite as error:
                    where = f"{tile}/{loop.variable}#{place}"
                    context.refuse(self.name, where, statement.line, error, (s.line for s in code.writers(tile)))
                    continue
                innermost = Site(
                    self.name,
                    f"{tile}/{loop.variable}#{place}",
                    f"make {tile} inside the loop over {loop.variable}, anew for every iteration",
                    statement.line,
                    f"every iteration of the loop over {loop.variable} first overwrites all of {tile} (line "
                    f"{rotation.filled_by.line}), and nothing outside that loop uses it",
                    f"with one buffer, filling {tile} waits for its readers of the iteration before",
                )
            if innermost is not None:
                found.append(innermost)
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        tile, _, rest = key.partition("/")
        loop = loop_at(code, rest, key)
        if not code.bindings(tile):
            raise SiteGone(f"{key}: the kernel has no buffer {tile}")
        return _rewrite(code, _plan(code, tile, loop))


def _plan(code: KernelCode, tile: str, loop: Statement) -> _Rotation:
    """Raises IllegalSite naming the rule that forbids it."""
    users = [s for s in code.statements() if s.kind is not Kind.ALLOCATE and tile in code.roots_of(s.uses | s.written)]
    if not any(loop in statement.block.loops() for statement in users):
        raise NotOfItsKind(f"the loop over {loop.variable} does not use {tile}")
    allocation = bound_once(code, tile)
    if allocation.kind is not Kind.ALLOCATE or allocation.region not in ON_CHIP:
        raise NotOfItsKind(f"{tile} is not on chip")
    if loop in allocation.block.loops():
        raise NotOfItsKind(f"{tile} is made anew in every iteration already")
    inside = loop.block.loops()
    if any(owner not in inside for owner in allocation.block.loops()) or not _precedes(allocation, loop):
        raise NotOfItsKind(f"{tile} is not made before the loop over {loop.variable}, around it")
    if code.argument(allocation, "address") is not None:
        raise IllegalSite(f"{tile} has a place of its own (address=), so that all its copies would share it")
    if tile in code.captured:
        raise IllegalSite(f"{tile} is used by a nested function or declared global")
    _check_shape_is_fixed(code, allocation, loop, tile)
    for statement in code.statements():
        mentions = statement is not allocation and tile in code.roots_of(statement.own_uses | statement.written)
        if not mentions:
            continue
        if loop not in statement.block.loops():
            # Branches and loops only steer by what their header says; what is inside them is looked at itself.
            if statement.body is None or tile in code.roots_of(statement.own_uses):
                said = f"{tile} is used on line {statement.line}, outside the loop over {loop.variable}"
                apart = [[s for s in users if (loop in s.block.loops()) is here] for here in (True, False)]
                each_its_own = all(begins_anew(code, tile, statements) for statements in apart)
                raise NotPlain(said) if each_its_own else IllegalSite(said)
        elif statement.kind in (Kind.APPEND, Kind.OPAQUE):
            raise IllegalSite(f"line {statement.line} may keep {tile} beyond its iteration")
    return _Rotation(allocation, loop, *_overwriting(code, tile, loop))


def _precedes(allocation: Statement, loop: Statement) -> bool:
    """The allocation stands earlier in its block than the statement that is, or contains, the loop."""
    statement = loop
    while statement.block is not allocation.block:
        if statement.block.owner is None:
            return False
        statement = statement.block.owner
    order = allocation.block.statements
    return order.index(allocation) < order.index(statement)


def _check_shape_is_fixed(code: KernelCode, allocation: Statement, loop: Statement, tile: str) -> None:
    for name in sorted(allocation.uses):
        for binding in code.bindings(name):
            own = binding.kind is Kind.LOOP and binding in allocation.block.loops()
            if not own and (binding.line > allocation.line or binding is loop):
                raise IllegalSite(f"{name}, which the making of {tile} needs, is bound again on line {binding.line}")


def _overwriting(code: KernelCode, tile: str, loop: Statement) -> tuple[Statement, str]:
    """With what an iteration begins its use of the tile, when that overwrites all of it; and on which condition."""
    assert loop.body is not None
    for statement in loop.body.statements:
        if tile not in code.roots_of(statement.uses | statement.written):
            continue
        where = f"the first use of {tile} in the loop over {loop.variable} (line {statement.line})"
        if statement.kind is Kind.LOOP:
            return statement, _part_by_part(code, tile, statement)
        target = _overwritten(code, tile, statement, where)
        if not isinstance(target, cst.Name) or target.value != tile:
            raise IllegalSite(f"{where} does not overwrite all of it")
        if statement.operation == "nc_matmul":
            flag = code.argument(statement, "accumulate")
            if not isinstance(flag, cst.Name) or flag.value != "False":
                raise IllegalSite(f"{where} may add to what the iteration before left (say accumulate=False)")
        return statement, ""
    raise IllegalSite(f"the loop over {loop.variable} does not use {tile}")


def _overwritten(code: KernelCode, tile: str, statement: Statement, where: str) -> cst.BaseExpression | None:
    """What an instruction that reads nothing of the tile overwrites. Raises IllegalSite."""
    if statement.kind is not Kind.INSTRUCTION or statement.operation not in OVERWRITES or statement.stateful:
        raise IllegalSite(f"{where} is no instruction that overwrites it")
    target = code.argument(statement, "dst", 0)
    if code.argument(statement, "oob_mode") is not None:
        raise IllegalSite(f"{where} may leave some of it out (oob_mode)")
    assert statement.call is not None
    for arg in statement.call.args:
        if arg.value is not target and tile in code.roots_of(loaded_names(arg.value)):
            raise IllegalSite(f"{where} also reads it")
    return target


def _part_by_part(code: KernelCode, tile: str, filling: Statement) -> str:
    """A loop that does nothing with the tile but overwrite one part after the other. Raises IllegalSite."""
    users = [s for s in filling.walk() if s.body is None and tile in code.roots_of(s.uses | s.written)]
    where = f"the loop over {filling.variable} (line {filling.line}), which uses {tile} first,"
    if len(users) != 1 or users[0].block is not filling.body or filling.count is None or filling.leaves:
        raise IllegalSite(f"{where} does more than fill it part by part")
    target = _overwritten(code, tile, users[0], where)
    if target is None or users[0].operation == "nc_matmul":
        raise IllegalSite(f"{where} may add to what it holds")
    inside = [s for s in code.statements() if filling in s.block.loops()]
    reader = AccessReader(code, filling, changing_names(filling, inside))
    access = reader.access(target, users[0])
    moving = access.moving(filling.variable)
    others = [dim for place, dim in enumerate(access.dims) if place not in moving]
    whole = all(dim == Dim(number(0), size) for dim, size in zip(access.dims, access.sizes) if dim in others)
    if access.name != tile or len(moving) != 1 or not whole:
        raise IllegalSite(f"{where} does not show that its parts are all of it")
    dim, size = access.dims[moving[0]], access.sizes[moving[0]]
    step, start = dim.start.split(filling.variable)
    filled = reader.number(filling.count, filling) * step
    if start != number(0) or dim.step != ONE or dim.dropped or not reader.same(step, dim.length, users[0]):
        raise IllegalSite(f"{where} may leave some of it out")
    if (reader.full.names(filled) | reader.full.names(size)) & filling.binds or reader.assumed:
        raise IllegalSite(f"{where} fills as much as changes from one time to the next")
    return "" if reader.same(filled, size, users[0]) else f"{filled} == {size}"


def _rewrite(code: KernelCode, rotation: _Rotation) -> cst.Module:
    allocation, loop, first = rotation.allocation, rotation.loop, rotation.filled_by
    assert loop.body is not None
    inner = loop.body.node
    at = list(inner.body).index(first.node)
    made = allocation.node.with_changes(
        leading_lines=[*_blank(first.node), *(line for line in _lines(allocation.node) if line.comment is not None)]
    )
    follower = first.node.with_changes(leading_lines=[line for line in _lines(first.node) if line.comment is not None])
    stated = []
    if rotation.covered_if:
        stated.append(parsed_statement(f'assert {rotation.covered_if}, "the parts must be all of the tile"'))
    new_inner = inner.with_changes(body=[*inner.body[:at], *stated, made, follower, *inner.body[at + 1 :]])
    outer = allocation.block.node
    changed = replace_nodes(outer, {inner: new_inner})
    assert isinstance(changed, cst.IndentedBlock)
    # replace_nodes keeps the order and number of the statements of the block itself.
    place = list(outer.body).index(allocation.node)
    body = [*changed.body[:place], *changed.body[place + 1 :]]
    result = replace_nodes(code.module, {outer: changed.with_changes(body=body)})
    assert isinstance(result, cst.Module)
    return result


def _lines(node: cst.CSTNode) -> list[cst.EmptyLine]:
    return list(getattr(node, "leading_lines", ()))


def _blank(node: cst.CSTNode) -> list[cst.EmptyLine]:
    return [line for line in _lines(node) if line.comment is None][:1]
