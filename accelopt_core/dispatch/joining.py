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
import copy
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from accelopt_core.candidate import parsed
from accelopt_core.dispatch.kernel_file import CannotJoin, KernelFile, TopStatement, is_main
from accelopt_core.languages.tunables import DECLARATION
from accelopt_core.toolchain import ArgumentSpec, Constant, ConstantArgument, DtypeArgument, TensorArgument
from nki_sim.migrate.edits import Source

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
    parsed(result)
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
    if meant := variant.free & given.bound:
        raise CannotJoin(f"{min(meant)} is another thing in it than in the input kernel's file")
    if new := variant.future - given.future:
        raise CannotJoin(f"it has `from __future__ import {min(new)}`, which the input kernel has not")
    decorators = [[ast.unparse(each) for each in file.decorators[0]] for file in (given, variant)]
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
        own = [each for each in file.statements if each not in shared and each is not file.declaration]
        same_imports = _same_imports(given, file)
        bound = frozenset[str]().union(*(each.binds for each in own)) - same_imports
        self._names = {name: taken.fresh(name, f"v{number}") for name in sorted(bound)}
        self.kernel = self._names[file.name]
        self.tunables = {self._names[n]: values for n, values in file.tunables.items() if n in self._names}
        said = f"# --- variant {number}: {'; '.join(branch.shape for branch in variant.branches)} ---"
        texts = "".join(text for each in own for text in self._texts(file, each, same_imports))
        self.text = f"\n\n{said}\n\n{texts.lstrip()}"

    def _texts(self, file: KernelFile, line: TopStatement, same_imports: frozenset[str]) -> Iterator[str]:
        if line.only_imports:
            yield from self._imports(line, same_imports)
            return
        plain = (node for node in line.nodes if not isinstance(node, (ast.FunctionDef, ast.ClassDef)))
        if any(isinstance(inner, (ast.Import, ast.ImportFrom)) for node in plain for inner in ast.walk(node)):
            raise CannotJoin(f"it imports {min(line.binds)} in a block, in another way than the input kernel")
        yield self._renamed(file, line)

    def _imports(self, line: TopStatement, same: frozenset[str]) -> Iterator[str]:
        """One line for each name that the input kernel's file does not import alike."""
        for node in line.nodes:
            assert isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                loads_inner = bound != (alias.asname or alias.name)
                if bound not in same and loads_inner:
                    raise CannotJoin(f"it imports {bound}, in another way than the input kernel")
                if bound not in same or loads_inner:
                    one = copy.copy(node)
                    one.names = [alias if loads_inner else ast.alias(alias.name, self._names[bound])]
                    yield f"{ast.unparse(one)}\n"

    def _renamed(self, file: KernelFile, line: TopStatement) -> str:
        new: dict[ast.AST, str] = {n: self._names[n.id] for n in line.names.outside() if n.id in self._names}
        defined = line.node.name if isinstance(line.node, (ast.FunctionDef, ast.ClassDef)) else ""
        if others := line.binds - {defined, *(name.id for name in new if isinstance(name, ast.Name))}:
            raise CannotJoin(f"it binds {min(others)} at its top level by an `except` or a `case`")
        for node in (inner for each in line.nodes for inner in ast.walk(each)):
            inside = [each for each in ast.walk(node) if each in new] if isinstance(node, ast.JoinedStr) else []
            if inside:  # written anew as a whole: where in it they stand Python says from 3.12 on only
                made = {id(name): ast.Name(new.pop(name), ast.Load()) for name in inside}
                new[node] = ast.unparse(copy.deepcopy(node, made))
        return _text(file, line, new, self._names[defined] if defined else "")


def _text(file: KernelFile, line: TopStatement, new: Mapping[ast.AST, str], name: str) -> str:
    """Of a statement with what is above it: other expressions in it, another name of the function or class that it
    defines, and no decorators of NKI."""
    source = Source(file.text)
    for node, text in new.items():
        assert isinstance(node, ast.expr)
        source.replace(node, text)
    if isinstance(line.node, (ast.FunctionDef, ast.ClassDef)):
        start = source.span(line.node)[0]
        found = re.compile(rf"(?:def|class)[\s\\]+({line.node.name})\b").match(file.text, start)
        assert found is not None
        source.replace_range(*found.span(1), name)
    if line.node is file.entry:
        source.replace_range(line.start, _after_decorators(file), "")
    made = source.result()
    return made[line.begin : line.end + len(made) - len(file.text)]


