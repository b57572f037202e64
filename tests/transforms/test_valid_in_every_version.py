"""What transforms make of the shipped kernels is valid from NKI 0.3 to 0.7, and they read the older loops as well."""

from __future__ import annotations

import itertools
import re

import pytest

from accelopt_core.transforms.base import Transform, TransformError
from accelopt_core.transforms.registry import TRANSFORMS
from infra.tasks.seed_index import load_seed
from nki_sim.lint import COMMON, Finding, check_source
from tests.mutations.bases import FOLDER, STEPS
from tests.transforms.running import applied, sites

SITES = 2
"""Of one transform in one kernel; the others differ by their place."""
KERNELS = ("matmul", "add_rmsnorm_matmul", "adamw", "rope_single_freq_apply")
OLDER = ("nl.affine_range", "nl.sequential_range", "nl.static_range")

EVERY = pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: transform.name)


def findings(source: str) -> list[tuple[str, Finding]]:
    return [(version, finding) for version in COMMON for finding in check_source(source, version)]


@EVERY
def test_what_a_transform_makes_is_valid_in_every_version(transform: Transform) -> None:
    for name in KERNELS:
        source = load_seed(name).kernel_source
        for key in list(sites(transform, source))[:SITES]:
            try:
                made = applied(transform, source, key)
            except TransformError:
                continue
            assert findings(made) == [], f"{name}, {key}"


@pytest.mark.parametrize("name", STEPS)
def test_so_is_what_many_of_them_make(name: str) -> None:
    assert findings((FOLDER / f"{name}.py").read_text(encoding="utf-8")) == []


@EVERY
def test_a_loop_over_an_older_range_is_the_same_loop(transform: Transform) -> None:
    source = load_seed("matmul").kernel_source
    names = itertools.cycle(OLDER)
    written = re.sub(r"\brange\(", lambda _: f"{next(names)}(", source)
    assert all(name in written for name in OLDER)
    assert list(sites(transform, written)) == list(sites(transform, source))
