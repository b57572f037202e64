"""`nki.tensor`: the tensor type."""

from nki_sim.tracing.tensor import DynamicSlice, NkiTensor

__all__ = ["DynamicSlice", "NkiTensor"]
