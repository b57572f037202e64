"""`nki.dtype`: element types under NumPy-like names."""

from nki_sim.dtypes import ALL

TYPES = {"bool_" if name == "bool" else name: dtype for name, dtype in ALL.items()}
"""By the names that a module has them under, where `bool` is Python's own."""

globals().update(TYPES)
__all__ = [str(name) for name in TYPES]
