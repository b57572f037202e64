"""Trees read and changed by our own code do and say what libcst's visitors and metadata do and say."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, QualifiedNameProvider, QualifiedNameSource

from accelopt_core.transforms.scopes import Scopes
from accelopt_core.transforms.syntax import children, descendants, name_nodes, replace_nodes

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted((ROOT / "nkibench_seeds").glob("*/kernel.py")), ROOT / "accelopt_core/transforms/block_tiles.py"]


@pytest.fixture(params=FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def module(request: pytest.FixtureRequest) -> cst.Module:
    return cst.parse_module(request.param.read_text(encoding="utf-8"))


SPACE = (cst.BaseParenthesizableWhitespace, cst.Comment, cst.EmptyLine, cst.Newline, cst.TrailingWhitespace)


def test_every_node_that_is_no_white_space_is_found_once(module: cst.Module) -> None:
    def of_libcst(node: cst.CSTNode) -> list[cst.CSTNode]:
        inner = [child for child in node.children if not isinstance(child, SPACE)]
        return [node, *(each for child in inner for each in of_libcst(child))]

    found = list(descendants(module))
    assert len(found) == len(set(found)) and set(found) == set(of_libcst(module))


def test_what_is_replaced_is_replaced_and_nothing_else(module: cst.Module) -> None:
    class Renamed(cst.CSTTransformer):
        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
            return updated_node.with_changes(value=f"{updated_node.value}_")

    names = [node for node in descendants(module) if isinstance(node, cst.Name)]
    changed = replace_nodes(module, {name: cst.Name(f"{name.value}_") for name in names})
    assert isinstance(changed, cst.Module) and changed.code == module.visit(Renamed()).code


def test_a_replacement_that_does_not_fit_is_refused() -> None:
    module = cst.parse_module("x = not y\n")
    (operation,) = (node for node in descendants(module) if isinstance(node, cst.UnaryOperation))
    with pytest.raises(cst.CSTValidationError):
        replace_nodes(module, {operation.operator: cst.Not(whitespace_after=cst.SimpleWhitespace(""))})


def test_children_come_in_the_order_of_the_source() -> None:
    call = cst.parse_expression("f(a, key=b if c else d)[e:g](h)")
    assert [name.value for name in name_nodes(call)] == ["f", "a", "b", "c", "d", "e", "g", "h"]
    (function,) = cst.parse_module("@one\ndef two(three: four = five) -> six:\n    seven\n").body
    names = [node.value for node in descendants(function) if isinstance(node, cst.Name)]
    assert names == ["one", "two", "three", "four", "five", "six", "seven"]
    assert list(children(cst.Name("x"))) == []


def test_names_stand_for_what_libcst_says(module: cst.Module) -> None:
    known = MetadataWrapper(module, unsafe_skip_copy=True).resolve(QualifiedNameProvider)
    scopes = Scopes(module)
    attributes = [node for node in descendants(module) if isinstance(node, cst.Attribute)]
    called = [node.func for node in descendants(module) if isinstance(node, cst.Call)]
    compared = 0
    for node in (*attributes, *called):
        names = known.get(node, set())
        names = names() if callable(names) else names
        said = {name.name for name in names if name.source is not QualifiedNameSource.LOCAL}
        if isinstance(node, (cst.Name, cst.Attribute)) and isinstance(_base(node), cst.Name) and len(names) <= 1:
            compared += 1
            assert {scopes.qualified(node)} - {""} == said, module.code_for_node(node)
    assert compared > 10


def _base(node: cst.BaseExpression) -> cst.BaseExpression:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


SCOPES = """
import nki.isa as nisa, nki.language
from nki import language as nl
from .near import far
try:
    import numpy as np
except ImportError:
    np = None

class Grid:
    nl = 1
    def inside(self):
        return nl.ds

def kernel(x, range=range):
    def helper(nisa):
        return nisa.dma_copy + y + sum
    y = [nl.exp for nl in x]
    z = [w for w in x if (found := w)]
    global counted
    return nl.exp, nisa.dma_copy, nki.language.ds, far.far, np.exp, helper, sum, range, unknown, found, (lambda: z)
"""


def test_scopes_are_those_of_python() -> None:
    module = cst.parse_module(SCOPES)
    scopes = Scopes(module)
    functions = {node.name.value: node for node in descendants(module) if isinstance(node, cst.FunctionDef)}
    statement = functions["kernel"].body.body[-1]
    assert isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Return)
    returned = statement.body[0].value
    assert isinstance(returned, cst.Tuple)
    said = {module.code_for_node(e.value): scopes.qualified(e.value) for e in returned.elements}
    assert said == {
        "nl.exp": "nki.language.exp",
        "nisa.dma_copy": "nki.isa.dma_copy",
        "nki.language.ds": "nki.language.ds",
        "far.far": ".near.far.far",
        "np.exp": "",
        "helper": "",
        "sum": "builtins.sum",
        "range": "",
        "unknown": "",
        "found": "",
        "(lambda: z)": "",
    }
    in_class = next(node for node in descendants(functions["inside"]) if isinstance(node, cst.Attribute))
    assert scopes.qualified(in_class) == "nki.language.ds", "a function does not see the names of its class"
    in_helper = next(node for node in descendants(functions["helper"]) if isinstance(node, cst.Attribute))
    assert scopes.qualified(in_helper) == ""
    assert scopes.captured(functions["kernel"]) == {"y", "z", "counted", "found"}