def _after_decorators(file: KernelFile) -> int:
    """Where the kernel begins behind those of NKI."""
    first: ast.expr | ast.stmt = file.decorators[1][0] if file.decorators[1] else file.entry
    return Source(file.text).offset(first.lineno, 0)


# --- what both files have -------------------------------------------------------------------------


def _same_imports(given: KernelFile, file: KernelFile) -> frozenset[str]:
    """Names that both files have from one place, and from nowhere else."""
    return frozenset(name for name, origin in file.imported.items() if given.imported.get(name) == origin)


def _shared(given: KernelFile, file: KernelFile) -> frozenset[TopStatement]:
    """Statements of the variant that say the very same in the input kernel's file, of things that do not change."""
    there = {each.dump: each for each in given.statements}
    changed = given.changed | file.changed
    alike = {
        each
        for each in file.statements
        if each.dump in there
        and each.node is not file.entry
        and there[each.dump].node is not given.entry
        and (each.only_imports or (each.node is not None and _does_not_change(each.node)))
        and not each.binds & {*given.tunables, *file.tunables, *changed}
        and all(_bound_once(of, name) for of in (given, file) for name in each.binds)
    }
    imported = _same_imports(given, file)
    while True:
        known = frozenset[str]().union(imported, *(each.binds for each in alike))
        gone = {each for each in alike if not file.uses(each) - each.binds <= known}
        if not gone:
            return frozenset(alike)
        alike -= gone


def _bound_once(file: KernelFile, name: str) -> bool:
    return sum(name in each.binds for each in file.statements) == 1


_PLAIN = (
    ast.Name, ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.Attribute, ast.unaryop, ast.operator,
    ast.expr_context,
)  # fmt: skip


def _does_not_change(node: ast.stmt) -> bool:
    """A class of such, a function whose defaults do not, a name for a value of numbers, text and tuples, or imports."""
    if isinstance(node, ast.ClassDef):
        return all(map(_is_member, node.body))
    if isinstance(node, ast.FunctionDef):
        defaults = [each for each in (*node.args.defaults, *node.args.kw_defaults) if each is not None]
        return not node.decorator_list and all(map(_is_plain, defaults))
    if isinstance(node, (ast.Try, ast.If)):  # which of several modules there is
        inside = [each for each in ast.walk(node) if isinstance(each, ast.stmt)]
        return all(isinstance(each, (ast.Import, ast.ImportFrom, ast.Pass, ast.Try, ast.If)) for each in inside)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) for target in node.targets) and _is_plain(node.value)
    return False


