"""Views by what they are views of, and sizes by their own names.

    rows = x[i, a : a + P, 0:N]                               tile = nl.ndarray((P, N), dtype=x.dtype, ...)
    tile = nl.ndarray(rows.shape, dtype=rows.dtype, ...)  ->  nisa.dma_copy(dst=tile, src=x[i, a : a + P, 0:N])
    nisa.dma_copy(dst=tile, src=rows)

Only where every name in the view is bound once, so that it means the same in both places. A second name of a buffer
gives way to the first.
"""

from __future__ import annotations

import libcst as cst

from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.syntax import descendants, loaded_names, name_nodes, parsed_expression
from accelopt_core.transforms.tile_shapes import Shapes


def with_views_written_out(code: KernelCode) -> cst.Module:
    """The module; the very one of `code` when nothing changes."""
    changes = _second_names(code) or _Views(code).changes()
    if not changes:
        return code.module
    return _without_unused_views(code, code.changed(changes), changes)


def _second_names(code: KernelCode) -> dict[cst.CSTNode, cst.CSTNode]:
    """Wherever `b` of a statement `b = a` is asked for, `a`: of buffers, and where both names are bound once."""
    shapes = Shapes(code)
    first: dict[str, str] = {}
    for statement in code.statements():
        small = statement.node.body[0] if isinstance(statement.node, cst.SimpleStatementLine) else None
        if statement.kind is not Kind.DEFINE or not isinstance(small, cst.Assign) or len(small.targets) != 1:
            continue
        target, value = small.targets[0].target, small.value
        if not isinstance(target, cst.Name) or not isinstance(value, cst.Name) or value.value not in code.roots:
            continue
        users = [each for each in code.statements() if target.value in each.own_uses]
        if users and all(shapes.definition(target.value, each) is not None for each in users):
            first[target.value] = value.value
    return {
        node: node.with_changes(value=first[node.value]) for node in name_nodes(code.function) if node.value in first
    }


class _Views:
    def __init__(self, code: KernelCode) -> None:
        self._code, self._shapes = code, Shapes(code)

    def changes(self) -> dict[cst.CSTNode, cst.CSTNode]:
        found: dict[cst.CSTNode, cst.CSTNode] = {}
        for statement in self._code.statements():
            if statement.call is None or statement.kind not in (Kind.INSTRUCTION, Kind.ALLOCATE):
                continue
            for arg in statement.call.args:
                if statement.kind is Kind.INSTRUCTION:
                    written = self._view(arg.value, statement)
                else:
                    written = self._size(arg.value, statement)
                if written is not None:
                    found[arg.value] = written
        return found

    def _view(self, value: cst.BaseExpression, at: Statement) -> cst.BaseExpression | None:
        """The view that an operand's name stands for."""
        if not isinstance(value, cst.Name):
            return None
        view = self._shapes.definition(value.value, at)
        if view is None:
            return None
        written, binding = view
        if isinstance(written, cst.Call) and self._shapes.of(written, at) is None:
            return None
        base = self._shapes.base(written, binding)
        held = base is not None and not isinstance(written, cst.Name) and base.value in loaded_names(written)
        return written.deep_clone() if held else None

    def _size(self, value: cst.BaseExpression, at: Statement) -> cst.BaseExpression | None:
        """What `x.shape` and `x.dtype` of an allocation are."""
        if not isinstance(value, cst.Attribute) or not isinstance(value.value, cst.Name):
            return None
        if value.attr.value == "shape":
            shape = self._shapes.of(value.value, at)
            if shape is None:
                return None
            lengths = list(map(str, shape))
            return parsed_expression(f"({', '.join(lengths)})" if len(lengths) > 1 else f"({lengths[0]},)")
        if value.attr.value != "dtype":
            return None
        view = self._shapes.definition(value.value.value, at)
        base = self._shapes.base(value.value, at)
        if view is None or base is None or self._shapes.of(value.value, at) is None:  # it might be of another dtype
            return None
        return value.with_changes(value=base.deep_clone())


def _without_unused_views(code: KernelCode, made: cst.Module, changes: dict[cst.CSTNode, cst.CSTNode]) -> cst.Module:
    """Definitions of views that were written out everywhere go; what was said beside them stays."""
    views = {
        node.value for old in changes for node in descendants(old) if isinstance(node, cst.Name)
    } - code.captured  # fmt: skip
    kept = {name for name in views if sum(node.value == name for node in name_nodes(made)) > 0}
    gone: set[str] = set()
    for statement in code.statements():
        if statement.kind is Kind.DEFINE and len(statement.binds) == 1 and statement.binds <= views - kept:
            gone |= statement.binds
    if not gone:
        return made
    result = made.visit(_Drop(gone))
    assert isinstance(result, cst.Module)
    return result


class _Drop(cst.CSTTransformer):
    """Comments above and beside a definition that goes stay where they are; comments within it went with the view."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def leave_IndentedBlock(  # libcst's name
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body: list[cst.BaseStatement] = []
        carried: list[cst.EmptyLine] = []
        for statement in updated_node.body:
            leading = [*carried, *getattr(statement, "leading_lines", ())]
            if self._goes(statement):
                assert isinstance(statement, cst.SimpleStatementLine)
                beside = statement.trailing_whitespace.comment
                carried = [line for line in leading if line.comment is not None]
                carried += [cst.EmptyLine(comment=beside)] if beside is not None else []
            elif carried:
                body.append(statement.with_changes(leading_lines=leading))
                carried = []
            else:
                body.append(statement)
        if carried:  # nothing follows: the block keeps its last definition
            return updated_node
        return updated_node.with_changes(body=body)

    def _goes(self, statement: cst.BaseStatement) -> bool:
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if not isinstance(small, cst.Assign) or not isinstance(statement, cst.SimpleStatementLine):
            return False
        target = small.targets[0].target
        return isinstance(target, cst.Name) and target.value in self._names
