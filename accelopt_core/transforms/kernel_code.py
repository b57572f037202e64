"""A kernel as the transforms see it: blocks, loops, and what every statement reads, writes and binds.

Everything here is conservative: a statement that is not understood is opaque, which means that it may
read and write every buffer it mentions, and that no transform moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from typing import TypeVar, cast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from accelopt_core.transforms.base import KernelModule, NotAKernel
from accelopt_core.transforms.isa_effects import (
    LOOP_RANGES,
    PURE_FUNCTIONS,
    STARTS_ANEW,
    SUMS_ANEW,
    VIEW_METHODS,
    WRITTEN_ARGUMENTS,
)
from accelopt_core.transforms.lasting_state import Reach, holders_in
from accelopt_core.transforms.scopes import Scopes, bound_by
from accelopt_core.transforms.syntax import (
    bound_names,
    content_names,
    descendants,
    lines_of_statements,
    loaded_names,
    parents_in,
    replace_nodes,
)


class Kind(str, Enum):
    ALLOCATE = "allocation"
    INSTRUCTION = "instruction"
    DEFINE = "definition"
    """A name for a number, a view, or a list of tiles."""
    APPEND = "append"
    LOOP = "loop"
    BRANCH = "branch"
    CHECK = "check"
    """An assertion or a docstring: no effect."""
    OPAQUE = "not understood"


Found = TypeVar("Found")


@dataclass(eq=False)
class Statement:
    """One statement of a block, with what it does. Loops and branches sum up what is inside them."""

    node: cst.BaseStatement
    kind: Kind
    line: int
    block: Block
    binds: frozenset[str] = frozenset()
    uses: frozenset[str] = frozenset()
    """Every name it loads."""
    contents: frozenset[str] = frozenset()
    """Names whose contents matter, so not `x` in `x.shape`."""
    written: frozenset[str] = frozenset()
    """Names that appear in an argument the instruction writes."""
    operation: str = ""
    """`dma_copy` for `nki.isa.dma_copy`; empty for anything else."""
    call: cst.Call | None = None
    stateful: bool = False
    """Depends on earlier instructions, or later ones on it, in ways its operands do not show."""
    sums_anew: bool = False
    """Sums its own elements in the engine's registers, whatever was there."""
    body: Block | None = None
    variable: str = ""
    """A loop's variable, when it is one name."""
    count: cst.BaseExpression | None = None
    """A loop's trip count, when it runs over range(count) or one of its NKI spellings."""
    leaves: bool = False
    """Contains return, break or continue."""
    region: str = ""
    """An allocation's memory: sbuf, psum, shared_hbm ..."""
    header_uses: frozenset[str] = frozenset()
    """Names in a loop's range or a branch's condition."""

    @property
    def own_uses(self) -> frozenset[str]:
        """Names it loads itself, not counting the statements inside it."""
        return self.uses if self.body is None else self.header_uses

    def walk(self) -> Iterator[Statement]:
        yield self
        if self.body is not None:
            for inner in self.body.statements:
                yield from inner.walk()


@dataclass(eq=False)
class Block:
    """The statements of the function's body, of one loop, or of one branch."""

    node: cst.IndentedBlock
    owner: Statement | None
    statements: list[Statement] = field(default_factory=list)

    def loops(self) -> tuple[Statement, ...]:
        """Loops and branches around this block, outermost first."""
        around: list[Statement] = []
        owner = self.owner
        while owner is not None:
            around.append(owner)
            owner = owner.block.owner
        return tuple(reversed(around))


