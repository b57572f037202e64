"""One spelling for what can be written in several ways.

for i in range(0, N, T):              for i_index in range((N + T - 1) // T):
    ...                        ->         i = i_index * T
                                          ...

tiles = [nl.ndarray(...) for k in range(K)]    ->    tiles = [], and a loop that appends
total = nl.zeros(shape, nl.float32)            ->    nl.ndarray, and a memset
tile = nl.load(x[0:128]); nl.store(x, tile)    ->    nl.ndarray, and transfers
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.isa_effects import LOOP_RANGES
from accelopt_core.transforms.kernel_code import KernelCode, Kind
from accelopt_core.transforms.loop_sites import as_factor
from accelopt_core.transforms.normalize_names import fresh_name
from accelopt_core.transforms.operand_access import AccessReader
from accelopt_core.transforms.syntax import descendants, is_import, parsed_expression, parsed_statement, replace_nodes

_FILLED = {"nki.language.zeros": "0", "nki.language.ones": "1"}


def in_one_spelling(code: KernelCode) -> cst.Module:
    """The module; the very one of `code` when nothing changes."""
    edit = _Spell(code)
    changed = code.function.visit(edit)
    if not edit.done or not isinstance(changed, cst.FunctionDef):
        return code.module
    result = code.module.deep_replace(code.function, changed)
    assert isinstance(result, cst.Module)
    if edit.lacks_isa and any(isinstance(n, cst.Name) and n.value == _ISA for n in descendants(changed)):
        at = next(n for n, each in enumerate(result.body) if isinstance(each, cst.FunctionDef) and each is changed)
        before = [n for n, each in enumerate(result.body[:at]) if is_import(each)]
        place = before[-1] + 1 if before else 0
        line = parsed_statement(f"import nki.isa as {_ISA}")
        result = result.with_changes(body=[*result.body[:place], line, *result.body[place:]])
    return result


_ISA = "nisa"
"""What nki.isa is called where the kernel's file does not import it."""


def _imported_as(module: cst.Module, name: str) -> str:
    """Its own name for a module, where the file says `import module as name`; empty where it does not."""
    for statement in module.body:
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        for alias in small.names if isinstance(small, cst.Import) else ():
            if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                if module.code_for_node(alias.name) == name:
                    return alias.asname.name.value
    return ""


