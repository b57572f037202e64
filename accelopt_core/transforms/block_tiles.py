"""Work on several iterations of a loop at once, so that what they share is loaded (or prepared) once for all.

    for m in range(M):                       for m_block in range(M // 4):
        for n in range(N):                       for n in range(N):
            acc = ndarray(...)                       accs = []
            for k in range(K):                       for j in range(4):
                right = load(y[k, n])                    acc = ndarray(...)
                left = load(x[m, k])    ->               accs.append(acc)
                matmul(acc, left, right)             for k in range(K):
            store(out[m, n], acc)                        right = load(y[k, n])
                                                         for j in range(4):
                                                             m = 4 * m_block + j
                                                             left = load(x[m, k])
                                                             matmul(accs[j], left, right)
                                                     for j in range(4): ...

Nothing that depends on the loop changes its order within one iteration; iterations are interleaved, which
is legal when nothing passes from one to another. Whether the tiles of four fit, the compiler says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, NotOfItsKind, Site
from accelopt_core.transforms.isa_effects import LOADS
from accelopt_core.transforms.kernel_code import Block, KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.loop_independence import check_independent
from accelopt_core.transforms.loop_sites import lines_of, loop_and_factor, several_at_a_time
from accelopt_core.transforms.syntax import name_nodes, parsed_expression, parsed_statement, replace_nodes

FACTORS = (2, 4, 8)


@dataclass(frozen=True)
class _Blocking:
    loop: Statement
    varying: frozenset[str]
    """Names whose values or contents differ from one iteration to another."""
    shared: tuple[Statement, ...]
    """Instructions in inner loops that are the same for all iterations."""


class BlockTiles:
    name = "block-tiles"
    addresses = frozenset(
        {Cause.HBM_TRAFFIC, Cause.DMA_ISSUING, Cause.DMA_BANDWIDTH, Cause.TRANSPOSES, Cause.THROTTLED, Cause.WAITING,
         Cause.MATMUL, Cause.ELEMENTWISE}
    )  # fmt: skip

    def describe(self) -> str:
        return (
            "Process 2, 4 or 8 iterations of an outer loop together, so that tiles which they share stay resident and "
            "are loaded or prepared once for all of them."
        )

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for number, loop in enumerate(code.loops()):
            try:
                blocking = _plan(code, loop)
            except IllegalSite as error:
                context.refuse(self.name, f"{loop.variable}#{number}", loop.line, error, lines_of(loop))
                continue
            shared = ", ".join(sorted({name for s in blocking.shared for name in code.changed_by(s)}))
            for factor in FACTORS:
                found.append(
                    Site(
                        self.name,
                        f"{loop.variable}#{number}x{factor}",
                        f"work on {factor} iterations of the loop over {loop.variable} at once and share {shared}",
                        loop.line,
                        f"iterations of the loop over {loop.variable} write different parts and read nothing that any "
                        f"of them writes; {shared} does not depend on {loop.variable}",
                        f"{shared} is made once for {factor} iterations instead of for each of them",
                    )
                )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        loop, factor = loop_and_factor(code, key)
        return _Rewriting(code, _plan(code, loop), factor).module()


# --- legality ---------------------------------------------------------------------------------------


def _plan(code: KernelCode, loop: Statement) -> _Blocking:
    """Raises IllegalSite naming the rule that forbids it."""
    inside = [statement for statement in code.statements() if loop in statement.block.loops()]
    if not any(statement.kind is Kind.LOOP for statement in inside):
        raise NotOfItsKind(f"iterations of the loop over {loop.variable} share no tile that an inner loop makes")
    check_independent(code, loop)
    for statement in inside:
        if statement.kind is Kind.BRANCH:
            raise IllegalSite(f"line {statement.line} of the loop over {loop.variable} is a condition")
    for statement in (loop, *inside):
        node = statement.node
        if statement.kind is Kind.LOOP and (not isinstance(node, cst.For) or not isinstance(node.target, cst.Name)):
            raise IllegalSite(f"the loop on line {statement.line} has more than one variable")
    varying = _varying(code, loop, inside)
    shared = tuple(
        statement
        for statement in inside
        if statement.kind is Kind.INSTRUCTION
        and statement.block is not loop.body
        and not _names(code, statement) & varying
        and not any(owner.header_uses & varying for owner in statement.block.loops())
    )
    if not any(s.operation in LOADS or s.operation.startswith("nc_") for s in shared):
        raise IllegalSite(f"iterations of the loop over {loop.variable} share no tile that an inner loop makes")
    return _Blocking(loop, varying, shared)


def _varying(code: KernelCode, loop: Statement, inside: list[Statement]) -> frozenset[str]:
    varying = {loop.variable}
    while True:
        before = len(varying)
        for statement in inside:
            if statement.body is None:
                if _names(code, statement) & varying:
                    varying |= _makes(code, statement)
            elif statement.header_uses & varying and statement.kind is Kind.LOOP:
                # A loop whose length differs: nothing inside it is shared.
                for inner in statement.walk():
                    varying |= _makes(code, inner)
        if len(varying) == before:
            return frozenset(varying)


def _makes(code: KernelCode, statement: Statement) -> frozenset[str]:
    """Names it binds, buffers it changes, and the list it lengthens."""
    if statement.body is not None:
        return statement.binds
    grown = statement.written if statement.kind is Kind.APPEND else frozenset()
    return statement.binds | code.changed_by(statement) | grown


def _names(code: KernelCode, statement: Statement) -> frozenset[str]:
    """Names the statement has to do with, and the buffers behind them."""
    return statement.uses | statement.binds | statement.written | code.roots_of(statement.uses)


# --- rewriting --------------------------------------------------------------------------------------


@dataclass
class _Group:
    """Varying statements that stand together: they become one loop over the iterations of a block."""

    statements: list[Statement] = field(default_factory=list)


@dataclass
class _Shared:
    statement: Statement


@dataclass
class _Around:
    """An inner loop that holds both kinds."""

    loop: Statement
    parts: list[_Group | _Shared | _Around]


class _Rewriting:
    def __init__(self, code: KernelCode, blocking: _Blocking, factor: int) -> None:
        assert blocking.loop.body is not None
        self._code, self._blocking, self._factor = code, blocking, factor
        self._index = code.fresh_name("j")
        self._block = code.fresh_name(f"{blocking.loop.variable}_block")
        self._parts = self._divide(blocking.loop.body)
        self._lists = self._expanded()
        self._bound: set[str] = set()
        """Names that a group has bound so far: the next one takes other names, so that each is bound once."""

    def module(self) -> cst.Module:
        body = self._emit(self._parts)
        return several_at_a_time(self._code, self._blocking.loop, self._factor, self._block, body)

    # --- what goes where ------------------------------------------------------------------------------

    def _divide(self, block: Block) -> list[_Group | _Shared | _Around]:
        varying = self._blocking.varying
        parts: list[_Group | _Shared | _Around] = []
        group = _Group()
        for statement in block.statements:
            if self._is_copied(statement):
                continue
            if not any(_names(self._code, inner) & varying for inner in statement.walk()):
                # Ahead of the group before it, where that has nothing to do with it: fewer, longer groups.
                touched = frozenset().union(*(_names(self._code, s) for g in group.statements for s in g.walk()))
                made = frozenset().union(*(_makes(self._code, s) for s in statement.walk()))
                if group.statements and made & touched:
                    parts.append(group)
                    group = _Group()
                parts.append(_Shared(statement))
            elif statement.body is not None and any(inner in self._blocking.shared for inner in statement.walk()):
                if group.statements:
                    parts.append(group)
                    group = _Group()
                parts.append(_Around(statement, self._divide(statement.body)))
            else:
                group.statements.append(statement)
        if group.statements:
            parts.append(group)
        return parts

    def _is_copied(self, statement: Statement) -> bool:
        """A varying number or view: made again in every group that needs it."""
        return (
            statement.kind is Kind.DEFINE
            and not _is_container(statement)
            and bool(_names(self._code, statement) & self._blocking.varying)
        )

    def _groups(self, parts: list[_Group | _Shared | _Around]) -> list[_Group]:
        found = []
        for part in parts:
            if isinstance(part, _Group):
                found.append(part)
            elif isinstance(part, _Around):
                found += self._groups(part.parts)
        return found

    def _expanded(self) -> dict[str, str]:
        """Tiles (and lists of tiles) that are made in one group and needed in another -> the list that holds them."""
        lists: dict[str, str] = {}
        groups = self._groups(self._parts)
        for group in groups:
            for statement in group.statements:
                if statement.kind is Kind.ALLOCATE or _is_container(statement):
                    (name,) = statement.binds
                    if any(name in self._needed(other) for other in groups if other is not group):
                        wanted = f"{name.removesuffix('_tile')}_by_{self._blocking.loop.variable}"
                        if self._code.fresh_name(wanted) in lists.values():
                            wanted = f"{name}_by_{self._blocking.loop.variable}"
                        lists[name] = self._code.fresh_name(wanted)
        return lists

    def _needed(self, group: _Group) -> frozenset[str]:
        """Names the group uses, through definitions that are copied into it as well."""
        names = frozenset().union(*(inner.uses | inner.written for s in group.statements for inner in s.walk()))
        return names.union(*(definition.uses for definition in self._copies(group)))

    def _copies(self, group: _Group) -> list[Statement]:
        """Varying definitions outside the group's statements that they need, in source order."""
        inside = {inner for s in group.statements for inner in s.walk()}
        waiting = [name for s in inside for name in s.uses | s.written]
        needed: set[Statement] = set()
        while waiting:
            name = waiting.pop()
            for binding in self._code.bindings(name):
                mine = self._blocking.loop in binding.block.loops() and self._is_copied(binding)
                if mine and binding not in inside and binding not in needed:
                    needed.add(binding)
                    waiting.extend(binding.uses)
        return [statement for statement in self._code.statements() if statement in needed]

    # --- the new text ---------------------------------------------------------------------------------

    def _emit(self, parts: list[_Group | _Shared | _Around]) -> list[cst.BaseStatement]:
        lines: list[cst.BaseStatement] = []
        for part in parts:
            if isinstance(part, _Shared):
                lines.append(part.statement.node)
            elif isinstance(part, _Group):
                lines += self._emit_group(part)
            else:
                node = part.loop.node
                assert isinstance(node, cst.For) and isinstance(node.body, cst.IndentedBlock)
                lines.append(node.with_changes(body=node.body.with_changes(body=self._emit(part.parts))))
        return lines

    def _emit_group(self, group: _Group) -> list[cst.BaseStatement]:
        loop, index = self._blocking.loop, self._index
        assert isinstance(loop.node, cst.For) and isinstance(loop.node.body, cst.IndentedBlock)
        assert loop.count is not None
        copies = self._copies(group)
        ordered = [s for s in self._code.statements() if s in copies or s in group.statements]
        renamed = self._names_for(copies, ordered)
        body: list[cst.BaseStatement] = []
        if any(loop.variable in statement.uses for statement in ordered):
            body.append(parsed_statement(f"{renamed[loop.variable]} = {self._factor} * {self._block} + {index}"))
        made = {name for s in group.statements if s.body is None for name in s.binds if name in self._lists}
        before: list[cst.BaseStatement] = [parsed_statement(f"{self._lists[name]} = []") for name in sorted(made)]
        for statement in ordered:
            node = self._replaced(statement, made, renamed)
            body.append(node if statement is not ordered[0] else node.with_changes(leading_lines=()))
            for name in sorted(statement.binds & made) if statement in group.statements else ():
                body.append(parsed_statement(f"{self._lists[name]}.append({name})"))
        counted = replace_nodes(loop.node.iter, {loop.count: cst.Integer(str(self._factor))})
        assert isinstance(counted, cst.Call)
        jam = cst.For(
            target=cst.Name(index),
            iter=counted,
            body=loop.node.body.with_changes(body=body, header=cst.TrailingWhitespace(), footer=()),
        )
        result = [*before, jam]
        result[0] = result[0].with_changes(leading_lines=list(getattr(ordered[0].node, "leading_lines", ())))
        return result

    def _names_for(self, copies: list[Statement], ordered: list[Statement]) -> dict[str, str]:
        """Old name -> new name of what this group binds for itself: the loop's variable and copied definitions."""
        variable = self._blocking.loop.variable
        own = {name for definition in copies for name in definition.binds}
        if any(variable in statement.uses for statement in ordered):
            own.add(variable)
        names = {}
        for name in sorted(own):
            new, number = name, 2
            while new in self._bound or (new != name and new in self._code.all_names):
                new, number = f"{name}{number}", number + 1
            names[name] = new
            self._bound.add(new)
        return names

    def _replaced(self, statement: Statement, made: set[str], renamed: dict[str, str]) -> cst.BaseStatement:
        """The statement with tiles of other groups taken from their lists, and the group's own names."""
        changes: dict[cst.CSTNode, cst.CSTNode] = {}
        for node in name_nodes(statement.node):
            if node.value in self._lists and node.value not in made:
                changes[node] = parsed_expression(f"{self._lists[node.value]}[{self._index}]")
            elif renamed.get(node.value, node.value) != node.value:
                changes[node] = node.with_changes(value=renamed[node.value])
        if statement.kind is Kind.DEFINE and statement.binds & set(renamed):
            for node in _target_names(statement.node):
                changes[node] = node.with_changes(value=renamed[node.value])
        result = replace_nodes(statement.node, changes)
        assert isinstance(result, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        return result


def _target_names(node: cst.BaseStatement) -> list[cst.Name]:
    """Names on the left of `a = ...` or `a, b = ...`."""
    assert isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.Assign)
    target = node.body[0].targets[0].target
    parts = [element.value for element in target.elements] if isinstance(target, cst.Tuple) else [target]
    return [part for part in parts if isinstance(part, cst.Name)]


def _is_container(statement: Statement) -> bool:
    """`tiles = []`"""
    node = statement.node
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
    return isinstance(small, cst.Assign) and isinstance(small.value, cst.List)