class KernelCode:
    """The one kernel of a module, analyzed. Nodes belong to `module`, in which none stands twice."""

    def __init__(self, module: KernelModule) -> None:
        self.text = module.text
        self.module = module.tree if module.parsed_from is not None else cst.parse_module(self.text)
        self.around = module.around
        self._lines = lines_of_statements(self.module, self.text)
        self._scopes = Scopes(self.module)
        self.function = find_kernel(self.module, module.entry_points)
        if not isinstance(self.function.body, cst.IndentedBlock):
            raise NotAKernel(f"kernel {self.function.name.value} has its body on the line of its def")
        self.parameters = frozenset(
            param.name.value for param in (*self.function.params.posonly_params, *self.function.params.params)
        )
        self._imported = self._scopes.imported_anywhere
        reach = Reach(self.module, self.function, self._imported)
        if reach.outliving():
            raise NotAKernel(f"it, or a function that it calls, changes {reach.outliving()}, which is not its own")
        self._unsteady = reach.unsteady(self.qualified)
        self.body = self._block(self.function.body, None)
        self._statements = tuple(each for statement in self.body.statements for each in statement.walk())
        self._keep_sums_in_order()
        self.all_names = frozenset(node.value for node in descendants(self.module) if isinstance(node, cst.Name))
        self.captured = self._scopes.captured(self.function)
        """Names that nested functions, lambdas or comprehensions use, or that are declared global."""
        self.buffers = frozenset(s.one_name for s in map(_Named, self.statements()) if s.is_buffer)
        self.roots = self._roots()
        self.kept: dict[object, object] = {}
        """What others have found out about it, by a key of theirs: it is looked at many times."""

    def found_once(self, find: Callable[[KernelCode], Found]) -> Found:
        """What `find` makes of it, asked the first time only. Raises what that raises."""
        if find not in self.kept:
            self.kept[find] = find(self)
        return cast(Found, self.kept[find])

    # --- looking around ---------------------------------------------------------------------------

    def statements(self) -> Sequence[Statement]:
        """All, in the order of the source."""
        return self._statements

    def loops(self) -> Iterator[Statement]:
        return (statement for statement in self.statements() if statement.kind is Kind.LOOP)

    def bindings(self, name: str) -> list[Statement]:
        """Statements that bind the name, loops by their variable included."""
        found = self._binders.get(name, [])
        if found and name in self.parameters:  # what was passed in is another value of the same name
            return [Statement(self.function, Kind.OPAQUE, self.line_of(self.function), self.body), *found]
        return [*found]

    @cached_property
    def _binders(self) -> Mapping[str, list[Statement]]:
        """By name, in the order of the source."""
        found: dict[str, list[Statement]] = {}
        for statement in self.statements():
            if statement.kind is not Kind.BRANCH:
                for name in {statement.variable} if statement.kind is Kind.LOOP else statement.binds:
                    found.setdefault(name, []).append(statement)
        return found

    def writers(self, buffer: str) -> list[Statement]:
        """Innermost statements that may change the buffer's contents."""
        return [
            statement
            for statement in self.statements()
            if statement.body is None and buffer in self.changed_by(statement)
        ]

    def changed_by(self, statement: Statement) -> frozenset[str]:
        """Buffers (allocated here or passed in) whose contents the statement may change."""
        if statement.kind is Kind.APPEND:
            return frozenset()
        names = statement.uses if statement.kind is Kind.OPAQUE else statement.written
        return self.roots_of(names)

    def roots_of(self, names: frozenset[str]) -> frozenset[str]:
        found: set[str] = set()
        for name in names:
            found |= self.roots.get(name, frozenset())
        return frozenset(found)

    def line_of(self, node: cst.CSTNode) -> int:
        line = self._lines.get(node)
        return line if line is not None else int(self._positions[node].start.line)

    @cached_property
    def _positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        return MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(PositionProvider)

    @cached_property
    def _parents(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        return parents_in(self.module)

    def qualified(self, node: cst.CSTNode) -> str:
        """`nki.isa.dma_copy` for whatever name the module imported it under; empty when ambiguous."""
        return self._scopes.qualified(node)

    def is_pythons_own(self, name: str) -> bool:
        """The built-in function: neither the kernel nor its file gives the name to anything else."""
        return self._scopes.meaning(name, self.function) == f"builtins.{name}"

    def allocations_of(self, expression: cst.BaseExpression) -> list[Statement]:
        """Allocations of the buffers that the expression may stand for."""
        roots = self.roots_of(content_names(expression))
        return [s for root in sorted(roots) for s in self.bindings(root) if s.kind is Kind.ALLOCATE]

    def regions_of(self, expression: cst.BaseExpression) -> frozenset[str]:
        """Memories its buffers may lie in: sbuf, psum, shared_hbm ...; a parameter is in hbm."""
        found = {statement.region for statement in self.allocations_of(expression)}
        if self.roots_of(content_names(expression)) & self.parameters:
            found.add("hbm")
        return frozenset(found)

    def name_of_module(self, module: str) -> str:
        """How the kernel writes a module, from a use of it: `nl` for `nki.language`; empty when it uses none."""
        for node in descendants(self.function):
            if isinstance(node, cst.Attribute) and self.qualified(node.value) == module:
                return self.module.code_for_node(node.value)
        return ""

    def argument(self, statement: Statement, keyword: str, position: int | None = None) -> cst.BaseExpression | None:
        """What an instruction is given for a parameter, by keyword or (where it has one) by position."""
        if statement.call is None:
            return None
        for at, arg in enumerate(statement.call.args):
            if arg.keyword.value == keyword if arg.keyword is not None else at == position:
                return arg.value
        return None

    def changed(self, changes: dict[cst.CSTNode, cst.CSTNode]) -> cst.Module:
        """The module with nodes, found by identity, replaced."""
        result = replace_nodes(self.module, changes, self._parents)
        assert isinstance(result, cst.Module)
        return result

    def fresh_name(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self.all_names:
            name, number = f"{wanted}{number}", number + 1
        return name

    # --- reading statements -----------------------------------------------------------------------

    def _block(self, node: cst.IndentedBlock, owner: Statement | None) -> Block:
        block = Block(node, owner)
        block.statements = [self._statement(child, block) for child in node.body]
        return block

    def _statement(self, node: cst.BaseStatement, block: Block) -> Statement:
        line = self.line_of(node)
        if isinstance(node, cst.SimpleStatementLine):
            if len(node.body) == 1:
                return self._small(node, node.body[0], line, block)
        elif (
            isinstance(node, cst.For)
            and isinstance(node.body, cst.IndentedBlock)
            and node.orelse is None
            and self._unsteady.calls_none_of(node.iter)
        ):
            return self._loop(node, line, block)
        elif (
            isinstance(node, cst.If)
            and isinstance(node.body, cst.IndentedBlock)
            and node.orelse is None
            and self._changes_nothing(node.test)
        ):
            branch = Statement(node, Kind.BRANCH, line, block)
            branch.body = self._block(node.body, branch)
            return self._sum_up(branch, loaded_names(node.test), content_names(node.test), frozenset())
        return self._opaque(node, line, block)

    def _loop(self, node: cst.For, line: int, block: Block) -> Statement:
        loop = Statement(node, Kind.LOOP, line, block)
        assert isinstance(node.body, cst.IndentedBlock)
        loop.body = self._block(node.body, loop)
        binds = bound_names(node.target)
        if isinstance(node.target, cst.Name):
            loop.variable = node.target.value
            if (
                isinstance(node.iter, cst.Call)
                and self.qualified(node.iter.func) in LOOP_RANGES
                and len(node.iter.args) == 1
                and node.iter.args[0].keyword is None
                and not node.iter.args[0].star
                and self._unsteady.is_free_of(node.iter)
            ):
                loop.count = node.iter.args[0].value
        return self._sum_up(loop, loaded_names(node.iter), content_names(node.iter), binds)

    @staticmethod
    def _sum_up(
        statement: Statement, uses: frozenset[str], contents: frozenset[str], binds: frozenset[str]
    ) -> Statement:
        assert statement.body is not None
        inner = statement.body.statements
        statement.header_uses = uses
        statement.uses = uses.union(*(s.uses for s in inner))
        statement.contents = contents.union(*(s.contents for s in inner))
        statement.binds = binds.union(*(s.binds for s in inner))
        statement.written = frozenset().union(*(s.uses if s.kind is Kind.OPAQUE else s.written for s in inner))
        statement.stateful = any(s.stateful or s.kind is Kind.OPAQUE for s in inner)
        statement.leaves = any(s.leaves for s in inner)
        return statement

    def _small(
        self, node: cst.SimpleStatementLine, small: cst.BaseSmallStatement, line: int, block: Block
    ) -> Statement:
        made = Statement(node, Kind.CHECK, line, block, uses=loaded_names(small), contents=content_names(small))
        if not isinstance(small, (cst.Assign, cst.Expr, cst.Return)) and not self._changes_nothing(small):
            return self._opaque(node, line, block)
        if isinstance(small, (cst.Assert, cst.Pass)):
            return made
        if isinstance(small, (cst.Return, cst.Break, cst.Continue)):
            made.leaves = True
            return made
        if isinstance(small, cst.Expr):
            if isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString)):
                return made
            if isinstance(small.value, cst.Call):
                return self._call(made, small.value)
        if isinstance(small, cst.Assign) and len(small.targets) == 1:
            return self._assign(made, small)
        return self._opaque(node, line, block)

    def _call(self, made: Statement, call: cst.Call) -> Statement:
        if (
            isinstance(call.func, cst.Attribute)
            and isinstance(call.func.value, cst.Name)
            and call.func.attr.value == "append"
            and len(call.args) == 1
            and self._is_pure(call.args[0].value)
        ):
            made.kind = Kind.APPEND
            made.call = call
            made.written = frozenset({call.func.value.value})
            return made
        name = self.qualified(call.func)
        operation = name.removeprefix("nki.isa.")
        written = WRITTEN_ARGUMENTS.get(operation)
        if not name.startswith("nki.isa.") or written is None or not all(self._is_pure(a.value) for a in call.args):
            return self._opaque(made.node, made.line, made.block)
        made.kind, made.operation, made.call = Kind.INSTRUCTION, operation, call
        names: set[str] = set()
        for position, arg in enumerate(call.args):
            if arg.star:
                return self._opaque(made.node, made.line, made.block)
            keyword = arg.keyword.value if arg.keyword is not None else ("dst" if position == 0 else "")
            if keyword in written:
                names |= _changed_names(arg.value)
        made.written = frozenset(names)
        made.sums_anew, continues = self._sums(made)
        made.stateful = continues or self.argument(made, "priority") is not None
        return made

    def _sums(self, instruction: Statement) -> tuple[bool, bool]:
        """Whether it sums its own elements alone in its engine's registers; whether it may go on from what is there."""
        command = self.argument(instruction, "reduce_cmd")
        if command is not None:
            anew = self.qualified(command) == STARTS_ANEW
            return anew, not anew
        anew = instruction.operation in SUMS_ANEW
        return anew, not anew and self.argument(instruction, "reduce_res") is not None

    def _keep_sums_in_order(self) -> None:
        """A sum of its own stands alone, unless something in the kernel may go on from what it leaves behind."""
        statements = list(self.statements())
        if any(statement.stateful for statement in statements):
            for statement in statements:
                if statement.sums_anew:
                    for each in (statement, *statement.block.loops()):
                        each.stateful = True

    def _assign(self, made: Statement, small: cst.Assign) -> Statement:
        target = small.targets[0].target
        made.uses, made.contents = loaded_names(small.value), content_names(small.value)
        made.binds = bound_names(target)
        names = (cst.Name, cst.Tuple)
        if not made.binds or not isinstance(target, names):
            return self._opaque(made.node, made.line, made.block)
        value = small.value
        if isinstance(value, cst.Call) and self.qualified(value.func) == "nki.language.ndarray":
            if not isinstance(target, cst.Name) or not all(self._is_pure(a.value) for a in value.args):
                return self._opaque(made.node, made.line, made.block)
            made.kind, made.call, made.region = Kind.ALLOCATE, value, self._region(value)
            return made
        if not self._is_pure(value):
            return self._opaque(made.node, made.line, made.block)
        made.kind = Kind.DEFINE
        return made

    def _region(self, call: cst.Call) -> str:
        for position, arg in enumerate(call.args):
            keyword = arg.keyword.value if arg.keyword is not None else ""
            if keyword == "buffer" or (not keyword and position == 2):
                return self.qualified(arg.value).removeprefix("nki.language.")
        return "sbuf"

    def _is_pure(self, expression: cst.BaseExpression) -> bool:
        """Indices, shapes, views and numbers: calls of known functions and view methods only, of what stays."""
        if not self._unsteady.is_free_of(expression):
            return False
        for node in descendants(expression):
            if isinstance(node, (cst.Lambda, cst.BaseComp, cst.NamedExpr, cst.Await, cst.Yield)):
                return False
            if isinstance(node, cst.Call):
                name = self.qualified(node.func).removeprefix("builtins.")
                method = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
                if name not in PURE_FUNCTIONS and not (not name and method in VIEW_METHODS):
                    return False
        return True

    def _changes_nothing(self, node: cst.CSTNode) -> bool:
        """Binds no name on the way, and calls no function of the file's."""
        binds = any(isinstance(each, cst.NamedExpr) for each in descendants(node))
        return not binds and self._unsteady.calls_none_of(node)

    @staticmethod
    def _opaque(node: cst.BaseStatement, line: int, block: Block) -> Statement:
        inside = list(descendants(node))
        names = loaded_names(node)
        stored = frozenset().union(
            *(bound_by(each) for each in inside if not isinstance(each, (cst.CompFor, cst.Param)))
        )
        return Statement(
            node,
            Kind.OPAQUE,
            line,
            block,
            binds=stored,
            uses=names | stored,
            contents=names,
            stateful=True,
            leaves=any(isinstance(n, (cst.Return, cst.Break, cst.Continue)) for n in inside),
        )

    # --- names ------------------------------------------------------------------------------------

    def _roots(self) -> dict[str, frozenset[str]]:
        """Which buffers a name may stand for: itself, or what its definition or its list holds."""
        roots: dict[str, frozenset[str]] = {name: frozenset({name}) for name in self.buffers | self.parameters}
        links: list[tuple[str, frozenset[str]]] = []
        for statement in self.statements():
            if statement.kind is Kind.DEFINE or (statement.kind is Kind.OPAQUE and statement.binds):
                links.extend((name, statement.contents) for name in statement.binds)
            elif statement.kind is Kind.APPEND:
                links.extend((name, statement.contents) for name in statement.written)
            elif statement.kind is Kind.LOOP and isinstance(statement.node, cst.For):
                source = content_names(statement.node.iter)
                links.extend((name, source) for name in bound_names(statement.node.target))
            if statement.kind is Kind.OPAQUE:
                holders = holders_in(statement.node) - self.buffers - self.parameters - self._imported
                links.extend((name, statement.contents) for name in holders)
        changed = True
        while changed:
            changed = False
            for name, sources in links:
                new = roots.get(name, frozenset()).union(*(roots.get(s, frozenset()) for s in sources))
                if new != roots.get(name, frozenset()):
                    roots[name], changed = new, True
        return roots