class _Spell(cst.CSTTransformer):
    def __init__(self, code: KernelCode) -> None:
        self._code = code
        self._used = set(code.all_names)
        self._isa = code.name_of_module("nki.isa") or _imported_as(code.module, "nki.isa")
        self.lacks_isa = not self._isa and _ISA not in code.all_names
        if self.lacks_isa:
            self._isa = _ISA
        self._even = _asserted_even(code)
        self.done = False

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.BaseStatement:  # libcst's name
        call = original_node.iter
        if (
            not isinstance(call, cst.Call)
            or self._code.qualified(call.func) not in LOOP_RANGES
            or len(call.args) not in (2, 3)
            or any(arg.keyword is not None or arg.star for arg in call.args)
            or not isinstance(original_node.target, cst.Name)
            or not isinstance(updated_node.body, cst.IndentedBlock)
        ):
            return updated_node
        texts = [self._code.module.code_for_node(arg.value) for arg in call.args]
        start, stop, step = texts[0], texts[1], texts[2] if len(texts) == 3 else "1"
        if "\n" in start + stop + step:
            return updated_node
        self.done = True
        variable = original_node.target.value
        index = self._fresh(f"{variable}_index")
        count = self._count(start, stop, step)
        scaled = index if step == "1" else f"{index} * {as_factor(step)}"
        value = scaled if start == "0" else f"{as_term(start)} + {scaled}"
        define = parsed_statement(f"{variable} = {value}")
        assert isinstance(updated_node.iter, cst.Call)
        iterated = updated_node.iter.with_changes(args=[cst.Arg(parsed_expression(count))])
        body = updated_node.body.with_changes(body=[define, *updated_node.body.body])
        return updated_node.with_changes(target=cst.Name(index), iter=iterated, body=body)

    def leave_SimpleStatementLine(  # libcst's name
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        small = original_node.body[0]
        if len(original_node.body) == 1 and isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            return self._stored(original_node, small, small.value) or updated_node
        if len(original_node.body) != 1 or not isinstance(small, cst.Assign) or len(small.targets) != 1:
            return updated_node
        target, value = small.targets[0].target, small.value
        if not isinstance(target, cst.Name):
            return updated_node
        if isinstance(value, cst.ListComp):
            return self._list(original_node, target.value, value) or updated_node
        if isinstance(value, cst.Call):
            filled = self._filled(original_node, target.value, value)
            return filled or self._loaded(original_node, target.value, value) or updated_node
        return updated_node

    def _stored(self, line: cst.SimpleStatementLine, small: cst.Expr, call: cst.Call) -> cst.BaseStatement | None:
        """`nl.store(x, value=tile)` is a transfer."""
        given = self._given(call, "nki.language.store", ("dst", "value"))
        if given is None or set(given) != {"dst", "value"}:
            return None
        self.done = True
        text = {name: self._code.module.code_for_node(value) for name, value in given.items()}
        made = parsed_expression(f"{self._isa}.dma_copy(dst={text['dst']}, src={text['value']})")
        return line.with_changes(body=[small.with_changes(value=made)])

    def _loaded(
        self, line: cst.SimpleStatementLine, name: str, call: cst.Call
    ) -> cst.FlattenSentinel[cst.BaseStatement] | None:
        """`tile = nl.load(x)` is a tile and a transfer."""
        given = self._given(call, "nki.language.load", ("src", "dtype"))
        source = given.get("src") if given is not None else None
        statement = next((each for each in self._code.statements() if each.node is line), None)
        if given is None or statement is None or not isinstance(source, (cst.Name, cst.Subscript)):
            return None
        if name in {node.value for node in _names_in(source)} or not isinstance(call.func, cst.Attribute):
            return None  # made from what the name stood for before
        text = self._code.module.code_for_node
        try:
            access = AccessReader(self._code).access(source, statement)
            lengths = list(map(str, access.lengths(access.kept)))
            shape = f"({', '.join(lengths)})" if len(lengths) > 1 else f"({lengths[0]},)"
        except IllegalSite:  # nor need it show
            shape = f"{text(source)}.shape"
        self.done = True
        nl, dtype = text(call.func.value), given.get("dtype")
        whole = source.value if isinstance(source, cst.Subscript) and self._is_of_a_tensor(source) else source
        of_tile = text(dtype) if dtype is not None else f"{text(whole)}.dtype"
        made = parsed_statement(f"{name} = {nl}.ndarray({shape}, dtype={of_tile}, buffer={nl}.sbuf)")
        moved = parsed_statement(f"{self._isa}.dma_copy(dst={name}, src={text(source)})")
        assert isinstance(moved, cst.SimpleStatementLine)
        first = made.with_changes(leading_lines=line.leading_lines)
        return cst.FlattenSentinel([first, moved.with_changes(trailing_whitespace=line.trailing_whitespace)])

    def _is_of_a_tensor(self, source: cst.Subscript) -> bool:
        """Part of an argument or of a tile, and not one of a list of them: it has an interval, or several indices."""
        if not isinstance(source.value, cst.Name):
            return False
        name = source.value.value
        made = [binding.kind for binding in self._code.bindings(name)]
        is_one = made == [Kind.ALLOCATE] or (name in self._code.parameters and not made)
        return is_one and (len(source.slice) > 1 or isinstance(source.slice[0].slice, cst.Slice))

    def _given(self, call: cst.Call, name: str, parameters: tuple[str, ...]) -> dict[str, cst.BaseExpression] | None:
        """The arguments of a call of that function; None for any other call, and where nki.isa has no name here."""
        if not self._isa or self._code.qualified(call.func) != name or len(call.args) > len(parameters):
            return None
        given = {arg.keyword.value if arg.keyword else parameters[at]: arg.value for at, arg in enumerate(call.args)}
        plain = not any(arg.star for arg in call.args) and set(given) <= set(parameters)
        return given if plain and not any("\n" in self._code.module.code_for_node(v) for v in given.values()) else None

    def _list(
        self, line: cst.SimpleStatementLine, name: str, value: cst.ListComp
    ) -> cst.FlattenSentinel[cst.BaseStatement] | None:
        loop = value.for_in
        inner_scopes = (cst.Lambda, cst.BaseComp, cst.NamedExpr)
        inside = [node for node in descendants(value) if node is not value]
        if loop.inner_for_in is not None or loop.ifs or not isinstance(loop.target, cst.Name):
            return None
        if any(isinstance(node, inner_scopes) for node in inside):
            return None
        if any(isinstance(node, cst.Name) and node.value == name for node in inside):
            return None  # made from what the name stood for before
        self.done = True
        variable = loop.target.value
        here = sum(node.value == variable for node in _names_in(value))
        if variable == "_" or sum(node.value == variable for node in _names_in(self._code.function)) > here:
            fresh = self._fresh("i" if variable == "_" else variable)
        else:
            fresh = variable
        renamed: dict[cst.CSTNode, cst.CSTNode] = {
            node: node.with_changes(value=fresh) for node in _names_in(value.elt) if node.value == variable
        }
        element = self._code.module.code_for_node(replace_nodes(value.elt, renamed))
        over = self._code.module.code_for_node(loop.iter)
        if isinstance(value.elt, cst.Call) and self._code.qualified(value.elt.func) == "nki.language.ndarray":
            item = self._fresh(f"{name}_item")
            body = f"    {item} = {element}\n    {name}.append({item})\n"
        else:
            body = f"    {name}.append({element})\n"
        text = f"{name} = []\nfor {fresh} in {over}:\n{body}"
        first, *rest = cst.parse_module(text).body
        assert isinstance(first, cst.SimpleStatementLine)
        first = first.with_changes(leading_lines=line.leading_lines, trailing_whitespace=line.trailing_whitespace)
        return cst.FlattenSentinel([first, *rest])

    def _filled(
        self, line: cst.SimpleStatementLine, name: str, call: cst.Call
    ) -> cst.FlattenSentinel[cst.BaseStatement] | None:
        value = _FILLED.get(self._code.qualified(call.func))
        if value is None or not self._isa or not isinstance(call.func, cst.Attribute):
            return None
        buffers = [arg.value for at, arg in enumerate(call.args) if _names(arg, "buffer", at == 2)]
        regions = {self._code.qualified(each).removeprefix("nki.language.") for each in buffers}
        if not regions <= {"sbuf", "psum"} or any(arg.star for arg in call.args):
            return None
        self.done = True
        small = line.body[0]
        assert isinstance(small, cst.Assign)
        made = call.with_changes(func=call.func.with_changes(attr=cst.Name("ndarray")))
        first = line.with_changes(body=[small.with_changes(value=made)])
        fill = parsed_statement(f"{self._isa}.memset(dst={name}, value={value})")
        return cst.FlattenSentinel([first, fill])

    def _count(self, start: str, stop: str, step: str) -> str:
        length = as_term(stop) if start == "0" else f"{as_term(stop)} - {as_factor(start)}"
        if step == "1":
            return length if start != "0" else stop
        if start == "0" and (stop.replace(" ", ""), step.replace(" ", "")) in self._even:
            return f"{as_factor(stop)} // {as_factor(step)}"
        return f"({length} + {as_term(step)} - 1) // {as_factor(step)}"

    def _fresh(self, wanted: str) -> str:
        name = wanted if wanted not in self._used else fresh_name(wanted, self._used)
        self._used.add(name)
        return name


def as_term(text: str) -> str:
    """An expression's text, ready to be added or to have something taken away from it."""
    expression = parsed_expression(text)
    if isinstance(expression, (cst.Comparison, cst.BooleanOperation, cst.IfExp, cst.Lambda)) and not expression.lpar:
        return f"({text})"
    return text


def _names_in(node: cst.CSTNode) -> list[cst.Name]:
    return [inner for inner in descendants(node) if isinstance(inner, cst.Name)]


def _names(arg: cst.Arg, keyword: str, here: bool) -> bool:
    return arg.keyword.value == keyword if arg.keyword is not None else here


def _asserted_even(code: KernelCode) -> frozenset[tuple[str, str]]:
    """(N, T) of every `assert N % T == 0` that stands in the function's own block."""
    found = set()
    for statement in code.body.statements:
        node = statement.node
        small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
        for test in _conditions(small.test) if isinstance(small, cst.Assert) else ():
            if (
                isinstance(test, cst.Comparison)
                and isinstance(test.left, cst.BinaryOperation)
                and isinstance(test.left.operator, cst.Modulo)
                and len(test.comparisons) == 1
                and isinstance(test.comparisons[0].operator, cst.Equal)
                and isinstance(test.comparisons[0].comparator, cst.Integer)
                and test.comparisons[0].comparator.evaluated_value == 0
            ):
                parts = (test.left.left, test.left.right)
                of, by = (code.module.code_for_node(part).replace(" ", "") for part in parts)
                found.add((of, by))
    return frozenset(found)


def _conditions(test: cst.BaseExpression) -> Sequence[cst.BaseExpression]:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*_conditions(test.left), *_conditions(test.right)]
    return [test]
