"""NKI 0.1 to the current NKI: run the old kernel watched, write the new one, run both, compare."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from nki_sim.beta1 import running
from nki_sim.errors import CapacityExceeded, NkiError
from nki_sim.migrate import proving
from nki_sim.migrate.beta1_module import migrated
from nki_sim.migrate.layouts import largest, may_overflow
from nki_sim.migrate.operands import NeedsPerson
from nki_sim.migrate.report import Finding, Kind, Migration
from nki_sim.session import where

_MOST_SPILLED = 8


def migrate_beta1(
    text: str,
    function: str,
    arguments: Sequence[Any],
    keywords: dict[str, Any] | None = None,
    file: str = "kernel.py",
    grid: tuple[int, ...] = (),
) -> Migration:
    """A migration for kernels called as these arguments call it. Arrays in them are not changed."""
    named = dict(keywords or {})
    tree = running.parsed(text)
    try:
        watched = running.run(tree, function, copy.deepcopy(list(arguments)), copy.deepcopy(named), file, grid)
    except Exception as error:  # a kernel may raise anything, and the front end what it does not know
        line, _ = where(error)
        said = f"{type(error).__name__}: {error}"
        return Migration(text, [Finding(line or 0, "front end", said, Kind.PERSON)], "", None)
    spilled: frozenset[int] = frozenset()
    while True:
        try:
            migration = migrated(text, tree, function, watched, spilled)
        except NeedsPerson as problem:
            return Migration(text, [Finding(0, problem.rule, problem.text, Kind.PERSON)], "", None)
        except SyntaxError as error:
            said = f"what was written is not Python: {error}"
            return Migration(text, [Finding(0, "syntax", said, Kind.PERSON)], "", None)
        if migration.left:
            migration.proof = "not run: places are left to a person"
            return migration
        try:
            if may_overflow(watched.watcher, spilled):  # what is too large shows without computing it
                proving.traced(migration.source, function, arguments, named, file)
            new = proving.run_new(migration.source, function, copy.deepcopy(list(arguments)), named, file)
            break
        except CapacityExceeded as error:
            site = largest(watched.watcher, spilled)
            if site is None or len(spilled) >= _MOST_SPILLED:
                return _refused(migration, error)
            spilled |= {site}
        except Exception as error:  # a kernel may raise anything
            return _refused(migration, error)
    if spilled:
        said = f"{len(spilled)} tiles do not fit into SBUF and are kept in HBM, where the old compiler spilled"
        migration.findings.append(Finding(0, "spills", said, Kind.NOTE))
    if proving.undefined(watched.outputs):
        said = "the old kernel itself gives NaN for these arguments, so nothing is shown: others are needed"
        migration.findings.append(Finding(0, "proof", said, Kind.PERSON))
    migration.difference = proving.difference(watched.outputs, new)
    allowed = proving.tolerance(watched.watcher.dtypes())
    migration.proven = bool(migration.difference <= allowed)
    verdict = "equal within rounding" if migration.proven else "DIFFERENT"
    migration.proof = f"old and new: {verdict}, relative difference {migration.difference:.1e} (at most {allowed:.0e})"
    if not migration.proven:
        migration.findings.append(Finding(0, "proof", "old and new kernel give different numbers", Kind.PERSON))
    return migration


def _refused(migration: Migration, error: Exception) -> Migration:
    """A migration whose new kernel does not run."""
    line, _ = where(error)
    if isinstance(error, NkiError) and error.line:
        line = error.line
    said = f"the migrated kernel fails at its line {line}: {type(error).__name__}: {error}"
    migration.findings.append(Finding(0, "simulator", said, Kind.PERSON))
    migration.proven = False
    return migration
