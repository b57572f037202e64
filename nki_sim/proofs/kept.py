"""A program's behaviour as plain arrays, for whoever keeps them on disk, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from nki_sim.proofs.algebra import Arguments
from nki_sim.proofs.equivalence import Behaviour


def to_arrays(behaviour: Behaviour) -> tuple[np.ndarray, ...]:
    """What was asked of which function, as JSON in bytes; then the outputs; then each set of arguments, in bits."""
    asked = [(name, found.line) for name, found in behaviour.arguments.items()]
    head = json.dumps([len(behaviour.outputs), asked]).encode()
    sets = (np.packbits(found.seen) for found in behaviour.arguments.values())
    return np.frombuffer(head, np.uint8), *behaviour.outputs, *sets


def from_arrays(arrays: Sequence[np.ndarray]) -> Behaviour:
    count, asked = json.loads(arrays[0].tobytes())
    sets = (np.unpackbits(each).view(np.bool_) for each in arrays[1 + count :])
    arguments = {name: Arguments(seen, line) for (name, line), seen in zip(asked, sets)}
    return Behaviour(tuple(arrays[1 : 1 + count]), arguments)
