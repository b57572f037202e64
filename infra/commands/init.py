"""`init`: the beginning of a reference for a kernel, with all that its text and a trace tell; the rest are TODOs."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import config
from accelopt_core.language import Language
from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.registry import language_named, language_of
from accelopt_core.task import Surroundings
from accelopt_core.toolchain import ArgumentSpec, CandidateFault, ConstantArgument, TensorArgument, ToolchainMissing
from infra.assembly.language_parts import Outputs, Tracer
from infra.assembly.languages import parts_of
from infra.assembly.migrating import outdated
from infra.assembly.targets import machine_of
from infra.settings_reader import SettingsError
from infra.tasks.kernel_file import kernel_text, surroundings_of
from infra.tasks.kernel_signature import Parameter, Signature, signature_of
from infra.tasks.plain_reference import OF_SIXTEEN_BITS, SIXTEEN_BITS, example_of
from infra.tasks.reference_reader import DECLARATIONS, KNOWN_FUNCTIONS, TaskInvalid
from infra.tasks.user_files import Folder
from infra.terminal.report import shown_path

SIZES = (128, 512, 256, 1024, 64, 2048)
"""Tried for a size; the first of them for all, to begin with."""
FEW = (2, 1, 4, 8)
"""Tried first for what is called as batches, heads and groups are."""
_IS_FEW = re.compile(r"(?:n_?)?(?:b|bs|bz|g|e|[qkv]?h|batch(?:es)?|groups?|experts?|\w*heads?)(?:_\w)?", re.IGNORECASE)
MOST_SAID = 1 << 16
"""A number of a complaint up to it is tried for the size that it names."""
DTYPES = ("float32", "bfloat16", "int32", "float8_e4m3", "int8", "uint8")
RANKS = (2, 1, 3)
"""Tried for arrays whose text does not tell; where it may be none, a number besides."""
NUMBER = 1
"""What stands for a number that nobody knows, while shapes are tried."""
MOST_TRIED = 120
LIMIT_S = 60.0
_TRACE_S = 20.0
EVERY_S = 10.0
"""Something is said at least so often, a trace apart."""

_BEYOND = re.compile(r"index \d+:(\d+) of dimension (\d+) \(size \d+\) of (\w+)\[")
"""A failed trace says how large an argument has to be: the size, its axis, the argument."""


@dataclass(frozen=True)
class Written:
    path: Path
    said: tuple[str, ...]
    """For people: what it holds, and what to do next."""


@dataclass(frozen=True)
class Arguments:
    """Of a kernel, in their order: of arrays sizes by name and in numbers, and dtypes."""

    names: tuple[tuple[str, ...] | None, ...]
    """None for what is a number."""
    sizes: Mapping[str, int]
    dtypes: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    """What a trace at these sizes returns, one line each; none where there was none."""

    def __hash__(self) -> int:
        return hash((self.names, self.dtypes, tuple(sorted(self.sizes.items()))))

    @property
    def specs(self) -> tuple[ArgumentSpec, ...]:
        return tuple(
            ConstantArgument(NUMBER)
            if names is None
            else TensorArgument(tuple(self.sizes[name] for name in names), dtype)
            for names, dtype in zip(self.names, self.dtypes)
        )


Told = Callable[[str], None]
"""For people, while shapes are tried: a process each, which on a busy machine is a silence of a minute."""


def write_reference(
    invocation: config.Invocation, told: Told = lambda line: None, folder: Folder | None = None
) -> Written:
    """`folder`: the kernel's file is in it, and so is what is written; None where it may be anywhere.

    Raises SettingsError where no kernel is named, or the file is there; TaskInvalid for what the kernel is.
    """
    kernel = invocation.settings.run.kernel
    if kernel is None:
        raise SettingsError("init: for which kernel? orchestrator.py init KERNEL.py")
    source = kernel_text(kernel)
    named = invocation.settings.run.language
    language = language_named(named) if named is not None else language_of(source) or NKI
    around = surroundings_of(kernel, source, invocation.settings.run.function, language)
    try:
        signature = signature_of(source, _entry_points(around, language))
    except SyntaxError as error:
        raise TaskInvalid(f"{kernel}{f':{error.lineno}' if error.lineno else ''}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise TaskInvalid(f"{kernel}: not Python: {error}") from None
    if signature is None:
        raise TaskInvalid(
            f"{kernel} defines no {' or '.join(_entry_points(around, language))} with `def`: name one with --function"
        )
    if language is not NKI:  # there a number is annotated, or has a default
        sure = (replace(each, may_be_number=False) for each in signature.parameters)
        signature = replace(signature, parameters=tuple(sure))
    path = kernel.with_name(f"{kernel.stem}_reference.py")
    if path.exists():
        raise SettingsError(f"init: {path} is there already, and is left as it is: to begin anew, remove it first")
    arguments, remark = _arguments(source, around, signature, invocation, language, told)
    text = skeleton(kernel.name, signature, arguments, layouts=language is NKI)
    compile(text, str(path), "exec")
    try:
        (folder or Folder(path.parent)).write(kernel.parent.resolve() / path.name, text, overwrite=False)
    except OSError as error:
        raise SettingsError(f"init: {path}: {error.strerror}") from None
    run = f"python3 orchestrator.py {shown_path(kernel)}{' --migrate' if _is_beta_1(source, language) else ''}"
    return Written(path, (f"wrote {shown_path(path)}: {remark}", f"fill in each TODO, then: {run}"))


def _is_beta_1(source: str, language: Language) -> bool:
    old = outdated(source) if language is NKI else None
    return old is not None and old.only_in_old_sdks


def _entry_points(around: Surroundings, language: Language) -> tuple[str, ...]:
    """The one that the user named, or those that the language knows."""
    return (around.function,) if around.function else language.entry_points


# --- shapes -------------------------------------------------------------------------------------------


def _arguments(
    source: str,
    around: Surroundings,
    signature: Signature,
    invocation: config.Invocation,
    language: Language,
    told: Told,
) -> tuple[Arguments | None, str]:
    """And a remark for people; None where nobody knows."""
    settings = invocation.settings
    machine = machine_of(replace(settings, run=replace(settings.run, language=language.key)))
    example = " ".join("x".join(["512"] * (len(each.sizes or ()) or 2)) for each in signature.arrays)
    if _is_beta_1(source, language):
        of = "the kernel is of NKI 0.1, which is rewritten once its shapes are known, and traced then"
        if settings.run.shape:
            return _as_given(signature, settings.run.shape), f"the shapes are yours: {of}"
        return None, f"{of}: shapes are TODOs; or remove the file, and name them: --shape {example}"
    with closing(parts_of(language.key).tracer(machine)) as tracer:
        tracing = _Tracing(tracer, source, around, told)
        if settings.run.shape:
            named = _as_given(signature, settings.run.shape)
            outputs = tracing.outputs(named)
            if outputs is None:
                return named, f"the shapes are yours, and the kernel does not trace at them: {tracing.complaint}"
            return tracing.described(named, outputs), "the shapes are yours, and the kernel traces at them"
        if not signature.arrays:
            return None, "the kernel's parameters name no array: what it takes is a TODO"
        if signature.unknown:
            names = ", ".join(each.name for each in signature.unknown)
            return None, f"{names}: no default, so that no shape could be tried: shapes are TODOs"
        told(f"trying shapes until the kernel traces, at most {LIMIT_S:g} s; --shape {example} spares it")
        found = tracing.search(_first(signature.arrays), signature.arrays)
        if found is not None:
            return found, "the smallest shapes that the kernel was found to trace at: put your own in"
    return None, (
        f"no shape was found at which the kernel traces ({tracing.complaint}): shapes are TODOs; or remove the file, "
        f"and name them: --shape {example}"
    )


class _Tracing:
    """A kernel traced at one shape after the other, each in a process of its own."""

    def __init__(self, tracer: Tracer, source: str, around: Surroundings, told: Told) -> None:
        self._tracer, self._source, self._around, self._told = tracer, source, around, told
        self._deadline = time.monotonic() + LIMIT_S
        self._said_at = time.monotonic()
        self._left = MOST_TRIED
        self._came_to = self._furthest = (-1, 0, False)
        self.complaint = ""
        """Of the attempt that came furthest."""

    @property
    def is_over(self) -> bool:
        return self._left <= 0 or time.monotonic() > self._deadline

    def outputs(self, arguments: Arguments) -> Outputs | None:
        """dtype and shape of each; None where it does not compile."""
        if time.monotonic() > self._said_at + EVERY_S:
            self._said_at = time.monotonic()
            self._told(f"{MOST_TRIED - self._left} tried{f': {self.complaint}' if self.complaint else ''}")
        self._left -= 1
        try:
            return self._tracer.outputs(self._source, arguments.specs, _TRACE_S, self._around)
        except (CandidateFault, ToolchainMissing) as error:
            beyond, is_array = _BEYOND.search(str(error)), "must be a tensor, got 1 (int)" not in str(error)
            self._came_to = getattr(error, "line", None) or 0, int(beyond[1]) if beyond is not None else 0, is_array
            if self._came_to > self._furthest:
                self._furthest, self.complaint = self._came_to, str(error)
            return None

    def _loaded_as(self, found: Arguments) -> tuple[str, ...]:
        """Of each array the type that it is loaded as; empty where loops that run not once load nothing."""
        return self._tracer.loaded_as(self._source, found.specs, _TRACE_S, self._around)

    def _loads(self, found: Arguments) -> int:
        return sum(map(bool, self._loaded_as(found)))

    def search(self, begun: Arguments, arrays: Sequence[Parameter]) -> Arguments | None:
        """Begins with small sizes, and again with larger ones where loops of the kernel do not run at those."""
        found = self._found(begun, arrays)
        if found is not None and self._loads(found) < len(arrays):
            larger = self._found(_with_sizes(begun, dict.fromkeys(begun.sizes, SIZES[1])), arrays)
            found = larger if larger is not None and self._loads(larger) > self._loads(found) else found
        return None if found is None else self._settled(found, arrays)

    def _found(self, begun: Arguments, arrays: Sequence[Parameter]) -> Arguments | None:
        """One choice after the other is changed (a size, a rank, a type), those first that the complaint names; what
        lets the kernel come further, by the line of its failure, is kept. None where nothing does."""
        outputs = self.outputs(begun)
        came_to, tried = self._came_to, {begun}
        while outputs is None and not self.is_over:
            for other in _changed(begun, arrays, self.complaint):
                if other in tried or self.is_over:
                    continue
                tried.add(other)
                outputs = self.outputs(other)
                if outputs is not None or self._came_to > came_to:
                    begun, came_to = other, self._came_to
                    break
            else:
                return None
        return None if outputs is None else begun

    def _settled(self, found: Arguments, arrays: Sequence[Parameter]) -> Arguments:
        """Each step where the kernel still traces: types as tiles have them that arrays are loaded into; sizes that
        nobody names at 1, or at the least that another has; then the name of the size that they grow with, or another
        array's names."""

        def traces(changed: Arguments) -> bool:
            return not self.is_over and self.outputs(changed) is not None

        def loads(changed: Arguments) -> bool:
            return self._loads(changed) >= most

        most = self._loads(found)
        loaded = iter(self._loaded_as(found))
        for at, names in enumerate(found.names):
            dtype = next(loaded, "") if names is not None else ""
            typed = replace(found, dtypes=(*found.dtypes[:at], dtype, *found.dtypes[at + 1 :]))
            found = typed if dtype not in ("", found.dtypes[at]) and traces(typed) else found
        possible = [name for each, names in zip(arrays, found.names) for name in _made_up(each, len(names or ()))]
        made_up = [name for name in possible if name in found.sizes]
        first = {*next((names for names in found.names if names is not None), ())}
        data = first if {*found.sizes} <= {*made_up} else set()  # somewhere there is more than one row
        for name in [each for each in made_up if each not in data]:
            for size in sorted({1, *found.sizes.values()}):
                if size >= found.sizes[name] or traces(less := _with_sizes(found, {name: size})) and loads(less):
                    found = _with_sizes(found, {name: min(size, found.sizes[name])})
                    break
        for known in [each for each in found.sizes if each not in made_up]:
            same = [name for name in made_up if found.sizes.get(name) == found.sizes[known]]
            twice = {known: 2 * found.sizes[known]}
            together = _renamed(found, dict.fromkeys(same, known))
            if same and not traces(_with_sizes(found, twice)) and traces(_with_sizes(together, twice)):
                without = {name: [each for each in same if each != name] for name in same}
                held = {name: _renamed(found, dict.fromkeys(rest, known)) for name, rest in without.items()}
                tied = [name for name, other in held.items() if not traces(_with_sizes(other, twice))]
                found = _renamed(found, dict.fromkeys(tied, known))
        for name in [each for each in made_up if each in found.sizes]:  # where twice as much is more than there may be
            half = found.sizes[name] // 2
            for known in [
                each for each, size in found.sizes.items() if half and size == 2 * half and each not in made_up
            ]:
                less = _with_sizes(found, {name: half})
                if not traces(less) and traces(_with_sizes(less, {known: half})):
                    found = _renamed(found, {name: known})
                    break
        for at, own in enumerate(found.names):
            others = [each for number, each in enumerate(found.names) if each and (number < at or {*each} - {*made_up})]
            for names in dict.fromkeys(others) if own and {*own} <= {*made_up} else ():
                if names and own and names != own and _shape(found, names) == _shape(found, own):
                    found = _renamed(found, dict(zip(own, names)))
                    break
        outputs = self.outputs(found)
        return found if outputs is None else self.described(found, outputs)

    def described(self, found: Arguments, outputs: Outputs) -> Arguments:
        """With the outputs' sizes by name: those of the argument that they grow with."""
        named: list[list[str]] = [[str(size) for size in shape] for _, shape in outputs]
        for name in found.sizes:
            larger = _with_sizes(found, {name: 2 * found.sizes[name]})
            grown = None if self.is_over else self.outputs(larger)
            for number, (_, shape) in enumerate(grown or ()):
                for axis, size in enumerate(shape):
                    before = outputs[number][1]
                    if axis < len(before) and size == 2 * before[axis] == 2 * found.sizes.get(name, 0):
                        named[number][axis] = name
        lines = tuple(f"{dtype} [{', '.join(axes)}]" for (dtype, _), axes in zip(outputs, named))
        return Arguments(found.names, found.sizes, found.dtypes, lines)


