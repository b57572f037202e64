"""Which modules, and what in them, a kernel may name: a closed list of places, and a few names in them that it may not.

Beside Triton's own language that is NVIDIA's libdevice, and Python's `math`, of which Triton reads constants and
functions at compile time.
"""

from __future__ import annotations

import re

LANGUAGE = "triton.language"
LIBDEVICE = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice", "triton.language.math")
_PLACES = (
    "triton", LANGUAGE, "triton.language.extra", "triton.language.extra.cuda", "triton.language.core",
    "triton.language.standard", *LIBDEVICE, "math",
)  # fmt: skip
_OF_CORE = {"constexpr", "tensor", "dtype", "pointer_type", "block_type", "tuple", "const", "tensor_descriptor"}
_OF_TRITON = {"cdiv", "next_power_of_2", "language", "jit"}

REFUSED = {
    "inline_asm_elementwise": "inline assembly",
    "device_print": "printing",
    "static_print": "printing",
    "extern_elementwise": "functions outside libdevice",
    "dispatch": "functions outside libdevice",
    "globaltimer": "a clock",
    "clock": "a clock",
    "clock64": "a clock",
    "smid": "the number of the multiprocessor",
    "num_warps": "launch options",
    "num_threads": "launch options",
    "nanosleep": "a clock",
    "atomic_poll": "waiting by a clock",
    "async_task": "warp specialization by hand",
}
"""Names of Triton's language that no kernel here may use, with what they are."""

_OF_MATH = "pi e tau inf nan ceil floor sqrt log log2 log10 exp pow fabs isnan isinf gcd lcm prod comb factorial trunc"
MATH = frozenset(_OF_MATH.split())

_MACHINERY = (
    "builtin ir semantic core standard random target_info os sys inspect warnings functools importlib types typing "
    "knobs wraps partial"
)
_HIDDEN = frozenset(_MACHINERY.split())
"""Of a module of Triton's: its own machinery, which it happens to hold."""


def is_place(dotted: str) -> bool:
    """Whether this is a module, whose names are on a list, and not something in one."""
    return dotted in _PLACES


def is_known_module(dotted: str) -> bool:
    """Whether kernels may name this: a module of the list, or something public in it."""
    if dotted in _PLACES:
        return True
    place, _, name = dotted.rpartition(".")
    return place in _PLACES and why_not(place, name) is None


def why_not(place: str, name: str) -> str | None:
    """Why `place.name` may not be named in a kernel; None where it may."""
    dotted = f"{place}.{name}"
    if dotted in _PLACES:
        return None
    if name in REFUSED:
        return f"{spelled(dotted)} is refused: {REFUSED[name]}"
    if name.startswith("_") or not re.fullmatch(r"\w{1,60}", name):
        return f"{spelled(dotted)} is private"
    allowed = (
        name in MATH if place == "math"
        else name in _OF_TRITON if place == "triton"
        else name in _OF_CORE if place.endswith((".core", ".standard"))
        else False if place.endswith((".extra", ".extra.cuda"))
        else name not in _HIDDEN
    )  # fmt: skip
    return None if allowed else f"{spelled(dotted)} is nothing that a kernel may name"


def spelled(dotted: str) -> str:
    """As kernels spell it: `tl.load`."""
    return "tl" + dotted[len(LANGUAGE) :] if dotted.startswith(LANGUAGE) else dotted
