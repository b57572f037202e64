"""Let the Scalar engine add up a row while it writes it, instead of reading the row again to add it up.

activation(dst=w, op=exp, data=x)          activation(dst=w, op=exp, data=x,
tensor_reduce(dst=t, op=add, data=w)   ->             reduce_op=add, reduce_res=t,
                                                      reduce_cmd=reset_reduce)

A tile times itself, tensor_tensor(dst=w, data1=x, data2=x, op=multiply), is such an activation too: op=square.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, NotPlain, Site
from accelopt_core.transforms.declared import declared_dtype
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform, counted
from accelopt_core.transforms.operand_access import AccessReader, arguments_of, base_name
from accelopt_core.transforms.syntax import content_names, loaded_names, parsed_expression, replace_nodes

FLOATING = frozenset({"nki.language.float32", "nki.language.bfloat16", "nki.language.float16"})
"""What the Scalar engine squares as the Vector engine multiplies."""

_Found = tuple[Statement, Statement | None]


class FuseRowSum(InstructionTransform[_Found]):
    name = "fuse-row-sum"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.WAITING})
    gone = "reduces nothing into a tile"

    def describe(self) -> str:
        return "Sum a row within the activation that produces it, instead of with a tensor_reduce of its own."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        return counted(_reductions(code))

    def check(self, code: KernelCode, key: str, instruction: Statement) -> _Found:
        return _plan(code, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: _Found) -> Site:
        producer, _ = found
        return Site(
            self.name,
            key,
            f"sum {key} within the activation on line {producer.line}",
            instruction.line,
            "the activation writes the whole row that is summed, and nothing changes or needs it in between",
            "the Vector engine does not read the row again; the Scalar engine adds it up as it goes",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: _Found) -> cst.Module:
        producer, allocation = found
        old, call = producer.call, _as_activation(code, producer)
        assert old is not None and call is not None and isinstance(call.func, cst.Attribute)
        isa = code.module.code_for_node(call.func.value)
        given = arguments_of(instruction)
        fused = call.with_changes(
            args=[
                *call.args,
                _keyword("reduce_op", given["op"]),
                _keyword("reduce_res", given["dst"]),
                _keyword("reduce_cmd", parsed_expression(f"{isa}.reduce_cmd.reset_reduce")),
            ]
        )
        producer_node = replace_nodes(producer.node, {old: fused})
        block = instruction.block.node
        earlier = [allocation.node] if allocation is not None else []
        body: list[cst.CSTNode] = []
        for child in block.body:
            if child is producer.node:
                body += [*earlier, producer_node]
            elif child is not instruction.node and child not in earlier:
                body.append(child)
        return code.changed({block: block.with_changes(body=body)})


def _reductions(code: KernelCode) -> Iterator[tuple[str, Statement]]:
    for statement in code.statements():
        if statement.kind is Kind.INSTRUCTION and statement.operation == "tensor_reduce":
            dst = code.argument(statement, "dst", 0)
            if dst is not None and base_name(dst):
                yield base_name(dst), statement


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    none = cst.SimpleWhitespace("")
    return cst.Arg(value, keyword=cst.Name(name), equal=cst.AssignEqual(none, none))


def _plan(code: KernelCode, reduction: Statement) -> tuple[Statement, Statement | None]:
    """The activation to fuse into, and the allocation of the sum, if it has to come earlier. Raises IllegalSite."""
    given = arguments_of(reduction)
    if not set(given) <= {"dst", "op", "data", "axis", "keepdims"} or "data" not in given:
        raise IllegalSite(f"the tensor_reduce on line {reduction.line} does more than sum")
    if "op" not in given or code.qualified(given["op"]) != "nki.language.add":
        raise IllegalSite("an activation can only add up what it writes")
    row, total = given["data"], given["dst"]
    access = AccessReader(code).access(row, reduction)
    if _axes(given.get("axis"), len(access.kept)) != set(range(1, len(access.kept))):
        raise IllegalSite("the sum is not over axis 1, or not over all of a row")
    name = base_name(total)
    if {name, access.name} & code.captured:
        raise IllegalSite(f"{name} or {access.name} is used by a nested function or declared global")
    order = reduction.block.statements
    last = order.index(reduction)
    changing = [s for s in order[:last] if code.roots_of(frozenset({access.name})) & code.changed_by(s)]
    producer = changing[-1] if changing else reduction
    activation = _as_activation(code, producer)
    if activation is None:
        raise IllegalSite(f"{access.name} is not written by one activation in the same block")
    made = arguments_of(producer)
    if producer.operation != "activation":
        for squared in code.allocations_of(made["data1"]) or [producer]:
            if squared is producer or declared_dtype(code, squared) not in FLOATING:
                raise NotPlain(f"whether line {producer.line} squares numbers of a floating-point dtype does not show")
    if any(keyword in made for keyword in ("reduce_op", "reduce_res", "reduce_cmd")):
        raise IllegalSite(f"the activation on line {producer.line} reduces something already")
    if "dst" not in made or not made["dst"].deep_equals(row) or not isinstance(activation.func, cst.Attribute):
        raise IllegalSite(f"the sum is not over a whole tile that the activation on line {producer.line} writes")
    first = order.index(producer)
    needed = loaded_names(row) | loaded_names(total)
    allocation: Statement | None = None
    for between in order[first:last]:
        if between.kind is Kind.ALLOCATE and between.binds == {name} and len(code.bindings(name)) == 1:
            allocation = between
        elif between.binds & needed or code.roots_of(frozenset({name})) & code.roots_of(between.uses | between.written):
            raise IllegalSite(f"{name} is used, or what it is a part of changes, on line {between.line}")
    if allocation is not None:
        made_inside = frozenset[str]().union(*(s.binds for s in order[first : order.index(allocation)]))
        if made_inside & content_names(allocation.node):
            raise IllegalSite(f"the allocation of {name} needs something made after the activation")
    return producer, allocation


def _as_activation(code: KernelCode, producer: Statement) -> cst.Call | None:
    """The call of an activation; of a tile times itself, the activation that does the same."""
    if producer.operation == "activation" or producer.call is None:
        return producer.call if producer.operation == "activation" else None
    given = arguments_of(producer) if producer.operation == "tensor_tensor" else {}
    if set(given) - {"engine"} != {"dst", "data1", "data2", "op"} or not given["data1"].deep_equals(given["data2"]):
        return None
    op = given["op"]
    if code.qualified(op) != "nki.language.multiply" or not isinstance(op, cst.Attribute):
        return None
    if not isinstance(producer.call.func, cst.Attribute):
        return None
    text = code.module.code_for_node
    made = parsed_expression(
        f"{text(producer.call.func.value)}.activation(dst={text(given['dst'])}, op={text(op.value)}.square, "
        f"data={text(given['data1'])})"
    )
    assert isinstance(made, cst.Call)
    return made


def _axes(axis: cst.BaseExpression | None, rank: int) -> set[int]:
    """Counted from the front; empty where that does not show."""
    if isinstance(axis, (cst.Tuple, cst.List)):
        return set[int]().union(*(_axes(element.value, rank) for element in axis.elements))
    if isinstance(axis, cst.UnaryOperation) and isinstance(axis.operator, cst.Minus):
        return {rank - each for each in _axes(axis.expression, rank)}
    return {axis.evaluated_value} if isinstance(axis, cst.Integer) else set()
