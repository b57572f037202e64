"""The single instructions and transfers that were measured, as the machine model sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import nki_sim
from nki_sim import dtypes
from nki_sim.machine import Machine
from nki_sim.program.program import Program
from nki_sim.timing.cost import cost, load_stationary_ns
from nki_sim.timing.schedule import schedule
from nki_sim.tracing.session import TensorSpec

nki_sim.install()

import nki.isa as nisa  # noqa: E402  # only importable once the simulator is installed
import nki.language as nl  # noqa: E402  # the same

from benchmarks import calibration_kernels as kernels  # noqa: E402  # the same

P = 128


@dataclass(frozen=True)
class MicroRow:
    id: str
    what: str
    measured: float
    """ns, or what the row is in: % of peak, GB/s."""
    predicted: float


def rows(data: Sequence[Mapping[str, str]], machine: Machine) -> Iterator[MicroRow]:
    """One per measured number; a row of the file that holds several gives several."""
    known = {row["id"]: f"{row['what']}, {row['parameters']}" for row in data}
    for identifier, note, measured, predict in _TABLE:
        yield MicroRow(identifier, known[identifier] + note, measured, predict(machine))


# --- how each number is predicted -----------------------------------------------------------------

Predict = Callable[[Machine], float]


def _program(body: Callable[[], Any]) -> Program:
    """An instruction alone. It needs a result; the source of one is not costed."""

    def kernel(source: Any) -> Any:
        out = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        body()
        nisa.dma_copy(dst=out, src=source)
        return out

    return nki_sim.trace(kernel, TensorSpec((P, 1), dtypes.float32))


def _tile(columns: int, dtype: Any = None, buffer: Any = None, partitions: int = P) -> Any:
    return nl.ndarray((partitions, columns), dtype=dtype or nl.float32, buffer=buffer or nl.sbuf)


def _duration(body: Callable[[], Any]) -> Predict:
    """From start to a usable result."""

    def predict(machine: Machine) -> float:
        price = cost(_program(body).templates[0], machine)
        return price.busy_ns + price.latency_ns

    return predict


def _activation(columns: int, op: str, psum: bool = False) -> Predict:
    def body() -> None:
        source = _tile(columns, buffer=nl.psum if psum else nl.sbuf)
        nisa.activation(dst=_tile(columns), op=getattr(nl, op), data=source)

    return _duration(body)


def _from_psum(columns: int, engine: Any) -> Predict:
    return _duration(lambda: nisa.tensor_copy(dst=_tile(columns), src=_tile(columns, buffer=nl.psum), engine=engine))


def _transfer(partitions: int, columns: int, parts: Callable[[Machine, float, float], float]) -> Predict:
    """parts(machine, time on the busiest engine, latency) of a float32 load."""

    def body_program() -> Program:
        def kernel(source: Any) -> Any:
            out = nl.ndarray((partitions, columns), dtype=nl.float32, buffer=nl.shared_hbm)
            tile = _tile(columns, partitions=partitions)
            nisa.dma_copy(dst=tile, src=source)
            nisa.dma_copy(dst=out, src=tile)
            return out

        return nki_sim.trace(kernel, TensorSpec((partitions, columns), dtypes.float32))

    def predict(machine: Machine) -> float:
        price = cost(body_program().templates[0], machine)
        assert price.transfer is not None
        return parts(machine, price.transfer.engine_ns, price.latency_ns - machine.dma_completion_ns)

    return predict


def _transfer_only(machine: Machine, engine_ns: float, spread_ns: float) -> float:
    return engine_ns + spread_ns


def _trigger_to_consumer(machine: Machine, engine_ns: float, spread_ns: float) -> float:
    return machine.dma_start_ns + engine_ns + spread_ns + machine.dma_completion_ns


def _stream(make: Callable[[int], Program], count: int) -> Predict:
    """ns per instruction of a long stream, without its beginning and end."""

    def predict(machine: Machine) -> float:
        short, long = (schedule(make(n), machine).latency_us for n in (count, 2 * count))
        return (long - short) * 1e3 / count

    return predict


def _efficiency(row_bytes: int) -> Predict:
    """Percent of the DMA peak that loads of 128 rows reach, issued one after the other on one software queue."""
    per_load = _stream(_loads(row_bytes), 64)
    return lambda machine: 100 * P * row_bytes / per_load(machine) / machine.dma_bytes_per_ns


def _loads(row_bytes: int) -> Callable[[int], Program]:
    def make(count: int) -> Program:
        columns = row_bytes // 4

        def kernel(source: Any) -> Any:
            out = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.shared_hbm)
            for at in range(count):
                tile = _tile(columns)
                nisa.dma_copy(dst=tile, src=source[:, columns * at : columns * (at + 1)], engine=nisa.engine.gpsimd)
            nisa.dma_copy(dst=out, src=tile, engine=nisa.engine.gpsimd)
            return out

        return nki_sim.trace(kernel, TensorSpec((P, columns * count), dtypes.float32))

    return make


def _copy_rate(columns: int) -> Predict:
    """GB/s, read and written, of M15 and M16. Their rates and times agree for sixteen tiles."""

    def predict(machine: Machine) -> float:
        tiles = 16
        moved = 2 * P * columns * 2 * tiles
        return moved / (schedule(kernels.tiled_copy(columns, tiles), machine).latency_us * 1e3)

    return predict


def _matmul_stream(dtype: str) -> Predict:
    def make(count: int) -> Program:
        def kernel(source: Any) -> Any:
            out = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.shared_hbm)
            weights, values = _tile(P, dtype), _tile(512, dtype)
            nisa.memset(dst=weights, value=0.0)
            nisa.memset(dst=values, value=0.0)
            total = _tile(512, buffer=nl.psum)
            for _ in range(count):
                nisa.nc_matmul(dst=total, stationary=weights, moving=values)
            nisa.dma_copy(dst=out, src=source)
            return out

        return nki_sim.trace(kernel, TensorSpec((P, 1), dtypes.float32))

    return _stream(make, 256)


def _transpose(dtype: str) -> Predict:
    return _duration(
        lambda: nisa.nc_transpose(dst=_tile(P, dtype, nl.psum), data=_tile(P, dtype), engine=nisa.engine.tensor)
    )


def _packet(nbytes: int) -> Predict:
    return _transfer(1, nbytes // 4, lambda machine, engine_ns, spread_ns: engine_ns)


_TABLE: tuple[tuple[str, str, float, Predict], ...] = (
    ("M01", "", 405, _activation(128, "square")),
    ("M02", "", 3707, _activation(4096, "square")),
    ("M03", "", 1280, lambda machine: machine.activation_table_load_ns),
    ("M04", "", 468, _transfer(128, 64, _transfer_only)),
    ("M05", "", 1504, _transfer(128, 64, _trigger_to_consumer)),
    ("M06", "", 1416, _transfer(8, 1024, _transfer_only)),
    ("M07", "", 97, _transfer(1, 512, _transfer_only)),
    ("M08", " (% of peak)", 1.4, _efficiency(32)),
    ("M09", " (% of peak)", 5, _efficiency(128)),
    ("M10", " (% of peak)", 20.6, _efficiency(512)),
    ("M11", " (% of peak)", 42, _efficiency(1024)),
    ("M12", " (% of peak)", 81, _efficiency(2048)),
    ("M13", " (% of peak)", 96.6, _efficiency(4096)),
    ("M14", " (% of peak)", 99, _efficiency(16384)),
    ("M15", " (GB/s)", 259, _copy_rate(512)),
    ("M16", " (GB/s)", 354, _copy_rate(2048)),
    ("M17", "", 859, _matmul_stream("float32")),
    ("M18", "", 213, _matmul_stream("bfloat16")),
    ("M19", "", 686, _activation(512, "exp", psum=True)),
    ("M20", "", 707, _activation(512, "exp")),
    ("M21", " [128]", 264, _from_psum(128, nisa.engine.scalar)),
    ("M21", " [512]", 585, _from_psum(512, nisa.engine.scalar)),
    ("M22", " [128]", 290, _from_psum(128, nisa.engine.vector)),
    ("M22", " [512]", 690, _from_psum(512, nisa.engine.vector)),
    ("M23", "", 680, _duration(lambda: nisa.tensor_reduce(dst=_tile(1), op=nl.add, data=_tile(512), axis=1))),
    ("M24", "", 481, _duration(lambda: nisa.tensor_scalar(_tile(512), _tile(512), nl.multiply, 2.0))),
    ("M25", " [bf16]", 105, lambda machine: load_stationary_ns(128, 1, machine)),
    ("M25", " [fp32]", 191, lambda machine: load_stationary_ns(128, machine.tensor_fp32_passes, machine)),
    ("M26", " [bf16, mid]", 265, _transpose("bfloat16")),
    ("M26", " [fp32]", 271, _transpose("float32")),
    ("M27", " [4096]", 157, _packet(4096)),
    ("M27", " [2048]", 82, _packet(2048)),
    ("M27", " [512]", 25, _packet(512)),
    ("M27", " [256]", 16, _packet(256)),
    ("M27", " [4]", 8, _packet(4)),
)
