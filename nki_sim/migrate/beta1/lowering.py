"""Expressions that return tiles, as instructions that write them: one method for each group of functions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from nki_sim.beta1 import language
from nki_sim.beta1.facts import GridFact, Sum, TileFact
from nki_sim.beta1.instrument import number_of
from nki_sim.beta1.symbols import written
from nki_sim.beta1.watching import Watcher
from nki_sim.migrate import calls
from nki_sim.migrate.calls import Calls, arguments
from nki_sim.migrate.code import Lines
from nki_sim.migrate.edits import Source
from nki_sim.migrate.layouts import Layout
from nki_sim.migrate.operands import NO_CLIP, UNKNOWN, Clip, NeedsPerson, Operand, clipped, outer_axes, piece, subscript

_OPERATORS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_REDUCE = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}
_NUMPY_OPS = {"max": "maximum", "min": "minimum", "sum": "add", "prod": "multiply", "amax": "maximum"}
_ON_SCALAR = set(language.UNARY) - {"reciprocal", "abs", "negative", "floor", "ceil", "trunc", "sin", "cos"}

_LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_COMPUTING = (ast.Subscript, ast.Call, ast.BinOp, ast.UnaryOp)
"""Expressions in which something is done to a tile."""

LOWERED: dict[str, Callable[..., Operand]] = {}
"""The rewrite of each old function by its name; `instructions.py` fills it."""


class Lowering:
    """Turns the expressions of one module's kernels into instructions of the current API."""

    def __init__(self, source: Source, names: Calls, watcher: Watcher) -> None:
        self.source = source
        self.calls = names
        self.watcher = watcher
        self.layouts: dict[int, Layout] = {}
        self.scope = ""
        """The function whose statements are rewritten, by the path to it."""
        self.idle_masks: dict[int, ast.expr] = {}
        """Masks that are gone because they let everything through."""
        self.overwrites = False
        """The product under way replaces what earlier ones left in the same place."""
        self.out: Lines = None  # type: ignore[assignment]

    # --- what was seen -----------------------------------------------------------------------------

    def fact(self, node: ast.AST) -> TileFact | None:
        """The tile that an expression gives, as this function would write its sizes; None if it gives none."""
        found = self._fact(node)
        return None if found is None else found.seen_from(self.scope)

    def _fact(self, node: ast.AST) -> TileFact | None:
        seen = self.watcher.seen.get(number_of(node))
        if seen is None:
            return None
        found = seen.only()
        if found is None and isinstance(seen.any(), TileFact):
            return self._varying(list(seen.kinds.values()), node)
        return found if isinstance(found, TileFact) else None

    def _varying(self, facts: list[TileFact], node: ast.AST) -> TileFact:
        """Several visits that differ in what does not matter here, such as the buffer an operand is in."""
        first = facts[0]
        if all((f.shape, f.dtype, f.memory) == (first.shape, first.dtype, first.memory) for f in facts):
            if all(f.index == first.index for f in facts) or isinstance(node, ast.Name):
                return first
            if all(f.index is not None and _walk(f) == _walk(first) for f in facts):  # tensors of several sizes
                return replace(first, index=tuple(replace(d, size=UNKNOWN) for d in first.index or ()))
        if isinstance(node, ast.Name) and all(f.memory == first.memory and f.dtype == first.dtype for f in facts):
            return first
        line = getattr(node, "lineno", 0)
        raise NeedsPerson("irregular", f"{ast.unparse(node)} (line {line}) is indexed irregularly from visit to visit")

    def is_tile(self, node: ast.AST) -> bool:
        seen = self.watcher.seen.get(number_of(node))
        return seen is not None and isinstance(seen.any(), TileFact)

    def is_mask(self, node: ast.AST) -> bool:
        """Whether an expression is a comparison of index grids."""
        seen = self.watcher.seen.get(number_of(node))
        return seen is not None and isinstance(seen.any(), GridFact) and seen.any().kind == "mask"

    def layout(self, fact: TileFact) -> Layout | None:
        """The layout of the buffer, where the old one had another."""
        layout = self.layouts.get(fact.site)
        if layout is not None and fact.kept is not None:
            return layout.of_view(fact.kept)
        if layout is None or not fact.root or fact.sizes() == self.watcher.seen[fact.site].any().sizes():
            return layout
        if layout.order != tuple(range(len(layout.order))) or layout.loop is not None:
            raise NeedsPerson("blocks", "a tile with block dimensions is reshaped")
        return None  # reshaped

    def memory(self, fact: TileFact) -> str:
        """Where the buffer is in the new kernel."""
        layout = self.layouts.get(fact.site)
        return fact.memory if layout is None else layout.memory

    # --- masks -------------------------------------------------------------------------------------

    def mask(self, node: ast.expr | None) -> tuple[Clip, str | None]:
        """(what of each axis a mask lets through, the condition for there being anything)."""
        if node is None:
            return {}, None
        number = number_of(node)
        absent, given = number in self.watcher.nones, number in self.watcher.conditions
        seen = self.watcher.seen.get(number)
        if seen is None or not isinstance(seen.any(), GridFact):
            text = self.source.of(node)
            if absent and not given:
                self.idle_masks[number] = node
                return {}, None
            if absent:
                text = text if text.isidentifier() else f"({text})"
                return {}, f"{text} is None or {text}"
            return {}, None if text in ("None", "True") else text
        if seen.box and not seen.empty and not any(seen.cuts) and not given:
            self.idle_masks[number] = node
            for form in seen.only().seen_from(self.scope).forms if seen.only() is not None else ():
                self._assert_holds(form)
            return {}, None
        if absent or given:
            raise NeedsPerson("mask", f"mask {ast.unparse(node)} is a mask at some visits and none at others")
        fact = seen.only()
        if not isinstance(fact, GridFact) or fact.never or not seen.box:
            raise NeedsPerson("mask", f"mask {ast.unparse(node)} is not a box that starts at the first element")
        fact = fact.seen_from(self.scope)
        limits: dict[int, list[str]] = {}
        fixed = True
        guards = []
        rank = max(len(form.shape) for form in fact.forms)
        for form in fact.forms:
            assert form.base is not None
            missing = rank - len(form.shape)
            moving = [k for k, f in enumerate(form.factors) if f and form.shape[k].value > 1]
            if not moving and seen.empty:
                guards.append(f"{form.base.text} > 0")
            elif len(moving) != 1 or form.factors[moving[0]] > 0 or not seen.cuts[moving[0] + missing]:
                self._assert_holds(form)  # a box all the same: it cut nothing
            else:
                axis = moving[0]
                limit = form.base.text
                step = Sum.of(-form.steps[axis].symbol())
                if step.text != "1":
                    limit = f"({limit} - 1) // {written(step.symbol(), tight=True)} + 1"
                fixed = fixed and step.fixed
                limits.setdefault(axis + missing, [form.shape[axis].text]).append(limit)
                fixed = fixed and form.base.fixed
        clip = {axis: self.out.count(axis, f"min({', '.join(each)})") for axis, each in limits.items()}
        for count in clip.values():
            if seen.empty:
                guards.append(f"{count} > 0")
            elif not fixed:
                self.out.require(f"{count} > 0", "a mask lets nothing through")
        return clip, " and ".join(guards) or None

    def _assert_holds(self, form: GridFact) -> None:
        """A condition that is gone, because it let everything through, has to do so with other arguments, too."""
        assert form.base is not None
        ends = [step.symbol() * (size.symbol() - 1) for step, size in zip(form.steps, form.shape) if step.value < 0]
        least = Sum.of(sum(ends, form.base.symbol()))
        if not least.fixed:
            self.out.require(f"{least.text} > 0", "a mask cuts")

    # --- operands ----------------------------------------------------------------------------------

    def operand(self, node: ast.expr, clip: Clip = NO_CLIP, loose: bool = False, is_written: bool = False) -> Operand:
        """An expression as an operand; what computes a tile is computed first."""
        fact = self.fact(node)
        if fact is None:
            number = calls.number(node)
            return Operand(number if number is not None else self.rewritten(node))
        listed = isinstance(node, ast.Subscript) and not self.is_tile(node.value)
        if isinstance(node, ast.Subscript) and fact.index is not None and not listed:
            parent = self.fact(node.value)
            if parent is not None:
                layout = self._parent_layout(parent)
                axes = self.in_pieces(node)
                if axes and is_written:
                    raise NeedsPerson("index", f"{ast.unparse(node)[:60]} walks more dimensions than an instruction")
                if axes:
                    tile = self.out.allocate(self.out.names.new("gathered"), fact.shape, fact.dtype, "sbuf")
                    self.copy_pieces(node, axes, tile, into_tile=True)
                    return clipped(tile, clip)
                name = self.operand(node.value).text if not isinstance(node.value, ast.Name) else node.value.id
                text = subscript(name, fact, parent, layout, clip, loose)
                return Operand(text, fact.shape, fact.dtype, self.memory(fact))
        if isinstance(node, ast.Subscript) and not listed:  # a mask as the index, which let everything through
            return self.operand(node.value, clip, loose)
        if isinstance(node, ast.Name) or listed:
            layout = self.layout(fact)
            turned = layout is not None and layout.order != tuple(range(len(fact.shape)))
            if turned and (fact.root or fact.kept is not None):
                used = ast.unparse(node)
                raise NeedsPerson("blocks", f"{used} is used whole, and its blocks lie in front of its partitions")
            return clipped(Operand(self.rewritten(node), fact.shape, fact.dtype, self.memory(fact), whole=True), clip)
        if isinstance(node, ast.Call) and self.calls.called(node) == "nl.shared_constant":
            return Operand(self._constant(node, fact), fact.shape, fact.dtype, fact.memory)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and self.is_tile(node.func.value):
            return clipped(self._method(node, fact), clip)
        return clipped(self.compute(node, None), clip)

    def in_pieces(self, node: ast.expr) -> list[int]:
        """Axes of a subscript over which it is copied piece by piece: no access pattern walks all of them."""
        fact = self.fact(node)
        parent = self.fact(node.value) if isinstance(node, ast.Subscript) else None
        return [] if fact is None or parent is None else outer_axes(fact, parent, self._parent_layout(parent))

    def copy_pieces(self, node: ast.Subscript, axes: list[int], tile: Operand, into_tile: bool) -> None:
        """A loop of copies between a subscript and a tile of as many dimensions."""
        fact, parent = self.fact(node), self.fact(node.value)
        assert fact is not None and parent is not None
        at = {axis: self.out.names.new("piece") for axis in axes}
        name = self.operand(node.value).text if not isinstance(node.value, ast.Name) else node.value.id
        part = subscript(name, piece(fact, at), parent, self._parent_layout(parent))
        whole = f"{tile.text}[{', '.join(at.get(axis, ':') for axis in range(len(fact.shape)))}]"
        dst, src = (whole, part) if into_tile else (part, whole)
        with self.out.loops({name: fact.shape[axis].text for axis, name in at.items()}):
            self.out.call("nisa.tensor_copy", dst=dst, src=src)

    def _parent_layout(self, parent: TileFact) -> Layout | None:
        return self.layout(parent) if parent.root or parent.kept is not None else None

    def _constant(self, node: ast.Call, fact: TileFact) -> str:
        """`nl.shared_constant(array, dtype=...)`: the array itself has to be of that type now."""
        array = arguments("nl.shared_constant", node)["constant"]
        text = self.rewritten(array)
        if self.watcher.arrays.get(number_of(array)) != {fact.dtype}:
            if not hasattr(np, fact.dtype):
                raise NeedsPerson("constant", f"NumPy has no {fact.dtype}: make {text} an array of it (ml_dtypes)")
            text = f"np.asarray({text}, dtype=np.{fact.dtype})"
        return f"nl.shared_constant({text})"

    def rewritten(self, node: ast.expr) -> str:
        """The source of an expression that is no tile, with the tiles inside it rewritten."""
        text, base = self.source.of(node), self.source.span(node)[0]
        inner = [n for n in ast.walk(node) if isinstance(n, _COMPUTING) and n is not node]
        limits = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and self.limit(n)]
        changes = [(*self.source.span(n), self.limit(n)) for n in limits]
        repeated, later = _within(node, _LOOPS), _within(node, ast.Lambda)
        for each in inner:
            start, end = self.source.span(each)
            if any(a <= start and end <= b for a, b, _ in changes) or not self.is_tile(each):
                if isinstance(each, ast.Call) and self.unreached(each) and id(each) not in later:
                    raise NeedsPerson("condition", f"{ast.unparse(each)[:60]} was not run: write it under an if")
                continue
            fact = self.fact(each)
            if fact is not None and (not isinstance(each, ast.Subscript) or fact.index is not None):
                changes.append((start, end, self.operand(each).text))
                if id(each) in repeated and changes[-1][2] != self.source.of(each):
                    raise NeedsPerson("comprehension", f"{ast.unparse(each)[:60]} in a loop within an expression")
        for start, end, new in sorted(changes, reverse=True):
            text = text[: start - base] + new + text[end - base :]
        is_bare = "\n" in text and text != self.source.of(node)  # what stands around it is not carried over
        return f"({text})" if is_bare and not isinstance(node, (ast.Call, ast.Subscript)) else text

    def unreached(self, node: ast.Call) -> bool:
        """Whether this run did not get to a call of the old API that has to be rewritten."""
        name = self.calls.called(node)
        old = name.startswith(("nl.", "nisa.")) and name not in calls.KEPT
        return old and number_of(node) not in self.watcher.reached

    def limit(self, node: ast.Attribute) -> str:
        """`nl.finfo(x.dtype).min` and `nl.fp32.min`, which are gone, as the number they were; else nothing."""
        of = self.calls.called(node.value) or self.calls.name(node.value)
        values = self.watcher.floats.get(number_of(node), set())
        return repr(next(iter(values))) if of in ("nl.finfo", "nl.fp32") and len(values) == 1 else ""

    def _method(self, node: ast.Call, fact: TileFact) -> Operand:
        assert isinstance(node.func, ast.Attribute)
        method = node.func.attr
        if method == "broadcast_to":
            return self._broadcast(self.operand(node.func.value), fact)
        if method == "astype":
            return self.copied(self.operand(node.func.value), None, fact.dtype)
        if method == "reshape":
            inner = self.operand(node.func.value).text
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            shape = ", ".join(self.rewritten(a) for a in given)
            text = f"({shape})" if len(given) > 1 else shape
            return Operand(f"{inner}.reshape({text})", fact.shape, fact.dtype, fact.memory)
        raise NeedsPerson("method", f".{method}() of a tile")

    def _broadcast(self, data: Operand, fact: TileFact) -> Operand:
        if data.shape and data.shape[0].value == fact.shape[0].value:
            text = data.text
            for axis, (old, new) in enumerate(zip(data.shape, fact.shape)):
                if old.value != new.value:
                    text += f".broadcast({axis}, {new.text})"
            return Operand(text, fact.shape, data.dtype, data.memory)
        shape = ", ".join(size.text for size in fact.shape)
        name = self.out.names.new("broadcast")
        self.out.add(f"{name} = nl.broadcast_to({data.text}, ({shape}))")
        return Operand(name, fact.shape, data.dtype, "sbuf", whole=True)

    # --- expressions -------------------------------------------------------------------------------

    def compute(self, node: ast.expr, target: Operand | None) -> Operand:
        """Instructions for an expression that makes a tile, into `target` or a new tile."""
        fact = self.fact(node)
        if fact is None:
            raise NeedsPerson("unseen", f"{ast.unparse(node)[:60]} gave no tile")
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return self.binary(_OPERATORS[type(node.op)], node.left, node.right, fact, target, None)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self.scaled(self.operand(node.operand), "multiply", "-1.0", fact, target, {})
        if isinstance(node, ast.Call):
            name = self.calls.called(node)
            if name.startswith(("nl.", "nisa.")):
                return self._call(name, node, fact, target)
            if isinstance(node.func, ast.Attribute) and self.is_tile(node.func.value):
                return self.copied(self._method(node, fact), target, fact.dtype)
        if isinstance(node, (ast.Subscript, ast.Name)):
            return self.copied(self.operand(node), target, fact.dtype)
        if isinstance(node, ast.Call):  # a function of the user's own that returns a tile
            value = Operand(self.rewritten(node), fact.shape, fact.dtype, fact.memory)
            return value if target is None else self.copied(value, target, fact.dtype)
        raise NeedsPerson("expression", f"{ast.unparse(node)[:60]} as a tile")

    def _call(self, name: str, node: ast.Call, fact: TileFact, target: Operand | None) -> Operand:
        short = name.partition(".")[2]
        given = arguments(name, node)
        if name in ("nl.zeros", "nl.ones"):
            given = {**given, "fill_value": ast.Constant(int(short == "ones"))}
        if name.startswith("nl.") and short in language.BINARY:
            return self.binary(short, given["x"], given["y"], fact, target, given.get("mask"), given.get("dtype"))
        if name.startswith("nl.") and short in _ON_SCALAR:
            return LOWERED["function"](self, {**given, "op": node.func}, fact, target)
        if name.startswith("nl.") and short in _REDUCE:
            return LOWERED["reduction"](self, {**given, "op": ast.Constant(_REDUCE[short])}, fact, target)
        if short in LOWERED:
            return LOWERED[short](self, given, fact, target)
        raise NeedsPerson("function", f"{name} has no rewrite")

    def new(self, fact: TileFact, target: Operand | None, memory: str, wish: str, dtype: str = "") -> Operand:
        """Where an instruction writes: the target if it can write there, else a new tile."""
        if target is not None and target.memory == memory and (not dtype or target.dtype == dtype):
            return target
        return self.out.allocate(self.out.names.new(wish), fact.shape, dtype or fact.dtype, memory)

    def finished(self, made: Operand, target: Operand | None, clip: Clip = NO_CLIP) -> Operand:
        """The target, into which what was made elsewhere is copied."""
        if target is None or made is target:
            return made
        if target.memory == "hbm":
            made = self.in_sbuf(made) if made.memory == "psum" else made
            self.out.call("nisa.dma_copy", dst=clipped(target, clip).text, src=clipped(made, clip).text)
        else:
            self.out.call("nisa.tensor_copy", dst=clipped(target, clip).text, src=clipped(made, clip).text)
        return target

    def copied(self, data: Operand, target: Operand | None, dtype: str, clip: Clip = NO_CLIP) -> Operand:
        if target is None:
            target = self.out.allocate(self.out.names.new("copied"), data.shape, dtype, "sbuf")
        if data.memory == "hbm" and target.memory == "psum":
            data = self.staged(data)
        elif data.memory == "psum" and target.memory == "hbm":
            data = self.in_sbuf(data)
        move = "nisa.dma_copy" if "hbm" in (data.memory, target.memory) else "nisa.tensor_copy"
        self.out.call(move, dst=clipped(target, clip).text, src=clipped(data, clip).text)
        return target

    def staged(self, data: Operand) -> Operand:
        """An HBM operand in SBUF."""
        tile = self.out.allocate(self.out.names.new("loaded"), data.shape, data.dtype, "sbuf")
        self.out.call("nisa.dma_copy", dst=tile.text, src=data.text)
        return tile

    def in_sbuf(self, data: Operand) -> Operand:
        return data if data.memory == "sbuf" else self.copied(data, None, data.dtype)

    def as_float32(self, data: Operand) -> Operand:
        """[P, 1] operands beside a tile are float32."""
        return data if not data.is_tile or data.dtype == "float32" else self.copied(data, None, "float32")

    def op(self, node: ast.expr) -> str:
        """`op=np.add` as `nl.add`."""
        if isinstance(node, ast.Constant):
            return f"nl.{node.value!s}"
        base, _, short = self.calls.name(node).rpartition(".")
        if base not in ("np", "nl"):
            return self.source.of(node)
        return f"nl.{_NUMPY_OPS.get(short, short)}"

    # --- two tiles, or a tile and a number ------------------------------------------------------------

    def binary(
        self,
        op: str,
        left: ast.expr,
        right: ast.expr,
        fact: TileFact,
        target: Operand | None,
        mask: ast.expr | None,
        dtype: ast.expr | None = None,
    ) -> Operand:
        clip, guard = self.mask(mask)
        one, two = self.operand(left), self.operand(right)
        dst = self.new(fact, target, target.memory if target and target.memory != "hbm" else "sbuf", "result")
        with self.out.only_if(guard):
            self.combine(op, one, two, dst, fact, clip)
            return self.finished(dst, target, clip)

    def combine(self, op: str, one: Operand, two: Operand, dst: Operand, fact: TileFact, clip: Clip) -> None:
        """dst = one <op> two by whichever instruction takes these shapes."""
        if op == "divide":
            return self._divide(one, two, dst, fact, clip)
        if not one.is_tile or not two.is_tile:
            data, number, reverse = (one, two, False) if one.is_tile else (two, one, True)
            return self._with_number(op, data, number.text, reverse, dst, clip)
        sizes = prod(fact.sizes())
        small = [prod(each.sizes()) < sizes for each in (one, two)]
        if all(small):  # a column and a row: the row is repeated
            if one.is_column():
                two, small[1] = self._broadcast(two, fact), False
            else:
                one, small[0] = self._broadcast(one, fact), False
        if small[0] != small[1]:
            data, other, reverse = (two, one, True) if small[0] else (one, two, False)
            if other.is_column() and other.shape[0].value == data.shape[0].value:
                column = self.as_float32(other)
                rows = {k: v for k, v in clip.items() if k == 0}
                return self._with_number(op, data, clipped(column, rows).text, reverse, dst, clip)
            other = self._broadcast(other, fact)
            one, two = (other, data) if reverse else (data, other)
        if one.memory == two.memory == "psum":
            two = self.in_sbuf(two)
        one, two = (self.staged(each) if each.memory == "hbm" else each for each in (one, two))
        self.out.call(
            "nisa.tensor_tensor",
            dst=clipped(dst, clip).text,
            data1=clipped(one, clip).text,
            data2=clipped(two, clip).text,
            op=f"nl.{op}",
        )
        return None

    def _with_number(self, op: str, data: Operand, number: str, reverse: bool, dst: Operand, clip: Clip) -> None:
        commutes = op in ("add", "multiply", "maximum", "minimum")
        self.out.call(
            "nisa.tensor_scalar",
            dst=clipped(dst, clip).text,
            data=clipped(data, clip).text,
            op0=f"nl.{op}",
            operand0=number,
            reverse0="True" if reverse and not commutes else None,
        )

    def _divide(self, one: Operand, two: Operand, dst: Operand, fact: TileFact, clip: Clip) -> None:
        """No engine divides: multiply by the reciprocal."""
        if one.is_tile:
            rows = {k: v for k, v in clip.items() if k < 1 or not two.is_column()}
            return self.combine("multiply", one, self.inverse(two, rows), dst, fact, clip)
        self.out.call("nisa.reciprocal", dst=clipped(dst, clip).text, data=clipped(two, clip).text)
        if one.text not in ("1", "1.0"):
            self._with_number("multiply", dst, one.text, False, dst, clip)
        return None

    def inverse(self, of: Operand, clip: Clip) -> Operand:
        """1 divided by a number, or by the part of a tile that a mask lets through."""
        if not of.is_tile:
            return Operand(f"1.0 / ({of.text})")
        made = self.out.allocate(self.out.names.new("inverse"), of.shape, "float32", "sbuf")
        self.out.call("nisa.reciprocal", dst=clipped(made, clip).text, data=clipped(of, clip).text)
        return made

    def scaled(
        self, data: Operand, op: str, number: str, fact: TileFact, target: Operand | None, clip: Clip
    ) -> Operand:
        dst = self.new(fact, target, "sbuf", "scaled")
        self._with_number(op, data, number, False, dst, clip)
        return self.finished(dst, target, clip)


def _within(node: ast.expr, kinds: Any) -> set[int]:
    """The nodes inside expressions of some kinds, by `id`."""
    return {id(inner) for outer in ast.walk(node) if isinstance(outer, kinds) for inner in ast.walk(outer)}


def _walk(fact: TileFact) -> list[Any]:
    """How a subscript walks its tensor, whatever the tensor's sizes."""
    return [(d.base.key(), tuple(step.key() for step in d.steps)) for d in fact.index or ()]


Lower = Callable[[Lowering, dict[str, ast.expr], TileFact, Operand | None], Operand]
