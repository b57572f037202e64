"""What a reference module says about its task, read from its text: nothing of it is executed here.

Shape constants are `NAME = positive integer` lines. Seven names may declare more (docs/tasks.md):

    PRESETS = {"small": {"M": 256}}                      # cheaper shapes, each verified before the file's own
    TOLERANCE = 1e-4                                     # relative L2
    PRECISION = "bf16-allowed"
    WORK = {"matmul_flops": 2 * M * K * N, "vector_ops": 0, "hbm_bytes": 4 * (M * K + K * N + M * N)}
    WITHIN = {"absolute": 1e-2, "relative": 1e-2}        # a suite's rule for elements, beside ours
    DISTRIBUTIONS_LEFT_OUT = {"zero-rows": "0/0: the problem has no epsilon"}
    DOMAINS = {"lengths": (1, N), "table": "fixed"}      # which values these parameters of forward may take
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelopt_core.task import DEFAULT_TOLERANCE, Domain, PrecisionPolicy, ShapePreset, Within, Work

REQUIRED_FUNCTIONS = ("get_inputs", "forward")
KNOWN_FUNCTIONS = (*REQUIRED_FUNCTIONS, "transform_to_nki_inputs", "transform_nki_outputs")
"""The last two where the kernel wants its arguments in another form, or gives its outputs in one."""
DECLARATIONS = ("PRESETS", "TOLERANCE", "PRECISION", "WORK", "WITHIN", "DISTRIBUTIONS_LEFT_OUT", "DOMAINS")
FULL = "full"
"""The preset made of the file's own constants, which is the one that is timed."""

_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_LARGEST = 1 << 62
_DRAWN = "np.random.normal(size=(128, 512)).astype(np.float32)"


class TaskInvalid(Exception):
    """A reference or the seed index is there and cannot be used; the message says what to change."""


@dataclass(frozen=True)
class Declared:
    """All that a reference's text says about its task."""

    constants: tuple[tuple[str, int], ...]
    presets: tuple[ShapePreset, ...]
    """Gates first; the last is the file's own constants."""
    tolerance: float
    precision: PrecisionPolicy
    left_out: tuple[tuple[str, str], ...]
    within: Within | None = None


def read_reference(source: str, where: str) -> Declared:
    """Raises TaskInvalid, with the line where one is to blame."""
    tree = _parsed(source, where)
    constants = _constants(tree)
    try:
        said = _declarations(tree)
        gates = _literal(said, "PRESETS", {})
        presets = tuple(
            _preset(str(name), constants | _own(str(name), values, constants), said) for name, values in gates.items()
        )
        return Declared(
            tuple(constants.items()),
            (*presets, _preset(FULL, constants, said)),
            float(_literal(said, "TOLERANCE", DEFAULT_TOLERANCE)),
            PrecisionPolicy(_literal(said, "PRECISION", PrecisionPolicy.FLOAT32_FAITHFUL)),
            tuple((str(name), str(why)) for name, why in _literal(said, "DISTRIBUTIONS_LEFT_OUT", {}).items()),
            _within(_literal(said, "WITHIN", {})),
        )
    except _Unreadable as error:
        raise TaskInvalid(f"{where}{error.line}: {error} (docs/tasks.md)") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise TaskInvalid(f"{where}: {error} (docs/tasks.md)") from error


def preset_at(source: str, where: str, name: str, values: Mapping[str, int]) -> ShapePreset:
    """The reference at other values of its constants, with the work that it declares. Raises TaskInvalid."""
    tree = _parsed(source, where)
    try:
        return _preset(name, values, _declarations(tree))
    except _Unreadable as error:
        raise TaskInvalid(f"{where}: {error} (docs/tasks.md)") from None
    except ValueError as error:
        raise TaskInvalid(f"{where}: {error}") from error


