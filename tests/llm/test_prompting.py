"""Templates: found from anywhere, versioned by content, strict about names, bounded in size."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jinja2
import pytest

import accelopt_core.model.prompting as prompting
from accelopt_core.evaluation import Bounds, Gap, HotLine, Measured, Profile, microseconds
from accelopt_core.judging.quoting import quoting
from accelopt_core.languages.nki.dialect import Dialect
from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.languages.nki.machine_facts import machine_facts
from accelopt_core.model.executor import executor_prompt
from accelopt_core.model.extraction import LINE_MARK
from accelopt_core.model.planner import followed, labelled, planner_prompt
from accelopt_core.model.prompting import (
    PROMPTS,
    Detail,
    PromptSettings,
    brief,
    engine_times,
    numbered,
    profile_changes,
    profile_fields,
    prompts_version,
    render,
    shortened,
    shown_files,
    system_text,
    top,
)
from accelopt_core.task import Surroundings
from nki_sim.machine import MACHINES, machine
from tests.attempts import attempted
from tests.llm.scenes import KERNEL, PLAN, PROFILE, REJECTION, TASK, WIN, context, measured

TRN2 = machine_facts(machine("trn2"))


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Takes the prompts of another folder."""

    def take(folder: Path) -> None:
        monkeypatch.setattr(prompting, "PROMPTS", folder)
        prompting._prompt_files.cache_clear()

    yield take
    monkeypatch.undo()
    prompting._prompt_files.cache_clear()


def test_the_version_changes_with_any_text(tmp_path: Path, prompts: Callable[[Path], None]) -> None:
    shutil.copytree(PROMPTS, tmp_path, dirs_exist_ok=True)
    prompts(tmp_path)
    assert prompts_version.__wrapped__() == prompts_version()
    with (tmp_path / "nki/machine.j2").open("a") as file:
        file.write(" ")
    prompts(tmp_path)
    assert prompts_version.__wrapped__() != prompts_version()
    prompts(tmp_path / "nowhere")
    with pytest.raises(prompting.PromptsMissing, match="nowhere"):
        prompting._prompt_files(prompting.PROMPTS)


@pytest.mark.parametrize(("dialect", "there", "not_there"), [
    (Dialect(), ["Valid in NKI 0.3 to 0.7: functions", "`for` over plain `range`", "lambda, comprehension"],
     ["any Python"]),
    (Dialect("NKI 0.7", any_python=True), ["Valid in NKI 0.7: any Python"], ["helpers without", "lambda"]),
])  # fmt: skip
def test_the_system_text_is_made_of_machine_facts_and_asks_for_what_is_valid_in_the_targets_version(
    dialect, there, not_there
) -> None:
    text = system_text(PromptSettings("nki", replace(TRN2, name="Imaginium9"), dialect), "- `nisa`: dma_copy")
    assert "Imaginium9" in text and "{{" not in text and "{%" not in text and "# API\n- `nisa`: dma_copy" in text
    assert [part for part in there if part not in text] == []
    assert [part for part in not_there if part in text] == []


def test_a_mark_of_a_models_own_is_dropped_and_no_message_has_too_many() -> None:
    message = prompting._marked("ab\0c\0d\0e\0f")
    assert (message.content, message.kept) == ("abcdef", (2, 3, 4))
    prompt = prompting._marked(planner_prompt(context(), Detail()))
    problem, shown, rest = (prompt.content[a:b] for a, b in pairwise([0, *prompt.kept, len(prompt.content)]))
    assert "def get_inputs(rng)" in problem and KERNEL.splitlines()[-1] not in problem
    assert "The current kernel" in shown and "repeated loads" in rest and "Tried in this run" in rest


def test_the_numbers_come_from_the_machine_table() -> None:
    machine = MACHINES["trn2"]
    facts = machine_facts(replace(machine, psum_banks=5, dma_row_ns=4 * machine.dma_row_ns))
    assert facts.psum_banks == 5
    assert facts.dma_good_row_bytes == 4 * TRN2.dma_good_row_bytes
    assert (TRN2.name, TRN2.partitions, TRN2.matmul_columns, TRN2.tflops_bf16) == ("Trainium2", 128, 512, 79)
    assert TRN2.dma_poor_row_bytes < TRN2.dma_good_row_bytes