def _as_given(signature: Signature, shapes: tuple[str, ...]) -> Arguments:
    read = [example_of(text) for text in shapes]
    arrays = signature.arrays
    sure = tuple(each for each in arrays if not each.may_be_number)
    if len(shapes) not in (len(arrays), len(sure)):
        names = ", ".join(each.name for each in arrays) or "none"
        numbers = ", ".join(each.name for each in arrays if each.may_be_number)
        also = f"; without {numbers}, if it is a number" if numbers else ""
        raise SettingsError(f"--shape: {len(shapes)} shapes for {len(arrays)} arrays ({names}{also})")
    are_arrays = arrays if len(shapes) == len(arrays) else sure
    all_names: list[tuple[str, ...] | None] = []
    sizes: dict[str, int] = {}
    dtypes: list[str] = []
    given = iter(read)
    for each in arrays:
        if each not in are_arrays:
            all_names.append(None)
            dtypes.append("float32")
            continue
        numbers_of, dtype = next(given)
        own = each.sizes if each.sizes is not None and len(each.sizes) == len(numbers_of) else ()
        mine = []
        for axis, number in enumerate(numbers_of):
            name = own[axis] if own else f"{each.name}_{axis}".upper()
            if sizes.get(name, number) != number:
                name = f"{each.name}_{axis}".upper()
            sizes[name] = number
            mine.append(name)
        all_names.append(tuple(mine))
        dtypes.append(dtype)
    return Arguments(tuple(all_names), sizes, tuple(dtypes))


