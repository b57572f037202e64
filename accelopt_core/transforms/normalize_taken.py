"""A kernel as it is at the shapes of its task: a third normal form.

Constant arguments are stated, branches that are always taken the same way are no branches, bounds that cut no tile off
have no cut. An assertion says so for each. Once that is done more of the kernel can be written out, and more is known:
so in rounds. What those are is found once, and stands in the form's name: carrying it out needs no task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from keyword import iskeyword

import libcst as cst

from accelopt_core.toolchain import ArgumentSpec
from accelopt_core.transforms.base import KernelModule
from accelopt_core.transforms.kernel_code import KernelCode, read_kernel
from accelopt_core.transforms.normalize_arguments import constants_to_state, with_constants_stated
from accelopt_core.transforms.normalize_bounds import cuts, with_sizes_simplified, with_whole_tiles
from accelopt_core.transforms.normalize_branches import conditions, with_branches_taken, without_proved
from accelopt_core.transforms.outcomes import outcomes

_CUTS, _WAYS = "for", "if"
"""Before what is known of bounds and branches; keywords, so that no argument is called so."""

_MOST_ROUNDS = 6

Normalized = Callable[[KernelModule], KernelModule]


@dataclass(frozen=True)
class Round:
    """What is known of a kernel in normal form at its task's shapes."""

    whole: tuple[int, ...] = ()
    """Bounds that cut nothing off, by their place among all."""
    ways: Mapping[int, bool] = field(default_factory=dict)
    """Conditions that always come out alike, by their place among all."""


@dataclass(frozen=True)
class Taken:
    """What is known one after the other, each once the kernel is as the one before says."""

    constants: Mapping[str, str] = field(default_factory=dict)
    """Of arguments by name."""
    rounds: tuple[Round, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        ways = ";".join(",".join(f"{at}{'+' if way else '-'}" for at, way in x.ways.items()) for x in self.rounds)
        whole = ";".join(",".join(map(str, x.whole)) for x in self.rounds)
        said = ((_CUTS, whole), (_WAYS, ways), *self.constants.items())
        return tuple(f"{name}:{text}" for name, text in said if text.strip(";"))


def read_taken(words: Iterable[str]) -> Taken:
    """Of its words. Raises ValueError."""
    constants: dict[str, str] = {}
    whole: list[tuple[int, ...]] = []
    ways: list[dict[int, bool]] = []
    for word in words:
        name, _, text = word.partition(":")
        parts = [[each for each in part.split(",") if each] for part in text.split(";")]
        if name == _CUTS and any(parts):
            whole = [tuple(map(int, part)) for part in parts]
        elif name == _WAYS and any(parts):
            ways = [{int(each[:-1]): {"+": True, "-": False}[each[-1:]] for each in part} for part in parts]
        elif name.isidentifier() and text and not iskeyword(name):
            constants[name] = text
        else:
            raise ValueError(word)
    return Taken(constants, tuple(Round(cut or (), way or {}) for cut, way in zip_longest(whole, ways)))


def taken_at(plain: KernelModule, presets: Sequence[Sequence[ArgumentSpec]], normalized: Normalized) -> Taken | None:
    """Of a kernel in normal form; None where no branch is decided, and all bounds alike. Raises NotAKernel."""
    if not presets:
        return None
    constants = constants_to_state(read_kernel(plain), presets)
    module = _stated(plain, constants, normalized)
    decides = len(_conditions(module)) < len(_conditions(plain))
    rounds: list[Round] = []
    while len(rounds) < _MOST_ROUNDS:
        known, some_are_whole = _known_of(module, presets)
        if not known.ways and not (some_are_whole and not rounds):
            break
        rounds.append(known)
        module = _after(module, known, normalized)
    return Taken(constants, tuple(rounds)) if rounds or decides else None


def _conditions(module: KernelModule) -> Sequence[cst.CSTNode]:
    return conditions(read_kernel(module).function)


def _known_of(module: KernelModule, presets: Sequence[Sequence[ArgumentSpec]]) -> tuple[Round, bool]:
    """And whether some bounds cut nothing off while others do."""
    code = read_kernel(module)
    seen, bounds = outcomes(code, presets), cuts(code)
    whole = tuple(at for at, (call, kept) in enumerate(bounds) if kept in seen.least.get(call, set()))
    code = KernelCode(module.changed(with_whole_tiles(code, whole)))
    seen = outcomes(code, presets)
    found = ((at, seen.always(node)) for at, node in enumerate(conditions(code.function)))
    ways = {at: way for at, way in found if way is not None}
    return Round(whole, ways), bool(whole) and len(whole) < len(bounds)


def as_taken(plain: KernelModule, taken: Taken, normalized: Normalized) -> KernelModule:
    """Of a kernel in normal form: in it again. Raises NotAKernel."""
    module = _stated(plain, taken.constants, normalized)
    for known in taken.rounds:
        module = _after(module, known, normalized)
    return module


def _after(module: KernelModule, known: Round, normalized: Normalized) -> KernelModule:
    steps: tuple[Callable[[KernelCode], cst.Module], ...] = (
        lambda code: with_whole_tiles(code, known.whole),
        lambda code: with_branches_taken(code, known.ways),
        with_sizes_simplified,
        without_proved,
    )
    for step in steps:
        module = module.changed(step(read_kernel(module)))
    return normalized(module)


def _stated(plain: KernelModule, constants: Mapping[str, str], normalized: Normalized) -> KernelModule:
    code = read_kernel(plain)
    made = with_constants_stated(code, constants)
    return plain if made is code.module else normalized(plain.changed(made))