def test_kernel_text_is_passed_on_untouched_and_a_bound_called_what_it_is() -> None:
    traced = replace(PROFILE, bounds=replace(PROFILE.bounds, source="trace"))
    declared = planner_prompt(context(), Detail())
    derived = planner_prompt(context(parent_result=measured(400.0, traced)), Detail())
    assert "one by one come to 168.0 µs" in declared
    assert "one by one" not in derived and "may go below" in derived
    odd = "def kernel(x):\n    return x  # {{ not a template }} <b> & µ\n"
    parent = replace(context().parent, source=odd)
    assert "# {{ not a template }} <b> & µ" in planner_prompt(context(parent=parent), Detail())
    with pytest.raises(jinja2.UndefinedError):
        render("nki", "system.j2")


def test_engines_are_shown_over_time_with_what_they_wait_for() -> None:
    fields = {
        "tensor_engine_active_time": 12e-6, "tensor_begin_time": 2.5e-6, "tensor_end_time": 15e-6,
        "tensor_wait_for_dma_time": 0.4e-6, "tensor_wait_for_order_time": 0.1e-6, "tensor_wait_for_vector_time": 0.0,
        "dma_active_time": 14e-6, "gpsimd_engine_active_time": 0.0,
    }  # fmt: skip
    profile = replace(PROFILE, fields=fields)
    dma, tensor = engine_times(profile)
    assert (dma.name, dma.busy_us, dma.begin_us, dma.waits) == ("dma", 14.0, None, ())
    assert tensor.begin_us == pytest.approx(2.5) and [what for what, _ in tensor.waits] == ["dma", "order"]
    prompt = planner_prompt(context(parent_result=measured(16.0, profile)), Detail())
    assert "| tensor | 2.5 µs | 15.0 µs | 12.0 µs | dma 0.4 µs, its own queue 0.1 µs |" in prompt
    assert "| dma |  |  | 14.0 µs |  |" in prompt


def test_a_remembered_rewrite_is_not_quoted_again_and_what_is_tried_beside_is_told() -> None:
    shown = planner_prompt(context(), Detail())
    assert "before:" in shown and "(The current kernel has it.)" not in shown
    parent = replace(context().parent, source=f"{KERNEL}\n{WIN.fast}\n")
    already = planner_prompt(context(parent=parent), Detail())
    assert "before:" not in already and "(The current kernel has it.)" in already
    alone = planner_prompt(context(), Detail())
    beside = planner_prompt(context(planned=(PLAN,)), Detail())
    assert "in this round already" not in alone and "in this round already" in beside
    assert PLAN.title in beside and f"[{PLAN.technique}]" in beside


def test_a_hot_line_within_a_longer_statement_is_quoted_whole() -> None:
    source = "def kernel(x):\n    nisa.dma_copy(\n        dst=tile,\n        src=x,\n    )\n    y = 1\n"
    lines = tuple(HotLine(number, "dma", 1.0, 1) for number in (2, 4, 6, 99))
    result = quoting(measured(1.0, replace(PROFILE, hot_lines=lines)), source)
    assert isinstance(result, Measured)
    whole = "nisa.dma_copy( dst=tile, src=x, )"
    assert [line.text for line in result.profile.hot_lines] == [whole, whole, "y = 1", ""]
    broken = quoting(measured(1.0, replace(PROFILE, hot_lines=lines[:1])), "def kernel(x:\n  nisa.dma_copy(")
    assert isinstance(broken, Measured) and broken.profile.hot_lines[0].text == "nisa.dma_copy("


def test_profile_fields_come_in_listed_order_with_units() -> None:
    shown = profile_fields("nki", PROFILE, 10)
    assert shown == ["total_time 400.0 µs", "hbm_read_bytes 32.02 MiB", "vector_engine_instruction_count 32"]
    assert len(profile_fields("nki", PROFILE, 2)) == 2


def test_texts_are_cut_where_they_can_be_read_and_say_so() -> None:
    lines = numbered("\n" * 8 + "a\nb\nc\n").splitlines()
    assert lines[8:] == ["a", "b  #L10", "c"] and LINE_MARK.sub("", "\n".join(lines)) == "\n" * 8 + "a\nb\nc"
    assert shortened("short", 10) == "short"
    assert "[… 900 characters left out …]" in shortened("x" * 1000, 100)
    prose = "The load was on the way. Start it earlier, before the weights. Then the store is next."
    assert brief(prose, 200) == prose
    assert brief(prose, 70) == "The load was on the way. Start it earlier, before the weights. …"
    assert brief("x" * 100, 50) == "x" * 48 + " …"
    assert all(len(brief(prose, longest)) <= longest for longest in range(10, 100))
    code = "\n".join(f"line_{n}()" for n in range(10))
    assert top(code, 1000) == code and top(code, 30) == "line_0()\nline_1()\nline_2()\n... (7 more lines)"
    assert [microseconds(us) for us in (12345.6, 0.01234, -3.0)] == ["12,345.6 µs", "0.0123 µs", "-3 µs"]


