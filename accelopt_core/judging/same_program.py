"""A candidate compiled at its shapes, each once; and whether it is a program that the run has judged before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from accelopt_core.evaluation import Evaluation, Implausible, Incorrect, Measured
from accelopt_core.judging.checks import Compiled
from accelopt_core.ports import KnownProgram
from accelopt_core.task import ShapePreset
from accelopt_core.toolchain import Toolchain


@dataclass
class Compilations:
    """Of one candidate. What `compile` raises goes through."""

    presets: tuple[ShapePreset, ...]
    toolchain: Toolchain
    compile: Callable[[ShapePreset], Compiled]
    _made: list[Compiled] = field(default_factory=list)
    _digests: list[str] = field(default_factory=list)

    def at(self, preset: ShapePreset) -> Compiled:
        """Compiles at the presets before it first, where that was not done."""
        number = self.presets.index(preset)
        while len(self._made) <= number:
            compiled = self.compile(self.presets[len(self._made)])
            self._made.append(compiled)
            self._digests.append(self.toolchain.program_digest(compiled.artifact))
        return self._made[number]

    def duplicate(self, known: tuple[KnownProgram, ...]) -> KnownProgram | None:
        """The earliest of those that have this program at every shape that they came to.

        Compiles at no more shapes than it takes to tell: one, for nearly all that are new.
        """
        left = [each for each in known if any(each.programs)]
        for number, preset in enumerate(self.presets):
            if not left:
                return None
            self.at(preset)
            left = [each for each in left if each.programs[number] == self._digests[number]]
            settled = next((each for each in left if len(each.programs) == number + 1), None)
            if settled is not None:
                return settled
        return None

    def signed(self, result: Evaluation) -> Evaluation:
        """The same result, with what the candidate was compiled to on the way to it."""
        if not isinstance(result, (Measured, Incorrect, Implausible)) or not any(self._digests):
            return result
        return replace(result, programs=tuple(self._digests))
