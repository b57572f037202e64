"""Let the Tensor engine add up the products of a loop in PSUM, instead of adding each to a tile in SBUF.

memset(total, 0.0)                              product = ndarray(psum)
for k in ...:                                   for k in ...:
    product = ndarray(psum)              ->         nc_matmul(product, ...)
    nc_matmul(product, ...)                     tensor_copy(dst=total, src=product)
    tensor_tensor(total, total + product)

nc_matmul adds to what it wrote before (NKI's documentation of nc_matmul, accumulation in PSUM). Both sums are
made in float32, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, NotOfItsKind, Site
from accelopt_core.transforms.declared import declared_shape
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform, parts_written, written_by
from accelopt_core.transforms.plain_names import made_beside, made_once
from accelopt_core.transforms.private_tile import is_float32
from accelopt_core.transforms.syntax import loaded_names, parsed_statement


@dataclass(frozen=True)
class _Sum:
    memset: Statement
    loop: Statement
    allocation: Statement
    """Of the product, in the loop."""
    addition: Statement
    product: str


class AccumulateInPsum(InstructionTransform[_Sum]):
    name = "accumulate-in-psum"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.WAITING})
    gone = "adds no tile to one"

    def describe(self) -> str:
        return "Add up the matrix products of a loop in PSUM, where it is free, instead of in SBUF with tensor_tensor."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        for total, addition in written_by(code, "tensor_tensor"):
            if total in _operands(code, addition):
                yield total, addition

    def passed_over(self, code: KernelCode) -> Iterator[tuple[str, Statement, str]]:
        for text, addition, why in parts_written(code, "tensor_tensor"):
            operands = [code.argument(addition, keyword) for keyword in ("data1", "data2")]
            if text in [code.module.code_for_node(operand) for operand in operands if operand is not None]:
                yield text, addition, why

    def check(self, code: KernelCode, key: str, instruction: Statement) -> _Sum:
        return _plan(code, key, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: _Sum) -> Site:
        return Site(
            self.name,
            key,
            f"add up {key} in PSUM, in {found.product}",
            instruction.line,
            f"{key} starts at zero, and the loop only adds to it what one nc_matmul leaves in {found.product}",
            "the Tensor engine adds as it multiplies; the Vector engine copies once and adds nothing",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: _Sum) -> cst.Module:
        assert found.loop.body is not None and instruction.call is not None
        assert isinstance(instruction.call.func, cst.Attribute) and isinstance(found.loop.node, cst.For)
        isa = code.module.code_for_node(instruction.call.func.value)
        moved = (found.allocation.node, instruction.node)
        inside = [node for node in found.loop.body.node.body if node not in moved]
        loop = found.loop.node.with_changes(body=found.loop.body.node.with_changes(body=inside))
        copy = parsed_statement(f"{isa}.tensor_copy(dst={key}, src={found.product})")
        body: list[cst.BaseStatement] = []
        for child in found.loop.block.node.body:
            if child is found.loop.node:
                body += [found.allocation.node, loop, copy]
            elif child is not found.memset.node:
                body.append(child)
        block = found.loop.block.node
        return code.changed({block: block.with_changes(body=body)})


def _operands(code: KernelCode, addition: Statement) -> list[str]:
    found = [code.argument(addition, keyword) for keyword in ("data1", "data2")]
    return [value.value for value in found if isinstance(value, cst.Name)]


def _plan(code: KernelCode, total: str, addition: Statement) -> _Sum:
    """Raises IllegalSite."""
    op = code.argument(addition, "op")
    if op is None or code.qualified(op) != "nki.language.add":
        raise NotOfItsKind("PSUM can only add up")
    assert addition.call is not None
    if not isinstance(addition.call.func, cst.Attribute):
        raise IllegalSite(f"line {addition.line}: the name of nki.isa is not at hand")
    products = [name for name in _operands(code, addition) if name != total]
    if len(products) != 1:
        raise IllegalSite(f"line {addition.line} does not add one whole tile to {total}")
    (product,) = products
    if {total, product} & code.captured:
        raise IllegalSite(f"{total} or {product} is used by a nested function or declared global")
    loop = addition.block.owner
    if loop is None or loop.kind is not Kind.LOOP or loop.leaves or loop.body is None:
        raise IllegalSite(f"{total} is not added up in a loop that runs to its end")
    allocation = made_beside(code, product, addition)
    if allocation.region != "psum" or not is_float32(code, cst.Name(product)):
        raise IllegalSite(f"{product} is not a float32 tile of PSUM made in the loop")
    if loaded_names(allocation.node) & loop.binds:
        raise IllegalSite(f"the shape of {product} changes from one iteration to the next")
    writers = [s for s in code.statements() if s.body is None and product in s.uses and s is not addition]
    if len(writers) != 1 or writers[0].operation != "nc_matmul" or writers[0].block is not loop.body:
        raise IllegalSite(f"{product} is not written by one nc_matmul and read by this addition alone")
    matmul = writers[0]
    dst = code.argument(matmul, "dst", 0)
    if not isinstance(dst, cst.Name) or dst.value != product:
        raise IllegalSite(f"the nc_matmul on line {matmul.line} does not write the whole of {product}")
    if code.argument(matmul, "accumulate") is not None or code.argument(matmul, "is_transpose") is not None:
        raise IllegalSite(f"the nc_matmul on line {matmul.line} says itself whether it accumulates")
    order = loop.body.statements
    if not order.index(allocation) < order.index(matmul) < order.index(addition):
        raise IllegalSite(f"{product} is added before it is computed")
    return _Sum(_memset(code, total, product, loop, addition), loop, allocation, addition, product)


def _memset(code: KernelCode, total: str, product: str, loop: Statement, addition: Statement) -> Statement:
    """What sets the sum to zero, right before the loop."""
    made, product_made = made_beside(code, total, loop), made_once(code, product)
    if made.region != "sbuf" or not is_float32(code, cst.Name(total)):
        raise IllegalSite(f"{total} is not a float32 tile of SBUF made beside the loop")
    shapes = [declared_shape(code, allocation) for allocation in (made, product_made)]
    if shapes[0] != shapes[1] or not shapes[0]:
        raise IllegalSite(f"{total} and {product} are not declared with the same shape")
    order = loop.block.statements
    before = [s for s in order[: order.index(loop)] if total in s.uses]
    if len(before) != 1 or before[0].operation != "memset":
        raise IllegalSite(f"{total} is not just set to zero before the loop")
    value = code.argument(before[0], "value", 1)
    if not isinstance(value, (cst.Integer, cst.Float)) or float(value.evaluated_value) != 0.0:
        raise IllegalSite(f"{total} does not start at zero")
    whole = code.argument(before[0], "dst", 0)
    if not isinstance(whole, cst.Name):
        raise IllegalSite(f"line {before[0].line} sets a part of {total}")
    users = [s for s in loop.walk() if s.body is None and total in s.uses]
    if users != [addition]:
        raise IllegalSite(f"the loop uses {total} otherwise too")
    return before[0]
