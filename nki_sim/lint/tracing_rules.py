"""Rules of NKI 0.7, which runs a kernel's Python and records its calls: what has no value then, is gone, or is new.

Sources: NKI 0.6 to 0.7 migration page, loops, NkiScalar and tiles pages of SDK 2.33. Where those are silent, the rule
warns.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from nki_sim.lint.device_values import Body, DeviceValues, Held, values_of
from nki_sim.lint.findings import LAST_PARSED, VERSIONS
from nki_sim.lint.kernel_source import KernelSource
from nki_sim.lint.name_rules import keywords_of, nki_names
from nki_sim.lint.rules import Found, rule

FIRST: dict[str, str] = {
    **{f"nki.isa.{name}": "0.7" for name in ("NkiScalar", "scalar_load", "scalar_store")},
    **{
        f"nki.language.{name}": "0.7"
        for name in (
            "NkiBlockGrid", "NkiGrid", "NkiTileGrid", "alloc_blocks", "alloc_tiles", "blocks", "int64", "tiles",
            "uint64",
        )
    },
    "nki.language.fori_loop": "0.6",
    "nki.language.while_loop": "0.6",
}  # fmt: skip
"""By dotted name: the first version that has it."""

LAST: dict[str, str] = {
    "nki.language.par_dim": "0.2",
    "nki.language.dynamic_range": "0.5",
    "nki.language.affine_range": "0.6",
    "nki.language.sequential_range": "0.6",
    "nki.language.static_range": "0.6",
}
"""By dotted name: the last version that neither lacks nor deprecates it."""


def current_in(name: str, versions: Iterable[str]) -> bool:
    """Is a name there, and not deprecated, in all of these versions?"""
    first, last = VERSIONS.index(FIRST.get(name, VERSIONS[0])), VERSIONS.index(LAST.get(name, VERSIONS[-1]))
    return all(first <= VERSIONS.index(version) <= last for version in versions)


# --- loops ------------------------------------------------------------------------------------------


@rule("0.7", severity="warning")
def deprecated_ranges(source: KernelSource) -> Found:
    for node, module, name in nki_names(source):
        if LAST.get(f"{module}.{name}") == LAST_PARSED:
            yield node, f"nl.{name} is deprecated: all three are Python's range", "range(...)"


@rule("0.7")
def removed_device_loops(source: KernelSource) -> Found:
    for node, module, name in nki_names(source):
        if module == "nki.language" and name == "dynamic_range":
            yield node, "nl.dynamic_range was removed", "nl.fori_loop(lower, upper, body_fun, step)"
    for loop in _register_whiles(source):
        yield (
            loop,
            "`while register:` was removed",
            "nl.while_loop(register, body_fun), which returns the next condition",
        )


@rule("0.6", until=LAST_PARSED, severity="warning")
def deprecated_device_loops(source: KernelSource) -> Found:
    for node, module, name in nki_names(source):
        if module == "nki.language" and name == "dynamic_range":
            yield node, "nl.dynamic_range is deprecated", "nl.fori_loop(lower, upper, body)"
    for loop in _register_whiles(source):
        yield loop, "`while register:` is deprecated", "nl.while_loop(register, body_fun)"


def _register_whiles(source: KernelSource) -> Iterator[ast.While]:
    values = values_of(source)
    for node in source.in_kernels():
        if isinstance(node, ast.While) and isinstance(node.test, ast.Name):
            held = values.of(node.test)
            if held is not None and held.on_device:
                yield node


@rule("0.7")
def device_loop_result(source: KernelSource) -> Found:
    """A body is traced once: what it binds is the trace's, and no pass of the device's."""
    values = values_of(source)
    hint = "allocate the tensor before the loop and write it in place"
    for body in values.bodies:
        for name in sorted(values.outer_names(body.function)):
            yield body.function, f"the body of a device loop binds {name}, which is read outside of it", hint
    whiles = set(_register_whiles(source))
    for function in source.kernel_code:
        for node in ast.walk(function):
            if node in whiles or (isinstance(node, ast.For) and _is_dynamic(source, node.iter)):
                assert isinstance(node, (ast.For, ast.While))
                later = [each for each in ast.walk(function) if _line(each) > (node.end_lineno or node.lineno)]
                bound = _stored(each for part in node.body for each in ast.walk(part))
                for name in sorted((bound & _loaded(later)) - _stored(later)):
                    yield node, f"a device loop binds {name}, which is read after it", hint


def _is_dynamic(source: KernelSource, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and source.dotted(node.func) == "nki.language.dynamic_range"


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _stored(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


@rule("0.7", severity="warning")
def experimental_while_loop(source: KernelSource) -> Found:
    for node in source.in_kernels():
        if isinstance(node, ast.Attribute):
            name = source.dotted(node)
            if name.startswith("nki.") and name.endswith(".experimental.while_loop"):
                yield node, f"{name} is the name of NKI 0.6's documentation", "nl.while_loop"


@rule("0.7", severity="warning")
def counter_is_no_register(source: KernelSource) -> Found:
    """From 0.7 a loop's index is an NkiScalar, unless a bound is a register."""
    values = values_of(source)
    for body in values.bodies:
        if not body.loop.endswith(".fori_loop") or values.counter(body).kind == "register":
            continue
        for node in _asks_for_register(source, body):
            yield (
                node,
                "the index of nl.fori_loop is an NkiScalar where no bound is a register",
                "take NkiScalar as well as VirtualRegister",
            )