def _first(arrays: Sequence[Parameter]) -> Arguments:
    """Of float32 all, two dimensions where nobody says how many."""
    names = tuple(_ways(each)[0] for each in arrays)
    sizes = {name: SIZES[0] for each in names for name in each or ()}
    few = {name for each in arrays for name in each.sizes or () if _IS_FEW.fullmatch(name)}
    return Arguments(names, {**sizes, **dict.fromkeys(few, FEW[0])}, (DTYPES[0],) * len(arrays))


def _changed(here: Arguments, arrays: Sequence[Parameter], complaint: str) -> Iterator[Arguments]:
    """Every one that differs in one choice, or in the size or the type of all."""
    beyond = _BEYOND.search(complaint)
    if beyond is not None:
        end, axis = int(beyond[1]), int(beyond[2])
        own = next((names for each, names in zip(arrays, here.names) if each.name == beyond[3]), None)
        if own is not None and axis < len(own):
            yield _with_sizes(here, {own[axis]: end})
    words = {*re.findall(r"\w+", complaint)}
    of_types = beyond is None and any(word in complaint for word in ("dtype", "float", "int8", "int32", "bits"))
    by_relevance = sorted(here.sizes, key=lambda name: name not in words)

    def types() -> Iterator[Arguments]:
        for dtype in DTYPES:
            yield replace(here, dtypes=(dtype,) * len(arrays))
        for at in range(len(arrays)):
            for dtype in DTYPES:
                yield replace(here, dtypes=(*here.dtypes[:at], dtype, *here.dtypes[at + 1 :]))

    if of_types:
        yield from types()
    said = [int(word) for word in sorted(words) if word.isdecimal() and 0 < int(word) <= MOST_SAID]
    for name in [each for each in by_relevance if each in words]:
        for size in (*said, *SIZES, *FEW):
            yield _with_sizes(here, {name: size})
    for at, array in enumerate(arrays):
        for way in _ways(array):
            if way != here.names[at]:
                names: tuple[tuple[str, ...] | None, ...] = (*here.names[:at], way, *here.names[at + 1 :])
                first = _first(arrays).sizes
                sizes = {name: here.sizes.get(name, first.get(name, SIZES[0])) for each in names for name in each or ()}
                yield replace(here, names=names, sizes=sizes)
    for size in SIZES:
        yield _with_sizes(here, {name: size for name, now in here.sizes.items() if now not in FEW})
    for name in by_relevance:
        for size in (*SIZES, *FEW):
            yield _with_sizes(here, {name: size})
    for one, other in itertools.permutations(here.sizes, 2):
        yield _with_sizes(here, {one: SIZES[1], other: SIZES[1]})
    if not of_types:
        yield from types()


