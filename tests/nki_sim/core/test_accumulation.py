"""Sums in PSUM that a device may get wrong: found in the trace whatever the kernel's text looks like."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

import nki_sim
from nki_sim.checks.accumulation import device_doubts
from nki_sim.dtypes import float32, int32
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.tracing.session import TensorSpec

BANK = 512
"""Elements of float32 in a PSUM bank of one partition."""


class Sum(NamedTuple):
    """One sum of a drawn kernel."""

    tile: int
    column: int
    columns: int
    products: int


def rules(body: Callable[..., None], tiles: int = 1, columns: int = BANK) -> list[str]:
    """The rules by which a kernel is doubted whose products `body` forms: body(tiles in PSUM, a, b, index tile)."""

    def kernel(x: Any, index: Any) -> Any:
        out = nl.ndarray((128, tiles * columns), dtype=nl.float32, buffer=nl.shared_hbm)
        a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
        b = nl.ndarray((128, BANK), dtype=nl.float32, buffer=nl.sbuf)
        where = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[:, :128])
        nisa.dma_copy(dst=b, src=x)
        nisa.dma_copy(dst=where, src=index)
        sums = [nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.psum) for _ in range(tiles)]
        body(sums, a, b, where)
        for number, each in enumerate(sums):
            copy = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=copy, src=each)
            nisa.dma_copy(dst=out[:, number * columns : (number + 1) * columns], src=copy)
        return out

    program = nki_sim.trace(kernel, TensorSpec((128, BANK), float32), TensorSpec((1, 1), int32))
    return [doubt.rule for doubt in device_doubts(program)]


def product(dst: Any, a: Any, b: Any, accumulate: bool | None = None) -> None:
    nisa.nc_matmul(dst=dst, stationary=a, moving=b[:, : dst.shape[1]], accumulate=accumulate)


def drawn(rng: random.Random) -> tuple[list[Sum], list[int]]:
    """Sums at places that are disjoint, and the order of their products: one after the other, or mixed."""
    sums = []
    for tile in range(rng.choice((1, 2))):
        for column in rng.sample(range(0, 2 * BANK, 128), rng.choice((1, 2, 3))):
            sums.append(Sum(tile, column, rng.choice((1, 64, 128)), rng.choice((1, 2, 3))))
    order = [number for number, each in enumerate(sums) for _ in range(each.products)]
    if rng.random() < 0.5:
        rng.shuffle(order)
    return sums, order


def loses(sums: Sequence[Sum], order: Sequence[int]) -> bool:
    """Does a bank that is marked by whatever begins in it lose a product, in this order?"""
    done = [0] * len(sums)
    marked = [False] * len(sums)
    for number in order:
        if not done[number]:
            here = sums[number]
            for other, each in enumerate(sums):
                marked[other] |= (each.tile, each.column // BANK) == (here.tile, here.column // BANK)
        elif marked[number]:
            return True
        marked[number] = False
        done[number] += 1
    return False


@pytest.mark.parametrize("seed", range(40))
def test_sums_with_the_flag_are_doubted_where_a_device_could_lose_a_product(seed: int) -> None:
    """In the order of the text, or because two sums of several products in one bank may be mixed by the compiler."""
    sums, order = drawn(random.Random(seed))

    def body(flags: bool) -> Callable[..., None]:
        def products(tiles: Any, a: Any, b: Any, _: Any) -> None:
            begun: set[int] = set()
            for number in order:
                each = sums[number]
                dst = tiles[each.tile][:, each.column : each.column + each.columns]
                product(dst, a, b, number in begun if flags else None)
                begun.add(number)

        return products

    several = [(each.tile, each.column // BANK) for each in sums if each.products > 1]
    expected = len(several) > len(set(several)) or loses(sums, order)
    assert bool(rules(body(True), 2, 2 * BANK)) == expected
    assert not rules(body(False), 2, 2 * BANK), "the compiler keeps track of the places where the flag is left out"


def _in_a_device_loop(tiles: Any, a: Any, b: Any, _: Any) -> None:
    def body(_: Any) -> None:
        for column in (0, 64):
            for k in range(2):
                product(tiles[0][:, column : column + 64], a, b, k > 0)

    nl.fori_loop(0, 4, body)


def _placed_by_a_device_loop(columns: int) -> Callable[..., None]:
    """The tile has two banks; one sum in each pass, in pieces of so many columns."""

    def kernel(tiles: Any, a: Any, b: Any, _: Any) -> None:
        pieces = tiles[0].reshape((128, 2 * BANK // columns, columns))

        def body(i: Any) -> None:
            for k in range(2):
                nisa.nc_matmul(dst=pieces.select(1, i), stationary=a, moving=b[:, :columns], accumulate=k > 0)

        nl.fori_loop(0, 2, body)

    return kernel


def _halves_in_turn(tiles: Any, a: Any, b: Any, _: Any) -> None:
    """Each is read before the other begins, but nothing keeps the other from beginning earlier."""
    for i in range(4):
        half = tiles[0][:, i % 2 * 256 : i % 2 * 256 + 256]
        for k in range(2):
            product(half, a, b, k > 0)
        nisa.tensor_copy(dst=b[:, :256], src=half)


def _whole_goes_on_after_half(tiles: Any, a: Any, b: Any, _: Any) -> None:
    product(tiles[0], a, b, False)
    product(tiles[0][:, :256], a, b, False)
    product(tiles[0][:, 256:], a, b, True)


def _beside_an_automatic_one(tiles: Any, a: Any, b: Any, _: Any) -> None:
    for column, flags in ((0, (False, True)), (256, (None, None))):
        for flag in flags:
            product(tiles[0][:, column : column + 256], a, b, flag)


def _onto_zeros(flag: bool | None) -> Callable[..., None]:
    def kernel(tiles: Any, a: Any, b: Any, _: Any) -> None:
        nisa.memset(dst=tiles[0], value=0.0)
        for _ in range(2):
            product(tiles[0], a, b, flag)

    return kernel


def _onto_a_copy(tiles: Any, a: Any, b: Any, _: Any) -> None:
    product(tiles[0][:, :256], a, b, False)
    nisa.tensor_copy(dst=tiles[0][:, 256:], src=b[:, 256:])
    product(tiles[0], a, b, True)


def _copied_over_by_a_sum(tiles: Any, a: Any, b: Any, _: Any) -> None:
    nisa.tensor_copy(dst=tiles[0], src=b)
    product(tiles[0], a, b, False)
    product(tiles[0], a, b, True)


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        (_in_a_device_loop, ["psum-groups"]),
        (_placed_by_a_device_loop(64), ["psum-groups"]),
        (_placed_by_a_device_loop(BANK), []),
        (_halves_in_turn, ["psum-groups"]),
        (_whole_goes_on_after_half, ["psum-groups"]),
        (_beside_an_automatic_one, ["psum-groups"]),
        (_onto_zeros(True), ["psum-filled"]),
        (_onto_zeros(None), []),
        (_onto_zeros(False), []),
        (_onto_a_copy, ["psum-filled"]),
        (_copied_over_by_a_sum, []),
    ],
)
def test_what_is_doubted(kernel: Callable[..., None], found: list[str]) -> None:
    assert rules(kernel, columns=2 * BANK if "placed" in kernel.__qualname__ else BANK) == found
