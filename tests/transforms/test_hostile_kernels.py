"""Kernels written so that a change would alter what they compute: every site that is offered keeps it.

Each changes or reads a tile in a way that its text hides from a careless reader: under another name, by an object or a
helper, through widths that are bound again, through globals, through elements that a transfer gives another shape.
"""

from __future__ import annotations

import numpy as np
import pytest

from accelopt_core.transforms.base import AnalysisContext, NotAKernel, Transform, TransformError, parse_kernel
from accelopt_core.transforms.registry import STEPS
from nki_sim.errors import NkiError
from nki_sim.proofs.proof import Finding
from tests.transforms.hostile_kernels import ALIASES
from tests.transforms.hostile_objects import OBJECTS
from tests.transforms.hostile_places import PLACES
from tests.transforms.hostile_stores import STORES
from tests.transforms.proving import proved_on
from tests.transforms.running import random, run

X, Y, Z = random(256, 256), random(256, 256, seed=1), random(2, 256)
KERNELS = {**ALIASES, **PLACES, **STORES, **OBJECTS}
RECENT = frozenset(
    {
        *("broadcast-by-dma", "contiguous-transfer", "drop-copy", "drop-memset", "keep-on-chip", "normalize"),
        *("split-columns", "stage-store"),
    }
)


def arrays_of(source: str) -> tuple[np.ndarray, ...]:
    return (X, Y, Z) if "kernel(x, y, z)" in source else (X, Y)


def outputs(source: str) -> list[np.ndarray]:
    found = run(source, *arrays_of(source))
    return [np.asarray(each, np.float64) for each in (found if isinstance(found, tuple) else (found,))]


def check_every_site(transforms: list[Transform], source: str) -> None:
    expected = outputs(source)
    assert not any(np.isnan(each).any() for each in expected)
    for transform in transforms:
        module = parse_kernel(source)
        try:
            sites = transform.analyze(module, AnalysisContext())
        except NotAKernel:
            continue
        for site in sites:
            said = f"{transform.name} at {site.key}"
            try:
                made = transform.apply(module, site.key).code
                found = outputs(made)
            except (TransformError, NkiError, AssertionError):  # refused, or of shapes that it states are others
                continue
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=said)
            equivalence = proved_on(made, source, *arrays_of(source)).equivalence
            assert equivalence.finding is Finding.HELD, f"{said}: {equivalence.reason}"


@pytest.mark.parametrize("name", KERNELS)
def test_a_hostile_kernel_computes_the_same_after_every_recent_step(name: str) -> None:
    check_every_site([each for each in STEPS if each.name in RECENT], KERNELS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_hostile_kernel_computes_the_same_after_every_other_step(name: str) -> None:
    check_every_site([each for each in STEPS if each.name not in RECENT], KERNELS[name])


@pytest.mark.parametrize("changes", ["W = 192 - W", "WL[0] = 192", "SETTINGS.w = 128"])
def test_a_kernel_with_a_helper_that_changes_a_global_is_not_rewritten(changes: str) -> None:
    source = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\nW = 64\nWL = [64]\n\n\n"
    source += f"class SETTINGS:\n    w = 64\n\n\ndef bump():\n    global W\n    {changes}\n\n\n"
    source += "@nki.jit\ndef kernel(x):\n    bump()\n    return x\n"

    with pytest.raises(NotAKernel, match="which is not its own"):
        STEPS[1].analyze(parse_kernel(source), AnalysisContext())
