"""What the engines compute, on elements of two prime fields instead of numbers.

An element stands for an unknown real number. It has two lanes: one modulo p = 2 q + 1, one modulo q. Sums, products and
quotients are exact in both, so every identity of arithmetic holds. The exponential takes the lane modulo q to the lane
modulo p: exp(x) = g^x with a g of order q, so that exp(a + b) = exp(a) exp(b) holds as well, and with it what sigmoid,
tanh and their like are made of. The lane modulo q is only carried where a value comes into an exponential.

Every other function is opaque: a keyed hash of its argument. Order is opaque too, but it is an order: a hash decides
which of two elements is larger, so that a maximum of maxima is the maximum, max(-x) is -min(x), and |x| is the larger
of x and -x; constants, and integers up to 2^16, keep their own order. What is drawn or computed is further from zero
than all of them, or with `BOUNDS` drawn anew nearer, or with `among` in any of the gaps between those: whoever compares
it with a constant tells them apart. Not known of it: that adding or scaling keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from nki_sim.dtypes import DType
from nki_sim.proofs.arithmetic import Value
from nki_sim.proofs.field import SAFE_PRIMES, Field
from nki_sim.proofs.proof import NotProvable

Array = np.ndarray

ORDER = "the order of values"
BOUNDS = "where constants lie among values"
_SMALL = 1 << 16
"""Integers up to this are compared as such."""
_FAR = 1 << 61
"""Ranks above those of a number's bits, and of a hash."""
_PLACES = 1 << 24
"""Ranks for values between a number of float32 and the next."""
_LARGEST_BITS = 0x7F800000
_INTEGER = 1 << 24
"""Integers up to this are not changed by a conversion to an integer type."""
_SLOTS = 1 << 22
"""Of the set of arguments that an opaque function was given."""
_GOLDEN, _MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_TABLE_BITS = 16


class Arguments(NamedTuple):
    """What an opaque function was asked for."""

    seen: Array
    """bool [slots]: a set of hashes."""
    line: int
    """Where first."""


