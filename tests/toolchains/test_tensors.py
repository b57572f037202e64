"""Arrays cross to the device and back bit by bit, whatever the runtime calls their dtype."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from accelopt_core.toolchain import RunError, TensorArgument
from infra.neuron.tensors import read_output, size_bytes, write_input

BF16 = np.array([[1.0, -2.5, 3.0e38], [0.0, 1e-40, np.inf]], dtype=ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "bool"])
def test_dtypes_of_numpy_travel_as_npy(tmp_path: Path, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).T.astype(dtype)
    path = write_input(tmp_path / "0", array)
    assert path.suffix == ".npy"
    assert np.array_equal(np.load(path, allow_pickle=False), array)


def test_other_dtypes_travel_as_raw_bytes_which_are_read_where_there_is_no_npy(tmp_path: Path) -> None:
    path = write_input(tmp_path / "0", BF16)
    assert path.suffix == ".bin"
    assert path.read_bytes() == BF16.tobytes()
    (tmp_path / "out").write_bytes(np.arange(3, dtype=np.float32).tobytes())
    assert read_output(tmp_path, "out", TensorArgument((3,), "float32"), "").tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "saved",
    [
        pytest.param(BF16.view("V2"), id="void"),
        pytest.param(BF16.view(np.uint16), id="uint16"),
        pytest.param(BF16.view(np.uint16).reshape(-1), id="flat"),
        pytest.param(BF16.view("V1"), id="bytes"),
        pytest.param(BF16.astype(np.float32), id="already widened"),
    ],
)
def test_bfloat16_comes_back_as_the_same_values_in_float32(tmp_path: Path, saved: np.ndarray) -> None:
    np.save(tmp_path / "output_0.npy", saved, allow_pickle=False)
    got = read_output(tmp_path, "output_0", TensorArgument((2, 3), "bfloat16"), "")
    assert got.dtype == np.float32 and np.array_equal(got, BF16.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "uint8", "float8_e4m3", "float8_e5m2"])
def test_a_lost_dtype_is_restored_from_what_the_kernel_returned(tmp_path: Path, dtype: str) -> None:
    storage = np.dtype(getattr(ml_dtypes, dtype)) if dtype.startswith("float8") else np.dtype(dtype)
    array = np.arange(12).reshape(4, 3).astype(storage)
    np.save(tmp_path / "out.npy", array.view(f"V{storage.itemsize}"), allow_pickle=False)
    got = read_output(tmp_path, "out", TensorArgument((4, 3), dtype), "")
    assert np.array_equal(got, array.astype(np.float32) if dtype.startswith("float8") else array)


def test_the_file_that_the_profiler_names_is_the_one_that_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "elsewhere.npy", np.ones(3, np.float32))
    np.save(tmp_path / "out.npy", np.zeros(3, np.float32))
    printed = 'saved output "other" as "out.npy"\nsaved output "out" as "elsewhere.npy"'
    assert read_output(tmp_path, "out", TensorArgument((3,), "float32"), printed).sum() == 3


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "out.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(RunError, match="not a readable"):
        read_output(tmp_path, "out", TensorArgument((1,), "float32"), "")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    np.save(tmp_path / "secret.npy", np.ones(3, np.float32))
    (tmp_path / "out.npy").symlink_to(tmp_path / "secret.npy")
    with pytest.raises(RunError, match="saved no output out; it left"):
        read_output(tmp_path, "out", TensorArgument((3,), "float32"), "")


@pytest.mark.parametrize(
    ("saved", "spec", "says"),
    [
        pytest.param(np.zeros(5, np.float32), TensorArgument((2, 3), "float32"), "holds 20 bytes", id="too short"),
        pytest.param(np.zeros(6, "V4"), None, "no dtype", id="void and nothing known"),
        pytest.param(
            np.zeros(6, "V3"), TensorArgument((2, 3), "float32"), "holds 18 bytes", id="void of another width"
        ),
        pytest.param(np.zeros(6, np.float32), TensorArgument((2, 3), "complex31"), None, id="a dtype nobody knows"),
    ],
)
def test_a_file_that_cannot_be_the_output_is_an_error(tmp_path, saved, spec, says) -> None:
    np.save(tmp_path / "out.npy", saved, allow_pickle=False)
    if says is None:
        assert read_output(tmp_path, "out", spec, "").shape == (2, 3), "the file's own numbers are taken"
        return
    with pytest.raises(RunError, match=says):
        read_output(tmp_path, "out", spec, "")


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((2, 3), "float32", 24),
        ((2, 3), "bfloat16", 12),
        ((128,), "float8_e4m3", 128),
        ((), "int32", 4),
        ((4,), "tfloat32", 16),
        ((4,), "no such dtype", 0),
    ],
)
def test_sizes_are_those_of_the_device(shape: tuple[int, ...], dtype: str, size: int) -> None:
    assert size_bytes(shape, dtype) == size