@lru_cache(maxsize=8)
def read_kernel(module: KernelModule) -> KernelCode:
    """The analysis of a module, made once for all transforms that look at the same one. Raises NotAKernel."""
    return KernelCode(module)


@dataclass(frozen=True)
class _Named:
    statement: Statement

    @property
    def is_buffer(self) -> bool:
        return self.statement.kind is Kind.ALLOCATE

    @property
    def one_name(self) -> str:
        (name,) = self.statement.binds
        return name


def find_kernel(module: cst.Module, entry_points: tuple[str, ...]) -> cst.FunctionDef:
    functions = [node for node in module.body if isinstance(node, cst.FunctionDef)]
    for name in entry_points:
        found = [function for function in functions if function.name.value == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise NotAKernel(f"{name} is defined {len(found)} times")
    raise NotAKernel(f"no function called {' or '.join(entry_points)} at the top level")


def _changed_names(operand: cst.BaseExpression) -> frozenset[str]:
    """Names behind an operand that is written: of `x[0:n]` and `x.ap(pattern)` that is x."""
    while isinstance(operand, (cst.Subscript, cst.Attribute)) or (
        isinstance(operand, cst.Call) and isinstance(operand.func, cst.Attribute)
    ):
        operand = operand.func if isinstance(operand, cst.Call) else operand.value
    return content_names(operand)
