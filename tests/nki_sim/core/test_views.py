"""Every view is what NumPy's as_strided, reshape, transpose and slicing give on the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.dtypes import as_dtype, bfloat16, float32, int32, uint8
from nki_sim.errors import NkiValidationError, NotSupported, OutOfBounds
from nki_sim.nki import language as nl
from nki_sim.program.memory import Allocation, MemoryRegion, Storage
from nki_sim.tracing.tensor import DynamicSlice, NkiTensor, whole


def tensor(shape: tuple[int, ...], region: MemoryRegion = MemoryRegion.shared_hbm, dtype: Any = float32) -> NkiTensor:
    """A buffer that counts 0, 1, 2, ..."""
    allocation = Allocation(0, region, shape, as_dtype(dtype), "t", 0, 0)
    contents = np.arange(np.prod(shape)).astype(as_dtype(dtype).numpy)
    return whole(Storage(allocation, contents.view(np.uint8)))


UNTIMED = settings(deadline=None)
"""An example takes some 5 ms, but beside other work on the same processors it may wait longer than 200 ms."""
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@st.composite
def slices(draw: Any, size: int) -> Any:
    kind = draw(st.sampled_from(["all", "range", "step", "int", "ds", "negative"]))
    start = draw(st.integers(0, size - 1))
    stop = draw(st.integers(start + 1, size))
    if kind == "range":
        return slice(start, stop)
    if kind == "step":
        return slice(start, stop, draw(st.integers(1, 3)))
    if kind == "int":
        return start
    if kind == "ds":
        return DynamicSlice(start, stop - start)
    if kind == "negative":
        return slice(start - size, None)
    return slice(None)


def as_numpy_key(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(slice(k.start, k.start + k.size) if isinstance(k, DynamicSlice) else k for k in key)


@given(st.data())
@UNTIMED
def test_slices_of_slices_in_hbm_are_numpys(data: Any) -> None:
    shape = data.draw(shapes)
    view, expected = tensor(shape), tensor(shape).array()
    for _ in range(2):
        key = tuple(data.draw(slices(n)) for n in view.shape[: data.draw(st.integers(0, view.ndim))])
        view, expected = view[key], np.atleast_1d(expected[as_numpy_key(key)])
        np.testing.assert_array_equal(view.array(), expected)
        assert view.shape == expected.shape


@given(st.data())
@UNTIMED
def test_on_chip_an_integer_index_keeps_the_partition_and_two_dimensions(data: Any) -> None:
    shape = (data.draw(st.integers(1, 6)), *data.draw(shapes))
    view, expected = tensor(shape, MemoryRegion.sbuf), tensor(shape, MemoryRegion.sbuf).array()
    key = tuple(data.draw(slices(n)) for n in shape[: data.draw(st.integers(1, len(shape)))])
    numpy_key = as_numpy_key(key)
    if isinstance(numpy_key[0], int):
        numpy_key = (slice(numpy_key[0], numpy_key[0] + 1), *numpy_key[1:])
    expected = expected[numpy_key]
    view = view[key]
    assert view.ndim >= 2
    np.testing.assert_array_equal(view.array(), expected.reshape(view.shape))


@given(st.data())
@UNTIMED
def test_reshape_permute_and_friends_are_numpys(data: Any) -> None:
    shape = data.draw(shapes)
    view, expected = tensor(shape), tensor(shape).array()
    for _ in range(3):
        action = data.draw(
            st.sampled_from(["permute", "expand", "squeeze", "broadcast", "flatten", "split", "reshape"])
        )
        dim = data.draw(st.integers(0, view.ndim - 1))
        size = view.shape[dim]
        if action == "permute":
            order = data.draw(st.permutations(range(view.ndim)))
            view, expected = view.permute(order), expected.transpose(order)
        elif action == "expand":
            view, expected = view.expand_dim(dim), np.expand_dims(expected, dim)
        elif action == "squeeze" and size == 1 and view.ndim > 1:
            view, expected = view.squeeze_dim(dim), expected.squeeze(dim)
        elif action == "broadcast" and size == 1:
            wide = tuple(3 if i == dim else n for i, n in enumerate(view.shape))
            view, expected = view.broadcast(dim, 3), np.broadcast_to(expected, wide)
        elif action == "split" and size % 2 == 0:
            split = (*view.shape[:dim], 2, size // 2, *view.shape[dim + 1 :])
            view, expected = view.reshape_dim(dim, (2, -1)), expected.reshape(split)
        elif action == "reshape" and expected.flags.c_contiguous:
            view, expected = view.reshape((view.size,)), expected.reshape(-1)
        elif action == "flatten" and expected.flags.c_contiguous and view.ndim > 1:
            view, expected = view.flatten_dims(0, 1), expected.reshape(-1, *expected.shape[2:])
        np.testing.assert_array_equal(view.array(), expected)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_reshape_never_copies_and_says_so_when_it_would_have_to(data: Any) -> None:
    view = tensor((4, 6))[:, data.draw(slices(6))]
    size = view.size
    columns = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    try:
        reshaped = view.reshape((size // columns, columns))
    except NkiValidationError:
        return
    np.testing.assert_array_equal(reshaped.array(), view.array().reshape(size // columns, columns))
    assert np.shares_memory(reshaped.array(), view.array())


@given(st.data())
@UNTIMED
def test_access_patterns_are_as_strided(data: Any) -> None:
    base = tensor((6, 8))
    offset = data.draw(st.integers(0, 20))
    pattern = [
        [data.draw(st.integers(0, 5)), data.draw(st.integers(1, 3))] for _ in range(data.draw(st.integers(1, 4)))
    ]
    flat = base.array().reshape(-1)
    if offset + sum(s * (n - 1) for s, n in pattern) >= flat.size:
        with pytest.raises(OutOfBounds):
            _ = base.ap(pattern=pattern, offset=offset).key
        return
    expected = np.lib.stride_tricks.as_strided(flat[offset:], [n for _, n in pattern], [4 * s for s, _ in pattern])
    view = base.ap(pattern=pattern, offset=offset)
    np.testing.assert_array_equal(view.array(), expected)
    assert view.get_pattern() == pattern


def test_view_reinterprets_bytes_along_the_last_dimension() -> None:
    view = tensor((4, 8), MemoryRegion.sbuf)
    np.testing.assert_array_equal(view.view(uint8).array(), view.array().view(np.uint8))
    np.testing.assert_array_equal(view.view(int32).array(), view.array().view(np.int32))
    half = view[:, 2:4].view(bfloat16)
    assert half.shape == (4, 4)
    np.testing.assert_array_equal(half.view(float32).array(), view.array()[:, 2:4])
    assert view.ap([[16, 4], [1, 4]], dtype=bfloat16).dtype == "bfloat16"


def test_rearrange_splits_reorders_and_merges_named_dimensions() -> None:
    view, expected = tensor((2, 12, 5)), tensor((2, 12, 5)).array()
    out = view.rearrange(("b", ("h", "w"), "c"), ("h", "b", "w", "c"), {"h": 3})
    np.testing.assert_array_equal(out.array(), expected.reshape(2, 3, 4, 5).transpose(1, 0, 2, 3))


def sbuf() -> NkiTensor:
    return tensor((128, 4, 8), MemoryRegion.sbuf)


def hbm() -> NkiTensor:
    return tensor((4, 8))


REFUSED = {
    "slice past the end": (lambda: hbm()[:, 0:9], OutOfBounds, "out-of-bound"),
    "empty slice": (lambda: hbm()[2:2], OutOfBounds, "out-of-bound"),
    "index past the end": (lambda: hbm()[4], OutOfBounds, "size 4"),
    "ds past the end": (lambda: hbm()[nl.ds(3, 2)], OutOfBounds, "clip the last tile"),
    "too many indices": (lambda: hbm()[0, 0, 0], OutOfBounds, "3 indices"),
    "step zero": (lambda: hbm()[0:4:0], NkiValidationError, "step"),
    "float index": (lambda: hbm()[1.5], NkiValidationError, "static integer"),
    "more partitions than the buffer": (lambda: sbuf().ap([[32, 129], [1, 8]]), OutOfBounds, "leaves"),
    "pattern across partitions": (lambda: sbuf().ap([[1, 128], [1, 8]]), OutOfBounds, "crosses the partitions"),
    "free dims beyond the partition": (lambda: sbuf().ap([[32, 4], [1, 33]]), OutOfBounds, "crosses"),
    "negative offset": (lambda: hbm().ap([[1, 2]], offset=-1), OutOfBounds, "leaves"),
    "pattern without counts": (lambda: hbm().ap([[1, 0]]), NkiValidationError, "positive"),
    "partition permuted": (lambda: sbuf().permute((1, 0, 2)), NkiValidationError, "partition"),
    "partition reshaped": (lambda: sbuf().reshape((64, 64)), NkiValidationError, "partition"),
    "partition broadcast": (lambda: sbuf()[0:1].broadcast(0, 128), NkiValidationError, "partition"),
    "partition flattened": (lambda: sbuf().flatten_dims(0, 1), NkiValidationError, "partition"),
    "reshape to another size": (lambda: hbm().reshape((5, 5)), NkiValidationError, "25 elements"),
    "reshape of strided memory": (lambda: hbm()[:, 0:7].reshape((28,)), NkiValidationError, "contiguous"),
    "broadcast of size 4": (lambda: hbm().broadcast(0, 8), NkiValidationError, "must be 1"),
    "squeeze of size 4": (lambda: hbm().squeeze_dim(0), NkiValidationError, "not 1"),
    "not a permutation": (lambda: hbm().permute((0, 0)), NkiValidationError, "permutation"),
    "no such dimension": (lambda: hbm().select(2, 0), NkiValidationError, "no dimension"),
    "view of odd bytes": (lambda: tensor((4, 3), dtype=uint8).view(float32), NkiValidationError, "divide"),
    "view of strided bytes": (lambda: hbm()[:, 0:8:2].view(uint8), NkiValidationError, "contiguous"),
    "assignment": (lambda: hbm().__setitem__(0, 1), NkiValidationError, "instruction"),
    "iteration": (lambda: list(hbm()), NkiValidationError, "iterate"),
    "both offsets": (
        lambda: hbm().ap([[1, 1]], scalar_offset=hbm(), vector_offset=hbm()),
        NkiValidationError,
        "exclude",
    ),
    "indirect twice": (lambda: hbm().select(0, hbm()).select(0, hbm()), NkiValidationError, "already indirect"),
    "dynamic partition": (lambda: sbuf().select(0, hbm()), NkiValidationError, "partition"),
    "tensor indirection": (lambda: sbuf().indirect(sbuf()), NotSupported, "trn3"),
    "vector_select on chip": (lambda: sbuf().vector_select(0, hbm()), NkiValidationError, "HBM"),
}


@pytest.mark.parametrize("make, error, message", REFUSED.values(), ids=REFUSED.keys())
def test_an_illegal_view_is_refused_by_name(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _ = make().key  # what an instruction asks of its operands