class _Unreadable(Exception):
    def __init__(self, node: ast.stmt | None, message: str) -> None:
        super().__init__(message)
        self.line = f":{node.lineno}" if node is not None else ""


def _parsed(source: str, where: str) -> ast.Module:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        said = getattr(error, "msg", None) or error
        raise TaskInvalid(f"{where}{f':{line}' if line else ''}: not Python: {said}") from error
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    missing = [name for name in REQUIRED_FUNCTIONS if name not in functions]
    if missing:
        raise TaskInvalid(
            f"{where}: a reference must define {' and '.join(missing)}: {_to_add(missing, functions)} (docs/tasks.md)"
        )
    return tree


def _to_add(missing: Sequence[str], functions: Sequence[str]) -> str:
    """What to write, for who has a plain function of arrays: the commonest of unfinished references."""
    others = [name for name in functions if name not in KNOWN_FUNCTIONS]
    lines = []
    if "forward" in missing:
        computes = "def forward(x): ..., what the kernel computes"
        lines.append(f"rename {others[0]} to forward" if len(others) == 1 else computes)
    if "get_inputs" in missing:
        lines.append(f"def get_inputs(): return [{_DRAWN}], one for each argument")
    if "get_inputs" in missing and len(others) <= 1:
        lines.append("or leave it a plain function, and name the shapes of its arguments: --shape 128x512:float32")
    return "; ".join(lines)


# --- declarations ---------------------------------------------------------------------------------


def _declarations(tree: ast.Module) -> dict[str, ast.stmt]:
    """The statements that declare something, by its name. Raises _Unreadable for a domain of no input."""
    said = {name: node for node in tree.body for name in _bound(node) if name in DECLARATIONS}
    forward = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "forward")
    parameters = [each.arg for each in (*forward.args.posonlyargs, *forward.args.args)]
    for name, _ in _entries(said["DOMAINS"], "DOMAINS") if "DOMAINS" in said else ():
        if name not in parameters:
            raise _Unreadable(
                said["DOMAINS"], f"DOMAINS names {name}, which is no parameter of forward ({', '.join(parameters)})"
            )
    return said


def _preset(name: str, values: Mapping[str, int], said: Mapping[str, ast.stmt]) -> ShapePreset:
    return ShapePreset(
        name, tuple(values.items()), _work(said.get("WORK"), values), _domains(said.get("DOMAINS"), values)
    )


def _domains(node: ast.stmt | None, values: Mapping[str, int]) -> tuple[Domain, ...]:
    """The declared ones, their ends computed at these values of the shape constants."""
    found = []
    for name, value in _entries(node, "DOMAINS") if node is not None else ():
        if isinstance(value, ast.Constant) and value.value == "fixed":
            found.append(Domain(name))
            continue
        assert node is not None
        if not isinstance(value, ast.Tuple) or len(value.elts) != 2:
            raise _Unreadable(node, f'DOMAINS: {name} needs two ends, as (1, N), or "fixed"')
        low, high = (_number(end, values, node) for end in value.elts)
        found.append(Domain(name, low, high))
    return tuple(found)


