"""A whole file of NKI 0.1: imports, decorators, grids and the functions of its kernels."""

from __future__ import annotations

import ast
import re

from nki_sim.beta1 import language
from nki_sim.beta1.instrument import number_of
from nki_sim.beta1.running import Watched
from nki_sim.migrate.beta1 import launch_grids
from nki_sim.migrate.beta1.lowering import Lowering
from nki_sim.migrate.beta1.statements import Statements
from nki_sim.migrate.calls import Calls
from nki_sim.migrate.code import DTYPES, Names, functions_of
from nki_sim.migrate.edits import Source
from nki_sim.migrate.operands import NeedsPerson
from nki_sim.migrate.report import Finding, Kind, Migration

_IMPORTS = {"nki": "import nki", "nisa": "import nki.isa as nisa", "nl": "import nki.language as nl"}
_MARKS = ("nki.jit", "nki.baremetal", "nki.benchmark", "nki.profile", "nki.trace")
_NAMES = "float32|float16|int32|int16|int8|uint32|uint16|uint8"
_NUMPY_DTYPES = re.compile(rf"np\.dtype\(np\.({_NAMES})\)(?!\.)|np\.({_NAMES})\b(?!\()")
_NL_NUMBERS = re.compile(r"\bnl\.(?:fp32|finfo\((?:nl\.|np\.)?(\w+(?:\.dtype)?)\))\.(min|max|eps)\b")
_NUMPY_ARRAYS = ("np.identity(", "np.eye(", "np.array(", "np.asarray(", "np.ones(", "np.zeros(", ".astype(")


def migrated(
    text: str, tree: ast.Module, entry: str, watched: Watched, spilled: frozenset[int] = frozenset()
) -> Migration:
    """The module for the current NKI, from what a run of its function `entry` showed. Not yet proven."""
    source, names = Source(text), Calls(tree)
    statements = Statements(Lowering(source, names, watched.watcher), Names(tree), spilled)
    kernels, others = _functions_with_kernel_code(tree, names, watched)
    for function in kernels:
        statements.accumulations(function)
    for function in kernels:  # a function may use what another allocates
        statements.layouts(function)
    for function in kernels:
        statements.function(function)
    findings = statements.findings
    for mask in statements.low.idle_masks.values():
        said = f"mask {ast.unparse(mask)} lets everything through with these arguments and is gone"
        findings.append(Finding(mask.lineno, "mask", said, Kind.NOTE))
    for function in others:
        said = f"{function.name} was not run: migrate it with --function {function.name}"
        source.insert_above(function, [f"# migrate [not run]: {said}"])
        documented = ast.get_docstring(function) is not None
        body = function.body[1 if documented and len(function.body) > 1 else 0 :]
        source.retire(body, f"not migrated: migrate it with --function {function.name}")
        findings.append(Finding(function.lineno, "not run", said, Kind.NOTE))
    _elsewhere(tree, watched, findings)
    _shapes(source, kernels, watched, findings)
    _imports(source, tree, findings)
    _decorators(source, names, tree, entry, findings)
    _outputs(source, kernels, watched, findings)
    _placement(source, names, tree, findings)
    launch_grids.rewrite(source, names, tree, watched, findings)
    _host_code(source, names, tree, kernels, findings)
    text = _numpy_dtypes(launch_grids.indented(source.result()), kernels)
    new = _with_imports(_without_index_helpers(launch_grids.into_helpers(text, watched)), names, tree)
    return Migration(new, sorted(findings, key=lambda finding: finding.line))


