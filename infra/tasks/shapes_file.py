"""Shapes that one kernel is optimized for together, with their weights: a table in TOML.

    [[shape]]
    M = 4096            # the reference's shape constants; those that are not named keep the reference's own value
    N = 2048
    calls = 32          # how often a step of the model calls it; or share = 0.25, of the step's time
    name = "prefill"    # without it: M4096-N2048

Or a model's table, of which the rows that are about the kernel are taken (`model_shapes.py`).

Raises TaskInvalid, one line: which file, which shape, what to change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelopt_core.dispatch.weights import Counting, ShapeSet, WeightedShape
from accelopt_core.task import ShapePreset, Task
from infra.tasks.model_shapes import ModelRow, is_models, rows_of_kernel
from infra.tasks.reference_reader import TaskInvalid, preset_at
from infra.toml_files import BadToml, read_toml

MOST_SHAPES = 32
MOST_WEIGHT = 1e12
"""And the least is one over it: sums of latencies stay numbers."""
LONGEST_NAME = 38
"""Characters: behind the longest id that a set is given of itself it makes the id of a run."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{LONGEST_NAME - 1}}}")
_WEIGHTS = {"calls": Counting.CALLS, "weight": Counting.CALLS, "share": Counting.SHARE}
"""Keys that say how much a shape counts; `weight` is calls compared with the other shapes."""
_TILES = 512
"""The widest tile: up to this power of two, what divides a gate must divide the shape that it is for."""


def read_shapes(path: Path, task: Task, kernel: Path) -> ShapeSet:
    """`task`: the kernel's, whose constants the shapes are values of. `kernel`: its file."""
    document = _document(path)
    if is_models(document):
        return _shape_set(path, [row.shape for row in rows_of_kernel(path, document, kernel)], task)
    rows = document.get("shape")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise TaskInvalid(f"{path}: it has no shapes: write each under [[shape]], e.g. {_example(task)}")
    if extra := sorted(document.keys() - {"shape"}):
        raise TaskInvalid(f"{path}: {extra[0]!r} is nothing known: every line belongs under a [[shape]]")
    return _shape_set(path, rows, task)


def model_rows(path: Path, kernel: Path) -> tuple[ModelRow, ...] | None:
    """None where the file is no model's table."""
    document = _document(path)
    return rows_of_kernel(path, document, kernel) if is_models(document) else None


def _document(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except BadToml as error:
        raise TaskInvalid(str(error)) from None


def _shape_set(path: Path, rows: list[dict[str, Any]], task: Task) -> ShapeSet:
    if len(rows) > MOST_SHAPES:
        raise TaskInvalid(f"{path}: {len(rows)} shapes, and at most {MOST_SHAPES}: leave those out that take no time")
    counting = _counting(path, rows)
    shapes = tuple(_shape(f"{path}: shape {number}", row, task) for number, row in enumerate(rows, 1))
    _check_different(path, shapes)
    try:
        return ShapeSet(shapes, counting)
    except ValueError as error:
        raise TaskInvalid(f"{path}: {error}") from None


def at_shape(task: Task, shape: WeightedShape) -> Task:
    """The task at one shape of a set: that one counts. The task's cheapest preset is its gate, if it is no larger and
    no tile that divides the gate leaves a rest at the shape."""
    gate = task.presets[0]
    if len(task.presets) == 1 or not _is_gate(dict(gate.values), dict(shape.preset.values)):
        return replace(task, presets=(shape.preset,))
    return replace(task, presets=(gate, shape.preset))


def _is_gate(gate: Mapping[str, int], shape: Mapping[str, int]) -> bool:
    """At the gate the kernel must not be spared the tails that it has at the shape."""
    if gate == shape or gate.keys() != shape.keys():
        return False
    return all(
        value <= shape[name] and math.gcd(value, _TILES) <= math.gcd(shape[name], _TILES)
        for name, value in gate.items()
    )


def _counting(path: Path, rows: list[dict[str, Any]]) -> Counting:
    said = [sorted(row.keys() & _WEIGHTS.keys()) for row in rows]
    if not any(said):
        return Counting.CALLS
    keys = {key for some in said for key in some}
    if len(keys) > 1:
        raise TaskInvalid(f"{path}: {' and '.join(sorted(keys))} in one table: give every shape the same one")
    (key,) = keys
    if missing := next((number for number, some in enumerate(said, 1) if not some), 0):
        raise TaskInvalid(f"{path}: shape {missing}: no {key}, which others have: give it one too")
    return _WEIGHTS[key]


def _shape(where: str, row: Mapping[str, Any], task: Task) -> WeightedShape:
    constants = dict(task.full.values)
    values = {key: value for key, value in row.items() if key not in _WEIGHTS and key != "name"}
    for key, value in values.items():
        if key not in constants:
            raise TaskInvalid(f"{where}: the reference has no {key}; its constants are {', '.join(constants)}")
        if type(value) is not int or value <= 0:
            raise TaskInvalid(f"{where}: {key} = {value!r} is no size: give a positive whole number")
    name = row.get("name", _name_of(values))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TaskInvalid(
            f"{where}: {name!r} is no name for it: use at most {LONGEST_NAME} letters, digits, dashes and underscores"
        )
    if name in {preset.name for preset in task.presets}:
        raise TaskInvalid(f"{where}: {name} is a preset of the reference: call the shape something else")
    weight = next((row[key] for key in _WEIGHTS if key in row), 1.0)
    if type(weight) not in (int, float) or not 1 / MOST_WEIGHT <= weight <= MOST_WEIGHT:
        raise TaskInvalid(f"{where}: {weight!r} is no weight: give a positive number, at most {MOST_WEIGHT:g}")
    return WeightedShape(_preset(name, constants | values, task, where), float(weight))


def _name_of(values: Mapping[str, int]) -> str:
    return "-".join(f"{key}{value}" for key, value in values.items()) or "as-it-is"


def _preset(name: str, values: Mapping[str, int], task: Task, where: str) -> ShapePreset:
    """With its work, where the reference says what that is."""
    known = next((preset for preset in task.presets if dict(preset.values) == dict(values)), None)
    if known is not None:
        return replace(known, name=name)
    return preset_at(task.reference_source, where, name, values)


def _check_different(path: Path, shapes: tuple[WeightedShape, ...]) -> None:
    for number, shape in enumerate(shapes, 1):
        for earlier, other in enumerate(shapes[: number - 1], 1):
            if shape.name == other.name:
                raise TaskInvalid(f"{path}: shapes {earlier} and {number} are both called {shape.name}: rename one")
            if shape.preset.values == other.preset.values:
                raise TaskInvalid(f"{path}: shapes {earlier} and {number} are the same: leave one away")


def _example(task: Task) -> str:
    values = ", ".join(f"{key} = {value}" for key, value in task.full.values)
    return f"{values}, calls = 1, a line each"
