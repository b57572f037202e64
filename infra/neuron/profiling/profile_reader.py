"""From a captured execution to numbers, by whichever output this version of the profiler has. Shipped.

Until SDK 2.33 `view` writes all of a profile as JSON; after it only as tables in Parquet (announce-intent-eos-explorer-
json.html), which only pyarrow or pandas can read. Where neither is installed there is no table, which is said with
each profile and by `doctor`; the summary, and with it the latency, does not need them while `view` has `summary-json`.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelopt_core.evaluation import Step
from accelopt_core.toolchain import StepTimeout, ToolchainMissing
from infra.neuron.commands import Installation, ToolRun, run_tool
from infra.neuron.faults import run_fault
from infra.neuron.profiling.profile import (
    InstructionFacts,
    ProfileUnreadable,
    instruction_facts,
    parse_instructions,
    parse_summary,
    summary_of_table,
)
from infra.neuron.profiling.profiler import JSON, READ_COLUMNS, SUMMARY_JSON, Profiler
from infra.neuron.routes import DOCTOR

log = logging.getLogger(__name__)

PARQUET_READER = Path(__file__).with_name("parquet_reader.py")

TABLE_LIMIT = 512 << 20

_REFUSES_FORMAT = re.compile(r"format", re.I)
"""In the last words of a `view` that failed, where `--help` had not named its formats."""


@dataclass(frozen=True)
class TableReader:
    """A Python that can read Parquet."""

    python: Path
    package: str


def find_table_reader(installation: Installation) -> TableReader | None:
    """The first of the interpreters that has pyarrow, or pandas with fastparquet."""
    for python in installation.pythons:
        if not python.exists():
            continue
        with tempfile.TemporaryDirectory(prefix="nki-probe-") as folder:
            argv = [str(python), "-I", str(PARQUET_READER), "--probe"]
            try:
                said = run_tool(argv, cwd=Path(folder), timeout_s=60, step=Step.EXAMINE)
            except (StepTimeout, ToolchainMissing):
                continue
        if said.status == 0:
            return TableReader(python, said.stdout.decode("utf-8", "replace").strip()[:100])
    return None


class ProfileReader:
    """One profiler with what reads its tables. `session.with_suffix(...)` is its own: sessions may be read at once."""

    def __init__(self, profiler: Profiler, reader: TableReader | None) -> None:
        """Raises ToolchainMissing when not even latencies could be read."""
        self._profiler = profiler
        self._reader = reader
        self._json = profiler.has_format(JSON)
        """Whether `view` writes tables as JSON; None until it was tried, where `--help` does not tell."""
        self._summary_json = profiler.has_format(SUMMARY_JSON)
        if self._summary_json is False and self._json is False and reader is None:
            raise ToolchainMissing(f"{profiler.path} view writes profiles in Parquet only, and {NO_READER}; {DOCTOR}")

    def summary(self, neff: Path, session: Path, deadline: float, env: Mapping[str, str]) -> dict[str, float]:
        """Raises ToolchainMissing for a summary that says nothing, RunError, StepTimeout."""
        try:
            if self._summary_json is not False:
                said = self._view(neff, session, ["--output-format", SUMMARY_JSON], deadline, env)
                if said.status == 0:
                    self._summary_json = True
                    return parse_summary(said.stdout.decode("utf-8", "replace"))
                self._refused(said, known=self._summary_json)
                self._summary_json = False
            # The same fields with the same values (aws-neuron/neuron-agentic-development, profile-schema skill).
            return summary_of_table(self._table(neff, session, "Summary", (), deadline, env))
        except ProfileUnreadable as error:
            raise ToolchainMissing(f"{self._profiler.name} view: {error}; {DOCTOR}") from None

    def instructions(
        self, neff: Path, session: Path, source_name: str, total_time_s: float, deadline: float, env: Mapping[str, str]
    ) -> InstructionFacts:
        """`source_name`: how the path of the kernel's file ends.

        Raises ProfileUnreadable where there is no table, or nothing that reads it; RunError, StepTimeout."""
        if self._json is not False:
            table = session.with_suffix(".json")
            try:
                said = self._view(neff, session, ["--output-format", JSON, "--output-file", str(table)], deadline, env)
                if said.status == 0:
                    self._json = True
                    return parse_instructions(_text(table), source_name=source_name, total_time_s=total_time_s)
                self._refused(said, known=self._json)
                self._json = False
            finally:
                table.unlink(missing_ok=True)
        rows = self._table(neff, session, "Instruction", READ_COLUMNS, deadline, env)
        return instruction_facts(rows, source_name=source_name, total_time_s=total_time_s)

    def _refused(self, said: ToolRun, known: bool | None) -> None:
        """Return where `view` refused a format that its help had not named; raise for any other failure."""
        last = (said.stderr.strip() or said.text.strip()).splitlines()[-1:] or [""]
        if known is not None or not _REFUSES_FORMAT.search(last[0]):
            raise run_fault(said, f"{self._profiler.name} view")
        log.info("%s view: %s; reading Parquet instead", self._profiler.name, last[0].strip()[:200])

    # --- Parquet ----------------------------------------------------------------------------------

    def _table(
        self, neff: Path, session: Path, name: str, columns: Sequence[str], deadline: float, env: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        if not self._profiler.writes_parquet:
            raise ProfileUnreadable(f"{self._profiler.name} writes no tables that are known here")
        if self._reader is None:
            raise ProfileUnreadable(f"tables are in Parquet only, and {NO_READER}")
        folder = session.with_suffix(".tables")
        out = session.with_suffix(".rows.json")
        try:
            where = self._export(neff, session, folder, deadline, env)
            argv = [str(self._reader.python), "-I", str(PARQUET_READER), str(where), name, str(out), *columns]
            timeout_s = deadline - time.monotonic()
            said = run_tool(argv, cwd=session.parent, timeout_s=timeout_s, step=Step.READ_PROFILE)
            if said.status != 0:
                last = said.stderr.strip().splitlines()[-1:] or ["no message"]
                raise ProfileUnreadable(f"{self._reader.package} does not read {name}.parquet: {last[0][:300]}")
            found = json.loads(_text(out))
            if not found["files"]:
                left = ", ".join(sorted(path.name for path in where.glob("*"))[:20]) or "nothing"
                raise ProfileUnreadable(f"no {name}.parquet in what view left: {left}")
            return list(found["rows"])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            out.unlink(missing_ok=True)

    def _export(self, neff: Path, session: Path, folder: Path, deadline: float, env: Mapping[str, str]) -> Path:
        """The folder of tables. `--ingest-only` keeps `view` from serving a page; an older one writes and ends."""
        if "--ingest-only" in self._profiler.view_flags:
            flags = ["--ingest-only", "--data-path", str(folder), "--display-name", _PROFILE_NAME]
            where = folder / "profiles" / "global" / f"{_PROFILE_NAME}@latest"
        else:
            flags, where = ["--output-format", "parquet", "--output-file", str(folder)], folder
        said = self._view(neff, session, flags, deadline, env)
        if said.status != 0:
            raise run_fault(said, f"{self._profiler.name} view")
        return where

    def _view(
        self, neff: Path, session: Path, flags: Sequence[str], deadline: float, env: Mapping[str, str]
    ) -> ToolRun:
        return run_tool(
            [str(self._profiler.path), "view", "-n", str(neff), "-s", str(session), *flags],
            cwd=session.parent,
            timeout_s=deadline - time.monotonic(),
            step=Step.READ_PROFILE,
            env=env,
        )


_PROFILE_NAME = "kernel"

NO_READER = "no Python here has pyarrow, or pandas with fastparquet: install pyarrow beside the SDK"


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > TABLE_LIMIT:
            raise ProfileUnreadable(f"the table has {path.stat().st_size >> 20} MiB")
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ProfileUnreadable(f"there is no {path.name}: {error.strerror}") from None