def _functions_with_kernel_code(
    tree: ast.Module, names: Calls, watched: Watched
) -> tuple[list[ast.FunctionDef], list[ast.FunctionDef]]:
    """Functions at module level that make, or index, tiles: those that were run, and the others."""
    found: list[ast.FunctionDef] = []
    others: list[ast.FunctionDef] = []
    for node in functions_of(tree.body, methods=True):
        inside = {names.called(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
        seen = any(watched.watcher.gave_tiles(number_of(n)) for part in node.body for n in ast.walk(part))
        if seen:
            found.append(node)
        elif any(name.startswith(("nl.", "nisa.")) and name not in ("nl.spmd_dim", "nl.nc") for name in inside):
            others.append(node)
    return found, others


def _shapes(source: Source, kernels: list[ast.FunctionDef], watched: Watched, findings: list[Finding]) -> None:
    """For which arguments the new kernel was written is said above it: sizes that had no name are numbers in it."""
    for name, shapes in watched.shapes.items():
        for function in kernels:
            if function.name == name and shapes:
                said = ", ".join(shapes)
                source.insert_above(function, [f"# migrated for {said}: sizes without a name are of these shapes"])
                findings.append(Finding(function.lineno, "shapes", f"{name} was migrated for {said}", Kind.NOTE))


def _elsewhere(tree: ast.Module, watched: Watched, findings: list[Finding]) -> None:
    """Kernels of other files that this one launches have to be migrated where they are."""
    here = {node.name for node in functions_of(tree.body)}
    for name in watched.grids:
        if name not in here:
            findings.append(Finding(1, "neighbour", f"{name} is in another file: migrate that one first", Kind.PERSON))


def _imports(source: Source, tree: ast.Module, findings: list[Finding]) -> None:
    """Old imports go, but for constants; what the new kernels need is imported in the place of the first of them."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "neuronxcc.nki.isa.constants" in source.of(node):
            lines = [source.of(node).replace("neuronxcc.", "")]
        elif isinstance(node, ast.Import) and any(alias.name.startswith("neuronxcc") for alias in node.names):
            kept = [alias for alias in node.names if not alias.name.startswith("neuronxcc")]
            parts = [f"{a.name} as {a.asname}" if a.asname else a.name for a in kept]
            lines = [f"import {', '.join(parts)}"] if parts else []
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("neuronxcc"):
            lines = []
        else:
            continue
        source.replace_lines(node, lines or ["pass"] * bool(node.col_offset))
        findings.append(Finding(node.lineno, "imports", "neuronxcc is gone", Kind.REWRITTEN))


def _without_index_helpers(text: str) -> str:
    """Functions that made index grids, and grids at module level, go too where nothing asks for them any more."""
    while True:
        tree = ast.parse(text)
        names, source = Calls(tree), Source(text)
        inner = [n for function in functions_of(tree.body) for n in ast.walk(function)]
        functions = [n for n in inner if isinstance(n, ast.FunctionDef) and not n.decorator_list]
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        helpers = [n for n in functions if _makes_grids(n, names) and n.name not in used]
        grids = [n for n in _module_grids(tree, names) if not used & _bound(n)]
        if not helpers and not grids:
            return text
        for node in (*helpers, *grids):
            if source.alone(node):
                source.replace_range(*source.lines_of(node), "")
            else:
                source.replace(node, "pass")
        text = source.result()


def _makes_grids(node: ast.AST, names: Calls) -> bool:
    return any(isinstance(n, ast.Attribute) and names.name(n) in ("nl.arange", "nl.mgrid") for n in ast.walk(node))


def _module_grids(tree: ast.Module, names: Calls) -> list[ast.stmt]:
    """The module's assignments of index grids, and of what is computed from them."""
    found: list[ast.stmt] = []
    grids: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            used = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
            if _makes_grids(node.value, names) or used & grids:
                found.append(node)
                grids |= _bound(node)
    return found


def _bound(node: ast.stmt) -> set[str]:
    """Names in the targets of an assignment."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def _with_imports(text: str, names: Calls, tree: ast.Module) -> str:
    """The imports that the new text needs and does not have, after the docstring and __future__."""
    module = ast.parse(text)
    used = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    bound = {node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in module.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    wanted = [line for name, line in _IMPORTS.items() if name in used and name not in bound]
    for name, line in (("np", "import numpy as np"), ("math", "import math")):
        if name in used and name not in bound:
            wanted.insert(0, line)
    if not wanted:
        return text
    at = 0
    for node in module.body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not is_docstring and not is_future:
            break
        at = node.end_lineno or 0
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:at], *(f"{line}\n" for line in wanted), *lines[at:]])


def _decorators(source: Source, names: Calls, tree: ast.Module, entry: str, findings: list[Finding]) -> None:
    """What marks a kernel is nki.jit without options, also under a name of the module's own."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and names.name(node.value) in _MARKS and source.of(node.value) != "nki.jit":
            source.replace(node.value, "nki.jit")
        elif isinstance(node, ast.Assign) and names.called(node.value) in _MARKS:  # kernel = nki.jit(kernel, mode=...)
            assert isinstance(node.value, ast.Call)
            source.replace(node.value, f"nki.jit({', '.join(source.of(given) for given in node.value.args[:1])})")
        elif isinstance(node, ast.Assign) and names.name(node.value) == "nki.simulate_kernel":
            source.replace(node.value, "nki.simulate")
            said = "nki.simulate_kernel(kernel, x) is nki.simulate(kernel)(x)"
            findings.append(Finding(node.lineno, "host code", said, Kind.NOTE))
    for function in functions_of(tree.body):
        marked = False
        for decorator in function.decorator_list:
            name = names.name(decorator.func if isinstance(decorator, ast.Call) else decorator)
            is_mark = name in _MARKS or (isinstance(decorator, ast.Name) and _is_mark(names, tree, decorator.id))
            if is_mark and marked:
                source.remove_decorator(decorator)
                findings.append(Finding(decorator.lineno, "decorators", "nki.jit once is enough", Kind.REWRITTEN))
            elif name in _MARKS and source.of(decorator) != "nki.jit":
                source.replace(decorator, "nki.jit")
                findings.append(Finding(decorator.lineno, "decorators", f"{name} is nki.jit", Kind.REWRITTEN))
            elif name.startswith("nki.compiler"):
                source.remove_decorator(decorator)
                findings.append(Finding(decorator.lineno, "decorators", f"{name} is gone", Kind.REWRITTEN))
            marked = marked or is_mark
        if not marked and function.name == entry:
            source.insert_above(function, ["@nki.jit"])
            findings.append(Finding(function.lineno, "decorators", "nki.jit marks the kernel", Kind.REWRITTEN))
        for argument in (*function.args.args, *function.args.kwonlyargs):
            if argument.annotation is not None and names.name(_base(argument.annotation)).startswith(("nt.", "nki.")):
                source.replace(argument, argument.arg)
        if function.returns is not None and names.name(_base(function.returns)).startswith(("nt.", "nki.")):
            line = source.of(function.returns)
            source.replace(function.returns, "None" if line == "None" else "object")


def _is_mark(names: Calls, tree: ast.Module, name: str) -> bool:
    """`nki_jit`, after `nki_jit = nki.trace`."""
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        and names.name(node.value) in _MARKS
        for node in tree.body
    )


def _outputs(source: Source, kernels: list[ast.FunctionDef], watched: Watched, findings: list[Finding]) -> None:
    """A kernel that returned nothing and wrote arguments gives those back: inputs are read only."""
    for function in kernels:
        written = watched.written.get(function.name, [])
        if not written:
            continue
        if any(isinstance(n, ast.Return) for statement in function.body for n in ast.walk(statement)):
            raise NeedsPerson("outputs", f"{function.name} writes {', '.join(written)}, and returns")
        documented = ast.get_docstring(function) is not None and len(function.body) > 1
        first = function.body[int(documented)]
        indent = source.indent(first)
        lines = [f"{name} = nl.ndarray({name}.shape, dtype={name}.dtype, buffer=nl.shared_hbm)" for name in written]
        start = source.offset(min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))]), 0)
        source.insert(start, "".join(f"{indent}{line}\n" for line in lines), -2)
        source.insert_below(function, f"{indent}return {', '.join(written)}", 1)
        said = f"{function.name} returns {', '.join(written)}, which it wrote into: callers take the result"
        findings.append(Finding(function.lineno, "outputs", said, Kind.NOTE))


