"""A pretend SDK and its toolchain, whose core leases are kept apart from those of this machine's users."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.devices.leases import FOLDER_VARIABLE
from infra.isolation import sandbox
from infra.neuron.toolchain import NeuronToolchain
from tests.toolchains.pretend_sdk import SIMULATED, PretendSdk, opened_on


@pytest.fixture(autouse=True)
def own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))


@pytest.fixture
def sdk(tmp_path: Path, request: pytest.FixtureRequest) -> PretendSdk:
    return PretendSdk(tmp_path, **_site(request))


def _site(request: pytest.FixtureRequest) -> dict[str, object]:
    """A module that sets `REAL_KERNELS` has an SDK that compiles these."""
    return {"site": SIMULATED} if hasattr(request.module, "REAL_KERNELS") else {}


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[NeuronToolchain]:
    """One for all tests of a module that leave its SDK as it is: opening one asks every interpreter and tool."""
    folder = tmp_path_factory.mktemp("steady")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(folder / "leases"))
        sandbox.adopt_descendants()
        opened = opened_on(PretendSdk(folder / "sdk", **_site(request)))
    yield opened
    opened.close()


@pytest.fixture
def toolchain(request: pytest.FixtureRequest) -> Iterator[NeuronToolchain]:
    """Of the test's own `sdk` where it asks for that."""
    if "sdk" not in request.fixturenames:
        yield request.getfixturevalue("steady")
        return
    sandbox.adopt_descendants()
    opened = opened_on(request.getfixturevalue("sdk"))
    yield opened
    opened.close()
