"""Move a load, or work on chip, out of a loop that does not change it, with all that depends on nothing else.

    for n in ...:                          tiles = []
        for k in ...:                      for k in ...:
            tile = load(x[k])      ->          tile = load(x[k])
            use(tile, n)                       tiles.append(tile)
                                           for n in ...:
                                               for k in ...:
                                                   use(tiles[k], n)

When the load sits directly in the loop it leaves, no list is needed. Whether the tiles fit into SBUF
depends on shapes and is left to whoever prices the result: a kernel that does not fit does not compile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from accelopt_core.transforms.isa_effects import LOADS
from accelopt_core.transforms.kernel_code import Block, KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.normalize_names import fresh_name
from accelopt_core.transforms.plain_names import begins_anew, bound_once
from accelopt_core.transforms.substitution import substituted
from accelopt_core.transforms.syntax import name_nodes, parsed_expression, parsed_statement, replace_nodes

MOVABLE = frozenset({Kind.ALLOCATE, Kind.INSTRUCTION, Kind.DEFINE, Kind.LOOP})


@dataclass(frozen=True)
class _Group:
    """A tile with everything that fills it, found in one block."""

    tile: str
    block: Block
    statements: tuple[Statement, ...]
    """In source order; the first is an allocation or a definition."""
    shared: frozenset[Statement]
    """Definitions that others need too: copied, not moved."""
    outer_definitions: tuple[Statement, ...]
    """Definitions in blocks between the loop and this one: copied."""
    uses: frozenset[str]


@dataclass(frozen=True)
class _Hoist:
    group: _Group
    loop: Statement
    indexed_by: tuple[Statement, ...]
    """Loops inside `loop` whose variable the load uses, outermost first: one list dimension each."""


class _Hoisting:
    """What both transforms share; they differ in whether the tile comes from memory."""

    name: str
    loads: bool
    addresses: frozenset[Cause]

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        hoists: list[_Hoist] = []
        for statement in code.statements():
            if statement.kind is Kind.ALLOCATE and statement.region == "sbuf":
                (tile,) = statement.binds
                hoists += self._out_of_loops(code, statement, tile, context)
        largest = (hoist for hoist in hoists if not any(_contains(other, hoist) for other in hoists))
        return tuple(_site(self.name, hoist) for hoist in largest)

    def _out_of_loops(
        self, code: KernelCode, allocation: Statement, tile: str, context: AnalysisContext
    ) -> Iterator[_Hoist]:
        """One for every loop around the tile's making, as far as it is legal."""
        writers = code.writers(tile)
        around = dict.fromkeys(loop for each in (allocation, *writers) for loop in each.block.loops())
        for loop in around:
            try:
                if loop not in allocation.block.loops():
                    _check_made_in(code, allocation, tile, loop)
                yield _plan(code, tile, loop.variable, self.loads)
            except IllegalSite as error:
                # Where it is refused for both, the transform tells whose kind the tile itself is.
                if self.loads is bool(LOADS & {writer.operation for writer in writers}):
                    lines = (writer.line for writer in writers)
                    context.refuse(self.name, f"{tile}/{loop.variable}", allocation.line, error, lines)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        tile, _, variable = key.partition("/")
        if not code.bindings(tile):
            raise SiteGone(f"{key}: the kernel has no tile {tile}")
        hoist = _plan(code, tile, variable, self.loads)
        return _rewrite(code, hoist)


class HoistInvariantLoads(_Hoisting):
    name = "hoist-invariant-load"
    loads = True
    addresses = frozenset(
        {Cause.HBM_TRAFFIC, Cause.DMA_ISSUING, Cause.DMA_BANDWIDTH, Cause.TRANSPOSES, Cause.THROTTLED, Cause.WAITING}
    )

    def describe(self) -> str:
        return (
            "Load (and turn or cast) a tile once before a loop that does not change it, instead of in every "
            "iteration; inner loops index a list of tiles."
        )


class HoistInvariantPreparation(_Hoisting):
    name = "hoist-invariant-preparation"
    loads = False
    addresses = frozenset({Cause.ELEMENTWISE, Cause.TRANSPOSES, Cause.MATMUL, Cause.THROTTLED, Cause.WAITING})

    def describe(self) -> str:
        return (
            "Turn, cast or compute a tile on chip once before a loop that does not change it, instead of in every "
            "iteration; inner loops index a list of tiles."
        )


def _contains(other: _Hoist, hoist: _Hoist) -> bool:
    """The other hoist moves the same tile's group and more, out of the same loop."""
    return other is not hoist and other.loop is hoist.loop and set(other.group.statements) > set(hoist.group.statements)


