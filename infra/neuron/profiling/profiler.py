"""The profiler that is installed, and what its version can do: asked with `--help`, not guessed by number. Shipped.

What AWS does not document and we use is in `UNDOCUMENTED_FLAGS`; it is used where the tool itself lists it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accelopt_core.evaluation import Step
from accelopt_core.toolchain import StepTimeout, ToolchainMissing
from infra.neuron.commands import Installation, ToolRun, run_tool

PROFILERS = ("neuron-explorer", "neuron-profile")
"""The same interface under its current and its former name (aws-neuron-sdk, how-to-profile-workload.rst)."""

UNDOCUMENTED_FLAGS = {
    "--disable-profile": "a run for its outputs alone is not profiled",
    "--save-nth-output": "outputs of timed executions are compared with the verified ones",
}
"""Flags of `capture`, and what for. nki-library's tests use them, no page of AWS that we know describes them."""

_DOCUMENTED_FLAGS = frozenset({"--num-exec", "--profile-nth-exec", "--save-output-npy", "--save-output"})

JSON, PARQUET, SUMMARY_JSON = "json", "parquet", "summary-json"
_FORMAT = re.compile(r"(?<![\w-])(summary-json|summary-text|perfetto|parquet|json|csv|db)(?![\w-])")

READ_COLUMNS = (
    "start_ts",
    "end_ts",
    "duration_ns",
    "engine",
    "opcode",
    "operands",
    "nki_source_location",
    "bir_debug_info_source_location",
)
"""Fields of table Instruction that are read (profile-schema-reference.rst, schemas 7.4.0 and 12.0.1)."""

KNOWN_SCHEMAS = (7, 12)
"""Oldest and newest major version whose reference was read: SDK 2.31 has 7.4.0, 2.33 has 12.0.1."""


@dataclass(frozen=True)
class Profiler:
    path: Path
    capture_flags: frozenset[str]
    """Long flags that this version's `capture --help` lists."""
    view_flags: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    """Of `view --output-format`, as `view --help` names them; empty where it names none."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def keeps_timed_outputs(self) -> bool:
        """Else what a timed execution computed cannot be compared with what was verified."""
        return {"--save-nth-output", "--save-output-npy"} <= self.capture_flags

    @property
    def needs_parquet(self) -> bool:
        """Where JSON is not known to be there, of a summary and of tables alike."""
        return self.writes_parquet and not {JSON, SUMMARY_JSON} <= self.formats

    @property
    def writes_parquet(self) -> bool:
        """The default output of neuron-explorer; neuron-profile has none."""
        return PARQUET in self.formats or self.name == "neuron-explorer"

    def has_format(self, name: str) -> bool | None:
        """None: `view --help` does not tell."""
        return name in self.formats if self.formats else None


def find_profiler(installation: Installation) -> Profiler:
    """The newer name first. Raises ToolchainMissing."""
    for name in PROFILERS:
        path = installation.tool(name)
        if path is None:
            continue
        capture, view = _ask(path, "capture", "--help"), _ask(path, "view", "--help")
        if capture is None:
            raise ToolchainMissing(f"{path} capture --help does not answer within 60 s; reinstall it")
        flags = _flags(capture.text)
        seen = view.text if view is not None and view.status == 0 else ""
        return Profiler(path, flags if "--num-exec" in flags else _DOCUMENTED_FLAGS, _flags(seen), _formats(seen))
    raise ToolchainMissing(
        f"neither {' nor '.join(PROFILERS)} is in PATH or /opt/aws/neuron/bin: install the package aws-neuronx-tools"
    )


def _ask(path: Path, *arguments: str) -> ToolRun | None:
    with tempfile.TemporaryDirectory(prefix="nki-probe-") as folder:
        try:
            return run_tool([str(path), *arguments], cwd=Path(folder), timeout_s=60, step=Step.EXAMINE)
        except StepTimeout:
            return None


def _flags(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"--[a-z][a-z0-9-]+", text))


def _formats(text: str) -> frozenset[str]:
    """The formats named behind `--output-format`, up to the next flag."""
    found = re.search(r"--output-format(.*?)(?=\n\s*(?:-\w,\s*)?--\w|\Z)", text, re.S)
    return frozenset(_FORMAT.findall(found.group(1))) if found else frozenset()


# --- what it says of its tables ---------------------------------------------------------------------


@dataclass(frozen=True)
class ProfileSchema:
    version: str
    asked: str
    """With which words it was told."""
    missing: tuple[str, ...]
    """Fields of `READ_COLUMNS` that table Instruction has not."""


def profile_schema(profiler: Profiler) -> ProfileSchema | None:
    """What `--show-profile-schema` prints, of `view` (SDK 2.33) or of the program itself (2.31); None: nothing.

    It is an OpenAPI document, one block per table, divided by `---` (profile-schema-reference.rst).
    """
    ways: Sequence[tuple[str, ...]] = (("view", "--show-profile-schema"), ("--show-profile-schema",))
    if "--show-profile-schema" not in profiler.view_flags:
        ways = ways[::-1]
    for way in ways:
        said = _ask(profiler.path, *way)
        if said is None or said.status != 0:
            continue
        text = said.stdout.decode("utf-8", "replace")
        version = re.search(r"(?m)^\s*version:\s*[\"']?(\d+\.\d+\.\d+)", text)
        if version is None:
            continue
        blocks = [block for block in re.split(r"(?m)^---\s*$", text) if re.search(r"(?m)^Instruction:", block)]
        names = set(re.findall(r"(?m)^\s+(\w+):", blocks[0])) if blocks else set(READ_COLUMNS)
        missing = tuple(name for name in READ_COLUMNS if name not in names)
        return ProfileSchema(version.group(1), " ".join(way), missing)
    return None
