"""What a kernel is held against: its reference in float64, and how far honest arithmetic may be from that."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
import secrets
import shutil
import time
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from accelopt_core.judging.inputs.distributions import changed_inputs
from accelopt_core.judging.inputs.domains import Kind, Movement, index_axis, is_floating, movements, other_number
from accelopt_core.judging.reference.reference_arrays import WatchedNumPy, any_narrow, computing_wide, unrounded
from accelopt_core.judging.reference.roundings import flushed_to_zero, moved_by_roundings, summed_one_by_one
from accelopt_core.judging.tolerance.closeness import in_lines, one_rounding
from accelopt_core.task import COMPLEMENT, REFERENCE, ShapePreset, Task
from accelopt_core.toolchain import ArgumentSpec, ConstantArgument, DtypeArgument, TensorArgument, constant

NOISE_DRAWS = 2
"""With one, a row that hangs on a single number (two equal logits of a softmax) seems exact by luck, one in many."""
NOISES = 2 * NOISE_DRAWS
"""With draws for every element and draws for every row."""

DOMAIN_SEEDS = (1009, 2003, 3001)
"""Draws by which domains are found."""

MOST_DRAWN = 1 << 30
"""Bytes of drawn inputs that a reference keeps at most, for draws that change the same ones in several ways."""

REFERENCE_NAMES = ("get_inputs", "forward")


def _inputs_as_they_are(inputs: Sequence[Any]) -> list[Any]:
    return list(inputs)


def _outputs_reshaped(result: Any, reference: Any) -> list[np.ndarray]:
    """Raises ValueError where there are not as many of them, or of so many elements."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    references = reference if isinstance(reference, (tuple, list)) else (reference,)
    if len(results) != len(references):
        raise ValueError(f"the kernel returns {len(results)} arrays, and the reference {len(references)}")
    return [np.reshape(got, np.shape(wanted)) for got, wanted in zip(results, references)]


TO_KERNEL, FROM_KERNEL = "transform_to_nki_inputs", "transform_nki_outputs"
"""As NKIBench calls them: what a reference may define where the kernel wants its arguments in another form."""
_IDENTITIES = {TO_KERNEL: _inputs_as_they_are, FROM_KERNEL: _outputs_reshaped}


class BadReference(Exception):
    """The user's reference module does not follow the protocol or fails: fix it (docs/tasks.md)."""


class UnusableOutputs(Exception):
    """The reference cannot take what this kernel returned: their shapes and why."""


NO_DEVICE_HAS = {"nki": ("float64", "complex64", "complex128")}
"""By language: dtypes that NumPy gives unasked and no kernel can be given."""


