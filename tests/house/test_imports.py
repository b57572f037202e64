"""Arrows point inward, between packages and between rooms; and no files import each other in a circle."""

from __future__ import annotations

import re

import pytest

from tests.house.structure import circles, imports, modules, room

ORDER = (
    ("bootstrap",),
    ("ka_extensions", "nki_sim"),
    # what is optimised: types, then what is made of them
    ("accelopt_core.evaluation", "accelopt_core.task"),
    ("accelopt_core.candidate", "accelopt_core.language", "accelopt_core.explanation"),
    ("accelopt_core.toolchain",),
    ("accelopt_core.optimization_memory",),
    ("accelopt_core.proposer", "accelopt_core.ports"),
    ("accelopt_core.languages",),
    ("accelopt_core.learning", "accelopt_core.judging", "accelopt_core.rules"),
    ("accelopt_core.model", "accelopt_core.loop", "accelopt_core.dispatch"),
    ("accelopt_core.catalogue",),
    # the outside world
    ("infra.journal", "infra.scratch_folder", "infra.toml_files", "infra.settings_reader", "infra.isolation"),
    ("infra.records", "infra.devices", "infra.tasks", "infra.llm", "infra.simulator"),
    ("infra.neuron",),
    ("infra.languages",),
    ("infra.judging", "infra.ssh", "infra.runs"),
    ("infra.doctor", "infra.model_benchmark"),
    ("infra.engines", "infra.e2e_benchmark"),
    ("infra.prediction", "infra.terminal", "infra.tracing"),
    ("infra.calibration", "infra.documents"),
    ("infra.targets", "infra.report"),
    ("infra.nki_kernel", "config"),
    ("infra.assembly", "infra.command_line"),
    ("infra.commands",),
    ("infra.agents",),
    ("orchestrator",),
    ("nki_optimizer",),
)
"""A room may import the rows above its own. Where two of one row import each other's like, a row is missing."""
_LEVEL = {name: level for level, row in enumerate(ORDER) for name in row}
_PACKAGES = {"accelopt_core", "infra"}


def test_every_room_has_its_place() -> None:
    assert {room(module) for module in modules()} - _PACKAGES == set(_LEVEL)


@pytest.mark.parametrize("name", sorted(_LEVEL))
def test_a_room_imports_only_rooms_further_in(name: str) -> None:
    wrong = [
        f"{module} imports {other}"
        for module in modules()
        if room(module) == name
        for other in imports(module)
        if room(other) not in _PACKAGES and room(other) != name and _LEVEL[room(other)] >= _LEVEL[name]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles() == []


ROUND_KNOWS = ("accelopt_core.loop", "accelopt_core.model", "accelopt_core.learning")
UNKNOWN_TO_ROUND = (
    "accelopt_core.rules", "accelopt_core.catalogue", "accelopt_core.judging",
    "accelopt_core.languages", "nki_sim", "infra",
)  # fmt: skip
WHICH_THERE_ARE = "accelopt_core.languages.plugin"
"""It names none: what models are taught of a language lies with it."""


@pytest.mark.parametrize("name", ROUND_KNOWS)
def test_the_loop_and_the_model_know_no_transform_no_judge_and_no_simulator(name: str) -> None:
    wrong = [
        f"{module} imports {other}"
        for module in modules()
        if module.startswith(name)
        for other in imports(module)
        if other.startswith(UNKNOWN_TO_ROUND) and other != WHICH_THERE_ARE
    ]
    assert not wrong, "\n".join(wrong)


NEUTRAL = (
    "accelopt_core.loop", "accelopt_core.model", "accelopt_core.judging", "accelopt_core.learning", "infra.judging",
    "infra.runs", "infra.targets", "infra.devices", "infra.engines", "infra.ssh", "ka_extensions",
)  # fmt: skip
"""Rooms that know of languages what the ports say (`accelopt_core/language.py`, `toolchain.py`), and no more."""
OF_ONE_LANGUAGE = (
    "accelopt_core.languages.nki", "accelopt_core.catalogue", "accelopt_core.dispatch.joining", "nki_sim",
    "infra.simulator", "infra.neuron", "infra.languages.nki",
)  # fmt: skip


@pytest.mark.parametrize("name", NEUTRAL)
def test_the_loop_the_judge_and_the_targets_import_no_language(name: str) -> None:
    wrong = [
        f"{module} imports {other}"
        for module in modules()
        if module.startswith(name)
        for other in imports(module)
        if other.startswith(OF_ONE_LANGUAGE)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["accelopt_core.language", "accelopt_core.toolchain", "accelopt_core.ports",
                                  "accelopt_core.proposer", "accelopt_core.task", "accelopt_core.candidate",
                                  "accelopt_core.evaluation", "accelopt_core.optimization_memory"])  # fmt: skip
def test_the_types_that_all_share_import_no_language(name: str) -> None:
    assert not [other for other in imports(name) if other.startswith(("accelopt_core.languages", *OF_ONE_LANGUAGE))]


def test_settings_are_read_where_a_run_is_put_together_and_nowhere_else() -> None:
    assert {module for module in modules() if "config" in imports(module)} == {
        "infra.agents.call", "infra.agents.protocol", "infra.agents.server", "infra.agents.terms",
        "infra.assembly.language_parts", "infra.assembly.of_nki", "infra.assembly.problem",
        "infra.assembly.proposing", "infra.assembly.rounds", "infra.assembly.run", "infra.assembly.targets",
        "infra.command_line", "infra.commands.machines", "infra.commands.evaluate", "infra.commands.init",
        "infra.commands.many_shapes", "infra.commands.menu", "infra.commands.migrate", "infra.commands.model",
        "infra.commands.optimize", "infra.commands.profile", "infra.commands.show_html",
        "infra.commands.suite_side_by_side", "infra.commands.by_name", "orchestrator", "nki_optimizer.completion",
    }  # fmt: skip


def test_ray_is_imported_by_one_file_alone() -> None:
    """An optional extra: without it everything else works, and with it all of it is in one process of its own."""
    naming = re.compile(r"^\s*(?:import|from) ray\b", re.M)
    assert [name for name, path in modules().items() if naming.search(path.read_text(encoding="utf-8"))] == [
        "infra.engines.ray_driver"
    ]
    assert not [name for name in modules() if "infra.engines.ray_driver" in imports(name)], (
        "it is started, not imported"
    )


def test_mcp_is_imported_by_one_file_alone() -> None:
    """An optional extra, whose packages no other part of the program needs."""
    naming = re.compile(r"^\s*(?:import|from) mcp(?:_types)?\b", re.M)
    assert [name for name, path in modules().items() if naming.search(path.read_text(encoding="utf-8"))] == [
        "infra.agents.protocol"
    ]


PLUGINS = re.compile(r"triton|flashinfer|cuda|nvidia", re.I)


def test_no_plugin_is_named() -> None:
    """What the program knows of a language of its own distribution is what `LanguagePlugin` says."""
    naming = {name: PLUGINS.findall(path.read_text(encoding="utf-8")) for name, path in modules().items()}
    assert not {name: found for name, found in naming.items() if found}


def test_what_a_node_unpickles_imports_nothing_of_ours() -> None:
    assert not imports("infra.engines.at_node")
