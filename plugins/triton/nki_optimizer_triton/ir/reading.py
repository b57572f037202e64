"""TTIR read from its text, line by line, as Triton 3.4 to 3.9 prints it.

The text comes from the process that compiled a candidate's kernels, and is trusted in nothing: sizes are bounded, each
operation is on the list of `contract.py`, each operand is a value that is in scope. Whatever the reader trips over is
an IrError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from nki_optimizer_triton.ir.contract import check_module, refusal
from nki_optimizer_triton.ir.locations import Locations, without_location
from nki_optimizer_triton.ir.text import (
    attributes_of,
    block_pointer_of,
    bracketed,
    constant,
    cut,
    descriptor_of,
    split,
    type_of,
)
from nki_optimizer_triton.ir.types import (
    Attribute,
    Block,
    BlockPointer,
    Function,
    IrError,
    Module,
    Operation,
    Pointer,
    Pointers,
    Region,
    Scalar,
    Successor,
    Tensor,
    Type,
    shape_of,
)

MOST_CHARACTERS = 32 << 20
MOST_OPERATIONS = 200_000
MOST_DEEP = 32
"""Regions inside each other."""

_VALUE = r"%[\w$.-]+(?:#\d+)?"
_VALUES = re.compile(_VALUE)
_RESULTS = re.compile(r"^(%[\w$.-]+(?::\d+)?(?:, %[\w$.-]+(?::\d+)?)*) = (.*)$")
_NAME = re.compile(r'^"?([a-z_]+(?:\.[a-z_0-9]+)+)"?(.*)$')
_LABEL = re.compile(r"^\^(\w+)(?:\((.*)\))?:(?:\s*//.*)?$")
_FUNCTION = re.compile(r"^tt\.func (public|private) @([\w$.]+)\((.*)$")
_WORD = re.compile(r"[A-Za-z_@][\w.@$]*\s*(?:=\s*[\w.+-]+|<[^>]*>)?")


def read_module(text: str, file_name: str) -> Module:
    """`file_name`: how the path of the candidate's own file ends, for lines. Raises IrError."""
    try:
        if len(text) > MOST_CHARACTERS:
            raise IrError(f"{len(text):,} characters, more than {MOST_CHARACTERS:,}")
        module = _Reader(text, file_name).module()
    except IrError:
        raise
    except (LookupError, ValueError, TypeError, AssertionError, RecursionError) as error:
        raise IrError(f"it cannot be read: {type(error).__name__}: {str(error)[:200]}") from None
    check_module(module)
    return module


class _Scope:
    """Types of the values that can be named here; what an inner one defines, the outer does not see."""

    def __init__(self, outer: _Scope | None = None) -> None:
        self._types: dict[str, Type] = {}
        self._outer = outer

    def define(self, name: str, type_: Type) -> None:
        if name in self._types:
            raise IrError(f"%{name} is defined twice")
        self._types[name] = type_

    def type_of(self, name: str) -> Type:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope._types:
                return scope._types[name]
            scope = scope._outer
        raise IrError(f"%{name} is used and not defined")


@dataclass
class _Head:
    """One line of an operation, taken apart."""

    results: list[str]
    name: str
    operands: list[str] = field(default_factory=list)
    attributes: dict[str, Attribute] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    printed: str = ""
    """Types before the arrow."""
    after: str | None = None
    """Types after `->` or `to`."""
    line: int | None = None


