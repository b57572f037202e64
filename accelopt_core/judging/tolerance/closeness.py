"""How close an output has to be, and whether it is: in all, per row, per column, and element by element.

One constant is no measure: where values cancel, honest arithmetic is further off than 2e-5, and elsewhere it is a
hundred times closer, which is room for wrong kernels. So each element has a *noise*: how far it moves when every input
is off by about one rounding (`Reference.more_noise`: the reference in float64 on inputs moved by up to 1.7 unit
roundoffs, drawn from the seed), joined with one rounding of the result. An honest kernel is nearly backward stable:
what it computes is the exact result for inputs that are a few roundings off, so its error is a few times the noise,
whatever cancels and at whatever shape. A dropped term, a clamp, or a constant that is off by 1e-5 is not of that form.

Where that is not so (the logits of a softmax are large numbers between inputs and outputs, and are rounded too), the
reference in float32 shows it: an output may be 8 times as many times its noise off as the worst row or column of that
is (`needed`). Its error alone would be no measure: it is small by luck where a whole row is one number, as under
constant rows; the worst of all rows, each against its own noise, is not. Where it gets many single elements wrong (in
1 + erf(x) all that erf has beyond 1 - 2^-24 is dropped), elements of that sign, size and noise may besides be 8 times
as far off as it is there; rows and columns are held as ever. NumPy sums pairwise, so the reference in float32 with its
sums one term after the other counts as well: an output may be twice as far off as that. And the float64 reference has
an error of its own (log(1 + exp(-40)) is 0 in it): what it moves when every result on its way is rounded once more is
allowed besides, everywhere. So is what is lost when results on the way that an engine need not keep become 0: silu(-89)
is 2e-37 in one form and 0 in another, and is multiplied by what follows.

What the task's input kernel gets wrong, a candidate may get wrong in the same elements, and not much more (`excuses`).

On the reference's own inputs the task's published bound holds besides, over the whole output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from accelopt_core.evaluation import CheckFailure, Furthest
from accelopt_core.judging.tolerance.storage import WIDE, Storage
from accelopt_core.task import DEFAULT_TOLERANCE, PrecisionPolicy, Task, Within


@dataclass(frozen=True)
class Arithmetic:
    """What a task's arithmetic may do to a result."""

    unit: float
    """Unit roundoff: half the distance of 1 to the next number."""
    slack: float
    """An output, a row and a column of it may be this many times its noise off, root mean square."""
    element_slack: float
    """An element may be this many times its own noise off; a fraction `FEW` of them more."""
    tolerance: float | None = None
    """The task's TOLERANCE that these limits grow with; None: they do not."""
    vanishing: float = 0.0
    """A smaller value may be missing or changed, but not a thousand times too large."""

    def widened(self, times: float) -> Arithmetic:
        return replace(self, slack=self.slack * times, element_slack=self.element_slack * times)


FLOAT32 = Arithmetic(2.0**-24, 32, 512, DEFAULT_TOLERANCE)
"""Sums are rounded as they grow, so that the last of K terms is as far off as all before: 128 products one by one, then
tile by tile, is at most 20 times the noise at K = 5120; blocks of 128, as the simulator sums, 2 times."""

_NARROW = {
    PrecisionPolicy.BF16_ALLOWED: Arithmetic(2.0**-9, 8, 64),
    PrecisionPolicy.FP8_ALLOWED: Arithmetic(2.0**-4, 8, 8),
}
"""Operands are rounded, sums are in float32: the noise itself, and some for what is stored between."""

DEVICE_SLACK = 10
"""A device's tables for exp, rsqrt and the like are not published: there, this many times as much (2e-5 of a row)."""


FEW = 1e-4
"""Fraction of the elements whose noise may be underrated: where both it and the value happen to vanish."""

FLOOR = 128 * float(np.finfo(np.float32).tiny)
"""What an element may be off whatever its noise, about 1.5e-36: engines need not keep denormal numbers."""

VANISHING = 2.0**-64
"""`Arithmetic.vanishing` on a device: half of float32's exponents down. How far its tables for exp go is not published.
On the simulator the reference itself shows what underflows (`lost_by_underflow`)."""

_TOO_LARGE = 1e3
_TOO_SMALL = 1 / _TOO_LARGE
"""How far an element is off is told as such from here."""

