"""What every language must have. What a new one is made of: docs/extending.md."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import entry_points

import pytest

import config
from accelopt_core.languages.names import MACHINES
from accelopt_core.languages.plugin import GROUP, plugins
from accelopt_core.languages.registry import language_of, languages
from accelopt_core.model.prompting import PROMPTS, system_text
from accelopt_core.ports import TargetInfo
from infra.assembly.language_parts import PluginParts
from infra.assembly.languages import parts_of
from infra.languages.registry import supported
from infra.tasks.seed_index import seeds_of
from infra.tasks.user_files import SHIPPED

LANGUAGES = languages()
FRAGMENTS = ("words.j2", "machine.j2", "mistakes.j2", "techniques.j2", "profile_fields.txt")


def test_each_says_who_it_is_and_how_its_files_are_told() -> None:
    for key, language in LANGUAGES.items():
        assert language.key == key and re.fullmatch(r"[a-z]+", key)
        assert language.name and language.core and language.marked and language.machines, f"{key}: who it is"
        assert language.packages and language.entry_points, f"{key}: how its files are told"
        others = [other.packages for other in LANGUAGES.values() if other is not language]
        assert not language.packages & frozenset().union(*others), f"{key}: another language imports the same"
        assert len(set(language.machines)) == len(language.machines) and language.machines == MACHINES[key]
    assert len({language.name for language in LANGUAGES.values()}) == len(LANGUAGES)


@pytest.mark.parametrize("key", LANGUAGES)
def test_its_text_is_read(key: str) -> None:
    """Text of all kinds, and never by an exception."""
    language = LANGUAGES[key]
    for broken in ("", "def f(:\n", "\x00", "x = (" * 300):
        assert language.forbidden(broken) == [] and language.operators(broken) == ()
        language.notes(broken)
    found = language.forbidden("import subprocess\nsubprocess.run('x')\nopen('/etc/passwd')\n")
    assert {finding.line for finding in found} >= {1, 3}, f"{language.key}: the rules of Python around a kernel"
    for source in (seed.kernel_source for seed in seeds_of(key)):
        assert language_of(source) is language and language.kernels(source), f"{language.key}: its own kernels"
        assert language.forbidden(source) == [] and language.operators(source)


@pytest.mark.parametrize("key", LANGUAGES)
def test_models_are_taught_it_and_nothing_else(key: str) -> None:
    """The shared templates with its fragments and what its run gives them, of its first machine and of no other's."""
    folder = plugins()[key].prompts if key in plugins() else PROMPTS / key
    missing = [name for name in FRAGMENTS if not (folder / name).is_file()]
    assert not missing, f"{folder} lacks {', '.join(missing)}"
    language = LANGUAGES[key]
    info = TargetInfo("a target", "f", False, language.machines[0])
    taught = parts_of(key).teaching(info, seeds_of(key)[0].kernel_source, False)
    assert taught.settings.language == key and taught.instructions and taught.api_reference("", "")
    text = system_text(taught.settings, taught.instructions)
    assert language.name in text and "{{" not in text
    others = [other.name for other in LANGUAGES.values() if other is not language]
    assert not [name for name in others if re.search(rf"\b{name}\b", text)], f"{key}: a word of another language"


@pytest.mark.parametrize("key", LANGUAGES)
def test_its_kernels_can_be_judged_and_its_runs_put_together(key: str) -> None:
    found = supported(key)
    assert found.language is parts_of(key).language is LANGUAGES[key] and found.here in ("simulator", "auto")
    assert found.host.pythons and found.host.modules and found.host.name and found.host.remedy
    assert found.calibration_of(None) is None


def test_plugins_have_every_part() -> None:
    wanted = [name for name in vars(PluginParts) if not name.startswith("_")]
    for key, plugin in plugins().items():
        assert entry_points(group=GROUP)[key].load() is plugin
        assert len(wanted) > 4 and not [name for name in wanted if not hasattr(parts_of(key), name)]


@pytest.mark.parametrize("key", LANGUAGES)
def test_it_has_tasks_of_its_own(key: str) -> None:
    assert (SHIPPED[key] / "summary.json").is_file(), f"{key}: no seeds in SHIPPED"
    assert key in config.SUITES.values(), f"{key}: no suite in SUITES"
    for seed in seeds_of(key):
        task = seed.task()
        assert task.language == key and len(task.presets) > 1 and all(preset.work for preset in task.presets)


def test_what_only_nki_has_is_as_it_was() -> None:
    """Tasks of earlier releases name no language, and their hashes hold."""
    task = seeds_of("nki")[0].task()
    assert task.language == "nki" and replace(task, language="other").content_hash != task.content_hash
