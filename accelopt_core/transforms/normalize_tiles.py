"""Every tile made where it is used, and for one purpose.

    tile = ndarray(...)                         for k in range(K):
    for k in range(K):                              tile = ndarray(...)
        dma_copy(dst=tile, src=x[k])       ->       dma_copy(dst=tile, src=x[k])
        use(tile)                                   use(tile)
    dma_copy(dst=tile, src=y)                   tile_2 = ndarray(...)
    use(tile)                                   dma_copy(dst=tile_2, src=y)
                                                use(tile_2)

Only for tiles that are written whole before they are read: what is filled part by part, summed over a loop or handed
from one iteration to the next stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.transforms.data_flow import Define, Either, Flow, Reaching, Repeat, Use, reaching_definitions
from accelopt_core.transforms.kernel_code import Block, KernelCode, Kind, Statement
from accelopt_core.transforms.normalize_names import fresh_name
from accelopt_core.transforms.syntax import content_names, name_nodes

FILLS_DST = frozenset(
    {
        "activation",
        "activation_reduce",
        "bn_aggr",
        "bn_stats",
        "dma_copy",
        "dma_transpose",
        "iota",
        "max8",
        "memset",
        "nc_transpose",
        "reciprocal",
        "scalar_tensor_tensor",
        "tensor_copy",
        "tensor_reduce",
        "tensor_scalar",
        "tensor_tensor",
        "tensor_tensor_scan",
    }
)
"""Instructions that write every element of `dst`; the others may skip some, or add to what is there."""

SKIPS = frozenset({"dst_rmw_op", "oob_mode", "mask", "dge_mode"})
"""Arguments with which a transfer may leave elements as they were, or add to them."""

_ON_CHIP = ("sbuf", "psum")
_HEAD = "what the last iteration left"


@dataclass(frozen=True)
class _Purpose:
    """Some of a tile's fillings, and the instructions that may see what they leave."""

    statements: tuple[Statement, ...]
    block: Block
    """Where the tile can be made anew each time."""
    before: Statement
    """The block's statement that is, or holds, the first of these."""


@dataclass(frozen=True)
class _Plan:
    allocation: Statement
    purposes: tuple[_Purpose, ...]
    keeps: bool
    """The allocation stays, for something else."""


def with_tiles_made_where_used(code: KernelCode) -> cst.Module:
    """The module; the very one of `code` when nothing changes."""
    used = set(code.all_names)
    inserted: dict[cst.CSTNode, list[cst.SimpleStatementLine]] = {}
    removed: set[cst.CSTNode] = set()
    renamed: dict[cst.CSTNode, cst.CSTNode] = {}
    for plan in _plans(code):
        (name,) = plan.allocation.binds
        for number, purpose in enumerate(plan.purposes):
            node = plan.allocation.node
            assert isinstance(node, cst.SimpleStatementLine)
            if number or plan.keeps:
                fresh = fresh_name(name, used)
                used.add(fresh)
                node = _again(node, fresh)
                for statement in purpose.statements:
                    for each in name_nodes(statement.node):
                        if each.value == name:
                            renamed[each] = each.with_changes(value=fresh)
            else:
                removed.add(plan.allocation.node)
                node = node.with_changes(leading_lines=[line for line in node.leading_lines if line.comment])
            inserted.setdefault(purpose.before.node, []).append(node)
    if not inserted:
        return code.module
    return code.module.visit(_Edit(inserted, removed, renamed))


