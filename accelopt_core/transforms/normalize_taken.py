"""A kernel as it is at the shapes of its task: a third normal form.

Constant arguments are stated, branches that are always taken the same way are no branches, bounds that cut no tile off
have no cut. An assertion says so for each. What those are is found once, and stands in the form's name: carrying it out
needs no task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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

Normalized = Callable[[KernelModule], KernelModule]


@dataclass(frozen=True)
class Taken:
    """What is known of a kernel in normal form at its task's shapes."""

    constants: Mapping[str, str] = field(default_factory=dict)
    """Of arguments by name."""
    whole: tuple[int, ...] = ()
    """Bounds that cut nothing off, by their place among all."""
    ways: Mapping[int, bool] = field(default_factory=dict)
    """Conditions that always come out alike, by their place among all."""

    @property
    def words(self) -> tuple[str, ...]:
        ways = ",".join(f"{at}{'+' if way else '-'}" for at, way in self.ways.items())
        whole = ",".join(map(str, self.whole))
        return tuple(
            f"{name}:{text}" for name, text in ((_CUTS, whole), (_WAYS, ways), *self.constants.items()) if text
        )


def read_taken(words: Iterable[str]) -> Taken:
    """Of its words. Raises ValueError."""
    constants: dict[str, str] = {}
    whole: tuple[int, ...] = ()
    ways: dict[int, bool] = {}
    for word in words:
        name, _, text = word.partition(":")
        if name == _CUTS:
            whole = tuple(int(at) for at in text.split(","))
        elif name == _WAYS:
            ways = {int(each[:-1]): {"+": True, "-": False}[each[-1:]] for each in text.split(",")}
        elif name.isidentifier() and text:
            constants[name] = text
        else:
            raise ValueError(word)
    return Taken(constants, whole, ways)


def taken_at(plain: KernelModule, presets: Sequence[Sequence[ArgumentSpec]], normalized: Normalized) -> Taken | None:
    """Of a kernel in normal form; None where no branch is decided, and all bounds alike. Raises NotAKernel."""
    if not presets:
        return None
    constants = constants_to_state(read_kernel(plain), presets)
    code = read_kernel(_stated(plain, constants, normalized))
    seen, bounds = outcomes(code, presets), cuts(code)
    whole = tuple(at for at, (call, kept) in enumerate(bounds) if kept in seen.least.get(call, set()))
    code = KernelCode(plain.changed(with_whole_tiles(code, whole)))
    seen = outcomes(code, presets)
    found = ((at, seen.always(node)) for at, node in enumerate(conditions(code.function)))
    ways = {at: way for at, way in found if way is not None}
    some_are_whole = bool(whole) and len(whole) < len(bounds)
    return Taken(constants, whole, ways) if ways or some_are_whole else None


def as_taken(plain: KernelModule, taken: Taken, normalized: Normalized) -> KernelModule:
    """Of a kernel in normal form: in it again. Raises NotAKernel."""
    module = _stated(plain, taken.constants, normalized)
    steps: tuple[Callable[[KernelCode], cst.Module], ...] = (
        lambda code: with_whole_tiles(code, taken.whole),
        lambda code: with_branches_taken(code, taken.ways),
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
