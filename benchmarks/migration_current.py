"""Public kernels of NKI 0.2 to 0.6, migrated to 0.7: is the stream of instructions the same before and after?

    python benchmarks/migration_current.py --sdk DIR --autocomp DIR --library DIR [--write docs/migration.md]

The directories are checkouts of aws-neuron/aws-neuron-sdk, ucb-bar/autocomp and aws-neuron/nki-library; the kernels and
their arguments are those of compatibility.py. Every file of a checkout is migrated in a copy of it, then each case is
traced in both, in processes of their own. Ends with status 1 where a stream differs or a file needs a person.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nki_sim
from benchmarks.compatibility import NotTraced, add_checkouts, checkouts, trace_of
from benchmarks.compatibility_cases import CASES, Case
from nki_sim.encoding.canonical import digest
from nki_sim.lint import LAST_PARSED, LATEST, check_source
from nki_sim.migrate.command import Dialect, dialect_of
from nki_sim.migrate.current import migrate_current

NOT_TRACED = "not traced"
DONE = ("same", "rewritten")
RULE = "|---|---|---|---|---|"
BEGIN, END = "<!-- current: begin -->", "<!-- current: end -->"


def stream(root: Path, case: Case) -> str:
    """A hash of what the kernel of a case traces to, lines left out; what goes wrong, in words."""
    try:
        program, _ = trace_of(root, case)
    except NotTraced as error:
        return f"{NOT_TRACED}: {error}"
    return digest(program)


def migrated_copy(root: Path, folders: tuple[str, ...], into: Path) -> dict[str, str]:
    """The checkout's folders with every file migrated; by file what became of it: `same`, `rewritten`, or why not."""
    found: dict[str, str] = {}
    for folder in folders:
        shutil.copytree(root / folder, into / folder, dirs_exist_ok=True)
    for path in sorted(into.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        name = path.relative_to(into).as_posix()
        try:
            if dialect_of(text) is not Dialect.PARSER:
                continue
            migration = migrate_current(text, also_in_06=False)
        except SyntaxError as error:
            found[name] = f"not Python: {error.msg}"
            continue
        left = [str(finding) for finding in migration.left]
        before, after = errors(text, LAST_PARSED), errors(migration.source, LATEST)
        if left:
            found[name] = f"needs a person: {left[0]}"
        elif after and not before:
            found[name] = f"not valid in {LATEST} after it: {after[0]}"
        elif before:
            found[name] = f"not valid in {LAST_PARSED} before it: {before[0]}"
        else:
            found[name] = "same" if migration.source == text else "rewritten"
        path.write_text(migration.source, encoding="utf-8")
    return found


def errors(text: str, version: str) -> list[str]:
    found = check_source(text, version)
    return [f"line {each.line}: {each.message}" for each in found if each.severity == "error"]


def streams(root: Path, key: str) -> dict[str, str]:
    """By case, in a process of its own: two trees of one package cannot be imported into one."""
    command = [sys.executable, str(Path(__file__).resolve()), f"--{key}", str(root), "--streams"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_checkouts(parser)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this page")
    parser.add_argument("--streams", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    nki_sim.install()
    lines, verdicts, files = [], Counter[str](), Counter[str]()
    for key, repository, root in checkouts(options):
        cases = [case for case in CASES if case.repository == key and not case.rejected]
        if options.streams:
            print(json.dumps({f"{case.file} {case.function}, {case.what}": stream(root, case) for case in cases}))
            return 0
        with tempfile.TemporaryDirectory() as folder:
            became = migrated_copy(root, repository.folders, Path(folder))
            before, after = streams(root, key), streams(Path(folder), key)
        files.update(verdict.partition(":")[0] for verdict in became.values())
        untraced = [name for name in before if before[name].startswith(NOT_TRACED)]
        different = [name for name in before if before[name] != after[name]]
        same = len(before) - len({*different, *untraced})
        verdicts.update({"same stream": same, "another stream": len(different), NOT_TRACED: len(untraced)})
        rewritten = sum(verdict == "rewritten" for verdict in became.values())
        lines.append(
            f"| {repository.name} | {len(became)} | {rewritten} | {len(before) - len(untraced)} | {len(different)} |"
        )
        for name in dict.fromkeys([*different, *untraced]):
            print(f"{name}: {before[name]} before, {after[name]} after")
        for name, verdict in became.items():
            if verdict not in DONE:
                print(f"{name}: {verdict}")
    print("\n".join(lines))
    print(f"files: {dict(files)}; cases: {dict(verdicts)}")
    if options.write is not None:
        head = [
            "| repository | files | of them rewritten | kernels traced | streams that differ |",
            "|---|---|---|---|---|",
        ]
        text = options.write.read_text(encoding="utf-8")
        before_table, _, rest = text.partition(BEGIN)
        table = "\n".join([BEGIN, "", *head, *lines, "", END])
        options.write.write_text(before_table + table + rest.partition(END)[2], encoding="utf-8")
    failed = files["needs a person"] + files[f"not valid in {LATEST} after it"]
    return int(bool(verdicts["another stream"] or verdicts[NOT_TRACED] or failed))


if __name__ == "__main__":
    sys.exit(main())
