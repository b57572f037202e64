"""The package name under which nki-library's own test mode imports a CPU simulator of NKI."""

from nki_sim import nki

__all__ = ["nki"]