_PLAIN_ROWS = 64
"""Without noise, an element below this many roundings of its row's root mean square is not suspected."""

SHORT = 8
"""A row or column of fewer elements says nothing that single elements do not."""

_BLOCK = 1 << 15
"""Elements compared at a time: what is made of them stays in the processor's cache."""


def arithmetic_of(task: Task, exact_functions: bool) -> Arithmetic:
    """`exact_functions`: exp and the like are NumPy's, as on the simulator.

    A float32 task that declares a wider bound than the suite's is given the same share of that.
    """
    vanishing = 0.0 if exact_functions else VANISHING
    narrow = _NARROW.get(task.precision)
    if narrow is not None:
        return replace(narrow, vanishing=vanishing)
    tolerance = max(task.tolerance, DEFAULT_TOLERANCE)
    wider = tolerance / DEFAULT_TOLERANCE * (1 if exact_functions else DEVICE_SLACK)
    return replace(FLOAT32.widened(wider), tolerance=tolerance, vanishing=vanishing)


PLAIN_SLACK = 8
"""An output may be this many times as many times its noise off as the worst row or column of plain float32."""

ONE_BY_ONE_SLACK = 2
"""The same of float32 with its sums one by one, which is hardly ever better than what it is held against."""


@dataclass(frozen=True)
class Needed:
    """What the reference run in float32 asks for, of one output."""

    times: float
    """All limits are so many times wider; at least 1."""
    elements: np.ndarray | None
    """float32, as the output: what single elements may be off besides. None where float32 gets no more than a few of
    them wrong."""


def needed(
    arithmetic: Arithmetic,
    plain: np.ndarray,
    expected: np.ndarray,
    noise: np.ndarray,
    stored: Storage = WIDE,
    slack: float = PLAIN_SLACK,
) -> Needed:
    """How far the limits must follow `plain`, the reference run in float32; `stored`: of the narrow type of both."""
    sums = _Sums(plain, expected, noise, arithmetic, stored=stored)
    elements = None if sums.suspects <= FEW * plain.size else off_elsewhere(plain, expected, noise)
    return Needed(max(1.0, slack * sums.furthest_line()), elements)


_OCTAVES = 128
"""Of sizes, either way from 1: float32's."""
_CONDITIONS = 17
"""Of noise against size, two octaves each: from beyond the value itself to one rounding of it."""