def _site(transform: str, hoist: _Hoist) -> Site:
    group, variable = hoist.group, hoist.loop.variable
    by = " and ".join(loop.variable for loop in hoist.indexed_by)
    steps = ", ".join(s.operation for s in _leaves(group.statements) if s.kind is Kind.INSTRUCTION)
    held = f", one tile per {by} held in a list" if by else ""
    return Site(
        transform,
        f"{group.tile}/{variable}",
        f"move the making of {group.tile} ({steps}) out of the loop over {variable}{held}",
        group.statements[0].line,
        f"nothing that fills {group.tile} depends on {variable}, and neither it nor what it reads is written "
        f"elsewhere in that loop",
        f"every iteration of the loop over {variable} after the first repeats this work for the same data",
    )


# --- legality ---------------------------------------------------------------------------------------


def _check_made_in(code: KernelCode, allocation: Statement, tile: str, loop: Statement) -> None:
    """Of a tile that is made before the loop: what is filled anew in every iteration could be made there."""
    inside = [writer for writer in code.writers(tile) if loop in writer.block.loops()]
    if any(loop.variable in writer.uses for writer in inside):
        raise IllegalSite(f"what fills {tile} depends on {loop.variable}")
    if loop.kind is Kind.LOOP and begins_anew(code, tile, list(loop.walk())):
        raise NotPlain(f"{tile} is made on line {allocation.line}, before the loop over {loop.variable} that fills it")
    raise NotOfItsKind(f"the loop over {loop.variable} does not make {tile}")


def _plan(code: KernelCode, tile: str, variable: str, loads: bool) -> _Hoist:
    """Raises IllegalSite naming the rule that forbids it."""
    allocation = bound_once(code, tile)
    if allocation.kind is not Kind.ALLOCATE or allocation.region != "sbuf":
        raise NotOfItsKind(f"{tile} is not a tile allocated in SBUF")
    around = allocation.block.loops()
    names = [statement.variable for statement in around if statement.kind is Kind.LOOP]
    if names.count(variable) != 1:
        raise IllegalSite(f"{tile} is not inside exactly one loop over {variable}")
    if len(set(names)) != len(names):
        raise NotPlain(f"nested loops around {tile} share a variable")
    loop = next(statement for statement in around if statement.variable == variable)
    inside = around[around.index(loop) :]
    for statement in inside:
        if statement.kind is not Kind.LOOP:
            raise IllegalSite(f"{tile} is loaded only on a condition (line {statement.line})")
    if loop.leaves:
        raise IllegalSite(f"the loop over {variable} can be left early")

    group = _group(code, allocation, loop)
    operations = {s.operation for s in _leaves(group.statements) if s.kind is Kind.INSTRUCTION}
    if not operations:
        raise NotOfItsKind(f"nothing fills {tile}")
    if loads and not operations & LOADS:
        raise NotOfItsKind(f"{tile} is not loaded from memory")
    if not loads and operations & LOADS:
        raise NotOfItsKind(f"{tile} is loaded from memory: that is for {HoistInvariantLoads.name}")
    used = group.uses
    if variable in used:
        raise IllegalSite(f"what fills {tile} depends on {variable}")
    indexed_by = tuple(statement for statement in inside[1:] if statement.variable in used)
    for inner in indexed_by:
        _check_index_loop(code, inner, loop, {statement.variable for statement in indexed_by})
    _check_uses(code, group, loop)
    return _Hoist(group, loop, indexed_by)


