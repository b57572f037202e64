"""What a kernel's file says beside what it does: names, comments, the signature. Nothing here decides anything."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType


@dataclass(frozen=True)
class KernelText:
    """The file of a kernel, and the name of the function that is one."""

    text: str
    function: str
    scalars: Mapping[str, tuple[object, ...]] = field(default_factory=dict, compare=False)
    """Parameters that are no tensors, with their value at each shape: what the kernel does may rest on them."""
    kept: frozenset[str] = frozenset()
    """Names that other files may import from this one."""

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def definition(self) -> ast.FunctionDef | None:
        """The last function of that name in the module, as Python has it."""
        found = [node for node in self.tree.body if isinstance(node, ast.FunctionDef) and node.name == self.function]
        return found[-1] if found else None

    @cached_property
    def indent(self) -> str:
        """Of a line in the kernel's body."""
        first = self.definition.body[0] if self.definition else None
        return "    " if first is None else " " * (first.col_offset or 4)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        if self.definition is None:
            return ()
        given = self.definition.args
        return tuple(each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs))

    def with_scalars(
        self,
        given: Sequence[Sequence[object]],
        is_scalar: Callable[[object], bool],
        by_name: Mapping[str, object] = MappingProxyType({}),
    ) -> KernelText:
        """Told apart from tensors among the arguments at each shape; a parameter that nothing is given for has its
        default, where that is a plain value. `by_name`: given by keyword, the same at each shape."""
        if self.definition is None:
            return self
        found = {name: values for name, values in zip(self.parameters, zip(*given)) if all(map(is_scalar, values))}
        arguments = self.definition.args
        plain = [*arguments.posonlyargs, *arguments.args]
        last = plain[len(plain) - len(arguments.defaults) :]
        defaults = zip((*last, *arguments.kwonlyargs), (*arguments.defaults, *arguments.kw_defaults))
        not_given = set(self.parameters[min(map(len, given), default=0) :])
        for parameter, default in defaults:
            if parameter.arg in not_given and isinstance(default, ast.Constant):
                found[parameter.arg] = (default.value,) * len(given)
        found |= {name: (value,) * len(given) for name, value in by_name.items() if is_scalar(value)}
        return replace(self, scalars=found)

    @cached_property
    def assigned(self) -> Mapping[int, str]:
        """By line: the one name that a statement there assigns."""
        found: dict[int, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                target = node.target
            else:
                continue
            while isinstance(target, (ast.Subscript, ast.Attribute)):
                target = target.value
            if isinstance(target, ast.Name):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    found.setdefault(line, target.id)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                if isinstance(node.func.value, ast.Name):
                    found.setdefault(node.lineno, node.func.value.id)
        return found

    @cached_property
    def counters(self) -> Mapping[int, str]:
        """By line: the variable of the `for` there."""
        found: dict[int, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.For, ast.comprehension)):
                target = node.target
                if isinstance(target, ast.Tuple) and target.elts:
                    target = target.elts[0]
                if isinstance(target, ast.Name) and target.id != "_":
                    found.setdefault(node.iter.lineno, target.id)
        return found

    @cached_property
    def names_at(self) -> Mapping[int, frozenset[str]]:
        """By line: the names of the statements that stand there."""
        found: dict[int, set[str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.For, ast.If)):
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    found.setdefault(line, set()).update(names)
            elif isinstance(node, ast.For):
                found.setdefault(node.lineno, set()).update(
                    each.id for each in ast.walk(node.iter) if isinstance(each, ast.Name)
                )
        return {line: frozenset(names) for line, names in found.items()}

    @cached_property
    def dtypes_at(self) -> Mapping[int, frozenset[str]]:
        """By line: the names whose `.dtype` a statement there asks for."""
        found: dict[int, set[str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and node.attr == "dtype" and isinstance(node.value, ast.Name):
                found.setdefault(node.lineno, set()).add(node.value.id)
        return {line: frozenset(names) for line, names in found.items()}

    def is_set_off(self, line: int) -> bool:
        """Does an empty line stand above this one and its comments?"""
        lines = self.text.splitlines()
        at = line - 2
        while 0 <= at < len(lines) and lines[at].lstrip().startswith("#"):
            at -= 1
        return 0 <= at < len(lines) and not lines[at].strip()

    @cached_property
    def constants(self) -> Mapping[str, int]:
        """Integers that the module gives a name once."""
        found: dict[str, int] = {}
        twice: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name, value = node.targets[0].id, node.value
                if isinstance(value, ast.Constant) and type(value.value) is int and name not in found:
                    found[name] = value.value
                else:
                    twice.add(name)
        return {name: value for name, value in found.items() if name not in twice}

    @cached_property
    def sizes(self) -> Mapping[tuple[str, int], str]:
        """By parameter and dimension: the name that the kernel gives this size."""
        found: dict[tuple[str, int], str] = {}
        if self.definition is None:
            return found
        for node in ast.walk(self.definition):
            if not (isinstance(node, ast.Assign) and len(node.targets) == 1):
                continue
            value, target = node.value, node.targets[0]
            at = None
            if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
                at, value = value.slice.value, value.value
            if not (isinstance(value, ast.Attribute) and value.attr == "shape" and isinstance(value.value, ast.Name)):
                continue
            name = value.value.id
            if type(at) is int and isinstance(target, ast.Name):
                found.setdefault((name, at), target.id)
            elif at is None and isinstance(target, ast.Tuple):
                for number, each in enumerate(target.elts):
                    if isinstance(each, ast.Name) and each.id != "_":
                        found.setdefault((name, number), each.id)
        return found

    @cached_property
    def comments(self) -> Mapping[int, tuple[str, ...]]:
        """By line of code: the comments of the lines right above it, and at its end."""
        found: dict[int, tuple[str, ...]] = {}
        waiting: list[str] = []
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO(self.text).readline))
        except (tokenize.TokenError, SyntaxError):
            return found
        for token in tokens:
            if token.type == tokenize.COMMENT:
                if token.line[: token.start[1]].strip():
                    found[token.start[0]] = (*found.get(token.start[0], ()), token.string)
                else:
                    waiting.append(token.string)
            elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT) and waiting:
                found[token.start[0]] = (*waiting, *found.get(token.start[0], ()))
                waiting = []
        return found
