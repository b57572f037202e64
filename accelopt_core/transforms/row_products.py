"""Products that make one row each, in a loop over the columns of what is stationary: a filter of its own for every row.

    for c in range(C):                                        weights[0:C, 0:K] = stationary[0:K, 0:C], turned
        dma_copy(dst=m, src=...c...)                          dma_copy(dst=m, src=..., all c)
        nc_matmul(dst=row, stationary=w[0:K, c : c + 1],  ->  for k in range(K):
                  moving=m[0:K, a:b])                             row += m[0:C, k, a:b] * weights[0:C, k : k + 1]

The array works on one of its 128 columns there, and the next row cannot share the pass, since it moves other data. With
the rows on the partitions, and what was on the partitions in each of them, every product is a multiplication of whole
rows by a number of their partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.declared import declared_dtype
from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.loop_independence import made_in
from accelopt_core.transforms.operand_access import ONE, AccessReader, Dim, Iterations, arguments_of
from accelopt_core.transforms.plain_names import named_language
from accelopt_core.transforms.syntax import content_names, parsed_expression, parsed_statement

Names = Callable[[str], str]
"""A name that nothing else has, like the one that is wanted."""
_OPERANDS = {"dst", "stationary", "moving"}


@dataclass(frozen=True)
class Part:
    """A tile, perhaps one of a list, and an interval of each dimension."""

    base: str
    dims: tuple[Dim, ...]

    def text(self, *dims: str) -> str:
        return f"{self.base}[{', '.join(dims)}]"


@dataclass(frozen=True)
class RowProduct:
    at: Statement
    sum: Statement
    """The allocation of the tile in PSUM that it adds to."""
    dst: cst.BaseExpression
    stationary: Part
    moving: Part
    is_cleared: bool
    """The kernel itself sets the sum to zero first."""
    top: Statement
    """It, or the loop around it, in the block where the sum is made."""


class RowProducts:
    """Of a loop; `found` is empty where it has none. Raises IllegalSite where it has others."""

    def __init__(self, code: KernelCode, reader: AccessReader, loop: Statement) -> None:
        self._code, self._reader, self._loop = code, reader, loop
        self._inside = [statement for statement in loop.walk() if statement is not loop]
        self._own = made_in(code, self._inside)
        self.found: list[RowProduct] = []
        products = [each for each in self._inside if each.operation == "nc_matmul"]
        self.moving = frozenset[str]().union(
            *(code.roots_of(content_names(_given(each, "moving"))) for each in products)
        )
        """Tiles of the loop with rows that are summed over."""
        if not self.moving <= self._own:
            raise IllegalSite(f"line {products[0].line}: what moves is not made in the loop over {loop.variable}")
        self.found = [self._product(each) for each in products]
        self._check_moving()

    @property
    def sums(self) -> frozenset[str]:
        return frozenset(name for product in self.found for name in product.sum.binds)

    # --- legality -----------------------------------------------------------------------------------

    def _product(self, at: Statement) -> RowProduct:
        where, given = f"line {at.line}", arguments_of(at)
        if set(given) != _OPERANDS:
            raise IllegalSite(f"{where}: the product does more than multiply and add up")
        stationary, moving = (self._part(given[each], at) for each in ("stationary", "moving"))
        if self._code.roots_of(content_names(given["stationary"])) & self._own:
            raise IllegalSite(f"{where}: what is stationary is made in the loop over {self._loop.variable}")
        if self._code.regions_of(given["stationary"]) != {"sbuf"}:
            raise IllegalSite(f"{where}: nobody can tell where what is stationary lies")
        rows, column = stationary.dims
        if column.length != ONE or column.start.split(self._loop.variable)[0] != ONE:
            raise IllegalSite(f"{where} does not take column after column of what is stationary")
        if rows != moving.dims[0] or rows.start != number(0):
            raise IllegalSite(f"{where}: that it takes the same rows of both does not show")
        if any(self._moves(dim) for dim in (rows, moving.dims[1])):
            raise IllegalSite(f"{where}: which part of what moves it takes changes with {self._loop.variable}")
        name, *others = content_names(given["dst"]) & self._own
        made = self._code.bindings(name)[0]
        if others or made.region != "psum" or declared_dtype(self._code, made) != "nki.language.float32":
            raise IllegalSite(f"{where} does not add up in a tile of float32 of the loop's own in PSUM")
        return self._summed(at, made, name, RowProduct(at, made, given["dst"], stationary, moving, False, at))

    def _changes(self, index: cst.BaseExpression, at: Statement) -> bool:
        return self._loop.variable in self._reader.full.names(self._reader.full.polynomial(index, at))

    def _moves(self, dim: Dim) -> bool:
        return any(self._loop.variable in each.factors for each in (dim.start, dim.length))

    def _summed(self, at: Statement, made: Statement, name: str, found: RowProduct) -> RowProduct:
        """All products of a sum come one after the other, after it was cleared and before it is read."""
        users = [each for each in self._inside if name in each.own_uses and each is not made and each is not at]
        order = made.block.statements
        top, tops = self._top(at, made), [self._top(each, made) for each in users]
        cleared = [each for each in users if order.index(self._top(each, made)) < order.index(top)]
        after = [each for each in users if each not in cleared]
        if top in tops or any(name in self._code.changed_by(each) for each in after) or len(cleared) > 1:
            raise IllegalSite(f"line {at.line}: {name} is more than cleared, summed up and read")
        for each in cleared:
            given = arguments_of(each) if each.operation == "memset" else {}
            value, dst = given.get("value"), given.get("dst")
            zero = isinstance(value, (cst.Integer, cst.Float)) and value.evaluated_value == 0
            if not zero or not isinstance(dst, cst.Name) or each.block is not made.block:
                raise IllegalSite(f"line {each.line}: {name} does not begin at zero")
        return RowProduct(at, made, found.dst, found.stationary, found.moving, bool(cleared), top)

    def _top(self, statement: Statement, made: Statement) -> Statement:
        """It, or what is around it, in the block of the allocation. Raises IllegalSite."""
        for each in (statement, *reversed(statement.block.loops())):
            if each.block is made.block:
                return each
        raise IllegalSite(f"line {statement.line} uses what is made on line {made.line}, in another block")

    def _check_moving(self) -> None:
        """What moves is loaded, or set to a number, kept in lists and moved, and nothing else."""
        for statement in self._inside:
            if not self._code.roots_of(statement.own_uses) & self.moving:
                continue
            given = arguments_of(statement) if statement.kind is Kind.INSTRUCTION else {}
            touched = {name for name, value in given.items() if self._is_moving(value)}
            allowed = {"nc_matmul": "moving", "dma_copy": "dst", "memset": "dst"}.get(statement.operation, "")
            if statement.kind is Kind.APPEND:
                assert statement.call is not None
                if isinstance(statement.call.args[0].value, cst.Name):
                    continue
            elif statement.kind in (Kind.ALLOCATE, Kind.CHECK) or touched == {allowed}:
                continue
            raise IllegalSite(f"line {statement.line}: what moves is more than loaded and moved")
        for name in self.moving:
            sizes = self._reader.sizes(name)
            if sizes is None or len(sizes) != 2 or self._code.bindings(name)[0].region != "sbuf":
                raise IllegalSite(f"{name}, which moves, is no tile in SBUF of two dimensions")

    def _is_moving(self, value: cst.BaseExpression) -> bool:
        return bool(self._code.roots_of(content_names(value)) & self.moving)

    def _part(self, value: cst.BaseExpression, at: Statement) -> Part:
        """Raises IllegalSite for anything but two intervals of a tile, or of one in a list."""
        text = self._code.module.code_for_node(value)
        if not isinstance(value, cst.Subscript):
            raise IllegalSite(f"line {at.line}: which part of {text} it takes does not show")
        base = value.value
        listed = base.slice if isinstance(base, cst.Subscript) and isinstance(base.value, cst.Name) else ()
        is_tile = isinstance(base, cst.Name) and [b.kind for b in self._code.bindings(base.value)] == [Kind.ALLOCATE]
        if not (listed or is_tile) or len(value.slice) != 2:
            raise IllegalSite(f"line {at.line}: which part of {text} it takes does not show")
        for element in listed:
            if not isinstance(element.slice, cst.Index) or self._changes(element.slice.value, at):
                raise IllegalSite(f"line {at.line}: which tile it takes changes with {self._loop.variable}")
        dims = []
        for element in value.slice:
            part = element.slice
            if not isinstance(part, cst.Slice) or part.upper is None or part.step is not None:
                raise IllegalSite(f"line {at.line}: which part of {text} it takes does not show")
            start = self._reader.number(part.lower, at) if part.lower is not None else number(0)
            dims.append(Dim(start, self._reader.number(part.upper, at) - start))
        return Part(self._code.module.code_for_node(base), tuple(dims))

    # --- rewriting ----------------------------------------------------------------------------------

    def allocation(self, statement: Statement, rows: Polynomial) -> dict[cst.CSTNode, cst.CSTNode]:
        """What changes where a tile that moves, or a sum, is made, beside a sum's first size."""
        if statement.binds & self.sums:
            buffer = self._code.argument(statement, "buffer", 2)
            assert buffer is not None
            return {buffer: parsed_expression(f"{named_language(self._code, statement)}.sbuf")}
        shape = self._code.argument(statement, "shape", 0)
        assert isinstance(shape, (cst.Tuple, cst.List))
        sizes = [self._code.module.code_for_node(element.value) for element in shape.elements]
        return {shape: parsed_expression(f"({rows}, {', '.join(sizes)})")}

    def cleared(self, product: RowProduct) -> list[cst.BaseStatement]:
        """Before the products, where the first of them begins the sum anew."""
        if product.is_cleared:
            return []
        (name,) = product.sum.binds
        return [parsed_statement(f"{self._code.name_of_module('nki.isa')}.memset(dst={name}, value=0.0)")]

    def multiplied(
        self, product: RowProduct, iterations: Iterations, dst: str, names: Names
    ) -> list[cst.BaseStatement]:
        """In place of the product: its column of every iteration turned, and a multiplication for each row."""
        isa, nl = self._code.name_of_module("nki.isa"), named_language(self._code, product.sum)
        rows, (summed, column), columns = iterations.count, product.stationary.dims, product.moving.dims[1]
        turned, weights, tap = (names(each) for each in ("turned", "weights", "tap"))
        first = iterations.start(column)
        shape, base = f"({rows}, {summed.length})", product.stationary.base
        moved = product.moving.text(f"0 : {rows}", tap, columns.text)
        lines = (
            f"{turned} = {nl}.ndarray({shape}, dtype={base}.dtype, buffer={nl}.psum)",
            f"{isa}.nc_transpose(dst={turned}, data={base}[{summed.text}, {first} : {first + rows}])",
            f"{weights} = {nl}.ndarray({shape}, dtype={nl}.float32, buffer={nl}.sbuf)",
            f"{isa}.tensor_copy(dst={weights}, src={turned})",
            f"for {tap} in range({summed.length}):\n"
            f"    {isa}.scalar_tensor_tensor(\n"
            f"        dst={dst}, data={moved}, op0={nl}.multiply,\n"
            f"        operand0={weights}[0 : {rows}, {tap} : {tap} + 1], op1={nl}.add, operand1={dst},\n"
            f"    )",
        )
        return [parsed_statement(line) for line in lines]


def _given(product: Statement, keyword: str) -> cst.BaseExpression:
    given = arguments_of(product).get(keyword)
    if given is None:
        raise IllegalSite(f"line {product.line}: the product lacks an operand")
    return given
