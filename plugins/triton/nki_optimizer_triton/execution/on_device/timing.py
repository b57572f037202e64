"""Timing a launch program on a GPU, each call with a cold L2 cache, by CUDA's events.

One sample is a region between two events: as many calls, one after the other, as make the region so long that the
resolution of an event (about 0.5 µs: CUDA driver interface, cuEventElapsedTime) does not matter. Every call of a region
has tensors of its own, and before the region a buffer of twice the L2's size is overwritten, so that what a call reads
first comes from memory. The calls are put into a CUDA graph, and the overwriting lasts longer than it takes to hand
that to the GPU: what is timed is the GPU's work and never this process's. What is updated in place is put back before
each region.
"""

from __future__ import annotations

import math
import time
from typing import Any

from nki_optimizer_triton.execution.on_device.arena import ALIGNMENT, Arena
from nki_optimizer_triton.execution.on_device.calls import Cuda, releasing
from nki_optimizer_triton.execution.on_device.clocks import Clocks, Seen
from nki_optimizer_triton.execution.on_device.launching import LoadedKernel, Prepared, scratch_bytes

REGION_US = 200.0
"""At least so long is a region, where memory allows: an event's half microsecond is then a quarter of a percent."""
MOST_CALLS = 64
"""Of one region."""
WARM_S = 0.05
"""A GPU that idles takes tens of milliseconds to raise its clocks."""
MOST_WARM_CALLS = 10_000
_MEMORY_SHARE = 0.5
"""Of what is free, for the tensors of one region's calls."""
_L2_FACTOR = 2


class Late(Exception):
    """Timing does not end in time."""


class Timer:
    """Keeps the buffer that is overwritten, and the events."""

    def __init__(self, cuda: Cuda, stream: Any, l2_bytes: int, clocks: Clocks) -> None:
        self._cuda = cuda
        self._stream = stream
        self._clocks = clocks
        self._flushed_bytes = max(_L2_FACTOR * l2_bytes, 1 << 20)
        self._flushed = int(cuda("MemAlloc", self._flushed_bytes))
        self._start, self._end = cuda("EventCreate", 0), cuda("EventCreate", 0)
        self._flushes = 1
        self._late = 0
        """Regions that this process may have handed over when the GPU had already begun to wait."""

    def time(
        self,
        plan: dict[str, Any],
        kernels: list[LoadedKernel],
        inputs: Arena,
        warmup: int,
        iterations: int,
        deadline: float,
    ) -> tuple[dict[str, Any], list[Any]]:
        """`inputs`: the master copies. What was measured, and the output buffers of the first and the last call."""
        sets = [self._tensors(plan, inputs)]
        graphs: list[Any] = []

        def release() -> None:
            for graph in graphs:
                self._cuda("GraphExecDestroy", graph)
            for tensors in sets:
                tensors.free()

        with releasing(release):
            first = Prepared(self._cuda, plan, kernels, sets[0])
            graphs.append(self._graph([first]))
            self._warm(graphs[0], plan, sets, inputs, warmup, deadline)
            once_us = min(self._region(graphs[0], plan, sets, inputs, deadline) for _ in range(3))
            calls = self._calls(once_us, sets[0].nbytes)
            for _ in range(calls - 1):
                sets.append(self._tensors(plan, inputs))
            prepared = [first, *(Prepared(self._cuda, plan, kernels, tensors) for tensors in sets[1:])]
            graphs.append(self._graph(prepared))
            self._region(graphs[1], plan, sets, inputs, deadline)
            seen, self._late = Seen(), 0
            self._clocks.look(seen)
            samples = []
            for _ in range(iterations):
                samples.append(self._region(graphs[1], plan, sets, inputs, deadline) / calls)
                self._clocks.look(seen)
            outputs = [tensors.read(number) for tensors in (sets[0], sets[-1]) for number in plan["outputs"]]
            measured = {
                "samples_us": samples,
                "calls": calls,
                "begun_late": self._late,
                **seen.as_json(),
                "clocks_unseen": self._clocks.why_not,
            }
        return measured, outputs

    def _tensors(self, plan: dict[str, Any], inputs: Arena) -> Arena:
        sizes = [buffer["bytes"] for buffer in plan["buffers"]]
        tensors = Arena(self._cuda, sizes, ALIGNMENT, scratch_bytes(plan))
        tensors.fill(0, self._stream)
        for number in range(plan["inputs"]):
            tensors.copy_from(inputs, number, self._stream)
        return tensors

    def _graph(self, calls: list[Prepared]) -> Any:
        mode = self._cuda.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._cuda("StreamBeginCapture", self._stream, mode)
        for call in calls:
            call.enqueue(self._stream)
        graph = self._cuda("StreamEndCapture", self._stream)
        executable = self._cuda("GraphInstantiate", graph, 0)
        self._cuda("GraphDestroy", graph)
        return executable

    def _warm(
        self, graph: Any, plan: dict[str, Any], sets: list[Arena], inputs: Arena, warmup: int, deadline: float
    ) -> None:
        began, count = time.monotonic(), 0
        while count < max(1, warmup) or (time.monotonic() - began < WARM_S and count < MOST_WARM_CALLS):
            self._restore(plan, sets, inputs)
            self._cuda("GraphLaunch", graph, self._stream)
            self._cuda("StreamSynchronize", self._stream)
            count += 1
            _check(deadline)

    def _calls(self, once_us: float, nbytes: int) -> int:
        free, _ = self._cuda("MemGetInfo")
        fitting = 1 + int(_MEMORY_SHARE * free) // nbytes
        wanted = math.ceil(REGION_US / max(once_us, 0.1))
        return max(1, min(wanted, fitting, MOST_CALLS))

    def _restore(self, plan: dict[str, Any], sets: list[Arena], inputs: Arena) -> None:
        for number in plan["in_place"]:
            for tensors in sets:
                tensors.copy_from(inputs, number, self._stream)

    def _region(self, graph: Any, plan: dict[str, Any], sets: list[Arena], inputs: Arena, deadline: float) -> float:
        """In µs. Again where this process was not ready before the GPU was."""
        while True:
            self._restore(plan, sets, inputs)
            self._cuda("StreamSynchronize", self._stream)
            began = time.perf_counter()
            for number in range(self._flushes):
                self._cuda("MemsetD8Async", self._flushed, number & 0xFF, self._flushed_bytes, self._stream)
            self._cuda("EventRecord", self._start, self._stream)
            self._cuda("GraphLaunch", graph, self._stream)
            self._cuda("EventRecord", self._end, self._stream)
            handed_over = self._still_overwriting()
            self._cuda("EventSynchronize", self._end)
            _check(deadline)
            if handed_over or self._flushes >= _MOST_FLUSHES or time.perf_counter() - began > _LONG_S:
                self._late += not handed_over
                return 1e3 * float(self._cuda("EventElapsedTime", self._start, self._end))
            self._flushes *= 2

    def _still_overwriting(self) -> bool:
        """Whether the GPU has yet to come to the first event: then all that follows was there in time."""
        driver = self._cuda.driver
        (error,) = driver.cuEventQuery(self._start)
        return bool(error == driver.CUresult.CUDA_ERROR_NOT_READY)


_MOST_FLUSHES = 64
_LONG_S = 0.01
"""A region that takes longer is not shortened by a late start."""


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise Late
