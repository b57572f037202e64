"""Load one row to every partition at once, instead of to one and from there to the others.

dma_copy(dst=row, src=x[i : i + 1, 0:n])         all = ndarray((128, n), dtype=row's, buffer=sbuf)
all = nl.broadcast_to(row, (128, n))       ->    dma_copy(dst=all, src=x[i : i + 1, 0:n].broadcast(0, 128))

The same where a column of ones times the row is the broadcast: nc_matmul(dst=all, stationary=ones, moving=row).

On chip a row reaches other partitions by work of the Vector or the Tensor engine; a transfer may read it many times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, Site
from accelopt_core.transforms.declared import declared_dtype
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform
from accelopt_core.transforms.operand_access import HBM, arguments_of
from accelopt_core.transforms.plain_names import bound_once, check_fixed, made_beside, made_once
from accelopt_core.transforms.syntax import content_names, loaded_names, parsed_statement, replace_nodes

BROADCAST = "nki.language.broadcast_to"


@dataclass(frozen=True)
class _Broadcast:
    allocation: Statement
    """Of the row."""
    load: Statement
    lines: tuple[str, ...]
    """What makes and fills the tile instead."""
    in_psum: Statement | None
    """The allocation of the tile, if it lies in PSUM so far."""
    is_only_reader: bool


class BroadcastByDma(InstructionTransform[_Broadcast]):
    name = "broadcast-by-dma"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.WAITING})
    gone = "broadcasts nothing to a tile"

    def describe(self) -> str:
        return "Load a row to all partitions in one transfer, instead of broadcasting it on chip (nl.broadcast_to)."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        for statement in code.statements():
            if _broadcast(code, statement) is not None and len(statement.binds) == 1:
                yield next(iter(statement.binds)), statement
            elif statement.operation == "nc_matmul" and _is_of_ones(code, code.argument(statement, "stationary", 1)):
                dst = code.argument(statement, "dst", 0)
                if isinstance(dst, cst.Name):
                    yield dst.value, statement

    def check(self, code: KernelCode, key: str, instruction: Statement) -> _Broadcast:
        return _product(code, key, instruction) if instruction.call is not None else _plan(code, key, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: _Broadcast) -> Site:
        return Site(
            self.name,
            key,
            f"load {key} to all partitions from where line {found.load.line} loads its row",
            instruction.line,
            "the row is loaded whole, and neither it nor where it comes from is written anywhere else",
            "no engine copies the row from partition to partition",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: _Broadcast) -> cst.Module:
        made: list[cst.CSTNode] = [parsed_statement(line) for line in found.lines]
        leading = getattr(instruction.node, "leading_lines", ())
        made[0] = made[0].with_changes(leading_lines=leading)
        gone = {found.allocation.node, found.load.node} if found.is_only_reader else set()
        body: list[cst.CSTNode] = []
        for child in instruction.block.node.body:
            if child is instruction.node:
                body += made
            elif found.in_psum is not None and child is found.in_psum.node:
                body.append(_in_sbuf(code, found.in_psum))
            elif child not in gone:
                body.append(child)
        return code.changed({instruction.block.node: instruction.block.node.with_changes(body=body)})


def _broadcast(code: KernelCode, statement: Statement) -> cst.Call | None:
    node = statement.node
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
    value = small.value if isinstance(small, cst.Assign) else None
    return value if isinstance(value, cst.Call) and code.qualified(value.func) == BROADCAST else None


def _plan(code: KernelCode, name: str, statement: Statement) -> _Broadcast:
    """Raises IllegalSite."""
    call = _broadcast(code, statement)
    assert call is not None
    arguments = {arg.keyword.value if arg.keyword is not None else at: arg.value for at, arg in enumerate(call.args)}
    row, shape = arguments.pop(0, arguments.pop("x", None)), arguments.pop(1, arguments.pop("shape", None))
    if arguments or not isinstance(row, cst.Name) or not isinstance(shape, (cst.Tuple, cst.List)):
        raise IllegalSite(f"line {statement.line} does more than broadcast a tile to a shape that is written out")
    if len(shape.elements) < 2 or any(isinstance(each, cst.StarredElement) for each in shape.elements):
        raise IllegalSite(f"line {statement.line} broadcasts to a shape that does not show")
    bound_once(code, name)
    if name in code.captured:
        raise IllegalSite(f"{name} is used by a nested function or declared global")
    text = code.module.code_for_node
    rows = text(shape.elements[0].value)
    allocation, load, fill, isa, stated = _source(code, row.value, rows, statement)
    dtype = code.argument(allocation, "dtype", 1)
    if dtype is None or not isinstance(call.func, cst.Attribute):
        raise IllegalSite(f"the dtype of {row.value} does not show")
    nl = text(call.func.value)
    made = f"{name} = {nl}.ndarray({text(shape)}, dtype={text(dtype)}, buffer={nl}.sbuf)"
    lines = (*stated, made, f"{isa}.dma_copy(dst={name}, src={fill})")
    return _Broadcast(allocation, load, lines, None, _is_only_reader(code, row.value, allocation, load, statement))


def _product(code: KernelCode, name: str, product: Statement) -> _Broadcast:
    """Of a column of ones with a row. Raises IllegalSite."""
    given = arguments_of(product)
    row = given.get("moving")
    if not set(given) <= {"dst", "stationary", "moving", "is_stationary_onezero"} or not isinstance(row, cst.Name):
        raise IllegalSite(f"the nc_matmul on line {product.line} does more than broadcast a whole row")
    tile = made_beside(code, name, product)
    shape = code.argument(tile, "shape", 0)
    if not isinstance(shape, (cst.Tuple, cst.List)) or len(shape.elements) != 2:
        raise IllegalSite(f"the shape of {name} does not show")
    if [writer for writer in code.writers(name) if writer is not product] or name in code.captured:
        raise IllegalSite(f"{name} is written elsewhere, too, or used by a nested function")
    rows = code.module.code_for_node(shape.elements[0].value)
    allocation, load, fill, isa, stated = _source(code, row.value, rows, product)
    if declared_dtype(code, tile) != declared_dtype(code, allocation) or not declared_dtype(code, tile):
        raise IllegalSite(f"{name} and {row.value} are not declared with the same dtype")
    if not isinstance(code.argument(tile, "buffer", 2), cst.Attribute):
        raise IllegalSite(f"where {name} lies does not show")
    lines = (*stated, f"{isa}.dma_copy(dst={name}, src={fill})")
    return _Broadcast(allocation, load, lines, tile, _is_only_reader(code, row.value, allocation, load, product))


def _is_of_ones(code: KernelCode, stationary: cst.BaseExpression | None) -> bool:
    """A tile of one partition that is set to 1, and to nothing else."""
    if not isinstance(stationary, cst.Name):
        return False
    bindings, writers = code.bindings(stationary.value), code.writers(stationary.value)
    if len(bindings) != 1 or bindings[0].kind is not Kind.ALLOCATE or [w.operation for w in writers] != ["memset"]:
        return False
    shape, value = code.argument(bindings[0], "shape", 0), code.argument(writers[0], "value", 1)
    dst = code.argument(writers[0], "dst", 0)
    return (
        isinstance(shape, (cst.Tuple, cst.List))
        and code.module.code_for_node(shape.elements[0].value) == "1"
        and isinstance(value, (cst.Integer, cst.Float))
        and value.evaluated_value == 1
        and isinstance(dst, cst.Name)
    )


def _in_sbuf(code: KernelCode, tile: Statement) -> cst.CSTNode:
    buffer = code.argument(tile, "buffer", 2)
    assert isinstance(buffer, cst.Attribute)
    return replace_nodes(tile.node, {buffer: buffer.with_changes(attr=cst.Name("sbuf"))})


def _source(
    code: KernelCode, row: str, rows: str, statement: Statement
) -> tuple[Statement, Statement, str, str, tuple[str, ...]]:
    """The row's allocation, its load, where to load it from for so many partitions, the name of nki.isa, and what to
    state first."""
    allocation = made_once(code, row)
    load = _load(code, row, statement)
    source = code.argument(load, "src", 1)
    assert source is not None and load.call is not None
    source, stated = _in_memory(code, row, allocation, load, source)
    if not isinstance(source, (cst.Name, cst.Subscript, cst.Call)) or not code.regions_of(source) <= HBM:
        raise IllegalSite(f"{row} is not loaded from HBM (line {load.line})")
    for root in code.roots_of(content_names(source)):
        for writer in code.writers(root):
            raise IllegalSite(f"{root}, from where the row comes, is written on line {writer.line}")
    _check_same_value(code, source, load, statement)
    if not isinstance(load.call.func, cst.Attribute):
        raise IllegalSite(f"line {load.line}: the name of nki.isa is not at hand")
    text = code.module.code_for_node
    return allocation, load, f"{text(source)}.broadcast(0, {rows})", text(load.call.func.value), stated


def _in_memory(
    code: KernelCode, row: str, allocation: Statement, load: Statement, source: cst.BaseExpression
) -> tuple[cst.BaseExpression, tuple[str, ...]]:
    """Where a part of a tile lies that is itself loaded whole, from a buffer in HBM by its name; else the source.

    With what is to be stated: a transfer may give the elements of a buffer another shape.
    """
    part = source.value if isinstance(source, cst.Subscript) else source
    bindings = code.bindings(part.value) if isinstance(part, cst.Name) else []
    if not isinstance(part, cst.Name) or [b.kind for b in bindings] != [Kind.ALLOCATE] or bindings[0].region != "sbuf":
        return source, ()
    made = made_once(code, part.value)
    first = _load(code, part.value, load)
    memory = code.argument(first, "src", 1)
    same_dtype = declared_dtype(code, made) == declared_dtype(code, allocation) != ""
    if not isinstance(memory, cst.Name) or not same_dtype:
        raise IllegalSite(f"{row} is part of {part.value}, which is not a buffer of HBM loaded whole in the same dtype")
    if not isinstance(source, cst.Subscript):
        return memory, ()
    shape = code.argument(made, "shape", 0)
    if not isinstance(shape, cst.Tuple):
        raise IllegalSite(f"the shape of {part.value} does not show")
    check_fixed(code, [shape], part.value, load)
    alike = f"assert tuple({memory.value}.shape) == {code.module.code_for_node(shape)}"
    return source.with_changes(value=memory), (f'{alike}, "{memory.value} must have the shape of {part.value}"',)


def _is_only_reader(code: KernelCode, row: str, allocation: Statement, load: Statement, statement: Statement) -> bool:
    others = [s for s in code.statements() if row in s.own_uses and s not in (allocation, load, statement)]
    return allocation.block is load.block is statement.block and not others


def _load(code: KernelCode, row: str, statement: Statement) -> Statement:
    """The one transfer that fills the row, around or before the broadcast."""
    writers = [s for s in code.writers(row) if _broadcast(code, s) is None]
    if len(writers) != 1 or writers[0].operation != "dma_copy":
        raise IllegalSite(f"{row} is not filled by one transfer alone")
    (load,) = writers
    dst = code.argument(load, "dst", 0)
    if set(arguments_of(load)) != {"dst", "src"} or not isinstance(dst, cst.Name) or dst.value != row:
        raise IllegalSite(f"line {load.line} loads a part of {row}, or says more than from where to where")
    around = (statement.block, *(owner.block for owner in statement.block.loops()))
    if load.block not in around or load.line > statement.line:
        raise IllegalSite(f"line {load.line} does not always come before line {statement.line}")
    return load


def _check_same_value(code: KernelCode, source: cst.BaseExpression, load: Statement, statement: Statement) -> None:
    for name in sorted(loaded_names(source)):
        bindings = code.bindings(name)
        if len(bindings) > 1 or (bindings and bindings[0].kind is Kind.OPAQUE):
            raise IllegalSite(f"{name}, which tells where the row lies, may have changed by line {statement.line}")
        if bindings and bindings[0].kind is Kind.LOOP and bindings[0] not in load.block.loops():
            raise IllegalSite(f"{name}, which tells where the row lies, is the variable of another loop")