class _Edit(cst.CSTTransformer):
    def __init__(
        self,
        inserted: dict[cst.CSTNode, list[cst.SimpleStatementLine]],
        removed: set[cst.CSTNode],
        renamed: dict[cst.CSTNode, cst.CSTNode],
    ) -> None:
        self._inserted, self._removed, self._renamed = inserted, removed, renamed

    def on_leave(  # type: ignore[override]  # libcst types this per node class
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.BaseStatement]:
        if original_node in self._renamed:
            return self._renamed[original_node]
        before = self._inserted.get(original_node, [])
        if original_node in self._removed:
            return cst.FlattenSentinel[cst.BaseStatement](before) if before else cst.RemovalSentinel.REMOVE
        if before:
            assert isinstance(updated_node, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
            first, *rest = before
            blank = [line for line in updated_node.leading_lines if line.comment is None][:1]
            first = first.with_changes(leading_lines=[*blank, *first.leading_lines])
            own = [line for line in updated_node.leading_lines if line not in blank]
            return cst.FlattenSentinel[cst.BaseStatement]([first, *rest, updated_node.with_changes(leading_lines=own)])
        return updated_node


def _again(node: cst.SimpleStatementLine, name: str) -> cst.SimpleStatementLine:
    small = node.body[0]
    assert isinstance(small, cst.Assign)
    target = small.targets[0].with_changes(target=cst.Name(name))
    return cst.SimpleStatementLine([small.with_changes(targets=[target])])


# --- which tiles --------------------------------------------------------------------------------------------


def _plans(code: KernelCode) -> Iterator[_Plan]:
    tiles = {name: allocation for allocation in code.statements() if (name := _plain_tile(code, allocation))}
    flow = _flow(code, code.body, tiles)
    reaching = reaching_definitions(flow)
    for name, allocation in tiles.items():
        plan = _plan(code, name, allocation, tiles, reaching)
        if plan is not None:
            yield plan


def _plain_tile(code: KernelCode, allocation: Statement) -> str:
    """The name of a tile that is bound once and that nothing but instructions touches; empty otherwise."""
    if allocation.kind is not Kind.ALLOCATE or allocation.region not in _ON_CHIP or allocation.call is None:
        return ""
    (name,) = allocation.binds
    keywords = {arg.keyword.value for arg in allocation.call.args if arg.keyword is not None}
    if name in code.captured or len(code.bindings(name)) != 1 or keywords - {"shape", "dtype", "buffer"}:
        return ""
    if len(allocation.call.args) > 3 or any(len(code.bindings(each)) > 1 for each in allocation.uses):
        return ""
    for statement in code.statements():
        touches = name in (statement.own_uses | statement.written if statement.body is None else statement.own_uses)
        if touches and statement is not allocation and statement.kind is not Kind.INSTRUCTION:
            return ""
    return name


def _fills(code: KernelCode, statement: Statement, name: str) -> bool:
    """Writes every element of the tile, whatever was there."""
    if statement.call is None:
        return False
    given = {arg.keyword.value for arg in statement.call.args if arg.keyword is not None}
    if statement.operation == "nc_matmul":
        flag = code.argument(statement, "accumulate")
        if not (isinstance(flag, cst.Name) and flag.value == "False"):
            return False
    elif statement.operation not in FILLS_DST or given & SKIPS:
        return False
    target = code.argument(statement, "dst", 0)
    others = [arg.value for arg in statement.call.args if arg.value is not target]
    return isinstance(target, cst.Name) and target.value == name and not any(name in content_names(o) for o in others)


def _flow(code: KernelCode, block: Block, tiles: dict[str, Statement]) -> Flow:
    items: list[Define | Use | Repeat | Either] = []
    for statement in block.statements:
        if statement.kind is Kind.LOOP and statement.body is not None:
            items.append(Repeat(_flow(code, statement.body, tiles)))
        elif statement.kind is Kind.BRANCH and statement.body is not None:
            items.append(Either((_flow(code, statement.body, tiles), ())))
        elif statement.kind is Kind.ALLOCATE:
            (name,) = statement.binds
            if tiles.get(name) is statement:
                items.append(Define(name, statement))
        elif statement.kind is Kind.INSTRUCTION:
            for name in sorted((statement.uses | statement.written) & set(tiles)):
                fills = _fills(code, statement, name)
                items.append(Define(name, statement) if fills else Use(name, statement))
    return items


def _plan(
    code: KernelCode, name: str, allocation: Statement, tiles: dict[str, Statement], reaching: Reaching
) -> _Plan | None:
    users = [s for s in code.statements() if s.kind is Kind.INSTRUCTION and name in s.uses | s.written]
    fillings = [s for s in users if _fills(code, s, name)]
    if not fillings or any(owner.leaves for user in users for owner in user.block.loops()):
        return None
    if allocation.region == "psum" and any(s.operation == "nc_matmul" and s not in fillings for s in users):
        return None  # whether it adds depends on whether a matmul wrote there before
    purposes = []
    keeps = False
    for web in reaching.webs(name, [allocation, *fillings]):
        seeing = [s for s in users if reaching.of.get((name, s), frozenset()) & web]
        statements = tuple(s for s in users if s in web or s in seeing)
        if not statements:
            continue
        purpose = None if allocation in web else _purpose(code, name, allocation, statements, tiles)
        if purpose is None:
            keeps = True
        else:
            purposes.append(purpose)
    moved = [p for p in purposes if p.block is not allocation.block]
    if keeps or len(purposes) > 1 or moved:
        return _Plan(allocation, tuple(purposes), keeps) if purposes else None
    return None


def _purpose(
    code: KernelCode, name: str, allocation: Statement, statements: tuple[Statement, ...], tiles: dict[str, Statement]
) -> _Purpose | None:
    chains = [[statement.block, *(o.block for o in reversed(statement.block.loops()))] for statement in statements]
    block = next(each for each in chains[0] if all(each in chain for chain in chains))
    while block is not allocation.block:
        owner = block.owner
        if owner is None or owner.body is None:
            return None  # used outside the block that it is made in
        if owner.kind is Kind.LOOP and not _handed_on(code, owner.body, name, tiles):
            break
        block = owner.block
    return _Purpose(statements, block, _within(block, statements[0]))


def _handed_on(code: KernelCode, body: Block, name: str, tiles: dict[str, Statement]) -> bool:
    """May an iteration see what the one before it left in the tile?"""
    only = {name: tiles[name]}
    reaching = reaching_definitions([Define(name, _HEAD), *_flow(code, body, only)])
    return any(_HEAD in seen for (each, _), seen in reaching.of.items() if each == name)


def _within(block: Block, statement: Statement) -> Statement:
    while statement.block is not block:
        owner = statement.block.owner
        assert owner is not None
        statement = owner
    return statement
