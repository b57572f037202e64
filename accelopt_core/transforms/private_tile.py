"""Tiles that one instruction writes and one reads: what stands between the two, and taking them away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.declared import declared_dtype
from accelopt_core.transforms.kernel_code import Block, KernelCode, Kind, Statement
from accelopt_core.transforms.plain_names import made_beside
from accelopt_core.transforms.syntax import loaded_names, replace_nodes


@dataclass(frozen=True)
class PrivateTile:
    """All three statements are in one block, in this order (the allocation may come anywhere before the writer)."""

    name: str
    allocation: Statement
    writer: Statement
    reader: Statement


def private_tile(code: KernelCode, writer: Statement) -> PrivateTile:
    """Of the tile that an instruction writes whole, by its bare name. Raises IllegalSite when others touch it."""
    dst = code.argument(writer, "dst", 0)
    if not isinstance(dst, cst.Name):
        raise IllegalSite(f"line {writer.line} does not write a whole tile")
    name = dst.value
    made = made_beside(code, name, writer)
    users = [s for s in code.statements() if s.body is None and name in s.uses and s is not writer]
    if len(users) != 1 or users[0].block is not writer.block or users[0].kind is not Kind.INSTRUCTION:
        raise IllegalSite(f"{name} is not read by exactly one other instruction of its block")
    (reader,) = users
    if name in code.changed_by(reader):
        raise IllegalSite(f"line {reader.line} changes {name}")
    order = writer.block.statements
    if not order.index(made) < order.index(writer) < order.index(reader):
        raise IllegalSite(f"{name} is read before it is written")
    return PrivateTile(name, made, writer, reader)


def check_unchanged(code: KernelCode, expressions: list[cst.BaseExpression], tile: PrivateTile) -> None:
    """The expressions mean the same at the reader as at the writer. Raises IllegalSite."""
    names = frozenset[str]().union(*(loaded_names(expression) for expression in expressions))
    buffers = code.roots_of(names)
    order = tile.writer.block.statements
    for between in order[order.index(tile.writer) + 1 : order.index(tile.reader)]:
        if between.kind is Kind.OPAQUE or between.binds & names or code.changed_by(between) & buffers:
            raise IllegalSite(f"line {between.line} changes what {tile.name} was computed from")
    if code.changed_by(tile.reader) & buffers:
        raise IllegalSite(f"line {tile.reader.line} writes what {tile.name} was computed from")


def is_float32(code: KernelCode, expression: cst.BaseExpression) -> bool:
    """Every buffer it may stand for is declared float32."""
    found = code.allocations_of(expression)
    return bool(found) and all(declared_dtype(code, each) == "nki.language.float32" for each in found)


def without(
    code: KernelCode, block: Block, gone: list[Statement], changed: Mapping[cst.CSTNode, cst.CSTNode]
) -> cst.Module:
    """The module with statements of one block removed and calls replaced; comments of what goes stay."""
    comments: list[cst.EmptyLine] = []
    body: list[cst.BaseStatement] = []
    leaving = {statement.node for statement in gone}
    for child in block.node.body:
        lines = list(getattr(child, "leading_lines", ()))
        if child in leaving:
            comments += [line for line in lines if line.comment is not None]
            continue
        made = replace_nodes(child, dict(changed))
        if comments:
            made = made.with_changes(leading_lines=[*comments, *lines])
            comments = []
        assert isinstance(made, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        body.append(made)
    return code.changed({block.node: block.node.with_changes(body=body)})
