"""The source with every expression reporting what it gives: how a run of the old kernel is watched.

Nodes keep the number they have in a walk of the parsed source, so what was seen can be looked up by node.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
from typing import Any

from nki_sim.lint.kernel_source import blocks_of

SEE, STORE, AUGMENT, AUGMENT_AT, LOOP, NAME, CHOICE = (
    "__b1_see",
    "__b1_store",
    "__b1_augment",
    "__b1_augment_at",
    "__b1_loop",
    "__b1_name",
    "__b1_choice",
)
_SEEN = (ast.Call, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.Name, ast.Attribute, ast.Compare, ast.IfExp)


def number(tree: ast.AST) -> None:
    """Give every node its number, as `node.number`."""
    for position, node in enumerate(ast.walk(tree)):
        vars(node)["number"] = position


def number_of(node: ast.AST) -> int:
    return int(vars(node)["number"])


def instrumented(tree: ast.Module) -> ast.Module:
    """A copy of a numbered module that reports to the functions named above."""
    module = _Watch("", shared_names(tree.body)).module(copy.deepcopy(tree))
    return ast.fix_missing_locations(module)


def shared_names(body: list[ast.stmt]) -> set[str]:
    """Names of a scope that an inner function binds too, or that it binds in an outer scope."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    return {name for node in nodes if isinstance(node, (ast.Nonlocal, ast.Global)) for name in node.names}


def definitions(body: list[ast.stmt]) -> list[ast.stmt]:
    """What a kernel needs of its module: not the script around it, which would run and time it.

    Imports of what is not installed here (torch, most often) bind None, and so do classes and constants that are made
    of it: only host code needs them.
    """
    script = {node.name for node in body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    needed = _needed(body)
    missing: set[str] = set()
    out: list[ast.stmt] = []
    for node in body:
        if isinstance(node, (ast.Expr, ast.Assert, ast.For, ast.While, ast.With)):
            continue
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If)):
            used = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
            made = {n.id for n in used if isinstance(n.ctx, ast.Store)}
            if isinstance(node, ast.Assign) and made and not made & needed:
                continue  # a script's data, whose making may take minutes
            if any(n.id in script for n in used if isinstance(n.ctx, ast.Load)):
                script |= {n.id for n in used if isinstance(n.ctx, ast.Store)}
                continue
        if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") != "__future__":
            names = [(alias.asname or alias.name).split(".")[0] for alias in node.names if alias.name != "*"]
            failed = ast.ExceptHandler(ast.Name("ImportError", ast.Load()), None, _nothing(names) or [ast.Pass()])
            out.append(ast.Try([node], [failed], [], []))
            missing |= set(names) if _absent(node) else set()
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)) and missing & _made_of(node):
            out += _nothing([node.name])
        elif isinstance(node, ast.Assign) and missing & {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}:
            out += _nothing([n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)])
        else:
            out.append(node)
    return out


def _needed(body: list[ast.stmt]) -> set[str]:
    """Names of the module that its functions, classes and imports of them need, and what those are made from."""
    needed: set[str] = set()
    for node in body:
        if isinstance(node, (ast.Assign, ast.Expr, ast.For, ast.While, ast.With, ast.Assert)):
            continue
        inside = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        own = {n.id for n in inside if not isinstance(n.ctx, ast.Load)}
        own |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own = set()
        needed |= {n.id for n in inside if isinstance(n.ctx, ast.Load)} - own
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    while True:
        more: set[str] = set()
        for node in assigned:
            used = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
            if any(n.id in needed for n in used if isinstance(n.ctx, ast.Store)):
                more |= {n.id for n in used}
        if more <= needed:
            return needed
        needed |= more


def _nothing(names: list[str]) -> list[ast.stmt]:
    return [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in names]


def absent_imports(body: list[ast.stmt]) -> list[str]:
    """Modules that statements import as they are executed, and that are not installed here."""
    return [name for node in body if isinstance(node, (ast.Import, ast.ImportFrom)) for name in _absent(node)]


def _absent(node: ast.Import | ast.ImportFrom) -> list[str]:
    """What is imported and not installed here."""
    if isinstance(node, ast.ImportFrom) and node.level:
        return []
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    tops = dict.fromkeys(module.split(".")[0] for module in modules)
    return [top for top in tops if top not in ("neuronxcc", "nki") and importlib.util.find_spec(top) is None]