def one_rounding(exact: np.ndarray, unit: float) -> np.ndarray:
    """Of each element, in float32; 0 of one that is not finite, and of integers that float32 holds."""
    root = np.zeros(exact.shape, np.float32)
    least, unit = (1 << 24, FLOAT32.unit) if exact.dtype.kind in "iu" else (0, unit)
    flat, base = root.reshape(-1), exact.reshape(-1)
    for start in range(0, root.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        size = np.abs(base[part])
        flat[part] = np.where(np.isfinite(size) & (size >= least), size * unit, 0)
    return root


def off_elsewhere(plain: np.ndarray, expected: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """PLAIN_SLACK times what `plain` is off, root mean square, at the elements of an output that are alike: of one
    sign, of about the same size and of about the same noise.

    At the element alone it would be no measure: one in sixteen is right by luck. And size alone would be none: 1e-7 is
    what float32 drops of a large x in one place, and keeps to seven digits of a small one in another.
    """
    flat = [np.reshape(array, -1) for array in (plain, expected, noise)]
    alike = np.empty(plain.size, np.int16)
    squares, count = np.zeros(BINS), np.zeros(BINS)
    for start in range(0, plain.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        got, want, off = (array[part].astype(np.float64) for array in flat)
        with np.errstate(invalid="ignore"):
            error = got - want
        alike[part] = alike_bins(want, off)
        error[~np.isfinite(error)] = 0
        squares += np.bincount(alike[part], error * error, squares.size).reshape(BINS)
        count += np.bincount(alike[part], minlength=count.size).reshape(BINS)
    mean = _with_neighbours(squares) / np.maximum(_with_neighbours(count), 1)
    result: np.ndarray = (PLAIN_SLACK * np.sqrt(mean)).astype(np.float32).reshape(-1)[alike].reshape(plain.shape)
    return result


def lost_by_underflow(flushed: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """float32: PLAIN_SLACK times what an element loses where small numbers on the way become 0, or its row on average.

    `flushed`: the reference with such numbers as 0. A kernel may lose some of them and keep others, so that an element
    is off where all of them together cancel.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        lost = np.abs(flushed - expected)
        lost[~np.isfinite(lost)] = 0
        row = np.sqrt(np.mean(np.square(lost), axis=-1, keepdims=True)) if lost.ndim and lost.size else lost
    return np.asarray(PLAIN_SLACK * np.maximum(lost, row), np.float32)


BINS = (2, 2 * _OCTAVES, _CONDITIONS)


def alike_bins(want: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """int16: elements of one number are of one sign, of about the same size and of about the same noise."""
    size = np.where(want == 0, -_OCTAVES, np.frexp(want)[1])
    condition = np.clip((size - np.frexp(noise)[1] + 8) // 2, 0, _CONDITIONS - 1)
    size = np.clip(size, -_OCTAVES, _OCTAVES - 1) + _OCTAVES
    return np.ravel_multi_index((np.signbit(want).astype(np.intp), size, condition), BINS).astype(np.int16)


def _with_neighbours(bins: np.ndarray) -> np.ndarray:
    """Each with those of half and of twice its size: few elements say little."""
    summed = bins.copy()
    summed[:, 1:] += bins[:, :-1]
    summed[:, :-1] += bins[:, 1:]
    return summed


FEW_ROWS = 64
"""One row in so many may need noise where that is taken for these alone."""


@dataclass(frozen=True)
class FewRows:
    """Rows of an output that are further off than one rounding of the result explains, where nothing else is."""

    numbers: np.ndarray
    """Of each, among `in_lines`."""
    spare: float
    """So many of their elements may be beyond their own noise."""
    relative_l2: float
    """Of the whole output."""

    def are_right(
        self, got: np.ndarray, expected: np.ndarray, noise: np.ndarray, arithmetic: Arithmetic, stored: Storage
    ) -> bool:
        """By their noise; all three arrays are of these rows."""
        sums = _Sums(got, expected, noise, arithmetic, stored=stored)
        return sums.strange is None and sums.rows.off(arithmetic.slack) is None and sums.suspects <= self.spare


def few_rows(got: np.ndarray, expected: np.ndarray, arithmetic: Arithmetic, stored: Storage) -> FewRows | None:
    """The rows that only their noise can tell right from wrong. None where they are many, or not all that is off."""
    if got.shape != expected.shape:
        return None
    sums = _Sums(got, expected, None, arithmetic, stored=stored, most_rows_off=len(in_lines(expected)) // FEW_ROWS)
    whole, slack = _Lines(sums.rows.sums.sum(axis=1, keepdims=True), got.size, stored), arithmetic.slack
    if sums.ended or sums.strange is not None or whole.off(slack) is not None or sums.columns.off(slack) is not None:
        return None
    numbers = np.flatnonzero(~(sums.rows.over(slack) <= 1))
    spare = FEW * got.size - np.delete(sums.suspects_in, numbers).sum()
    return FewRows(numbers, spare, _ratio(sums.rows.error, sums.rows.norm)) if spare >= 0 else None


LARGEST = 1e30
"""From here on another order of the same steps may be beyond float32."""


def rows_within_float32(plain: np.ndarray) -> np.ndarray:
    """bool [..., 1]: rows that `plain`, the reference run in float32, stays well within its range on."""
    lines = in_lines(plain)
    with np.errstate(invalid="ignore"):  # NaN is not
        within: np.ndarray = (lines.max(axis=1, initial=0) < LARGEST) & (lines.min(axis=1, initial=0) > -LARGEST)
    return within.reshape(*plain.shape[:-1], 1)


@dataclass(frozen=True)
class Place:
    """Which output of which draw, for the failure."""

    seed: int
    preset: str
    output: int
    distribution: str


def check_output(
    got: np.ndarray,
    expected: np.ndarray,
    *,
    place: Place,
    arithmetic: Arithmetic,
    noise: np.ndarray | None = None,
    elements: np.ndarray | None = None,
    allowance: np.ndarray | None = None,
    bound: float | None = None,
    stored: Storage = WIDE,
    quick: bool = False,
) -> tuple[float, CheckFailure | None]:
    """(relative L2, the failure if there is one).

    Without `noise` the least that it can be is taken, one rounding of the result, and single elements are held to their
    row: what passes so also passes with it, but for values that are small in their row. `elements`: as
    `Needed.elements`, beside `noise`. `allowance`: what each element may be off besides, in its row and column too,
    beside `noise`; infinite where it is not looked at. `bound`: relative L2 of the whole output that holds besides.
    `stored`: what may be off beside all that, since the kernel or the reference stores it in a narrow type. `quick`:
    the first row that is off ends it, and no more is said of it.
    """
    where: dict[str, Any] = vars(place)
    if got.shape != expected.shape:
        return float("inf"), CheckFailure(reason=f"shape {list(got.shape)} instead of {list(expected.shape)}", **where)
    if allowance is not None and np.isinf(allowance).any():
        left_out = np.isinf(allowance)
        got, allowance = np.where(left_out, expected, got), np.where(left_out, 0.0, allowance)
    sums = _Sums(got, expected, noise, arithmetic, elements, allowance, stored, 0 if quick else None)
    if sums.ended:
        return float("inf"), CheckFailure(reason="a row differs", **where)
    if sums.strange is not None:
        value = float(got.reshape(-1)[sums.strange])
        reason = (
            "NaN: memory that was never written was read, an overflow (inf - inf, inf / inf), 0/0, or the root of a "
            "negative number"
            if np.isnan(value)
            else "infinite"
        )
        return float("inf"), _failure(got, expected, sums.strange, reason, where)
    distance = _ratio(sums.rows.error, sums.rows.norm)
    rows, columns, slack = sums.rows, sums.columns, arithmetic.slack
    whole = _Lines(rows.sums.sum(axis=1, keepdims=True), got.size, stored)
    limit = whole.at(0, slack)[1]
    if bound is not None:
        bound += whole.at(0, 0.0)[1] if whole.norm[0] > 0 else 0.0
    said = _Limits(arithmetic, sums, whole, distance, bound).describe
    if (bound is not None and distance > bound) or whole.off(slack) is not None:
        limit = bound if bound is not None and distance > bound else limit  # that which is said to be exceeded
        return distance, _failure(got, expected, sums.worst(), "outputs differ", where, distance, limit, said("output"))
    single = _single(got, expected, sums)
    if single is not None and not single.endswith("differ"):
        return distance, _failure(got, expected, sums.suspect, single, where, said=said("element"))
    row = rows.off(slack)
    if row is not None:
        flat = row * sums.width + _furthest(in_lines(got)[row], in_lines(expected)[row])
        return distance, _failure(got, expected, flat, f"row {row} differs", where, *rows.at(row, slack), said("row"))
    column = columns.off(slack)
    if column is not None:
        part, at = divmod(column, sums.width)
        chosen = np.s_[part * sums.height : (part + 1) * sums.height, at]
        row = part * sums.height + _furthest(in_lines(got)[chosen], in_lines(expected)[chosen])
        flat = row * sums.width + at
        off = columns.at(column, slack)
        return distance, _failure(got, expected, flat, f"column {at} differs", where, *off, said("column"))
    if single is not None:
        return distance, _failure(got, expected, sums.suspect, single, where, said=said("element"))
    return distance, None


@dataclass(frozen=True)
class _Limits:
    """What one output was held to, for people."""

    arithmetic: Arithmetic
    sums: _Sums
    whole: _Lines
    distance: float
    bound: float | None

    def describe(self, of: str) -> str:
        """Which limit, where it is from, and with which TOLERANCE the output would be within all of them."""
        slack = self.arithmetic.element_slack if of == "element" else self.arithmetic.slack
        if of == "output" and self.bound is not None and self.distance > self.bound:
            said = "the limit is the task's TOLERANCE"
        else:
            said = f"the limit is {slack:.3g} times what one rounding of every input moves this {of}"
        tolerance = self.arithmetic.tolerance
        if tolerance is None or self.sums.suspects > FEW * self.sums.rows.error.size * self.sums.width:
            return said
        over = max(float(self.whole.over(self.arithmetic.slack).max(initial=0)), self.sums.furthest_line())
        wide = max(over * tolerance, self.distance if self.bound is not None else 0.0)
        if not wide < 0.5:
            return said
        return f"{said}; TOLERANCE = {_rounded_up(wide)} in the reference would accept it"


def _rounded_up(value: float) -> str:
    """To two digits."""
    step = 10.0 ** (np.floor(np.log10(value)) - 1)
    return f"{np.ceil(value / step * 1.001) * step:.1e}"


NEAR_ZERO = 1e-8
"""Added to the value that an element is off relative to."""


def check_elements(
    got: np.ndarray, expected: np.ndarray, *, place: Place, within: Within
) -> tuple[Furthest, CheckFailure | None]:
    """By a suite's own rule. An element that is not finite is wrong, also where the reference's is not."""
    where: dict[str, Any] = vars(place)
    absolute = relative = 0.0
    beyond, first = 0, -1
    flat, wanted = got.reshape(-1), expected.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        one, other = flat[part].astype(np.float64), wanted[part].astype(np.float64)
        strange = ~np.isfinite(one)
        if strange.any():
            at = start + int(np.argmax(strange))
            what = "NaN" if np.isnan(one[at - start]) else "infinite"
            off = float("nan") if what == "NaN" else float("inf")
            return Furthest(off, off), _failure(got, expected, at, f"{what}, which the suite takes for wrong", where)
        with np.errstate(invalid="ignore"):
            error = np.abs(one - other)
            share = error / (np.abs(other) + NEAR_ZERO)
        absolute, relative = max(absolute, float(error.max())), max(relative, float(share.max()))
        wrong = (error > within.absolute) & (share > within.relative)
        if first < 0 and wrong.any():
            first = start + int(np.argmax(wrong))
        beyond += int(np.count_nonzero(wrong))
    if not beyond:
        return Furthest(absolute, relative), None
    many = f"{beyond} of {flat.size} elements are" if beyond > 1 else "an element is"
    reason = f"{many} off by more than {within.absolute:g} and by more than {within.relative:g} of the value"
    return Furthest(absolute, relative), _failure(got, expected, first, f"{reason}: the suite's rule", where)


def _single(got: np.ndarray, expected: np.ndarray, sums: _Sums) -> str | None:
    """What is said of single elements, where too many are beyond their own noise."""
    if sums.suspects <= FEW * got.size:
        return None
    g, e = (abs(float(array.reshape(-1)[sums.suspect])) for array in (got, expected))
    said = "are dropped" if g < _TOO_SMALL * e else "are too large" if g > _TOO_LARGE * e else "differ"
    return f"{100 * sums.suspects / got.size:.2g} % of the values {said}"


@dataclass(frozen=True)
class _Lines:
    """Sums of squares over rows, columns or all."""

    sums: np.ndarray
    """[4, lines] in float64: of the errors, the reference, the noise, and what is allowed besides."""
    length: int
    """Elements in one line."""
    stored: Storage = WIDE

    @property
    def rounding(self) -> np.ndarray:
        """The most that `stored` makes of each, root of the sum of squares."""
        if self.stored == WIDE:
            return np.zeros(len(self.norm))  # a norm beyond float64 would come to no number
        return self.stored.relative * np.sqrt(self.norm) + self.stored.absolute * np.sqrt(self.length)

    @property
    def error(self) -> np.ndarray:
        return self.sums[0]

    @property
    def norm(self) -> np.ndarray:
        return self.sums[1]

    @property
    def noise(self) -> np.ndarray:
        return self.sums[2]

    def off(self, slack: float) -> int | None:
        """The one that is furthest beyond its limit."""
        over = self.over(slack)
        worst = int(np.argmax(over)) if over.size else 0
        return worst if over.size and not over[worst] <= 1 else None

    def over(self, slack: float) -> np.ndarray:
        """Error over limit of each; of too short ones nothing."""
        if not self.length or (self.length < SHORT and len(self.error) > 1):
            return np.zeros(0)
        return np.sqrt(self.error) / (self._limit(slack) + FLOOR * np.sqrt(self.length))

    def count_off(self, slack: float, part: slice) -> int:
        """How many of those are off. Of too few or too short ones none."""
        some = _Lines(self.sums[:, part], self.length, self.stored)
        return int(np.count_nonzero(~(some.over(slack) <= 1))) if len(some.error) > 1 else 0

    def _limit(self, slack: float) -> np.ndarray:
        limit: np.ndarray = np.sqrt(slack * slack * self.noise + self.sums[3]) + self.rounding
        return limit

    def at(self, line: int, slack: float) -> tuple[float, float]:
        """(distance, limit) of one as relative L2, for people; infinite where the reference is 0."""
        norm = self.norm[line]
        if not norm > 0:
            return float("inf"), float("inf")
        return float(np.sqrt(self.error[line] / norm)), float(self._limit(slack)[line] / np.sqrt(norm))


class _Sums:
    """Everything a verdict needs, in one walk over both arrays in blocks that fit the cache."""

    def __init__(
        self,
        got: np.ndarray,
        expected: np.ndarray,
        noise: np.ndarray | None,
        arithmetic: Arithmetic,
        elements: np.ndarray | None = None,
        allowance: np.ndarray | None = None,
        stored: Storage = WIDE,
        most_rows_off: int | None = None,
    ) -> None:
        """`most_rows_off`: more of them end the walk; None: nothing does."""
        self._arithmetic = arithmetic
        self._stored = stored
        noise = one_rounding(expected, arithmetic.unit) if noise is None and expected.dtype.kind in "iu" else noise
        self.width = max(1, expected.shape[-1]) if expected.ndim else 1
        self.height = expected.shape[-2] if expected.ndim > 1 else 1
        self._got, self._expected = got.reshape(-1, self.width), expected.reshape(-1, self.width)
        self._noise = None if noise is None else noise.reshape(-1, self.width)
        self._elements = None if elements is None else elements.reshape(-1, self.width)
        self._allowance = None if allowance is None else allowance.reshape(-1, self.width)
        count = len(self._expected)
        groups = count // max(1, self.height)
        self.rows = _Lines(np.zeros((4, count)), self.width, stored)
        self._columns = np.zeros((4, groups, self.width))
        self.columns = _Lines(self._columns.reshape(4, -1), self.height, stored)
        self.ended = False
        """Before the rest was looked at."""
        self.strange: int | None = None
        """Flat index of the first value that is not finite where the reference's is."""
        self.suspects_in = np.zeros(count, np.intp)
        """Of each row."""
        self.suspect = -1
        """Flat index, in the first row that has one, of the one that is most times too small or too large."""
        step = max(1, _BLOCK // max(1, self.width))
        self._buffers = np.empty((3, min(step, max(1, self.height)), self.width))
        off = 0
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is told as such
            for group in range(groups):
                for start in range(group * self.height, (group + 1) * self.height, step):
                    rows = slice(start, min(start + step, (group + 1) * self.height))
                    self._block(rows, group)
                    if most_rows_off is not None:
                        off += self.rows.count_off(arithmetic.slack, rows)
                        self.ended = off > most_rows_off
                        if self.ended:
                            return

    @property
    def suspects(self) -> int:
        return int(self.suspects_in.sum())

    def furthest_line(self) -> float:
        """Error over limit of the worst row or column."""
        lines = (self.rows, self.columns)
        return max(float(each.over(self._arithmetic.slack).max(initial=0)) for each in lines)

    def _block(self, rows: slice, group: int) -> None:
        want, got = self._expected[rows].astype(np.float64, copy=False), self._got[rows]
        error, squares, scratch = self._buffers[:, : len(want)]
        np.subtract(want, got, out=error)
        np.square(error, out=squares)
        largest = squares.max(axis=1, initial=0)
        if not np.isfinite(largest).all():
            want, error = self._made_finite(rows, want, error)
            np.square(error, out=squares)
            largest = squares.max(axis=1, initial=0)
        np.square(want, out=scratch)
        vanishing = self._arithmetic.vanishing
        if scratch.min(initial=np.inf) < vanishing**2:
            excused = (scratch < vanishing**2) & (np.abs(got) <= _TOO_LARGE * np.abs(want) + FLOOR)
            error[excused] = squares[excused] = 0
            largest = squares.max(axis=1, initial=0)
        self._add(0, rows, group, squares)
        self._add(1, rows, group, scratch)
        norms = self.rows.norm[rows]
        unit, slack, stored = self._arithmetic.unit, self._arithmetic.element_slack, self._stored
        if self._noise is None:
            least = _PLAIN_ROWS * unit * np.sqrt(norms / max(1, self.width)) * slack / FLOAT32.element_slack + FLOOR
            least += stored.absolute
            share = slack * unit + stored.relative
            for row in np.flatnonzero(largest > np.square(least)):
                self._suspect(rows.start + row, np.abs(error[row]) > share * np.abs(want[row]) + least[row])
            self.rows.sums[2, rows] = unit * unit * norms
            self._columns[2, group] = unit * unit * self._columns[1, group]
            return
        np.multiply(self._noise[rows], slack, out=scratch)
        scratch += FLOOR
        if self._elements is not None:
            scratch += self._elements[rows]
        if self._allowance is not None:
            scratch += self._allowance[rows]
        if stored != WIDE:
            scratch += stored.relative * np.abs(want) + stored.absolute
        np.square(scratch, out=scratch)
        beyond = squares > scratch
        if beyond.any():
            for row in np.flatnonzero(beyond.any(axis=1)):
                self._suspect(rows.start + row, beyond[row])
        np.square(self._noise[rows], out=scratch, dtype=np.float64)
        self._add(2, rows, group, scratch)
        if self._allowance is not None:
            np.square(self._allowance[rows], out=scratch, dtype=np.float64)
            self._add(3, rows, group, scratch)

    def _add(self, what: int, rows: slice, group: int, squares: np.ndarray) -> None:
        self.rows.sums[what, rows] = squares.sum(axis=1)
        self._columns[what, group] += squares.sum(axis=0)

    def _suspect(self, row: int, beyond: np.ndarray) -> None:
        count = int(np.count_nonzero(beyond))
        if count and self.suspect < 0:
            got, want = np.abs(self._got[row].astype(np.float64)), np.abs(self._expected[row].astype(np.float64))
            least = np.minimum(got, want) + np.finfo(np.float32).tiny
            self.suspect = row * self.width + int(np.argmax(np.where(beyond, np.maximum(got, want) / least, 0)))
        self.suspects_in[row] = count

    def _made_finite(self, rows: slice, want: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Error 0 where both are the same infinity or both NaN, infinite where only one is; and finite norms."""
        got = self._got[rows].astype(np.float64)
        finite = np.isfinite(want)
        strange = ~np.isfinite(got) & finite
        if self.strange is None and strange.any():
            self.strange = rows.start * self.width + int(np.argmax(strange))
        same = ~finite & ((got == want) | (np.isnan(got) & np.isnan(want)))
        error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
        return np.where(finite, want, 0.0), error

    def worst(self) -> int:
        """Flat index of the element that is furthest off."""
        row = int(np.argmax(self.rows.error))
        return row * self.width + _furthest(self._got[row], self._expected[row])


def _furthest(got: np.ndarray, expected: np.ndarray) -> int:
    with np.errstate(invalid="ignore"):
        return int(np.argmax(np.nan_to_num(np.abs(got.astype(np.float64) - expected), nan=0.0, posinf=np.inf)))


def _ratio(errors: np.ndarray, norms: np.ndarray) -> float:
    """Relative L2; infinite for a zero reference missed. Where that is not finite it counts in neither norm."""
    error, norm = float(errors.sum()), float(norms.sum())
    if norm == 0.0:
        return 0.0 if error == 0.0 else float("inf")
    return float(np.sqrt(error / norm))


def in_lines(array: np.ndarray) -> np.ndarray:
    """[rows, elements]."""
    return array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)


def _failure(
    got: np.ndarray,
    expected: np.ndarray,
    flat: int,
    reason: str,
    where: dict[str, Any],
    distance: float | None = None,
    limit: float | None = None,
    said: str = "",
) -> CheckFailure:
    finite = distance is not None and limit is not None and np.isfinite(limit)
    return CheckFailure(
        reason=reason,
        rel_l2=distance if finite else None,
        tolerance=limit if finite else None,
        worst_index=tuple(int(i) for i in np.unravel_index(flat, got.shape)),
        expected=float(expected.reshape(-1)[flat]),
        got=float(got.reshape(-1)[flat]),
        limit=said,
        **where,
    )
