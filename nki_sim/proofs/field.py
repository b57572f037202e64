"""Arithmetic in a prime field, on NumPy arrays: exact, so that terms in another order have the same sum.

Elements are uint64 in [0, prime). Primes are below 2^31, so that a product and a sum of 2^32 elements fit in 64 bits.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

Array = np.ndarray

SAFE_PRIMES = (
    2147483579, 2147483123, 2147482763, 2147481563, 2147481143, 2147480927, 2147480327, 2147479823,
    2147479787, 2147478899, 2147478083, 2147477807, 2147477687, 2147477159, 2147473283, 2147473127,
)  # fmt: skip
"""The largest primes p below 2^31 for which (p - 1) / 2 is prime too (Miller-Rabin, bases that decide below 2^64)."""

MOST_TERMS = 256
"""Of one product of matrices: 2^30 times 2^15 times 256 is 2^53, up to which float64 holds every integer."""

_LIMB = 15
_SIGN = np.uint64(0)


class Field:
    """The integers modulo a prime. Stateless."""

    def __init__(self, prime: int) -> None:
        if not 2 < prime < 1 << 31:
            raise ValueError(f"a field's prime must be odd and below 2^31, not {prime}")
        self.prime = prime
        self._prime = np.uint64(prime)

    def reduced(self, x: Array) -> Array:
        """Any uint64 modulo the prime, in place. A division by a constant is a multiplication to NumPy; `%` is not."""
        whole = np.floor_divide(x, self._prime)
        whole *= self._prime
        x -= whole
        return x

    def add(self, x: Array, y: Array) -> Array:
        total = x + y
        return np.minimum(total, total - self._prime)  # what is below the prime wraps to something huge

    def subtract(self, x: Array, y: Array) -> Array:
        difference = x - y
        return np.minimum(difference, difference + self._prime)

    def multiply(self, x: Array, y: Array) -> Array:
        return self.reduced(np.asarray(x * y))

    def negative(self, x: Array) -> Array:
        return self.subtract(_SIGN, x)

    def total(self, x: Array, axes: tuple[int, ...] | int) -> Array:
        return self.reduced(np.asarray(x.sum(axis=axes, dtype=np.uint64)))

    def product(self, x: Array) -> Array:
        """Along the last axis, by halves."""
        while x.shape[-1] > 1:
            half = x.shape[-1] // 2
            rest = x[..., 2 * half :]
            x = np.concatenate([self.multiply(x[..., :half], x[..., half : 2 * half]), rest], axis=-1)
        return x[..., 0]

    def recurrence(self, start: Array, factors: Array, terms: Array) -> Array:
        """[rows, n]: s[i] = factors[i] s[i - 1] + terms[i].

        In blocks: within all blocks at once each state as a linear function of the block's first, then from one block
        to the next, then all states.
        """
        rows, count = factors.shape
        width = max(1, int(count**0.5))
        blocks = -(-count // width)
        lines = np.zeros((2, width, blocks, rows), np.uint64)
        for line, values in zip(lines, (factors, terms)):
            padded = np.zeros((blocks * width, rows), np.uint64)
            padded[:count] = values.T
            line[...] = padded.reshape(blocks, width, rows).transpose(1, 0, 2)
        scale, offset = lines
        for at in range(1, width):
            offset[at] = self.reduced(scale[at] * offset[at - 1] + offset[at])
            scale[at] = self.multiply(scale[at], scale[at - 1])
        first = np.empty((blocks, rows), np.uint64)
        state = np.broadcast_to(start, (rows, 1))[:, 0]
        for block in range(blocks):
            first[block] = state
            state = self.reduced(scale[-1, block] * state + offset[-1, block])
        found = self.reduced(scale * first + offset)
        return np.ascontiguousarray(found.transpose(2, 1, 0).reshape(rows, -1)[:, :count])

    def inverse(self, x: Array) -> Array:
        """1 / x of every element; 0 of 0. Three products an element: all are inverted together (Montgomery's trick)."""
        flat = np.where(x == 0, np.uint64(1), x).reshape(-1)
        found = self._inverse(flat)
        return np.where(x == 0, np.uint64(0), found.reshape(x.shape))

    def _inverse(self, flat: Array) -> Array:
        size = len(flat)
        if size <= 8:
            return np.array([pow(int(each), -1, self.prime) for each in flat], np.uint64)
        half = (size + 1) // 2
        low, high = flat[:half], flat[half:]
        if len(high) < half:
            high = np.append(high, np.uint64(1))
        both = self._inverse(self.multiply(low, high))
        return np.concatenate([self.multiply(both, high), self.multiply(both, low)])[:size]

    def matmul(self, left: Array, right: Array) -> Array:
        """left[M, K] @ right[K, N], K at most `MOST_TERMS`, exact by way of float64.

        Centred, an entry is at most 2^30 in size; the left one is split into limbs of at most 2^15 and 2^14. So no sum
        of 128 products with entries below 2^31, or of 256 with centred ones, exceeds 2^53, whichever order the library
        adds in.
        """
        if left.shape[1] > MOST_TERMS:
            raise ValueError(f"{left.shape[1]} terms in one product, at most {MOST_TERMS} are exact")
        mine, other = self.centred(left), right if 2 * left.shape[1] <= MOST_TERMS else self.centred(right)
        high = (mine + (1 << (_LIMB - 1))) >> _LIMB
        limbs = np.concatenate([high, mine - (high << _LIMB)]).astype(np.float64)
        products = (limbs @ other.astype(np.float64)).astype(np.int64)
        upper, lower = products[: len(left)], products[len(left) :]
        return self.add(self.multiply(self._positive(upper), np.uint64(1 << _LIMB)), self._positive(lower))

    def centred(self, x: Array) -> Array:
        """int64 in (-prime / 2, prime / 2]: what small negative numbers look like again."""
        signed = x.astype(np.int64)
        return np.where(signed > self.prime // 2, signed - self.prime, signed)

    def _positive(self, x: Array) -> Array:
        """Integers of at most 2^53, by sign, as elements."""
        return self.reduced((x + (self.prime << 23)).view(np.uint64))

    def of(self, numerator: int, denominator: int) -> np.uint64:
        return _quotient(numerator, denominator, self.prime)

    def of_integers(self, values: Array) -> Array:
        """Elements of any integers that fit 64 bits."""
        return np.mod(values.astype(np.int64), np.int64(self.prime)).astype(np.uint64)


@lru_cache(maxsize=4096)
def _quotient(numerator: int, denominator: int, prime: int) -> np.uint64:
    return np.uint64(numerator * pow(denominator, -1, prime) % prime)
