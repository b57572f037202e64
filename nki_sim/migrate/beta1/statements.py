"""The statements of a kernel's functions, one after the other; control flow stays as it is."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from nki_sim.beta1.facts import GridFact, Sum, TileFact
from nki_sim.beta1.instrument import number_of
from nki_sim.lint.kernel_source import blocks_of
from nki_sim.migrate import calls
from nki_sim.migrate.beta1.instructions import memset
from nki_sim.migrate.beta1.lowering import Lowering
from nki_sim.migrate.calls import ALLOCATIONS, KEPT, RANGES, arguments
from nki_sim.migrate.code import Lines, Names, dtype_text
from nki_sim.migrate.layouts import layout_of
from nki_sim.migrate.operands import NeedsPerson, Operand, clipped
from nki_sim.migrate.report import Finding, Kind

_OPERATORS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_MASKED_OPERAND = (
    *("nl.max", "nl.sum", "nl.min", "nl.prod", "nl.mean", "nl.transpose"),
    *("nisa.tensor_reduce", "nisa.nc_transpose", "nisa.bn_stats", "nisa.bn_aggr"),
    *("nisa.max8", "nisa.nc_find_index8", "nisa.nc_match_replace8"),
)
"""Functions whose mask is over what they read, which has another shape than what they give."""
_PRODUCTS = ("nisa.nc_matmul", "nl.matmul")


class Statements:
    """Rewrites the bodies of functions into the edits of their source."""

    def __init__(self, low: Lowering, names: Names, spilled: frozenset[int] = frozenset()) -> None:
        self.spilled = spilled
        self.low = low
        self.names = names
        self.findings: list[Finding] = []
        self.moved: defaultdict[int, list[str]] = defaultdict(list)
        """Allocations by the loop they have moved into."""
        self.tiles: set[str] = set()
        """Names of tiles in the function under way."""
        self.gone: set[int] = set()
        """Statements in whose place there is none."""

    def accumulations(self, function: ast.FunctionDef) -> None:
        """Which accumulators are added anything to but products where they are made: those start from zeros."""
        for node in ast.walk(function):
            if isinstance(node, ast.AugAssign) and self.low.calls.called(node.value) not in _PRODUCTS:
                seen = self.low.watcher.seen.get(number_of(node.target))
                for fact in seen.kinds.values() if seen is not None else ():
                    if isinstance(fact, TileFact):
                        self.low.watcher.uses[fact.site].products_only = False

    def layouts(self, function: ast.FunctionDef) -> None:
        """Where the function's allocations are in the new kernel; others may use them."""
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and self._allocates(node):
                self._layout(node)

    # --- blocks ------------------------------------------------------------------------------------

    def function(self, function: ast.FunctionDef) -> None:
        """One function at module level, with those inside it."""
        self.low.scope = function.name
        self.tiles = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and self.low.is_tile(n)}
        self.block(function.body, {})

    def block(self, body: list[ast.stmt], counts: dict[str, str]) -> None:
        known = dict(counts)
        run = self._run(body)
        for statement in body[:run]:
            _forget(known, statement)  # before a loop, too: what it binds is another in each iteration
            self.statement(statement, known)
            _forget(known, statement)
        if body[run:]:
            first, last = body[run].lineno, body[-1].end_lineno
            said = f"lines {first} to {last} were not run with these arguments: they are kept as comments"
            self.low.source.insert_above(body[run], [f"# migrate [unreached]: {said}"])
            self.low.source.retire(body[run:], "not migrated: these arguments need another run of the migration")
            self.findings.append(Finding(first, "unreached", said, Kind.NOTE))
        elif body and all(number_of(statement) in self.gone for statement in body):
            self.low.source.insert_above(body[0], ["pass"])

    def _run(self, body: list[ast.stmt]) -> int:
        """How many statements there are before those at the end which were not run and call the old API."""
        run = len(body)
        while run and not any(number_of(n) in self.low.watcher.reached for n in ast.walk(body[run - 1])):
            run -= 1
        while run < len(body) and not any(_expressions(body[run])):
            run += 1  # nothing in it that could have been seen
        rest = [n for statement in body[run:] for n in ast.walk(statement)]
        return run if any(self._is_old(n) for n in rest) else len(body)

    def _is_old(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute) and self.low.calls.name(node) == "nl.mgrid":
            return True
        if isinstance(node, (ast.Subscript, ast.BinOp, ast.UnaryOp, ast.AugAssign)):
            return any(isinstance(part, ast.Name) and part.id in self.tiles for part in ast.iter_child_nodes(node))
        name = self.low.calls.called(node) if isinstance(node, ast.Call) else ""
        return name.startswith(("nl.", "nisa.")) and name not in KEPT

    def statement(self, node: ast.stmt, counts: dict[str, str]) -> None:
        if isinstance(node, ast.For):
            self._loop(node, counts)
        elif isinstance(node, ast.If) and self.low.source.has_elif(node):
            self._header(node)
            self.block(node.body, counts)
            self.statement(node.orelse[0], counts)  # no block of its own to assert in
        elif isinstance(node, ast.FunctionDef):
            outer, self.low.scope = self.low.scope, f"{self.low.scope}.{node.name}"
            self.block(node.body, counts)
            self.low.scope = outer
        elif not isinstance(node, ast.ClassDef) and (blocks := blocks_of(node)):
            self._header(node)
            for block in blocks:
                self.block(block, counts)
        else:
            self._simple(node, counts)

    def _loop(self, node: ast.For, counts: dict[str, str]) -> None:
        if isinstance(node.iter, ast.Call) and self.low.calls.called(node.iter) in RANGES:
            bounds = ", ".join(self.low.source.of(bound) for bound in node.iter.args)
            self.low.source.replace(node.iter, f"range({bounds})")
            self._done(node, "ranges", "a range of Python")
        for block in blocks_of(node):
            self.block(block, counts)
        if self.moved[number_of(node)]:
            self.low.source.insert_above(node.body[0], self.moved[number_of(node)])

    def _header(self, node: ast.stmt) -> None:
        test = node.test if isinstance(node, (ast.If, ast.While)) else None
        if test is not None and self.low.is_tile(test):
            self._left(node, NeedsPerson("condition", "a condition on what a tile holds"))

    def _simple(self, node: ast.stmt, counts: dict[str, str]) -> None:
        out = Lines(self.names, counts=dict(counts))
        self.low.out = out
        try:
            rule = self._rewrite(node, out)
        except NeedsPerson as problem:
            self._left(node, problem)
            return
        if rule is None:
            return
        if not self.low.source.alone(node):
            self._left(node, NeedsPerson("layout", "several statements in one line"))
            return
        counts.update(out.counts)
        if not out.lines:
            self.gone.add(number_of(node))
        self.low.source.replace_lines(node, out.lines)
        self._done(node, rule, f"{len(out.lines)} statements")

    def _done(self, node: ast.stmt, rule: str, text: str) -> None:
        self.findings.append(Finding(node.lineno, rule, text, Kind.REWRITTEN))

    def _left(self, node: ast.stmt, problem: NeedsPerson) -> None:
        unseen = problem.rule == "unreached"
        self.low.source.insert_above(node, [f"# migrate [{problem.rule}]: {problem.text}"])
        self.findings.append(Finding(node.lineno, problem.rule, problem.text, Kind.NOTE if unseen else Kind.PERSON))

    # --- one statement -----------------------------------------------------------------------------

    def _rewrite(self, node: ast.stmt, out: Lines) -> str | None:
        """The rule that was applied, with the new statements in `out`; None for a statement that stays."""
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return self._assign(node, node.target, node.value, out)
        if isinstance(node, ast.Assign):
            rule = self._assign(node, node.targets[0], node.value, out)
            if rule is not None and not self._is_index(node.value):
                first, *others = map(self.low.source.of, node.targets)
                out.lines += [f"{name} = {first}" for name in others]
            return rule
        if isinstance(node, ast.AugAssign):
            return self._augment(node, out)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return self._expression(node.value, out)
        if isinstance(node, ast.Return) and node.value is not None:
            value = node.value
            stays = isinstance(value, ast.Name) or self._is_own_call(value) and not self._is_view(value)
            made = self.low.is_tile(value) and not stays
            text = self.low.operand(value).text if made else self.low.rewritten(value)
            if out.lines or text != self.low.source.of(node.value):
                out.add(f"return {text}")
                return "return"
        elif any(self._is_old(n) for n in ast.walk(node)):
            raise NeedsPerson("statement", f"{ast.unparse(node)[:60]}: a call of the old API inside it")
        return None

    def _assign(self, node: ast.stmt, target: ast.expr, value: ast.expr, out: Lines) -> str | None:
        if isinstance(target, ast.Subscript):
            return self._into(target, value, out) if self.low.is_tile(target) else self._other(node, value, out)
        if self._is_index(value):
            self._integers(target, out)
            return "index grids"
        if not isinstance(target, ast.Name) or not self.low.is_tile(value):
            return self._other(node, value, out)
        if isinstance(value, ast.Call) and self._allocates(value):
            return self._allocation(target.id, value, out)
        fact = self.low.fact(value)
        assert fact is not None
        if self._is_view(value):
            operand = self.low.operand(value)
            if operand.text == self.low.source.of(value) and not isinstance(node, ast.AnnAssign):
                return None
            out.add(f"{target.id} = {operand.text}")
            return "views"
        used = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        name = self.names.new(target.id) if target.id in used else target.id
        memory = "psum" if fact.memory == "psum" else "sbuf"
        if self._is_own_call(value):
            out.add(f"{target.id} = {self.low.rewritten(value)}")
            return None if len(out.lines) == 1 and out.lines[0] == self.low.source.of(node) else "calls"
        mark = len(out.lines)
        made = out.allocate(name, fact.shape, self._dtype(value, fact), memory)
        allocation = out.lines[mark:]
        del out.lines[mark:]
        result = self.low.compute(value, made)
        if made.memory == result.memory and result.text == made.text:
            out.lines[mark:mark] = allocation  # before whatever writes it
        if name != target.id or result.text != made.text:
            out.add(f"{target.id} = {result.text}")
        return "functional forms"

    def _integers(self, target: ast.expr, out: Lines) -> None:
        """What a helper gave beside grids: an integer where a dimension has one index only."""
        for name in [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]:
            values = self.low.watcher.named.get((self.low.scope, name), set())
            if len(values) == 1:
                out.add(f"{name} = {next(iter(values))}")

    def _dtype(self, value: ast.expr, fact: TileFact) -> str:
        """The dtype as the old call wrote it, where that says more than a constant."""
        if isinstance(value, ast.Call):
            for keyword in value.keywords:
                if keyword.arg == "dtype" and not (isinstance(keyword.value, ast.Constant)):
                    text = self.low.source.of(keyword.value)
                    return fact.dtype if text.startswith("np.") else text
        return fact.dtype

    def _into(self, target: ast.Subscript, value: ast.expr, out: Lines) -> str | None:
        if isinstance(value, ast.Call) and self.low.calls.called(value) == "nl.loop_reduce":
            return self._loop_reduce(target, value, out)
        axes = self.low.in_pieces(target)
        if axes:
            fact = self.low.fact(target)
            assert fact is not None
            if self._mask_of(value) is not None:
                raise NeedsPerson("mask", f"{ast.unparse(target)[:60]} is written in pieces, under a mask")
            made = out.allocate(self.names.new("made"), fact.shape, fact.dtype, "sbuf")
            self.low.compute(value, made) if self.low.is_tile(value) else memset(self.low, made, value)
            self.low.copy_pieces(target, axes, made, into_tile=False)
            return "functional forms"
        if not self.low.is_tile(value):
            dst = self.low.operand(target)
            filled = (
                out.allocate(self.names.new("filled"), dst.shape, dst.dtype, "sbuf") if dst.memory == "hbm" else dst
            )
            memset(self.low, filled, value)
            self.low.finished(filled, dst)
            return "fills"
        fact = self.low.fact(target)
        assert fact is not None
        cut = self._mask_of(value)
        dst = self.low.operand(target, {} if cut is None else self.low.mask(cut)[0])
        if cut is not None and ":" in dst.text and self.low.mask(cut)[0]:
            dst = Operand(dst.text, (Sum.of(1),) * len(dst.shape), dst.dtype, dst.memory)  # it is cut already
        self.low.overwrites = self.low.watcher.seen[number_of(target)].overwrites
        self.low.compute(value, dst)
        self.low.overwrites = False
        return "functional forms"

    def _mask_of(self, value: ast.expr) -> ast.expr | None:
        if not isinstance(value, ast.Call) or not self.low.calls.called(value).startswith(("nl.", "nisa.")):
            return None
        name = self.low.calls.called(value)
        if name in _MASKED_OPERAND:
            return None
        return arguments(name, value).get("mask")

    def _loop_reduce(self, target: ast.Subscript, value: ast.Call, out: Lines) -> str:
        """The first iteration sets the destination, each later one adds to it."""
        given = arguments("nl.loop_reduce", value)
        loops = given["loop_indices"]
        assert isinstance(loops, (ast.List, ast.Tuple))
        first = " and ".join(f"{self.low.source.of(loop)} == 0" for loop in loops.elts)
        clip, guard = self.low.mask(given.get("mask"))
        if clip:
            raise NeedsPerson("mask", "nl.loop_reduce under a mask that cuts it")
        dst, data = self.low.operand(target, is_written=True), self.low.operand(given["x"])
        if dst.memory == data.memory == "psum":
            data = self.low.in_sbuf(data)
        if guard is None and "hbm" in (dst.memory, data.memory):  # tiles that did not fit
            fact = self.low.fact(target)
            assert fact is not None
            data = self.low.in_sbuf(data)
            with out.only_if(first):
                self.low.copied(data, dst, dst.dtype)
            with out.only_if(f"not ({first})"):
                made = out.allocate(self.names.new("sum"), fact.shape, fact.dtype, "sbuf")
                self.low.combine(self.low.op(given["op"]).removeprefix("nl."), dst, data, made, fact, {})
                self.low.finished(made, dst)
            return "loop_reduce"
        with out.only_if(guard):
            out.add(f"if {first}:")
            out.add(f"    nisa.tensor_copy(dst={dst.text}, src={data.text})")
            out.add("else:")
            inner = Lines(self.names)
            inner.call("nisa.tensor_tensor", dst=dst.text, data1=dst.text, data2=data.text, op=self.low.op(given["op"]))
            for line in inner.lines:
                out.add(f"    {line}")
        return "loop_reduce"

    def _augment(self, node: ast.AugAssign, out: Lines) -> str | None:
        if not self.low.is_tile(node.target):
            if self.low.is_tile(node.value):
                raise NeedsPerson("operator", f"{ast.unparse(node)[:60]}: what it is added to has no name")
            self._unseen(node.value)
            return None
        dst = self.low.operand(node.target, is_written=True)
        product = self.low.calls.called(node.value) in _PRODUCTS
        if product and isinstance(node.op, ast.Add) and dst.memory == "psum":
            self.low.compute(node.value, dst)  # matrix products add up in PSUM by themselves
            return "accumulation"
        if type(node.op) not in _OPERATORS:
            raise NeedsPerson("operator", f"{ast.unparse(node)[:60]}")
        cut = self._mask_of(node.value)
        clip = {} if cut is None else self.low.mask(cut)[0]
        other = self.low.operand(node.value)
        fact = self.low.fact(node.target)
        assert fact is not None
        made = out.allocate(self.names.new("sum"), fact.shape, fact.dtype, "sbuf") if dst.memory == "hbm" else dst
        self.low.combine(_OPERATORS[type(node.op)], dst, other, made, fact, clip)
        self.low.finished(made, dst, clip)
        return "accumulation"

    def _expression(self, call: ast.Call, out: Lines) -> str | None:
        name = self.low.calls.called(call)
        if name == "nl.store":
            return self._store(call, out)
        if name == "nisa.dma_copy":
            given = arguments(name, call)
            clip, guard = self.low.mask(given.get("mask"))
            dst, src = self.low.operand(given["dst"], clip, is_written=True), self.low.operand(given["src"], clip)
            with out.only_if(guard):
                out.call("nisa.dma_copy", dst=dst.text, src=src.text)
            return "functional forms"
        if name.startswith(("nl.", "nisa.")):
            if self.low.is_tile(call):
                self.low.compute(call, None)
                return "functional forms"
            self._unseen(call)
            return None
        text = self.low.rewritten(call)
        if text == self.low.source.of(call) and not out.lines:
            return None
        out.add(text)
        return "calls"

    def _store(self, call: ast.Call, out: Lines) -> str | None:
        given = arguments("nl.store", call)
        if not self.low.is_tile(given["dst"]):
            self._unseen(call)
            return None
        clip, guard = self.low.mask(given.get("mask"))
        value = given["value"]
        data = self.low.operand(value, clip) if isinstance(value, ast.Subscript) else self.low.operand(value)
        if data.memory == "psum":
            data = self.low.in_sbuf(data)
            data = clipped(data, clip)
        elif not isinstance(value, ast.Subscript):
            data = clipped(data, self._aligned(clip, given["dst"], data))
        dst = self.low.operand(given["dst"], clip, loose=True)
        with out.only_if(guard):
            out.call("nisa.dma_copy", dst=dst.text, src=data.text)
        return "load and store"

    def _aligned(self, clip: dict[int, str] | object, dst: ast.expr, data: Operand) -> dict[int, str]:
        """The mask's axes as axes of the value, which may lack those of size 1."""
        assert isinstance(clip, dict)
        fact = self.low.fact(dst)
        assert fact is not None
        if len(fact.shape) == len(data.shape):
            return clip
        kept = [k for k, size in enumerate(fact.shape) if size.value != 1]
        places = [k for k, size in enumerate(data.shape) if size.value != 1]
        return {new: clip[old] for old, new in zip(kept, places) if old in clip}

    # --- allocations -------------------------------------------------------------------------------

    def _allocates(self, node: ast.Call) -> bool:
        return self.low.calls.called(node) in ALLOCATIONS

    def _layout(self, node: ast.Call) -> None:
        site = number_of(node)
        seen = self.low.watcher.seen.get(site)
        fact = seen.any() if seen is not None else None
        if isinstance(fact, TileFact) and fact.memory != "hbm":
            self.low.layouts[site] = layout_of(self.low.watcher, site, fact, self.spilled)

    def _allocation(self, name: str, node: ast.Call, out: Lines) -> str | None:
        fact = self.low.fact(node)
        if fact is None:
            self._unseen(node)
            return None
        called = self.low.calls.called(node)
        given = arguments(called, node)
        layout = self.low.layouts.get(number_of(node))
        function = called
        shape = [size.text for size in fact.shape]
        if layout is not None:
            shape = [fact.shape[k].text for k in layout.order]
            if layout.memory == "psum" and function == "nl.zeros" and layout.products:
                function = "nl.ndarray"
            if layout.memory == "sbuf" and function == "nl.ndarray" and self.low.watcher.uses[number_of(node)].starts:
                function = "nl.zeros"  # only in PSUM does the first product set what was never written
        elif "shape" in given and fact.memory == "hbm":
            original = given["shape"]
            if not isinstance(original, (ast.Tuple, ast.List)):
                shape = []
        if len(shape) == 1 and fact.memory != "hbm":
            shape.append("1")
        dims = ", ".join(shape) + ("," if len(shape) == 1 else "") if shape else ""
        sizes = f"({dims})" if shape else self.low.rewritten(given["shape"])
        function = {"nl.zeros_like": "nl.zeros", "nl.empty_like": "nl.ndarray"}.get(function, function)
        fill = ""
        if function == "nl.full":
            text = calls.number(given["fill_value"]) or self.low.rewritten(given["fill_value"])
            fill = f"{text}, "
        dtype = self.low.source.of(given["dtype"]) if "dtype" in given else dtype_text(fact.dtype)
        if dtype.startswith("np.") or "." not in dtype and not dtype.isidentifier():
            dtype = dtype_text(fact.dtype)
        memory = "shared_hbm" if fact.memory == "hbm" else self.low.memory(fact)
        line = f"{name} = {function}({sizes}, {fill}dtype={dtype}, buffer=nl.{memory})"
        if layout is not None and layout.loop is not None:
            self.moved[layout.loop].append(line)
            return "allocation"
        out.add(line)
        return "allocation"

    # --- what stays --------------------------------------------------------------------------------

    def _is_index(self, node: ast.expr) -> bool:
        seen = self.low.watcher.seen.get(number_of(node))
        if isinstance(node, (ast.Tuple, ast.List)) and node.elts:
            return all(self._is_index(each) for each in node.elts)
        first = seen.any() if seen is not None else None
        return isinstance(first, GridFact) or first == "grids"

    def _is_view(self, node: ast.expr) -> bool:
        if isinstance(node, (ast.Subscript, ast.Name)):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and self.low.is_tile(node.func.value):
            return node.func.attr in ("reshape", "broadcast_to")
        return isinstance(node, ast.Call) and self.low.calls.called(node) == "nl.shared_constant"

    def _is_own_call(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return not isinstance(node, (ast.BinOp, ast.UnaryOp))
        return not self.low.calls.called(node).startswith(("nl.", "nisa.")) and not isinstance(node.func, ast.Attribute)

    def _other(self, node: ast.stmt, value: ast.expr, out: Lines) -> str | None:
        if isinstance(node, ast.Assign):
            text = self.low.operand(value).text if self.low.is_tile(value) else self.low.rewritten(value)
            if text != self.low.source.of(value):
                out.add(f"{self.low.source.of(node.targets[0])} = {text}")
                return "calls"
        self._unseen(value)
        return None

    def _unseen(self, node: ast.expr) -> None:
        """Nothing to do, or a note where this run did not get to code of the old API."""
        if any(isinstance(each, ast.Call) and self.low.unreached(each) for each in ast.walk(node)):
            raise NeedsPerson("unreached", "not run with these arguments, so not rewritten")


def _forget(counts: dict[str, str], statement: ast.stmt) -> None:
    """Take out the names of extents in whose expressions is a name that the statement binds."""
    bound = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for expression in [text for text in counts if bound & set(re.findall(r"\w+", text))]:
        del counts[expression]


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """What of a statement a run would have seen."""
    return (n for n in ast.walk(statement) if isinstance(n, (ast.Call, ast.Name, ast.Subscript, ast.BinOp)))


__all__ = ["Statements"]
