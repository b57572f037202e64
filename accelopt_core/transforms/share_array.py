"""Let products of few rows work side by side on the Tensor engine's array, each on a part of its rows.

for n in range(N):                                  for n in range(N // 2):
    dma_copy(dst=b, src=y[n])                           dma_copy(dst=b[0:64], src=y[n])
    nc_matmul(dst=acc, stationary=a,                    dma_copy(dst=b[64:128], src=y[n + N // 2])
              moving=b)                      ->         nc_matmul(dst=acc, stationary=a[0:64], moving=b[0:64],
    work(acc, n)                                                  tile_position=(0, 0), tile_size=(64, 128))
                                                        nc_matmul(dst=acc_1, stationary=a[64:128], moving=b[64:128],
                                                                  tile_position=(64, 0), tile_size=(64, 128))
                                                        work(acc, n)
                                                        work(acc_1, n + N // 2)

A product of at most 64 rows uses half of the array, and the throttle counts it as half a load. What is made before the
loop is copied to every part of the partitions. Where iterations may come in any order, each part of the array takes a
stretch of them; else the parts take turns, in step where no iteration touches what the next one writes. NKI's page of
nc_matmul, tiling mode, documents the array's tiles; partition p of SBUF feeds row p of the array (Trainium2
architecture guide).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, NotOfItsKind, Site
from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.kernel_code import Block, KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.loop_independence import check_independent
from accelopt_core.transforms.loop_sites import as_factor, lines_of, loop_and_factor
from accelopt_core.transforms.operand_access import ONE, Access, AccessReader, arguments_of, base_name
from accelopt_core.transforms.plain_names import made_once
from accelopt_core.transforms.substitution import substituted
from accelopt_core.transforms.syntax import name_nodes, parsed_expression, parsed_statement, replace_nodes

ROWS = 128
"""Of the array, and partitions of SBUF."""
PARTS = (2, 4)
"""Row tiles are 64 or 32 rows high."""
_LINE = cst.SimpleStatementLine
_COPIED = frozenset({Kind.ALLOCATE, Kind.INSTRUCTION, Kind.DEFINE, Kind.CHECK, Kind.LOOP})


class _Order(Enum):
    """Of the iterations, and what makes it right."""

    STRETCHES = "iterations may come in any order"
    IN_STEP = "no iteration touches what the next one writes"
    ONE_BY_ONE = "iterations keep their order"


@dataclass(frozen=True)
class _Operand:
    node: cst.BaseExpression
    access: Access


@dataclass(frozen=True, eq=False)
class _Tile:
    """Stationary or moving: what every part of the array reads on its own partitions."""

    name: str
    made: Statement
    rows: Polynomial
    """Partitions that it has now."""
    operands: Mapping[Statement, tuple[_Operand, ...]]
    """Wherever it is an operand."""
    is_made_inside: bool


@dataclass(frozen=True)
class _Sharing:
    loop: Statement
    products: tuple[Statement, ...]
    tiles: tuple[_Tile, ...]
    order: _Order

    def operands(self, statement: Statement) -> list[_Operand]:
        return [operand for tile in self.tiles for operand in tile.operands.get(statement, ())]

    @property
    def filling(self) -> frozenset[Statement]:
        """Instructions before the loop that fill a tile."""
        return frozenset(
            statement
            for tile in self.tiles
            for statement in tile.operands
            if not tile.is_made_inside and tile.name in statement.written
        )


class ShareArray:
    name = "share-array"
    addresses = frozenset({Cause.MATMUL, Cause.THROTTLED, Cause.WAITING})

    def describe(self) -> str:
        return "Let the products of 2 or 4 iterations, of at most 64 or 32 rows each, share the Tensor engine's array."

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for place, loop in enumerate(code.loops()):
            for parts in PARTS:
                key = f"{loop.variable}#{place}x{parts}"
                try:
                    sharing = _plan(code, loop, parts)
                except IllegalSite as error:
                    context.refuse(self.name, key, loop.line, error, lines_of(loop))
                    break
                found.append(
                    Site(
                        self.name,
                        key,
                        f"let the products of {parts} iterations over {loop.variable} work on {ROWS // parts} rows of "
                        "the array each",
                        sharing.products[0].line,
                        "each product keeps its operands, on other partitions, and has a tile of PSUM of its own; "
                        + sharing.order.value,
                        f"{parts} products that leave most of the array idle take the time of one",
                    )
                )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        loop, parts = loop_and_factor(code, key)
        if parts not in PARTS:
            raise IllegalSite(f"the array has tiles of {' or '.join(str(ROWS // p) for p in PARTS)} rows")
        return _rewritten(code, _plan(code, loop, parts), parts)


# --- legality -------------------------------------------------------------------------------------


def _plan(code: KernelCode, loop: Statement, parts: int) -> _Sharing:
    """Raises IllegalSite naming the rule that forbids it."""
    assert loop.body is not None
    products = tuple(s for s in loop.body.statements if s.operation == "nc_matmul")
    if not products:
        raise NotOfItsKind(f"no product in the loop over {loop.variable} itself")
    if loop.count is None:
        raise IllegalSite(f"the loop over {loop.variable} does not simply count up from 0")
    trips = code.module.code_for_node(loop.count)
    if trips.isdecimal() and int(trips) % parts:
        raise NotOfItsKind(f"{trips} iterations do not come out even")
    reader = AccessReader(code)
    names: dict[str, str] = {}
    for product in products:
        names.update(_operand_tiles(code, reader, loop, product, ROWS // parts))
    for statement in (inner for outer in loop.body.statements for inner in outer.walk()):
        if statement.kind not in _COPIED or statement.leaves:
            raise IllegalSite(f"line {statement.line} cannot be done for two iterations in turn")
    tiles = tuple(_tile(code, reader, loop, name, held) for name, held in names.items())
    _check_names(code, loop)
    return _Sharing(loop, products, tiles, _order(code, loop))


def _order(code: KernelCode, loop: Statement) -> _Order:
    try:
        check_independent(code, loop)
    except IllegalSite:
        return _Order.IN_STEP if _can_go_in_step(code, loop) else _Order.ONE_BY_ONE
    return _Order.STRETCHES


def _can_go_in_step(code: KernelCode, loop: Statement) -> bool:
    """No statement of one iteration touches what another statement of the next one writes."""
    assert loop.body is not None
    touched: dict[str, list[Statement]] = {}
    for statement in loop.body.statements:
        if statement.stateful:
            return False
        for root in code.roots_of(statement.contents | statement.written):
            touched.setdefault(root, []).append(statement)
    return all(
        len(users) == 1 or all(made in loop.body.statements for made in code.bindings(root) or [loop])
        for root, users in touched.items()
        if any(root in code.changed_by(user) for user in users)
    )


def _operand_tiles(
    code: KernelCode, reader: AccessReader, loop: Statement, product: Statement, most_rows: int
) -> dict[str, str]:
    """The names of what a product multiplies, each with that of the list that holds it, if any. Raises IllegalSite."""
    where = f"line {product.line}"
    given = arguments_of(product)
    if set(given) - {"dst", "stationary", "moving", "accumulate"} or not {"dst", "stationary", "moving"} <= set(given):
        raise IllegalSite(f"{where} says more than what is multiplied, and where to")
    dst = base_name(given["dst"])
    if not dst or made_once(code, dst).block is not loop.body:
        raise IllegalSite(f"what {where} fills is not made in the loop over {loop.variable} alone")
    names = {}
    for keyword in ("stationary", "moving"):
        element = _element(code, given[keyword])
        if element is None:
            raise IllegalSite(f"{where}: {keyword} is neither a tile nor one of a list that grows by one tile a time")
        rows = reader.full.expanded(reader.access(element.in_tile, product).dims[0].length, product).value
        if rows is not None and rows > most_rows:
            raise NotOfItsKind(f"{where} multiplies {rows} rows")
        names[element.tile] = element.held
    return names


@dataclass(frozen=True)
class _Element:
    """What an operand names: a tile, or one of those that a list holds."""

    tile: str
    """As it is called where it is made."""
    held: str
    """The list; empty where the tile is named itself."""
    text: str
    """The whole tile, as the operand names it."""
    in_tile: cst.BaseExpression
    """The operand, of the tile by its own name."""


def _element(code: KernelCode, operand: cst.BaseExpression) -> _Element | None:
    base = operand.value if isinstance(operand, cst.Subscript) else operand
    if isinstance(base, cst.Name) and not _held_by(code, base.value):
        return _Element(base.value, "", base.value, operand)
    whole = operand if isinstance(base, cst.Name) else base
    held = base_name(whole)
    tile = _held_by(code, held)
    if not tile or not isinstance(whole, cst.Subscript) or len(whole.slice) != 1:
        return None
    if not isinstance(whole.slice[0].slice, cst.Index):
        return None
    in_tile = cst.Name(tile) if whole is operand else operand.with_changes(value=cst.Name(tile))
    return _Element(tile, held, code.module.code_for_node(whole), in_tile)


def _held_by(code: KernelCode, name: str) -> str:
    """The tile that every element of a list was when it was appended; empty where the name is no such list."""
    bindings = code.bindings(name)
    if len(bindings) != 1 or bindings[0].kind is not Kind.DEFINE or not isinstance(bindings[0].node, _LINE):
        return ""
    (small,) = bindings[0].node.body
    if not isinstance(small, cst.Assign) or not isinstance(small.value, cst.List) or small.value.elements:
        return ""
    appends = [s for s in code.statements() if s.kind is Kind.APPEND and name in s.written]
    given = [s.call.args[0].value for s in appends if s.call is not None]
    return given[0].value if len(given) == 1 and isinstance(given[0], cst.Name) else ""


def _tile(code: KernelCode, reader: AccessReader, loop: Statement, name: str, held: str) -> _Tile:
    """Raises IllegalSite where nobody can tell what the tile holds."""
    made = made_once(code, name)
    if made.region != "sbuf":
        raise IllegalSite(f"{name} is not a tile of SBUF")
    is_inside = made.block is loop.body
    if not is_inside and loop in made.block.loops():
        raise IllegalSite(f"{name} is made in another loop within that over {loop.variable}")
    if any(other not in (name, held) and name in roots for other, roots in code.roots.items()):
        raise IllegalSite(f"{name} has another name too")
    sizes = reader.sizes(name)
    if sizes is None or loop.variable in sizes[0].factors:
        raise IllegalSite(f"{name} does not show its shape")
    operands: dict[Statement, tuple[_Operand, ...]] = {}
    for statement in code.statements():
        if statement.body is not None or statement is made or not statement.uses & {name, held}:
            continue
        if statement.kind is Kind.APPEND and statement.written == {held} and statement.block is made.block:
            continue
        within = loop in statement.block.loops()
        if is_inside and not within:
            raise IllegalSite(f"{name} is used on line {statement.line}, after the loop over {loop.variable}")
        operands[statement] = _operands_in(code, reader, statement, name, held)
        if is_inside or not statement.written & {name, held}:
            continue
        if within:
            raise IllegalSite(
                f"{name} is made before the loop over {loop.variable}, and written on line {statement.line}"
            )
        dst = code.argument(statement, "dst", 0)
        if code.changed_by(statement) != {name} or dst is None or base_name(dst) != name:
            raise IllegalSite(f"line {statement.line} does more than fill {name}")
        if statement.call is None or not isinstance(statement.call.func, cst.Attribute):
            raise IllegalSite(f"line {statement.line}: the name of nki.isa is not at hand")
    return _Tile(name, made, sizes[0], operands, is_inside)


def _operands_in(
    code: KernelCode, reader: AccessReader, statement: Statement, name: str, held: str
) -> tuple[_Operand, ...]:
    """Of the tile, in one instruction; it stands nowhere else in that. Raises IllegalSite."""
    if statement.kind is not Kind.INSTRUCTION:
        raise IllegalSite(f"line {statement.line} uses {name} other than as an operand")
    found = []
    for value in arguments_of(statement).values():
        element = _element(code, value)
        if element is not None and element.tile == name:
            access = reader.access(element.in_tile, statement)
            if access.dims[0].dropped or access.dims[0].step != ONE:
                raise IllegalSite(f"line {statement.line} takes single partitions of {name}")
            found.append(_Operand(value, replace(access, name=element.text)))
    if len(found) != sum(node.value in (name, held) for node in name_nodes(statement.node)):
        raise IllegalSite(f"line {statement.line} uses {name} other than as an operand")
    return tuple(found)


def _check_names(code: KernelCode, loop: Statement) -> None:
    """What an iteration binds is its own, so that the next can have names of its own. Raises IllegalSite."""
    if code.captured & loop.binds:
        raise IllegalSite(f"a nested function uses what the loop over {loop.variable} binds")
    for name in sorted(loop.binds):
        if any(loop not in s.block.loops() and s is not loop for s in code.bindings(name)):
            raise IllegalSite(f"{name} is bound in the loop over {loop.variable} and elsewhere")
    for statement in code.statements():
        if statement is not loop and loop not in statement.block.loops() and statement.own_uses & loop.binds:
            raise IllegalSite(f"line {statement.line} uses what the loop over {loop.variable} leaves behind")


# --- rewriting ------------------------------------------------------------------------------------


def _rewritten(code: KernelCode, sharing: _Sharing, parts: int) -> cst.Module:
    rows = ROWS // parts
    instead: dict[cst.CSTNode, Sequence[cst.CSTNode]] = {sharing.loop.node: _loop(code, sharing, parts)}
    bounds = _bounds(sharing, parts)
    for tile in sharing.tiles:
        if not tile.is_made_inside:
            bound = bounds.get(tile)
            check = [parsed_statement(bound)] if bound is not None else []
            instead[tile.made.node] = [*check, _allocation(code, tile, parts)]
            for statement in tile.operands:
                if sharing.loop not in statement.block.loops():
                    instead[statement.node] = [_on_part(sharing, statement, 0, rows)]
    for statement in sharing.filling:
        instead[statement.node] = [_on_part(sharing, statement, 0, rows), *_copies(code, sharing, statement, parts)]
    return code.changed({code.function.body: _block(code.body, instead)})


def _block(block: Block, instead: Mapping[cst.CSTNode, Sequence[cst.CSTNode]]) -> cst.IndentedBlock:
    body: list[cst.CSTNode] = []
    for statement in block.statements:
        if statement.node in instead:
            body += instead[statement.node]
        elif statement.body is not None:
            body.append(statement.node.with_changes(body=_block(statement.body, instead)))
        else:
            body.append(statement.node)
    return block.node.with_changes(body=body)


def _loop(code: KernelCode, sharing: _Sharing, parts: int) -> list[cst.CSTNode]:
    """With the assertions that it rests on."""
    loop = sharing.loop
    assert isinstance(loop.node, cst.For) and loop.count is not None
    text = code.module.code_for_node(loop.count)
    count = str(int(text) // parts) if text.isdecimal() else f"{as_factor(text)} // {parts}"
    lines = []
    if not text.isdecimal():
        said = f"{parts} iterations over {loop.variable} share the array: they must come out even"
        lines.append(f'assert {as_factor(text)} % {parts} == 0, "{said}"')
    lines += [text for tile, text in _bounds(sharing, parts).items() if tile.is_made_inside]
    variable = loop.variable
    if sharing.order is _Order.STRETCHES:
        firsts = [variable if not part else f"({variable} + {_times(part, count)})" for part in range(parts)]
        copies = [_copy(code, sharing, part, parts, parsed_expression(first)) for part, first in enumerate(firsts)]
    else:
        variable = code.fresh_name(f"{loop.variable}_{'pair' if parts == 2 else 'group'}")
        copies = []
        for part in range(parts):
            name = code.fresh_name(f"{loop.variable}_{part}") if part else loop.variable
            here = parsed_statement(f"{name} = {parts} * {variable}" + (f" + {part}" if part else ""))
            copies.append([here, *_copy(code, sharing, part, parts, cst.Name(name))])
    if sharing.order is _Order.ONE_BY_ONE:
        body = [node for copy in copies for node in copy if node is not None]
    else:
        body = [node for together in zip(*copies) for node in together if node is not None]
    node = loop.node.with_changes(
        target=cst.Name(variable),
        iter=replace_nodes(loop.node.iter, {loop.count: parsed_expression(count)}),
        body=loop.node.body.with_changes(body=body),
        leading_lines=(),
    )
    before, *others = (*(parsed_statement(line) for line in lines), node)
    return [before.with_changes(leading_lines=loop.node.leading_lines), *others]


def _times(part: int, count: str) -> str:
    if count.isdecimal():
        return str(part * int(count))
    return count if part == 1 else f"{part} * ({count})"


def _copy(
    code: KernelCode, sharing: _Sharing, part: int, parts: int, value: cst.BaseExpression
) -> list[cst.CSTNode | None]:
    """The loop's statements for one part of the array, with that value of its variable; None: the first has made it."""
    loop = sharing.loop
    assert loop.body is not None
    shared = {tile.name for tile in sharing.tiles}
    own: dict[str, cst.BaseExpression] = {loop.variable: value}
    own.update({name: cst.Name(code.fresh_name(f"{name}_{part}")) for name in loop.binds - shared - {loop.variable}})
    copies: list[cst.CSTNode | None] = []
    for statement in loop.body.statements:
        tile = next((tile for tile in sharing.tiles if tile.made is statement), None)
        if tile is not None:
            copies.append(None if part else _allocation(code, tile, parts))
            continue
        made = _on_part(sharing, statement, part, ROWS // parts)
        copies.append(substituted(made, own).with_changes(leading_lines=()) if part else made)
    return copies


def _bounds(sharing: _Sharing, parts: int) -> dict[_Tile, str]:
    """What is to be stated before a tile is made, where its rows are no number; the same thing once."""
    said = f"products of {parts} iterations share the array: at most {ROWS // parts} rows each"
    found: dict[str, _Tile] = {}
    for tile in sorted(sharing.tiles, key=lambda tile: tile.made.line):
        if tile.rows.value is None:
            found.setdefault(f'assert {tile.rows} <= {ROWS // parts}, "{said}"', tile)
    return {tile: text for text, tile in found.items()}


def _allocation(code: KernelCode, tile: _Tile, parts: int) -> cst.CSTNode:
    shape = code.argument(tile.made, "shape", 0)
    assert isinstance(shape, (cst.Tuple, cst.List))
    partitions = parsed_expression(str(number(_first(parts - 1, parts)) + tile.rows))
    return replace_nodes(tile.made.node, {shape.elements[0].value: partitions})


def _first(part: int, parts: int) -> int:
    return part * (ROWS // parts)


def _copies(code: KernelCode, sharing: _Sharing, filling: Statement, parts: int) -> list[cst.CSTNode]:
    """What was filled, on the other parts too."""
    assert filling.call is not None and isinstance(filling.call.func, cst.Attribute)
    isa = code.module.code_for_node(filling.call.func.value)
    dst = arguments_of(filling)["dst"]
    (operand,) = (each for each in sharing.operands(filling) if each.node is dst)
    texts = [_text_on_part(operand.access, part, ROWS // parts) for part in range(parts)]
    return [parsed_statement(f"{isa}.tensor_copy(dst={text}, src={texts[0]})") for text in texts[1:]]


def _text_on_part(access: Access, part: int, rows: int) -> str:
    first = access.dims[0]
    moved = replace(first, start=first.start + number(part * rows))
    sizes = (access.sizes[0] + number(ROWS - rows), *access.sizes[1:])
    return replace(access, sizes=sizes, dims=(moved, *access.dims[1:])).text


def _on_part(sharing: _Sharing, statement: Statement, part: int, rows: int) -> cst.CSTNode:
    """The statement, and all within it, with the operands of one part of the array."""
    texts: dict[cst.CSTNode, cst.CSTNode] = {}
    for inner in statement.walk():
        for operand in sharing.operands(inner):
            texts[operand.node] = parsed_expression(_text_on_part(operand.access, part, rows))
        if inner in sharing.products:
            assert inner.call is not None
            where = [f"tile_position=({part * rows}, 0)", f"tile_size=({rows}, {ROWS})"]
            args = [*inner.call.args]
            args[-1] = args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
            added_args = cst.ensure_type(parsed_expression(f"f({', '.join(where)})"), cst.Call).args
            call = inner.call.with_changes(args=[*args, *added_args])
            texts[inner.call] = replace_nodes(call, dict(texts))
    return replace_nodes(statement.node, texts)
