"""Which SDK era is here is found by asking the interpreters, and what is missing is said by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.toolchain import ToolchainMissing
from infra.neuron.commands import newest_first
from infra.neuron.routes import (
    ROUTES,
    ProbeResult,
    installed,
    instance_type,
    machine_of,
    nki_release,
    probe_all,
    relied_on,
    why_taken,
)
from infra.neuron.toolchain import open_neuron_toolchain
from infra.simulator.toolchain import traced_on_simulator
from nki_sim.machine import MACHINES
from tests.toolchains.pretend_sdk import PretendSdk, shadow

ERAS = {
    "SDK 2.26, Beta 1": ({"neuronx-cc": "2.21.1"}, ["neuronxcc.nki"], ["baremetal"]),
    "SDK 2.27, whose wheel of NKI 0.2 is numbered 0.1": (
        {"nki": "0.1.0"},
        ["nki.framework.compiled", "nki.language"],
        ["compile-kernel"],
    ),
    "SDK 2.28": ({"nki": "0.2.0"}, ["nki.framework.compiled", "nki.language"], ["compile-kernel"]),
    "SDK 2.29": ({"nki": "0.3.0"}, ["nki.framework.compiled", "nki.language"], ["standalone", "compile-kernel"]),
    "SDK 2.30": (
        {"nki": "0.4.1+g12"},
        ["nki.language", "nki.compiler.driver", "nki.compiler.frontend", "nki.framework.kernel"],
        ["standalone", "compile-driver"],
    ),
    "SDK 2.32 with PyTorch": (
        {"nki": "0.6.0", "torch-neuronx": "2.9.0.2.15.32035"},
        ["nki.language", "torch", "torch_xla", "torch_neuronx", "neuronxcc.nki"],
        ["standalone", "torch-xla"],
    ),
    "SDK 2.33 with native PyTorch": (
        {"nki": "0.7.0", "torch-neuronx": "2.14.3.0"},
        ["nki.language", "torch", "torch_neuronx"],
        ["standalone", "torch-neuron"],
    ),
    "SDK 2.33 with native PyTorch beside torch_xla": (
        {"nki": "0.7.0", "torch-neuronx": "2.13.3.0"},
        ["torch", "torch_neuronx", "torch_xla"],
        ["torch-neuron"],
    ),
    "SDK 2.33 with the frozen PyTorch/XLA": (
        {"nki": "0.7.0", "torch-neuronx": "2.9.0.2.15.32035"},
        ["torch", "torch_xla", "torch_neuronx"],
        ["torch-xla"],
    ),
    "a torch-neuronx of no known number": (
        {"nki": "0.7.0", "torch-neuronx": "main"},
        ["torch", "torch_xla", "torch_neuronx"],
        [],
    ),
    "SDK 2.32 without nki.language": ({"nki": "0.6.0"}, [], []),
    "the empty package of PyPI": ({"nki": "0.0.1"}, ["nki.language"], []),
    "a version nobody knows": ({"nki": "main"}, ["nki.language"], []),
    "no SDK": ({}, [], []),
}


def _site(folder: Path, versions: dict[str, str], modules: list[str]) -> Path:
    site = shadow(folder, versions)
    for module in modules:
        place = site.joinpath(*module.split("."))
        place.mkdir(parents=True, exist_ok=True)
        for package in [place, *place.parents[: len(module.split(".")) - 1]]:
            (package / "__init__.py").touch()
    return site


@pytest.mark.parametrize("era", ERAS)
def test_each_era_offers_its_own_routes_in_order_of_preference(tmp_path: Path, era: str) -> None:
    versions, modules, routes = ERAS[era]
    sdk = PretendSdk(tmp_path / "sdk", site=[_site(tmp_path / "site", versions, modules)])
    results = probe_all(sdk.installation)
    assert [result.route for result in results if result.available] == routes
    assert [result.route for result in results] == [route.name for route in ROUTES]
    for result in results:
        assert (result.why_not is None) is result.available
        assert result.why_not is None or str(sdk.installation.pythons[0]) in result.why_not


@pytest.mark.parametrize(
    ("era", "route", "says"),
    [
        ("the empty package of PyPI", "standalone", "the empty package of PyPI; the real one is on pip.repos.neuron"),
        ("SDK 2.32 with PyTorch", "baremetal", "whose dialect Beta 1 does not compile"),
        ("SDK 2.32 with PyTorch", "compile-driver", "NKI 0.6.0 is not of this era"),
        ("SDK 2.32 without nki.language", "standalone", "nki.language is not installed"),
        ("a version nobody knows", "standalone", "unknown version main"),
        ("no SDK", "standalone", "nki is not installed"),
        ("SDK 2.26, Beta 1", "torch-xla", "nki is not installed"),
        ("SDK 2.33 with native PyTorch", "torch-xla", "torch-neuronx 2.14.3.0 is the native one, without XLA"),
        ("SDK 2.33 with the frozen PyTorch/XLA", "torch-neuron", "2.9.0.2.15.32035 is the XLA-based one, before 2.13"),
        ("a torch-neuronx of no known number", "torch-neuron", "torch-neuronx has the unknown version main"),
        ("SDK 2.32 with PyTorch", "torch-neuron", "NKI 0.6.0 is not of this era"),
    ],
)
def test_what_a_route_lacks_is_said_by_name(tmp_path: Path, era: str, route: str, says: str) -> None:
    versions, modules, _ = ERAS[era]
    sdk = PretendSdk(tmp_path / "sdk", site=[_site(tmp_path / "site", versions, modules)])
    assert says in str(next(result.why_not for result in probe_all(sdk.installation) if result.route == route))


def test_it_is_said_which_route_is_taken_and_why_and_what_it_relies_on(tmp_path: Path) -> None:
    def probed(era: str) -> tuple[ProbeResult, ...]:
        folder = tmp_path / era
        return probe_all(PretendSdk(folder / "sdk", site=[_site(folder / "site", *ERAS[era][:2])]).installation)

    both = str(why_taken(probed("SDK 2.33 with native PyTorch")))
    assert both.startswith("standalone: the first that works here; torch-neuron would work too (Python 3.")
    assert "nki 0.7.0, torch-neuronx 2.14.3.0" in both
    results = probed("SDK 2.33 with native PyTorch beside torch_xla")
    assert str(why_taken(results)).startswith("torch-neuron: the only one that works here")
    (taken,) = [result for result in results if result.available]
    told = relied_on(replace(taken, python_version="3.11.7"))
    assert any("TORCH_NEURONX_NEFF_CACHE_DIR" in line for line in told)
    assert told[-1] == "route torch-neuron: Python 3.11.7, where 3.12 to 3.14 are documented; it imports"
    assert not any("Python" in line for line in relied_on(replace(taken, python_version="3.13.1")))
    assert why_taken(probed("no SDK")) is None


def test_an_interpreter_that_does_not_run_is_passed_over_for_one_that_does(tmp_path: Path) -> None:
    sdk = PretendSdk(tmp_path / "sdk")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 127\n")
    broken.chmod(0o755)
    good = sdk.installation.pythons[0]
    result = probe_all(sdk.with_pythons(tmp_path / "not-there", broken, good))[0]
    assert (result.available, result.python) == (True, str(good))
    assert dict(result.versions)["nki"] == "0.6.0+fixture"
    lonely = probe_all(sdk.with_pythons(broken))[0]
    assert lonely.why_not == f"{broken}: nki is not installed" or "does not run" in str(lonely.why_not)


def test_environments_of_machine_images_are_looked_at_newest_first_by_number() -> None:
    names = ["jax_0_10", "pytorch_2_9", "pytorch_2_14", "pytorch_2_9_nxd"]
    assert [path.name for path in newest_first(map(Path, names))] == [names[2], names[3], names[1], names[0]]


def test_a_package_whose_import_fails_is_not_a_route(tmp_path: Path) -> None:
    site = _site(tmp_path / "site", {"nki": "0.6.0"}, ["nki.language"])
    (site / "nki/__init__.py").write_text("raise OSError('libnrt.so.1: cannot open shared object file')\n")
    sdk = PretendSdk(tmp_path / "sdk", site=[site])
    result = probe_all(sdk.installation)[0]
    assert not result.available and "libnrt.so.1" in str(result.why_not)


@pytest.mark.parametrize(
    ("options", "tool", "route", "said"),
    [
        ({"devices": 0}, "", "auto", "no Neuron device in .*aws-neuronx-dkms"),
        ({}, "neuron-explorer", "auto", "neither neuron-explorer nor neuron-profile .*aws-neuronx-tools"),
        ({}, "neuron-ls", "auto", f"type unknown: {', '.join(MACHINES)} are known"),
        ({"site": ()}, "", None, ".*".join(f"{route.name}: " for route in ROUTES)),
        ({}, "", "torch-xla", "torch-xla: .*torch is not installed"),
        ({}, "", "warp", "no route is named 'warp'"),
    ],
)
def test_what_lacks_something_is_not_opened_and_said_so_in_one_line(tmp_path, options, tool, route, said) -> None:
    sdk = PretendSdk(tmp_path, **options)
    installation = sdk.without_tool(tool) if tool else sdk.installation
    with pytest.raises(ToolchainMissing, match=said) as error:
        open_neuron_toolchain(traced_on_simulator, route, installation)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("product", "kind"), [("trn2.48xlarge\n", "trn2.48xlarge"), ("m5.large\n", "trn2.3xlarge"), (None, "trn2.3xlarge")]
)
def test_the_instance_type_comes_from_the_firmware_or_from_neuron_ls(tmp_path, product, kind) -> None:
    sdk = PretendSdk(tmp_path)
    if product is not None:
        place = sdk.installation.system_folder / "devices/virtual/dmi/id"
        place.mkdir(parents=True)
        (place / "product_name").write_text(product)
    assert instance_type(sdk.installation) == kind


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.6.0", (0, 6)), ("0.3.0+23.g1", (0, 3)), ("1.12", (1, 12)), ("main", None), (None, None),
        ("0.1.0", (0, 2)), ("0.2.0", (0, 2)), ("0.0.1", (0, 0)),
    ],
)  # fmt: skip
def test_versions_are_compared_as_numbers_and_wheel_0_1_is_the_dialect_0_2(version, release) -> None:
    assert nki_release(version) == release
    assert installed({"nki": "0.1.0"}, None).sdk == installed({"nki": "0.2.0"}, None).sdk == "2.27 or 2.28"
    kinds = {
        "trn2u.48xlarge": "trn2", "trn1n.32xlarge": "trn1", "inf2.8xlarge": None, "trn9.48xlarge": None, None: None,
    }  # fmt: skip
    assert {kind: machine_of(kind) for kind in kinds} == kinds
