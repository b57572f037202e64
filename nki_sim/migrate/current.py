"""NKI 0.2 to 0.6 rewritten for 0.7, from the text alone: nothing of it depends on shapes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

import numpy as np

from nki_sim.lint.kernel_source import KernelSource
from nki_sim.migrate.code import DTYPES
from nki_sim.migrate.edits import Source
from nki_sim.migrate.report import Finding, Kind, Migration

_RANGES = {f"nki.language.{name}" for name in ("affine_range", "sequential_range", "static_range")}
_SINCE_07 = {
    f"nki.language.{name}" for name in ("tiles", "blocks", "alloc_tiles", "alloc_blocks", "int64", "uint64")
} | {f"nki.isa.{name}" for name in ("scalar_load", "scalar_store", "NkiScalar")}
_ENVIRONMENT = "NKI_COMPILER_FRONTEND"


def migrate_current(text: str, also_in_06: bool = False) -> Migration:
    """The module for NKI 0.7. `also_in_06`: only what NKI 0.6 takes too. Raises SyntaxError."""
    return _Rewriter(text, also_in_06).run()


class _Rewriter:
    def __init__(self, text: str, also_in_06: bool) -> None:
        self._tree = ast.parse(text)
        self._source = Source(text)
        self._names = KernelSource(self._tree)
        self._both = also_in_06
        self._findings: list[Finding] = []
        self._bodies = 0
        self._parents = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}
        self._registers = self._bound_to("register_alloc")
        self._scalars = self._bound_to("scalar_load")
        self._grids = self._bound_to("tiles", "blocks", "alloc_tiles", "alloc_blocks")

    def run(self) -> Migration:
        """Rule by rule; a statement that two rules would change keeps the first one's."""
        rules: list[Callable[[ast.AST], None]] = [
            self._device_loop,
            self._register_loop,
            self._static_range,
            self._experimental,
            self._constant_store,
            self._shared_constant,
            self._grid_operand,
            self._register_in_python,
            self._launch,
            self._front_end,
            self._wide_bound,
            self._equality,
            self._only_in_07,
        ]
        for node in ast.walk(self._tree):
            for rule in rules:
                rule(node)
        findings = sorted(self._findings, key=lambda finding: finding.line)
        return Migration(self._source.result(), findings)

    # --- reporting ---------------------------------------------------------------------------------

    def _done(self, node: ast.AST, rule: str, text: str) -> None:
        self._findings.append(Finding(getattr(node, "lineno", 0), rule, text, Kind.REWRITTEN))

    def _left(self, node: ast.AST, rule: str, text: str) -> None:
        statement = self._statement(node)
        self._source.insert_above(statement, [f"# migrate [{rule}]: {text}"])
        self._findings.append(Finding(statement.lineno, rule, text, Kind.PERSON))

    def _note(self, node: ast.AST, rule: str, text: str) -> None:
        self._findings.append(Finding(getattr(node, "lineno", 0), rule, text, Kind.NOTE))

    # --- reading -----------------------------------------------------------------------------------

    def _dotted(self, node: ast.AST) -> str:
        return self._names.dotted(node)

    def _called(self, node: ast.AST) -> str:
        return self._dotted(node.func) if isinstance(node, ast.Call) else ""

    def _bound_to(self, *functions: str) -> set[str]:
        """Names assigned from a call of one of these functions."""
        return {
            target.id
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func).rpartition(".")[2] in functions
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def _statement(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        return node

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self._parents:
            node = self._parents[node]
            yield node

    def _language(self) -> str:
        """What the module calls `nki.language`."""
        for alias, name in self._names.imports.items():
            if name == "nki.language":
                return alias
        return "nl"

    # --- rules -------------------------------------------------------------------------------------

    def _static_range(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call) and self._called(node) in _RANGES:
            if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
                self._left(node, "range", "range() takes no keywords")
                return
            self._source.replace(node.func, "range")
            self._done(node, "range", "deprecated in 0.7: they all are Python's range")

    def _device_loop(self, node: ast.AST) -> None:
        if not isinstance(node, ast.For) or self._called(node.iter) != "nki.language.dynamic_range":
            return
        assert isinstance(node.iter, ast.Call)
        problem = self._loop_problem(node)
        if problem or not isinstance(node.target, ast.Name):
            self._left(node, "dynamic_range", problem or "its variable is no single name")
            return
        bounds = [self._source.of(a) for a in node.iter.args]
        lower, upper, *step = bounds if len(bounds) > 1 else ["0", bounds[0]]
        name = self._body_name()
        indent = self._source.indent(node)
        self._replace_header(node, f"def {name}({node.target.id}):")
        arguments = ", ".join([lower, upper, name, *step])
        self._after_body(node, f"\n{indent}{self._language()}.fori_loop({arguments})")
        self._done(node, "dynamic_range", "removed in 0.7: nl.fori_loop with a body function")

    def _loop_problem(self, node: ast.For | ast.While) -> str:
        """Why a loop's body cannot become a function; empty if it can."""
        if node.orelse:
            return "a loop with an else"
        for each in ast.walk(node):
            if isinstance(each, (ast.Break, ast.Continue, ast.Return)):
                return f"{type(each).__name__.lower()} inside a device loop"
        assigned = {n.id for s in node.body for n in ast.walk(s) if isinstance(n, ast.Name) and _stores(n)}
        changed = {s.target.id for b in node.body for s in ast.walk(b) if _augments(s)}  # type: ignore[attr-defined]
        function = next((a for a in self._around(node) if isinstance(a, ast.FunctionDef)), None)
        inside = {id(n) for n in ast.walk(node)}
        others = [n for n in ast.walk(function or self._tree) if isinstance(n, ast.Name) and id(n) not in inside]
        after = {n.id for n in others if not _stores(n) and n.lineno > node.lineno}
        before = {n.id for n in others if _stores(n) and n.lineno < node.lineno}
        carried = sorted((assigned & (after | before)) | changed)
        if carried:
            return (
                f"{', '.join(carried)}: assigned in a device loop and used outside; write into a tensor made before it"
            )
        for around in self._around(node):
            if isinstance(around, ast.With) and any(
                self._called(item.context_expr) == "nki.language.no_reorder" for item in around.items
            ):
                return "a device loop inside nl.no_reorder()"
        return ""

    def _register_loop(self, node: ast.AST) -> None:
        """`while register:`."""
        if not isinstance(node, ast.While) or not isinstance(node.test, ast.Name):
            return
        register = node.test.id
        if register not in self._registers:
            return
        problem = self._loop_problem(node)
        if problem:
            self._left(node, "while register", problem)
            return
        name, indent = self._body_name(), self._source.indent(node)
        inner = self._source.indent(node.body[0])
        self._replace_header(node, f"def {name}({register}):")
        loop = f"{self._language()}.while_loop({register}, {name})"
        self._after_body(node, f"\n{inner}return {register}\n{indent}{loop}")
        self._done(node, "while register", "removed in 0.7: nl.while_loop with a body function")

    def _replace_header(self, node: ast.For | ast.While, header: str) -> None:
        """`for ...:` up to its colon; a comment behind it stays."""
        start = self._source.span(node)[0]
        end = self._source.span(node.iter if isinstance(node, ast.For) else node.test)[1]
        colon = self._source.text.index(":", end)
        self._source.replace_range(start, colon + 1, header)

    def _after_body(self, node: ast.For | ast.While, text: str) -> None:
        """Behind the last line of a loop; of loops that end together, the inner one's text comes first."""
        line_end = self._source.text.find("\n", self._source.span(node.body[-1])[1])
        at = len(self._source.text) if line_end < 0 else line_end
        self._source.insert(at, text, -len(list(self._around(node))))

    def _body_name(self) -> str:
        taken = {n.name for n in ast.walk(self._tree) if isinstance(n, ast.FunctionDef)}
        while True:
            self._bodies += 1
            name = f"loop_body_{self._bodies}"
            if name not in taken:
                return name

    def _experimental(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute) and self._dotted(node) == "nki.experimental.while_loop":
            self._source.replace(node, f"{self._language()}.while_loop")
            self._done(node, "while_loop", "nki.language has it")

    def _constant_store(self, node: ast.AST) -> None:
        """`nisa.scalar_store(dst, 5)` stored nothing under the tracer."""
        if not isinstance(node, ast.Call) or self._called(node) != "nki.isa.scalar_store":
            return
        value = next((k.value for k in node.keywords if k.arg == "value"), node.args[1] if len(node.args) > 1 else None)
        if isinstance(value, ast.UnaryOp):
            value = value.operand
        if not isinstance(value, ast.Constant):
            return
        given = {k.arg: k.value for k in node.keywords}
        dst = given.get("dst") or node.args[0]
        number = given.get("value") or node.args[1]
        prefix = self._source.of(node.func.value) if isinstance(node.func, ast.Attribute) else "nisa"
        self._source.replace(node, f"{prefix}.memset(dst={self._source.of(dst)}, value={self._source.of(number)})")
        self._done(node, "scalar_store", "a Python number is stored with nisa.memset")

    def _shared_constant(self, node: ast.AST) -> None:
        """`nl.shared_constant(array, dtype=nl.float32)`: the array itself has to be of that type."""
        if not isinstance(node, ast.Call) or self._called(node) != "nki.language.shared_constant":
            return
        given: dict[str, ast.expr] = dict(zip(("constant", "dtype"), node.args))
        given.update({keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None})
        constant, dtype = given.get("constant"), given.get("dtype")
        if constant is None or dtype is None:
            return
        name = str(dtype.value) if isinstance(dtype, ast.Constant) else self._dotted(dtype).rpartition(".")[2]
        text = self._source.of(constant)
        if self._types_named(constant) != {name}:
            if self._both or not hasattr(np, name):
                self._left(node, "shared_constant", f"it takes no dtype: make {text} an array of {name or 'that type'}")
                return
            text = f"np.asarray({text}, dtype=np.{name})"
            if self._names.imports.get("np") != "numpy":
                self._left(node, "shared_constant", f"it takes no dtype: {text}, with numpy imported as np")
                return
        self._source.replace(node, f"{self._source.of(node.func)}({text})")
        self._done(node, "shared_constant", "its elements have the array's type")

    def _types_named(self, constant: ast.expr) -> set[str]:
        """Element types that the expression of an array names; for a name, that of its one assignment."""
        if isinstance(constant, ast.Name):
            bound = [n for n in ast.walk(self._tree) if isinstance(n, ast.Name) and n.id == constant.id and _stores(n)]
            if len(bound) != 1 or not isinstance(made := self._parents[bound[0]], (ast.Assign, ast.AnnAssign)):
                return set()
            return self._types_named(made.value) if made.value is not None else set()
        nodes = list(ast.walk(constant))
        words = [n.attr for n in nodes if isinstance(n, ast.Attribute)]
        words += [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        return {word for word in words if word in DTYPES}

    def _grid_operand(self, node: ast.AST) -> None:
        """`g[i, j]` of a grid as an operand."""
        if not isinstance(node, ast.Call) or not self._called(node).startswith("nki.isa."):
            return
        for operand in (*node.args, *(k.value for k in node.keywords)):
            inner = operand
            if isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name) and inner.value.id in self._grids:
                end = self._source.span(operand)[1]
                self._source.insert(end, ".data")
                self._done(operand, "grid operand", "instructions take the tensor of a grid's cell: .data")

    def _register_in_python(self, node: ast.AST) -> None:
        """A value that only the device knows, where Python needs one."""
        device = self._registers | self._scalars
        where = ""
        found: ast.expr | None = None
        if isinstance(node, (ast.If, ast.IfExp)):
            where, found = "if", node.test
        elif isinstance(node, ast.While) and not isinstance(node.test, ast.Name):
            where, found = "while", node.test
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("int", "range", "bool")
        ):
            where, found = f"{node.func.id}()", node.args[0] if node.args else None
        if found is None:
            return
        names = {n.id for n in ast.walk(found) if isinstance(n, ast.Name)} & device
        identity = isinstance(found, ast.Compare) and isinstance(found.ops[0], (ast.Is, ast.IsNot))
        if names and not identity:
            text = f"{', '.join(sorted(names))} has no value while the kernel is traced: nl.fori_loop or nl.while_loop"
            self._left(node, f"register in {where}", text)

    def _launch(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            kernels = {f.name for f in self._names.entries}
            if isinstance(node.func.value, ast.Name) and node.func.value.id in kernels:
                self._note(node, "launch", "cores are chosen by NEURON_LOGICAL_NC_CONFIG from 0.7 on")

    def _front_end(self, node: ast.AST) -> None:
        """The old front end's switch is gone in the release after 0.7."""
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            return
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and re.search(rf"environ\[.{_ENVIRONMENT}.\]", self._source.of(target)):
            block = self._parents[node]
            alone = all(getattr(block, name, [node, node]) != [node] for name in ("body", "orelse"))
            self._source.replace_lines(node, [] if alone else ["pass"])
            self._done(node, "front end", "the old front end goes with the next release")

    def _wide_bound(self, node: ast.AST) -> None:
        """A 64-bit scalar as a bound of a device loop."""
        if self._called(node) != "nki.language.fori_loop":
            return
        assert isinstance(node, ast.Call)
        for bound in node.args[:2]:
            if isinstance(bound, ast.Name) and bound.id in self._scalars and self._is_wide(bound.id):
                self._left(node, "wide bound", f"{bound.id} has 64 bits: load the bound from an int32 tile")

    def _is_wide(self, name: str) -> bool:
        """Whether a scalar was loaded from a tile allocated as int64."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
                source = node.value.args[0] if isinstance(node.value, ast.Call) and node.value.args else None
                base = source.value if isinstance(source, ast.Subscript) else source
                if isinstance(base, ast.Name):
                    return any(
                        isinstance(n, ast.Assign)
                        and isinstance(n.targets[0], ast.Name)
                        and n.targets[0].id == base.id
                        and "int64" in self._source.of(n.value)
                        for n in ast.walk(self._tree)
                    )
        return False

    def _equality(self, node: ast.AST) -> None:
        """Classes that the parser compared field by field are compared by identity from 0.7 on."""
        if not isinstance(node, ast.ClassDef) or not node.bases:
            return
        objects = any(self._dotted(base).endswith("NKIObject") for base in node.bases)
        methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        dataclass = any("dataclass" in self._source.of(d) for d in node.decorator_list)
        if not objects or "__eq__" in methods or dataclass:
            return
        instances = self._bound_to(node.name)
        for each in ast.walk(self._tree):
            if isinstance(each, ast.Compare) and isinstance(each.ops[0], (ast.Eq, ast.NotEq)):
                names = {n.id for n in (each.left, *each.comparators) if isinstance(n, ast.Name)}
                if names & instances:
                    self._left(each, "equality", f"{node.name} has no __eq__: from 0.7 on it is compared by identity")

    def _only_in_07(self, node: ast.AST) -> None:
        """What NKI 0.6 does not have, when the module has to be valid there as well."""
        if self._both and isinstance(node, ast.Attribute):
            name = self._dotted(node)
            if name in _SINCE_07:
                self._left(node, "not in 0.6", f"{name} is new in 0.7")


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _augments(node: ast.AST) -> bool:
    return isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