def _asks_for_register(source: KernelSource, body: Body) -> Iterator[ast.AST]:
    def is_register(node: ast.AST | None) -> bool:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value.endswith("VirtualRegister")
        return node is not None and source.dotted(node).endswith(".VirtualRegister")

    arguments = body.function.args.args
    if arguments and is_register(arguments[0].annotation):
        yield arguments[0]
    for node in ast.walk(body.function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            kinds = node.args[1].elts if len(node.args) > 1 and isinstance(node.args[1], ast.Tuple) else node.args[1:]
            if any(map(is_register, kinds)) and len(kinds) == 1:
                yield node


@rule("0.7")
def wide_loop_bound(source: KernelSource) -> Found:
    values = values_of(source)
    for call, name in source.calls():
        if name == "nki.language.fori_loop":
            for bound in [*call.args[:2], *(v for k, v in keywords_of(call).items() if k in ("lower", "upper"))]:
                held = values.of(bound)
                if held is not None and held.on_device and held.wide:
                    yield call, "an int64 scalar cannot bound a device loop", "load the bound from an int32 tile"


# --- values of the device ---------------------------------------------------------------------------


@rule("0.7")
def device_value_in_python(source: KernelSource) -> Found:
    """While a kernel is traced, a register or scalar has no value: Python cannot branch, count or index by it."""
    values = values_of(source)
    hint = "nl.fori_loop, nl.while_loop, .ap(scalar_offset=...) or .select(dim, i)"
    for node in source.in_kernels():
        for expression, where in _asked_by_python(node):
            held = _device_part(values, expression)
            if held is not None and not (isinstance(node, ast.While) and isinstance(expression, ast.Name)):
                what = "an NkiScalar" if held.kind == "scalar" else "a register"
                yield node, f"{what} {where}: it has no value while the kernel is traced", hint


def _asked_by_python(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Expressions of which Python wants to know the value."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield node.test, {"If": "in `if`", "While": "in `while`", "IfExp": "in `if`"}[type(node).__name__]
    elif isinstance(node, ast.Assert):
        yield node.test, "in `assert`"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("int", "bool", "float", "range"):
            for argument in node.args:
                yield argument, f"in {node.func.id}()"
    elif isinstance(node, ast.Subscript):
        for index in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            parts = [index.lower, index.upper, index.step] if isinstance(index, ast.Slice) else [index]
            for part in parts:
                if part is not None:
                    yield part, "as an index"


def _device_part(values: DeviceValues, node: ast.expr) -> Held | None:
    """The register or scalar on whose value an expression depends."""
    if isinstance(node, ast.BoolOp):
        return next((held for part in node.values if (held := _device_part(values, part)) is not None), None)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _device_part(values, node.operand)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(isinstance(side, ast.Constant) and side.value is None for side in sides):
            return None
        if any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            return None
        return next((held for part in sides if (held := _device_part(values, part)) is not None), None)
    held = values.of(node)
    return held if held is not None and held.on_device else None


@rule("0.7", severity="warning")
def scalar_comparison(source: KernelSource) -> Found:
    for node, held in _compared_scalars(source):
        if not held.wide:
            yield (
                node,
                "the result of comparing an NkiScalar cannot be used",
                "load a condition with nisa.register_load",
            )


@rule("0.7")
def wide_scalar_comparison(source: KernelSource) -> Found:
    for node, held in _compared_scalars(source):
        if held.wide:
            yield node, "int64 scalars cannot be compared", "load a condition with nisa.register_load"


def _compared_scalars(source: KernelSource) -> Iterator[tuple[ast.Compare, Held]]:
    values = values_of(source)
    for node in source.in_kernels():
        if isinstance(node, ast.Compare) and not any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            for side in (node.left, *node.comparators):
                held = values.of(side)
                if held is not None and held.kind == "scalar":
                    yield node, held
                    break


@rule("0.7", severity="warning")
def unlisted_scalar_operator(source: KernelSource) -> Found:
    values = values_of(source)
    for node in source.in_kernels():
        if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            for side in (node.left, node.right):
                held = values.of(side)
                if held is not None and held.kind in ("scalar", "counter"):
                    yield node, "NkiScalar has +, - and * only", "compute it on a tile, with nisa.tensor_scalar"
                    break


@rule("0.7")
def mixed_scalars(source: KernelSource) -> Found:
    values = values_of(source)
    for node in source.in_kernels():
        if isinstance(node, ast.BinOp):
            held = [values.of(side) for side in (node.left, node.right)]
            scalars = [each for each in held if each is not None and each.kind == "scalar" and each.dtype]
            if len(scalars) > 1 and scalars[0].wide != scalars[1].wide:
                yield node, "an int32 and an int64 NkiScalar in one operation", "load both from tiles of one dtype"


@rule("0.7")
def stored_constant(source: KernelSource) -> Found:
    """Such a store did nothing when traced, and only seemed to work in nki.simulate."""
    for call, name in source.calls():
        if name == "nki.isa.scalar_store":
            value = keywords_of(call).get("value", call.args[1] if len(call.args) > 1 else None)
            value = value.operand if isinstance(value, ast.UnaryOp) else value
            if isinstance(value, ast.Constant):
                yield call, "nisa.scalar_store stores an NkiScalar, not a number", "nisa.memset(dst, value=...)"


@rule("0.7")
def wide_offset_on_chip(source: KernelSource) -> Found:
    values = values_of(source)
    for node in source.in_kernels():
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        steered = values.of(node.func.value)
        offset = keywords_of(node).get("scalar_offset")
        if node.func.attr == "select":
            offset = keywords_of(node).get("index", node.args[1] if len(node.args) > 1 else None)
        held = values.of(offset) if offset is not None else None
        if held is not None and held.on_device and held.wide and steered is not None:
            if steered.buffer in ("nki.language.sbuf", "nki.language.psum"):
                yield node, "an int64 scalar is an offset into HBM only", "load it from an int32 tile"


@rule("0.7", severity="warning")
def wide_operand(source: KernelSource) -> Found:
    """The pages say so of compute instructions in passing, and nothing of memset and transfers."""
    values = values_of(source)
    for call, name in source.calls():
        module, _, short = name.rpartition(".")
        if module != "nki.isa" or short in ("memset", "scalar_load", "scalar_store") or short.startswith("dma_"):
            continue
        for argument in [*call.args, *keywords_of(call).values()]:
            held = values.of(argument)
            if held is not None and held.kind == "tensor" and held.wide:
                yield call, f"nisa.{short} on a 64-bit integer tile", "int32, or nisa.scalar_load and scalar_store"
                break


# --- tiles and blocks -------------------------------------------------------------------------------


@rule("0.7")
def grid_operand(source: KernelSource) -> Found:
    """g[i, j] is a grid of one tile, and no tensor."""
    values = values_of(source)
    for call, name in source.calls():
        if not name.startswith("nki.isa."):
            continue
        for argument in [*call.args, *keywords_of(call).values()]:
            for part in argument.elts if isinstance(argument, (ast.List, ast.Tuple)) else [argument]:
                held = values.of(part)
                if held is not None and held.kind == "grid":
                    yield part, f"{ast.unparse(part)} is a grid; nisa.{name[8:]} takes tensors", "append .data"


# --- Python and its launch --------------------------------------------------------------------------


@rule("0.7", severity="warning")
def compared_instances(source: KernelSource) -> Found:
    """Up to 0.6 the compiler compared their fields; Python compares identity."""
    classes = {node.name: node for node in source.tree.body if isinstance(node, ast.ClassDef)}
    plain = {name for name in classes if _compares_identity(name, classes)}
    made = {
        target.id
        for node in source.in_kernels()
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
        for target in node.targets
        if isinstance(target, ast.Name) and node.value.func.id in plain
    }
    for node in source.in_kernels():
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Eq, ast.NotEq)) for op in node.ops):
            sides = (node.left, *node.comparators)
            if any(isinstance(side, ast.Constant) and side.value is None for side in sides):
                continue
            if any(isinstance(side, ast.Name) and side.id in made for side in sides):
                yield (
                    node,
                    "== on instances of a class without __eq__ compares identity",
                    "give it __eq__, or @dataclass",
                )


