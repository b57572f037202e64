"""What every way from a kernel's source to a NEFF must have. What a new one is made of: docs/extending.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

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

Routes = tuple[Route, ...]
Release = tuple[int, int]

KNOWN: tuple[Release, ...] = tuple((int(major), int(minor)) for major, minor in (v.split(".") for v in VERSIONS))
"""NKI releases whose dialect the linter knows."""

STANDALONE = "standalone"
"""Compiled with by all tests of the toolchain but those in test_eras.py: fixtures/site is its era."""

PACKAGES = {"neuronxcc": "neuronx-cc"}
"""Of a top-level module, where the package is not called as the module is."""


def check_the_worker(routes: Routes, functions: Mapping[str, Callable[..., Any]]) -> None:
    assert {route.name for route in routes} == set(functions)
    for route in routes:
        function = functions[route.name]
        assert function.__name__ == route.name.replace("-", "_"), "a function of the same name"
        assert function.__doc__ and function.__module__ == neff_worker.__name__


def test_the_worker_has_a_function_for_each_and_no_other() -> None:
    check_the_worker(ROUTES, neff_worker.ROUTES)


def check_versions_are_asked_for(routes: Routes) -> None:
    """They are in the fingerprint: with another version of anything that compiles, latencies are not comparable."""
    for route in routes:
        for module in route.modules:
            name = module.partition(".")[0]
            assert PACKAGES.get(name, name.replace("_", "-")) in neff_worker.PACKAGES, f"{route.name}: {name}"


def test_versions_of_what_it_compiles_with_are_asked_for() -> None:
    check_versions_are_asked_for(ROUTES)


def check_the_descriptions(routes: Routes) -> None:
    assert len({route.name for route in routes}) == len({route.title for route in routes}) == len(routes)
    for route in routes:
        assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", route.name) and route.title and route.modules
        for variable, value in route.environment:
            assert re.fullmatch(r"[A-Z][A-Z_]+", variable)
            for machine in MACHINES:
                assert "{" not in value.format(machine=machine, lnc=LNC, cache="cache")


def test_each_says_what_it_is() -> None:
    check_the_descriptions(ROUTES)


def serves(route: Route, release: Release) -> bool:
    if route.nki_from is None:
        return False
    return route.nki_from <= release and (route.nki_below is None or release < route.nki_below)


def check_eras(routes: Routes, known: tuple[Release, ...], sdks: Mapping[Release, str]) -> None:
    for route in routes:
        if route.nki_from is not None:
            assert route.nki_from in known, f"{route.name}: a version that the linter does not know"
            assert route.nki_below is None or route.nki_below in known and route.nki_from < route.nki_below
    for release in known:
        assert [route for route in routes if serves(route, release)], f"no route for NKI {release}"
    oldest = min(route.nki_from for route in routes if route.nki_from is not None)
    assert tuple(sdks) == tuple(release for release in known if release >= oldest), "SDK_OF_NKI of every version"


def test_every_version_of_nki_has_a_route_and_an_sdk() -> None:
    check_eras(ROUTES, KNOWN, SDK_OF_NKI)


def test_the_setup_script_knows_the_same_sdks() -> None:
    found = re.search(r"^releases = (\{.*\})$", (ROOT / "setup_trn2.sh").read_text(encoding="utf-8"), re.M)
    assert ast.literal_eval(found.group(1)) == {f"{a}.{b}": sdk for (a, b), sdk in SDK_OF_NKI.items()}


def check_fixtures(routes: Routes, eras: Mapping[str, tuple[dict[str, str], str]]) -> None:
    """A fixture that takes the calls of its era, and a test that compiles a kernel with it."""
    assert {*eras, STANDALONE} == {route.name for route in routes}, "its era belongs in tests/toolchains/test_eras.py"
    for route in routes:
        if route.name == STANDALONE:
            continue
        site = FIXTURES / "eras" / route.name
        for module in route.modules:
            place = site.joinpath(*module.split("."))
            assert place.is_dir() or place.with_suffix(".py").is_file(), f"{site} has no {module}"
        versions, imported = eras[route.name]
        if route.nki_from is None:
            assert "nki" not in versions and imported != "import nki"
        else:
            major, minor = versions["nki"].split(".")[:2]
            assert serves(route, (int(major), int(minor)))


def test_each_compiles_with_fixtures_of_its_era() -> None:
    check_fixtures(ROUTES, test_eras.ERAS)


def test_the_one_without_an_era_of_its_own_is_what_all_other_tests_compile_with(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    toolchain = open_neuron_toolchain(traced_on_simulator, installation=PretendSdk(tmp_path / "sdk").installation)
    toolchain.close()
    assert toolchain.route.name == STANDALONE


def check_it_is_found(routes: Routes, eras: Mapping[str, tuple[dict[str, str], list[str], list[str]]]) -> None:
    offered = {name for _, _, names in eras.values() for name in names}
    assert offered == {route.name for route in routes}, "tests/toolchains/test_routes.py has an SDK that offers it"


def test_each_is_found_where_its_sdk_is() -> None:
    check_it_is_found(ROUTES, test_routes.ERAS)


def check_the_docs(routes: Routes) -> None:
    text = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    assert not [route.name for route in routes if f"`{route.name}`" not in text], "docs/extending.md lists them"


def test_the_docs_name_each() -> None:
    check_the_docs(ROUTES)


NEW = Route("ahead-of-time", "nki.compile", ("nki.compile",), KNOWN[-1])
WITH_NEW = (*ROUTES, NEW)
NEWEST = (KNOWN[-1][0], KNOWN[-1][1] + 1)


def ahead_of_time() -> None:
    """As it would be written."""


ahead_of_time.__module__ = neff_worker.__name__


def _with(**changes: Any) -> Routes:
    return (*ROUTES, Route(**({**vars(NEW), **changes})))


HALFWAY: dict[str, tuple[Callable[[], object], str]] = {
    "no function in the worker": (lambda: check_the_worker(WITH_NEW, neff_worker.ROUTES), "ahead-of-time"),
    "a function that no route has": (
        lambda: check_the_worker(ROUTES, {**neff_worker.ROUTES, "ahead-of-time": ahead_of_time}), "ahead-of-time",
    ),
    "a function of another route": (
        lambda: check_the_worker(WITH_NEW, {**neff_worker.ROUTES, "ahead-of-time": neff_worker.standalone}),
        "a function of the same name",
    ),
    "a package whose version nobody asks for": (
        lambda: check_versions_are_asked_for(_with(modules=("nobodys_sdk",))), "ahead-of-time: nobodys_sdk",
    ),
    "a title that there is already": (lambda: check_the_descriptions(_with(title=ROUTES[0].title)), "=="),
    "a variable that nobody fills in": (
        lambda: check_the_descriptions(_with(environment=(("NEURON_CC_FLAGS", "--core {core}"),))), "core",
    ),
    "a version that the linter does not know": (
        lambda: check_eras(_with(nki_from=NEWEST), KNOWN, SDK_OF_NKI), "the linter does not know",
    ),
    "an NKI that nothing compiles": (
        lambda: check_eras(tuple(route for route in ROUTES if not serves(route, KNOWN[-1])), KNOWN, SDK_OF_NKI),
        "no route for NKI",
    ),
    "an NKI without its SDK": (lambda: check_eras(ROUTES, (*KNOWN, NEWEST), SDK_OF_NKI), "SDK_OF_NKI of every version"),
    "no era": (lambda: check_fixtures(WITH_NEW, test_eras.ERAS), "test_eras.py"),
    "an era without a fixture": (
        lambda: check_fixtures(WITH_NEW, {**test_eras.ERAS, "ahead-of-time": ({"nki": "0.6.0"}, "import nki")}),
        "has no nki.compile",
    ),
    "no SDK that offers it": (lambda: check_it_is_found(WITH_NEW, test_routes.ERAS), "test_routes.py"),
    "nothing in the docs": (lambda: check_the_docs(WITH_NEW), "docs/extending.md"),
}  # fmt: skip


@pytest.mark.parametrize("what", HALFWAY)
def test_one_added_halfway_is_found(what: str) -> None:
    check, says = HALFWAY[what]
    with pytest.raises((AssertionError, LookupError, ValueError), match=re.escape(says)):
        check()
