"""What `import triton.language as tl` means while a candidate is traced: types, and names that only kernels can use."""

from __future__ import annotations

from typing import Any

from nki_optimizer_triton.program.elements import BY_LANGUAGE
from nki_optimizer_triton.tracing.refusing import DEVICE_CODE, StandIn, Word


class constexpr:
    """`tl.constexpr`: an annotation, and a value known when a kernel is compiled."""

    def __init__(self, value: Any) -> None:
        self.value: Any = value.value if isinstance(value, constexpr) else value

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, constexpr) else other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __index__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, constexpr) else value


def _operator(name: str) -> Any:
    def apply(self: constexpr, *others: Any) -> constexpr:
        return constexpr(getattr(self.value, name)(*map(_plain, others)))

    return apply


_OPERATORS = "add sub mul truediv floordiv mod pow lt le gt ge neg radd rsub rmul rfloordiv rtruediv and or xor"
for _name in _OPERATORS.split():
    setattr(constexpr, f"__{_name}__", _operator(f"__{_name}__"))


class LanguageDtype:
    """`tl.float32` and its like; one object each."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.primitive_bitwidth = 1 if name == "int1" else 8 * BY_LANGUAGE[name].bytes
        self.itemsize = BY_LANGUAGE[name].bytes

    def is_floating(self) -> bool:
        return BY_LANGUAGE[self.name].kind == "float"

    def is_fp8(self) -> bool:
        return self.name.startswith("float8")

    def __repr__(self) -> str:
        return f"triton.language.{self.name}"


DTYPES = {name: LanguageDtype(name) for name in BY_LANGUAGE}


class Language(StandIn):
    """`triton.language`, or a module in it: a name that it does not have is one that only kernels can use."""

    def __init__(self, name: str) -> None:
        contents = {**DTYPES, "constexpr": constexpr, "dtype": LanguageDtype} if name == "triton.language" else {}
        super().__init__(name, contents, DEVICE_CODE)


PLACES = (
    "triton.language", "triton.language.core", "triton.language.math", "triton.language.standard",
    "triton.language.random", "triton.language.extra", "triton.language.extra.libdevice",
    "triton.language.extra.cuda", "triton.language.extra.cuda.libdevice",
)  # fmt: skip


def modules() -> dict[str, StandIn]:
    """By the names under which a candidate may import them."""
    found: dict[str, StandIn] = {name: Language(name) for name in PLACES}
    found["triton.language.core"].__dict__.update({**DTYPES, "constexpr": constexpr, "dtype": LanguageDtype})
    for name in PLACES[1:]:
        above, _, last = name.rpartition(".")
        found[above].__dict__[last] = found[name]
    return found


def dotted(value: Any) -> str | None:
    """`triton.language.exp` for what stands for it; None for anything else."""
    if isinstance(value, Word):
        name: str = object.__getattribute__(value, "_dotted")
        return name if name.startswith("triton.language.") else None
    if isinstance(value, StandIn) and (value.__name__ == "triton" or value.__name__.startswith("triton.language")):
        return value.__name__
    if value is constexpr:
        return "triton.language.constexpr"
    return None
