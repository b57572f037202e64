"""Leave out a memset of a tile whose elements are overwritten before anything reads them, or that nothing reads.

tile = ndarray((128, n))                     tile = ndarray((128, n))
memset(tile, 0)                       ->     dma_copy(dst=tile[0:rows, 0:n], src=x)
dma_copy(dst=tile[0:rows, 0:n], src=x)       use(tile[0:rows, 0:n])
use(tile[0:rows, 0:n])
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, Site
from accelopt_core.transforms.isa_effects import WRITTEN_ARGUMENTS
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform, counted
from accelopt_core.transforms.operand_access import ONE, Access, AccessReader, Dim, arguments_of
from accelopt_core.transforms.plain_names import check_same_meaning, made_beside
from accelopt_core.transforms.syntax import content_names

_OVERWRITE = frozenset(
    {
        "activation",
        "dma_copy",
        "iota",
        "memset",
        "reciprocal",
        "scalar_tensor_tensor",
        "tensor_copy",
        "tensor_reduce",
        "tensor_scalar",
        "tensor_tensor",
        "tensor_tensor_scan",
    }
)
"""Instructions that write every element of what they are given to write, whatever was there."""


class DropMemset(InstructionTransform[Statement]):
    name = "drop-memset"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.WAITING, Cause.START_UP})
    gone = "sets no tile"

    def describe(self) -> str:
        return "Leave out a memset whose elements are all overwritten before they are read, or never read."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        def named() -> Iterator[tuple[str, Statement]]:
            for statement in code.statements():
                if statement.operation == "memset":
                    dst = code.argument(statement, "dst", 0)
                    base = dst.value if isinstance(dst, cst.Subscript) else dst
                    if isinstance(base, cst.Name) and code.regions_of(base) == {"sbuf"}:
                        yield base.value, statement

        return counted(named())

    def check(self, code: KernelCode, key: str, instruction: Statement) -> Statement:
        return _overwriting(code, key.partition("#")[0], instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: Statement) -> Site:
        return Site(
            self.name,
            key,
            f"leave out the memset of {key}",
            instruction.line,
            f"line {found.line} writes all that is read of it first",
            "an engine does not write what nobody reads",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: Statement) -> cst.Module:
        block = instruction.block.node
        comments = [line for line in getattr(instruction.node, "leading_lines", ()) if line.comment is not None]
        body = list(block.body)
        at = body.index(instruction.node)
        body.pop(at)
        after = body[at]  # what overwrites it comes later in this block
        body[at] = after.with_changes(leading_lines=[*comments, *getattr(after, "leading_lines", ())])
        return code.changed({block: block.with_changes(body=body)})


def _overwriting(code: KernelCode, tile: str, memset: Statement) -> Statement:
    """What writes every element that is ever read of the tile, after the memset. Raises IllegalSite."""
    made = made_beside(code, tile, memset)
    users = [s for s in code.statements() if s is not made and s is not memset and tile in s.own_uses | s.written]
    users = [user for user in users if user.body is None or tile in user.own_uses]
    if not users:
        raise IllegalSite(f"nothing uses {tile}")
    for user in users:
        if user.kind is not Kind.INSTRUCTION or user.line < memset.line:
            raise IllegalSite(f"line {user.line} uses {tile} otherwise than an instruction after the memset does")
    first = users[0]
    reader = AccessReader(code)
    written = [value for value, is_written in _operands(code, first, tile) if is_written]
    if first.block is not memset.block or len(written) != len(_operands(code, first, tile)) or len(written) != 1:
        raise IllegalSite(f"line {first.line}, which uses {tile} first, does not only overwrite it, in the same block")
    if first.operation not in _OVERWRITE or first.stateful or code.argument(first, "oob_mode") is not None:
        raise IllegalSite(f"line {first.line} may leave a part of {tile} as it was")
    filled = reader.access(written[0], first)
    for user in users[1:]:
        for value, _ in _operands(code, user, tile):
            access = reader.access(value, user)
            for at, each in ((first, filled), (user, access)):
                check_same_meaning(code, _names(reader, each, at), first, user)
            if access.name != tile or not _is_within(reader, access, user, filled, first):
                raise IllegalSite(f"line {user.line} may use elements of {tile} that line {first.line} does not write")
    return first


def _operands(code: KernelCode, user: Statement, tile: str) -> list[tuple[cst.BaseExpression, bool]]:
    """Those that are the tile or part of it, and whether they are written."""
    written = WRITTEN_ARGUMENTS[user.operation]
    return [(value, name in written) for name, value in arguments_of(user).items() if tile in content_names(value)]


def _names(reader: AccessReader, access: Access, at: Statement) -> frozenset[str]:
    """That say which part it is."""
    parts = (reader.full.expanded(p, at) for dim in access.dims for p in (dim.start, dim.length, dim.step))
    return frozenset[str]().union(*map(reader.full.names, parts))


def _is_within(reader: AccessReader, inner: Access, at: Statement, outer: Access, first: Statement) -> bool:
    def expanded(dim: Dim, where: Statement) -> Dim:
        start, length = (reader.full.expanded(each, where) for each in (dim.start, dim.length))
        return Dim(start, length, dim.step)

    for one, other in zip(inner.dims, outer.dims):
        small, large = expanded(one, at), expanded(other, first)
        if large.step != ONE:
            if small != large:
                return False
            continue
        last = small.start + (small.length - ONE) * small.step
        before, after = small.start - large.start, large.start + large.length - ONE - last
        if not all(each.adds_up for each in (before, after)):
            return False
    return True
