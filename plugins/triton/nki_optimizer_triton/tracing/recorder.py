"""What a traced function does: recorded while it runs, refused by name where it is more than it may do.

One recording is open at a time, and none while a file is read in: what is allocated then would be kept between calls.
"""

from __future__ import annotations

import sys
from typing import Any

from nki_optimizer_triton.program.launch_program import Buffer, Fill, Launch, TensorValue
from nki_optimizer_triton.program.writing import MOST_BUFFERS, MOST_STEPS


class Refused(Exception):
    """Something that a traced function may not do: what, and what to do instead, in one line."""


class Storage:
    """Memory of one tensor, without contents."""

    def __init__(self, recording: Recording, number: int, nbytes: int) -> None:
        self.recording = recording
        self.number = number
        self.nbytes = nbytes


class Recording:
    """Of one call."""

    def __init__(self, source: str) -> None:
        """`source`: the path of the candidate's file, for lines."""
        self.source = source
        self.buffers: list[Buffer] = []
        self.steps: list[Fill | Launch] = []

    def allocate(self, dtype: str, elements: int, *, given: bool = False) -> Storage:
        from nki_optimizer_triton.program.elements import BY_NAME

        if len(self.buffers) >= MOST_BUFFERS:
            raise Refused(f"more than {MOST_BUFFERS:,} tensors are allocated in one call")
        line = 0 if given else self.line()
        self.buffers.append(Buffer(dtype, elements, line))
        return Storage(self, len(self.buffers) - 1, elements * BY_NAME[dtype].bytes)

    def fill(self, tensor: TensorValue, value: int | float | bool) -> None:
        self._step(Fill(tensor, value, self.line()))

    def launch(self, launch: Launch) -> None:
        self._step(launch)

    def _step(self, step: Fill | Launch) -> None:
        if len(self.steps) >= MOST_STEPS:
            raise Refused(
                f"more than {MOST_STEPS:,} launches and fills in one call: launch one kernel over a larger grid"
            )
        self.steps.append(step)

    def line(self) -> int:
        """Of the candidate's file, where it is at."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.source:
            frame = frame.f_back
        return 0 if frame is None else int(frame.f_lineno)


_open: list[Recording] = []


def begin(source: str) -> Recording:
    _open[:] = [Recording(source)]
    return _open[0]


def end() -> None:
    _open.clear()


def current(what: str) -> Recording:
    """Raises Refused outside a call."""
    if not _open:
        raise Refused(
            f"{what} while the file is read in: whatever it keeps between calls is refused; do it inside the function"
        )
    return _open[0]
