"""Which of a kernel's arguments its stores may reach: addresses followed through the IR."""

from __future__ import annotations

from nki_optimizer_triton.ir.types import Descriptor, Function, Module, Operation, Region, Scalar, operations_in

_WRITES = {
    "tt.store": 0, "tt.atomic_store": 0, "tt.atomic_rmw": 0, "tt.atomic_cas": 0, "tt.descriptor_store": 0,
    "tt.descriptor_scatter": 0, "tt.descriptor_reduce": 0,
}  # fmt: skip


def written_arguments(module: Module) -> frozenset[int]:
    """Numbers of the kernel's parameters of which an address may be made that something is written to."""
    functions = {function.name: function for function in module.functions}
    kernel = module.kernel
    origins: dict[str, dict[str, frozenset[int]]] = {name: {} for name in functions}
    for number, (name, type_) in enumerate(kernel.arguments):
        if isinstance(type_, Descriptor) or (isinstance(type_, Scalar) and not isinstance(type_.element, str)):
            origins[kernel.name][name] = frozenset([number])
    written: set[int] = set()
    while True:
        before = _size(origins)
        for function in module.functions:
            _follow(function, functions, origins)
        if _size(origins) == before:
            break
    for function in module.functions:
        known = origins[function.name]
        for operation in operations_in(function.body):
            if operation.name in _WRITES:
                written |= known.get(operation.operands[_WRITES[operation.name]], frozenset())
    return frozenset(written)


def _size(origins: dict[str, dict[str, frozenset[int]]]) -> int:
    return sum(len(each) for known in origins.values() for each in known.values())


def _follow(function: Function, functions: dict[str, Function], origins: dict[str, dict[str, frozenset[int]]]) -> None:
    known = origins[function.name]

    def join(name: str, *others: str) -> None:
        known[name] = known.get(name, frozenset()).union(*(known.get(other, frozenset()) for other in others))

    blocks = dict(function.body.blocks)
    for operation in operations_in(function.body):
        for result in operation.results:
            if operation.name != "tt.load":  # what lies in memory is no address of an argument, unless it is a table
                join(result, *operation.operands)
        _into_regions(operation, join)
        for successor in operation.successors:
            for (name, _), value in zip(blocks[successor.label].arguments, successor.operands):
                join(name, value)
        if operation.name == "tt.call":
            called = functions[next(word[1:] for word in operation.words if word.startswith("@"))]
            theirs = origins[called.name]
            for (name, _), value in zip(called.arguments, operation.operands):
                theirs[name] = theirs.get(name, frozenset()) | known.get(value, frozenset())
            for inner in operations_in(called.body):
                if inner.name == "tt.return":
                    for result, value in zip(operation.results, inner.operands):
                        known[result] = known.get(result, frozenset()) | theirs.get(value, frozenset())


def _into_regions(operation: Operation, join: object) -> None:
    """What a loop carries, and what branches and loops yield."""
    assert callable(join)
    carried = operation.operands[3:] if operation.name == "scf.for" else operation.operands
    for region in operation.regions:
        arguments = [name for name, _ in region.entry.arguments]
        if operation.name == "scf.for":
            arguments = arguments[1:]
        for name, value in zip(arguments, carried):
            join(name, value)
        last = _last(region)
        yielded = last.operands[1:] if last.name == "scf.condition" else last.operands
        if operation.name in ("scf.for", "scf.if", "scf.while"):
            for result, value in zip(operation.results, yielded):
                join(result, value)
        if operation.name == "scf.for":
            for name, value in zip(arguments, yielded):
                join(name, value)
    if operation.name == "scf.while":
        first, second = operation.regions
        handed, back = _last(first).operands[1:], _last(second).operands
        for (name, _), value in zip(second.entry.arguments, handed):
            join(name, value)
        for (name, _), value in zip(first.entry.arguments, back):
            join(name, value)


def _last(region: Region) -> Operation:
    return region.entry.operations[-1]
