"""The measured variants of NKIBench's mamba in `data/trn2_device/kda_beta1.csv`, written anew.

Each function returns a traced `Program`, as in `device_tasks`. delta and u: channels x length; a: channels x states; b
and c: states x length; all float32, channels a multiple of 128.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.device_decisions import COLUMNS, Decisions, P, Rotation, trace
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.program.program import Program


def mamba(channels: int, length: int, states: int, width: int, *, buffers: int = 3) -> Program:
    """The selective scan, `width` columns at a time with the states carried on: channels outside, states inside."""

    def kernel(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
        scan = _Scan(width, buffers)
        out = nl.ndarray((channels, length), dtype=nl.float32, buffer=nl.shared_hbm)
        carried = scan.carried(channels, states)
        for at in range(0, length, width):
            here = slice(at, at + width)
            for m in range(0, channels, P):
                rows = slice(m, m + P)
                total = scan.zeros()
                steps, inputs = scan.load("delta", delta[rows, here]), scan.load("u", u[rows, here])
                for state in range(states):
                    rates = scan.load("a", a[rows, state : state + 1])
                    decay = scan.decay(steps, rates)
                    terms = scan.by_row(scan.product(steps, inputs), scan.load("b", b[state : state + 1, here]))
                    hidden = scan.run(decay, terms, carried[m, state], first=at == 0, last=at + width == length)
                    scan.add(total, scan.by_row(hidden, scan.load("c", c[state : state + 1, here])))
                scan.do.transfer(out[rows, here], total)
        return out

    return _trace_mamba(kernel, channels, length, states)


def mamba_baseline(channels: int, length: int, states: int) -> Program:
    """As NKIBench ships it: states outermost, whole rows at a time, delta and u loaded anew for every state."""

    def kernel(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
        scan = _Scan(length, 0)  # SBUF has no room for a second tile of whole rows
        out = nl.ndarray((channels, length), dtype=nl.float32, buffer=nl.shared_hbm)
        totals = {m: scan.zeros() for m in range(0, channels, P)}
        for state in range(states):
            for m, total in totals.items():
                rows = slice(m, m + P)
                steps, rates = scan.load("delta", delta[rows, :]), scan.load("a", a[rows, state : state + 1])
                decay = scan.decay(steps, rates)
                inputs, b_row = scan.load("u", u[rows, :]), scan.load("b", b[state : state + 1, :])
                terms = scan.by_row(scan.product(steps, inputs), b_row)
                hidden = scan.run(decay, terms, None, first=True, last=True)
                scan.add(total, scan.by_row(hidden, scan.load("c", c[state : state + 1, :])))
        for m, total in totals.items():
            scan.do.transfer(out[m : m + P, :], total)
        return out

    return _trace_mamba(kernel, channels, length, states)


def mamba_shared(channels: int, length: int, states: int, width: int, *, buffers: int = 3) -> Program:
    """The same with states outside channels: rows of b and c are broadcast once for all channels, delta u made once."""

    def kernel(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
        scan = _Scan(width, buffers)
        out = nl.ndarray((channels, length), dtype=nl.float32, buffer=nl.shared_hbm)
        carried = scan.carried(channels, states)
        for at in range(0, length, width):
            here = slice(at, at + width)
            tiles = range(0, channels, P)
            totals = {m: scan.zeros() for m in tiles}
            steps, inputs = {}, {}
            for m in tiles:
                steps[m] = scan.tile()
                scan.do.transfer(steps[m], delta[m : m + P, here])
                inputs[m] = scan.product(steps[m], scan.load("u", u[m : m + P, here]))
            for state in range(states):
                rows = [scan.load(name, source[state : state + 1, here]) for name, source in (("b", b), ("c", c))]
                b_tile, c_tile = (scan.broadcast(row) for row in rows)
                for m in tiles:
                    decay = scan.decay(steps[m], scan.load("a", a[m : m + P, state : state + 1]))
                    terms = scan.product(inputs[m], b_tile)
                    hidden = scan.run(decay, terms, carried[m, state], first=at == 0, last=at + width == length)
                    scan.add(totals[m], scan.product(hidden, c_tile))
            for m in tiles:
                scan.do.transfer(out[m : m + P, here], totals[m])
        return out

    return _trace_mamba(kernel, channels, length, states)


class _Scan:
    """The steps that the mamba kernels share, on tiles of 128 channels x `width` columns."""

    def __init__(self, width: int, buffers: int) -> None:
        self.do = Decisions()
        self._width, self._buffers = width, buffers
        self._loaded: dict[str, Rotation] = {}
        self._ones = nl.ndarray((1, P), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=self._ones, value=1.0)

    def tile(self) -> Any:
        return nl.ndarray((P, self._width), dtype=nl.float32, buffer=nl.sbuf)

    def zeros(self) -> Any:
        tile = self.tile()
        nisa.memset(dst=tile, value=0.0)
        return tile

    def carried(self, channels: int, states: int) -> dict[tuple[int, int], Any]:
        """[P, 1] by first channel and state: where the recurrence stands."""
        found = {}
        for m in range(0, channels, P):
            columns = nl.ndarray((P, states), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=columns, value=0.0)
            found.update({(m, state): columns[:, state : state + 1] for state in range(states)})
        return found

    def load(self, name: str, source: Any) -> Any:
        if name not in self._loaded:
            self._loaded[name] = Rotation(source.shape, nl.float32, self._buffers)
        tile = self._loaded[name].tile()
        self.do.transfer(tile, source)
        return tile

    def decay(self, steps: Any, rates: Any) -> Any:
        tile = self.tile()
        self.do.activation(tile, nl.exp, steps, scale=rates)
        return tile

    def product(self, data1: Any, data2: Any) -> Any:
        tile = self.tile()
        self.do.tensor_tensor(tile, data1, data2, nl.multiply)
        return tile

    def by_row(self, data: Any, row: Any) -> Any:
        """data times a row of one partition, which every partition reads from PSUM."""
        tile = self.tile()
        for columns, spread in self._spread(row):
            self.do.tensor_tensor(tile[:, columns], data[:, columns], spread, nl.multiply)
        return tile

    def broadcast(self, row: Any) -> Any:
        """A row of one partition on all of them, in SBUF."""
        tile = self.tile()
        for columns, spread in self._spread(row):
            self.do.copy(tile[:, columns], spread)
        return tile

    def run(self, decay: Any, terms: Any, carried: Any, *, first: bool, last: bool) -> Any:
        tile = self.tile()
        self.do.scan(tile, decay, terms, 0.0 if first else carried)
        if not last:
            self.do.copy(carried, tile[:, self._width - 1 :])
        return tile

    def add(self, total: Any, part: Any) -> None:
        self.do.tensor_tensor(total, total, part, nl.add)

    def _spread(self, row: Any) -> Iterator[tuple[slice, Any]]:
        """Products with ones, a PSUM bank each: reading them ends where a bank does."""
        for start in range(0, self._width, COLUMNS):
            columns = slice(start, min(start + COLUMNS, self._width))
            bank = nl.ndarray((P, columns.stop - start), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=bank, stationary=self._ones, moving=row[:, columns])
            yield columns, bank


def _trace_mamba(kernel: Any, channels: int, length: int, states: int) -> Program:
    wide, rates, rows = (channels, length), (channels, states), (states, length)
    return trace(kernel, wide, wide, rates, rows, rows)
