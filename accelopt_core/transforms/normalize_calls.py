"""Functions of the kernel's own file, and of files beside it, written out where they are called.

    def load(src):                                       tile = nl.ndarray(x.shape, ...)
        tile = nl.ndarray(src.shape, ...)       ->       nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=tile, src=src)
        return tile

    tile = load(x)

A function is written out where it is called by a statement of its own, or where it is one expression; a call inside a
statement gets one of its own first, where nothing before it minds. A function that leaves early does so by branches
then (normalize_returns), and methods are functions of the object that they are called on (normalize_objects).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import libcst as cst

from accelopt_core.transforms.base import KernelModule
from accelopt_core.transforms.neighbours import Neighbours
from accelopt_core.transforms.normalize_names import fresh_name
from accelopt_core.transforms.normalize_objects import Classes, objects_in, with_fields_as_names
from accelopt_core.transforms.normalize_returns import with_one_exit
from accelopt_core.transforms.scopes import bound_by
from accelopt_core.transforms.substitution import substituted
from accelopt_core.transforms.syntax import (
    bound_names,
    children,
    descendants,
    is_import,
    name_nodes,
    parsed_statement,
    replace_nodes,
)

MOST_STATEMENTS = 400
"""Of the kernel, beyond which nothing more is written out: functions that are longer than what is left stay calls."""

_SCOPES = (
    cst.FunctionDef,
    cst.ClassDef,
    cst.Lambda,
    cst.NamedExpr,
    cst.Global,
    cst.Nonlocal,
    cst.Yield,
    cst.Await,
    cst.Try,
    cst.Match,
    cst.Del,
    cst.Import,
    cst.ImportFrom,
)
_EITHER = (cst.IfExp, cst.BooleanOperation, cst.Lambda, cst.BaseComp, cst.FormattedString)
"""Expressions of which a part may not be evaluated, or several times."""
_NUMBERS = frozenset({"int", "len", "max", "min", "range"})
"""Calls that nothing can come in between of."""


@dataclass(frozen=True)
class _Helper:
    function: cst.FunctionDef
    parameters: tuple[cst.Param, ...]
    body: tuple[cst.BaseStatement, ...]
    """Without its docstring and its return."""
    result: cst.BaseExpression | None
    own: frozenset[str]
    """Names that it binds, its parameters not among them."""
    rebound: frozenset[str]
    """Parameters that it binds again."""
    free: frozenset[str]
    """Names it takes from the module."""
    calls: frozenset[str]
    """What it calls, as it says it."""
    receiver: str = ""
    """Of a method, the name of its object, which is its first argument."""


def with_calls_written_out(module: KernelModule, kernel: cst.FunctionDef) -> cst.Module:
    """The module with one call of the kernel's after the other replaced; the very one when there is none to replace."""
    neighbours = Neighbours(module.tree, module.around)
    classes = Classes(module.tree, neighbours, _free_in)
    helpers = _with_methods(_helpers(module.tree, kernel, neighbours, classes), kernel, neighbours, classes)
    helpers = {name: helper for name, helper in helpers.items() if not _reaches(name, helper, helpers)}
    texts = [module.tree.code, *(text for _, text in module.around.neighbours)] if helpers else []
    changing = frozenset[str]().union(*map(_changed_attributes, texts))
    written = _written_out(kernel, helpers, changing) if helpers else kernel
    taken = frozenset(node.value for node in descendants(module.tree) if isinstance(node, cst.Name))
    taken |= {node.value for node in descendants(written) if isinstance(node, cst.Name)}
    written = with_fields_as_names(written, classes, taken)
    if written is kernel:
        return module.tree
    result = module.tree.deep_replace(kernel, written)
    assert isinstance(result, cst.Module)
    used = {node.value for node in name_nodes(written)}
    lines = [line for name, line in neighbours.imports.items() if name in used]
    return _with_imports(result, written, lines)


def _with_imports(module: cst.Module, kernel: cst.FunctionDef, lines: list[str]) -> cst.Module:
    """After the last that the file has above the kernel."""
    body = list(module.body)
    at = next(n for n, each in enumerate(body) if each is kernel)
    place = max((n + 1 for n, each in enumerate(body[:at]) if is_import(each)), default=0)
    made = [parsed_statement(line) for line in lines]
    return module.with_changes(body=[*body[:place], *made, *body[place:]]) if made else module


_MAKES = frozenset({"__init__", "__post_init__"})


