"""`nki_cpu_simulator.nki.builtin`: what nki-library's test mode puts in place of the compiler's `builtin` module."""

from nki_sim.nki import isa, language

__all__ = ["isa", "language"]
