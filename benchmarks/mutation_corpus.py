"""Judges every mutant of the corpus and writes the rates of detection into docs/judging.md.

    python benchmarks/mutation_corpus.py [--only WORD] [--write docs/judging.md] [--log verdicts.txt]

About ten minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.mutations.corpus import corpus
from tests.mutations.judging import Fate, Verdict, judged
from tests.mutations.operators import OPERATORS

BEGIN, END = "<!-- mutations: begin -->", "<!-- mutations: end -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose name has this in it")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory() as folder:
        for mutant in corpus():
            if options.only in mutant.name:
                verdicts.append(judged(mutant, Path(folder)))
                line = f"{verdicts[-1].fate.value}: {mutant.name}: {mutant.instead} | {verdicts[-1].why}"
                if options.log:
                    with options.log.open("a", encoding="utf-8") as log:
                        log.write(line[:600] + "\n")
                if verdicts[-1].fate is Fate.SURVIVED:
                    print(line, flush=True)
    text = table(verdicts)
    print(text)
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        options.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    return 0


def table(verdicts: list[Verdict]) -> str:
    """Markdown: per operator how many wrong kernels there are, and how many of them are caught."""
    lines = ["| operator | wrong kernels | caught | survived | equivalent, not counted |", "|---|---|---|---|---|"]
    for operator in (*OPERATORS, "all"):
        fates = Counter(v.fate for v in verdicts if operator in ("all", v.mutant.operator))
        wrong = fates[Fate.CAUGHT] + fates[Fate.SURVIVED]
        rate = f"{100 * fates[Fate.CAUGHT] / wrong:.1f} %" if wrong else "-"
        lines.append(f"| {operator} | {wrong} | {rate} | {fates[Fate.SURVIVED]} | {fates[Fate.EQUIVALENT]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
