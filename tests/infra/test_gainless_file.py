"""What a catalogue run keeps of sites with nothing to gain, for when it is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelopt_core.catalogue.rewrites import SiteName
from infra.prediction.gainless_file import FILE, BadGainlessFile, GainlessFile

A, B = SiteName("drop-copy", "a#1"), SiteName("retile", "TILE=64")


def test_what_was_added_is_known_to_who_opens_the_folder_next(tmp_path: Path) -> None:
    kept = GainlessFile(tmp_path)
    assert kept.of("k") == frozenset()
    kept.add("k", [A])
    kept.add("k", [B, A])
    kept.add("other", [])
    again = GainlessFile(tmp_path)
    assert again.of("k") == {A, B} and again.of("other") == frozenset()
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("text", ["{", "[1]", '{"k": 1}', '{"k": [["a"]]}', "null"])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(BadGainlessFile, match="move it away"):
        GainlessFile(tmp_path)
