"""What a command line says of a whole-model benchmark, understood: names of harnesses, kernels and their places.

Apart from the rest, so that reading the settings loads nothing of SSH.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from infra.model_benchmark.placing import Place

HARNESSES = ("nki-moe", "command", "nxdi", "vllm")
"""As `harnesses.py` has them, which a test holds."""

WINNER = ""
"""In a kernel's place: the best kernel of the run that the benchmark belongs to."""

_PUT = re.compile(r"(?:(?P<kernel>[^=]+)=)?(?P<file>[^=:]+):(?P<function>[A-Za-z_]\w*)")


def places_of(put: Sequence[str]) -> tuple[tuple[str, Place], ...]:
    """Of `KERNEL=FILE:FUNCTION`, or `FILE:FUNCTION` for the winner of a run. Raises ValueError, one line."""
    found = []
    for word in put:
        said = _PUT.fullmatch(word)
        if said is None:
            raise ValueError(f"{word!r}: write KERNEL=FILE:FUNCTION, as mine.py=layers/norm.py:rmsnorm_kernel")
        file = PurePosixPath(said["file"])
        if file.is_absolute() or ".." in file.parts or file.suffix != ".py":
            raise ValueError(f"{word!r}: {said['file']!r} is no Python file below the checkout")
        found.append((said["kernel"] or WINNER, Place(str(file), said["function"])))
    places = [place for _, place in found]
    twice = [place for number, place in enumerate(places) if place in places[:number]]
    if twice:
        raise ValueError(f"two kernels for {twice[0]}")
    return tuple(found)
