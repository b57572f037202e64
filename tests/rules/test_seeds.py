"""Every rule on every shipped seed at its smallest shape: the numbers stay, and the text means the same program."""

from __future__ import annotations

import random

import numpy as np
import pytest

from accelopt_core.judging.reference.verification import Reference
from accelopt_core.rules.base import applied
from accelopt_core.rules.registry import RULES
from infra.tasks.seed_index import load_seed, seed_index
from nki_sim.errors import NkiError
from nki_sim.loop_ir.changes import Refused
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.source import KernelText
from nki_sim.loop_ir.writing import written
from nki_sim.timing.capacity import check_capacity
from tests.rules.trees import BY_NAME, outputs_of, relative_error, retraces, tree_of

REASSOCIATES = frozenset(
    {
        "accumulate-in-psum", "drop-copy", "fuse-elementwise",
        "fuse-row-sum", "products-on-vector", "reciprocal-on-scalar", "reduce-by-steps",
        "subtract-in-activation",
    }
)  # fmt: skip
"""Rules that round elsewhere; all others keep every bit."""
MOST_ERROR = 1e-5
"""Relative L2 distance of float32 results."""
SITES_EACH = 1
"""Of one rule on one seed; which ones is drawn, the same in every run."""


@pytest.mark.parametrize("name", [seed.name for seed in seed_index()])
def test_numbers_and_text_stay(name: str) -> None:
    task, source = load_seed(name).task(), load_seed(name).kernel_source
    reference = Reference(task, task.presets[0])
    arguments = reference.kernel_arguments(reference.inputs(0))
    kernel = tree_of(source, arguments)
    wanted = outputs_of(kernel, arguments)
    rng = random.Random(name)
    for rule in RULES:
        sites = list(rule.sites(kernel))
        rng.shuffle(sites)
        tested = 0
        for site in sites:
            if tested == SITES_EACH:
                break
            try:
                (changed,) = applied(rule, (kernel,), site)
                check_capacity(expand(changed))
            except (Refused, NkiError):
                continue
            tested += 1
            error = relative_error(wanted, changed, arguments)
            assert error <= (MOST_ERROR if rule.name in REASSOCIATES else 0.0), (site, error)
            assert retraces(changed, source, arguments), site


WIDE_LOADS = (("block-tiles", "1.0:1:all"), ("hoist-invariant-load", "1:1:6:0"), ("group-transfers", "1.0:all:1"))


def test_the_loops_that_go_through_a_tile_tell_its_sizes_apart() -> None:
    """At all shapes that were given N is 4 M; what is written runs at another, too."""
    source = load_seed("matmul").kernel_source
    shapes = [[np.zeros((m, 256), np.float32), np.zeros((256, 4 * m), np.float32)] for m in (256, 512)]
    kernels = tuple(tree_of(source, arguments) for arguments in shapes)
    for name, key in WIDE_LOADS:
        kernels = applied(BY_NAME[name], kernels, next(s for s in BY_NAME[name].sites(kernels[-1]) if s.key == key))
    made = written(kernels, KernelText(source, "kernel"))
    other = [np.ones((256, 256), np.float32), np.ones((256, 512), np.float32)]
    assert (outputs_of(tree_of(made, other), other)[0] == 256).all()


def test_rules_have_names_of_their_own() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert set(names) >= REASSOCIATES