def _made_of(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    """Names that are evaluated when a class or a function is defined: bases, decorators, defaults."""
    if isinstance(node, ast.ClassDef):
        made = [*node.decorator_list, *node.bases]
    else:
        made = [*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
    return {n.id for each in made for n in ast.walk(each) if isinstance(n, ast.Name)}


def parameter_names(function: ast.FunctionDef) -> list[str]:
    given = function.args
    return [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


class _Watch(ast.NodeTransformer):
    def __init__(self, function: str, shared: set[str]) -> None:
        self._function = function
        self._shared = shared

    def module(self, tree: ast.Module) -> ast.Module:
        tree.body = self._block(definitions(tree.body))
        return tree

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        inner = f"{self._function}.{node.name}" if self._function else node.name
        names = parameter_names(node)
        watch = _Watch(inner, shared_names(node.body))
        start = [watch._name(name) for name in names if name not in watch._shared]
        first = 1 if ast.get_docstring(node) is not None else 0
        node.body = [*node.body[:first], *start, *watch._block(node.body[first:])]
        node.returns = None
        for argument in (
            *node.args.posonlyargs,
            *node.args.args,
            *node.args.kwonlyargs,
            node.args.vararg,
            node.args.kwarg,
        ):
            if argument is not None:
                argument.annotation = None
        return node

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in statements:
            new = self.visit(statement)
            out += new if isinstance(new, list) else [new]
        return out

    def _as_it_is(self, node: ast.AST) -> Any:
        return node

    visit_ClassDef = visit_Lambda = visit_JoinedStr = _as_it_is

    def _compound(self, node: ast.If | ast.While | ast.With | ast.Try | ast.Match | ast.For) -> Any:
        if isinstance(node, (ast.If, ast.While)):
            node.test = self.visit(node.test)
        if isinstance(node, ast.Match):
            node.subject = self.visit(node.subject)
        for block in blocks_of(node):
            block[:] = self._block(block)
        return node

    visit_If = visit_While = visit_With = visit_Try = visit_Match = _compound

    def visit_For(self, node: ast.For) -> Any:
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        iterable = self.visit(node.iter)
        node.iter = _call(
            LOOP, ast.Constant(number_of(node)), ast.Constant(name), ast.Constant(self._function), iterable
        )
        names = [] if name else self._names([node.target])
        self._compound(node)
        node.body = [*names, *node.body]
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        node.value = self.visit(node.value)
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Subscript):
            return self._store(target, node.value)
        return [node, *self._names(node.targets)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return ast.Pass()
        plain = ast.Assign([node.target], node.value)
        vars(plain)["number"] = number_of(node)
        return self.visit_Assign(ast.copy_location(plain, node))

    def _store(self, target: ast.Subscript, value: ast.expr) -> ast.stmt:
        return ast.Expr(
            _call(STORE, ast.Constant(number_of(target)), self.visit(target.value), self._index(target.slice), value)
        )

    def _index(self, index: ast.expr) -> ast.expr:
        """`a:b, ...` as a value."""
        if isinstance(index, ast.Tuple):
            return ast.Tuple([self._index(part) for part in index.elts], ast.Load())
        if isinstance(index, ast.Slice):
            parts = [ast.Constant(None) if p is None else self.visit(p) for p in (index.lower, index.upper, index.step)]
            return ast.Call(ast.Name("slice", ast.Load()), parts, [])
        return self.visit(index)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        sign = ast.Constant(type(node.op).__name__)
        value = self.visit(node.value)
        if isinstance(node.target, ast.Subscript):
            target = node.target
            return ast.Expr(
                _call(
                    AUGMENT_AT,
                    ast.Constant(number_of(target)),
                    self.visit(target.value),
                    self._index(target.slice),
                    sign,
                    value,
                )
            )
        if not isinstance(node.target, ast.Name):
            node.value = value
            return node
        here = ast.Name(node.target.id, ast.Load())
        total = _call(AUGMENT, ast.Constant(number_of(node.target)), here, sign, value)
        return [ast.Assign([node.target], total), *self._names([node.target])]

    def _names(self, targets: list[ast.expr]) -> list[ast.stmt]:
        names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        return [self._name(name) for name in names if name not in self._shared]

    def _name(self, name: str) -> ast.stmt:
        value = _call(NAME, ast.Constant(name), ast.Constant(self._function), ast.Name(name, ast.Load()))
        return ast.Assign([ast.Name(name, ast.Store())], value)

    def visit_Call(self, node: ast.Call) -> Any:
        position = number_of(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and not node.keywords:
            return self._choice(node, node.args)
        if not isinstance(node.func, ast.Name):
            node.func = self._inner(node.func)
        node.args = [self.visit(a) for a in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return _call(SEE, ast.Constant(position), node)

    def _inner(self, node: ast.expr) -> ast.expr:
        """The function of a call: what it is a method of is seen, the method itself is not."""
        if isinstance(node, ast.Attribute):
            node.value = (
                self.visit(node.value) if not isinstance(node.value, ast.Attribute) else self._inner(node.value)
            )
            return node
        return self.visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return self._choice(node, [node.test, node.body, node.orelse])

    def _choice(self, node: ast.expr, parts: list[ast.expr]) -> Any:
        """`a if c else b`, or the least of some: an integer by its text, unless calls are in that."""
        inner = [n for part in parts for n in ast.walk(part)]
        names = dict.fromkeys(n.id for n in inner if isinstance(n, ast.Name))
        text = f"({ast.unparse(node)})" if isinstance(node, ast.IfExp) else ast.unparse(node)
        seen = self.generic_visit(node)
        if any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in inner):
            return seen
        read = [ast.Name(name, ast.Load()) for name in names]
        return _call(CHOICE, ast.Constant(text), ast.Constant(self._function), seen, *read)

    def generic_visit(self, node: ast.AST) -> Any:
        wrap = isinstance(node, _SEEN) and isinstance(getattr(node, "ctx", None) or ast.Load(), ast.Load)
        position = getattr(node, "number", 0)
        super().generic_visit(node)
        return _call(SEE, ast.Constant(position), node) if wrap and isinstance(node, ast.expr) else node


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
