"""Every setting from four places, and one line for each mistake a person can make."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

import config
import orchestrator
from config import Invocation, Settings
from infra.command_line import CONFIG_FILE, read
from infra.settings_reader import SettingsError, specs
from infra.toml_files import read_toml

EVERY_SPEC = [(group, spec) for group, kind in config.GROUPS.items() for spec in specs(kind)]


def given(folder: Path, flags: str = "", toml: str | None = None, **environment: str) -> Invocation:
    if toml is not None:
        (folder / CONFIG_FILE).write_text(toml)
    return read(flags.split(), environment, folder)


def mistake(folder: Path, flags: str = "", toml: str | None = None, **environment: str) -> str:
    with pytest.raises(SettingsError) as failure:
        given(folder, flags, toml, **environment)
    assert "\n" not in str(failure.value)
    return str(failure.value)


def test_nothing_given_is_the_defaults_and_the_command_run(tmp_path: Path) -> None:
    invocation = given(tmp_path)
    assert invocation.settings == Settings() and invocation.command == "run" and not invocation.origins


@pytest.mark.parametrize(
    ("toml", "variable", "flags", "rounds", "origin"),
    [
        (None, "", "", 10, None),
        ("[run]\nrounds = 1", "", "", 1, "nki-optimizer.toml: [run] rounds"),
        ("[run]\nrounds = 1", "2", "", 2, "environment: NKI_OPT_ROUNDS"),
        ("[run]\nrounds = 1", "2", "--rounds 3", 3, "--rounds"),
        (None, "2", "--rounds=3", 3, "--rounds"),
        (None, "", "--rounds 3 --rounds 4", 4, "--rounds"),
    ],
)
def test_flags_beat_the_environment_which_beats_the_file(tmp_path, toml, variable, flags, rounds, origin) -> None:
    invocation = given(tmp_path, flags, toml, NKI_OPT_ROUNDS=variable)
    assert invocation.settings.run.rounds == rounds
    assert invocation.origins.get("run.rounds") == origin


def test_a_file_is_found_by_flag_by_variable_and_by_its_usual_name(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[run]\nrounds = 7")
    assert given(tmp_path, "--config other.toml").settings.run.rounds == 7
    assert given(tmp_path, NKI_OPT_CONFIG="other.toml").settings.run.rounds == 7
    assert given(tmp_path, "", "[run]\nrounds = 8").settings.run.rounds == 8
    assert given(tmp_path, "--config other.toml").settings.run.rounds == 7
    assert "missing.toml" in mistake(tmp_path, "--config missing.toml")


def test_paths_are_relative_to_where_they_were_written(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "far.toml").write_text('[run]\nkernel = "k.py"')
    assert read(["--config", "../far.toml"], {}, folder).settings.run.kernel == folder / ".." / "k.py"
    assert read(["--kernel", "k.py"], {}, folder).settings.run.kernel == folder / "k.py"
    assert read(["--kernel", "~/k.py"], {}, folder).settings.run.kernel == Path.home() / "k.py"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("ubuntu@10.0.0.1", ("ubuntu@10.0.0.1",)),
        ("trn2-box --rounds 3", ("trn2-box",)),
        ("--rounds 3 me@host.example:2222", ("me@host.example:2222",)),
        ("ubuntu@[fe80::1]:22", ("ubuntu@[fe80::1]:22",)),
        ("--host a.example", ("a.example",)),
        ("first.example --host second.example", ("second.example",)),
        ("doctor ubuntu@10.0.0.1", ("ubuntu@10.0.0.1",)),
        ("a.example --rounds 3 me@b.example:2222 c", ("a.example", "me@b.example:2222", "c")),
        ("a.example,b.example c", ("a.example", "b.example", "c")),
        ("--host a.example,b.example", ("a.example", "b.example")),
        ("doctor a.example b.example", ("a.example", "b.example")),
        ("ssh://ubuntu@a.example:2222", ("ubuntu@a.example:2222",)),
        ("ssh://a.example/ --rounds 3", ("a.example",)),
        ("doctor ssh://ubuntu@[fe80::1]:22,b.example", ("ubuntu@[fe80::1]:22", "b.example")),
        ("--host ssh://ubuntu@a.example:2222/", ("ubuntu@a.example:2222",)),
        ("--host none", ()),
        ("", ()),
        ("run mine.py a.example", ("a.example",)),
    ],
)
def test_the_first_words_are_the_hosts(tmp_path: Path, flags: str, expected: tuple[str, ...]) -> None:
    assert given(tmp_path, flags).settings.target.host == expected


def test_a_kernel_s_file_needs_no_flag_and_the_demo_has_its_own_task(tmp_path: Path) -> None:
    for flags in ("mine.py", "mine.py a.example", "a.example mine.py --rounds 3", "run mine.py", "explain mine.py"):
        assert given(tmp_path, flags).settings.run.kernel == tmp_path / "mine.py"
    assert given(tmp_path, "explain 20261120-1").run_id == "20261120-1"
    demo = given(tmp_path, "demo --rounds 3").settings.run
    assert (demo.task, demo.preset, demo.rounds, demo.kernel) == ("gqa_full", "small", 3, None)


def test_said_alone_the_program_says_how_to_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert orchestrator.main([]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 8 and all(word in said for word in ("demo", "mine.py", "init", "--help"))


@pytest.mark.parametrize(
    ("flags", "command", "run_id"),
    [
        ("runs", "runs", "latest"),
        ("show", "show", "latest"),
        ("show 20261120-1", "show", "20261120-1"),
        ("diff x --checkpoints /tmp", "diff", "x"),
        ("--rounds 3 config", "config", "latest"),
        ("doctor", "doctor", "latest"),
    ],
)
def test_other_commands(tmp_path: Path, flags: str, command: str, run_id: str) -> None:
    invocation = given(tmp_path, flags)
    assert (invocation.command, invocation.run_id) == (command, run_id)


@pytest.mark.parametrize(
    ("flags", "group", "name", "value"),
    [
        ("--kernel k.py --in-place", "run", "in_place", True),
        ("--kernel k.py --in-place --no-in-place", "run", "in_place", False),
        ("--seeds 1,2,3", "verification", "seeds", (1, 2, 3)),
        ("--max-cost 2.5", "budget", "max_cost_usd", 2.5),
        ("--max-cost none", "budget", "max_cost_usd", None),
        ("--max-tokens 1_000_000", "budget", "max_tokens", 1_000_000),
        ("--noise 0", "guard", "noise", 0.0),
        ("--base-url http://localhost:8000/v1", "model", "base_url", "http://localhost:8000/v1"),
    ],
)
def test_values_have_their_types(tmp_path: Path, flags: str, group: str, name: str, value: object) -> None:
    read_value = getattr(getattr(given(tmp_path, flags).settings, group), name)
    assert read_value == value and type(read_value) is type(value)


def test_a_file_and_the_environment_may_say_it_as_they_say_things(tmp_path: Path) -> None:
    for key in ("max-cost", "max_cost", "max_cost_usd"):
        assert given(tmp_path, "", f"[budget]\n{key} = 3").settings.budget.max_cost_usd == 3.0
    for text, value in (("1", True), ("yes", True), ("TRUE", True), ("0", False), ("off", False)):
        assert given(tmp_path, NKI_OPT_ACCEPT_NEW_HOST_KEY=text).settings.target.accept_new_host_key is value
    read_file = given(tmp_path, "", '[target]\nhost = ["a", "b"]\ncores = [0, 5]').settings.target
    assert (read_file.host, read_file.cores) == (("a", "b"), (0, 5))
    assert given(tmp_path, "", '[target]\nhost = "a"').settings.target.host == ("a",), "one needs no brackets"
    assert given(tmp_path, NKI_OPT_HOST="a,b", NKI_OPT_CORES="1,2").settings.target.cores == (1, 2)


@pytest.mark.parametrize(("stored", "expected"), [(None, ()), ("a.example", ("a.example",)), (["a", "b"], ("a", "b"))])
def test_a_run_of_an_earlier_release_with_one_host_or_none_can_be_resumed(stored, expected) -> None:
    assert config.from_document({"target": {"host": stored}}, "run x").target.host == expected


MISTAKES = [
    # flags
    ("--roundz 5", None, {}, "unknown flag --roundz: did you mean --rounds?"),
    ("--frobnicate", None, {}, "unknown flag --frobnicate: see --help"),
    ("--rounds", None, {}, "--rounds: expected one argument"),
    ("--rounds abc", None, {}, "--rounds: 'abc' is not a whole number"),
    ("--rounds 0", None, {}, "--rounds: 0 must be at least 1"),
    ("--noise -1", None, {}, "--noise: -1.0 must be at least 0"),
    ("--noise nan", None, {}, "--noise: nan is not a finite number"),
    ("--max-cost inf", None, {}, "--max-cost: inf is not a finite number"),
    ("--tolerance 1", None, {}, "--tolerance: 1.0 must be less than 1"),
    ("--provider gpt", None, {}, "--provider: 'gpt' is not one of auto, anthropic"),
    ("--seeds 1,two", None, {}, "--seeds: 'two' is not a whole number"),
    ("--run-id ../x", None, {}, "--run-id: '../x'"),
    ("--patien 5", None, {}, "unknown flag --patien: did you mean --patience?"),  # no guessing at abbreviations
    ("--round 5", None, {}, "--round: only `show and apply` has it, not `run`: did you mean --rounds?"),
    ("--ssh-port 22", None, {}, "ssh-port is no setting any more: write HOST:PORT"),
    ("--warmup 3", None, {}, "warmup is no setting any more: its default served everybody"),
    ("", None, {"NKI_OPT_WARMUP": "3"}, "environment: NKI_OPT_WARMUP: warmup is no setting any more"),
    ("--planner-model x", None, {}, "write --role-models planner=NAME"),
    ("--effort chef=high", None, {}, "--effort: 'chef': write ROLE=NAME"),
    ("--role-models chef=x", None, {}, "--role-models: 'chef': write ROLE=NAME"),
    # words
    ("runs x", None, {}, "'x' is one word too many"),
    ("kernels/mine", None, {}, "for a file write --kernel kernels/mine"),
    ("mine.py --kernel yours.py", None, {}, "a kernel is named already"),
    ("demoo", None, {}, "did you mean demo?"),
    ("list", None, {}, "did you mean runs?"),
    ("demo --task silu", None, {}, "demo: it has its own task"),
    ("dcotor", None, {}, "did you mean doctor?"),
    ("optimise", None, {}, "a kernel's file alone is enough"),
    # the file
    ("", "[run]\nroundz = 5", {}, "nki-optimizer.toml: unknown setting [run] roundz: did you mean [run] rounds?"),
    ("", "[run]\nhost = 'x'", {}, "[run] host belongs in [target]"),
    ("", "rounds = 5", {}, "rounds belongs in [run]"),
    ("", "run = 5", {}, "write [run] on a line of its own"),
    ("", "[run]\nrounds = '5'", {}, "[run] rounds: need a whole number, not str '5'"),
    ("", "[run]\nrounds = true", {}, "[run] rounds: need a whole number, not bool True"),
    ("", "[run]\nin-place = 1", {}, "[run] in-place: need true or false, not int 1"),
    ("", "[run]\nkernel = 5", {}, "[run] kernel: need text in quotes, not int 5"),
    ("", "[verification]\nseeds = 5", {}, "[verification] seeds: need a list"),
    ("", "[run\nrounds = 5", {}, "nki-optimizer.toml"),
    ("", "[guard]\nnoise = 2", {}, "nki-optimizer.toml: [guard] noise: 2.0 must be less than 1"),
    # the environment
    ("", None, {"NKI_OPT_ROUNDZ": "5"}, "environment: unknown setting NKI_OPT_ROUNDZ: did you mean NKI_OPT_ROUNDS?"),
    ("", None, {"NKI_OPT_ROUNDS": "many"}, "environment: NKI_OPT_ROUNDS: 'many' is not a whole number"),
    ("", None, {"NKI_OPT_IN_PLACE": "maybe"}, "environment: NKI_OPT_IN_PLACE: 'maybe' is neither true nor false"),
    # what does not go together
    ("--in-place", None, {}, "--in-place: there is no kernel file to write back to"),
    ("--problem ref.py", None, {}, "--problem: a reference needs the kernel"),
    ("--remote-simulator", None, {}, "--remote-simulator: on which host?"),
    ("a.example --cores 0,1,0", None, {}, "--cores: 0 is named twice"),
    ("a.example b.example a.example", None, {}, "--host: 'a.example' is named twice"),
    ("a.example ssh://a.example", None, {}, "--host: 'a.example' is named twice"),
    ("ssh://a.example/work", None, {}, "'ssh://a.example/work' is not a host: an ssh:// address ends after its port"),
    ("runs a.example", None, {}, "'a.example' is one word too many for `runs`"),
    ("", None, {"NKI_OPT_REMOTE_SIMULATOR": "1"}, "NKI_OPT_REMOTE_SIMULATOR: on which host?"),
    ("--provider command", None, {}, "--provider: command needs --model-command"),
    ("--base-url ftp://x", None, {}, "--base-url: 'ftp://x' is not an http"),
]


@pytest.mark.parametrize(("flags", "toml", "environment", "says"), MISTAKES, ids=[case[3][:60] for case in MISTAKES])
def test_a_mistake_is_one_line_that_says_where_and_what_is_legal(tmp_path, flags, toml, environment, says) -> None:
    assert says in mistake(tmp_path, flags, toml, **environment)


SECRET = "sk-very-secret"


@pytest.mark.parametrize(
    ("flags", "toml", "environment"),
    [
        (f"--api-key {SECRET}", None, {}),
        (f"--anthropic-api-key={SECRET}", None, {}),
        ("", f"[model]\napi_key = '{SECRET}'", {}),
        ("", f"ANTHROPIC_API_KEY = '{SECRET}'", {}),
        ("", None, {"NKI_OPT_API_KEY": SECRET}),
        (f"--base-url https://user:{SECRET}@example.com", None, {}),
        (f"--unknown={SECRET}", None, {}),
    ],
)
def test_a_key_in_the_wrong_place_is_refused_and_never_repeated(tmp_path, flags, toml, environment) -> None:
    assert SECRET not in mistake(tmp_path, flags, toml, **environment)


def test_keys_in_the_environment_reach_no_setting(tmp_path: Path) -> None:
    invocation = given(tmp_path, "", None, ANTHROPIC_API_KEY=SECRET, OPENAI_API_KEY=SECRET)
    assert invocation.settings == Settings() and SECRET not in config.to_toml(invocation)


def help_of(*words: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as left:
        read([*words], {}, Path("/"))
    assert left.value.code == 0
    return out.getvalue()


def test_help_is_short_and_names_the_commands_and_all_of_it_every_setting() -> None:
    text, whole = help_of("--help"), help_of("--help-all")
    assert len(text.splitlines()) <= 60 and max(len(line) for line in text.splitlines()) <= 120
    assert not [command for command in config.COMMANDS[1:] if not re.search(rf"^  .*\b{command}\b", text, re.M)]
    assert not [spec.flag for _, spec in EVERY_SPEC if spec.flag not in whole] and "[10]" in text


@pytest.mark.parametrize("command", config.COMMANDS[1:])
def test_each_command_has_help_of_its_own(command: str) -> None:
    text = help_of(command, "--help")
    assert text.startswith("usage: ") and f" {command} " in text.partition("\n")[0] + " "
    assert len(text.splitlines()) <= 100


@pytest.mark.parametrize(("group", "spec"), EVERY_SPEC, ids=[spec.name for _, spec in EVERY_SPEC])
def test_every_setting_has_help_a_legal_default_and_a_name_of_its_own(group: str, spec) -> None:
    assert spec.help.strip() and spec.help[0].isupper() | (spec.help[:3] in ("...", "aut"))
    if spec.default not in (None, ()):
        assert spec.legal.complaint(spec.default) is None
    assert [other.name for _, other in EVERY_SPEC].count(spec.name) == 1
    assert [other.variable for _, other in EVERY_SPEC].count(spec.variable) == 1


def test_what_config_prints_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    flags = 'ubuntu@h --rounds 3 --seeds 1,2 --max-cost 0.5 --kernel a"b\\c.py --in-place --temperature 0'
    invocation = given(tmp_path, flags)
    (tmp_path / CONFIG_FILE).write_text(config.to_toml(invocation))
    assert given(tmp_path).settings == invocation.settings
    assert "(from --max-cost)" in config.to_toml(invocation)
    assert read_toml(tmp_path / CONFIG_FILE)["run"]["rounds"] == 3


def test_the_settings_of_a_run_are_stored_and_read_back(tmp_path: Path) -> None:
    import json

    settings = given(tmp_path, "ubuntu@h --seeds 1,2 --max-hours 2 --kernel k.py").settings
    document = json.loads(json.dumps(config.to_document(settings)))
    assert config.from_document(document, "config.json") == settings
    document["run"]["tomorrow"] = 1
    with pytest.raises(SettingsError, match="config.json"):
        config.from_document(document, "config.json")


OWN_SPECS = [(group, spec) for group, spec in EVERY_SPEC if group != "run" or spec in specs(config.RunSettings)]
"""Without those of plugins."""


@pytest.mark.parametrize(("group", "spec"), OWN_SPECS, ids=[spec.name for _, spec in OWN_SPECS])
def test_every_setting_is_used_by_the_program(group: str, spec) -> None:
    where = ("infra/assembly/*.py", "infra/commands/*.py")
    program = "".join(path.read_text() for pattern in where for path in config.PROJECT.glob(pattern))
    assert re.search(rf"\.{spec.field}\b", program)


@pytest.mark.parametrize("order", [1, -1])
def test_settings_that_need_each_other_are_taken_together_when_a_run_is_resumed(tmp_path: Path, order: int) -> None:
    words = [["--provider", "command"], ["--model-command", "cat"]][::order]
    said = read(["--resume", *words[0], *words[1]], {}, tmp_path)
    said = replace(said, origins=dict(list(said.origins.items())[::order]))
    model = said.over(config.Settings()).model
    assert (model.provider, model.model_command) == ("command", "cat")
