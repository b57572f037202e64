"""How long a tile or a view is in each dimension, from the text: tiles, their parts, access patterns, arguments taken
apart (`C, H, W = x.shape`)."""

from __future__ import annotations

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.index_algebra import Polynomial
from accelopt_core.transforms.isa_effects import VIEW_METHODS
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.operand_access import AccessReader
from accelopt_core.transforms.syntax import bound_names, loaded_names

Shape = tuple[Polynomial, ...]


class Shapes:
    """Of a kernel whose names are bound once; what else it finds has no shape."""

    def __init__(self, code: KernelCode) -> None:
        self._code = code
        self._reader = AccessReader(code)
        self.of_loops = frozenset[str]().union(
            *(bound_names(s.node.target) for s in code.loops() if s.count is None and isinstance(s.node, cst.For))
        )
        """Bound by loops over something else than a range: tiles, perhaps."""

    def of(self, expression: cst.BaseExpression, at: Statement) -> Shape | None:
        """As `at`, the statement that contains the expression, would find it; None where it does not show."""
        try:
            if isinstance(expression, cst.Name):
                return self._of_name(expression.value, at)
            if isinstance(expression, cst.Subscript):
                return self._of_part(expression, at)
            if isinstance(expression, cst.Call):
                return self._of_view(expression, at)
        except IllegalSite:
            pass
        return None

    def definition(self, name: str, at: Statement) -> tuple[cst.BaseExpression, Statement] | None:
        """The view that a name stands for: bound once, around `at`, of names that are bound once themselves."""
        bindings = self._code.bindings(name)
        if len(bindings) != 1 or bindings[0].kind is not Kind.DEFINE or name in self._code.captured:
            return None
        (binding,) = bindings
        small = binding.node.body[0] if isinstance(binding.node, cst.SimpleStatementLine) else None
        if not isinstance(small, cst.Assign) or not isinstance(small.targets[0].target, cst.Name):
            return None
        if not self._holds_at(binding, at) or not self.is_settled(small.value):
            return None
        return small.value, binding

    def base(self, expression: cst.BaseExpression, at: Statement) -> cst.Name | None:
        """The argument, or the tile that is made once, that a view is a view of."""
        while True:
            if isinstance(expression, cst.Subscript):
                expression = expression.value
            elif isinstance(expression, cst.Call) and isinstance(expression.func, cst.Attribute):
                if expression.func.attr.value not in VIEW_METHODS or isinstance(expression.func.value, cst.Call):
                    return None
                expression = expression.func.value
            elif isinstance(expression, cst.Name):
                name = expression.value
                kinds = [binding.kind for binding in self._code.bindings(name)]
                if kinds == [Kind.ALLOCATE] or (name in self._code.parameters and not kinds):
                    return expression
                view = self.definition(name, at)
                if view is None:
                    return None
                expression, at = view
            else:
                return None

    def is_settled(self, expression: cst.BaseExpression) -> bool:
        """Every name in it is bound at most once."""
        names = loaded_names(expression)
        return not names & self.of_loops and all(
            len(self._code.bindings(name)) + (name in self._code.parameters) <= 1 for name in names
        )

    def _holds_at(self, binding: Statement, at: Statement) -> bool:
        around = (at.block, *(owner.block for owner in at.block.loops()))
        return binding.block in around and binding.line < at.line

    def _of_name(self, name: str, at: Statement) -> Shape | None:
        if name in self._code.parameters:
            return self._unpacked(name, at)
        bindings = self._code.bindings(name)
        if len(bindings) != 1:
            return None
        (binding,) = bindings
        if binding.kind is not Kind.ALLOCATE:
            view = self.definition(name, at)
            return self.of(*view) if view is not None else None
        shape = self._code.argument(binding, "shape", 0)
        if shape is None or not self._holds_at(binding, at) or not self.is_settled(shape):
            return None
        if isinstance(shape, cst.Attribute) and shape.attr.value == "shape":
            return self.of(shape.value, binding)
        return self._reader.sizes(name)

    def _unpacked(self, parameter: str, at: Statement) -> Shape | None:
        """By the names of `C, H, W = x.shape`, which are bound nowhere else."""
        if self._code.bindings(parameter):
            return None
        for statement in self._code.body.statements:
            node = statement.node
            small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
            if not isinstance(small, cst.Assign) or len(small.targets) != 1 or not self._holds_at(statement, at):
                continue
            target, value = small.targets[0].target, small.value
            if self._code.module.code_for_node(value) != f"{parameter}.shape" or not isinstance(target, cst.Tuple):
                continue
            names = [each.value.value for each in target.elements if isinstance(each.value, cst.Name)]
            if len(names) == len(target.elements):
                return tuple(
                    Polynomial({(name if name != "_" and self._is_once(name) else f"{parameter}.shape[{k}]",): 1})
                    for k, name in enumerate(names)
                )
        return None

    def _is_once(self, name: str) -> bool:
        return len(self._code.bindings(name)) == 1 and name not in self._code.parameters

    def _of_part(self, expression: cst.Subscript, at: Statement) -> Shape | None:
        whole = self.of(expression.value, at)
        if whole is None or len(expression.slice) != len(whole) or not self.is_settled(expression):
            return None
        access = self._reader.access(expression, at)
        if any(dim.dropped for dim in access.dims) and access.on_chip and access.dims[0].dropped:
            return None
        return access.lengths(access.kept)

    def _of_view(self, call: cst.Call, at: Statement) -> Shape | None:
        if not isinstance(call.func, cst.Attribute) or self.base(call, at) is None or not self.is_settled(call):
            return None
        method = call.func.attr.value
        if method == "ap":
            pattern = pattern_of(call)
            return tuple(self._reader.number(count, at) for _, count in pattern) if pattern else None
        if method == "reshape" and len(call.args) == 1 and isinstance(call.args[0].value, cst.Tuple):
            sizes = [self._reader.number(element.value, at) for element in call.args[0].value.elements]
            return tuple(sizes) if not any((size.value or 0) < 0 for size in sizes) else None
        return None


def pattern_of(call: cst.Call) -> list[tuple[cst.BaseExpression, cst.BaseExpression]] | None:
    """[stride, count] of every dimension of `tile.ap(pattern, offset=...)`; None for any other call."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "ap":
        return None
    given = {arg.keyword.value if arg.keyword else ("pattern", "offset")[at]: arg.value
             for at, arg in enumerate(call.args) if arg.keyword is not None or at < 2}  # fmt: skip
    if len(given) != len(call.args) or not set(given) <= {"pattern", "offset"} or any(arg.star for arg in call.args):
        return None
    pattern = given.get("pattern")
    if not isinstance(pattern, (cst.List, cst.Tuple)):
        return None
    pairs = []
    for element in pattern.elements:
        pair = element.value
        if not isinstance(pair, (cst.List, cst.Tuple)) or len(pair.elements) != 2:
            return None
        stride, count = (each.value for each in pair.elements)
        pairs.append((stride, count))
    return pairs