class _Reader:
    def __init__(self, text: str, file_name: str) -> None:
        self._locations = Locations(text, file_name)
        self._lines = [line for raw in text.splitlines() if (line := raw.strip()) and not line.startswith("#")]
        self._at = 0
        self._operations = 0
        self._deep = 0

    def module(self) -> Module:
        functions = []
        if not self._next().startswith("module"):
            raise IrError("it does not begin with a module")
        while not (line := self._next()).startswith("}"):
            functions.append(self._function(line))
        if self._at != len(self._lines):
            raise IrError("there is more than one module")
        return Module(tuple(functions))

    def _next(self) -> str:
        if self._at >= len(self._lines):
            raise IrError("the text ends in the middle")
        self._at += 1
        return self._lines[self._at - 1]

    def _function(self, line: str) -> Function:
        found = _FUNCTION.match(line)
        if found is None or not line_opens(without_location(line)[0]):
            raise IrError(f"where a function should begin: {line[:80]!r}")
        group = bracketed("(" + found.group(3), "(")
        assert group is not None
        _, listed, rest = group
        arguments = []
        scope = _Scope()
        for entry in filter(None, split(listed, ",")):
            name, type_ = self._argument(entry)
            scope.define(name, type_)
            arguments.append((name, type_))
        results: tuple[Type, ...] = ()
        head = cut(rest, "attributes")[0].removesuffix("{").strip()
        if head.startswith("->"):
            results = tuple(_types(head[2:]))
        body = self._region(scope)
        self._close(_Head([], "tt.func"))
        return Function(found.group(2), tuple(arguments), results, body, found.group(1) == "public")

    def _argument(self, text: str) -> tuple[str, Type]:
        text, _ = without_location(text)
        name, type_text = cut(text, ":")
        assert type_text is not None and name.startswith("%")
        group = bracketed(type_text, "{")
        return name[1:], type_of(type_text if group is None else group[0])

    # --- regions ------------------------------------------------------------------------------------

    def _region(self, scope: _Scope, arguments: tuple[tuple[str, Type], ...] = ()) -> Region:
        """Up to the line that closes it, which is left to be read. `arguments`: of a first block without label."""
        self._deep += 1
        if self._deep > MOST_DEEP:
            raise IrError(f"more than {MOST_DEEP} regions inside each other")
        blocks: list[tuple[str, Block]] = []
        label = ""
        operations: list[Operation] = []
        inner = _Scope(scope)
        for name, type_ in arguments:
            inner.define(name, type_)
        ahead = self._block_arguments(inner)
        while not self._lines[self._at].startswith("}"):
            line = self._next()
            found = _LABEL.match(line)
            if found is not None:
                if operations or label:
                    blocks.append((label, Block(arguments, tuple(operations))))
                label, operations = found.group(1), []
                arguments = ahead.get(label, arguments)
                continue
            operations.append(self._operation(line, inner))
            if self._at >= len(self._lines):
                raise IrError("a region that does not end")
        blocks.append((label, Block(arguments, tuple(operations))))
        labels = [name for name, _ in blocks]
        if len(set(labels)) != len(labels):
            raise IrError("two blocks have one label")
        for _, block in blocks:
            for operation in block.operations:
                for successor in operation.successors:
                    if successor.label not in labels:
                        raise IrError(f"a branch to {successor.label!r}, which is no block here")
        self._deep -= 1
        return Region(tuple(blocks))

    def _block_arguments(self, scope: _Scope) -> dict[str, tuple[tuple[str, Type], ...]]:
        """Of all labelled blocks of the region that begins here: branches name their values before they stand there."""
        found: dict[str, tuple[tuple[str, Type], ...]] = {}
        depth = 0
        for number in range(self._at, len(self._lines)):
            line = self._lines[number]
            if line.startswith("}"):
                depth -= 1
                if depth < 0:
                    break
            label = _LABEL.match(line) if depth == 0 else None
            if label is not None:
                listed = split(label.group(2), ",") if label.group(2) else []
                found[label.group(1)] = tuple(self._argument(entry) for entry in listed)
                for name, type_ in found[label.group(1)]:
                    scope.define(name, type_)
            elif line_opens(without_location(line)[0]):
                depth += 1
        return found

    # --- operations ---------------------------------------------------------------------------------

    def _operation(self, line: str, scope: _Scope) -> Operation:
        self._operations += 1
        if self._operations > MOST_OPERATIONS:
            raise IrError(f"more than {MOST_OPERATIONS:,} operations")
        text, location = without_location(line)
        results: list[str] = []
        found = _RESULTS.match(text)
        if found is not None:
            for each in found.group(1).split(", "):
                name, _, count = each[1:].partition(":")
                results += [f"{name}#{n}" for n in range(int(count))] if count else [name]
            text = found.group(2)
        named = _NAME.match(text)
        if named is None:
            raise IrError(f"where an operation should stand: {text[:80]!r}", self._locations.line(location))
        name, rest = named.group(1), named.group(2).strip()
        why = refusal(name)
        if why is not None:
            raise IrError(why, self._locations.line(location))
        try:
            operation = self._read(_Head(results, name, line=self._locations.line(location)), rest, scope)
        except IrError as error:
            raise IrError(error.message, error.line or self._locations.line(location)) from None
        if len(operation.results) != len(operation.result_types):
            raise IrError(
                f"{name} has {len(operation.results)} results and {len(operation.result_types)} types", operation.line
            )
        for result, type_ in zip(operation.results, operation.result_types):
            scope.define(result, type_)
        return operation

    def _read(self, head: _Head, rest: str, scope: _Scope) -> Operation:
        if head.name == "scf.for":
            return self._for(head, rest, scope)
        if head.name == "scf.if":
            return self._if(head, rest, scope)
        if head.name == "scf.while":
            return self._while(head, rest, scope)
        if head.name in ("cf.br", "cf.cond_br"):
            return self._branch(head, rest, scope)
        if rest.startswith("(") and line_opens(rest):
            return self._with_region(head, rest, scope)
        return self._simple(head, rest, scope)

    def _finish(
        self,
        head: _Head,
        operands: list[str],
        scope: _Scope,
        results: tuple[Type, ...],
        regions: tuple[Region, ...] = (),
        successors: tuple[Successor, ...] = (),
    ) -> Operation:
        types = tuple(scope.type_of(name) for name in operands)
        return Operation(
            head.name, tuple(operands), types, tuple(head.results), results, head.attributes, head.words, regions,
            successors, head.line,
        )  # fmt: skip

    def _for(self, head: _Head, rest: str, scope: _Scope) -> Operation:
        found = re.match(rf"^(?:unsigned )?({_VALUE}) = ({_VALUE}) to ({_VALUE}) step ({_VALUE})(.*)\{{$", rest)
        if found is None:
            raise IrError(f"a loop in other words: {rest[:80]!r}")
        carried, results, counter = self._carried(found.group(5))
        bounds = [found.group(number)[1:] for number in (2, 3, 4)]
        kind = scope.type_of(bounds[0]) if counter is None else counter
        arguments = [(found.group(1)[1:], kind)]
        arguments += [(name, scope.type_of(value)) for name, value in carried]
        body = _terminated(self._region(scope, tuple(arguments)))
        self._close(head)
        if rest.startswith("unsigned"):
            head.words = ("unsigned",)
        return self._finish(head, bounds + [value for _, value in carried], scope, results, (body,))

    def _carried(self, text: str) -> tuple[list[tuple[str, str]], tuple[Type, ...], Type | None]:
        """`iter_args(%a = %b) -> (types) : i32`, each part of which may be missing."""
        text, counter = cut(text, ":")
        carried: list[tuple[str, str]] = []
        if "(" in text:
            group = bracketed(text, "(")
            assert group is not None
            for entry in filter(None, split(group[1], ",")):
                name, value = cut(entry, "=")
                assert value is not None
                carried.append((name[1:], value[1:]))
            text = group[2]
        _, after = cut(text, "->")
        return carried, tuple(_types(after)) if after else (), None if counter is None else type_of(counter)

    def _if(self, head: _Head, rest: str, scope: _Scope) -> Operation:
        found = re.match(rf"^({_VALUE})(?: -> (.*))? \{{$", rest)
        if found is None:
            raise IrError(f"a condition in other words: {rest[:80]!r}")
        results = tuple(_types(found.group(2))) if found.group(2) else ()
        regions = [_terminated(self._region(scope))]
        if self._lines[self._at].startswith("} else {"):
            self._at += 1
            regions.append(_terminated(self._region(scope)))
        self._close(head)
        if results and len(regions) != 2:
            raise IrError("a condition with results and one branch")
        return self._finish(head, [found.group(1)[1:]], scope, results, tuple(regions))

    def _while(self, head: _Head, rest: str, scope: _Scope) -> Operation:
        text = rest.removesuffix("{").strip()
        group = bracketed(text, "(")
        carried: list[tuple[str, str]] = []
        if group is not None and not group[0].strip():
            for entry in filter(None, split(group[1], ",")):
                name, value = cut(entry, "=")
                assert value is not None
                carried.append((name[1:], value[1:]))
            text = group[2].strip()
        before, after = cut(text.removeprefix(":"), "->")
        results = tuple(_types(after)) if after else ()
        values = [value for _, value in carried]
        first = self._region(scope, tuple((name, scope.type_of(value)) for name, value in carried))
        if not self._next().startswith("} do {"):
            raise IrError("a while loop without its body")
        second = _terminated(self._region(scope))
        self._close(head)
        return self._finish(head, values, scope, results, (first, second))

    def _branch(self, head: _Head, rest: str, scope: _Scope) -> Operation:
        operands: list[str] = []
        if head.name == "cf.cond_br":
            condition, others = cut(rest, ",")
            operands, rest = [condition[1:]], others or ""
        successors = []
        for entry in split(cut(rest, "{")[0], ","):
            found = re.match(r"^\^(\w+)(?:\((.*)\))?$", entry)
            if found is None:
                raise IrError(f"a branch in other words: {entry[:80]!r}")
            names = [v[1:] for v in _VALUES.findall(cut(found.group(2) or "", ":")[0])]
            successors.append(Successor(found.group(1), tuple(names)))
            for name in names:
                scope.type_of(name)
        if len(successors) != (2 if operands else 1):
            raise IrError(f"a branch in other words: {rest[:80]!r}")
        return self._finish(head, operands, scope, (), (), tuple(successors))

    def _with_region(self, head: _Head, rest: str, scope: _Scope) -> Operation:
        """`"tt.reduce"(%a, %b) <{axis = 0 : i32}> ({` ... `}) : (types) -> types`."""
        group = bracketed(rest.removesuffix("({"), "(")
        assert group is not None
        operands = [value[1:] for value in _VALUES.findall(group[1])]
        properties = bracketed(group[2], "<{")
        if properties is not None:
            head.attributes = attributes_of(properties[1])
        region = self._region(scope)
        closing, _ = without_location(self._next())
        found = re.match(r"^\}\)\s*(?:\{(.*)\})?\s*: (.*)$", closing)
        if found is None:
            raise IrError(f"a region in other words: {closing[:80]!r}")
        if found.group(1):
            head.attributes.update(attributes_of(found.group(1)))
        _, after = cut(found.group(2), "->")
        return self._finish(head, operands, scope, tuple(_types(after or "")), (region,))

    def _close(self, head: _Head) -> None:
        """The line that ends an operation with regions; attributes may stand there."""
        closing, location = without_location(self._next())
        found = re.match(r"^\}\s*(?:attributes\s*)?(?:\{(.*)\})?$", closing)
        if found is None:
            raise IrError(f"where a region should end: {closing[:80]!r}")
        if found.group(1):
            head.attributes = attributes_of(found.group(1))
        head.line = self._locations.line(location)

    def _simple(self, head: _Head, rest: str, scope: _Scope) -> Operation:
        body, printed = cut(rest, " : ")
        if printed is None and rest.startswith(": "):
            body, printed = "", rest[2:]
        quoted = bracketed(body, "<{") if "<{" in body else None
        if quoted is not None:
            head.attributes.update(attributes_of(quoted[1]))
            body = quoted[0] + quoted[2].removeprefix(">")
        braces = bracketed(body, "{") if "{" in body else None
        if braces is not None:
            head.attributes.update(attributes_of(braces[1]))
            body = braces[0] + braces[2]
        if head.name == "arith.constant":
            return self._constant(head, body, printed)
        operands = [value[1:] for value in _VALUES.findall(body)]
        head.words = tuple(re.sub(r"\s+", "", word) for word in _WORD.findall(_VALUES.sub(" ", body)) if word.strip())
        if printed is not None:
            before, after = cut(printed, "->")
            if after is None:
                before, after = cut(printed, " to ")
            head.printed, head.after = before, after
        types = [scope.type_of(name) for name in operands]
        return self._finish(head, operands, scope, tuple(_result_types(head, types)))

    def _constant(self, head: _Head, body: str, printed: str | None) -> Operation:
        type_: Type = Scalar("i1") if printed is None else type_of(printed)
        if not isinstance(type_, (Scalar, Tensor)):
            raise IrError("a constant that is no number")
        head.attributes = {"value": constant(body, type_.element)}
        return Operation(head.name, (), (), tuple(head.results), (type_,), head.attributes, (), (), (), head.line)