@lru_cache(256)
def _changed_attributes(text: str) -> frozenset[str]:
    """That a file gives objects which are made already; of one that Python cannot read, none."""
    try:
        waiting: list[ast.AST] = [ast.parse(text)]
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    found = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        if not (isinstance(node, ast.FunctionDef) and node.name in _MAKES):
            waiting += ast.iter_child_nodes(node)
    return frozenset(found)


def _written_out(kernel: cst.FunctionDef, helpers: Mapping[str, _Helper], changing: frozenset[str]) -> cst.FunctionDef:
    """What is called on every path comes first: of branches many are never taken, and a kernel has a limit."""
    for in_branches in (False, True):
        while (most := MOST_STATEMENTS - _size(kernel)) > 0:
            taken = {node.value for node in descendants(kernel) if isinstance(node, cst.Name)}
            edit = _WriteOut(helpers, changing, _bound(kernel), taken, most, in_branches)
            changed = kernel.visit(edit)
            assert isinstance(changed, cst.FunctionDef)
            if not edit.done:
                break
            # Through text, because what a function is written out as must not stand in one tree twice.
            again = parsed_statement(cst.Module([changed]).code)
            assert isinstance(again, cst.FunctionDef)
            kernel = again
    return kernel


def _size(function: cst.FunctionDef) -> int:
    return sum(isinstance(node, cst.BaseStatement) for node in descendants(function))


def _bound(function: cst.FunctionDef) -> frozenset[str]:
    """Names that it binds, its parameters among them."""
    found = {node.name.value for node in descendants(function.params) if isinstance(node, cst.Param)}
    for node in descendants(function.body):
        if isinstance(node, (cst.AssignTarget, cst.For, cst.AugAssign, cst.AnnAssign, cst.CompFor, cst.NamedExpr)):
            found |= bound_names(node.target)
        elif isinstance(node, cst.AsName):
            found |= bound_names(node.name)
    return frozenset(found)


def _helpers(
    module: cst.Module, kernel: cst.FunctionDef, neighbours: Neighbours, classes: Classes
) -> dict[str, _Helper]:
    """By what the kernel's file calls them, those of neighbours as far as any of them is called."""
    functions = [node for node in module.body if isinstance(node, cst.FunctionDef) and node is not kernel]
    bound = Counter(_bound_in(module))
    read = {f.name.value: h for f in functions if bound[f.name.value] == 1 and (h := _read(f)) is not None}
    return _with_called(read, _called_in(kernel), neighbours, classes)


def _bound_in(module: cst.Module) -> Iterator[str]:
    """A name each time that the module binds it: at its top, in its branches, or in a function that says global."""
    waiting: list[cst.CSTNode] = [*module.body]
    while waiting:
        node = waiting.pop()
        yield from bound_by(node)
        if not isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            waiting += children(node)
    for node in descendants(module):
        if isinstance(node, cst.Global):
            yield from (item.name.value for item in node.names)


def _with_called(
    read: Mapping[str, _Helper], called: frozenset[str], neighbours: Neighbours, classes: Classes
) -> dict[str, _Helper]:
    """With all that is called, by the kernel or by one of them."""
    found = dict(read)
    asked = set(found)
    waiting = sorted(called.union(*(helper.calls for helper in found.values())) - asked)
    while waiting:
        name = waiting.pop(0)
        asked.add(name)
        function = neighbours.function(name, _free_in) or classes.method(name)
        helper = _read(function) if function is not None else None
        if helper is not None:
            found[name] = helper
            waiting += sorted(helper.calls - asked - set(waiting))
    return found


def _with_methods(
    helpers: Mapping[str, _Helper], kernel: cst.FunctionDef, neighbours: Neighbours, classes: Classes
) -> dict[str, _Helper]:
    """And those of the kernel's objects, by the object's name: `tiles.count`."""
    methods = {}
    for name, plain in objects_in(kernel, classes).items():
        for method, function in plain.methods.items():
            helper = _read(function)
            if helper is not None and helper.parameters and helper.parameters[0].default is None:
                itself = helper.parameters[0].name.value
                calls = {f"{name}.{c.partition('.')[2]}" if c.partition(".")[0] == itself else c for c in helper.calls}
                methods[f"{name}.{method}"] = replace(helper, receiver=name, calls=frozenset(calls))
    return _with_called({**helpers, **methods}, frozenset(), neighbours, classes)


