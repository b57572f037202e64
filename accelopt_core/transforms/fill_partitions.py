"""Put two iterations of an elementwise loop side by side on the partitions, when one fills at most half of them.

    for t in range(n):                       for t in range(n // 2):
        tile = ndarray((64, W))                  tile = ndarray((2 * 64, W))
        dma_copy(tile, x[:, t])        ->        dma_copy(tile[0:64], x[:, 2 * t])
        work(tile)                               dma_copy(tile[64:128], x[:, 2 * t + 1])
                                                 work(tile)

An engine takes as long for 64 partitions as for 128, and each DMA engine serves its own partitions.
Whether two copies fit, and may start where they do, depends on shapes: the compiler says.
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
)
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.loop_independence import check_no_shapes
from accelopt_core.transforms.loop_sites import as_factor, lines_of, loop_at
from accelopt_core.transforms.plain_names import begins_anew, bound_once
from accelopt_core.transforms.syntax import (
    content_names,
    loaded_names,
    name_nodes,
    parsed_expression,
    parsed_statement,
    replace_nodes,
)

ELEMENTWISE = frozenset(
    {
        "activation",
        "memset",
        "reciprocal",
        "scalar_tensor_tensor",
        "tensor_copy",
        "tensor_scalar",
        "tensor_tensor",
    }
)
"""Instructions that treat every partition alike and alone."""


@dataclass(frozen=True)
class _Pairing:
    loop: Statement
    tiles: dict[str, tuple[str, str]]
    """Name -> text of its partitions and of its free size."""
    transfers: tuple[Statement, ...]


class FillPartitions:
    name = "fill-partitions"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.DMA_BANDWIDTH, Cause.DMA_ISSUING, Cause.WAITING})

    def describe(self) -> str:
        return "Process two iterations of an elementwise loop at once, side by side on the partitions."

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for number, loop in enumerate(code.loops()):
            try:
                pairing = _plan(code, loop)
            except IllegalSite as error:
                context.refuse(self.name, f"{loop.variable}#{number}", loop.line, error, lines_of(loop))
                continue
            found.append(
                Site(
                    self.name,
                    f"{loop.variable}#{number}",
                    f"process two iterations of the loop over {loop.variable} at once, on twice the partitions",
                    loop.line,
                    f"the loop treats every partition of its {len(pairing.tiles)} tiles alike, and reads nothing that "
                    "it writes",
                    "an engine takes as long for half of the partitions as for all, and more DMA engines take part",
                )
            )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        loop = loop_at(code, key, key)
        return _rewrite(code, _plan(code, loop))


def _plan(code: KernelCode, loop: Statement) -> _Pairing:
    """Raises IllegalSite naming the rule that forbids it."""
    assert loop.body is not None
    if loop.count is None:
        raise IllegalSite(f"the loop over {loop.variable} does not simply count up from 0")
    statements = loop.body.statements
    tiles: dict[str, tuple[str, str]] = {}
    for statement in statements:
        if statement.kind is Kind.ALLOCATE:
            (name,) = statement.binds
            tiles[name] = _shape(code, statement, name)
    _check_no_tile_from_before(code, loop)
    if not tiles:
        raise NotOfItsKind(f"the loop over {loop.variable} makes no tiles")
    if len({partitions for partitions, _ in tiles.values()}) != 1:
        raise IllegalSite("the tiles do not all have the same partitions")
    if loop.variable in set().union(*(loaded_names(s.node) for s in statements if s.kind is Kind.ALLOCATE)):
        raise IllegalSite("the shape of a tile depends on the iteration")
    check_no_shapes(frozenset(tiles), loop)
    if code.captured & {*tiles, loop.variable}:
        raise IllegalSite("a nested function uses what would change")
    for statement in code.statements():
        if loop not in statement.block.loops() and statement is not loop and statement.own_uses & set(tiles):
            raise IllegalSite(f"a tile is used on line {statement.line}, after the loop")
    transfers = []
    for statement in statements:
        if statement.kind is Kind.INSTRUCTION and statement.operation == "dma_copy" and not statement.stateful:
            _check_transfer(code, statement, tiles)
            transfers.append(statement)
        elif statement.kind is Kind.INSTRUCTION:
            _check_elementwise(code, statement, loop.variable, tiles)
        elif statement.kind not in (Kind.ALLOCATE, Kind.CHECK) or statement.leaves or loop.variable in statement.uses:
            raise IllegalSite(f"line {statement.line} is more than a tile, a transfer or elementwise work")
    for at, statement in enumerate(statements):
        # The second half of a store moves to the end of the loop's body, so that stores keep their order.
        stored = statement.contents & set(tiles) if _is_store(code, statement, tiles) else frozenset()
        for later in statements[at + 1 :]:
            if stored & code.changed_by(later):
                raise IllegalSite(
                    f"a tile that is stored on line {statement.line} is written again on line {later.line}"
                )
    written = frozenset().union(*(code.changed_by(s) for s in transfers)) - set(tiles)
    read = code.roots_of(frozenset().union(*(s.contents - s.written for s in transfers)))
    if written & read:
        raise IllegalSite(f"the loop reads {', '.join(sorted(written & read))}, which it writes")
    return _Pairing(loop, tiles, tuple(transfers))


def _check_no_tile_from_before(code: KernelCode, loop: Statement) -> None:
    """Raises NotPlain where the loop fills a tile anew that is made before it."""
    assert loop.body is not None
    for statement in loop.body.statements:
        for tile in code.changed_by(statement) if statement.body is None else ():
            made_here = any(binding.block is loop.body for binding in code.bindings(tile))
            if not made_here and begins_anew(code, tile, loop.body.statements):
                raise NotPlain(
                    f"line {statement.line} fills {tile}, which is made before the loop over {loop.variable}"
                )


def _shape(code: KernelCode, statement: Statement, name: str) -> tuple[str, str]:
    shape = code.argument(statement, "shape", 0)
    bound_once(code, name)
    if statement.region != "sbuf":
        raise IllegalSite(f"{name} is not a tile in SBUF")
    if not isinstance(shape, cst.Tuple) or len(shape.elements) != 2:
        raise IllegalSite(f"{name} is not two-dimensional")
    partitions, free = (code.module.code_for_node(element.value) for element in shape.elements)
    return partitions, free


def _check_transfer(code: KernelCode, statement: Statement, tiles: dict[str, tuple[str, str]]) -> None:
    ends = [code.argument(statement, keyword) for keyword in ("dst", "src")]
    whole = [end for end in ends if isinstance(end, cst.Name) and end.value in tiles]
    other = [end for end in ends if end is not None and not content_names(end) & set(tiles)]
    if len(whole) != 1 or len(other) != 1 or code.regions_of(other[0]) - {"hbm", "shared_hbm", "private_hbm"}:
        raise IllegalSite(f"line {statement.line} does not move one whole tile to or from HBM")


def _is_store(code: KernelCode, statement: Statement, tiles: dict[str, tuple[str, str]]) -> bool:
    return statement.operation == "dma_copy" and not code.changed_by(statement) & set(tiles)


def _check_elementwise(
    code: KernelCode, statement: Statement, variable: str, tiles: dict[str, tuple[str, str]]
) -> None:
    if (
        statement.operation not in ELEMENTWISE
        or statement.stateful
        or code.argument(statement, "reduce_res") is not None
    ):
        raise IllegalSite(f"line {statement.line}: {statement.operation} does not treat every partition alone")
    if variable in statement.uses:
        raise IllegalSite(f"line {statement.line} depends on the iteration")
    assert statement.call is not None
    for arg in statement.call.args:
        inside = content_names(arg.value)
        if inside & set(tiles) and not isinstance(arg.value, cst.Name):
            raise IllegalSite(f"line {statement.line} works on part of a tile")
        if code.roots_of(inside) - set(tiles):
            raise IllegalSite(f"line {statement.line} reads a tile from outside the loop")


def _rewrite(code: KernelCode, pairing: _Pairing) -> cst.Module:
    loop = pairing.loop
    assert isinstance(loop.node, cst.For) and loop.body is not None and loop.count is not None
    count = code.module.code_for_node(loop.count)
    body: list[cst.CSTNode] = []
    late: list[cst.CSTNode] = []
    for statement in loop.body.statements:
        if statement.kind is Kind.ALLOCATE:
            shape = code.argument(statement, "shape", 0)
            assert isinstance(shape, cst.Tuple)
            first = shape.elements[0].value
            doubled = parsed_expression(f"2 * {as_factor(code.module.code_for_node(first))}")
            body.append(replace_nodes(statement.node, {first: doubled}))
        elif statement in pairing.transfers:
            body.append(_half_transfer(pairing, statement, 0))
            second = _half_transfer(pairing, statement, 1).with_changes(leading_lines=())
            (late if _is_store(code, statement, pairing.tiles) else body).append(second)
        else:
            body.append(statement.node)
    body += late
    check = parsed_statement(f'assert {as_factor(count)} % 2 == 0, "two tiles at a time: their number must be even"')
    assert isinstance(check, cst.SimpleStatementLine)
    new_loop = replace_nodes(
        loop.node,
        {
            loop.body.node: loop.body.node.with_changes(body=body),
            loop.count: parsed_expression(f"{as_factor(count)} // 2"),
        },
    )
    leading = list(loop.node.leading_lines)
    parent = loop.block.node
    at = list(parent.body).index(loop.node)
    statements = [
        *parent.body[:at],
        check.with_changes(leading_lines=leading),
        new_loop.with_changes(leading_lines=()),
        *parent.body[at + 1 :],
    ]
    result = replace_nodes(code.module, {parent: parent.with_changes(body=statements)})
    assert isinstance(result, cst.Module)
    return result


def _half_transfer(pairing: _Pairing, statement: Statement, half: int) -> cst.CSTNode:
    """The transfer of the first (0) or second (1) of two iterations, to or from its half of the tile."""
    variable = pairing.loop.variable
    changes: dict[cst.CSTNode, cst.CSTNode] = {}
    for node in name_nodes(statement.node):
        if node.value == variable:
            changes[node] = parsed_expression(f"(2 * {variable} + 1)" if half else f"(2 * {variable})")
        elif node.value in pairing.tiles:
            partitions, free = pairing.tiles[node.value]
            rows = f"{partitions} : 2 * {as_factor(partitions)}" if half else f"0:{partitions}"
            changes[node] = parsed_expression(f"{node.value}[{rows}, 0:{free}]")
    return replace_nodes(statement.node, changes)
