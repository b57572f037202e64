"""Names for numbers: whatever is said of a number comes to it, at every shape."""

from __future__ import annotations

import random

from nki_sim.loop_ir.sizes import Dimension, NoForm, Sizes

NUMBERS = (0, 1, 2, 3, 4, 7, 8, 16, 100, 104, 128, 200, 256, 384, 512, 896, 1000, 1024, 2048, 4096)


def test_what_is_said_of_a_number_comes_to_it_at_every_shape() -> None:
    draws = random.Random(0)
    said = 0
    for _ in range(3000):
        shapes = draws.randint(1, 3)
        names = "MNK"[: draws.randint(1, 3)]
        sizes = {name: [draws.choice(NUMBERS[1:]) for _ in range(shapes)] for name in names}
        made = Sizes([Dimension("x", at, name, tuple(sizes[name])) for at, name in enumerate(names)], [("TILE", 128)])
        tile, of = draws.choice(NUMBERS[1:]), sizes[draws.choice(names)]
        wanted = draws.choice([
            [draws.choice(NUMBERS) for _ in range(shapes)], [size // tile for size in of], [size % tile for size in of],
            [min(tile, size) for size in of], [max(1, size // tile) for size in of], [size * tile for size in of],
        ])  # fmt: skip
        try:
            text = made.text(tuple(wanted), draws.choice([(), ("TILE",), tuple(names)]))
        except NoForm:
            continue
        said += 1
        for shape, value in enumerate(wanted):
            here = {"TILE": 128, **{name: values[shape] for name, values in sizes.items()}}
            assert eval(text, here) == value, (text, here)
            assert all(eval(condition, here) for condition in made.conditions), (made.conditions, here)
    assert said > 1000


def test_a_condition_that_another_one_says_too_is_left_out() -> None:
    made = Sizes([], conditions={"N % 128 == 0", "N % 256 == 0", "M % 128 == 0", "(N % 3 == 0 or N < 3)"})
    assert made.needed() == ["(N % 3 == 0 or N < 3)", "M % 128 == 0", "N % 256 == 0"]


def test_sizes_that_cannot_be_told_apart_are_held_to_their_proportion_once() -> None:
    made = Sizes([Dimension("x", 0, "N", (256, 1024)), Dimension("y", 0, "D", (512, 2048))])
    made.text((2, 8))
    made.text((1, 4))
    assert {each for each in made.conditions if "%" not in each} == {"D == N * 2"}
