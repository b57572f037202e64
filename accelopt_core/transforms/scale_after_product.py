"""Scale the rows of a product instead of the rows of what is multiplied: softmax divides once, at the end.

tensor_scalar(dst=w, data=e, op0=multiply, operand0=s)
nc_transpose(dst=t, data=w[:, part])                       nc_transpose(dst=t, data=e[:, part])
tensor_copy(dst=u, src=t)                            ->    tensor_copy(dst=u, src=t)
nc_matmul(dst=p, stationary=u, moving=v)                   nc_matmul(dst=p, stationary=u, moving=v)
tensor_copy(dst=out, src=p)                                tensor_scalar(dst=out, data=p, op0=multiply, operand0=s)

s holds one number for each partition of w, which is a row of the product: (s w) v = s (w v). The product is the
narrower of the two, and it need not wait for s. What is rounded changes; verification decides whether that is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, NotOfItsKind, Site
from accelopt_core.transforms.declared import declared_dtype, declared_shape
from accelopt_core.transforms.index_algebra import number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform, written_by
from accelopt_core.transforms.operand_access import AccessReader, Dim, arguments_of
from accelopt_core.transforms.plain_names import made_beside, made_once
from accelopt_core.transforms.private_tile import is_float32, without
from accelopt_core.transforms.syntax import content_names, name_nodes, parsed_expression


@dataclass(frozen=True)
class _Scaling:
    allocation: Statement
    data: str
    transposes: tuple[Statement, ...]
    product: str
    evacuation: Statement
    """The copy of the product out of PSUM."""


class ScaleAfterProduct(InstructionTransform[_Scaling]):
    name = "scale-after-product"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.WAITING, Cause.TRANSPOSES})
    gone = "scales nothing into a tile"

    def describe(self) -> str:
        return "Scale the rows of a product instead of the rows of its operand: divide once, after the second product."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        return written_by(code, "tensor_scalar")

    def check(self, code: KernelCode, key: str, instruction: Statement) -> _Scaling:
        return _plan(code, key, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: _Scaling) -> Site:
        return Site(
            self.name,
            key,
            f"scale {found.product} (line {found.evacuation.line}) instead of {key}",
            instruction.line,
            f"{key} is only turned and multiplied into {found.product}, one row for each of its partitions",
            "the product is narrower than what is multiplied, and the Tensor engine need not wait for the scale",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: _Scaling) -> cst.Module:
        given, copied = arguments_of(instruction), arguments_of(found.evacuation)
        call = found.evacuation.call
        assert call is not None and isinstance(call.func, cst.Attribute)
        text = code.module.code_for_node
        engine = f", engine={text(copied['engine'])}" if "engine" in copied else ""
        scaled = parsed_expression(
            f"{text(call.func.value)}.tensor_scalar(dst={text(copied['dst'])}, data={text(copied['src'])}, "
            f"op0={text(given['op0'])}, operand0={text(given['operand0'])}{engine})"
        )
        changes: dict[cst.CSTNode, cst.CSTNode] = {call: scaled}
        for transpose in found.transposes:
            for node in name_nodes(transpose.node):
                if node.value == key:
                    changes[node] = node.with_changes(value=found.data)
        return without(code, instruction.block, [found.allocation, instruction], changes)


def _plan(code: KernelCode, name: str, scaling: Statement) -> _Scaling:
    """Raises IllegalSite."""
    given = arguments_of(scaling)
    readers = _users(code, name, scaling)
    if not any(reader.operation == "nc_transpose" for reader in readers):
        raise NotOfItsKind(f"{name} is not turned by an nc_transpose")
    data, scale = given.get("data"), given.get("operand0")
    if set(given) - {"engine"} != {"dst", "data", "op0", "operand0"}:
        raise IllegalSite(f"the tensor_scalar on line {scaling.line} does more than one step")
    if code.qualified(given["op0"]) != "nki.language.multiply" or not isinstance(scale, cst.Name):
        raise IllegalSite(f"line {scaling.line} does not multiply by a tile of one number for each partition")
    if not isinstance(data, cst.Name) or data.value == name or not is_float32(code, scale):
        raise IllegalSite(f"line {scaling.line} does not scale a whole tile into another by float32 numbers")
    made, origin = made_beside(code, name, scaling), made_beside(code, data.value, scaling)
    if declared_dtype(code, made) != declared_dtype(code, origin) or not declared_dtype(code, made):
        raise IllegalSite(f"{name} and {data.value} are not declared with the same dtype")
    if declared_shape(code, made) != declared_shape(code, origin) or origin.region != made.region:
        raise IllegalSite(f"{name} and {data.value} are not of one shape in one memory")
    _check_done(code, data.value, scaling)
    _check_done(code, scale.value, scaling)
    products = {product for reader in readers for product in _products(code, name, reader)}
    if len(products) != 1:
        raise IllegalSite(f"{name} goes into {len(products)} products")
    (product,) = products
    evacuation = _evacuation(code, product, scaling)
    multiplied = {_stationary(code, s) for s in code.writers(product)}
    if multiplied != {tile for reader in readers for tile in _copies(code, name, reader)}:
        raise IllegalSite(f"{product} sums up more than products of {name}")
    return _Scaling(made, data.value, tuple(readers), product, evacuation)


def _users(code: KernelCode, name: str, *but: Statement) -> list[Statement]:
    """Instructions and others that read or write it, its making apart."""
    return [
        s
        for s in code.statements()
        if s.body is None and s.kind is not Kind.ALLOCATE and s not in but and name in code.roots_of(s.uses | s.written)
    ]


def _check_done(code: KernelCode, name: str, at: Statement) -> None:
    """Nothing writes it from there on, until it is made anew. Raises IllegalSite."""
    made = made_once(code, name)
    if made.block is not at.block or name in code.captured:
        raise IllegalSite(f"{name} is not made beside line {at.line}, or a nested function uses it")
    for writer in code.writers(name):
        if writer.line > at.line:
            raise IllegalSite(f"{name} is written again on line {writer.line}")


def _copies(code: KernelCode, name: str, transpose: Statement) -> list[str]:
    """The tiles of SBUF that hold what a transpose turns. Raises IllegalSite."""
    given = arguments_of(transpose)
    data, dst = given.get("data"), given.get("dst")
    if transpose.operation != "nc_transpose" or data is None or not isinstance(dst, cst.Name):
        raise IllegalSite(f"line {transpose.line} does more with {name} than turn it")
    access = AccessReader(code).access(data, transpose)
    if access.name != name or access.dims[0] != Dim(number(0), access.sizes[0]):
        raise IllegalSite(f"line {transpose.line} does not turn all partitions of {name}")
    made_beside(code, dst.value, transpose)
    found = []
    for copy in _users(code, dst.value, transpose):
        target = code.argument(copy, "dst", 0)
        src = code.argument(copy, "src", 1)
        whole = isinstance(src, cst.Name) and src.value == dst.value and isinstance(target, cst.Name)
        if copy.operation != "tensor_copy" or not whole or copy.block is not transpose.block:
            raise IllegalSite(f"{dst.value} is not just copied as it is (line {copy.line})")
        assert isinstance(target, cst.Name)
        made_beside(code, target.value, copy)
        found.append(target.value)
    return found


def _products(code: KernelCode, name: str, transpose: Statement) -> set[str]:
    """The tiles of PSUM into which the turned tile is multiplied. Raises IllegalSite."""
    found = set()
    for tile in _copies(code, name, transpose):
        for product in _users(code, tile):
            if product.operation == "tensor_copy" and tile in code.changed_by(product):
                continue
            dst = code.argument(product, "dst", 0)
            moving = code.argument(product, "moving", 2)
            if product.operation != "nc_matmul" or _stationary(code, product) != tile or not isinstance(dst, cst.Name):
                raise IllegalSite(f"{tile} is not just the stationary operand of a product (line {product.line})")
            if moving is None or tile in content_names(moving):
                raise IllegalSite(f"line {product.line} multiplies {tile} with itself")
            found.add(dst.value)
    return found


def _stationary(code: KernelCode, product: Statement) -> str:
    value = code.argument(product, "stationary", 1)
    return value.value if isinstance(value, cst.Name) else ""


def _evacuation(code: KernelCode, product: str, scaling: Statement) -> Statement:
    """The one copy that reads the product, after all of it is summed up. Raises IllegalSite."""
    made_beside(code, product, scaling)
    writers = code.writers(product)
    readers = [user for user in _users(code, product) if user not in writers]
    if len(readers) != 1 or readers[0].operation != "tensor_copy" or readers[0].block is not scaling.block:
        raise IllegalSite(f"{product} is not read by one copy alone")
    (copy,) = readers
    given = arguments_of(copy)
    if set(given) - {"engine"} != {"dst", "src"} or not isinstance(given["src"], cst.Name):
        raise IllegalSite(f"line {copy.line} does more than copy {product}")
    if any(writer.line > copy.line for writer in writers) or copy.line < scaling.line:
        raise IllegalSite(f"line {copy.line} copies {product} before it is summed up")
    return copy