def _free_in(function: cst.FunctionDef) -> frozenset[str]:
    helper = _read(function)
    return helper.free if helper is not None else frozenset()


def _called_in(node: cst.CSTNode) -> frozenset[str]:
    return frozenset(_dotted(each.func) for each in descendants(node) if isinstance(each, cst.Call)) - {""}


def _dotted(node: cst.BaseExpression) -> str:
    """`helpers.tile_of`; empty for what is called otherwise."""
    if isinstance(node, cst.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr.value}" if before else ""
    return node.value if isinstance(node, cst.Name) else ""


def _reaches(name: str, helper: _Helper, read: Mapping[str, _Helper]) -> bool:
    """Does it call itself, by whatever way?"""
    seen: set[str] = set()
    waiting = list(helper.calls | helper.free)
    while waiting:
        each = waiting.pop()
        if each == name:
            return True
        if each in read and each not in seen:
            seen.add(each)
            waiting.extend(read[each].calls | read[each].free)
    return False


def _read(function: cst.FunctionDef) -> _Helper | None:
    params = function.params
    starred = isinstance(params.star_arg, cst.Param) or params.star_kwarg is not None
    if starred or function.asynchronous is not None or not isinstance(function.body, cst.IndentedBlock):
        return None
    if any(not _is_jit(each.decorator) for each in function.decorators):
        return None
    if any(isinstance(node, _SCOPES) for node in descendants(function.body)):
        return None
    body = [statement for statement in function.body.body if not _is_docstring(statement)]
    result = None
    last = body[-1].body[0] if body and isinstance(body[-1], cst.SimpleStatementLine) else None
    if isinstance(last, cst.Return):
        result = last.value
        body = body[:-1]
    if any(isinstance(node, cst.Return) for statement in body for node in descendants(statement)):
        one = with_one_exit(function, [each for each in function.body.body if not _is_docstring(each)])
        if one is None:
            return None
        body, result = list(one.body), one.result
    parameters = (*params.posonly_params, *params.params, *params.kwonly_params)
    named = frozenset(param.name.value for param in parameters)
    bound = frozenset[str]()
    for statement in body:
        bound |= _bound(function.with_changes(params=cst.Parameters(), body=cst.IndentedBlock([statement])))
    loads = {node.value for statement in body for node in name_nodes(statement)}
    loads |= {node.value for node in name_nodes(result)} if result is not None else set()
    defaults = {n.value for p in parameters if p.default is not None for n in name_nodes(p.default)}
    free = frozenset(loads - bound - named) | frozenset(defaults)
    calls = _called_in(function)
    return _Helper(function, parameters, tuple(body), result, bound - named, bound & named, free, calls)


def _is_jit(decorator: cst.BaseExpression) -> bool:
    return isinstance(decorator, cst.Attribute) and decorator.attr.value == "jit"


def _is_docstring(statement: cst.BaseStatement) -> bool:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))


# --- one call -----------------------------------------------------------------------------------------------


