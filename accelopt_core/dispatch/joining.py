"""One file from several of one kernel: variants for some shapes, the input kernel for all others.

    TILE_N = 512                                     TILE_N = 512

    @nki.jit                                         def kernel_as_given(lhs, rhs):
    def kernel(lhs, rhs):                                ... TILE_N ...
        ... TILE_N ...                         ->
                                                     @nki.jit
    TILE_N = 256                                     def kernel(lhs, rhs):
                                                         if lhs.shape == (128, 512) and ...:
    @nki.jit                                                 result = kernel_v1(lhs, rhs)
    def kernel(lhs, rhs):                                else:
        ... TILE_N ...                                       result = kernel_as_given(lhs, rhs)
                                                         return result

                                                     TILE_N_v1 = 256

                                                     def kernel_v1(lhs, rhs):
                                                         ... TILE_N_v1 ...

What the input kernel's file says stays as it is, under its names. Of a variant's file every name of its top level gets
a number, where it is not the very same thing in both files. A kernel is run on shapes, so that the branches are decided
when it is compiled; the assertions of each variant stay in it.
"""

from __future__ import annotations

import ast
import builtins
import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import libcst as cst

from accelopt_core.candidate import parsed
from accelopt_core.dispatch.guards import conditions
from accelopt_core.dispatch.kernel_file import TUNABLES, CannotJoin, KernelFile, TopStatement
from accelopt_core.toolchain import ArgumentSpec
from accelopt_core.transforms.printing import text_of_module
from accelopt_core.transforms.syntax import descendants, replace_nodes

AS_GIVEN = "as_given"
_LANGUAGES = ("nki.language", "neuronxcc.nki.language")
_WIDTH = 100
"""Characters of a condition, or of the tunables, that stand on one line."""


@dataclass(frozen=True)
class Branch:
    """A shape at which a variant is taken."""

    shape: str
    """For people, in a comment: `M256 K512`."""
    arguments: tuple[ArgumentSpec, ...]
    """Of the kernel at that shape."""


@dataclass(frozen=True)
class Variant:
    source: str
    branches: tuple[Branch, ...]


def joined(source: str, variants: Sequence[Variant], entry_points: tuple[str, ...]) -> str:
    """The input kernel's file with these variants in it; as it is where there is none.

    Raises CannotJoin, which says of which file ("variant 2: ...").
    """
    given = KernelFile(source, entry_points)
    if not variants:
        return source
    taken = _Names(given)
    files = []
    for number, variant in enumerate(variants, 1):
        with _said_of(number):
            files.append(KernelFile(variant.source, entry_points))
            _check(given, files[-1], variant.branches)
        taken.add(files[-1].all_names)
    written = []
    for number, (variant, file) in enumerate(zip(variants, files), 1):
        with _said_of(number):
            written.append(_Part(given, file, number, variant, taken))
    result = _file(given, written, taken)
    ast.parse(result)
    return result


@contextmanager
def _said_of(number: int) -> Iterator[None]:
    try:
        yield
    except CannotJoin as error:
        raise CannotJoin(f"variant {number}: {error}") from None


def check(source: str, entry_points: tuple[str, ...]) -> None:
    """Raises CannotJoin where no variant could be joined to it."""
    _ = KernelFile(source, entry_points).parameters


def _check(given: KernelFile, variant: KernelFile, branches: Sequence[Branch]) -> None:
    """Raises CannotJoin where one cannot be called in place of the other."""
    for branch in branches:
        variant.by_position(len(branch.arguments))
    if meant := sorted(variant.free & {name for each in given.statements for name in each.binds}):
        raise CannotJoin(f"{meant[0]} is another thing in it than in the input kernel's file")
    if new := variant.future - given.future:
        raise CannotJoin(
            f"it has `from __future__ import {min(new).partition('.')[2]}`, which the input kernel has not"
        )
    decorators = [[file.code(each.decorator) for each in file.decorators[0]] for file in (given, variant)]
    if decorators[0] != decorators[1]:
        raise CannotJoin(f"its decorators are {decorators[1]}, and those of the input kernel {decorators[0]}")


