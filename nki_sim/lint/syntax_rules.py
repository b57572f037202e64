"""Rules about Python's syntax: up to NKI 0.6 the compiler reads a part of it (NKI language guide, update guides).

From 0.7 it runs the kernel, and what CPython runs is legal; what then remains is in `tracing_rules`.
"""

from __future__ import annotations

import ast

from nki_sim.lint.findings import LAST_PARSED
from nki_sim.lint.kernel_source import KernelSource
from nki_sim.lint.rules import Found, rule


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


@rule("0.3", until=LAST_PARSED)
def identity_comparison(source: KernelSource) -> Found:
    """`is` compares Python objects, which do not exist while compiling."""
    for node in source.in_kernels():
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            if not any(_is_none(side) for side in (node.left, *node.comparators)):
                yield node, "`is` / `is not` are not supported in kernels", "compare with == / !="


@rule("0.3", until=LAST_PARSED, severity="warning")
def identity_comparison_with_none(source: KernelSource) -> Found:
    """Named as unsupported by the 0.3 update guide, though the public kernel library still writes it."""
    for node in source.in_kernels():
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            if any(_is_none(side) for side in (node.left, *node.comparators)):
                yield node, "`is None` is documented as unsupported in kernels", "write == None / != None"


@rule("0.3", until=LAST_PARSED)
def keyword_only_arguments(source: KernelSource) -> Found:
    for function in source.entries:
        if function.args.kwonlyargs:
            yield (
                function,
                f"{function.name} has keyword-only arguments (`*`)",
                "drop the `*`; keep defaults at the end",
            )


@rule("0.3", until=LAST_PARSED)
def list_arguments(source: KernelSource) -> Found:
    for function in source.entries:
        arguments = function.args
        for argument, default in zip(reversed(arguments.args), reversed(arguments.defaults)):
            if isinstance(default, (ast.List, ast.ListComp)):
                yield default, f"argument {argument.arg} of {function.name} is a list", "use a tuple"
        for argument in arguments.args:
            hint = argument.annotation
            base = hint.value if isinstance(hint, ast.Subscript) else hint
            if isinstance(base, ast.Name) and base.id in ("list", "List"):
                yield argument, f"argument {argument.arg} of {function.name} is a list", "use a tuple"


@rule("0.2", until=LAST_PARSED)
def variable_arguments(source: KernelSource) -> Found:
    for function in source.entries:
        for argument in (function.args.vararg, function.args.kwarg):
            if argument is not None:
                yield function, f"{function.name} takes *{argument.arg}", "name every argument"


@rule("0.6", until=LAST_PARSED, severity="warning")
def nested_jit(source: KernelSource) -> Found:
    jitted = {f.name for f in source.entries if any(source.is_jit(d) for d in f.decorator_list)}
    for function in source.entries:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in jitted:
                yield node, f"{function.name} calls {node.func.id}, another @nki.jit kernel", "remove @nki.jit from it"
            if (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                and node is not function
                and any(source.is_jit(d) for d in node.decorator_list)
            ):
                yield node, f"@nki.jit inside {function.name}", "remove the inner @nki.jit"


_FORBIDDEN: tuple[tuple[tuple[type[ast.AST], ...], str, str], ...] = (
    ((ast.Try,), "try", "check shapes with assert instead"),
    ((ast.Raise,), "raise", "use assert condition, message"),
    ((ast.Import, ast.ImportFrom), "import inside a kernel", "import at the top of the file"),
    ((ast.Yield, ast.YieldFrom), "yield", "return lists"),
    ((ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef), "async", "write plain functions"),
    ((ast.Global, ast.Nonlocal), "global and nonlocal", "pass values as arguments"),
    ((ast.Delete,), "del", "buffers end with their last use by themselves"),
    ((ast.NamedExpr,), "`:=`", "assign on a line of its own"),
    ((ast.SetComp, ast.DictComp, ast.GeneratorExp), "set, dict and generator comprehensions", "write a for loop"),
)


@rule("0.2", until=LAST_PARSED)
def unsupported_statement(source: KernelSource) -> Found:
    for node in source.in_kernels():
        for kinds, what, hint in _FORBIDDEN:
            if isinstance(node, kinds):
                yield node, f"{what}: not in the subset of Python that kernels are compiled from", hint


@rule("0.2", until=LAST_PARSED, severity="warning")
def lambda_expression(source: KernelSource) -> Found:
    """Rejected by some releases; of others nothing is known."""
    for node in source.in_kernels():
        if isinstance(node, ast.Lambda):
            yield node, "lambda is not in the documented part of Python", "def, with a name"


