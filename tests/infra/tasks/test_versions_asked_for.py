"""Candidates are asked for what the device's NKI takes, or else for what the user's own kernel is valid in."""

from __future__ import annotations

import pytest

from accelopt_core.evaluation import Installed
from accelopt_core.ports import TargetInfo
from infra.assembly.of_nki import nki_versions
from infra.tasks.seed_index import load_seed
from nki_sim.lint import COMMON

SEED = load_seed("silu").kernel_source
OF_0_7 = SEED + "\n\n@nki.jit\ndef other(a):\n    return nisa.scalar_load(a)\n"


@pytest.mark.parametrize(
    ("sdk", "source", "versions"),
    [
        ("2.32", OF_0_7, ("0.6",)),
        ("2.27 or 2.28", SEED, ("0.2",)),
        ("unknown", SEED, COMMON),
        ("", SEED, COMMON),
        ("", OF_0_7, ("0.7",)),
    ],
)
def test_the_device_decides_or_else_the_kernel(sdk: str, source: str, versions: tuple[str, ...]) -> None:
    info = TargetInfo("a target", "x", not sdk, "trn2", installed=Installed(sdk))
    assert nki_versions(info, source) == versions
