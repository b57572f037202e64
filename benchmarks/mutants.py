"""Mutants: are the project's own faults found by the tests of the room they are in?

    python -m benchmarks.mutants [--count 200] [--seed 0] [--room NAME ...] [--processes 2]

Changes one place at a time of loop, judging, catalogue, timing, loop tree and journal, in a copy of the tree, and runs
the tests of the room that execute its line, or all of them where none is known to. Prints the share that is caught, and
each survivor with its change. Of a line's places one is drawn at random, lines without replacement.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LONGEST_S = 900.0
"""A mutant whose tests take longer is caught: it hangs."""


@dataclass(frozen=True)
class Room:
    product: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "loop": Room(("accelopt_core/loop", "ka_extensions"), ("tests/core", "tests/ka_extensions")),
    "judging": Room(("accelopt_core/judging",), ("tests/core", "tests/redteam")),
    "catalogue": Room(("accelopt_core/catalogue",), ("tests/catalogue",)),
    "timing": Room(("nki_sim/timing",), ("tests/nki_sim/machine",)),
    "loop tree": Room(("nki_sim/loop_ir", "accelopt_core/rules"), ("tests/rules", "tests/catalogue")),
    "journal": Room(("infra/journal.py", "infra/runs"), ("tests/infra", "tests/resume")),
}


@dataclass(frozen=True)
class Mutant:
    room: str
    file: str
    line: int
    changed: str
    """The file's text."""
    change: str


