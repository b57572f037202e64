"""A launch grid `kernel[4, 2]` becomes loops over its programs, whose sizes come in as an argument."""

from __future__ import annotations

import ast

from nki_sim.beta1.instrument import number_of
from nki_sim.beta1.running import Watched
from nki_sim.migrate.calls import Calls
from nki_sim.migrate.code import functions_of
from nki_sim.migrate.edits import Source
from nki_sim.migrate.operands import NeedsPerson
from nki_sim.migrate.report import Finding, Kind

_FIRST, _END = "#<program loops>", "#<end of program loops>"
"""Marks in the new text, which `indented` takes out again."""


def rewrite(source: Source, names: Calls, tree: ast.Module, watched: Watched, findings: list[Finding]) -> None:
    """Loops in the kernels that were launched on a grid, and calls that say how many programs there are."""
    for function in functions_of(tree.body):
        launch = watched.grids.get(function.name, ())
        if not launch:
            continue
        last_argument = function.args.args[-1]
        default = function.args.defaults[-1] if function.args.defaults else None
        place = default if default is not None else last_argument
        sizes = f"({', '.join(map(str, launch))}{',' if len(launch) == 1 else ''})"
        source.insert(source.span(place)[1], f", grid={sizes}")
        for node in ast.walk(function):
            text = _place_in_grid(names, node, len(launch))
            if text and isinstance(node, ast.Call):
                source.replace(node, text)
        findings.append(Finding(function.lineno, "grids", f"a loop over {launch} programs", Kind.REWRITTEN))
        _wrap(source, names, watched, function, launch)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            kernel = ast.unparse(node.func.value)
            if kernel in watched.grids and watched.grids[kernel]:
                given = node.func.slice
                parts = given.elts if isinstance(given, ast.Tuple) else [given]
                sizes = ", ".join(_size(source, names, part) for part in parts)
                named = [f"{k.arg}={source.of(k.value)}" if k.arg else f"**{source.of(k.value)}" for k in node.keywords]
                called = ", ".join([*(source.of(a) for a in node.args), *named])
                source.replace(node, f"{kernel}({called}, grid=({sizes}{',' if len(parts) == 1 else ''}))")


def _size(source: Source, names: Calls, node: ast.expr) -> str:
    if isinstance(node, ast.Call) and names.called(node) == "nl.spmd_dim":
        return source.of(node.args[0])
    return source.of(node)


def _place_in_grid(names: Calls, node: ast.AST, rank: int) -> str:
    """What `nl.program_id(0)` and its like are in the loops; empty for what is none of them."""
    name = names.called(node) if isinstance(node, ast.Call) else ""
    if not isinstance(node, ast.Call) or not name.startswith("nl."):
        return ""
    axis = [*node.args, *(keyword.value for keyword in node.keywords)]
    if name == "nl.program_id":
        return f"program_{ast.unparse(axis[0])}"
    if name == "nl.num_programs":
        if axis:
            return f"grid[{ast.unparse(axis[0])}]"
        return " * ".join(f"grid[{k}]" for k in range(rank))
    return str(rank) if name == "nl.program_ndim" else ""


def _wrap(source: Source, names: Calls, watched: Watched, function: ast.FunctionDef, launch: tuple[int, ...]) -> None:
    """Loops around everything from the first use of a program's id to the return; outputs are allocated before."""
    body = function.body
    uses = [k for k, statement in enumerate(body) if _names_its_program(names, statement)]
    if not uses:
        return
    last = len(body)
    while last and _returns(body[last - 1]):
        last -= 1
    if uses[0] >= last or any(_returns(statement) for statement in body[uses[0] : last]):
        raise NeedsPerson("grids", f"{function.name} returns from the middle of what each program of its grid does")
    outputs = [k for k in range(uses[0], last) if _allocates_output(names, watched, body[k])]
    start, moved = uses[0], []
    if outputs:
        start = outputs[-1] + 1
        moved = _moved_into_loops(source, names, watched, body[uses[0] : start], function.name, len(launch))
    marks = [f"for program_{axis} in range(grid[{axis}]):" for axis in range(len(launch))]
    lines = [f"{_FIRST}{len(launch)}", *marks, *moved]
    if start < last:
        source.insert_above(body[start], lines)
    if last < len(body):
        source.insert_above(body[last], [_END])
    else:
        source.insert_below(function, _END)


