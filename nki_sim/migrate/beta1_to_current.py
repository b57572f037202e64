"""NKI 0.1 to the current NKI: run the old kernel watched, write the new one, run both, compare."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from nki_sim.beta1 import running
from nki_sim.errors import CapacityExceeded, NkiError
from nki_sim.migrate import proving
from nki_sim.migrate.beta1.beta1_module import migrated
from nki_sim.migrate.layouts import largest, may_overflow
from nki_sim.migrate.operands import NeedsPerson
from nki_sim.migrate.report import Finding, Kind, Migration
from nki_sim.tracing.session import where

_MOST_SPILLED = 8
_MOST_ELEMENTS = 1 << 23
"""Of the inputs of a second proof, which is to be quick."""


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
    elif proving.one_sided([*arguments, *named.values()]):
        second = _on_both_signs(migration, tree, function, arguments, named, file, grid, allowed)
        if second is not None:
            migration.findings.append(second)
            migration.proven = second.kind is Kind.NOTE
    return migration


def _on_both_signs(
    migration: Migration,
    tree: ast.Module,
    function: str,
    arguments: Sequence[Any],
    named: dict[str, Any],
    file: str,
    grid: tuple[int, ...],
    allowed: float,
) -> Finding | None:
    """What a second proof shows, where arrays are of one sign: those hide a missing maximum with 0, for one."""
    others = [proving.signed(value) for value in arguments]
    more = {name: proving.signed(value) for name, value in named.items()}
    if sum(value.size for value in others if isinstance(value, np.ndarray)) > _MOST_ELEMENTS:
        return Finding(0, "proof", "inputs are of one sign: what others give is not shown", Kind.NOTE)
    try:
        old = running.run(tree, function, copy.deepcopy(others), copy.deepcopy(more), file, grid).outputs
        new = proving.run_new(migration.source, function, others, more, file)
    except Exception as error:  # a kernel may raise anything
        said = f"with inputs of both signs: {type(error).__name__}: {error}"
        return Finding(0, "proof", said, Kind.PERSON)
    if proving.undefined(old):
        return Finding(0, "proof", "inputs are of one sign: with others the old kernel gives NaN", Kind.NOTE)
    if proving.difference(old, new) <= allowed:
        return None
    return Finding(0, "proof", "old and new kernel give different numbers for inputs of both signs", Kind.PERSON)


def _refused(migration: Migration, error: Exception) -> Migration:
    """A migration whose new kernel does not run."""
    line, _ = where(error)
    if isinstance(error, NkiError) and error.line:
        line = error.line
    said = f"the migrated kernel fails at its line {line}: {type(error).__name__}: {error}"
    migration.findings.append(Finding(0, "simulator", said, Kind.PERSON))
    migration.proven = False
    return migration