def _compares_identity(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    node = classes.get(name)
    if node is None:
        return name in ("object", "NKIObject")
    if any(isinstance(each, ast.FunctionDef) and each.name == "__eq__" for each in node.body):
        return False
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return False
    bases = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases]
    return all(_compares_identity(base, classes) for base in bases if base != name)


@rule("0.7", severity="warning")
def bracket_launch(source: KernelSource) -> Found:
    names = {function.name for function in source.entries}
    for node in ast.walk(source.tree):
        launched = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Assign) else None
        if isinstance(launched, ast.Subscript) and isinstance(launched.value, ast.Name) and launched.value.id in names:
            if isinstance(launched.slice, (ast.Slice, ast.Tuple)):
                continue  # of an array that has the name too
            text = ast.unparse(launched)
            yield node, f"{text}(...) is being deprecated", "set NEURON_LOGICAL_NC_CONFIG, and call it without brackets"


@rule("0.7", severity="warning")
def entry_signature(source: KernelSource) -> Found:
    """Refused up to 0.6; of 0.7 no page says whether an entry may have them."""
    for function in source.entries:
        arguments = function.args
        several = [f"*{each.arg}" for each in (arguments.vararg, arguments.kwarg) if each is not None]
        only = [each.arg for each in arguments.kwonlyargs]
        lists = [
            argument.arg
            for argument, default in zip(reversed(arguments.args), reversed(arguments.defaults))
            if isinstance(default, (ast.List, ast.ListComp))
        ]
        for what in [*several, *only, *lists]:
            yield function, f"argument {what} of {function.name}: undocumented for a kernel", "name each, defaults last"