def test_what_was_not_sent_to_the_device_is_told_apart() -> None:
    unsent = attempted(9, "outranked", source="x = 1", technique="wait", title="waits", lane="l1",
                       summary="predicted 40.0 µs, 3 others were better (from 30.0 µs)")  # fmt: skip
    text = planner_prompt(context(history=(*context().history, unsent)), Detail())
    assert "waits [wait]: not timed on the device, may be planned again: " in text and "3 others were better" in text
    assert "not timed on the device" not in planner_prompt(context(), Detail())


FILES = Surroundings(
    "row_silu",
    "library.core.silu",
    (
        ("library/__init__.py", "# A licence, and nothing else.\n"),
        ("library/checks.py", "def check(x):\n    assert x\n"),
        ("library/large.py", f"TABLE = '{'x' * 5000}'\n"),
        ("library/sizes.py", "P = 128  # partitions" + " " * 200 + "\n"),
    ),
)


def test_what_a_kernel_imports_is_shown_itself_first_and_stays() -> None:
    shown = shown_files(FILES, "from ..sizes import P\n" + KERNEL, 1000)
    assert [path for path, _ in shown.whole] == ["library/sizes.py", "library/checks.py"]
    assert shown.others == ("library/large.py",), "and what has no code is not worth a line"
    assert shown_files(FILES, KERNEL, 0).whole == ()
    in_package = context(task=replace(TASK, around=FILES))
    planned = planner_prompt(in_package, Detail(neighbours=1000))
    written = executor_prompt(in_package, PLAN, (), "", Detail(neighbours=1000))
    for prompt in (planned, written):
        assert "`library/checks.py`:\n```python\ndef check(x):" in prompt
        assert "stands in its package as `library/core/silu.py`" in prompt and "they stay as they are" in prompt
        assert "(Left out to keep this short: library/large.py.)" in prompt
    assert "library/" not in executor_prompt(context(), PLAN, (), "", Detail())


def test_two_profiles_are_told_apart_by_what_moved() -> None:
    def profile(busy_us: float, gap_us: float, fields: dict[str, float]) -> Profile:
        gaps = (Gap(Cause.WAITING.value, gap_us, "overlap", "it waits"),) if gap_us else ()
        named = {"tensor_engine_active_time": busy_us * 1e-6, **fields}
        return Profile(named, Bounds(1.0, 1.0, 1.0, "declared"), (), gaps)

    before = profile(80.0, 30.0, {"hbm_read_bytes": 4e6, "hbm_write_bytes": 1e6})
    after = profile(80.5, 0.0, {"hbm_read_bytes": 2e6, "hbm_write_bytes": 1e6})
    changes = {each.what: (each.before, each.after) for each in profile_changes("nki", before, after)}
    assert list(changes) == [f"gap: {Cause.WAITING.value}", "hbm_read_bytes"]
    assert changes[f"gap: {Cause.WAITING.value}"] == ("30.0 µs", "")


def test_a_plan_says_which_of_what_is_known_it_follows() -> None:
    known = labelled(context())
    assert known == {"E1": WIN, "E2": REJECTION}
    prompt = planner_prompt(context(), Detail())
    assert "- E1: worked, 1.42x on rmsnorm" in prompt and "- E2: measured and rejected (0.80x) on bmm" in prompt
    assert followed({"follows": ["E2", "E9", "E1"]}, "retile", known) == (WIN.key,), "E2 warns, and E9 was not shown"
    assert followed({"follows": "E1"}, "retile", known) == (WIN.key,)
    assert followed({}, WIN.technique, known) == (WIN.key,), "a win of the same technique, where it names none"
    again = followed({"follows": ["E1"]}, REJECTION.technique, known)
    assert again == (WIN.key, REJECTION.key), "it tries again what was rejected"
    assert followed({"follows": None}, "retile", known) == ()
    here = replace(WIN, kernel=context().task.name, title=context().history[0].title)
    assert labelled(context(experiences=(here, REJECTION))) == {"E1": REJECTION}
