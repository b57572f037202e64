"""What every way from a kernel's source to a NEFF must have. What a new one is made of: docs/extending.md."""

from __future__ import annotations

import ast
import re

from infra.devices.leases import FOLDER_VARIABLE
from infra.neuron import neff_worker
from infra.neuron.routes import LNC, ROUTES, SDK_OF_NKI, Route
from infra.neuron.toolchain import open_neuron_toolchain
from infra.simulator.toolchain import traced_on_simulator
from nki_sim.lint import VERSIONS
from nki_sim.machine import MACHINES
from tests.house.structure import ROOT
from tests.toolchains import test_eras, test_routes
from tests.toolchains.pretend_sdk import FIXTURES, PretendSdk

Release = tuple[int, int]
KNOWN: tuple[Release, ...] = tuple((int(major), int(minor)) for major, minor in (v.split(".") for v in VERSIONS))
"""NKI releases whose dialect the linter knows."""
STANDALONE = "standalone"
"""Compiled with by all tests of the toolchain but those in test_eras.py: fixtures/site is its era."""
PACKAGES = {"neuronxcc": "neuronx-cc"}
"""Of a top-level module, where the package is not called as the module is."""


def test_the_worker_has_a_function_for_each_and_no_other() -> None:
    assert {route.name for route in ROUTES} == set(neff_worker.ROUTES)
    for route in ROUTES:
        function = neff_worker.ROUTES[route.name]
        assert function.__name__ == route.name.replace("-", "_"), "a function of the same name"
        assert function.__doc__ and function.__module__ == neff_worker.__name__


def test_versions_of_what_it_compiles_with_are_asked_for() -> None:
    """They are in the fingerprint: with another version of anything that compiles, latencies are not comparable."""
    for route in ROUTES:
        for module in route.modules:
            name = module.partition(".")[0]
            assert PACKAGES.get(name, name.replace("_", "-")) in neff_worker.PACKAGES, f"{route.name}: {name}"


def test_each_says_what_it_is() -> None:
    assert len({route.name for route in ROUTES}) == len({route.title for route in ROUTES}) == len(ROUTES)
    for route in ROUTES:
        assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", route.name) and route.title and route.modules
        for variable, value in route.environment:
            assert re.fullmatch(r"[A-Z][A-Z_]+", variable)
            for machine in MACHINES:
                assert "{" not in value.format(machine=machine, lnc=LNC, cache="cache")


def serves(route: Route, release: Release) -> bool:
    if route.nki_from is None:
        return False
    return route.nki_from <= release and (route.nki_below is None or release < route.nki_below)


def test_every_version_of_nki_has_a_route_and_an_sdk() -> None:
    for route in ROUTES:
        if route.nki_from is not None:
            assert route.nki_from in KNOWN, f"{route.name}: a version that the linter does not know"
            assert route.nki_below is None or route.nki_below in KNOWN and route.nki_from < route.nki_below
    for release in KNOWN:
        assert [route for route in ROUTES if serves(route, release)], f"no route for NKI {release}"
    oldest = min(route.nki_from for route in ROUTES if route.nki_from is not None)
    assert tuple(SDK_OF_NKI) == tuple(release for release in KNOWN if release >= oldest), "SDK_OF_NKI of every version"


def test_the_setup_script_knows_the_same_sdks() -> None:
    found = re.search(r"^releases = (\{.*\})$", (ROOT / "setup_trn2.sh").read_text(encoding="utf-8"), re.M)
    assert ast.literal_eval(found.group(1)) == {f"{a}.{b}": sdk for (a, b), sdk in SDK_OF_NKI.items()}


def test_each_compiles_with_fixtures_of_its_era() -> None:
    """A fixture that takes the calls of its era, and a test that compiles a kernel with it."""
    assert {*test_eras.ERAS, STANDALONE} == {route.name for route in ROUTES}, (
        "its era belongs in tests/toolchains/test_eras.py"
    )
    for route in ROUTES:
        if route.name == STANDALONE:
            continue
        site = FIXTURES / "eras" / route.name
        for module in route.modules:
            place = site.joinpath(*module.split("."))
            assert place.is_dir() or place.with_suffix(".py").is_file(), f"{site} has no {module}"
        versions, imported = test_eras.ERAS[route.name]
        if route.nki_from is None:
            assert "nki" not in versions and imported != "import nki"
        else:
            major, minor = versions["nki"].split(".")[:2]
            assert serves(route, (int(major), int(minor)))


def test_the_one_without_an_era_of_its_own_is_what_all_other_tests_compile_with(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    toolchain = open_neuron_toolchain(traced_on_simulator, installation=PretendSdk(tmp_path / "sdk").installation)
    toolchain.close()
    assert toolchain.route.name == STANDALONE


def test_each_is_found_where_its_sdk_is() -> None:
    offered = {name for _, _, names in test_routes.ERAS.values() for name in names}
    assert offered == {route.name for route in ROUTES}, "tests/toolchains/test_routes.py has an SDK that offers it"


def test_the_docs_name_each() -> None:
    text = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    assert not [route.name for route in ROUTES if f"`{route.name}`" not in text], "docs/extending.md lists them"