def _group(code: KernelCode, allocation: Statement, loop: Statement) -> _Group:
    """Everything in the allocation's block that is needed to fill the tile."""
    (tile,) = allocation.binds
    block = allocation.block
    members: set[Statement] = set()
    outer: dict[str, Statement] = {}
    buffers: set[str] = set()
    names_done: set[str] = set()
    uses: set[str] = set()
    waiting = [tile]
    while waiting:
        name = waiting.pop()
        if name in names_done:
            continue
        names_done.add(name)
        for grown in code.statements():
            if grown.kind is Kind.APPEND and name in grown.written and loop in grown.block.loops():
                raise IllegalSite(f"the list {name} grows in the loop (line {grown.line})")
        if name in code.captured:
            raise IllegalSite(f"{name} is used by a nested function or declared global")
        bindings = code.bindings(name)
        inner_loops = [b for b in bindings if b.kind is Kind.LOOP]
        if not bindings or inner_loops:
            if inner_loops and len(inner_loops) != len(bindings):
                raise NotPlain(f"{name} is both a loop variable and something else")
            if not bindings and name in code.parameters:
                _check_source(code, name, loop, buffers)
            continue
        inside = [binding for binding in bindings if loop in binding.block.loops()]
        if not inside:
            for root in code.roots_of(frozenset({name})):
                _check_source(code, root, loop, buffers)
            continue
        binding = bound_once(code, name)
        if binding.kind is Kind.DEFINE and binding.block is not block:
            if block.owner is None or binding.block.owner not in (*block.loops(),):
                raise IllegalSite(f"{name} (line {binding.line}) is defined in another block of the loop")
            outer[name] = binding
            uses |= binding.uses
            waiting.extend(sorted(binding.uses))
            continue
        added = [_member(binding, block, name)]
        if binding.kind is Kind.ALLOCATE:
            buffers.add(name)
            added += [_member(writer, block, name) for writer in code.writers(name)]
        for statement in added:
            if statement in members:
                continue
            _check_movable(statement)
            members.add(statement)
            uses |= statement.uses
            waiting.extend(sorted(statement.uses | statement.binds))
    ordered = tuple(statement for statement in block.statements if statement in members)
    for statement in ordered:
        foreign = code.changed_by(statement) - buffers if statement.body is None else frozenset()
        for leaf in statement.walk():
            if leaf.body is None:
                foreign |= code.changed_by(leaf) - buffers
        if foreign:
            raise IllegalSite(f"line {statement.line} also writes {', '.join(sorted(foreign))}")
    shared = _check_privacy(code, tile, ordered, buffers)
    in_order = tuple(statement for statement in code.statements() if statement in outer.values())
    return _Group(tile, block, ordered, shared, in_order, frozenset(uses))


def _member(statement: Statement, block: Block, name: str) -> Statement:
    """The statement of the block that is, or contains, this one."""
    while statement.block is not block:
        owner = statement.block.owner
        if owner is None:
            raise NotPlain(f"{name} is also written outside the block it is made in")
        statement = owner
    return statement


def _check_movable(statement: Statement) -> None:
    for inner in statement.walk():
        if inner.kind not in MOVABLE:
            raise IllegalSite(f"line {inner.line} is needed for it and cannot be moved ({inner.kind.value})")
        if inner.stateful:
            raise IllegalSite(f"line {inner.line} depends on earlier instructions in ways its operands do not show")


def _check_source(code: KernelCode, name: str, loop: Statement, buffers: set[str]) -> None:
    for writer in code.writers(name):
        if loop in (writer, *writer.block.loops()) and name not in buffers:
            said = f"the source {name} is written in the loop (line {writer.line})"
            raise NotPlain(said) if begins_anew(code, name, list(loop.walk())) else IllegalSite(said)


def _check_privacy(
    code: KernelCode, tile: str, ordered: tuple[Statement, ...], buffers: set[str]
) -> frozenset[Statement]:
    """Nothing else may need what moves, except the tile itself; definitions can be copied instead."""
    moved = {inner for statement in ordered for inner in statement.walk()}
    shared: set[Statement] = set()
    for statement in code.statements():
        if statement in moved:
            continue
        for name in (buffers - {tile}) & statement.own_uses:
            raise IllegalSite(f"{name} is also needed on line {statement.line}")
        shared |= {member for member in ordered if member.kind is Kind.DEFINE and member.binds & statement.own_uses}
    return frozenset(shared)


def _check_index_loop(code: KernelCode, inner: Statement, loop: Statement, indexing: set[str]) -> None:
    if inner.count is None:
        raise IllegalSite(f"the loop over {inner.variable} does not simply count up from 0")
    for node in name_nodes(inner.count):
        name = node.value
        for binding in code.bindings(name):
            if binding.kind is Kind.LOOP:
                if binding.variable == loop.variable or (loop in binding.block.loops() and name not in indexing):
                    raise IllegalSite(f"the length of the loop over {inner.variable} changes with {name}")
            elif loop in binding.block.loops():
                raise IllegalSite(f"the length of the loop over {inner.variable} is set inside the loop")
    for binding in code.bindings(inner.variable):
        if binding is not inner and inner in binding.block.loops():
            raise IllegalSite(f"{inner.variable} is bound again inside its own loop (line {binding.line})")


def _check_uses(code: KernelCode, group: _Group, loop: Statement) -> None:
    moved = {inner for statement in group.statements for inner in statement.walk()}
    order = group.block.statements
    for statement in code.statements():
        if statement in moved or group.tile not in statement.own_uses:
            continue
        if statement.body is not None:
            raise IllegalSite(f"{group.tile} steers the {statement.kind.value} on line {statement.line}")
        if statement.block is not group.block and group.block not in _blocks_around(statement):
            raise IllegalSite(f"{group.tile} is used on line {statement.line}, outside the block it is made in")
        if order.index(_member(statement, group.block, group.tile)) < order.index(group.statements[-1]):
            raise IllegalSite(f"{group.tile} is used on line {statement.line}, before it has its last contents")