class Algebra:
    """One drawing of fields and functions (`Arithmetic`). Two programs run with the same drawing are compared.

    A value's lane `p` is modulo p; its lane `q`, modulo q, is None where no exponential will ask for it.
    """

    element = np.dtype(np.uint64)
    always_both = False

    def __init__(self, seed: int, changed: frozenset[str] = frozenset(), among: tuple[int, ...] = ()) -> None:
        """`changed`: these functions are drawn anew, all else is as `seed` draws it. `among`: `sizes` of constants
        among which values lie, as many in one gap as in another.
        """
        random = np.random.default_rng([seed, 0])
        prime = SAFE_PRIMES[int(random.integers(len(SAFE_PRIMES)))]
        self.field, self.exponents = Field(prime), Field(prime // 2)
        self.seed = seed
        self._changed = changed
        self._among = np.array(sorted({0, *among, _LARGEST_BITS}), np.int64) if among else None
        self.sizes: set[int] = set()
        """Of all constants but 0 so far, as the bits of float32."""
        self._powers = _powers(pow(int(random.integers(2, prime - 2)), 2, prime), self.field)
        self._lowest = self.random(random, ())
        self._keys: dict[str, np.uint64] = {}
        self._constants: dict[int, float] = {}
        """By size as an element, centred: which number the positive one is. Of those that are not whole."""
        self.orders_constants = False
        """Was the order of a constant asked for, other than 0?"""
        self.arguments: dict[str, Arguments] = {}
        """By opaque function, what it was asked for since this was made."""
        self.line = 0
        """Of the instruction that is computed now."""
        self.engine = ""
        self.wants_q = False
        """Does an exponential need its results?"""

    # --- elements -------------------------------------------------------------------------------------

    def random(self, generator: np.random.Generator, shape: tuple[int, ...], needed: bool = True) -> Value:
        """The lane modulo p is the same whether the other one is needed or not."""
        p = np.asarray(generator.integers(0, self.field.prime, shape, np.uint64))
        return Value(p, np.asarray(generator.integers(0, self.exponents.prime, shape, np.uint64)) if needed else None)

    def number(self, value: float) -> Value:
        """A constant. Raises NotProvable for NaN."""
        if value != value:
            raise NotProvable(f"line {self.line} has the constant NaN, which is no number")
        if abs(value) >= BEYOND:
            return self._lowest if value < 0 else self.negative(self._lowest)
        if value:
            self.sizes.add(int(np.abs(np.float32(value)).view(np.int32)))
        exact = fraction(value)
        p = np.asarray(self.field.of(exact.numerator, exact.denominator))
        if exact.denominator != 1:
            centred = int(self.field.centred(p))
            self._constants[abs(centred)] = float(exact) if centred > 0 else -float(exact)
        return Value(p, np.asarray(self.exponents.of(exact.numerator, exact.denominator)))

    def integers(self, values: Array) -> Value:
        return Value(self.field.of_integers(values), self.exponents.of_integers(values))

    def constants(self, values: Array) -> Value:
        """An array of numbers known when tracing."""
        if values.dtype.kind in "iub":
            return self.integers(values)
        different, places = np.unique(values.astype(np.float64), return_inverse=True)
        each = [self.number(float(value)) for value in different]
        p, q = np.array([e.p for e in each], np.uint64), np.array([e.q for e in each], np.uint64)
        places = places.reshape(values.shape)
        return Value(p[places], q[places])

    def given(self, values: Array) -> Value:
        return self.integers(values)

    def loaded(self, x: Value, dtype: DType) -> Value:
        return x

    def stored(self, x: Value, dtype: DType) -> Value:
        """Casts change nothing, but that an integer type keeps no fraction."""
        if dtype.is_float:
            return x
        return self.truth(x.p != 0) if dtype == "bool" else self._rounded(x)

    def small_integers(self, x: Value) -> Array:
        """int64, of elements that were computed from integers. Raises NotProvable where one is none."""
        found = self.field.centred(x.p)
        if found.size and int(np.abs(found).max()) > _INTEGER:
            raise NotProvable(f"line {self.line} uses a computed value as a whole number")
        return found

    # --- arithmetic -----------------------------------------------------------------------------------

    def add(self, x: Value, y: Value) -> Value:
        return self._both(Field.add, x, y)

    def subtract(self, x: Value, y: Value) -> Value:
        return self._both(Field.subtract, x, y)

    def multiply(self, x: Value, y: Value) -> Value:
        return self._both(Field.multiply, x, y)

    def negative(self, x: Value) -> Value:
        return self._both(Field.negative, x)

    def reciprocal(self, x: Value) -> Value:
        return self._both(Field.inverse, x)

    def square(self, x: Value) -> Value:
        return self.multiply(x, x)

    def matmul(self, left: Value, right: Value) -> Value:
        return self._both(Field.matmul, left, right)

    def total(self, x: Value, axes: tuple[int, ...] | int) -> Value:
        return self._both(lambda field, lane: field.total(lane, axes), x)

    def product(self, x: Value) -> Value:
        """Along the last axis."""
        return self._both(Field.product, x)

    def _both(self, operation: Callable[..., Array], *values: Value) -> Value:
        p = operation(self.field, *[value.p for value in values])
        lanes = [value.q for value in values]
        return Value(p, None if any(lane is None for lane in lanes) else operation(self.exponents, *lanes))

    def recurrence(self, start: Value, factors: Value, terms: Value) -> Value:
        """[rows, n]: state i is factor i times the state before it, plus term i."""
        return self._both(Field.recurrence, start, factors, terms)

    # --- functions ------------------------------------------------------------------------------------

    def exp(self, x: Value) -> Value:
        if x.q is None:
            raise NotProvable(f"line {self.line} takes an exponential of what was not expected to come there")
        low = x.q & np.uint64((1 << _TABLE_BITS) - 1)
        p = self.field.multiply(self._powers[1][x.q >> np.uint64(_TABLE_BITS)], self._powers[0][low])
        return Value(p, self.opaque("exp in an exponent", x).q if self.wants_q else None)

    def opaque(self, function: str, *arguments: Value) -> Value:
        """A function of which nothing is known but that it is one."""
        hashed = self._hash(function, arguments[0].p)
        for each in arguments[1:]:
            hashed = _mixed(hashed ^ each.p)
        self._remember(function, hashed)
        q = self.exponents.reduced(_mixed(hashed + _GOLDEN)) if self.wants_q else None
        return Value(self.field.reduced(hashed), q)

    def odd(self, function: str, x: Value) -> Value:
        """An opaque f with f(-x) = -f(x)."""
        turned = self.field.centred(x.p) < 0
        return self.where(turned, self.negative(found := self._of_size(function, x, turned)), found)

    def _of_size(self, function: str, x: Value, turned: Array) -> Value:
        return self.opaque(function, Value(np.where(turned, self.field.negative(x.p), x.p), None))

    def where(self, chosen: Array, x: Value, y: Value) -> Value:
        q = None if x.q is None or y.q is None else np.where(chosen, x.q, y.q)
        return Value(np.where(chosen, x.p, y.p), q)

    # --- order ----------------------------------------------------------------------------------------

    def rank(self, x: Value) -> Array:
        """int64: larger for what counts as larger."""
        centred = self.field.centred(x.p)
        size = np.abs(centred)
        hashed = self._hash(ORDER, size.view(np.uint64))
        self._remember(ORDER, hashed)
        known, numbers = self._numbers(size)
        number = np.abs(numbers).view(np.int32).astype(np.int64)
        self.orders_constants = self.orders_constants or bool((known & (size > 0)).any())
        drawn = (hashed >> np.uint64(3)).view(np.int64) + 1
        near = BOUNDS in self._changed
        if self._among is not None:
            gap = (drawn >> 24) % (len(self._among) - 1)
            least, width = self._among[gap], np.diff(self._among)[gap]
            far = np.where(known, number, least + drawn % width) * _PLACES + np.where(known, 0, drawn % _PLACES | 1)
        else:
            far = np.where(known, number if not near else number + _FAR, drawn if near else drawn + _FAR)
        up = np.where(known, numbers > 0, (hashed & np.uint64(1)).astype(np.bool_)) == (centred > 0)
        found = np.where(size == 0, 0, np.where(up, far, -far))
        most = np.iinfo(np.int64).max
        found[x.p == self._lowest.p] = -most
        found[x.p == self.field.negative(self._lowest.p)] = most
        return found

    def _numbers(self, size: Array) -> tuple[Array, Array]:
        """(which are constants or small integers, which number that is), float32; of elements by their size."""
        values = size.astype(np.float32)
        known = size <= _SMALL
        if self._constants:
            sizes = np.array(sorted(self._constants), np.int64)
            at = np.minimum(np.searchsorted(sizes, size), len(sizes) - 1)
            fractions = sizes[at] == size
            values = np.where(fractions, np.array([self._constants[n] for n in sizes.tolist()], np.float32)[at], values)
            known |= fractions
        return known, values

    def largest(self, x: Value, least: bool = False) -> Value:
        """Along the last axis."""
        ranks = self.rank(x)
        at = (ranks.argmin(axis=-1) if least else ranks.argmax(axis=-1))[..., None]
        return x.moved(lambda lane: np.take_along_axis(lane, at, axis=-1)[..., 0])

    def larger(self, x: Value, y: Value) -> Value:
        x, y = self._alike(x, y)
        return self.where(self.rank(x) >= self.rank(y), x, y)

    def smaller(self, x: Value, y: Value) -> Value:
        x, y = self._alike(x, y)
        return self.where(self.rank(x) <= self.rank(y), x, y)

    def compared(self, comparison: Callable[[Array, Array], Array], x: Value, y: Value) -> Value:
        """1 where it holds, else 0."""
        if comparison in (np.equal, np.not_equal):
            return self.truth(self._equal(x, y) == (comparison is np.equal))
        x, y = self._alike(x, y)
        return self.truth(comparison(self.rank(x), self.rank(y)))

    def _equal(self, x: Value, y: Value) -> Array:
        """Among constants, one value in four is taken for the one that it is held against."""
        x, y = self._alike(x, y)
        same: Array = x.p == y.p
        sizes = [np.abs(self.field.centred(each.p)) for each in (x, y)]
        (one, _), (other, _) = map(self._numbers, sizes)
        open_ = (one != other) & ~same
        if open_.any():
            self.orders_constants = True
            hashed = self._hash(ORDER, np.where(one, sizes[1], sizes[0]).view(np.uint64))
            self._remember(ORDER, hashed)
            if self._among is not None:
                same = same | open_ & ((hashed >> np.uint64(7)) % np.uint64(4) == 0)
        return same

    def truth(self, holds: Array) -> Value:
        lane = holds.astype(np.uint64)
        return Value(lane, lane)

    def absolute(self, x: Value) -> Value:
        return self.larger(x, self.negative(x))

    def _rounded(self, x: Value) -> Value:
        """What an integer type keeps of it."""
        whole = np.abs(self.field.centred(x.p)) <= _INTEGER
        return x if whole.all() else self.where(whole, x, self.opaque("rounding to integers", x))

    # --- keys -----------------------------------------------------------------------------------------

    def _alike(self, x: Value, y: Value) -> tuple[Value, Value]:
        shape = np.broadcast_shapes(x.shape, y.shape)
        return tuple(v.moved(lambda lane: np.array(np.broadcast_to(lane, shape))) for v in (x, y))  # type: ignore[return-value]

    def _hash(self, function: str, elements: Array) -> Array:
        key = self._keys.get(function)
        if key is None:
            drawn = np.random.default_rng([self.seed, int(function in self._changed), *function.encode()])
            key = self._keys[function] = drawn.integers(0, 1 << 63, dtype=np.uint64)
        return _mixed(elements + key)

    def _remember(self, function: str, hashed: Array) -> None:
        found = self.arguments.get(function)
        if found is None:
            found = self.arguments[function] = Arguments(np.zeros(_SLOTS, np.bool_), self.line)
        found.seen[hashed & np.uint64(_SLOTS - 1)] = True


def _mixed(x: Array) -> Array:
    """The finisher of SplitMix64 (Steele, Lea, Flood 2014): every bit of x changes half of the result's."""
    x = x ^ (x >> np.uint64(30))
    x *= _MIX_1
    x ^= x >> np.uint64(27)
    x *= _MIX_2
    x ^= x >> np.uint64(31)
    return x


def _powers(base: int, field: Field) -> tuple[Array, Array]:
    """base^i and base^(65536 i), i below 65536: two look-ups and a product make any power below 2^32."""
    tables = []
    for _ in range(2):
        table = np.ones(1, np.uint64)
        factor = np.uint64(base)
        while len(table) < 1 << _TABLE_BITS:
            table = np.concatenate([table, field.multiply(table, factor)])
            factor = np.uint64(int(factor) ** 2 % field.prime)
        tables.append(table)
        base = int(factor)
    return tables[0], tables[1]


# --- constants ------------------------------------------------------------------------------------


BEYOND = 1e30
"""Constants at or above this in magnitude stand for infinity: where a running maximum begins, what a mask hides."""

_EXACT = 1 << 24
"""Integers up to this are themselves in float32."""


@lru_cache(maxsize=4096)
def fraction(value: float) -> Fraction:
    """Of a finite number. The engines read every immediate as float32 (`nki_sim.isa`)."""
    if value == int(value) and abs(value) <= _EXACT:
        return Fraction(int(value))
    narrow = np.float32(value)
    if narrow == 0:
        return Fraction(0)
    below, above = (Fraction(float(np.nextafter(narrow, np.float32(end)))) for end in (-np.inf, np.inf))
    middle = Fraction(float(narrow))
    found = _simplest((abs(middle) + min(abs(below), abs(above))) / 2, (abs(middle) + max(abs(below), abs(above))) / 2)
    return found if middle > 0 else -found


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of the smallest denominator in [low, high], both positive: the first of its continued fractions."""
    whole = low.numerator // low.denominator
    if whole == low:
        return low
    if whole + 1 <= high:
        return Fraction(whole + 1)
    return whole + 1 / _simplest(1 / (high - whole), 1 / (low - whole))
