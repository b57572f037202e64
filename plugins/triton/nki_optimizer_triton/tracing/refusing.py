"""Names of torch and triton that stand for what a candidate may not do: they can be named, and refuse to be used."""

from __future__ import annotations

import sys
import types
from typing import Any, NoReturn

from nki_optimizer_triton.tracing.recorder import Refused

COMPUTES = (
    "computes outside Triton kernels: what is optimized is kernels; write it in a @triton.jit kernel, or keep it "
    "outside the function"
)
DEVICE_CODE = "is device code: it works inside @triton.jit functions only"

_QUIET = {
    "__wrapped__",
    "__name__",
    "__qualname__",
    "__module__",
    "__doc__",
    "__annotations__",
    "__dict__",
    "__class__",
}


class Word:
    """A dotted name, e.g. `torch.softmax`. Reading a name in it is allowed, every use raises Refused."""

    def __init__(self, dotted: str, why: str = COMPUTES) -> None:
        object.__setattr__(self, "_dotted", dotted)
        object.__setattr__(self, "_why", why)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise Refused(f"{self._dotted} {self._why}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Word(f"{self._dotted}.{name}", self._why)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Refused(f"assigns to {self._dotted}.{name}, which is not the candidate's")

    def __repr__(self) -> str:
        return f"<{self._dotted}>"

    def __or__(self, other: Any) -> Any:
        """In an annotation, such as `torch.Generator | None`."""
        return self

    __ror__ = __or__

    def __hash__(self) -> int:
        return hash(self._dotted)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Word) and other._dotted == self._dotted

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    __call__ = __getitem__ = __setitem__ = __enter__ = __exit__ = __iter__ = __bool__ = __len__ = _refuse
    __add__ = __radd__ = __sub__ = __mul__ = __truediv__ = __float__ = __int__ = __index__ = __mro_entries__ = _refuse
    __lt__ = __gt__ = __le__ = __ge__ = __neg__ = __contains__ = _refuse


class StandIn(types.ModuleType):
    """A module that has what it is given; all else in it is a Word, and nothing can be assigned to it."""

    def __init__(self, name: str, contents: dict[str, Any], why: str = COMPUTES) -> None:
        super().__init__(name)
        self.__dict__.update(contents)
        self.__dict__["__path__"] = []
        self.__dict__["_why"] = why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Word(f"{self.__name__}.{name}", self.__dict__["_why"])

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType) and sys.modules.get(f"{self.__name__}.{name}") is value:
            self.__dict__[name] = value  # Python's own import does that
            return
        raise Refused(f"assigns to {self.__name__}.{name}, which is not the candidate's")

    def __delattr__(self, name: str) -> None:
        raise Refused(f"deletes {self.__name__}.{name}, which is not the candidate's")


class Sealed(type):
    """Of a class whose members nobody can put others in the place of."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if cls.__dict__.get("_sealed"):
            raise Refused(f"assigns to {cls.__name__}.{name}, which is not the candidate's")
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        raise Refused(f"deletes {cls.__name__}.{name}, which is not the candidate's")
