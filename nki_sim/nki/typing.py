"""`nki.typing`: annotations for kernel signatures. They are not checked."""

from __future__ import annotations

from typing import Any

from nki_sim.tracing.tensor import NkiTensor


class _TensorAnnotation:
    """`nt.tensor` and `nt.tensor[dtype, shape]`."""

    def __getitem__(self, _: Any) -> _TensorAnnotation:
        return self

    def __call__(self, *_: Any, **__: Any) -> _TensorAnnotation:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return "nki.typing.tensor"


tensor = _TensorAnnotation()
mutable_tensor = _TensorAnnotation()
scalar = _TensorAnnotation()

__all__ = ["NkiTensor", "mutable_tensor", "scalar", "tensor"]
