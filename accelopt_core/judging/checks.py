"""What a candidate is checked with at one shape, what one draw shows of it, and what all of them do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

import numpy as np

from accelopt_core.evaluation import CheckFailure, Evaluation, Furthest
from accelopt_core.judging.inputs.draws import Draw
from accelopt_core.judging.reference.verification import Reference
from accelopt_core.judging.tolerance.storage import Storage
from accelopt_core.task import ShapePreset
from accelopt_core.toolchain import ArgumentSpec

_UNKNOWN = (
    "forward() of the reference makes float64 of float32 inputs (np.sqrt(2) and np.vectorize do), so that what float32 "
    "itself gets wrong here is not known: let it keep the dtype that it is given (docs/tasks.md)"
)


@dataclass(frozen=True)
class Compiled:
    """A candidate at one shape."""

    preset: ShapePreset
    reference: Reference
    specs: tuple[ArgumentSpec, ...]
    artifact: Any
    tensor_bytes: int
    """Of the arguments together."""


@dataclass(frozen=True)
class Verified:
    """What a candidate passed at one shape."""

    relative_l2: float
    """The worst on the reference's own inputs."""
    line: str
    """For people: the shape, what was drawn, and how close the outputs came."""
    shared_faults: tuple[str, ...] = ()
    """Draws that the task's input kernel fails as well, one line each: left out."""
    furthest: Furthest | None = None
    """On the reference's own inputs, where the task has a suite's own rule."""
    identical: int = 0
    """Draws on which every bit was the input kernel's, where the task asks for that."""
    types: tuple[str, ...] = ()
    """Of the outputs, as the kernel returned them and NumPy calls them."""


@dataclass(frozen=True)
class Passed:
    """The outputs of one draw are right."""

    relative_l2: float
    """The worst of the outputs."""
    furthest: Furthest | None = None
    """As `Verified.furthest`, of this draw."""
    types: tuple[str, ...] = ()
    """As `Verified.types`."""
    rounding: float = 0.0
    """What the outputs' own types add to the bound on that: the most, as relative L2."""
    rounded_integers: bool = False
    """As `Toolchain.rounded_integers`."""
    unheld: tuple[Draw, ...] = ()
    """As `BeyondFloat32.unheld`, where another draw took its place."""


@dataclass(frozen=True)
class BeyondFloat32:
    """Changed inputs on which the reference itself overflows in float32, in some rows or all; other rows are right."""

    unheld: tuple[Draw, ...] = ()
    """Draws whose rows beyond float32 are not what float64 says: only the input kernel can tell whether they may."""


@dataclass(frozen=True)
class Undefined:
    """Values of a domain that was found, not declared, on which the reference fails."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """What is wrong with the kernel, as one draw shows it."""

    evaluation: Evaluation
    excusable: bool = True
    """By what the input kernel does; not a suite's own rule, which holds for whatever is handed in, nor other bits."""


CheckResult = Union[Passed, BeyondFloat32, Undefined, Failed]
"""On one draw. A value, since it comes from a forked process."""


@dataclass
class Execution:
    """One draw: what the reference says of it, and what the kernel does. Its arrays may be gigabytes, and are empty
    while another run of the reference needs their memory."""

    draw: Draw
    inputs: list[Any]
    expected: tuple[np.ndarray, ...]
    raw: list[np.ndarray]
    """As the kernel returned them."""
    outputs: list[np.ndarray]
    """What the reference's `transform_nki_outputs` makes of those; as many as `expected`."""
    stored: tuple[Storage, ...]
    """Of each output, what the types that it and the reference's are stored in make of it."""
    stored_alike: tuple[Storage, ...]
    """The same, were it stored as the reference's is."""


@dataclass(frozen=True)
class Off:
    """An output that is further off than the limits it was held to."""

    distance: float
    """Relative L2 over the whole output; infinite where a value is not finite, or the shape is another."""
    failure: CheckFailure


@dataclass(frozen=True)
class PlainFloat32:
    """What plain float32 arithmetic needs on one draw."""

    wider: tuple[float, ...]
    """Each output's limits are so many times wider."""
    rows: tuple[np.ndarray, ...]
    """Rows of each output that it can represent; the others say nothing."""
    elements: tuple[np.ndarray | None, ...]
    """Of each output, as `Needed.elements`."""
    unknown: str
    """Why all this is not of float32; empty where it is."""
    allowance: tuple[np.ndarray, ...] = ()
    """Of each output, what the reference itself may be off in float64; empty: not known yet."""

    @property
    def is_whole(self) -> bool:
        return all(rows.all() for rows in self.rows)

    def of(self, execution: Execution) -> Execution:
        """With zeros in all other rows, of the reference's outputs and of the kernel's."""
        outputs = [
            got if got.shape != want.shape else in_rows(each, got)
            for each, got, want in zip(self.rows, execution.outputs, execution.expected)
        ]
        return replace(execution, outputs=outputs, expected=tuple(map(in_rows, self.rows, execution.expected)))


def plain_float32(arrays: tuple[np.ndarray, ...], outputs: int) -> PlainFloat32:
    """As it was kept."""
    numbers, *others = arrays
    elements = (each if each.size else None for each in others[outputs:])
    return PlainFloat32(
        tuple(numbers[1:].tolist()), tuple(others[:outputs]), tuple(elements), _UNKNOWN if numbers[0] else ""
    )


def in_rows(rows: np.ndarray, array: np.ndarray) -> np.ndarray:
    """With zeros in all other rows; not copied where there are none, since it may be gigabytes."""
    return array if rows.all() else np.where(rows, array, 0)


def furthest_of(all_of_them: Sequence[Furthest]) -> Furthest | None:
    if not all_of_them:
        return None
    return Furthest(max(each.absolute for each in all_of_them), max(each.relative for each in all_of_them))