class Reference:
    """A task's NumPy reference at one shape. The reference is the user's own code and is trusted."""

    def __init__(self, task: Task, preset: ShapePreset) -> None:
        self.task = task
        self.preset = preset
        module = types.ModuleType(f"reference_{task.name}")
        try:
            exec(compile(task.reference_source, f"<reference of {task.name}>", "exec"), module.__dict__)
        except Exception as error:  # the user's module may raise anything
            raise BadReference(f"the reference of {task.name} cannot be loaded: {_brief(error)}") from error
        missing = [name for name in REFERENCE_NAMES if not callable(getattr(module, name, None))]
        if missing:
            raise BadReference(f"the reference of {task.name} lacks {', '.join(missing)}() (docs/tasks.md)")
        for name, identity in _IDENTITIES.items():
            if not hasattr(module, name):
                setattr(module, name, identity)
        for name, value in preset.values:
            if not hasattr(module, name):
                raise BadReference(f"the reference of {task.name} has no shape constant {name} (preset {preset.name})")
            setattr(module, name, value)
        self._numpy = WatchedNumPy()
        self._numpy.put_into(module.__dict__)
        self._module = module
        self._is_narrow = False
        """Is any of its inputs or results known to be of a narrow type?"""
        self._kept: dict[int, _Kept] = {}
        self.movements: tuple[Movement | None, ...] = ()
        """How each input is moved, once that was found (`ReferenceCache.movements`)."""
        self.changes_numbers = ""
        """Numbers of this kind of dtype among the inputs, which a kernel is compiled for, are others than drawn."""

    def inputs(self, seed: int, distribution: str = REFERENCE) -> list[Any]:
        """What `get_inputs()` draws after seeding NumPy's global generator (NKIBench protocol), changed."""
        drawn = self._drawn(seed)
        changed = changed_inputs(drawn, distribution, seed, self.movements)
        if distribution == COMPLEMENT and self.moves and "peaks" in self.task.distributions:
            peaks = changed_inputs(drawn, "peaks", seed)
            changed = [one if known is not None else other for known, one, other in zip(self.movements, changed, peaks)]
        return [other_number(each, self.changes_numbers) for each in changed]

    @property
    def moves(self) -> bool:
        """Does any input have a domain that the other distributions do not draw from?"""
        return any(each is not None and each.moves for each in self.movements)

    @property
    def draws_integers(self) -> bool:
        """Is any input of integers that are not declared fixed?"""
        whole = (Kind.INTEGERS, Kind.TWO_VALUES)
        return any(each is not None and each.kind in whole for each in self.movements)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of `forward`'s parameters, as far as it names them."""
        return tuple(inspect.signature(self._module.forward).parameters)

    def find_movements(self, known: tuple[Movement | None, ...] | None = None) -> tuple[Movement | None, ...]:
        """By input, from `DOMAIN_SEEDS` draws. `known`: as found at another shape, for axes that were shown there."""
        if known is not None and not any(each is not None and each.kind is Kind.INTEGERS for each in known):
            return known
        draws = [self._drawn(seed) for seed in DOMAIN_SEEDS]
        names = self.parameters
        declared = {names.index(each.name): each for each in self.preset.domains}
        found = list(movements(draws, declared))
        for number, movement in enumerate(found):
            if movement is None:
                continue
            if known is None:
                axis = index_axis(draws[0], number, movement, self._is_defined)
            else:
                other = known[number]
                axis = None if other is None else other.axis
            found[number] = replace(movement, axis=axis)
        return tuple(found)

    def _is_defined(self, inputs: list[Any]) -> bool:
        try:
            return all(has_finite(each) for each in self.expected(inputs) if each.size)
        except BadReference:
            return False

    def keep(self, seeds: Iterable[int]) -> None:
        """Draw these seeds' inputs now, for several uses: normal numbers take longer than copying them does.

        Forked processes share them. What would be more than `MOST_DRAWN` bytes together, or what `get_inputs()` fails
        on, is drawn where it is used.
        """
        for seed in seeds:
            try:
                inputs = self._drawn(seed)
            except BadReference:
                continue  # said where it is used, and in its turn
            known = sum(kept.nbytes for each, kept in self._kept.items() if each != seed)
            if all(map(_is_copied, inputs)) and known + _nbytes(inputs) <= MOST_DRAWN:
                self._kept[seed] = _Kept(tuple(inputs), np.random.get_state())

    def _drawn(self, seed: int) -> list[Any]:
        """Whoever gets it may write to it; the global generator is left as `get_inputs()` leaves it."""
        kept = self._kept.get(seed)
        if kept is not None:
            np.random.set_state(kept.state)
            return [value.copy(order="K") if isinstance(value, np.ndarray) else value for value in kept.inputs]
        np.random.seed(seed)
        return list(self._call("get_inputs"))

    def kernel_arguments(self, inputs: list[Any]) -> list[Any]:
        """Arrays (C order) and Python constants, in the order of the kernel's parameters.

        Raises BadReference for a dtype that no kernel of the task's language can be given.
        """
        arguments = self._call(TO_KERNEL, inputs)
        for number, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray) and argument.dtype.name in NO_DEVICE_HAS.get(self.task.language, ()):
                raise BadReference(
                    f"the kernel of {self.task.name} would be given {argument.dtype.name} as its argument {number}, "
                    "which no device has: cast it in get_inputs(), e.g. .astype(np.float32) (docs/tasks.md)"
                )
        return [np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in arguments]

    def expected(self, inputs: list[Any]) -> tuple[np.ndarray, ...]:
        """`forward` in float64: floating inputs are widened first, so that rounding is the kernel's alone.

        A reference may itself store its results in a narrow type: they are taken before that (`reference_arrays`), or
        in that type where this is not known.
        """
        found = self.expected_of_types(inputs)
        return found[: len(found) // 2]

    def expected_of_types(self, inputs: list[Any]) -> tuple[np.ndarray, ...]:
        """As `expected`, and after these, for each an empty array of the type in which the reference returns it."""
        results = self._forward(inputs, lambda narrow: _wide(np.float64, inputs, narrow))
        return *map(unrounded, results), *(np.empty(0, np.asarray(result).dtype) for result in results)

    def more_noise(
        self,
        less: tuple[np.ndarray, ...] | None,
        draw: int,
        inputs: list[Any],
        expected: tuple[np.ndarray, ...],
        unit: float,
        seed: int,
        rows: Sequence[np.ndarray] | None = None,
    ) -> tuple[np.ndarray, ...]:
        """Root mean square change of each output element when every input is off by about one rounding, `unit`.

        One rounding of the result is in it. Of `NOISES` draws, of which each element has its own in one half, and each
        row in the other, since equal elements are rounded alike and their errors add up: the sum of both squares, each
        the mean of `NOISE_DRAWS`. How far off each is is drawn evenly and not only its sign: where two products of two
        inputs cancel, signs alone cancel too, in three draws of eight. Drawn from `seed`: the same bits again.

        This is what `less`, of the draws before `draw`, becomes with it; written over it, if it is not None. The share
        of each draw is as of all, so that what is close enough by some is close enough. `rows`: of each output, those
        that `expected` has, by number.
        """
        if less is None:
            less = tuple(one_rounding(exact, unit) for exact in expected)

        def moved(narrow: bool) -> list[Any]:
            drawn = np.random.default_rng((seed, draw))
            inputs_moved = [_moved(a, unit, drawn, alike=draw % 2 == 1) for a in _as(np.float64, inputs)]
            return computing_wide(inputs_moved) if narrow else inputs_moved

        with np.errstate(all="ignore"):
            self._join_change(less, expected, inputs, moved, rows)
        return less

    def _join_change(
        self,
        noise: Sequence[np.ndarray],
        expected: tuple[np.ndarray, ...],
        inputs: list[Any],
        moved: Callable[[bool], list[Any]],
        rows: Sequence[np.ndarray] | None,
    ) -> None:
        """With what the outputs for other inputs are off. None of them outlives the call: they may be gigabytes."""
        for number, (root, one, exact) in enumerate(zip(noise, self._unrounded(inputs, moved), expected)):
            _join(root, one if rows is None else in_lines(one)[rows[number]], exact)

    def in_float32(self, inputs: list[Any]) -> tuple[np.ndarray, ...]:
        """`forward` in float32: what plain arithmetic makes of these inputs, whether that is finite or not."""
        return self._unrounded(inputs, lambda narrow: _wide(np.float32, inputs, narrow))

    def in_float32_one_by_one(self, inputs: list[Any]) -> tuple[np.ndarray, ...]:
        """As `in_float32`, its sums in the least favourable of the usual orders: one term after the other."""
        return self._unrounded(inputs, lambda narrow: [summed_one_by_one(a, narrow) for a in _as(np.float32, inputs)])

    def in_other_float64(self, inputs: list[Any], seed: int) -> tuple[np.ndarray, ...]:
        """`forward` in float64 with every result on the way moved by about one rounding of float64, drawn from `seed`:
        how far that is from `expected` is about how far `expected` is from the truth."""

        def watched(narrow: bool) -> list[Any]:
            draw = np.random.default_rng((seed, 64))
            return [moved_by_roundings(a, draw, narrow) for a in _as(np.float64, inputs)]

        return self._unrounded(inputs, watched)

    def flushed(self, inputs: list[Any]) -> tuple[np.ndarray, ...]:
        """`forward` in float64 with every result on the way that an engine need not keep as 0."""
        return self._unrounded(inputs, lambda narrow: [flushed_to_zero(a, narrow) for a in _as(np.float64, inputs)])

    def _unrounded(self, inputs: list[Any], made: Callable[[bool], list[Any]]) -> tuple[np.ndarray, ...]:
        return tuple(widened(unrounded(result)) for result in self._forward(inputs, made))

    def _forward(self, inputs: list[Any], made: Callable[[bool], list[Any]]) -> tuple[Any, ...]:
        """What `forward` makes of what is made of these inputs: told whether any of them, or of the results, is of a
        narrow type, which a first run may have to show."""
        self._is_narrow = self._is_narrow or any_narrow(inputs)
        while True:
            was_narrow = self._is_narrow
            arrays = made(was_narrow)
            with np.errstate(all="ignore"), self._numpy.making(arrays if was_narrow else ()):
                # what overflows or divides by zero is looked at, not warned about
                result = self._call("forward", *arrays)
            results = result if isinstance(result, tuple) else (result,)
            self._is_narrow = was_narrow or any_narrow(results)
            if self._is_narrow == was_narrow:
                return results

    def outputs(self, result: Sequence[np.ndarray], expected: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        """The kernel's outputs in the shapes of the reference's, in the dtypes that the kernel stored.

        Raises UnusableOutputs where the transform fails, which may be the kernel's fault: it is not proof of a bad
        reference; and BadReference where it hands back the expected values instead of the kernel's.
        """
        kernel_result: Any = tuple(result) if len(result) != 1 else result[0]
        reference: Any = expected if len(expected) != 1 else expected[0]
        try:
            found = [np.asarray(a) for a in self._call(FROM_KERNEL, kernel_result, reference)]
        except BadReference as error:
            shapes = ", ".join(str(list(r.shape)) for r in result) or "nothing"
            raise UnusableOutputs(f"the kernel returns {shapes}: {_brief(error.__cause__ or error)}") from error
        if any(np.may_share_memory(got, want) for got in found for want in expected):
            raise BadReference(
                f"{FROM_KERNEL}() of {self.task.name} returns the reference's own values: every kernel would "
                "pass (docs/tasks.md)"
            )
        return found

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._module, name)(*arguments)
        except MemoryError:
            raise  # it may be the candidate that has used it up
        except Exception as error:  # the user's module may raise anything
            raise BadReference(
                f"{name}() of {self.task.name}'s reference failed at shape {self.preset.describe()}: {_brief(error)}"
            ) from error


@dataclass(frozen=True)
class _Kept:
    """Inputs as they were drawn; nobody else has these arrays."""

    inputs: tuple[Any, ...]
    state: Any
    """Of NumPy's global generator, once they were drawn."""

    @property
    def nbytes(self) -> int:
        return _nbytes(self.inputs)


def widened(array: np.ndarray) -> np.ndarray:
    """bfloat16 and 8-bit floats as float32, which holds them exactly: NumPy only knows their bytes."""
    return array.astype(np.float32) if is_floating(array) and array.dtype.isbuiltin != 1 else array


def _is_copied(value: Any) -> bool:
    """Is it an array, or a value that nobody can change?"""
    return isinstance(value, np.ndarray) or value is None or isinstance(value, (bool, int, float, str, np.generic))


def _nbytes(values: Iterable[Any]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


def _as(dtype: type[np.floating], inputs: list[Any]) -> list[Any]:
    return [a.astype(dtype) if is_floating(a) else a for a in inputs]


def _wide(dtype: type[np.floating], inputs: list[Any], narrow: bool) -> list[Any]:
    return computing_wide(_as(dtype, inputs)) if narrow else _as(dtype, inputs)


def _moved(value: Any, unit: float, draw: np.random.Generator, alike: bool) -> Any:
    if not is_floating(value):
        return value
    shape = (*value.shape[:-1], 1) if alike and value.ndim > 1 else value.shape
    steps = np.frombuffer(draw.bytes(int(np.prod(shape))), np.uint8).reshape(shape)
    factors: np.ndarray = steps.astype(np.float64)
    factors -= 127.5
    factors *= unit / _SPREAD
    factors += 1
    return np.multiply(value, factors, out=None if alike else factors)


_SPREAD = float(np.sqrt(np.mean(np.square(np.arange(256) - 127.5))))
"""Root mean square of what a byte is off its mean."""


_BLOCK = 1 << 14
"""Elements taken at a time: a temporary array of all would cost gigabytes, and these stay in the cache."""


def _join(root: np.ndarray, one: np.ndarray, exact: np.ndarray) -> None:
    """root = sqrt(root^2 + (one - exact)^2 / NOISE_DRAWS), in place.

    A result that is not finite is right only as it is; for one that is and nearly was not, anything is.
    """
    flat, moved, base = _flat(root), _flat(one), _flat(exact)
    largest = np.finfo(np.float32).max
    for start in range(0, root.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        total = np.square(flat[part], dtype=np.float64)
        more = np.subtract(moved[part], base[part], dtype=np.float64)
        np.square(more, out=more)
        more /= NOISE_DRAWS
        total += more
        flat[part] = np.sqrt(total, out=total)
        if not np.isfinite(flat[part]).all():
            flat[part] = np.where(np.isfinite(base[part]), np.nan_to_num(flat[part], nan=largest, posinf=largest), 0)


def has_finite(array: np.ndarray) -> bool:
    """Whether any element is finite; of most arrays the first ones say so."""
    flat = array.ravel(order="K")
    return any(np.isfinite(flat[at : at + _BLOCK]).any() for at in range(0, flat.size, _BLOCK))


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1)


def argument_specs(arguments: Sequence[Any]) -> tuple[ArgumentSpec, ...]:
    """What a compiler may know of the arguments: shapes, dtypes and constants, never contents."""
    specs: list[ArgumentSpec] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            specs.append(TensorArgument(tuple(argument.shape) or (1,), str(argument.dtype)))
        elif isinstance(argument, np.dtype) or isinstance(argument, type) and issubclass(argument, np.generic):
            specs.append(DtypeArgument(np.dtype(argument).name))
        else:
            try:
                specs.append(
                    ConstantArgument(constant(argument.item() if isinstance(argument, np.generic) else argument))
                )
            except TypeError as error:
                raise BadReference(
                    f"transform_to_nki_inputs returned a {type(argument).__name__} with a {error} in it: a kernel is "
                    "given arrays, numbers, text, None, NumPy's dtypes and tuples of these; let its parameter default "
                    "to anything else (docs/tasks.md)"
                ) from None
    return tuple(specs)


def _spec(kind: str, values: dict[str, Any]) -> ArgumentSpec:
    """As `asdict` of it went through JSON."""
    if kind == TensorArgument.__name__:
        return TensorArgument(tuple(values["shape"]), values["dtype"])
    return DtypeArgument(**values) if kind == DtypeArgument.__name__ else ConstantArgument(constant(values["value"]))


def _movement(values: dict[str, Any]) -> Movement:
    """As `asdict` of it went through JSON."""
    axis = values["axis"]
    return Movement(**{**values, "kind": Kind(values["kind"]), "axis": None if axis is None else (axis[0], axis[1])})


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _read_array(path: Path) -> np.ndarray:
    """An .npy file and nothing else: np.load would take an archive or a pickle for one.

    `path` ends in the array's dtype and `.npy`: the file has the bits of bfloat16 and 8-bit floats as integers.
    """
    with open(path, "rb") as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array.view(path.suffixes[-2][1:])


MOST_KEPT = 12 << 30
"""Bytes kept of references. One draw of NKIBench's bmm_softmax is 2 GiB in float64, and its noise 1 GiB: computed again
for each candidate they take three times as long as the candidate."""

WEIGHED_FROM = 64 << 20
"""Bytes; less is always kept, whatever it took to compute."""
KEEPING_S = 4e-9
"""Of processor time, for a byte to be written, sealed and read again: 8.6 s for 2 GiB, of which clearing fresh pages is
most, on a virtual machine (bmm's product of 2 GiB takes 0.8 s)."""


def _key_of(reference: Reference, what: str) -> str:
    name = f"{reference.task.content_hash}/{reference.preset.name}/{what}"
    return hashlib.sha256(name.encode()).hexdigest()[:24]


class ReferenceCache:
    """What was computed of a reference at one preset, by name, on disk within a budget; for a judge that starts afresh.

    Without a folder nothing is kept. What was not written with the same key, which never lies on a disk that a
    candidate can read, is computed again. The budget is `MOST_KEPT`, and no more than a part of what the disk has free.
    What is sooner computed than read is not kept.
    """

    def __init__(self, folder: Path | None, budget_bytes: int | None = None, key: bytes = b"") -> None:
        self._folder = folder
        self._budget = budget_bytes
        self._key = key

    def drawing(self, reference: Reference) -> int:
        """Secret from candidates, and the same for a task's shape as long as what is kept here is believed."""
        if self._folder is None or not self._key:
            return secrets.randbits(62)
        text = f"{reference.task.content_hash}/{reference.preset.name}/drawing"
        return int.from_bytes(hashlib.blake2b(text.encode(), key=self._key, digest_size=7).digest(), "big")

    def of_draw(
        self, reference: Reference, seed: int, what: str, compute: Callable[[], tuple[np.ndarray, ...]]
    ) -> tuple[np.ndarray, ...]:
        """Of inputs of that seed. What is of a secret one nobody would read again: it is of one evaluation."""
        return self.kept(reference, f"{seed}/{what}", compute) if seed in reference.task.seeds else compute()

    def expected(
        self, reference: Reference, seed: int, distribution: str, inputs: Callable[[], list[Any]]
    ) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
        """`Reference.expected` of a draw, and the types in which the reference returns it, as NumPy calls them."""
        found = self.of_draw(reference, seed, distribution, lambda: reference.expected_of_types(inputs()))
        count = len(found) // 2
        return found[:count], tuple(each.dtype.name for each in found[count:])

    def known(self, reference: Reference, seed: int, what: str) -> tuple[np.ndarray, ...] | None:
        """What `keep` was given of it."""
        if self._folder is None or seed not in reference.task.seeds:
            return None
        return self._read(_key_of(reference, f"{seed}/{what}"))

    def keep(self, reference: Reference, seed: int, what: str, result: tuple[np.ndarray, ...], seconds: float) -> None:
        """In place of what was kept of it. `seconds`: of processor time that it took. As `of_draw` in all else."""
        if seed in reference.task.seeds:
            self._keep(_key_of(reference, f"{seed}/{what}"), result, seconds)

    def arguments(self, reference: Reference, seed: int) -> tuple[tuple[ArgumentSpec, ...], int]:
        """What the kernel is called with, and the bytes of its arrays: inputs are drawn for that once in a session."""

        def compute() -> tuple[np.ndarray]:
            arguments = reference.kernel_arguments(reference.inputs(seed))
            specs = [[type(spec).__name__, asdict(spec)] for spec in argument_specs(arguments)]
            return (np.frombuffer(json.dumps([specs, _nbytes(arguments)]).encode(), np.uint8),)

        (said,) = self.kept(reference, f"{seed}/arguments", compute)
        specs, nbytes = json.loads(said.tobytes())
        return tuple(_spec(kind, values) for kind, values in specs), nbytes

    def movements(self, reference: Reference) -> None:
        """Find how inputs are moved at the reference's shape, once in a session, and tell it.

        Which axis is indexed is found at the task's cheapest shape: that takes runs of the reference.
        """
        task, first = reference.task, reference.task.presets[0]
        known: tuple[Movement | None, ...] | None = None
        if reference.preset != first:
            cheapest = Reference(task, first)
            self.movements(cheapest)
            known = cheapest.movements

        def compute() -> tuple[np.ndarray]:
            said = [None if each is None else asdict(each) for each in reference.find_movements(known)]
            return (np.frombuffer(json.dumps(said).encode(), np.uint8),)

        (said,) = self.kept(reference, "movements", compute)
        reference.movements = tuple(None if each is None else _movement(each) for each in json.loads(said.tobytes()))

    def behaviour(
        self, reference: Reference, kernel: str, compute: Callable[[], tuple[np.ndarray, ...]]
    ) -> tuple[np.ndarray, ...]:
        """Of a kernel, by its hash, on `drawing`; where that is another each time, it is computed each time."""
        return self.kept(reference, f"behaviour/{kernel}", compute) if self._key else compute()

    def kept(
        self, reference: Reference, what: str, compute: Callable[[], tuple[np.ndarray, ...]]
    ) -> tuple[np.ndarray, ...]:
        if self._folder is None:
            return compute()
        key = _key_of(reference, what)
        known = self._read(key)
        if known is not None:
            return known
        began = time.thread_time()
        result = compute()
        self._keep(key, result, time.thread_time() - began)
        return result

    def _keep(self, key: str, result: tuple[np.ndarray, ...], seconds: float) -> None:
        nbytes = _nbytes(result)
        if self._folder is None or (nbytes >= WEIGHED_FROM and seconds < KEEPING_S * nbytes):
            return
        used = sum(path.stat().st_size for path in self._folder.glob("*.npy"))
        if used + nbytes <= self._most(used):
            self._write(key, result)

    def _write(self, key: str, result: Sequence[np.ndarray]) -> None:
        """A disk that is full after all costs time and nothing else."""
        assert self._folder is not None
        names = [self._folder / f"{key}.{number:03d}.{array.dtype.name}.npy" for number, array in enumerate(result)]
        try:
            for path, array in zip(names, result):
                bits = array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")
                np.save(path, bits, allow_pickle=False)
            (self._folder / f"{key}.complete").write_text(self._seal(key, result))
        except OSError:
            for path in names:
                path.unlink(missing_ok=True)

    def _most(self, used: int) -> int:
        if self._budget is not None:
            return self._budget
        assert self._folder is not None
        return min(MOST_KEPT, (shutil.disk_usage(self._folder).free + used) // 8)

    def _read(self, key: str) -> tuple[np.ndarray, ...] | None:
        assert self._folder is not None
        try:
            seal = (self._folder / f"{key}.complete").read_text()
            found = tuple(_read_array(path) for path in sorted(self._folder.glob(f"{key}.*.npy")))
        except (OSError, ValueError, TypeError):  # a dtype whose package is gone, too
            return None
        return found if hmac.compare_digest(seal, self._seal(key, found)) else None

    def _seal(self, key: str, arrays: Sequence[np.ndarray]) -> str:
        digest = hmac.new(self._key, key.encode(), "sha256")  # in hardware: more than twice as fast as blake2b
        for array in arrays:
            digest.update(f"{array.dtype.name}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()
