"""What the text of a kernel may say: a closed list of statements, names and attributes.

Triton reads this text and evaluates parts of it as Python while it compiles (defaults, decorators, whatever is known at
compile time). So nothing is left to it that could reach outside a kernel: modules by their list (`modules.py`), globals
that are numbers, texts and types, attributes by name, a few builtins.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from nki_optimizer_triton.program.launch_program import (
    ConstexprValue,
    DescriptorValue,
    DtypeValue,
    ModuleValue,
    TensorValue,
    Value,
)
from nki_optimizer_triton.program.modules import is_place, why_not
from nki_optimizer_triton.source.functions import JitFunction, SourceRefused

_STATEMENTS = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.While, ast.If, ast.Return, ast.Expr, ast.Pass, ast.Assert,
    ast.Break, ast.Continue,
)  # fmt: skip
_EXPRESSIONS = (
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.Constant, ast.Attribute, ast.Subscript,
    ast.Name, ast.Tuple, ast.List, ast.Slice, ast.Starred, ast.JoinedStr, ast.FormattedValue, ast.NamedExpr,
    ast.ListComp,
)  # fmt: skip
_SAID = {
    ast.Import: "an import", ast.ImportFrom: "an import", ast.FunctionDef: "a function inside a kernel",
    ast.AsyncFunctionDef: "a function inside a kernel", ast.Lambda: "a lambda", ast.ClassDef: "a class",
    ast.Global: "global", ast.Nonlocal: "nonlocal", ast.Try: "try", ast.With: "with", ast.Raise: "raise",
    ast.Delete: "del", ast.Yield: "yield", ast.YieldFrom: "yield", ast.Await: "await",
    ast.GeneratorExp: "a generator", ast.Dict: "a dictionary", ast.Set: "a set", ast.DictComp: "a dictionary",
    ast.SetComp: "a set",
}  # fmt: skip

_BUILTINS = "range min max int float bool len isinstance abs list tuple str True False None"
BUILTINS = frozenset(_BUILTINS.split())
_REFUSED_BUILTINS = {"print": "printing", "open": "reading files", "exec": "running text", "eval": "running text"}

_OF_TENSORS = (
    "abs advance all any argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_load atomic_max "
    "atomic_min atomic_or atomic_store atomic_xchg atomic_xor broadcast_to cast cdiv ceil cos cumprod cumsum dtype "
    "element_ty erf exp exp2 expand_dims flip floor gather histogram item log log2 logical_and logical_or max min "
    "numel permute ravel reduce reduce_or reshape rsqrt scalar shape sigmoid sin softmax sort split sqrt sqrt_rn "
    "store sum swizzle2d T to trans type umulhi value view xor_sum"
)
_OF_TYPES = (
    "primitive_bitwidth itemsize is_fp8 is_fp8e4nv is_fp8e5 is_fp16 is_bf16 is_fp32 is_fp64 is_floating "
    "is_standard_floating is_int is_int1 is_int8 is_int16 is_int32 is_int64 is_uint8 is_uint16 is_uint32 is_uint64 "
    "is_int_signed is_int_unsigned is_ptr is_block is_bool int_bitwidth fp_mantissa_width exponent_bias name nbytes "
    "get_block_shapes"
)
_OF_DESCRIPTORS = "load scatter block_shape block_type strides base offsets"
_OF_ENUMERATIONS = "ALL NONE"
VALUE_ATTRIBUTES = frozenset(f"{_OF_TENSORS} {_OF_TYPES} {_OF_DESCRIPTORS} {_OF_ENUMERATIONS}".split())


def check(function: JitFunction, names: Mapping[str, Value]) -> None:
    """`names`: what its globals stand for. Raises SourceRefused."""
    _Checker(function, names).check()


class _Checker:
    def __init__(self, function: JitFunction, names: Mapping[str, Value]) -> None:
        self._function = function
        self._globals = names
        self._free = set(function.names)

    def check(self) -> None:
        node = self._function.node
        if node.args.kwarg is not None:
            raise SourceRefused(f"**{node.args.kwarg.arg} of a kernel", node.lineno)
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self._default(default)
        for statement in node.body:
            self._statement(statement)
        for name in self._function.names:
            self._global(name, node.lineno)

    def _global(self, name: str, line: int) -> None:
        if name in self._globals:
            value = self._globals[name]
            if isinstance(value, (TensorValue, DescriptorValue)):
                raise SourceRefused(f"the kernel names the tensor {name}: hand it over as an argument", line)
            return
        if name in BUILTINS:
            return
        if name in _REFUSED_BUILTINS:
            raise SourceRefused(f"{name}() in a kernel is refused: {_REFUSED_BUILTINS[name]}", self._line_of(name))
        raise SourceRefused(
            f"the kernel {self._function.name} names {name}, which is neither a number, text or type of its file, nor "
            "another @triton.jit function, nor something of triton.language",
            self._line_of(name),
        )

    def _line_of(self, name: str) -> int:
        return next(
            (n.lineno for n in ast.walk(self._function.node) if isinstance(n, ast.Name) and n.id == name),
            self._function.node.lineno,
        )

    def _default(self, node: ast.expr) -> None:
        """Evaluated when the module is read in: literals, names of numbers and types, and `tl.constexpr` of these."""
        if isinstance(node, ast.Constant):
            return
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._default(node.operand)
        if isinstance(node, (ast.Tuple, ast.List)):
            for each in node.elts:
                self._default(each)
            return None
        if isinstance(node, ast.Name):
            value = self._globals.get(node.id)
            if isinstance(value, (int, float, bool, str, DtypeValue, ConstexprValue)):
                return None
        if isinstance(node, ast.Attribute) and self._dotted(node) is not None:
            return self._attribute(node)
        if isinstance(node, ast.Call) and not node.keywords and len(node.args) == 1:
            if self._dotted(node.func) in ("triton.language.constexpr", "triton.language.core.constexpr"):
                return self._default(node.args[0])
        raise SourceRefused(
            f"the default {ast.unparse(node)[:60]}: a literal, or a type of triton.language", node.lineno
        )

    def _statement(self, node: ast.AST) -> None:
        line = getattr(node, "lineno", None)
        if not isinstance(node, (*_STATEMENTS, *_EXPRESSIONS)):
            if isinstance(
                node,
                (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.keyword, ast.comprehension),
            ):
                if isinstance(node, ast.keyword) and node.arg is None:
                    raise SourceRefused("** in a call inside a kernel", line)
                if isinstance(node, ast.comprehension) and node.is_async:
                    raise SourceRefused("async in a kernel", line)
            else:
                what = next((said for kind, said in _SAID.items() if isinstance(node, kind)), type(node).__name__)
                raise SourceRefused(f"{what} in a kernel is refused", line)
        if isinstance(node, ast.Attribute):
            self._attribute(node)
        if isinstance(node, ast.Call) and not isinstance(node.func, (ast.Name, ast.Attribute)):
            raise SourceRefused("a call of something that is no name", line)
        if isinstance(node, ast.Constant) and isinstance(node.value, (bytes, complex)):
            raise SourceRefused(f"the constant {node.value!r:.40}", line)
        if isinstance(node, ast.AnnAssign):
            children: list[ast.AST] = [node.target, *([node.value] if node.value is not None else [])]
            self._annotation(node.annotation)
        else:
            children = list(ast.iter_child_nodes(node))
        for child in children:
            self._statement(child)

    def _annotation(self, node: ast.expr) -> None:
        """Of a local: Triton evaluates it."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return
        if self._dotted(node) is None and not (isinstance(node, ast.Name) and node.id in BUILTINS):
            raise SourceRefused(f"the annotation {ast.unparse(node)[:60]}", node.lineno)
        if isinstance(node, ast.Attribute):
            self._attribute(node)

    def _attribute(self, node: ast.Attribute) -> None:
        base = self._dotted(node.value)
        if base is not None and is_place(base):
            why = why_not(base, node.attr)
            if why is not None:
                raise SourceRefused(why, node.lineno)
            return
        if node.attr not in VALUE_ATTRIBUTES:
            raise SourceRefused(f".{node.attr} is no attribute that a kernel may use", node.lineno)

    def _dotted(self, node: ast.expr) -> str | None:
        """`triton.language.exp` of an expression that names it; None for one that names no module, or nothing in
        one."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._free:
            return None
        value = self._globals.get(node.id)
        if isinstance(value, ModuleValue):
            return ".".join([value.dotted, *parts])
        return None