def _terminated(region: Region) -> Region:
    """With the scf.yield at its end that is not printed where nothing is yielded."""
    block = region.entry
    if len(region.blocks) != 1:
        raise IrError("a loop or a branch of several blocks")
    if block.operations and block.operations[-1].name in ("scf.yield", "scf.condition"):
        return region
    last = Operation("scf.yield", (), (), (), ())
    return Region(((region.blocks[0][0], Block(block.arguments, (*block.operations, last))),))


def line_opens(text: str) -> bool:
    """Whether a region begins at the end of this line."""
    return text.endswith("{")


def _types(text: str) -> list[Type]:
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return [type_of(part) for part in split(text, ",") if part]


_NO_RESULT = frozenset(
    [
        "tt.store", "tt.atomic_store", "tt.return", "tt.reduce.return", "tt.scan.return",
        "tt.map_elementwise.return", "scf.yield", "scf.condition", "tt.descriptor_store", "tt.descriptor_scatter",
        "tt.descriptor_reduce", "llvm.intr.assume", "gpu.barrier", "ttg.barrier", "ttg.local_barrier",
    ]
)  # fmt: skip


def _result_types(head: _Head, operands: list[Type]) -> list[Type]:
    """By the printed types, or by those of the operands where they say it already."""
    name = head.name
    if name in _NO_RESULT:
        return []
    if name == "tt.call":
        return _types(head.after or "")
    if name == "tt.load":
        return [_loaded(operands[0])]
    if name in ("arith.cmpi", "arith.cmpf", "math.isnan", "math.isinf"):
        return [_like(operands[0], "i1")]
    if name == "arith.addui_extended":
        return [operands[0], _like(operands[0], "i1")]
    if name in ("arith.mulsi_extended", "arith.mului_extended"):
        return [operands[0], operands[0]]
    if name in ("tt.addptr", "tt.advance"):
        return [operands[0]]
    if name == "arith.select":
        return [operands[1]]
    if name == "tt.split" and head.after is not None:
        return [type_of(head.after)] * 2
    if name == "tt.make_tensor_ptr":
        return [block_pointer_of(split(head.after or head.printed, ",")[-1])]
    if name == "tt.make_tensor_descriptor":
        return [descriptor_of(split(head.after or head.printed, ",")[-1])]
    if head.after is not None:
        return _types(head.after)
    listed = split(head.printed, ",")
    return [type_of(listed[-1])] if head.results else []


def _loaded(pointer: Type) -> Type:
    if isinstance(pointer, BlockPointer):
        return pointer.block
    if isinstance(pointer, (Scalar, Tensor)) and isinstance(pointer.element, (Pointer, Pointers)):
        return _like(pointer, pointer.element.to)
    raise IrError("a load from what is no pointer")


def _like(type_: Type, element: object) -> Type:
    """A scalar or tensor of this shape, of another element type."""
    if not isinstance(type_, (Scalar, Tensor)):
        raise IrError("an operation on what has no elements")
    found: Type = (
        Tensor(type_.shape, element)  # type: ignore[arg-type]
        if isinstance(type_, Tensor)
        else Scalar(element)  # type: ignore[arg-type]
    )
    return found


def names_used(module: Module) -> Mapping[str, int]:
    """How often each value of the kernel's functions is an operand."""
    from nki_optimizer_triton.ir.types import operations_in

    used: dict[str, int] = {}
    for function in module.functions:
        for operation in operations_in(function.body):
            for name in (*operation.operands, *(n for s in operation.successors for n in s.operands)):
                used[name] = used.get(name, 0) + 1
    return used


__all__ = ["MOST_OPERATIONS", "names_used", "read_module", "shape_of"]