def _returns(statement: ast.AST) -> bool:
    """Whether the function that it stands in may be left in it."""
    if isinstance(statement, (ast.FunctionDef, ast.Lambda)):
        return False
    return isinstance(statement, ast.Return) or any(_returns(child) for child in ast.iter_child_nodes(statement))


def _names_its_program(names: Calls, statement: ast.stmt) -> bool:
    return any(isinstance(n, ast.Call) and names.called(n) == "nl.program_id" for n in ast.walk(statement))


def _allocates_output(names: Calls, watched: Watched, statement: ast.stmt) -> bool:
    """An allocation in HBM, which all programs share."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and names.called(node) in ("nl.ndarray", "nl.zeros", "nl.full", "nl.ones"):
            fact = watched.watcher.seen[number_of(node)].any() if number_of(node) in watched.watcher.seen else None
            if fact is not None and fact.memory == "hbm":
                return True
    return False


def _moved_into_loops(
    source: Source, names: Calls, watched: Watched, body: list[ast.stmt], name: str, rank: int
) -> list[str]:
    """Of the statements in front of the last output, those that depend on the program: their text, out of its place."""
    depends: set[str] = set()
    lines: list[str] = []
    for statement in body:
        used = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
        if not _names_its_program(names, statement) and not used & depends:
            continue
        works = any(watched.watcher.gave_tiles(number_of(n)) for n in ast.walk(statement))
        if works or not isinstance(statement, ast.Assign) or statement.lineno != statement.end_lineno:
            raise NeedsPerson("grids", f"{name} allocates an output after work that depends on nl.program_id")
        depends |= {n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        text, base = source.of(statement), source.span(statement)[0]
        inner = [(n, _place_in_grid(names, n, rank)) for n in ast.walk(statement)]
        spans = [(*source.span(n), new) for n, new in inner if new and isinstance(n, ast.Call)]
        for begin, end, new in sorted(spans, reverse=True):
            text = text[: begin - base] + new + text[end - base :]
        source.replace_lines(statement, [])
        lines.append(text)
    return lines


def indented(text: str) -> str:
    """What stands between the marks of program loops, moved into them."""
    out, depth = [], 0
    skip = 0
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if bare.startswith(_FIRST):
            depth = skip = int(bare.rpartition(">")[2])
            level = 0
            continue
        if bare == _END:
            depth = 0
            continue
        if skip:
            out.append("  " * 2 * level + line)
            level += 1
            skip -= 1
        elif depth and bare:
            out.append("    " * depth + line)
        else:
            out.append(line)
    return "".join(out)


def into_helpers(text: str, watched: Watched) -> str:
    """The program's place in the grid, handed to functions that ask for it and that a kernel with a grid calls."""
    tree = ast.parse(text)
    names = Calls(tree)
    rank = max((len(launch) for launch in watched.grids.values()), default=0)
    handed = [*(f"program_{k}" for k in range(rank)), "grid"]
    asking = {
        node.name: node
        for node in functions_of(tree.body)
        if not watched.grids.get(node.name)
        and any(
            _place_in_grid(names, n, rank) or isinstance(n, ast.Name) and n.id in handed[:-1] for n in ast.walk(node)
        )
    }
    if not rank or not asking:
        return text
    source = Source(text)
    for function in asking.values():
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _place_in_grid(names, node, rank):
                source.replace(node, _place_in_grid(names, node, rank))
        given = function.args
        if given.vararg or given.kwarg or given.kwonlyargs or not given.args:
            raise NeedsPerson("grids", f"{function.name} asks for its program and takes * arguments, or none")
        last = given.defaults[-1] if given.defaults else given.args[-1]
        source.insert(source.span(last)[1], f", *, {', '.join(handed)}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in asking:
            places = [source.span(each)[1] for each in (*node.args, *(k.value for k in node.keywords))]
            source.insert(max(places), "".join(f", {name}={name}" for name in handed))
    return source.result()