class _WriteOut(cst.CSTTransformer):
    """Replaces the calls that it can, of those inside one another the inner ones."""

    def __init__(
        self,
        helpers: Mapping[str, _Helper],
        changing: frozenset[str],
        bound: frozenset[str],
        taken: set[str],
        most: int,
        in_branches: bool,
    ) -> None:
        """`changing`: attributes that an object may have others of later. `most`: how many statements more the kernel
        may have."""
        self._helpers, self._changing, self._bound, self._taken = helpers, changing, bound, taken
        self._most, self._in_branches = most, in_branches
        self.done = False
        self._in_texts = self._branches = 0

    def visit_If(self, node: cst.If) -> bool:  # libcst's name
        self._branches += 1
        return True

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.BaseStatement:  # libcst's name
        self._branches -= 1
        return updated_node

    def visit_FormattedString(self, node: cst.FormattedString) -> bool:  # libcst's name
        self._in_texts += 1
        return True

    def leave_FormattedString(  # libcst's name
        self, original_node: cst.FormattedString, updated_node: cst.FormattedString
    ) -> cst.BaseExpression:
        self._in_texts -= 1
        return updated_node

    def leave_SimpleStatementLine(  # libcst's name
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        if len(original_node.body) != 1 or not original_node.deep_equals(updated_node):
            return updated_node  # something in it was written out just now: the rest in the next pass
        small = original_node.body[0]
        if isinstance(small, (cst.Expr, cst.Return)):
            call, target = small.value, None
        elif isinstance(small, cst.Assign) and len(small.targets) == 1:
            call, target = small.value, small.targets[0].target
        else:
            return updated_node
        found = self._called(call)
        if found is None:
            return updated_node
        helper, given = found
        if helper.result is None and not isinstance(small, cst.Expr):
            return updated_node
        size = sum(isinstance(node, cst.BaseStatement) for each in helper.body for node in descendants(each))
        if size > self._most:
            return updated_node
        self._most -= size
        written = self._statements(helper, given, target)
        keeps_line = written.value is not None and (not isinstance(small, cst.Expr) or _calls(written.value))
        if keeps_line:
            apart = _one_by_one(target, written.value)
            lines: Sequence[cst.BaseSmallStatement] = apart or [small.with_changes(value=written.value)]
            for kept in lines:
                written.statements.append(original_node.with_changes(body=[kept], leading_lines=()))
            if apart:  # what is said beside them once
                left = [
                    each.with_changes(trailing_whitespace=cst.TrailingWhitespace())
                    for each in written.statements[-len(apart) : -1]
                ]
                written.statements[-len(apart) : -1] = left
        self.done = True
        if not written.statements:
            return original_node.with_changes(body=[cst.Pass()])
        first = written.statements[0]
        comment = original_node.trailing_whitespace.comment
        said = [cst.EmptyLine(comment=comment)] if comment is not None and not keeps_line else []
        before = [
            *original_node.leading_lines,
            *said,
            *(line for line in first.leading_lines if line.comment is not None),
        ]
        written.statements[0] = first.with_changes(leading_lines=before)
        return cst.FlattenSentinel(written.statements)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        found = self._called(original_node)
        if found is None or not original_node.deep_equals(updated_node):
            return updated_node
        helper, given = found
        if helper.body or helper.result is None or self._in_texts:
            return updated_node
        uses = [node.value for node in name_nodes(helper.result)]
        for name, value in given.items():
            if not _may_stand_in_texts(helper, name, value):
                return updated_node
            if not _is_plain(value) and (uses.count(name) != 1 or _calls(value)):
                return updated_node
            if _calls(helper.result) and self._may_change(value):
                return updated_node
        self.done = True
        written = substituted(helper.result, {name: _in_parentheses(value) for name, value in given.items()})
        assert isinstance(written, cst.BaseExpression)
        return _in_parentheses(written)

    def leave_IndentedBlock(  # libcst's name
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        """A call within a statement gets one of its own, once nothing else is left to do."""
        for at, statement in enumerate(updated_node.body):
            if self.done or not isinstance(statement, (cst.SimpleStatementLine, cst.For, cst.If)):
                continue
            parts: list[cst.CSTNode] = [statement.iter] if isinstance(statement, cst.For) else []
            parts += [statement.test] if isinstance(statement, cst.If) else []
            if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
                parts = [statement.body[0]]
            found = _First(self._has_lines).within(parts[0]) if parts else None
            if found is None or (isinstance(statement, cst.SimpleStatementLine) and _whole(statement.body[0]) is found):
                continue
            helper = self._called(found)
            assert helper is not None
            result = _names_in(helper[0].result)
            name = self._fresh(result[0] if len(result) == 1 else _dotted(found.func).rpartition(".")[2].strip("_"))
            own = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], _in_parentheses(found))])
            own = own.with_changes(leading_lines=statement.leading_lines)
            left = replace_nodes(statement, {found: cst.Name(name)})
            assert isinstance(left, (cst.SimpleStatementLine, cst.For, cst.If))
            self.done = True
            body = [*updated_node.body[:at], own, left.with_changes(leading_lines=()), *updated_node.body[at + 1 :]]
            return updated_node.with_changes(body=body)
        return updated_node

    def _has_lines(self, call: cst.Call) -> bool:
        """It stands for more than an expression."""
        found = self._called(call)
        return found is not None and bool(found[0].body) and found[0].result is not None

    def _called(self, call: cst.BaseExpression | None) -> tuple[_Helper, dict[str, cst.BaseExpression]] | None:
        called = _dotted(call.func) if isinstance(call, cst.Call) else ""
        helper = self._helpers.get(called)
        if helper is None or helper.free & self._bound or (self._branches and not self._in_branches):
            return None
        if not helper.receiver and called.partition(".")[0] in self._bound:
            return None
        assert isinstance(call, cst.Call)
        given: dict[str, cst.BaseExpression] = {}
        names = [param.name.value for param in helper.parameters]
        positional = len(helper.function.params.posonly_params) + len(helper.function.params.params)
        if helper.receiver:
            given[names.pop(0)] = cst.Name(helper.receiver)
            positional -= 1
        for position, arg in enumerate(call.args):
            name = arg.keyword.value if arg.keyword is not None else names[position] if position < positional else ""
            if arg.star or name not in names or name in given:
                return None
            given[name] = arg.value
        for param in helper.parameters:
            if param.name.value not in given:
                if param.default is None:
                    return None
                given[param.name.value] = param.default
        return helper, given

    def _statements(
        self, helper: _Helper, given: Mapping[str, cst.BaseExpression], target: cst.BaseExpression | None
    ) -> _Written:
        renamed: dict[str, cst.BaseExpression] = dict(self._results(helper, given, target))
        direct = bool(renamed)
        for name in sorted(helper.own - set(renamed)):
            renamed[name] = cst.Name(self._fresh(name))
        before: list[cst.CSTNode] = []
        for param in helper.parameters:
            name = param.name.value
            value = given[name]
            others = [each for other, each in given.items() if other != name]
            is_operand = _is_operand(helper, name, value) and not _holds(others, value)
            kept = _is_plain(value) or is_operand or _is_asserted(helper, name, value)
            kept = kept and name not in helper.rebound and not self._may_change(value)
            if not kept or not _may_stand_in_texts(helper, name, value):
                fresh = cst.Name(self._fresh(name))
                before.append(cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(fresh)], _in_parentheses(value))]))
                renamed[name] = fresh
            else:
                renamed[name] = value if is_operand else _in_parentheses(value)
        statements: list[cst.CSTNode] = [substituted(statement, renamed) for statement in helper.body]
        made: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
        for statement in (*before, *statements):
            assert isinstance(statement, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
            made.append(statement)
        if helper.result is None or direct:
            return _Written(made, None)
        result = substituted(helper.result, renamed)
        assert isinstance(result, cst.BaseExpression)
        return _Written(made, result)

    def _fresh(self, name: str) -> str:
        if name in self._taken:
            name = fresh_name(name, self._taken)
        self._taken.add(name)
        self._bound |= {name}
        return name

    def _results(
        self, helper: _Helper, given: Mapping[str, cst.BaseExpression], target: cst.BaseExpression | None
    ) -> Mapping[str, cst.BaseExpression]:
        """Where the result is a name of its own (or several) and the target too: the name it takes from the start."""
        results, targets = _names_in(helper.result), _names_in(target)
        asked = {node.value for value in given.values() for node in name_nodes(value)}
        if not results or len(results) != len(targets) or len(set(results)) != len(results):
            return {}
        if not set(results) <= helper.own or set(targets) & (asked | helper.free) or len(set(targets)) != len(targets):
            return {}
        return {result: cst.Name(name) for result, name in zip(results, targets)}

    def _may_change(self, value: cst.BaseExpression) -> bool:
        """While the function runs that it was given to."""
        return any(isinstance(node, cst.Attribute) and node.attr.value in self._changing for node in descendants(value))


def _is_operand(helper: _Helper, name: str, value: cst.BaseExpression) -> bool:
    """A view that the function only hands on to instructions, whole."""
    if not isinstance(value, cst.Subscript) or _calls(value):
        return False
    handed = 0
    uses = 0
    for statement in helper.body:
        uses += sum(node.value == name for node in name_nodes(statement))
        for node in descendants(statement):
            if isinstance(node, cst.Arg) and isinstance(node.value, cst.Name) and node.value.value == name:
                handed += 1
    in_result = helper.result is not None and any(node.value == name for node in name_nodes(helper.result))
    return handed == uses and not in_result


def _holds(others: Sequence[cst.BaseExpression], value: cst.BaseExpression) -> bool:
    """Whether what it is selected from is handed over as well: a list, of which the function may change an element."""
    while isinstance(value, (cst.Subscript, cst.Attribute)):
        value = value.value
    return isinstance(value, cst.Name) and any(
        isinstance(each, cst.Name) and each.value == value.value for each in others
    )


class _First:
    """Looks for the first call that a statement makes."""

    def __init__(self, wanted: Callable[[cst.Call], bool]) -> None:
        self._wanted = wanted
        self._asked: set[str] = set()
        """Names of which something was taken before."""

    def within(self, node: cst.CSTNode) -> cst.Call | None:
        """The first that is wanted; None where something before it might see what it does."""
        try:
            found = self._of(node)
        except _Hidden:
            return None
        return found if found is not None and not self._asked & _loaded(found) else None

    def _of(self, node: cst.CSTNode) -> cst.Call | None:
        if isinstance(node, _EITHER):
            if any(isinstance(each, cst.Call) for each in descendants(node)):
                raise _Hidden
            return None
        if isinstance(node, cst.Assign):
            return self._of(node.value)
        for each in node.args if isinstance(node, cst.Call) and _dotted(node.func) else children(node):
            found = self._of(each)
            if found is not None:
                return found
        if isinstance(node, cst.Call):
            if self._wanted(node):
                return node
            if _dotted(node.func) not in _NUMBERS:
                raise _Hidden
        if isinstance(node, (cst.Subscript, cst.Attribute)):
            self._asked |= _loaded(node)
        return None


class _Hidden(Exception):
    """What a call does might be seen by what comes before it."""


def _loaded(node: cst.CSTNode) -> frozenset[str]:
    return frozenset(each.value for each in name_nodes(node))


def _whole(small: cst.BaseSmallStatement) -> cst.BaseExpression | None:
    """The value that is all of a statement."""
    return small.value if isinstance(small, (cst.Assign, cst.Expr, cst.Return)) else None


def _may_stand_in_texts(helper: _Helper, name: str, value: cst.BaseExpression) -> bool:
    """What a text with values in braces shows can be no text itself: older Pythons do not read quotes within quotes."""
    if isinstance(value, (cst.Name, cst.Attribute, cst.Integer)):
        return True
    parts = [*helper.body, *([helper.result] if helper.result is not None else [])]
    texts = [node for part in parts for node in descendants(part) if isinstance(node, cst.FormattedString)]
    return not any(node.value == name for text in texts for node in name_nodes(text))


def _is_asserted(helper: _Helper, name: str, value: cst.BaseExpression) -> bool:
    """All that the function does with it is to assert it."""
    uses = [node for statement in helper.body for node in name_nodes(statement) if node.value == name]
    for statement in helper.body:
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(small, cst.Assert) and uses == [small.test]:
            return not _calls(value) and "\n" not in cst.Module([]).code_for_node(value)
    return False


@dataclass
class _Written:
    statements: list[cst.SimpleStatementLine | cst.BaseCompoundStatement]
    value: cst.BaseExpression | None
    """What the call's value is after them; None when there is none, or its names stand for it already."""


def _one_by_one(target: cst.BaseExpression | None, value: cst.BaseExpression | None) -> list[cst.Assign]:
    """`a, b = c, d` as `a = c` and `b = d`; none where the second would see what the first has bound."""
    names = _names_in(target) if isinstance(target, cst.Tuple) else []
    if not names or not isinstance(value, cst.Tuple) or len(set(names)) != len(value.elements):
        return []
    values = [each.value for each in value.elements if isinstance(each, cst.Element)]
    if len(values) != len(names) or any(set(names[:at]) & _loaded(each) for at, each in enumerate(values)):
        return []
    return [cst.Assign([cst.AssignTarget(cst.Name(name))], _in_parentheses(each)) for name, each in zip(names, values)]


def _names_in(expression: cst.BaseExpression | None) -> list[str]:
    parts = [element.value for element in expression.elements] if isinstance(expression, cst.Tuple) else [expression]
    names = [part.value for part in parts if isinstance(part, cst.Name)]
    return names if len(names) == len(parts) else []


def _is_plain(value: cst.BaseExpression) -> bool:
    """Costs nothing to repeat, and means the same wherever it stands: a name, a number, a text, nl.float32."""
    while isinstance(value, cst.Attribute):
        value = value.value
    return isinstance(value, (cst.Name, cst.Integer, cst.Float, cst.SimpleString))


def _calls(value: cst.BaseExpression) -> bool:
    return any(isinstance(node, cst.Call) for node in descendants(value))


def _in_parentheses(value: cst.BaseExpression) -> cst.BaseExpression:
    on_one_line = "\n" not in cst.Module([]).code_for_node(value)
    if _is_plain(value) or value.lpar or (on_one_line and isinstance(value, (cst.Call, cst.Subscript, cst.Tuple))):
        return value
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
