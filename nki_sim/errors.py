"""Everything the simulator raises, and what to do about it."""

from __future__ import annotations


class NkiError(Exception):
    """Base of all errors about a kernel. `line` is the kernel's source line when it is known."""

    line: int | None = None
    file: str | None = None


class NkiValidationError(NkiError):
    """A rule of the hardware or the language is broken: the message names rule, shape and fix."""


class DeviceValueMisused(NkiValidationError, TypeError):
    """Python wants a number that only the device knows: use it as an offset or a loop bound instead."""


class WrongType(NkiValidationError, TypeError):
    """An argument of tiles or blocks is of another kind: pass what the message names."""


class WrongValue(NkiValidationError, ValueError):
    """An argument of tiles or blocks is of the right kind, and cannot be so: pass what the message names."""


class AllocationRefused(NkiValidationError, AssertionError):
    """The memory of a grid cannot be had: use smaller tiles, or another buffer."""


class OutOfBounds(NkiValidationError, IndexError):
    """An access leaves its tensor: shrink the tail, e.g. `min(tile, size - start)`."""


class CapacityExceeded(NkiValidationError):
    """SBUF or PSUM is too small for what is live at once (NCC_EGCA111): use smaller or fewer tiles."""


class TooLong(NkiError):
    """A program runs longer than anybody waits, perhaps without end: give its device loops fewer passes."""


class NotSupported(NkiError, AttributeError):
    """The API exists, but not here: on another generation, or not simulated. Never a silent no-op."""


class ProgramFormatError(NkiError):
    """A program file is damaged, or was made by another version of the simulator."""
