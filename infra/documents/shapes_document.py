"""A set of shapes as a document: the table that a person sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.runs.shape_set import BetweenRow, SetFolder, SetRow, SetTable


@dataclass(frozen=True)
class ShapesDocument:
    """One kernel for several shapes: one line for each shape whose run has measured something."""

    set_id: str
    """What `--resume` goes on with; its runs are called `<set_id>.<name of the shape>`."""
    kernel: str
    """Path of the file that was given."""
    task: str
    created: str
    """ISO time, UTC."""
    complete: bool
    """The joined kernel was made, and is verified at every line's shape."""
    best_kernel: str | None
    """Path of the joined kernel; the input kernel where nothing was faster."""
    machine: str
    simulated: bool
    caveat: str
    """What must be said wherever a latency is shown; empty where nothing must."""
    counting: Literal["calls", "share"]
    """What `weight` is: how often a step calls the kernel, or its share of the step's time before."""
    before_us: float
    """Of all calls together, with the input kernel."""
    alone_us: float
    """The same with a kernel for each shape, tuned for it alone."""
    after_us: float
    """The same with the joined kernel."""
    speedup: float | None
    """Weighted; null before anything was measured."""
    kept_percent: float | None
    """Of the weighted time that tuning each shape alone saves, what the joined kernel saves; null where that is 0."""
    variants: int
    """In the joined kernel, beside the input kernel."""
    rows: tuple[SetRow, ...]
    between: tuple[BetweenRow, ...]
    """Shapes that are none of the set, at which the joined kernel was found to be what the input kernel is."""
    missing: dict[str, str]
    """Shapes without a line, with the reason."""
    notes: tuple[str, ...]
    seconds: float
    """Of all runs together, and of the joined kernel's evaluations."""
    schema: Literal["nki-optimizer/shapes/1"] = "nki-optimizer/shapes/1"


def shapes_document(folder: SetFolder, table: SetTable) -> ShapesDocument:
    manifest = folder.manifest()
    complete = bool(table.rows) and table.is_complete
    return ShapesDocument(
        folder.set_id, manifest.kernel, manifest.task, manifest.created, complete,
        str(folder.best_kernel) if complete else None, table.machine, table.simulated, table.caveat,
        table.counting.value, table.before_us, table.alone_us, table.after_us,
        table.before_us / table.after_us if table.rows else None, table.kept_percent, table.variants, table.rows,
        table.between, table.missing, table.notes, table.seconds,
    )  # fmt: skip
