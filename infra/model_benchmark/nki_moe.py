"""The NKI MoE challenge's harness (github.com/aws-neuron/nki-moe, main.py at 2026-05): Qwen3 30B-A3B on one chip.

Its modes evaluate_single and evaluate_all write, into the folder they are started in:
- benchmark_report.json, of the last prompt: NxD Inference's latency report (reports.py);
- `<team>_qwen3-30b-a3b-<platform>[_<module>]_score_records.csv`, a row per prompt with all that the score is made of,
  which releases before the second round called the same without the platform.
On trn2 it takes the accuracy for 1 without looking; on trn3 it compares logits with the baseline model's.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NoReturn

from infra.model_benchmark.figures import Accuracy, Figures, PromptScore
from infra.model_benchmark.harness import BadHarness, Command, Read
from infra.model_benchmark.reports import ReportInvalid, can_be, nxdi, shown
from infra.ssh.runner import JOB_DIR

PROGRAM, PROMPTS, REPORT = "main.py", "prompts.txt", "benchmark_report.json"
MODES = ("evaluate_single", "evaluate_all")
_OURS = ("--compiled-model-path", "--skip-compile", "--compile-only", "--benchmark-report-path")
_WHY_OURS = "each run compiles into a folder of its own, or the kernels of the other would be measured"
_COLUMNS = (
    "base_latency", "base_throughput", "accuracy", "latency", "throughput", "nki_flop_ratio", "final_score",
    "timestamp",
)  # fmt: skip
_TIMESTAMP_LENGTH = len("2026-04-14 12:00:00")


@dataclass(frozen=True)
class NkiMoe:
    """`words`: flags of main.py, as `--mode evaluate_all --platform-target trn3 --qwen qwen_with_nki`."""

    words: tuple[str, ...] = ()

    name = "nki-moe"
    needs = ("neuronx_distributed_inference", "transformers")

    @property
    def reads(self) -> tuple[str, ...]:
        return (PROGRAM, PROMPTS, self._prompt_data)

    @property
    def _prompt_data(self) -> str:
        return f"prompt_data_{_flags(self.words).platform_target}.csv"

    def command(self, python: str, checkout: str, read: Read) -> Command:
        flags = _flags(self.words)
        for word in self.words:
            if any(_means(word, ours) for ours in _OURS):
                raise BadHarness(f"{self.name}: leave {word.partition('=')[0]} away: {_WHY_OURS}")
        if flags.mode not in MODES:
            raise BadHarness(f"{self.name}: --mode {flags.mode} gives no score: {' or '.join(MODES)}")
        if read.get(PROGRAM) is None:
            raise BadHarness(f"{self.name}: {checkout} has no {PROGRAM}: is it a checkout of aws-neuron/nki-moe?")
        argv = (
            python, "-u", f"{checkout}/{PROGRAM}", "--mode", flags.mode, "--platform-target", flags.platform_target,
            "--qwen", flags.qwen, "--team-id", flags.team_id, "--compiled-model-path", f"{JOB_DIR}/traced_model",
            *flags.rest,
        )  # fmt: skip
        files = {name: data for name in (PROMPTS, self._prompt_data) if (data := read.get(name)) is not None}
        if flags.mode == "evaluate_all":
            self._prompts(read)
        return Command(argv, (REPORT, *self._records), files)

    def figures(self, files: Mapping[str, bytes], read: Read) -> Figures:
        flags = _flags(self.words)
        name = next((name for name in self._records if name in files), None)
        if name is None:
            raise ReportInvalid(f"the harness left no {self._records[0]}: no prompt was scored")
        prompts = _prompts_of(name, files[name])
        wanted = 1 if flags.mode == "evaluate_single" else self._prompts(read)
        if len(prompts) != wanted:
            raise ReportInvalid(f"{name}: {len(prompts)} of {wanted} prompts are scored: the harness ended too early")
        if REPORT not in files:
            raise ReportInvalid(f"the harness left no {REPORT}")
        last = nxdi(REPORT, files[REPORT])
        if (last.latency_ms, last.tokens_per_s) != (prompts[-1].latency_ms, prompts[-1].tokens_per_s):
            raise ReportInvalid(f"{REPORT} and the last row of {name} disagree: are they of one run?")
        notes = list(last.notes)
        if len(prompts) > 1:
            notes.append("time to the first token and per token are those of the last prompt")
        if not all(prompt.accuracy for prompt in prompts):
            accuracy = Accuracy.FAILED
        elif flags.platform_target == "trn2":
            accuracy = Accuracy.UNCHECKED
            notes.append("this harness does not check accuracy on trn2: its score takes it for 1")
        else:
            accuracy = Accuracy.PASSED
        return Figures(
            accuracy,
            fmean(prompt.latency_ms for prompt in prompts),
            fmean(prompt.tokens_per_s for prompt in prompts),
            last.first_token_ms,
            last.per_token_ms,
            fmean(prompt.nki_flop_share for prompt in prompts),
            prompts,
            tuple(notes),
        )

    @property
    def _records(self) -> tuple[str, ...]:
        """The names that the score records may have, the present one first."""
        flags = _flags(self.words)
        module = f"_{flags.qwen}" if flags.qwen != "qwen" else ""
        stem = f"{flags.team_id}_qwen3-30b-a3b"
        return tuple(f"{stem}{platform}{module}_score_records.csv" for platform in (f"-{flags.platform_target}", ""))

    def _prompts(self, read: Read) -> int:
        """How many evaluate_all takes."""
        data = read.get(self._prompt_data)
        if data is None or read.get(PROMPTS) is None:
            raise BadHarness(f"{self.name}: evaluate_all needs {PROMPTS} and {self._prompt_data} in the checkout")
        return sum(1 for line in data.decode("utf-8", "replace").splitlines() if line.strip()) - 1


@dataclass(frozen=True)
class _Flags:
    mode: str
    platform_target: str
    qwen: str
    team_id: str
    rest: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadHarness(f"nki-moe: {message}")


def _means(word: str, flag: str) -> bool:
    """Also where it is cut short, which main.py takes as well."""
    said = word.partition("=")[0]
    return len(said) > len("--") and flag.startswith(said)


def _flags(words: Sequence[str]) -> _Flags:
    """Those of main.py that say where its results go, with its own defaults; the rest is passed on."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--mode", default=MODES[0])
    parser.add_argument("--platform-target", default="trn2")
    parser.add_argument("--qwen", default="qwen")
    parser.add_argument("--team-id", default="nki-optimizer")
    known, rest = parser.parse_known_args(list(words))
    return _Flags(known.mode, known.platform_target, known.qwen, known.team_id, tuple(rest))


