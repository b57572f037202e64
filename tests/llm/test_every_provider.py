"""A provider is one file and one line of the registry; here is what a file must hold, and what else belongs to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import config
from accelopt_core.ports import Message, ModelError, ModelReply, ModelRequest, Role, Usage
from infra import command_line
from infra.llm.prices import load_prices
from infra.llm.provider import SHIPPED_DEFAULTS, Provider, ProviderSettings
from infra.llm.recording import Exchange, exchange_to_json
from infra.llm.registry import FILES, PROVIDERS, build_model, provider_from_environment, settings_from_environment
from infra.settings_reader import SettingsError, Spec, specs
from infra.toml_files import read_toml

ROOT = Path(__file__).resolve().parents[2]
OURS = {"accelopt_core", "infra", "ka_extensions", "nki_sim", "numpy", "ml_dtypes", "tomli"}
"""And what those rest on."""
PROGRAMS = ("claude",)
"""What providers start; a stand-in for each is on the PATH where a provider is given all it needs."""
SETTINGS = {spec.field: spec for spec in specs(config.GROUPS["model"])}
DEFAULTS = read_toml(SHIPPED_DEFAULTS)
NAMED = "some-model"

EVERY = pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS.keys())


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program to start, no key and no server in the environment."""
    for variable in list(os.environ):
        if variable.endswith(("_API_KEY", "_BASE_URL", "_MODEL")):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", str(tmp_path / "no programs here"))


@pytest.fixture
def folder(tmp_path: Path, bare: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that suits every setting that wants one, and the programs of `PROGRAMS` on the PATH."""
    place = tmp_path / "folder"
    place.mkdir()
    request = ModelRequest(Role.PLANNER, "s", (Message("user", "u"),))
    (place / "00001.json").write_text(exchange_to_json(Exchange(request, "m", 0.1, ModelReply("r", "m", Usage()))))
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in PROGRAMS:
        (programs / program).write_text(f"#!{sys.executable}\n")
        (programs / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    return place


def prefix(provider: Provider) -> str:
    return provider.name.upper().replace("-", "_")


def suitable(spec: Spec, folder: Path) -> str:
    """A value that suits a setting: the folder, or the path of a program."""
    return str(folder) if spec.kind is Path else sys.executable


def all_it_needs(provider: Provider, folder: Path) -> ProviderSettings:
    """As the command line and an environment with a key make it; no model is named."""
    flags = [word for need in provider.needs for word in (SETTINGS[need].flag, suitable(SETTINGS[need], folder))]
    chosen = command_line.read(["--provider", provider.name, *flags], {}, folder).settings.model
    told = ProviderSettings(**{need: getattr(chosen, need) for need in provider.needs})
    return settings_from_environment(provider.name, told, {f"{prefix(provider)}_API_KEY": "a-key-0123456789"})


def test_every_file_of_a_provider_is_a_line_of_the_registry_and_has_its_name() -> None:
    found = {path.stem for path in (ROOT / "infra" / "llm").glob("*_model.py")}
    assert sorted(found) == sorted(FILES)
    assert len(PROVIDERS) == len(FILES), "two providers have the same name"
    assert [f"{name.replace('-', '_')}_model" for name in PROVIDERS] == list(FILES)
    for name in PROVIDERS:
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name)
    assert ("auto", *PROVIDERS, "catalogue") == config.PROVIDERS
    prices = load_prices()
    assert set(DEFAULTS) <= set(PROVIDERS)
    for section in DEFAULTS.values():
        assert prices.price_of(section["model"]) is not None


def test_the_registry_loads_no_library() -> None:
    """Their SDKs take seconds: whatever is not Python's own or ours waits until a model is built."""
    code = "import infra.llm.registry, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    bare_start = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded, always = (
        set(subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
            .stdout.split())
        for text in (code, bare_start)
    )  # fmt: skip
    foreign = loaded - always - set(sys.stdlib_module_names) - OURS
    assert not foreign, f"importing the registry imports {', '.join(sorted(foreign))}"


@EVERY
def test_what_it_needs_are_settings_that_it_is_told(provider: Provider) -> None:
    told = {item.name for item in fields(ProviderSettings)}
    assert set(provider.needs) <= set(SETTINGS) & told
    for need in provider.needs:
        assert SETTINGS[need].optional and SETTINGS[need].default is None
        assert need not in ("model", "base_url"), "the environment may give it, so its flag may be missing"


@EVERY
def test_without_what_it_needs_the_command_line_is_refused(provider: Provider, folder: Path) -> None:
    for missing in provider.needs:
        flags = [f"{SETTINGS[need].flag}={suitable(SETTINGS[need], folder)}"
                 for need in provider.needs if need != missing]  # fmt: skip
        with pytest.raises(SettingsError, match=f"^--provider: {provider.name} needs {SETTINGS[missing].flag} as well"):
            command_line.read(["--provider", provider.name, *flags], {}, folder)


@EVERY
def test_without_what_it_needs_it_is_built_or_refuses_in_one_line(provider: Provider, bare: None) -> None:
    try:
        model = build_model(provider.name, ProviderSettings())
    except ModelError as error:
        assert re.fullmatch(rf"{provider.name}(:\S+)?: no [^\n:]+: [^\n]+", str(error))
        assert ": no key" not in str(error) or f"set {prefix(provider)}_API_KEY" in str(error)
    else:
        assert model.name.partition(":")[0] == provider.name
        assert not provider.needs, f"built without {provider.needs[0]}, so it does not need it"


@EVERY
def test_each_of_what_it_needs_is_needed(provider: Provider, folder: Path) -> None:
    complete = all_it_needs(provider, folder)
    for need in provider.needs:
        absent: dict[str, Any] = {need: None}
        with pytest.raises(ModelError):
            build_model(provider.name, replace(complete, **absent))


@EVERY
def test_with_what_it_needs_it_is_built(provider: Provider, folder: Path) -> None:
    """Also without a model's name: one that takes a name has a default, or its program has."""
    complete = all_it_needs(provider, folder)
    model, named = (build_model(provider.name, replace(complete, model=name)).name for name in (None, NAMED))
    assert model.partition(":")[0] == named.partition(":")[0] == provider.name
    if named == f"{provider.name}:{NAMED}":
        default = DEFAULTS.get(provider.name, {"model": "default"})["model"]
        assert model == f"{provider.name}:{default}", "its default model belongs in defaults.toml"
    else:
        assert model == named and provider.name not in DEFAULTS


@EVERY
def test_what_offers_it_is_enough_for_it(provider: Provider, bare: None) -> None:
    for variable in provider.offered_by:
        environment = {variable: "http://127.0.0.1:9/v1" if variable.endswith("_URL") else "a-key-0123456789"}
        assert provider_from_environment(environment) == provider.name
        build_model(provider.name, settings_from_environment(provider.name, ProviderSettings(NAMED), environment))


@EVERY
def test_it_has_tests_of_its_own(provider: Provider) -> None:
    """Beside those here: some file builds it by its name, or imports its class."""
    own = re.compile(
        rf"""build_model\(\s*"{provider.name}"|^from infra\.llm\.{provider.name.replace("-", "_")}_model import""", re.M
    )
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests" / "llm").glob("test_*.py"))
             if path.name != Path(__file__).name]  # fmt: skip
    assert any(own.search(text) for text in texts), f"no file in tests/llm tests {provider.name}"
