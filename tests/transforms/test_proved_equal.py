"""What a transform makes of a shipped kernel is proved equal to it; so are honest forms, and shortcuts are not."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from accelopt_core.transforms.base import AnalysisContext, Transform, TransformError, parse_kernel
from accelopt_core.transforms.registry import TRANSFORMS, transform_named
from infra.tasks.seed_index import load_seed, seed_index
from nki_sim.errors import NkiError
from nki_sim.proofs.proof import Finding
from tests.redteam.test_shortcuts import BACKWARDS, OTHER_FORMS, SHORTCUTS, TILINGS, changed
from tests.slow import without
from tests.transforms.proving import proved
from tests.transforms.test_every_transform import CONTRACTS

NAMES = [seed.name for seed in seed_index()]

EQUAL_IN_EXACT_ARITHMETIC = {"softmax without the maximum", "attention without the maximum", "three bfloat16 products"}
"""Only rounding and range tell them from the kernel that they were made of: tests must."""


def results(transform: Transform, task: str, source: str) -> Iterator[tuple[str, str]]:
    """(site, kernel) for every site, at whatever shape it compiles."""
    module = parse_kernel(source)
    for site in transform.analyze(module, AnalysisContext()):
        try:
            yield site.key, transform.apply(module, site.key).code
        except TransformError:
            continue


def prove_all(transform: Transform, task: str, source: str) -> int:
    """How many compile at the small shape; all of these are proved equal."""
    count = 0
    for key, made in results(transform, task, source):
        try:
            proofs = proved(task, made, source)
        except (NkiError, AssertionError):  # a tile that this shape is too small for
            continue
        assert proofs.coverage.finding is Finding.HELD, (key, proofs.coverage)
        assert proofs.equivalence.finding is Finding.HELD, (key, proofs.equivalence)
        count += 1
    return count


LONG = ("scale-after-product", "fuse-row-sum", "subtract-in-activation", "rows-on-partitions")


@pytest.mark.parametrize("name", without(*LONG, of=(transform.name for transform in TRANSFORMS)))
def test_every_step_of_the_catalogue_is_provable(name):
    contract = CONTRACTS[name]

    assert prove_all(transform_named(name), contract.task, contract.kernel(load_seed(contract.task).kernel_source)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("task", NAMES)
def test_every_step_on_every_shipped_kernel_is_provable(task):
    source = load_seed(task).kernel_source

    assert sum(prove_all(transform, task, source) for transform in TRANSFORMS) > 0


@pytest.mark.parametrize("task", without("gqa_full", "bmm_softmax", "swiglu", of=TILINGS))
def test_another_tiling_is_equal(task):
    constant, value = TILINGS[task]
    source = load_seed(task).kernel_source
    tiled = re.sub(rf"(?m)^{constant} = \d+$", f"{constant} = {value}", source) if constant else source

    assert proved(task, tiled, source).equivalence.finding is Finding.HELD


@pytest.mark.parametrize("name", without("exponentials and their sum in one", of=OTHER_FORMS))
def test_an_honest_form_is_equal(name):
    made = changed(*OTHER_FORMS[name])
    if name == "contraction backwards":
        made = made.replace("lhs[m * TILE_M : (m + 1) * TILE_M, k * TILE_K : (k + 1) * TILE_K]", BACKWARDS)
    task = OTHER_FORMS[name][0]

    assert proved(task, made, load_seed(task).kernel_source).equivalence.finding is Finding.HELD


@pytest.mark.parametrize("name", without("attention without the maximum", of=SHORTCUTS))
def test_a_shortcut_is_equal_only_where_rounding_and_range_are_the_difference(name):
    task = SHORTCUTS[name][0]

    equivalence = proved(task, changed(*SHORTCUTS[name]), load_seed(task).kernel_source).equivalence

    assert (equivalence.finding is Finding.HELD) is (name in EQUAL_IN_EXACT_ARITHMETIC), equivalence