def _prompts_of(name: str, content: bytes) -> tuple[PromptScore, ...]:
    text = content.decode("utf-8", "replace")
    if not text.endswith("\n"):
        raise ReportInvalid(f"{name} is cut off in line {text.count(chr(10)) + 1}")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns, rows = reader.fieldnames or (), list(reader)
    except csv.Error as error:
        raise ReportInvalid(f"{name}, line {reader.line_num}: {error}: it is no table of score records") from None
    for column in _COLUMNS:
        if columns.count(column) != 1:
            raise ReportInvalid(f"{name} has {'two columns' if column in columns else 'no column'} {column}")
    prompts = []
    for number, row in enumerate(rows, 2):
        if len(row["timestamp"] or "") < _TIMESTAMP_LENGTH:
            raise ReportInvalid(f"{name} is cut off in line {number}")
        prompt = PromptScore(
            _value(name, number, row, "base_latency"),
            _value(name, number, row, "base_throughput"),
            _accuracy(name, number, row["accuracy"]),
            _value(name, number, row, "latency"),
            _value(name, number, row, "throughput"),
            _value(name, number, row, "nki_flop_ratio", positive=False),
        )
        if prompt.nki_flop_share > 1:
            raise ReportInvalid(f"{name}, line {number}: nki_flop_ratio is {prompt.nki_flop_share!r}; it is at most 1")
        said = _value(name, number, row, "final_score", positive=False)
        if said != prompt.score:
            raise ReportInvalid(
                f"{name}, line {number}: final_score is {said!r}, and its figures come to {prompt.score!r}: another "
                "release's formula?"
            )
        prompts.append(prompt)
    return tuple(prompts)


def _value(name: str, line: int, row: Mapping[str, str | None], column: str, *, positive: bool = True) -> float:
    try:
        value = float(row[column] or "")
    except ValueError:
        raise ReportInvalid(f"{name}, line {line}: {column} is {shown(row[column])}, not a number") from None
    if not can_be(value, positive=positive):
        raise ReportInvalid(f"{name}, line {line}: {column} is {row[column]}, which nothing can take")
    return value


def _accuracy(name: str, line: int, text: str | None) -> float:
    """Python's own words for it: 1 on trn2, True or False on trn3."""
    known = {"1": 1.0, "True": 1.0, "0": 0.0, "False": 0.0}
    if text not in known:
        raise ReportInvalid(f"{name}, line {line}: accuracy is {shown(text)}, not 1, 0, True or False")
    return known[text]