def _is_member(node: ast.stmt) -> bool:
    """Of a class: a docstring, or a plain value; of an enumeration also `auto()`."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        value = node.value
        return value is None or _is_plain(value.func if isinstance(value, ast.Call) and not _given(value) else value)
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, ast.Pass) or _does_not_change(node)


def _given(call: ast.Call) -> bool:
    return bool(call.args or call.keywords)


def _is_plain(value: ast.expr) -> bool:
    return all(isinstance(node, _PLAIN) for node in ast.walk(value))


# --- the file -------------------------------------------------------------------------------------


def _file(given: KernelFile, parts: Sequence[_Part], taken: _Names) -> str:
    texts: list[str] = []
    main: list[str] = []
    as_given = taken.fresh(given.name, AS_GIVEN)
    tunables = {**given.tunables}
    for part in parts:
        tunables |= part.tunables
    for line in given.lines:
        if is_main(line.nodes[0]):
            main.append(given.text[line.begin : line.end])
        elif line.node is given.entry:
            decorators = given.text[line.start : _after_decorators(given)]
            texts += [_text(given, line, {}, as_given), *_dispatcher(given, parts, as_given, taken, decorators)]
        elif line is given.declaration and tunables:
            texts += [given.text[line.begin : line.start], _declaration(tunables)]
        else:
            texts.append(given.text[line.begin : line.end])
    texts += [part.text for part in parts]
    if tunables and DECLARATION not in given.bound:
        texts += ["\n", _declaration(tunables)]
    return "".join([*texts, *main, given.text[given.lines[-1].end :]])


def _declaration(tunables: Mapping[str, tuple[int, ...]]) -> str:
    said = [f'"{name}": {values!r}' for name, values in tunables.items()]
    text = f"{DECLARATION} = {{{', '.join(said)}}}\n"
    if len(text) > _WIDTH:
        text = "\n".join([f"{DECLARATION} = {{", *(f"    {each}," for each in said), "}\n"])
    return text


def _dispatcher(
    given: KernelFile, parts: Sequence[_Part], as_given: str, taken: _Names, decorators: str
) -> Iterator[str]:
    parameters = given.parameters
    names = {each.name for each in parameters}
    language = next((n for n, o in given.imported.items() if o in _LANGUAGES and n not in names), "")
    if not language:
        language = taken.fresh("nl", "of_shapes")
        yield f"\nimport nki.language as {language}\n"
    source = Source(given.text)
    first = given.entry.body[0]
    body = (*getattr(first, "decorator_list", ()), first)[0]
    signature = given.text[source.span(given.entry)[0] : source.span(body)[0]].rstrip("@ \t\r\n")
    yield f"\n\n{decorators}{signature}\n"
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
    yield "".join(f"    {line}\n" for line in lines)


def _branch(word: str, holds: Sequence[str], shape: str) -> list[str]:
    short = f"{word} {' and '.join(holds)}:  # {shape}"
    if len(short) <= _WIDTH:
        return [short]
    first, *others = holds
    return [f"{word} (  # {shape}", f"    {first}", *(f"    and {each}" for each in others), "):"]


def conditions(kernel: KernelFile, arguments: Sequence[ArgumentSpec], language: str) -> Iterator[str]:
    """Expressions, all of which must hold. `arguments`: by position. `language`: what the file calls nki.language.

    Raises CannotJoin where the kernel cannot be called so, or an argument cannot be told from another.
    """
    given = kernel.by_position(len(arguments))
    for parameter, argument in zip(given, arguments):
        if isinstance(argument, TensorArgument):
            if parameter.name in kernel.told_from_none:
                yield f"{parameter.name} is not None"
            if parameter.name in kernel.told_by_kind:
                yield f"not isinstance({parameter.name}, (bool, int, float, str, tuple))"
            yield f"{parameter.name}.shape == {_constant(argument.shape)}"
            yield f"{parameter.name}.dtype == {language}.{_dtype(argument.dtype)}"
        elif isinstance(argument, DtypeArgument):
            yield f"{parameter.name} == {language}.{_dtype(argument.element_type)}"
        else:
            assert isinstance(argument, ConstantArgument)
            yield from _is(parameter.name, argument.value)
    for parameter in kernel.parameters:
        if parameter in given or parameter.default is None:
            continue
        try:
            yield from _is(parameter.name, ast.literal_eval(parameter.default.strip()))
        except (ValueError, SyntaxError):
            yield f"{parameter.name} == {parameter.default.strip()}"


def _is(name: str, value: Constant) -> Iterator[str]:
    """1, 1.0 and True are equal, and a kernel may tell them apart. `is` is no word of the NKI compilers 0.3 to 0.6,
    save with None, which the public kernel library writes as well, as it does `isinstance`."""
    if value is None:
        yield f"{name} is None"
        return
    if isinstance(value, (bool, int, float)):
        yield f"isinstance({name}, {type(value).__name__})"
        if value in (0, 1) and type(value) is int:
            yield f"not isinstance({name}, bool)"
    yield f"{name} == {_constant(value)}"


def _constant(value: Constant) -> str:
    text = repr(value)
    try:
        if ast.literal_eval(text) == value:
            return text
    except (ValueError, SyntaxError):
        pass
    raise CannotJoin(f"{text} is no value that a condition could be written with")


def _dtype(name: str) -> str:
    if not name.isidentifier():
        raise CannotJoin(f"{name!r} is no element type of nki.language")
    return name