SWAPPED: dict[type[ast.AST], Any] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def variants(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Copies of a statement, each changed in one place that stands on its own lines."""
    own = [node for node in ast.walk(statement) if _is_own(node, statement)]
    for at in range(len(own)):
        copy = ast.parse(ast.unparse(statement)).body[0]
        node = [each for each in ast.walk(copy) if _is_own(each, copy)][at]
        if _changed(node):
            yield copy
    names = all(isinstance(target, (ast.Name, ast.Tuple)) for target in getattr(statement, "targets", []))
    if isinstance(statement, (ast.AugAssign, ast.Expr)) or (isinstance(statement, ast.Assign) and not names):
        yield ast.Pass()  # a name that is not bound at all would be found by anything


def _is_own(node: ast.AST, statement: ast.stmt) -> bool:
    """Of a compound statement only what its head says."""
    blocks = [block for name in ("body", "orelse", "finalbody", "handlers") for block in getattr(statement, name, [])]
    if not isinstance(statement, ast.stmt) or isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Import)):
        return False
    return not any(node is inner for block in blocks for inner in ast.walk(block))


def _changed(node: ast.AST) -> bool:
    if isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)) and type(node.op) in SWAPPED:
        node.op = SWAPPED[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        node.ops[0] = SWAPPED[type(node.ops[0])]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        node.value += 1
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node.operand = ast.UnaryOp(ast.Not(), node.operand)  # not not x: as true as x, and never an error
    else:
        return False
    return True


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those within functions: what a module or a class says once is seen by the type checker."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                if isinstance(node, ast.stmt) and not is_text and not isinstance(node, (ast.Raise, ast.FunctionDef)):
                    yield node


def drawn(room: str, count: int, luck: random.Random) -> list[Mutant]:
    """So many mutants of a room, each of another line."""
    files = [file for part in ROOMS[room].product for file in _python_files(ROOT / part)]
    places = [(file, node) for file in files for node in statements(ast.parse(file.read_text(encoding="utf-8")))]
    luck.shuffle(places)
    found: dict[tuple[Path, int], Mutant] = {}
    for file, node in places:
        choices = list(variants(node))
        if len(found) == count or not choices or (file, node.lineno) in found:
            continue
        lines = file.read_text(encoding="utf-8").split("\n")
        last = node.body[0].lineno - 1 if hasattr(node, "body") else node.end_lineno or node.lineno
        old, new = "\n".join(lines[node.lineno - 1 : last]), luck.choice(choices)
        head = ast.unparse(new).split("\n")[0] if hasattr(node, "body") else ast.unparse(new)
        if "elif" in old.split("(")[0] or (hasattr(node, "body") and node.body[0].lineno == node.lineno):
            continue
        written = " " * node.col_offset + head.replace("\n", "\n" + " " * node.col_offset)
        changed = "\n".join([*lines[: node.lineno - 1], written, *lines[last:]])
        try:
            compile(changed, str(file), "exec")
        except SyntaxError:
            continue
        name = str(file.relative_to(ROOT))
        found[file, node.lineno] = Mutant(room, name, node.lineno, changed, f"{old.strip()}  ->  {head.strip()}")
    return list(found.values())


def _python_files(path: Path) -> list[Path]:
    return [path] if path.suffix else sorted(path.rglob("*.py"))


def copied(folder: Path) -> Path:
    """A copy of what git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def tests_by_line(room: Room, copy: Path) -> dict[tuple[str, int], set[str]]:
    """Of each line that the room's tests execute in their own process, those tests."""
    import coverage

    settings = copy / ".mutants.rc"
    settings.write_text(f"[run]\ndynamic_context = test_function\ndata_file = {copy}/.mutants\nsource = .\n")
    ran = ["coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-p", "no:cacheprovider", *room.tests]
    done = subprocess.run([sys.executable, "-m", *ran], cwd=copy, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the tests fail as they are:\n{done.stdout[-3000:]}")
    data = coverage.CoverageData(f"{copy}/.mutants")
    data.read()
    found: dict[tuple[str, int], set[str]] = {}
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            names = {_node(context, copy) for context in contexts if context}
            found[str(Path(file).relative_to(copy)), line] = {name for name in names if name}
    return found


def _node(context: str, copy: Path) -> str:
    """`tests.core.test_x.test_y` as pytest wants it; empty for what is no function of a file."""
    module, _, function = context.rpartition(".")
    file = Path(*module.split(".")).with_suffix(".py")
    return f"{file}::{function}" if (copy / file).is_file() else ""


def is_caught(mutant: Mutant, copy: Path, tests: set[str]) -> bool:
    """Do its tests fail, or take too long? The copy is as before afterwards."""
    file = copy / mutant.file
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.changed, encoding="utf-8")
    try:
        chosen = sorted(tests) or ROOMS[mutant.room].tests
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *chosen]
        return subprocess.run(command, cwd=copy, capture_output=True, timeout=LONGEST_S).returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(original, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="mutants, of all rooms together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", action="append", choices=ROOMS, help="only these")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    rooms = given.room or list(ROOMS)
    caught = dict.fromkeys(rooms, 0)
    drawn_of = dict.fromkeys(rooms, 0)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.processes):
            free.put(copied(Path(folder, str(number))))

        def judged(mutant: Mutant, tests: set[str]) -> bool:
            copy = free.get()
            try:
                return is_caught(mutant, copy, tests)
            finally:
                free.put(copy)

        for number, room in enumerate(rooms):
            began = time.monotonic()
            first = free.get()
            by_line = tests_by_line(ROOMS[room], first)
            free.put(first)
            mutants = drawn(room, (given.count + number) // len(rooms), random.Random(f"{given.seed} {room}"))
            drawn_of[room] = len(mutants)
            with ThreadPoolExecutor(given.processes) as pool:
                verdicts = pool.map(judged, mutants, [by_line.get((m.file, m.line), set()) for m in mutants])
                for mutant, is_found in zip(mutants, verdicts):
                    caught[room] += is_found
                    if not is_found:
                        print(f"survives: {mutant.file}:{mutant.line}: {mutant.change}", flush=True)
            print(f"{room}: {caught[room]} of {drawn_of[room]} caught, {time.monotonic() - began:.0f} s", flush=True)
    total, of = sum(caught.values()), sum(drawn_of.values())
    print(f"caught: {total} of {of} ({100 * total / of:.0f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
