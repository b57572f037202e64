"""Every route, with fixtures that take exactly the calls its era is known to take: the NEFF comes out and runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from accelopt_core.toolchain import CompileError, ConstantArgument, TensorArgument
from infra.neuron.compilation.compiling import NeffCompiler
from infra.neuron.routes import ROUTES, Route
from infra.neuron.toolchain import NeuronToolchain, open_neuron_toolchain
from infra.simulator.toolchain import traced_on_simulator
from tests.toolchains.pretend_sdk import FIXTURES, PretendSdk, shadow

A = TensorArgument((4, 3), "float32")
LEFT = np.arange(12, dtype=np.float32).reshape(4, 3)
RIGHT = np.full((4, 3), 0.5, np.float32)

ERAS = {
    "compile-kernel": ({"nki": "0.2.0"}, "import nki"),
    "compile-driver": ({"nki": "0.4.0"}, "import nki"),
    "torch-neuron": ({"nki": "0.7.0", "torch-neuronx": "2.14.3.0"}, "import nki"),
    "torch-xla": ({"nki": "0.2.0", "torch-neuronx": "2.9"}, "import nki"),
    "baremetal": ({"neuronx-cc": "2.21.0"}, "import neuronxcc.nki as nki"),
}


def _open(folder: Path, route: str) -> NeuronToolchain:
    versions, _ = ERAS[route]
    site = shadow(folder / "versions", versions)
    for package in site.iterdir():
        if package.suffix != ".dist-info":  # only the metadata: the modules are the fixture's
            (package / "__init__.py").unlink()
            package.rmdir()
    sdk = PretendSdk(folder / "sdk", site=[site, FIXTURES / "eras" / route, FIXTURES / "eras/common"])
    return open_neuron_toolchain(traced_on_simulator, route, sdk.installation)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_kernel_and_graph_are_compiled_for_the_same_cores_by_the_release_s_front_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: Route
) -> None:
    monkeypatch.setenv("NKI_COMPILER_FRONTEND", "custom")
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    sdk = PretendSdk(tmp_path / "sdk")
    compiler = NeffCompiler(route, sdk.installation.pythons[0], (), sdk.installation, "trn2", "0", tmp_path)
    environment = compiler._compile_environment(tmp_path / "work", tmp_path / "work/artifacts")
    assert environment["NEURON_LOGICAL_NC_CONFIG"] == "1"
    assert "--lnc" not in environment.get("NEURON_CC_FLAGS", "") or "--lnc 1" in environment["NEURON_CC_FLAGS"]
    assert "NKI_COMPILER_FRONTEND" not in environment
    for name, value in environment.items():
        assert "{" not in value, name
        assert not name.endswith("CACHE_DIR") or value.startswith(str(tmp_path / "work")), "no other candidate's NEFF"


@pytest.mark.parametrize("route", ERAS)
def test_each_era_compiles_a_kernel_that_then_runs_and_is_timed(tmp_path: Path, route: str) -> None:
    toolchain = _open(tmp_path, route)
    source = f"{ERAS[route][1]}\n\n@nki.jit\ndef kernel(lhs, rhs):\n    return lhs\n"
    neff = toolchain.compile(source, [A, A], 60)
    assert np.array_equal(toolchain.run(neff, [LEFT, RIGHT], 60)[0], LEFT - RIGHT)
    assert len(toolchain.time(neff, [LEFT, RIGHT], 1, 2, 60).samples_us) == 2
    toolchain.close()


def test_the_drivers_limit_is_said_by_name(tmp_path: Path) -> None:
    toolchain = _open(tmp_path, "compile-driver")
    source = "import nki\n\n@nki.jit\ndef kernel(lhs, scale):\n    return lhs\n"
    with pytest.raises(CompileError, match="the compile-driver route cannot pass constants"):
        toolchain.compile(source, [A, ConstantArgument(2)], 60)
    toolchain.close()
