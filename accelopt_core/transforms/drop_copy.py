"""Read a tile, or a part of one, where it is, instead of a copy of it.

tensor_copy(dst=copy, src=tile)
activation(dst=y, op=exp, data=copy)       ->       activation(dst=y, op=exp, data=tile)

A copy of a PSUM tile stays where its reader cannot take it from PSUM: transfers, matmuls, transposes, anything on
GpSimd, and an instruction that reads another tile from PSUM already (NKI's documentation of each instruction).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, Site
from accelopt_core.transforms.declared import declared_dtype, declared_shape
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform, parts_written, written_by
from accelopt_core.transforms.plain_names import check_fixed, made_beside, made_once
from accelopt_core.transforms.private_tile import without
from accelopt_core.transforms.syntax import descendants, name_nodes, replace_nodes

READ_PSUM = {
    "activation": ("data",),
    "scalar_tensor_tensor": ("data", "operand1"),
    "tensor_copy": ("src",),
    "tensor_reduce": ("data",),
    "tensor_scalar": ("data",),
    "tensor_tensor": ("data1", "data2"),
}
"""Instructions that take a tile from PSUM, and the operands in which they do; of two, one at most."""


@dataclass(frozen=True)
class _Copy:
    source: cst.BaseExpression
    """What is copied: a tile by its name, a part of one, or one in another shape."""
    allocation: Statement
    """Of the copy."""
    readers: tuple[Statement, ...]


class DropCopy(InstructionTransform[_Copy]):
    name = "drop-copy"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.WAITING, Cause.TAIL})
    gone = "copies no tile into one"

    def describe(self) -> str:
        return "Read a tile where it is instead of copying it first, also from PSUM where the reader can."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        for name, copy in written_by(code, "tensor_copy"):
            if _copied(code, copy):
                yield name, copy

    def passed_over(self, code: KernelCode) -> Iterator[tuple[str, Statement, str]]:
        yield from parts_written(code, "tensor_copy")
        for name, copy in written_by(code, "tensor_copy"):
            src = code.argument(copy, "src", 1)
            if src is not None and not _copied(code, copy):
                yield name, copy, f"{name} is a copy of {code.module.code_for_node(src)}, which is no tile or slice"

    def check(self, code: KernelCode, key: str, instruction: Statement) -> _Copy:
        return _plan(code, key, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: _Copy) -> Site:
        source, whole = code.module.code_for_node(found.source), isinstance(found.source, cst.Name)
        return Site(
            self.name,
            key,
            f"read {source} itself instead of its copy {key}",
            instruction.line,
            f"{key} is a copy of {'all of ' if whole else ''}{source} in the same dtype, and neither is written "
            "afterwards",
            "one pass over the tile less",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: _Copy) -> cst.Module:
        changes: dict[cst.CSTNode, cst.CSTNode] = {}
        for reader in found.readers:
            names = [node for node in name_nodes(reader.node) if node.value == key]
            changes[reader.node] = replace_nodes(reader.node, {node: found.source.deep_clone() for node in names})
        return without(code, instruction.block, [found.allocation, instruction], changes)


def _copied(code: KernelCode, copy: Statement) -> str:
    """The tile that a copy is of, or of a part, or in another shape; empty for anything else."""
    src = code.argument(copy, "src", 1)
    base = src.value if isinstance(src, cst.Subscript) else src
    if isinstance(src, cst.Call) and isinstance(src.func, cst.Attribute) and _new_rank(src):
        base = src.func.value
    return base.value if isinstance(base, cst.Name) else ""


def _new_rank(src: cst.Call) -> int:
    """Dimensions of `tile.reshape((...))`; 0 for any other call."""
    shape = src.args[0].value if len(src.args) == 1 else None
    named = isinstance(src.func, cst.Attribute) and src.func.attr.value == "reshape"
    if not named or not isinstance(shape, cst.Tuple) or any(isinstance(e, cst.StarredElement) for e in shape.elements):
        return 0
    return len(shape.elements)


def _check_alike(
    code: KernelCode,
    one: tuple[str, Statement],
    other: tuple[str, Statement],
    *what: tuple[str, Callable[[KernelCode, Statement], str]],
) -> None:
    for keyword, declared in what:
        shown = [declared(code, allocation) for _, allocation in (one, other)]
        if shown[0] != shown[1] or not shown[0]:
            raise IllegalSite(f"{one[0]} and {other[0]} are not declared with the same {keyword}")


def _check_view(
    code: KernelCode,
    src: cst.BaseExpression,
    copied: tuple[str, Statement],
    whole: tuple[str, Statement],
    at: Statement,
) -> None:
    """A view that has the copy's dimensions, one for one, wherever the copy is read. Raises IllegalSite."""
    shape, of_whole = (code.argument(allocation, "shape", 0) for _, allocation in (copied, whole))
    rank, most = (len(each.elements) if isinstance(each, cst.Tuple) else 0 for each in (shape, of_whole))
    if isinstance(src, cst.Call):
        found = _new_rank(src)
    else:
        assert isinstance(src, cst.Subscript)
        kept = [isinstance(part.slice, cst.Slice) for part in src.slice]
        # an index takes a dimension away, but for the partitions'
        found = sum(kept) + most - len(kept) if kept[0] and all(map(_is_plain, src.slice)) else 0
    if not rank or rank != found:
        raise IllegalSite(f"{copied[0]} is a copy of a part of {whole[0]} that may have other dimensions")
    check_fixed(code, [src], f"the part of {whole[0]}", at)


