"""What a kernel declares tunable, as text: read, changed, and refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelopt_core.languages.tunables import declared_tunables, with_value
from infra.tasks.seed_index import every_seed

TWO = '''"""é"""
BLOCK = 64  # of a row
WARPS = 4
TUNABLES = {"BLOCK": (32, 64, 128), "WARPS": [1, 2, 4]}
'''


def test_what_is_declared_is_read_and_changed_and_nothing_else() -> None:
    declared = declared_tunables(TWO)
    block, warps = declared.tunables
    assert (block.name, block.value, block.legal, block.line) == ("BLOCK", 64, (32, 64, 128), 2)
    assert declared.unusable == ()
    assert with_value(TWO, block, 128) == TWO.replace("BLOCK = 64", "BLOCK = 128")
    assert with_value(TWO, warps, 1) == TWO.replace("WARPS = 4", "WARPS = 1")


@given(st.integers(0, 1 << 40), st.text(alphabet="é語 x#", max_size=6))
def test_a_change_reads_back_as_it_was_written(value: int, comment: str) -> None:
    source = f"A = 7  # {comment}\nTUNABLES = {{'A': (7, {value})}}\n"
    (tunable,) = declared_tunables(source).tunables
    (again,) = declared_tunables(with_value(source, tunable, value)).tunables
    assert (again.value, again.legal) == (value, tunable.legal)


@pytest.mark.parametrize(("source", "why"), [
    ("A = 1\nTUNABLES = {'A': (1, 2)}\nTUNABLES = {}\n", "one dictionary literal"),
    ("TUNABLES = dict(A=(1, 2))\n", "one dictionary literal"),
    ("A = 1\nTUNABLES = {A: (1, 2)}\n", "must map names"),
    ("A = 1\nTUNABLES = {'A': range(3)}\n", "no literal tuple of integers"),
    ("TUNABLES = {'A': (1, 2)}\n", "A is not assigned once"),
    ("A = 1\nA = 2\nTUNABLES = {'A': (1, 2)}\n", "A is not assigned once"),
    ("A = 1\ndef f():\n    A = 2\nTUNABLES = {'A': (1, 2)}\n", "A is not assigned once"),
    ("A = 1 + 1\nTUNABLES = {'A': (1, 2)}\n", "A is not a literal integer"),
    ("A = True\nTUNABLES = {'A': (1, 2)}\n", "A is not a literal integer"),
    ("A = 1\nTUNABLES = {'A': (True, 2)}\n", "no literal tuple of integers"),
])  # fmt: skip
def test_what_cannot_be_changed_says_why(source: str, why: str) -> None:
    declared = declared_tunables(source)
    assert not declared.tunables and why in declared.unusable[0]


def test_a_file_that_declares_nothing_or_is_none_has_none() -> None:
    assert declared_tunables("A = 1\n") == declared_tunables("def f(:\n") == declared_tunables("")


@pytest.mark.parametrize("seed", every_seed(), ids=lambda seed: seed.name)
def test_of_every_shipped_kernel_all_declared_values_can_be_set(seed) -> None:
    declared = declared_tunables(seed.kernel_source)
    assert declared.unusable == ()
    for tunable in declared.tunables:
        assert tunable.value in tunable.legal