@rule("0.7", severity="warning")
def nested_jit_config(source: KernelSource) -> Found:
    """A kernel in a kernel is inlined under the outer one's configuration; one that differs raises."""
    configured = {f.name: _configs(source, f) for f in source.entries}
    for function in source.entries:
        outer = configured[function.name]
        for node in ast.walk(function):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            inner = configured.get(name)
            if inner and inner != outer and "allow_nested_config_override" not in " ".join(outer):
                yield (
                    node,
                    f"{function.name} calls {name}, which has another configuration",
                    "give both the same, or SpecializationConfig(allow_nested_config_override=True)",
                )


def _configs(source: KernelSource, function: ast.AST) -> tuple[str, ...]:
    decorators = [d for d in getattr(function, "decorator_list", []) if isinstance(d, ast.Call) and source.is_jit(d)]
    wanted = ("compile_config", "specialization_config")
    given = [keywords_of(decorator) for decorator in decorators]
    return tuple(f"{name}={ast.unparse(each[name])}" for each in given for name in wanted if name in each)


# --- before and after -------------------------------------------------------------------------------

_INSTEAD = {"scalar_load": "nisa.register_alloc() and register_load", "scalar_store": "nisa.register_store"}


@rule("0.2", until=LAST_PARSED)
def not_before_0_7(source: KernelSource) -> Found:
    for node, module, name in nki_names(source):
        if FIRST.get(f"{module}.{name}") == "0.7":
            yield node, f"{module}.{name} exists from NKI 0.7", _INSTEAD.get(name, "slice tensors, with int32")
    for other in ast.walk(source.tree):
        if isinstance(other, (ast.Attribute, ast.Name)) and source.dotted(other).startswith("nki.compiler."):
            yield other, f"{source.dotted(other)} is public from NKI 0.7", "drop it"
        if isinstance(other, ast.Call) and source.is_jit(other):
            for name in sorted({"compile_config", "specialization_config"} & set(keywords_of(other))):
                yield other, f"nki.jit({name}=...) exists from NKI 0.7", "drop it"


@rule("0.2", until="0.5", severity="warning")
def not_before_0_6(source: KernelSource) -> Found:
    for node, module, name in nki_names(source):
        if FIRST.get(f"{module}.{name}") == "0.6":
            yield node, f"nl.{name} is documented from NKI 0.6", "nl.dynamic_range, or `while register:`"


@rule("0.7", severity="warning")
def old_front_end(source: KernelSource) -> Found:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and node.value == "NKI_COMPILER_FRONTEND":
            yield node, "NKI_COMPILER_FRONTEND goes with the next release, and scalars need the new one", "remove it"
