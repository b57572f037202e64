"""Let the Scalar engine add up a row while it writes it, instead of reading the row again to add it up.

activation(dst=w, op=exp, data=x)          activation(dst=w, op=exp, data=x,
tensor_reduce(dst=t, op=add, data=w)   ->             reduce_op=add, reduce_res=t,
                                                      reduce_cmd=reset_reduce)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accelopt_core.evaluation import Cause
from accelopt_core.transforms.base import IllegalSite, Site
from accelopt_core.transforms.kernel_code import KernelCode, Statement, content_names, replace_nodes
from accelopt_core.transforms.one_instruction import InstructionTransform, parts_written, written_by
from accelopt_core.transforms.plain_names import made_beside


class FuseRowSum(InstructionTransform[tuple[Statement, Statement]]):
    name = "fuse-row-sum"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.WAITING})
    gone = "reduces nothing into a tile"

    def describe(self) -> str:
        return "Sum a row within the activation that produces it, instead of with a tensor_reduce of its own."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        return written_by(code, "tensor_reduce")

    def passed_over(self, code: KernelCode) -> Iterator[tuple[str, Statement, str]]:
        return parts_written(code, "tensor_reduce")

    def check(self, code: KernelCode, key: str, instruction: Statement) -> tuple[Statement, Statement]:
        return _plan(code, key, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: tuple[Statement, Statement]) -> Site:
        producer, _ = found
        return Site(
            self.name,
            key,
            f"sum {key} within the activation on line {producer.line}",
            instruction.line,
            "the activation writes the whole row that is summed, and nothing changes or needs it in between",
            "the Vector engine does not read the row again; the Scalar engine adds it up as it goes",
        )

    def rewritten(
        self, code: KernelCode, key: str, instruction: Statement, found: tuple[Statement, Statement]
    ) -> cst.Module:
        producer, allocation = found
        call = producer.call
        assert call is not None and isinstance(call.func, cst.Attribute)
        isa = code.module.code_for_node(call.func.value)
        op, dst = code.argument(instruction, "op"), code.argument(instruction, "dst", 0)
        assert op is not None and dst is not None
        fused = call.with_changes(
            args=[
                *call.args,
                _keyword("reduce_op", op),
                _keyword("reduce_res", dst),
                _keyword("reduce_cmd", cst.parse_expression(f"{isa}.reduce_cmd.reset_reduce")),
            ]
        )
        producer_node = replace_nodes(producer.node, {call: fused})
        block = instruction.block.node
        body: list[cst.CSTNode] = []
        for child in block.body:
            if child is producer.node:
                body += [allocation.node, producer_node]
            elif child is not instruction.node and child is not allocation.node:
                body.append(child)
        return code.changed({block: block.with_changes(body=body)})


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    none = cst.SimpleWhitespace("")
    return cst.Arg(value, keyword=cst.Name(name), equal=cst.AssignEqual(none, none))


def _plan(code: KernelCode, name: str, reduction: Statement) -> tuple[Statement, Statement]:
    """The activation to fuse into, and the allocation of the sum. Raises IllegalSite."""
    keywords = {arg.keyword.value if arg.keyword is not None else "" for arg in reduction.call.args}  # type: ignore[union-attr]  # an instruction has a call
    if not keywords <= {"dst", "op", "data", "axis"}:
        raise IllegalSite(f"the tensor_reduce on line {reduction.line} does more than sum")
    op, data, axis = (code.argument(reduction, keyword) for keyword in ("op", "data", "axis"))
    if op is None or code.qualified(op) != "nki.language.add":
        raise IllegalSite("an activation can only add up what it writes")
    if not isinstance(axis, cst.Integer) or axis.evaluated_value != 1:
        raise IllegalSite("the sum is not over axis 1")
    if not isinstance(data, cst.Name):
        raise IllegalSite("the sum is not over a whole tile")
    shape = code.argument(made_beside(code, data.value, reduction), "shape", 0)
    if not isinstance(shape, cst.Tuple) or len(shape.elements) != 2:
        raise IllegalSite(f"{data.value} is not two-dimensional")
    writers = code.writers(data.value)
    if len(writers) != 1 or writers[0].operation != "activation" or writers[0].block is not reduction.block:
        raise IllegalSite(f"{data.value} is not written by one activation in the same block")
    (producer,) = writers
    for keyword in ("reduce_op", "reduce_res", "reduce_cmd"):
        if code.argument(producer, keyword) is not None:
            raise IllegalSite(f"the activation on line {producer.line} reduces something already")
    dst = code.argument(producer, "dst")
    if not isinstance(dst, cst.Name) or not isinstance(producer.call.func, cst.Attribute):  # type: ignore[union-attr]  # as above
        raise IllegalSite(f"the activation on line {producer.line} does not write the whole of {data.value}")
    allocation = made_beside(code, name, reduction)
    order = reduction.block.statements
    first, last = order.index(producer), order.index(reduction)
    if first > last or code.writers(name) != [reduction]:
        raise IllegalSite(f"{name} is written elsewhere, or before its row")
    made_inside = frozenset().union(*(s.binds for s in order[first : order.index(allocation)]))
    if made_inside & content_names(allocation.node):
        raise IllegalSite(f"the allocation of {name} needs something made after the activation")
    return producer, allocation
