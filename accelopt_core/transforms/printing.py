"""A syntax tree as text. Of two trees that share nodes, what they share is printed once: a change of a kernel leaves
most of its statements what they were, and libcst takes longer to print a kernel than a change takes to be made."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import libcst as cst
from libcst._nodes.internal import CodegenState

from accelopt_core.transforms.syntax import fields_of

_WITH_A_BLOCK = frozenset({cst.For, cst.FunctionDef, cst.If, cst.While, cst.With})
_KEPT = 1 << 15
"""Statements whose text is remembered: those of some hundred kernels."""


def text_of_module(module: cst.Module) -> str:
    """`module.code`."""
    if not module.has_trailing_newline:
        return module.code
    style = (module.default_indent, module.default_newline)
    pieces = [_plain(line, (), style) for line in module.header]
    pieces += [_statement(statement, (), style) for statement in module.body]
    pieces += [_plain(line, (), style) for line in module.footer]
    return "".join(pieces) or module.default_newline


@lru_cache(_KEPT)
def _statement(node: cst.CSTNode, indents: tuple[str, ...], style: tuple[str, str]) -> str:
    """With the white space before it. indents: of the blocks around it; style: the module's indent and newline."""
    body = getattr(node, "body", None)
    if type(node) not in _WITH_A_BLOCK or type(body) is not cst.IndentedBlock or getattr(node, "orelse", None):
        return _plain(node, indents, style)
    return _plain(_without_body(node), indents, style) + _block(body, indents, style)


def _block(block: cst.IndentedBlock, indents: tuple[str, ...], style: tuple[str, str]) -> str:
    if not block.body:
        return _plain(block, indents, style)
    inner = (*indents, style[0] if block.indent is None else block.indent)
    pieces = [_plain(block.header, indents, style)]
    pieces += [_statement(statement, inner, style) for statement in block.body]
    pieces += [_plain(line, inner, style) for line in block.footer]
    return "".join(pieces)


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_NOTHING = _Nothing()


class _State(CodegenState):
    """Where a node begins and ends is not asked: libcst makes a generator for each, to do nothing."""

    def record_syntactic_position(self, *_: Any, **__: Any) -> Any:
        return _NOTHING


def _plain(node: cst.CSTNode, indents: tuple[str, ...], style: tuple[str, str]) -> str:
    state = _State(*style)
    state.indent_tokens.extend(indents)
    node._codegen(state)
    return "".join(state.tokens)


class _NoBody:
    """Prints nothing."""

    def _codegen(self, state: CodegenState, **_: Any) -> None:
        pass


_NO_BODY = _NoBody()


def _without_body(node: cst.CSTNode) -> cst.CSTNode:
    kind = type(node)
    made = object.__new__(kind)
    for name in fields_of(kind):
        object.__setattr__(made, name, _NO_BODY if name == "body" else getattr(node, name))
    return made
