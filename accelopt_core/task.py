"""What a kernel must compute: the reference, the shapes, and how close is close enough."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import Enum

PUBLISHED_SEEDS = (0, 21, 42, 63, 84)
"""The five seeds NKIBench publishes; every candidate must pass all of them."""

DEFAULT_TOLERANCE = 2e-5
"""Relative L2 over the whole output, in float64 (NKIBench protocol)."""

DEFAULT_LANGUAGE = "nki"
"""`Language.key` where nobody names one."""

ENTRY_POINTS = ("kernel", "optimized_kernel")
"""Names under which a kernel file may expose its kernel, in order of preference, where its user names none."""


@dataclass(frozen=True)
class Surroundings:
    """How a kernel's file is loaded: which of its functions is the kernel, and the files that it imports."""

    function: str = ""
    """Empty: the first of ENTRY_POINTS that the file has."""
    module: str = ""
    """Under which name its package imports it, e.g. `library.core.norm`; empty for a file that stands alone."""
    neighbours: tuple[tuple[str, str], ...] = ()
    """Files of the user's that it imports, directly or not: path below the package's folder, with `/`, and text."""

    def __post_init__(self) -> None:
        names = [*self.module.split("."), self.function] if self.module else [self.function or "kernel"]
        if not all(name.isidentifier() for name in filter(None, names)):
            raise ValueError(f"{'.'.join(names)!r} is no name that Python can import")
        for path, _ in self.neighbours:
            parts = path.split("/")
            if not self.module or path == self.path or path.startswith("/") or {"", ".", ".."} & {*parts}:
                raise ValueError(f"{path!r} is no file beside the kernel's")

    @property
    def entry_points(self) -> tuple[str, ...]:
        """What the kernel may be called, in order of preference."""
        return (self.function,) if self.function else ENTRY_POINTS

    @property
    def path(self) -> str:
        """Of the kernel's own file, below the package's folder."""
        return f"{self.module.replace('.', '/')}.py" if self.module else ""

    @property
    def importable(self) -> frozenset[str]:
        """First names of what is imported from the neighbours."""
        beside = self.path.rpartition("/")[0]
        inside = [path.removeprefix(f"{beside}/") for path, _ in self.neighbours if path.startswith(f"{beside}/")]
        return frozenset(
            path.partition("/")[0].removesuffix(".py") for path in [*inside, *(path for path, _ in self.neighbours)]
        )


ALONE = Surroundings()


REFERENCE = "reference"
"""The input distribution that is the reference's own get_inputs, unchanged; always checked."""

DOMAIN, COMPLEMENT = "domain", "complement"
"""Distributions that move what the reference's draws never change: integers, masks, constant arrays. An element of the
second differs from the same seed's in the first wherever its domain has another value."""

DISTRIBUTIONS = (
    REFERENCE, "large", "small", "positive", "heavy-tailed", "constant-rows", "zeros-mixed", "zero-rows",
    "peaks", "scaled-rows", "offset", "offset-rows", "mixed", DOMAIN, COMPLEMENT,
)  # fmt: skip
"""What a kernel's inputs are drawn from; `judging/distributions.py` says how each changes the reference's own."""


class PrecisionPolicy(str, Enum):
    """Which arithmetic the kernel may use, judged on the instruction trace and never on text."""

    FLOAT32_FAITHFUL = "float32-faithful"
    BF16_ALLOWED = "bf16-allowed"
    FP8_ALLOWED = "fp8-allowed"


@dataclass(frozen=True)
class Within:
    """A suite's own rule, which holds besides ours on the reference's own inputs: every element is finite, and none is
    further off than both of these."""

    absolute: float
    relative: float
    """Of the reference's value."""

    def __post_init__(self) -> None:
        if not min(self.absolute, self.relative) > 0 or max(self.absolute, self.relative) >= float("inf"):
            raise ValueError(f"WITHIN needs two positive numbers, not {self.absolute} and {self.relative}")


@dataclass(frozen=True)
class Domain:
    """Which values an input may take, as the reference declares it in DOMAINS (docs/tasks.md)."""

    name: str
    """Of a parameter of `forward`."""
    low: float | None = None
    high: float | None = None
    """Both ends belong to it; None: no draw changes this input."""

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError(f'DOMAINS: {self.name} needs two ends, or "fixed"')
        if self.low is not None and self.high is not None and not float("-inf") < self.low <= self.high < float("inf"):
            raise ValueError(f"DOMAINS: {self.name} cannot lie from {self.low} to {self.high}")


