"""Which part of a buffer an operand names, and the same part for many iterations of a loop at once.

An operand is a buffer's name with an interval, a stride or an index for each dimension. Where its place moves on with
a loop's variable, the parts of all iterations are one part again: a longer interval where they follow one another
(`t[:, j * w : (j + 1) * w]` is `t[:, 0 : n * w]`), an access pattern with one dimension more where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.index_algebra import Indices, Polynomial, expression_of, number
from accelopt_core.transforms.isa_effects import PARAMETERS
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.syntax import loaded_names, parsed_expression

ON_CHIP = frozenset({"sbuf", "psum"})
HBM = frozenset({"hbm", "shared_hbm", "private_hbm"})
ONE = number(1)


@dataclass(frozen=True)
class Dim:
    """Elements start, start + step, ... of one dimension."""

    start: Polynomial
    length: Polynomial
    step: Polynomial = ONE
    dropped: bool = False
    """Given by an index, so that the view has no such dimension."""

    @property
    def text(self) -> str:
        if self.dropped:
            return str(self.start)
        if self.step == ONE:
            return f"{self.start} : {self.start + self.length}"
        return f"{self.start} : {self.start + (self.length - ONE) * self.step + ONE} : {self.step}"


@dataclass(frozen=True)
class Access:
    """Part of a buffer, dimension by dimension."""

    name: str
    sizes: tuple[Polynomial, ...]
    """Of the buffer, as far as the dimensions are known."""
    dims: tuple[Dim, ...]
    on_chip: bool
    is_buffer: bool
    """The name is the buffer itself and not a view, so that the sizes are its layout."""
    rank_is_known: bool
    """False: the operand gives `len(dims)` indices, and that these are all is to be asserted."""

    @property
    def text(self) -> str:
        whole = all(dim == Dim(number(0), size) for dim, size in zip(self.dims, self.sizes))
        return self.name if whole else f"{self.name}[{', '.join(dim.text for dim in self.dims)}]"

    @property
    def kept(self) -> tuple[int, ...]:
        """Dimensions that the view has; on chip an index of the partitions leaves one of them."""
        return tuple(at for at, dim in enumerate(self.dims) if not dim.dropped or (self.on_chip and at == 0))

    def lengths(self, dims: tuple[int, ...]) -> tuple[Polynomial, ...]:
        return tuple(self.dims[at].length for at in dims)

    def moving(self, variable: str) -> tuple[int, ...]:
        return tuple(at for at, dim in enumerate(self.dims) if variable in dim.start.factors)

    def pitch(self, dimension: int) -> Polynomial:
        """Elements from one index of a dimension to the next."""
        total = ONE
        for size in self.sizes[dimension + 1 :]:
            total *= size
        return total


@dataclass(frozen=True)
class Iterations:
    """`count` iterations of a loop, from `first` on."""

    variable: str
    first: Polynomial
    count: Polynomial

    def start(self, dim: Dim) -> Polynomial:
        """Of the first of them."""
        step, rest = dim.start.split(self.variable)
        return step * self.first + rest


@dataclass(frozen=True)
class Merged:
    """One operand of all iterations, element by element in the order `before`, iterations, `after`."""

    text: str
    before: tuple[Polynomial, ...]
    after: tuple[Polynomial, ...]
    own_dimension: bool
    """The iterations are a dimension of the view and not part of a longer one."""


class AccessReader:
    """Reads operands, within a loop: nothing in what it returns but the variable changes with that."""

    def __init__(self, code: KernelCode, loop: Statement | None = None, changing: frozenset[str] = frozenset()) -> None:
        self._code = code
        self._loop = loop
        self._variable = loop.variable if loop is not None else ""
        self._changing = changing
        self.indices = Indices(code, changing - {self._variable})
        """Keeps the kernel's own names; sees through those alone that change."""
        self.full = Indices(code)
        self.assumed: dict[str, str] = {}
        """Conditions under which no bound cuts the last iteration short, each with what to say where it does."""
        self.cuts: list[tuple[Polynomial, Polynomial]] = []
        """Each of these ends, with the bound that may cut it short."""
        self.cut_starts = 0
        """How many of them are where something begins, and not where it ends."""

    def number(self, expression: cst.BaseExpression, at: Statement) -> Polynomial:
        """Linear in the variable. Raises IllegalSite where it changes with the loop in another way."""
        found = self._uncut(self.indices.polynomial(expression, at), at)
        step, rest = found.split(self._variable)
        if (self.indices.names(step) | self.indices.names(rest)) & self._changing:
            text = self._code.module.code_for_node(expression)
            raise IllegalSite(f"line {at.line}: {text} is not linear in {self._variable}")
        return found

    def _uncut(self, found: Polynomial, at: Statement) -> Polynomial:
        """With `start + T` for `min(start + T, N)`: assumed is that the last iteration still has all of its T."""
        for factor in found.factors:
            call = expression_of(factor)
            if not isinstance(call, cst.Call) or len(call.args) != 2 or not self.indices.names(found) & self._changing:
                continue
            named = self._code.module.code_for_node(call.func) == "min" and self._code.is_pythons_own("min")
            if not named or self._loop is None or self._loop.count is None:
                continue
            left, right = (self.indices.polynomial(arg.value, at) for arg in call.args)
            slope = (left - right).split(self._variable)[0]
            if not slope.terms or self._variable in slope.factors:
                continue
            if slope.adds_up:
                kept, bound = left, right
            elif (number(-1) * slope).adds_up:
                kept, bound = right, left
            else:
                continue
            last = self.indices.polynomial(self._loop.count, self._loop) - ONE
            ends = [step * last + rest for step, rest in (each.split(self._variable) for each in (kept, bound))]
            if any(self.indices.names(end) & self._changing for end in ends):
                continue
            whole = f"the last iteration over {self._variable} must be a whole one"
            self.assumed[f"{ends[0]} <= {ends[1]}"] = whole
            self.cuts.append((kept, bound))
            found = _instead_of(found, factor, kept)
        return found

    def same(self, left: Polynomial, right: Polynomial, at: Statement) -> bool:
        return left == right or self.full.expanded(left, at) == self.full.expanded(right, at)

    def fits(self, length: Polynomial, space: Polynomial, at: Statement) -> bool:
        """It is at most that, for certain."""
        return length == space or self.full.at_most(self.full.expanded(length, at), self.full.expanded(space, at))

    def access(self, expression: cst.BaseExpression, at: Statement) -> Access:
        """Raises IllegalSite for anything but a name and its indices."""
        base, elements = expression, []
        if isinstance(expression, cst.Subscript):
            base = expression.value
            elements = [element.slice for element in expression.slice]
        if not isinstance(base, cst.Name):
            text = self._code.module.code_for_node(expression)
            raise IllegalSite(f"line {at.line}: {text} is no buffer with its indices")
        name = base.value
        regions = self._code.regions_of(base)
        if not regions or not (regions <= ON_CHIP or regions <= HBM):
            raise IllegalSite(f"line {at.line}: nobody can tell where {name} lies")
        sizes = self.sizes(name)
        rank_is_known, dots = sizes is not None, [isinstance(each, cst.Index) and _dots(each) for each in elements]
        if sizes is None:
            if not elements or any(dots):
                raise IllegalSite(f"line {at.line}: how many dimensions {name} has does not show")
            sizes = tuple(Polynomial({(f"{name}.shape[{k}]",): 1}) for k in range(len(elements)))
        if any(dots):
            place = dots.index(True)
            missing = len(sizes) - len(elements) + 1
            elements = [*elements[:place], *[cst.Slice(None, None)] * missing, *elements[place + 1 :]]
        if len(elements) > len(sizes):
            raise IllegalSite(f"line {at.line}: {name} has {len(sizes)} dimensions")
        dims = [self._dim(each, size, at) for each, size in zip(elements, sizes)]
        dims += [Dim(number(0), size) for size in sizes[len(elements) :]]
        bindings = self._code.bindings(name)
        is_buffer = [b.kind for b in bindings] == [Kind.ALLOCATE] if bindings else name in self._code.parameters
        return Access(name, sizes, tuple(dims), regions <= ON_CHIP, is_buffer, rank_is_known)

    def sizes(self, name: str) -> tuple[Polynomial, ...] | None:
        """Of a buffer made once with a shape that is written out."""
        bindings = self._code.bindings(name)
        if len(bindings) != 1 or bindings[0].kind is not Kind.ALLOCATE or name in self._code.parameters:
            return None
        shape = self._code.argument(bindings[0], "shape", 0)
        if not isinstance(shape, (cst.Tuple, cst.List)) or any(
            isinstance(element, cst.StarredElement) for element in shape.elements
        ):
            return None
        return tuple(
            self.number(element.value, bindings[0])
            if all(self._is_bound_once(each) for each in loaded_names(element.value))
            else Polynomial({(f"{name}.shape[{at}]",): 1})
            for at, element in enumerate(shape.elements)
        )

    def _is_bound_once(self, name: str) -> bool:
        return len(self._code.bindings(name)) + (name in self._code.parameters) <= 1

    def _dim(self, part: cst.BaseSlice, size: Polynomial, at: Statement) -> Dim:
        if isinstance(part, cst.Index):
            value = part.value
            if isinstance(value, cst.Call) and self._code.qualified(value.func) == "nki.language.ds":
                start, length = _positional(value, "start", "size")
                if start is None or length is None:
                    raise IllegalSite(f"line {at.line}: {self._code.module.code_for_node(value)} has another form")
                return self._checked(Dim(self._start(start, at), self.number(length, at)), at)
            return self._checked(Dim(self._start(value, at), ONE, dropped=True), at)
        assert isinstance(part, cst.Slice)
        start_ = self._start(part.lower, at) if part.lower is not None else number(0)
        stop = self.number(part.upper, at) if part.upper is not None else size
        step = self.number(part.step, at) if part.step is not None else ONE
        if stop.value is not None and stop.value < 0:
            stop += size
        if step == ONE:
            return self._checked(Dim(start_, stop - start_), at)
        return self._checked(Dim(start_, self._elements(stop - start_, step, part, at), step), at)

    def _start(self, expression: cst.BaseExpression, at: Statement) -> Polynomial:
        before = len(self.cuts)
        found = self.number(expression, at)
        self.cut_starts += len(self.cuts) - before
        return found

    def _elements(self, length: Polynomial, step: Polynomial, part: cst.Slice, at: Statement) -> Polynomial:
        """Every `step`-th of so many."""
        steps = (length - ONE).over(step)
        if steps is not None:
            return steps + ONE
        if step.value is None or step.value < 1:
            raise IllegalSite(f"line {at.line}: how many elements {self._code.module.code_for_node(part)} has")
        if length.value is not None:
            return number(-(-length.value // step.value))
        return self.number(parsed_expression(f"({length + step - ONE}) // {step}"), at)

    def _checked(self, dim: Dim, at: Statement) -> Dim:
        if self._variable in dim.length.factors | dim.step.factors:
            raise IllegalSite(f"line {at.line}: how much it takes changes with {self._variable}")
        forward, rest = self.full.expanded(dim.start, at).split(self._variable)
        if not forward.adds_up or (rest.value is not None and rest.value < 0):
            raise IllegalSite(f"line {at.line}: {dim.start} may count from the end, or backwards")
        return dim

    def apart(self, left: Access, right: Access, at: Statement) -> bool:
        """No iteration of the loop names an element with one that any iteration names with the other, for certain."""
        if left.name != right.name or len(left.dims) != len(right.dims):
            return False
        pairs = [*zip(left.dims, right.dims), *zip(right.dims, left.dims)]
        return any(self._ends_before(first, second, at) for first, second in pairs)

    def _ends_before(self, first: Dim, second: Dim, at: Statement) -> bool:
        if self._loop is None or self._loop.count is None or first.step != ONE:
            return False
        last = self.indices.polynomial(self._loop.count, self._loop) - ONE
        (moves, start), (moves_too, limit) = first.start.split(self._variable), second.start.split(self._variable)
        if not (moves.adds_up and moves_too.adds_up) or self._variable in (limit - start).factors:
            return False
        return self.fits(moves * last + start + first.length, limit, at)

    # --- many iterations at once -------------------------------------------------------------------

    def one_interval(self, access: Access, iterations: Iterations, at: Statement) -> Merged | None:
        """With one interval longer, or an interval in place of an index; None where neither is right."""
        moving = access.moving(iterations.variable)
        if len(moving) != 1:
            return None
        (place,) = moving
        dim = access.dims[place]
        step, rest = dim.start.split(iterations.variable)
        before = access.lengths(tuple(k for k in access.kept if k < place))
        after = access.lengths(tuple(k for k in access.kept if k > place))
        first = iterations.start(dim)
        follows = not dim.dropped and self.same(step, dim.length * dim.step, at)
        if follows:
            merged = Dim(first, iterations.count * dim.length, dim.step)
        elif dim.length == ONE and self.full.expanded(rest, at).adds_up:
            merged = Dim(first, iterations.count, step)
        else:
            return None
        dims = (*access.dims[:place], merged, *access.dims[place + 1 :])
        own = place not in access.kept
        return Merged(
            replace(access, dims=dims).text, before, after if own else (dim.length, *after), own_dimension=own
        )

    def one_pattern(self, access: Access, iterations: Iterations, position: int, at: Statement) -> Merged:
        """With the iterations as a dimension of its own, before the `position`-th of the view. Raises IllegalSite."""
        kept = access.kept
        before, after = access.lengths(kept[:position]), access.lengths(kept[position:])
        whole = self.one_interval(access, iterations, at)
        if whole is not None and whole.own_dimension and len(whole.before) == position:
            return whole
        if not access.is_buffer:
            return Merged(self._turned(access, iterations, position, at), before, after, own_dimension=True)
        stride, offset = number(0), number(0)
        for place, dim in enumerate(access.dims):
            step, rest = dim.start.split(iterations.variable)
            if not self.full.expanded(rest, at).adds_up:
                raise IllegalSite(f"line {at.line}: {rest} may be less than nothing")
            stride += step * access.pitch(place)
            offset += iterations.start(dim) * access.pitch(place)
        pairs = [(access.pitch(place) * access.dims[place].step, access.dims[place].length) for place in kept]
        pairs.insert(position, (stride, iterations.count))
        pattern = ", ".join(f"[{step}, {count}]" for step, count in pairs)
        text = f"{access.name}.ap(pattern=[{pattern}]" + (f", offset={offset})" if offset != number(0) else ")")
        return Merged(text, before, after, own_dimension=True)

    def _turned(self, access: Access, iterations: Iterations, position: int, at: Statement) -> str:
        """For a view, whose layout does not show: its dimensions in another order."""
        whole = self.one_interval(access, iterations, at)
        if whole is None or access.on_chip:
            raise IllegalSite(f"line {at.line}: {access.name} is a view, and its parts do not follow one another")
        (place,) = access.moving(iterations.variable)
        text, rank, at_ = whole.text, len(access.kept) + 1, len(whole.before)
        if not whole.own_dimension:
            text = f"{text}.reshape_dim({at_}, ({iterations.count}, {access.dims[place].length}))"
        order = [each for each in range(rank) if each != at_]
        order.insert(position, at_)
        if order == list(range(rank)):
            return text
        return f"{text}.permute(({', '.join(map(str, order))}))"

    def same_order(self, left: Merged, right: Merged, at: Statement) -> bool:
        """Both have as many elements before each iteration's, given that an iteration has as many in both."""
        if len(left.before) == len(right.before) and len(left.after) == len(right.after):
            pairs = list(zip((*left.before, *left.after), (*right.before, *right.after)))
            if all(self.fits(a, b, at) for a, b in pairs) or all(self.fits(b, a, at) for a, b in pairs):
                return True
        return self._same_product(left.before, right.before, at) or self._same_product(left.after, right.after, at)

    def _same_product(self, left: tuple[Polynomial, ...], right: tuple[Polynomial, ...], at: Statement) -> bool:
        products = []
        for lengths in (left, right):
            total = ONE
            for each in lengths:
                total *= each
            products.append(total)
        return self.same(products[0], products[1], at)


def arguments_of(instruction: Statement) -> dict[str, cst.BaseExpression]:
    """By name, however they are passed. Raises IllegalSite where a position has no name."""
    assert instruction.call is not None
    parameters = PARAMETERS.get(instruction.operation, ())
    given = {}
    for at, arg in enumerate(instruction.call.args):
        if arg.keyword is None and at >= len(parameters):
            raise IllegalSite(f"line {instruction.line} passes more operands by position than have a name here")
        given[arg.keyword.value if arg.keyword is not None else parameters[at]] = arg.value
    return given


def base_name(operand: cst.BaseExpression) -> str:
    """Of an operand that is a buffer or part of one; empty for anything else."""
    if isinstance(operand, cst.Subscript):
        operand = operand.value
    return operand.value if isinstance(operand, cst.Name) else ""


def _instead_of(polynomial: Polynomial, factor: str, value: Polynomial) -> Polynomial:
    total = number(0)
    for monomial, times in polynomial.terms.items():
        product = number(times)
        for each in monomial:
            product *= value if each == factor else Polynomial({(each,): 1})
        total += product
    return total


def _dots(part: cst.Index) -> bool:
    return isinstance(part.value, cst.Ellipsis)


def _positional(call: cst.Call, *names: str) -> tuple[cst.BaseExpression | None, ...]:
    given = {
        arg.keyword.value if arg.keyword is not None else names[at]: arg.value
        for at, arg in enumerate(call.args)
        if arg.keyword is not None or at < len(names)
    }
    return tuple(given.get(name) for name in names)