def _blocks_around(statement: Statement) -> list[Block]:
    return [statement.block, *(owner.block for owner in statement.block.loops())]


def _leaves(statements: tuple[Statement, ...]) -> list[Statement]:
    return [inner for statement in statements for inner in statement.walk() if inner.body is None]


# --- rewriting --------------------------------------------------------------------------------------


def _rewrite(code: KernelCode, hoist: _Hoist) -> cst.Module:
    group, loop = hoist.group, hoist.loop
    changes: dict[cst.CSTNode, cst.CSTNode] = {}
    preamble: list[cst.BaseStatement]
    used = set(code.all_names)
    again: dict[str, cst.BaseExpression] = {}
    for name in sorted(name for s in (*group.outer_definitions, *group.shared) for name in s.binds):
        again[name] = cst.Name(fresh_name(name, used))  # it stays where it was as well, and every name is bound once
        used.add(fresh_name(name, used))
    body = [_renamed(s.node, again) for s in (*group.outer_definitions, *group.statements)]
    if hoist.indexed_by:
        stem = group.tile.removesuffix("_tile")
        lists = [code.fresh_name(f"{stem}_tiles")]
        lists += [code.fresh_name(f"{stem}_tiles_{inner.variable}") for inner in hoist.indexed_by[:-1]]
        preamble = _filling_loops(hoist.indexed_by, lists, group.tile, body)
        indexed = lists[0] + "".join(f"[{inner.variable}]" for inner in hoist.indexed_by)
        replacement = parsed_expression(indexed)
        moved = set(_leaves(group.statements))
        for statement in code.statements():
            if statement.body is None and statement not in moved and group.tile in statement.uses:
                for node in name_nodes(statement.node):
                    if node.value == group.tile:
                        changes[node] = replacement
    else:
        preamble = list(body)

    removed = {s.node for s in group.statements if s not in group.shared}
    kept = [child for child in group.block.node.body if child not in removed] or [parsed_statement("pass")]
    if kept[0] is not group.block.node.body[0]:
        changes[kept[0]] = replace_nodes(_without_blank_lines(kept[0]), changes)
    inner_block = group.block.node.with_changes(body=kept)
    new_loop = replace_nodes(loop.node, {group.block.node: replace_nodes(inner_block, changes)})
    assert isinstance(new_loop, cst.For) and isinstance(loop.node, cst.For)
    blank = cst.EmptyLine(indent=False)
    comment = cst.EmptyLine(comment=cst.Comment(f"# Once: the same for every {loop.variable}."))
    set_off = [blank] if any(line.comment is None for line in loop.node.leading_lines) else []
    preamble[0] = _without_blank_lines(preamble[0], [*set_off, comment])
    new_loop = _without_blank_lines(new_loop, [blank])

    parent = loop.block.node
    at = list(parent.body).index(loop.node)
    new_parent = parent.with_changes(body=[*parent.body[:at], *preamble, new_loop, *parent.body[at + 1 :]])
    result = replace_nodes(code.module, {parent: new_parent})
    assert isinstance(result, cst.Module)
    return result


def _renamed(node: cst.BaseStatement, names: dict[str, cst.BaseExpression]) -> cst.BaseStatement:
    made = substituted(node, names)
    assert isinstance(made, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    return made


def _filling_loops(
    loops: tuple[Statement, ...], lists: list[str], tile: str, body: list[cst.BaseStatement]
) -> list[cst.BaseStatement]:
    """`tiles = []` and the loops that fill it, innermost first built."""
    innermost = lists[-1]
    statements: list[cst.BaseStatement] = [*body, parsed_statement(f"{innermost}.append({tile})")]
    for depth in range(len(loops) - 1, -1, -1):
        node = loops[depth].node
        assert isinstance(node, cst.For) and isinstance(node.body, cst.IndentedBlock)
        statements[0] = _without_blank_lines(statements[0])
        filling = node.with_changes(body=node.body.with_changes(body=statements, footer=()), leading_lines=())
        statements = [parsed_statement(f"{lists[depth]} = []"), filling]
        if depth > 0:
            statements.append(parsed_statement(f"{lists[depth - 1]}.append({lists[depth]})"))
    return statements


def _without_blank_lines(node: cst.BaseStatement, before: Sequence[cst.EmptyLine] = ()) -> cst.BaseStatement:
    """The statement with its own comments, and `before` in place of blank lines above it."""
    comments = [line for line in getattr(node, "leading_lines", ()) if line.comment is not None]
    return node.with_changes(leading_lines=[*before, *comments])