def _placement(source: Source, names: Calls, tree: ast.Module, findings: list[Finding]) -> None:
    """`sb_mod = nki.compiler.sbuf.mod_alloc`: the compiler places buffers."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and names.name(node.value).startswith("nki.compiler"):
            source.replace_lines(node, [])
            findings.append(Finding(node.lineno, "placement", "buffers are placed by the compiler", Kind.REWRITTEN))


def _base(node: ast.expr) -> ast.expr:
    return _base(node.value) if isinstance(node, ast.Subscript) else node


def _host_code(
    source: Source, names: Calls, tree: ast.Module, kernels: list[ast.FunctionDef], findings: list[Finding]
) -> None:
    """Code around the kernels is not the migration's: it is named where it calls what is gone."""
    inside = {id(n) for function in kernels for n in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in inside:
            name = names.called(node)
            if name in ("nki.baremetal", "nki.benchmark", "nki.profile", "nki.simulate_kernel"):
                text = f"{name} is gone: run the kernel itself, or time it with neuron-explorer"
                findings.append(Finding(node.lineno, "host code", text, Kind.NOTE))


def _numpy_dtypes(text: str, kernels: list[ast.FunctionDef]) -> str:
    """`np.float32` in kernels is `nl.float32`; the module's other functions keep theirs."""
    wanted = {function.name for function in kernels}
    module = ast.parse(text)
    lines = text.splitlines(keepends=True)
    for node in functions_of(module.body):
        if node.name in wanted:
            for at in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[at] = _NL_NUMBERS.sub(_limit, lines[at])
                if not any(made in lines[at] for made in _NUMPY_ARRAYS):
                    lines[at] = _NUMPY_DTYPES.sub(lambda m: f"nl.{m[1] or m[2]}", lines[at])
    return "".join(lines)


def _limit(found: re.Match[str]) -> str:
    """`nl.fp32.min`, which is gone, as a number that stays one when it is rounded to float32."""
    name = found[1] or "float32"
    if name not in DTYPES:
        return found[0]
    return repr(getattr(language.finfo(name), found[2]))