@dataclass(frozen=True)
class Work:
    """Useful work of one call, independent of any kernel; the numerator of percent of peak."""

    matmul_flops: int
    """Multiply and add counted separately."""
    vector_ops: int
    """Elementwise operations, one per element and operator."""
    hbm_bytes: int
    """Least traffic: every input read once and every output written once."""

    def __post_init__(self) -> None:
        if min(self.matmul_flops, self.vector_ops, self.hbm_bytes) < 0:
            raise ValueError(f"Work cannot be negative: {self}")
        if self.hbm_bytes == 0:
            raise ValueError("Work.hbm_bytes is 0: every kernel reads and writes something")


@dataclass(frozen=True)
class ShapePreset:
    """Values for the reference module's shape constants, e.g. `{"M": 4096, "K": 5120}`."""

    name: str
    values: tuple[tuple[str, int], ...]
    work: Work | None = None
    """None: derived from the trace, and said so wherever a percentage is printed."""
    domains: tuple[Domain, ...] = ()
    """Declared ones, at this shape."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("ShapePreset.name is empty")
        for key, value in self.values:
            if not key.isidentifier() or value <= 0:
                raise ValueError(f"shape constant {key}={value}: need an identifier and a positive size")

    def describe(self) -> str:
        """`M512 N1024`; `x 512x1024` of sizes `X_0` and `X_1`."""
        sizes, said = dict(self.values), []
        for key, value in self.values:
            array, axis = key.rpartition("_")[::2]
            if not (array and axis.isdigit() and f"{array}_0" in sizes):
                said.append(f"{key}{value}")
            elif axis == "0":
                own = [str(sizes[f"{array}_{n}"]) for n in range(len(sizes)) if f"{array}_{n}" in sizes]
                said.append(f"{array.lower()} {'x'.join(own)}")
        return " ".join(said) or self.name


@dataclass(frozen=True)
class Task:
    """One problem to solve. `presets[-1]` is the shape that counts; earlier ones are cheaper gates."""

    name: str
    reference_source: str
    """Text of the NumPy reference module: get_inputs, forward and the two transforms (docs/tasks.md)."""
    presets: tuple[ShapePreset, ...]
    tolerance: float = DEFAULT_TOLERANCE
    precision: PrecisionPolicy = PrecisionPolicy.FLOAT32_FAITHFUL
    seeds: tuple[int, ...] = PUBLISHED_SEEDS
    left_out: tuple[tuple[str, str], ...] = ()
    """Input distributions that this problem is not defined for, each with the reason."""
    around: Surroundings = ALONE
    language: str = DEFAULT_LANGUAGE
    """That its kernels are written in: `Language.key`."""
    within: Within | None = None
    exact: bool = False
    """A proposed kernel's outputs equal the input kernel's in every bit, whatever is drawn."""

    def __post_init__(self) -> None:
        if not self.presets:
            raise ValueError(f"task {self.name}: needs at least one shape preset")
        if len({preset.name for preset in self.presets}) != len(self.presets):
            raise ValueError(f"task {self.name}: two presets share a name")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"task {self.name}: tolerance {self.tolerance} is not in (0, 1)")
        if not self.seeds:
            raise ValueError(f"task {self.name}: needs at least one seed")
        for name, reason in self.left_out:
            if name not in DISTRIBUTIONS or name == REFERENCE:
                raise ValueError(f"task {self.name}: cannot leave out {name!r}: one of {', '.join(DISTRIBUTIONS[1:])}")
            if not reason.strip():
                raise ValueError(f"task {self.name}: leaving out {name} needs a reason")

    @property
    def full(self) -> ShapePreset:
        return self.presets[-1]

    @property
    def distributions(self) -> tuple[str, ...]:
        """Of inputs, the reference's own first."""
        without = {name for name, _ in self.left_out}
        return tuple(name for name in DISTRIBUTIONS if name not in without)

    @property
    def content_hash(self) -> str:
        """Changes whenever anything that could change a verdict changes."""
        data = asdict(self)
        if self.around == ALONE:  # as it was before there was anything else
            del data["around"]
        if self.language == DEFAULT_LANGUAGE:  # likewise
            del data["language"]
        if self.within is None:  # likewise
            del data["within"]
        if not self.exact:  # likewise
            del data["exact"]
        for preset in data["presets"]:
            if not preset["domains"]:  # likewise
                del preset["domains"]
        text = json.dumps(data, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