def _number(node: ast.expr, values: Mapping[str, int], statement: ast.stmt) -> float:
    """A number, or a whole one as `_count`; either may have a minus sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand, values, statement)
    if isinstance(node, ast.Constant) and type(node.value) is float:
        return node.value
    return _count(node, values, statement, "DOMAINS")


def _own(name: str, values: Mapping[str, Any], constants: Mapping[str, int]) -> dict[str, int]:
    """The constants a gate changes."""
    if name == FULL:
        raise ValueError(f"PRESETS: {FULL} is the name of the file's own constants; call it something else")
    for key, value in values.items():
        if key not in constants:
            raise ValueError(
                f"preset {name} sets {key}, which the file does not define as a module-level integer "
                f"(it has: {', '.join(constants) or 'none'})"
            )
        if type(value) is not int:
            raise ValueError(f"preset {name}: {key} = {value!r} is not a whole number")
    return dict(values)


def _within(given: Mapping[str, Any]) -> Within | None:
    if not given:
        return None
    if set(given) != {"absolute", "relative"} or any(type(value) not in (int, float) for value in given.values()):
        raise ValueError(f"WITHIN has {', '.join(map(str, given))}: it needs the numbers absolute and relative")
    return Within(**{str(name): float(value) for name, value in given.items()})


def _work(node: ast.stmt | None, values: Mapping[str, int]) -> Work | None:
    if node is None:
        return None
    counts = {name: _count(value, values, node, "WORK") for name, value in _entries(node, "WORK")}
    if set(counts) != {"matmul_flops", "vector_ops", "hbm_bytes"}:
        raise _Unreadable(
            node, f"WORK has {', '.join(counts) or 'nothing'}: it needs matmul_flops, vector_ops, hbm_bytes"
        )
    return Work(**counts)


def _entries(node: ast.stmt, name: str) -> list[tuple[str, ast.expr]]:
    """Of a declared dictionary."""
    given = _value(node)
    if not isinstance(given, ast.Dict) or not all(isinstance(key, ast.Constant) for key in given.keys):
        raise _Unreadable(node, f"{name} must be a dictionary that is written out")
    return [(str(key.value), value) for key, value in zip(given.keys, given.values) if isinstance(key, ast.Constant)]


def _count(node: ast.expr, values: Mapping[str, int], statement: ast.stmt, declared: str) -> int:
    """A whole number computed from shape constants with + - * //."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in values:
        return values[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = (_count(side, values, statement, declared) for side in (node.left, node.right))
        try:
            result = _ARITHMETIC[type(node.op)](left, right)
        except ZeroDivisionError:
            raise _Unreadable(statement, f"{declared}: {ast.unparse(node)} divides by zero") from None
        if abs(result) > _LARGEST:
            raise _Unreadable(statement, f"{declared}: {ast.unparse(node)} is too large a number")
        return result
    raise _Unreadable(
        statement, f"{declared}: {ast.unparse(node)!r} is not made of whole numbers and shape constants with + - * //"
    )


def _literal(said: Mapping[str, ast.stmt], name: str, default: Any) -> Any:
    node = said.get(name)
    if node is None:
        return default
    value = _value(node)
    try:
        found = ast.literal_eval(value) if value is not None else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _Unreadable(node, f"{name} must be written out: plain values, no names and no calls") from None
    if isinstance(default, dict) and not isinstance(found, dict):
        raise _Unreadable(node, f"{name} must be a plain dictionary")
    if isinstance(default, float) and (isinstance(found, bool) or not isinstance(found, (int, float))):
        raise _Unreadable(node, f"{name} must be a number, not {found!r}")
    return found


# --- names and values of top-level statements -----------------------------------------------------


def _bound(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (target.id for target in targets if isinstance(target, ast.Name))


def _value(node: ast.stmt) -> ast.expr | None:
    return node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None


def _constants(tree: ast.Module) -> dict[str, int]:
    constants: dict[str, int] = {}
    for node in tree.body:
        for target, value in _assignments(node):
            if type(value) is int and value > 0 and target not in DECLARATIONS:
                constants[target] = value
            else:
                constants.pop(target, None)
    return constants


def _assignments(node: ast.stmt) -> Iterator[tuple[str, Any]]:
    """Names a top-level statement binds, each with its literal value or None."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, _constant(node.value)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, _constant(node.value)
            elif isinstance(target, ast.Tuple) and all(isinstance(name, ast.Name) for name in target.elts):
                values: list[Any] = [None] * len(target.elts)
                if isinstance(node.value, ast.Tuple) and len(node.value.elts) == len(target.elts):
                    values = [_constant(value) for value in node.value.elts]
                for name, value in zip(target.elts, values):
                    assert isinstance(name, ast.Name)
                    yield name.id, value


def _constant(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None