class _Names:
    """That are taken already, in any of the files."""

    def __init__(self, given: KernelFile) -> None:
        self._taken = {*dir(builtins), *keyword.kwlist, *given.all_names}

    def add(self, names: Iterable[str]) -> None:
        self._taken |= set(names)

    def fresh(self, name: str, mark: str) -> str:
        """`kernel_v1`, or with another number behind that."""
        made, number = f"{name}_{mark}", 2
        while made in self._taken:
            made = f"{name}_{mark}_{number}"
            number += 1
        self._taken.add(made)
        return made


class _Part:
    """A variant's statements, under names of their own."""

    def __init__(self, given: KernelFile, file: KernelFile, number: int, variant: Variant, taken: _Names) -> None:
        self.branches = variant.branches
        shared = _shared(given, file)
        own = [each for each in file.statements if each not in shared and not _declares(file, each)]
        same_imports = _same_imports(given, file)
        bound = frozenset[str]().union(*(each.binds for each in own)) - same_imports
        self._names = {name: taken.fresh(name, f"v{number}") for name in sorted(bound)}
        self.kernel = self._names[file.name]
        self.tunables = {self._names[n]: values for n, values in file.tunables.items() if n in self._names}
        statements = list(self._statements(file, own, same_imports))
        said = f"# --- variant {number}: {'; '.join(branch.shape for branch in variant.branches)} ---"
        space = cst.EmptyLine(indent=False)
        lines = [space, space, cst.EmptyLine(indent=False, comment=cst.Comment(said)), space]
        self.statements = [statements[0].with_changes(leading_lines=lines), *statements[1:]]

    def _statements(
        self, file: KernelFile, own: Sequence[TopStatement], same_imports: frozenset[str]
    ) -> Iterator[cst.BaseStatement]:
        for each in own:
            if each.imports is not None:
                yield from self._imports(each, same_imports)
                continue
            if any(isinstance(node, (cst.Import, cst.ImportFrom)) for node in _outside_of_functions(each.node)):
                raise CannotJoin(f"it imports {min(each.binds)} in a block, in another way than the input kernel")
            yield self._renamed(file, each.node)

    def _imports(self, line: TopStatement, same: frozenset[str]) -> Iterator[cst.BaseStatement]:
        """One line for each name that the input kernel's file does not import alike."""
        assert isinstance(line.node, cst.SimpleStatementLine)
        for small in line.node.body:
            assert isinstance(small, (cst.Import, cst.ImportFrom)) and not isinstance(small.names, cst.ImportStar)
            for alias in small.names:
                bound = _bound_by_import(alias)
                if bound in same:
                    if isinstance(small, cst.Import) and alias.asname is None and isinstance(alias.name, cst.Attribute):
                        kept = alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)
                        yield cst.SimpleStatementLine([small.with_changes(names=[kept])])  # loads a module inside
                    continue
                if isinstance(small, cst.Import) and alias.asname is None and isinstance(alias.name, cst.Attribute):
                    raise CannotJoin(f"it imports {bound}, in another way than the input kernel")
                name = cst.AsName(cst.Name(self._names[bound]))
                made = alias.with_changes(asname=name, comma=cst.MaybeSentinel.DEFAULT)
                yield cst.SimpleStatementLine([small.with_changes(names=[made])])

    def _renamed(self, file: KernelFile, node: cst.BaseStatement) -> cst.BaseStatement:
        changes: dict[cst.CSTNode, cst.CSTNode] = {
            inner: inner.with_changes(value=self._names[inner.value])
            for inner in descendants(node)
            if isinstance(inner, cst.Name) and inner.value in self._names and file.scopes.is_global(inner)
        }
        is_entry = node is file.entry
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            changes[node.name] = node.name.with_changes(value=self._names[node.name.value])
        made = replace_nodes(node, changes)
        assert isinstance(made, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        if is_entry:
            assert isinstance(made, cst.FunctionDef)
            return made.with_changes(decorators=made.decorators[len(file.decorators[0]) :])
        return made


def _outside_of_functions(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if not isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        yield from descendants(node)


def _bound_by_import(alias: cst.ImportAlias) -> str:
    if alias.asname is not None:
        assert isinstance(alias.asname.name, cst.Name)
        return alias.asname.name.value
    name = alias.name
    while isinstance(name, cst.Attribute):
        assert isinstance(name.value, (cst.Name, cst.Attribute))
        name = name.value
    return name.value


# --- what both files have -------------------------------------------------------------------------


def _same_imports(given: KernelFile, file: KernelFile) -> frozenset[str]:
    """Names that both files have from one place, and from nowhere else."""
    theirs = given.scopes.imported()
    return frozenset(name for name, origin in file.scopes.imported().items() if theirs.get(name) == origin)


def _shared(given: KernelFile, file: KernelFile) -> frozenset[TopStatement]:
    """Statements of the variant that say the very same in the input kernel's file, of things that do not change."""
    there = {each.text: each for each in given.statements}
    changed = given.changed | file.changed
    alike = {
        each
        for each in file.statements
        if each.text in there
        and each.node is not file.entry
        and there[each.text].node is not given.entry
        and (each.imports is not None or _does_not_change(each.node))
        and not each.binds & {*given.tunables, *file.tunables, *changed}
        and all(_bound_once(of, name) for of in (given, file) for name in each.binds)
    }
    imported = _same_imports(given, file)
    while True:
        known = frozenset[str]().union(imported, *(each.binds for each in alike))
        gone = {each for each in alike if not each.uses - each.binds <= known}
        if not gone:
            return frozenset(alike)
        alike -= gone


def _bound_once(file: KernelFile, name: str) -> bool:
    return sum(name in each.binds for each in file.statements) == 1


_PLAIN = (
    cst.Name, cst.Integer, cst.Float, cst.SimpleString, cst.Tuple, cst.Element, cst.UnaryOperation, cst.BinaryOperation,
    cst.Attribute, cst.BaseUnaryOp, cst.BaseBinaryOp, cst.LeftParen, cst.RightParen, cst.Comma, cst.Dot,
)  # fmt: skip


def _does_not_change(node: cst.CSTNode) -> bool:
    """A class of such, a function whose defaults do not, a name for a value of numbers, text and tuples, or imports."""
    if isinstance(node, cst.ClassDef):
        inside = node.body.body
        lines = [each for each in inside if isinstance(each, cst.SimpleStatementLine)]
        return all(map(_does_not_change, set(inside) - set(lines))) and all(
            isinstance(small, cst.Pass)
            or (isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString))
            or (isinstance(small, (cst.Assign, cst.AnnAssign)) and (small.value is None or _is_member(small.value)))
            for line in lines
            for small in line.body
        )
    if isinstance(node, cst.FunctionDef):
        taken = node.params
        defaults = [each.default for each in (*taken.posonly_params, *taken.params, *taken.kwonly_params)]
        return not node.decorators and all(_is_plain(each) for each in defaults if each is not None)
    if isinstance(node, (cst.Try, cst.If)):  # which of several modules there is
        lines = [each for each in descendants(node) if isinstance(each, cst.SimpleStatementLine)]
        smalls = [small for line in lines for small in line.body]
        return all(isinstance(small, (cst.Import, cst.ImportFrom, cst.Pass)) for small in smalls)
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
    if isinstance(small, cst.Assign):
        return all(isinstance(each.target, cst.Name) for each in small.targets) and _is_plain(small.value)
    return False


def _is_member(value: cst.BaseExpression) -> bool:
    """Of an enumeration, `auto()`, or a plain value."""
    return _is_plain(value.func if isinstance(value, cst.Call) and not value.args else value)


def _is_plain(value: cst.CSTNode) -> bool:
    return all(isinstance(node, _PLAIN) for node in descendants(value))


def _declares(file: KernelFile, line: TopStatement) -> bool:
    return bool(file.tunables) and line.binds == {TUNABLES}


# --- the file -------------------------------------------------------------------------------------


def _file(given: KernelFile, parts: Sequence[_Part], taken: _Names) -> str:
    body: list[cst.BaseStatement] = []
    as_given = taken.fresh(given.name, AS_GIVEN)
    tunables = {**given.tunables}
    for part in parts:
        tunables |= part.tunables
    declared = False
    for line in given.module.body:
        assert isinstance(line, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        if line in given.main:
            continue
        if line is given.entry:
            before, inside = given.decorators
            name = cst.Name(as_given)
            body.append(given.entry.with_changes(name=name, decorators=inside))
            body += _dispatcher(given, parts, as_given, taken, before)
        elif given.tunables and any(each.node is line and _declares(given, each) for each in given.statements):
            body.append(_declaration(tunables, given).with_changes(leading_lines=line.leading_lines))
            declared = True
        else:
            body.append(line)
    for part in parts:
        body += part.statements
    if tunables and not declared and not any(TUNABLES in each.binds for each in given.statements):
        body.append(_declaration(tunables, given).with_changes(leading_lines=[cst.EmptyLine(indent=False)]))
    return text_of_module(given.module.with_changes(body=[*body, *given.main]))


def _declaration(tunables: Mapping[str, tuple[int, ...]], given: KernelFile) -> cst.SimpleStatementLine:
    said = [f'"{name}": {values!r}' for name, values in tunables.items()]
    text = f"{TUNABLES} = {{{', '.join(said)}}}"
    if len(text) > _WIDTH:
        text = "\n".join([f"{TUNABLES} = {{", *(f"    {each}," for each in said), "}"])
    made = _statement(text, given)
    assert isinstance(made, cst.SimpleStatementLine)
    return made


def _dispatcher(
    given: KernelFile, parts: Sequence[_Part], as_given: str, taken: _Names, decorators: Sequence[cst.Decorator]
) -> list[cst.BaseStatement]:
    parameters = given.parameters
    names = {each.name for each in parameters}
    before: list[cst.BaseStatement] = []
    language = next((n for n, o in given.scopes.imported().items() if o in _LANGUAGES and n not in names), "")
    if not language:
        language = taken.fresh("nl", "of_shapes")
        line = _statement(f"import nki.language as {language}", given)
        before.append(line.with_changes(leading_lines=[cst.EmptyLine(indent=False)]))
    result = taken.fresh("result", "here") if "result" in names else "result"
    all_given = ", ".join(f"{each.name}={each.name}" if each.by_keyword else each.name for each in parameters)
    lines = [f'"""At the shapes below, of these element types and values, a variant; else `{as_given}`."""']
    branches = [(part, branch) for part in parts for branch in part.branches]
    for number, (part, branch) in enumerate(branches):
        holds = list(conditions(given, branch.arguments, language)) or ["True"]
        # What was left to the defaults when it was verified is left to its own.
        those_given = ", ".join(each.name for each in given.by_position(len(branch.arguments)))
        lines += [*_branch("elif" if number else "if", holds, branch.shape)]
        lines += [f"    {result} = {part.kernel}({those_given})"]
    lines += ["else:", f"    {result} = {as_given}({all_given})", f"return {result}"]
    text = f"def {given.name}():\n" + "".join(f"    {line}\n" for line in lines)
    made = _statement(text, given)
    assert isinstance(made, cst.FunctionDef)
    entry = given.entry
    blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
    return [
        *before,
        made.with_changes(
            params=entry.params, returns=entry.returns, decorators=decorators, leading_lines=blank,
            whitespace_before_params=entry.whitespace_before_params,
        ),
    ]  # fmt: skip


def _branch(word: str, holds: Sequence[str], shape: str) -> list[str]:
    short = f"{word} {' and '.join(holds)}:  # {shape}"
    if len(short) <= _WIDTH:
        return [short]
    first, *others = holds
    return [f"{word} (  # {shape}", f"    {first}", *(f"    and {each}" for each in others), "):"]


def _statement(text: str, given: KernelFile) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    parsed(text)
    return cst.parse_statement(text, config=given.module.config_for_parsing)
