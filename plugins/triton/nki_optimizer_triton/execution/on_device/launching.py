"""Kernels loaded from cubins, and the steps of a launch program put into a stream."""

from __future__ import annotations

import ctypes
from typing import Any

from nki_optimizer_triton.execution.on_device.arena import Arena
from nki_optimizer_triton.execution.on_device.calls import Cuda

_DEFAULT_SHARED_BYTES = 48 << 10
"""That a block may have without asking (CUDA C++ Programming Guide, shared memory of 7.x and higher)."""
_PORTABLE_CLUSTER = 8
"""Blocks of a cluster that every GPU with clusters takes (CUDA C++ Programming Guide, Thread Block Clusters)."""


class LoadedKernel:
    def __init__(self, cuda: Cuda, cubin: bytes | bytearray, facts: dict[str, Any]) -> None:
        self._cuda = cuda
        self.facts = facts
        self._image = bytes(cubin)
        self.module = cuda("ModuleLoadData", self._image)
        self.function = cuda("ModuleGetFunction", self.module, facts["name"].encode())
        attribute = cuda.driver.CUfunction_attribute
        if facts["shared"] > _DEFAULT_SHARED_BYTES:
            cuda(
                "FuncSetAttribute", self.function, attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                facts["shared"],
            )  # fmt: skip
        if facts["blocks_per_cluster"] > _PORTABLE_CLUSTER:
            cuda("FuncSetAttribute", self.function, attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)

    def resident_blocks(self) -> int:
        """On one multiprocessor, as the driver has it."""
        threads, shared = 32 * self.facts["warps"], self.facts["shared"]
        return int(self._cuda("OccupancyMaxActiveBlocksPerMultiprocessor", self.function, threads, shared))

    def unload(self) -> None:
        self._cuda("ModuleUnload", self.module)


class Prepared:
    """The steps of a program in one arena: parameters in memory, ready to be put into a stream any number of times."""

    def __init__(self, cuda: Cuda, plan: dict[str, Any], kernels: list[LoadedKernel], arena: Arena) -> None:
        self._cuda = cuda
        self._steps: list[dict[str, Any] | tuple[LoadedKernel, list[int], _Parameters]] = []
        for step in plan["steps"]:
            if "fill" in step:
                self._steps.append(step)
            else:
                kernel = kernels[step["launch"]]
                self._steps.append((kernel, step["grid"], _Parameters(cuda, step, arena)))
        self._arena = arena

    def enqueue(self, stream: Any) -> None:
        for step in self._steps:
            if isinstance(step, dict):
                _fill(self._cuda, step, self._arena, stream)
            else:
                self._launch(*step, stream=stream)

    def _launch(self, kernel: LoadedKernel, grid: list[int], parameters: _Parameters, stream: Any) -> None:
        """As Triton launches: clusters lie along x (triton/backends/nvidia/driver.c, _launch)."""
        clusters, threads = kernel.facts["blocks_per_cluster"], 32 * kernel.facts["warps"]
        shape = (grid[0] * clusters, grid[1], grid[2], threads, 1, 1)
        if clusters == 1:
            self._cuda("LaunchKernel", kernel.function, *shape, kernel.facts["shared"], stream, parameters.address, 0)
            return
        driver = self._cuda.driver
        config = driver.CUlaunchConfig()
        for name, value in zip(("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"), shape):
            setattr(config, name, value)
        config.sharedMemBytes, config.hStream = kernel.facts["shared"], stream
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dimension = attribute.value.clusterDim
        dimension.x, dimension.y, dimension.z = clusters, 1, 1
        config.attrs, config.numAttrs = [attribute], 1
        self._cuda("LaunchKernelEx", config, kernel.function, parameters.address, 0)


class _Parameters:
    """An array of pointers to a kernel's parameters, as the driver reads it."""

    def __init__(self, cuda: Cuda, step: dict[str, Any], arena: Arena) -> None:
        self._kept: list[Any] = []
        pointers = []
        scratch = [arena.scratch, 0][: step["scratch_pointers"]]
        for parameter in [*step["parameters"], *(["address", address] for address in scratch)]:
            pointers.append(self._pointer(cuda, parameter, arena))
        array = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        self._kept.append(array)
        self.address = ctypes.addressof(array)

    def _pointer(self, cuda: Cuda, parameter: list[Any], arena: Arena) -> int:
        kind = parameter[0]
        if kind == "pointer":
            return self._keep(ctypes.c_uint64(arena.address(parameter[1], parameter[2])))
        if kind == "address":
            return self._keep(ctypes.c_uint64(parameter[1]))
        if kind == "number":
            contents = bytes.fromhex(parameter[1])
            return self._keep((ctypes.c_ubyte * len(contents)).from_buffer_copy(contents))
        made = _tensor_map(cuda, parameter[1], arena)
        self._kept.append(made)
        return int(made.getPtr())

    def _keep(self, value: Any) -> int:
        self._kept.append(value)
        return ctypes.addressof(value)


_HOST_TYPES = {8: 10, 9: 8, 10: 9}
"""Triton's numbers of element types are those of the device; the host's enum has three in another order
(TMA_DTYPE_DEVICE_TO_HOST in triton/backends/nvidia/driver.py)."""


def _tensor_map(cuda: Cuda, layout: dict[str, Any], arena: Arena) -> Any:
    """As Triton makes them (fill_tma_descriptor in driver.c): the innermost axis first."""
    driver = cuda.driver
    shape, strides, block = layout["shape"][::-1], layout["strides"][::-1], layout["block"][::-1]
    size = layout["element_bytes"]
    fill = driver.CUtensorMapFloatOOBfill
    return cuda(
        "TensorMapEncodeTiled",
        driver.CUtensorMapDataType(_HOST_TYPES.get(layout["element_type"], layout["element_type"])),
        len(shape),
        arena.address(layout["buffer"], layout["offset"]),
        [driver.cuuint64_t(n) for n in shape],
        [driver.cuuint64_t(n * size) for n in strides[1:]],
        [driver.cuuint32_t(n) for n in block],
        [driver.cuuint32_t(1)] * len(shape),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle(layout["swizzle"]),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
        if layout["nan"]
        else fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )


def _fill(cuda: Cuda, step: dict[str, Any], arena: Arena, stream: Any) -> None:
    """One value in every element: of 8 bytes in two halves, since the driver fills with 4 at most."""
    element, count = bytes.fromhex(step["element"]), step["count"]
    address = arena.address(step["fill"], step["offset"])
    number = int.from_bytes(element, "little")
    if len(element) < 8:
        cuda(f"MemsetD{8 * len(element)}Async", address, number, count, stream)
        return
    for half in range(2):
        part = number >> 32 * half & 0xFFFFFFFF
        cuda("MemsetD2D32Async", address + 4 * half, 8, part, 1, count, stream)


def scratch_bytes(plan: dict[str, Any]) -> int:
    """That the launches of a program need at most at once: Triton asks for so much for every block of a grid."""
    needed = [0]
    for step in plan["steps"]:
        if "launch" in step:
            kernel = plan["kernels"][step["launch"]]
            blocks = step["grid"][0] * step["grid"][1] * step["grid"][2] * kernel["blocks_per_cluster"]
            needed.append(blocks * kernel["scratch"][0])
    return max(needed)
