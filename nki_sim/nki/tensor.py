"""`nki.tensor`: the tensor type."""

from nki_sim.tensor import DynamicSlice, NkiTensor

__all__ = ["DynamicSlice", "NkiTensor"]