def _is_plain(part: cst.SubscriptElement) -> bool:
    """An interval, or an index that is a number: no `...`, and no nl.ds or other call that stands for an interval."""
    value = part.slice.value if isinstance(part.slice, cst.Index) else None
    return value is None or not any(isinstance(node, (cst.Call, cst.Ellipsis)) for node in descendants(value))


def _reads_whole(reader: Statement, name: str) -> bool:
    assert reader.call is not None
    whole = sum(isinstance(arg.value, cst.Name) and arg.value.value == name for arg in reader.call.args)
    return whole == sum(node.value == name for node in name_nodes(reader.node))


def _plan(code: KernelCode, name: str, copy: Statement) -> _Copy:
    """Raises IllegalSite."""
    src = code.argument(copy, "src", 1)
    source = _copied(code, copy)
    assert src is not None and source
    made = made_beside(code, name, copy)
    if isinstance(src, cst.Name):
        origin = made_beside(code, source, copy)
        _check_alike(code, (name, made), (source, origin), ("shape", declared_shape), ("dtype", declared_dtype))
    else:
        origin = made_once(code, source)
        _check_alike(code, (name, made), (source, origin), ("dtype", declared_dtype))
        _check_view(code, src, (name, made), (source, origin), copy)
    order = copy.block.statements
    readers = []
    for statement in code.statements():
        if statement.body is not None or statement in (made, copy) or name not in statement.uses:
            continue
        if statement.block is not copy.block or order.index(statement) < order.index(copy):
            raise IllegalSite(f"line {statement.line} uses {name} outside the statements that follow its copy")
        if statement.kind is not Kind.INSTRUCTION or name in code.changed_by(statement):
            raise IllegalSite(f"line {statement.line} does more with {name} than read it")
        if not isinstance(src, cst.Name) and not _reads_whole(statement, name):
            raise IllegalSite(f"line {statement.line} reads a part of {name}, which is a part itself")
        readers.append(statement)
    if not readers:
        raise IllegalSite(f"nothing reads {name}")
    last = max(order.index(reader) for reader in readers)
    for between in order[order.index(copy) + 1 : last + 1]:
        if between.kind is Kind.OPAQUE or source in code.changed_by(between):
            raise IllegalSite(f"line {between.line} changes {source} while its copy is still read")
    if "psum" == origin.region != made.region:
        for reader in readers:
            _check_reads_psum(code, reader, name)
    elif origin.region != made.region:
        raise IllegalSite(f"{source} lies in {origin.region}, its copy in {made.region}")
    return _Copy(src, made, tuple(readers))


def _check_reads_psum(code: KernelCode, reader: Statement, name: str) -> None:
    operands = READ_PSUM.get(reader.operation)
    if operands is None:
        raise IllegalSite(f"{reader.operation} on line {reader.line} does not read from PSUM")
    engine = code.argument(reader, "engine")
    if engine is not None and code.qualified(engine).rpartition(".")[2] not in ("vector", "scalar"):
        raise IllegalSite(f"line {reader.line} runs on an engine that may have no path to PSUM")
    from_psum = 0
    for keyword in operands:
        value = code.argument(reader, keyword)
        if value is not None and (name in _loaded(value) or "psum" in code.regions_of(value)):
            from_psum += 1
    assert reader.call is not None
    elsewhere = [a for a in reader.call.args if a.keyword is None or a.keyword.value not in operands]
    if any(name in _loaded(argument.value) for argument in elsewhere):
        raise IllegalSite(f"line {reader.line} takes {name} as an operand that must be in SBUF")
    if from_psum > 1:
        raise IllegalSite(f"line {reader.line} would read two tiles from PSUM")


def _loaded(value: cst.BaseExpression) -> frozenset[str]:
    return frozenset(node.value for node in name_nodes(value))