@rule("0.2", until=LAST_PARSED, severity="warning")
def dictionary_key(source: KernelSource) -> Found:
    for node in source.in_kernels():
        for key in node.keys if isinstance(node, ast.Dict) else []:
            if isinstance(key, ast.Tuple) or (isinstance(key, ast.Constant) and not isinstance(key.value, str)):
                yield node, "keys of a dictionary are documented as strings only", "a list, or strings as keys"


@rule("0.2", until=LAST_PARSED)
def tuple_loop_target(source: KernelSource) -> Found:
    for node in source.in_kernels():
        if isinstance(node, ast.For) and not isinstance(node.target, ast.Name):
            yield node, "a for loop with several targets (`expecting simple variable`)", "loop over range(n) and index"


@rule("0.2", until="0.3")
def inner_function(source: KernelSource) -> Found:
    """`NKI does not support inner function definitions`, on a trn1 with 0.3; from 0.6 on device loops need them."""
    for node in source.in_kernels():
        if isinstance(node, ast.FunctionDef):
            yield node, f"{node.name} is defined inside a function", "define it at the top of the file"


@rule("0.2", until="0.3")
def list_comprehension(source: KernelSource) -> Found:
    """`unsupported expression`, on a trn1 with 0.3."""
    for node in source.in_kernels():
        if isinstance(node, ast.ListComp):
            yield node, "a list comprehension: not in the subset of Python that kernels are compiled from", _APPENDED


_APPENDED = "start with [] and append in a for loop"


@rule("0.2", until="0.3")
def subscript_in_a_target(source: KernelSource) -> Found:
    """`expecting pattern`, on a trn1 with 0.3."""
    for node in source.in_kernels():
        for target in node.targets if isinstance(node, ast.Assign) else []:
            if isinstance(target, (ast.Tuple, ast.List)) and not all(isinstance(n, ast.Name) for n in target.elts):
                yield node, f"unpacking into {ast.unparse(target)}: names only", "unpack into names, then assign"


@rule("0.4", until=LAST_PARSED, severity="warning")
def unproven_syntax(source: KernelSource) -> Found:
    """What 0.3 rejected, and of later parsers nobody says that they take it; no public kernel has it."""
    for check in (list_comprehension, subscript_in_a_target):
        for node, message, hint in check(source):
            yield node, f"{message} (rejected by NKI 0.3)", hint


@rule("0.2", until=LAST_PARSED)
def with_statement(source: KernelSource) -> Found:
    for node in source.in_kernels():
        if isinstance(node, ast.With):
            for item in node.items:
                call = item.context_expr
                name = source.dotted(call.func if isinstance(call, ast.Call) else call)
                if not name.endswith((".no_reorder", ".experimental.no_reorder")):
                    yield node, "with: only nl.no_reorder() is a context in kernels", "call the steps one by one"


@rule("0.2")
def tensor_assignment(source: KernelSource) -> Found:
    """`tile[...] = value` was Beta 1; from 0.2 an instruction writes its dst."""
    for node in source.in_kernels():
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(node, ast.Assign) and isinstance(node.value, (ast.List, ast.ListComp, ast.Tuple)):
                continue  # a list of the kernel's own
            if isinstance(target, ast.Subscript) and isinstance(target.slice, (ast.Slice, ast.Tuple)):
                parts = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
                if any(isinstance(part, ast.Slice) for part in parts):
                    yield (
                        node,
                        "assignment into a slice of a tensor",
                        "pass it as dst=, e.g. nisa.tensor_copy(dst=, src=)",
                    )


@rule("0.2", until=LAST_PARSED)
def class_without_nki_object(source: KernelSource) -> Found:
    """Instances made in kernels must derive from NKIObject (or be enums)."""
    used = {
        node.func.id for node in source.in_kernels() if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    classes = {node.name: node for node in source.tree.body if isinstance(node, ast.ClassDef)}
    for name, node in classes.items():
        if name in used and not _derives(node, classes):
            yield node, f"class {name} is used in a kernel", f"class {name}(nl.NKIObject)"


def _derives(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """From NKIObject or an enumeration, through classes of the file too."""
    bases = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases]
    return any(
        base in ("NKIObject", "Enum", "IntEnum") or (base in classes and _derives(classes[base], classes))
        for base in bases
        if base != node.name
    )
