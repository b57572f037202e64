"""A pretend SDK and its toolchain, whose core leases are kept apart from those of this machine's users."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.devices.leases import FOLDER_VARIABLE
from infra.isolation import sandbox
from infra.neuron.toolchain import NeuronToolchain, open_neuron_toolchain
from infra.simulator.toolchain import traced_on_simulator
from tests.toolchains.pretend_sdk import SIMULATED, PretendSdk


@pytest.fixture(autouse=True)
def own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))


@pytest.fixture
def sdk(tmp_path: Path, request: pytest.FixtureRequest) -> PretendSdk:
    """In a module that sets `REAL_KERNELS`, one that compiles these."""
    return PretendSdk(tmp_path, **({"site": SIMULATED} if hasattr(request.module, "REAL_KERNELS") else {}))


@pytest.fixture
def toolchain(sdk: PretendSdk) -> Iterator[NeuronToolchain]:
    sandbox.adopt_descendants()
    opened = open_neuron_toolchain(traced_on_simulator, installation=sdk.installation)
    yield opened
    opened.close()