def _with_sizes(here: Arguments, sizes: Mapping[str, int]) -> Arguments:
    return replace(here, sizes={**here.sizes, **sizes})


def _shape(here: Arguments, names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(here.sizes[name] for name in names)


def _renamed(here: Arguments, names: Mapping[str, str]) -> Arguments:
    shapes = tuple(None if each is None else tuple(names.get(name, name) for name in each) for each in here.names)
    left = dict.fromkeys(name for each in shapes for name in each or ())
    return replace(here, names=shapes, sizes={name: here.sizes[name] for name in left})


def _made_up(array: Parameter, rank: int) -> tuple[str, ...]:
    """Names of sizes that nobody names."""
    return tuple(f"{array.name}_{axis}".upper() for axis in range(rank))


def _ways(array: Parameter) -> list[tuple[str, ...] | None]:
    """What an argument may be: of which sizes, or None for a number."""
    if array.sizes is not None:
        return [array.sizes]
    ranked = [_made_up(array, rank) for rank in RANKS]
    return [None, *ranked] if array.may_be_number else [*ranked]


# --- the file -----------------------------------------------------------------------------------------


def skeleton(kernel: str, signature: Signature, arguments: Arguments | None, *, layouts: bool = True) -> str:
    """A reference module as docs/tasks.md has it; what is unknown raises NotImplementedError when it is run.

    `layouts`: the kernel may take and give its tensors in other layouts than the formula.
    """
    taken = {*KNOWN_FUNCTIONS, *DECLARATIONS}
    lines = [f'"""What {kernel} must compute. Written by `init`: fill in each TODO (docs/tasks.md)."""', ""]
    if arguments is not None:
        ones = [name for name, size in arguments.sizes.items() if size == 1 and re.search(r"_\d+$", name)]
        arguments = _renamed(replace(arguments, sizes={**arguments.sizes, "1": 1}), dict.fromkeys(ones, "1"))
    if arguments is not None and any(not _is_numpy(dtype) for dtype in arguments.dtypes):
        lines += ["import ml_dtypes"]
    lines += ["import numpy as np", ""]
    if arguments is not None:
        for name, size in arguments.sizes.items():
            if name in taken:
                raise TaskInvalid(f"{kernel}: it calls a size {name}, which a reference means otherwise: rename it")
            lines += [f"{name} = {size}"] if name != "1" else []
        lines += [*_declared(arguments), ""]
    lines += ["", "def get_inputs():"]
    lines += _inputs(signature, arguments)
    given = [each.name for each in signature.given]
    lines += ["", "", f"def forward({', '.join(given)}):"]
    if arguments is not None:
        for each, names in zip(signature.arrays, arguments.names):
            lines.append(f"    # {each.name}: a number" if names is None else f"    # {each.name} [{', '.join(names)}]")
        lines += [f"    # the kernel returns {line}" for line in arguments.outputs]
    left = [f"{each.name}={each.default}" for each in signature.parameters if each.default is not None]
    lines += [f"    # as it is called, the kernel has {', '.join(left)}"] if left else []
    lines += ["    # in float64 and in float32: keep the dtype (np.sqrt(2) and np.vectorize do not: astype(x.dtype))"]
    todo = f"TODO: what {kernel} computes of {', '.join(given)}, in NumPy"
    lines += [f"    raise NotImplementedError({todo!r})", ""]
    if not layouts:
        return "\n".join(lines)
    lines += [""]
    lines += ["def transform_to_nki_inputs(inputs):", "    return list(inputs)", "", ""]
    lines += ["def transform_nki_outputs(result, reference):"]
    if arguments is not None and len(arguments.outputs) > 1:
        lines += ["    return [np.asarray(got).reshape(wanted.shape) for got, wanted in zip(result, reference)]", ""]
    else:
        lines += ["    return [np.asarray(result).reshape(reference.shape)]", ""]
    return "\n".join(lines)


def _declared(arguments: Arguments) -> list[str]:
    """What arithmetic in 16 bits needs; to take and to return them, a kernel needs nothing."""
    if not {*SIXTEEN_BITS} & {*arguments.dtypes, *(line.split(" ")[0] for line in arguments.outputs)}:
        return []
    precision, tolerance = OF_SIXTEEN_BITS
    return [f"{precision}  # without these two what is computed in 16 bits is wrong", tolerance]


def _inputs(signature: Signature, arguments: Arguments | None) -> list[str]:
    """The body of get_inputs."""
    if arguments is None:
        arrays = [f"the shape of {each.name}" for each in signature.arrays]
        what = ", ".join([*arrays, *(each.name for each in signature.unknown)]) or "its arguments"
        return [
            "    # as np.random.normal(size=(M, N)).astype(np.float32), one for each argument, in order",
            f"    raise NotImplementedError({f'TODO: what the kernel is given: {what}'!r})",
        ]
    numbers = [each.name for each, names in zip(signature.arrays, arguments.names) if names is None]
    numbers += [each.name for each in signature.unknown]
    lines = []
    for name in numbers:
        lines += [f"    raise NotImplementedError({f'TODO: {name} = its value, in place of this line'!r})"]
    drawn = {}
    for each, names, dtype in zip(signature.arrays, arguments.names, arguments.dtypes):
        if names is not None:
            shape = f"({', '.join(names)}{',' if len(names) == 1 else ''})"
            drawn[each.name] = _drawn(shape, dtype, f"np.{dtype}" if _is_numpy(dtype) else f"ml_dtypes.{dtype}")
    given = (drawn.get(each.name, each.name) for each in signature.given)
    return [*lines, "    return [", *(f"        {value}," for value in given), "    ]"]


def _drawn(shape: str, dtype: str, kind: str) -> str:
    if "int" in dtype and dtype.endswith(("8", "16")):
        limits = np.iinfo(dtype)
        return f"np.random.randint({limits.min}, {limits.max + 1}, size={shape}).astype({kind})"
    if "int" in dtype:
        return f"np.random.randint(0, 100, size={shape}).astype({kind})  # if they are indices: of what"
    return f"np.random.normal(size={shape}).astype({kind})"


def _is_numpy(dtype: str) -> bool:
    return dtype.startswith(("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint"))
