"""A NEFF is data from a hostile process: names and sizes are read, and nothing else happens."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from infra.neuron.neff import NeffTensor, NeffUnreadable, match_inputs, match_outputs, read_neff

VARIABLES = {
    "b": {"type": "input", "var_id": 7, "size": 48},
    "a": {"type": "input", "var_id": 2, "size": 96},
    "output_0": {"type": "output", "var_id": 9, "size": 96},
    "weights": {"type": "file", "var_id": 1, "size": 1 << 20, "file_name": "w.npy"},
    "spill": {"type": "tmp-buf", "var_id": 3, "size": 4096},
}


def neff(path: Path, files: dict[str, Any], *, header_bytes: int = 1024, mode: str = "w") -> Path:
    header = bytearray(1024)
    header[8:16] = header_bytes.to_bytes(8, "little")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]  # mode is a plain str here
        for name, content in files.items():
            text = content if isinstance(content, bytes) else json.dumps(content).encode()
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    path.write_bytes(bytes(header) + buffer.getvalue())
    return path


@pytest.mark.parametrize("prefix", ["", "./", "kelf-0/"])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_inputs_and_outputs_are_read_in_order_of_declaration(tmp_path: Path, prefix: str, mode: str) -> None:
    tensors = read_neff(
        neff(tmp_path / "k.neff", {"info.json": {}, f"{prefix}sg00/def.json": {"var": VARIABLES}}, mode=mode)
    )
    assert [t.name for t in tensors.inputs] == ["a", "b"]
    assert tensors.outputs == (NeffTensor("output_0", 96, 9),)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no sgNN/def.json"),
        ({"sg00/def.json": b"{"}, "not as documented"),
        ({"sg00/def.json": {"vars": {}}}, "not as documented"),
        ({"sg00/def.json": {"var": []}}, "not as documented"),
        ({"sg00/def.json": {"var": {"a": {"type": "input"}}}}, "not as documented"),
        ({"sg00/def.json": {"var": {"a": 3}}}, "not as documented"),
        ({"sg00/def.json": b"[" * 200000}, "not as documented"),
        ({"sg00/def.json": {"var": VARIABLES}, "sg01/def.json": {"var": VARIABLES}}, "2 subgraphs"),
        ({"sg00/def.json": {"var": {"--neff": {"type": "input", "var_id": 1, "size": 4}}}}, "mistaken"),
        ({"sg00/def.json": {"var": {"../../evil": {"type": "output", "var_id": 1, "size": 4}}}}, "mistaken"),
        ({"sg00/def.json": {"var": {"a b": {"type": "output", "var_id": 1, "size": 4}}}}, "mistaken"),
    ],
)
def test_what_is_not_a_neff_of_the_documented_layout_is_refused(tmp_path, files, says) -> None:
    with pytest.raises(NeffUnreadable, match=says):
        read_neff(neff(tmp_path / "k.neff", files))


@pytest.mark.parametrize(
    "content", [b"", b"MZ", bytes(1024), b"x" * 5000, bytes(8) + (1 << 40).to_bytes(8, "little") + bytes(2000)]
)
def test_arbitrary_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "k.neff").write_bytes(content)
    with pytest.raises(NeffUnreadable):
        read_neff(tmp_path / "k.neff")


def test_nothing_is_written_next_to_a_neff_with_hostile_members(tmp_path: Path) -> None:
    path = neff(
        tmp_path / "k.neff", {"../escaped": b"x", "/tmp/escaped-neff": b"x", "sg00/def.json": {"var": VARIABLES}}
    )
    read_neff(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["k.neff"]
    assert not (tmp_path.parent / "escaped").exists()


def _tensors(*pairs: tuple[str, int]) -> tuple[NeffTensor, ...]:
    return tuple(NeffTensor(name, size, number) for number, (name, size) in enumerate(pairs))


@pytest.mark.parametrize(
    ("declared", "wanted", "order"),
    [
        ((("y", 4), ("x", 4)), (("x", 4), ("y", 4)), ("x", "y")),
        ((("x", 4),), (("unused", 4), ("x", 4)), (None, "x")),
        ((), (("unused", 4),), (None,)),
        ((("input1", 4), ("input0", 4)), (("x", 4), ("y", 4)), ("input0", "input1")),
        ((("in10", 4), ("in9", 8)), (("", 8), ("", 4)), ("in9", "in10")),
        ((("in0", 64), ("in1", 64)), (("x", 48), ("y", 64)), ("in0", "in1")),
        ((("lhs", 4), ("rhs", 8)), (("x", 8), ("y", 4)), ("rhs", "lhs")),
        ((("arg", 4),), (("x", 4),), ("arg",)),
    ],
)
def test_inputs_find_their_arguments(declared: Any, wanted: Any, order: tuple[str | None, ...]) -> None:
    assert match_inputs(_tensors(*declared), wanted) == order


@pytest.mark.parametrize(
    ("declared", "sizes"),
    [
        ((("lhs", 4), ("rhs", 4)), (4, 4)),
        ((("lhs", 4),), (4, 8)),
        ((("in0", 4), ("in1", 8)), (8, 4)),
        ((("lhs", 4), ("rhs", 8)), (4, 16)),
    ],
)
def test_an_uncertain_match_is_an_error_and_never_a_guess(declared: Any, sizes: tuple[int, ...]) -> None:
    with pytest.raises(NeffUnreadable, match="cannot tell which output"):
        match_outputs(_tensors(*declared), sizes)
