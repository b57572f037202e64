"""`cuda.bindings.driver`: the functions that are called, with the signatures and errors of the real ones."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from triton_tests.pretend.device import CudaFailure, Device
from triton_tests.pretend.enums import (  # noqa: F401
    CUdevice_attribute,
    CUfunction_attribute,
    CUlaunchAttributeID,
    CUresult,
    CUstream_flags,
    CUstreamCaptureMode,
    CUtensorMapDataType,
    CUtensorMapFloatOOBfill,
    CUtensorMapInterleave,
    CUtensorMapL2promotion,
    CUtensorMapSwizzle,
)

STATE = Path()
"""The folder with `state.json` and the kernels; set by whoever puts this in place."""
_device: Device | None = None
_UUID = bytes(range(16))


def device() -> Device:
    if _device is None:
        raise CudaFailure(CUresult.CUDA_ERROR_NOT_INITIALIZED)
    return _device


def function(body: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """As the bindings have them: (error, results...)."""

    @wraps(body)
    def call(*arguments: Any) -> tuple[Any, ...]:
        try:
            if body.__name__ != "cuInit":
                device().call(body.__name__[2:])
            results = body(*arguments)
        except CudaFailure as failure:
            return (failure.result,)
        if results is None:
            return (CUresult.CUDA_SUCCESS,)
        return (CUresult.CUDA_SUCCESS, *results)

    return call


class CUuuid:
    def __init__(self, device: int) -> None:
        self.bytes = bytes([*_UUID[:15], _UUID[15] + device])


class cuuint64_t(int): ...


class cuuint32_t(int): ...


class _Dimension:
    x = y = z = 1


class CUlaunchAttributeValue:
    def __init__(self) -> None:
        self.clusterDim = _Dimension()


class CUlaunchAttribute:
    def __init__(self) -> None:
        self.id: Any = None
        self.value = CUlaunchAttributeValue()


class CUlaunchConfig:
    def __init__(self) -> None:
        self.gridDimX = self.gridDimY = self.gridDimZ = self.blockDimX = self.blockDimY = self.blockDimZ = 0
        self.sharedMemBytes, self.hStream, self.numAttrs = 0, None, 0
        self.attrs: list[CUlaunchAttribute] = []


class CUtensorMap:
    def __init__(self, number: int) -> None:
        self._memory = (ctypes.c_ubyte * 128)()
        ctypes.memmove(self._memory, number.to_bytes(8, "little"), 8)

    def getPtr(self) -> int:
        return ctypes.addressof(self._memory)


class _Event:
    time_us = 0.0


# --- the device ---------------------------------------------------------------------------------------


@function
def cuInit(Flags: int) -> None:
    global _device
    _device = Device(STATE)
    if _device.state["devices"] == 0:
        raise CudaFailure(CUresult.CUDA_ERROR_NO_DEVICE)


@function
def cuDriverGetVersion() -> Any:
    return (12080,)


def _visible() -> list[int]:
    """CUDA's own variable, as far as it names numbers."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(range(device().state["devices"])) if chosen is None else [int(word) for word in chosen.split(",")]


@function
def cuDeviceGetCount() -> Any:
    return (len(_visible()),)


@function
def cuDeviceGet(ordinal: int) -> Any:
    if ordinal >= len(_visible()):
        raise CudaFailure(CUresult.CUDA_ERROR_INVALID_DEVICE)
    return (_visible()[ordinal],)


@function
def cuDeviceGetName(length: int, dev: Any) -> Any:
    name = device().state["other_names"].get(str(dev), device().state["name"])
    return (name.encode()[: length - 1].ljust(length, b"\0"),)


@function
def cuDeviceGetUuid(dev: Any) -> Any:
    return (CUuuid(dev),)


@function
def cuDeviceGetAttribute(attrib: CUdevice_attribute, dev: Any) -> Any:
    state, names = device().state, CUdevice_attribute
    known = {
        names.CU_DEVICE_ATTRIBUTE_CLOCK_RATE: 1_980_000,
        names.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: state["multiprocessors"],
        names.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: state["l2_bytes"],
        names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: state["capability"] // 10,
        names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: state["capability"] % 10,
        names.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: state["shared_bytes"],
    }
    return (known[attrib],)


@function
def cuDeviceTotalMem(dev: Any) -> Any:
    return (device().state["memory_bytes"],)


@function
def cuDevicePrimaryCtxRetain(dev: Any) -> Any:
    return ("context",)


@function
def cuCtxSetCurrent(ctx: Any) -> None:
    assert ctx == "context"


# --- memory -------------------------------------------------------------------------------------------


@function
def cuMemGetInfo() -> Any:
    memory = device().memory
    return memory.limit - sum(buffer.nbytes for buffer in memory.allocations.values()), memory.limit


@function
def cuMemAlloc(bytesize: int) -> Any:
    return (device().memory.allocate(bytesize),)


@function
def cuMemFree(dptr: int) -> None:
    device().memory.free(dptr)


@function
def cuMemcpyHtoDAsync(dstDevice: int, srcHost: int, ByteCount: int, hStream: Any) -> None:
    contents = ctypes.string_at(srcHost, ByteCount)

    def work() -> float:
        device().memory.at(dstDevice, ByteCount)[:] = bytearray(contents)
        return device().moved(dstDevice, ByteCount)

    device().enqueue(work)


@function
def cuMemcpyDtoH(dstHost: int, srcDevice: int, ByteCount: int) -> None:
    device().wait()
    ctypes.memmove(dstHost, device().memory.at(srcDevice, ByteCount).tobytes(), ByteCount)


@function
def cuMemcpyDtoDAsync(dstDevice: int, srcDevice: int, ByteCount: int, hStream: Any) -> None:
    def work() -> float:
        device().memory.at(dstDevice, ByteCount)[:] = device().memory.at(srcDevice, ByteCount)
        return device().moved(srcDevice, ByteCount) + device().moved(dstDevice, ByteCount)

    device().enqueue(work)


def _filled(address: int, value: int, size: int, count: int) -> None:
    def work() -> float:
        target = device().memory.at(address, size * count).reshape(count, size)
        target[:] = bytearray(int(value).to_bytes(size, "little"))
        return device().moved(address, size * count)

    device().enqueue(work)


@function
def cuMemsetD8Async(dstDevice: int, uc: int, N: int, hStream: Any) -> None:
    _filled(dstDevice, uc, 1, N)


@function
def cuMemsetD16Async(dstDevice: int, us: int, N: int, hStream: Any) -> None:
    _filled(dstDevice, us, 2, N)


@function
def cuMemsetD32Async(dstDevice: int, ui: int, N: int, hStream: Any) -> None:
    _filled(dstDevice, ui, 4, N)


@function
def cuMemsetD2D32Async(dstDevice: int, dstPitch: int, ui: int, Width: int, Height: int, hStream: Any) -> None:
    def work() -> float:
        for row in range(Height):
            device().memory.at(dstDevice + row * dstPitch, 4 * Width)[:] = bytearray(ui.to_bytes(4, "little") * Width)
        return device().moved(dstDevice, 4 * Width)

    device().enqueue(work)


# --- kernels ------------------------------------------------------------------------------------------


@function
def cuModuleLoadData(image: bytes) -> Any:
    return (device().load(image),)


@function
def cuModuleUnload(hmod: Any) -> None: ...


@function
def cuModuleGetFunction(hmod: Any, name: bytes) -> Any:
    return (device().kernel(hmod, name.decode()),)


@function
def cuFuncSetAttribute(hfunc: Any, attrib: CUfunction_attribute, value: int) -> None:
    if value > device().state["shared_bytes"]:
        raise CudaFailure(CUresult.CUDA_ERROR_INVALID_VALUE)


@function
def cuOccupancyMaxActiveBlocksPerMultiprocessor(func: Any, blockSize: int, dynamicSMemSize: int) -> Any:
    return (max(1, 2048 // blockSize),)


@function
def cuLaunchKernel(
    f: Any, gridDimX: int, gridDimY: int, gridDimZ: int, blockDimX: int, blockDimY: int, blockDimZ: int,
    sharedMemBytes: int, hStream: Any, kernelParams: int, extra: int,
) -> None:  # fmt: skip
    assert blockDimX % 32 == 0 and blockDimY == blockDimZ == 1 and not extra
    device().launch(f, (gridDimX, gridDimY, gridDimZ), 1, sharedMemBytes, kernelParams)


@function
def cuLaunchKernelEx(config: CUlaunchConfig, f: Any, kernelParams: int, extra: int) -> None:
    (attribute,) = config.attrs
    assert attribute.id is CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION and config.numAttrs == 1
    grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
    device().launch(f, grid, attribute.value.clusterDim.x, config.sharedMemBytes, kernelParams)


@function
def cuTensorMapEncodeTiled(
    tensorDataType: Any, tensorRank: int, globalAddress: int, globalDim: list[int], globalStrides: list[int],
    boxDim: list[int], elementStrides: list[int], interleave: Any, swizzle: Any, l2Promotion: Any, oobFill: Any,
) -> Any:  # fmt: skip
    size = {0: 1, 1: 2, 2: 4, 3: 4, 6: 2, 7: 4, 8: 8, 9: 2}.get(int(tensorDataType), 8)
    if globalAddress % 16 or any(stride % 16 for stride in globalStrides) or not all(map(int, globalDim)):
        raise CudaFailure(CUresult.CUDA_ERROR_INVALID_VALUE)
    assert len(globalDim) == len(boxDim) == len(elementStrides) == tensorRank == len(globalStrides) + 1
    number = len(device().maps) + 1
    device().maps[number] = {
        "address": globalAddress,
        "sizes": tuple(int(n) for n in globalDim[::-1]),
        "strides": (*(int(n) // size for n in globalStrides[::-1]), 1),
        "padding": float("nan") if int(oobFill) else 0.0,
    }
    return (CUtensorMap(number),)


# --- streams, events, graphs --------------------------------------------------------------------------


@function
def cuStreamCreate(Flags: int) -> Any:
    return ("stream",)


@function
def cuStreamSynchronize(hStream: Any) -> None:
    device().wait()


@function
def cuEventCreate(Flags: int) -> Any:
    return (_Event(),)


@function
def cuEventRecord(hEvent: _Event, hStream: Any) -> None:
    gpu = device()
    resolution = gpu.state["event_us"]
    hEvent.time_us = round(max(gpu.free_at_us, gpu.host_us) / resolution) * resolution


@function
def cuEventQuery(hEvent: _Event) -> None:
    if hEvent.time_us > device().host_us:
        raise CudaFailure(CUresult.CUDA_ERROR_NOT_READY)


@function
def cuEventSynchronize(hEvent: _Event) -> None:
    device().wait()


@function
def cuEventElapsedTime(hStart: _Event, hEnd: _Event) -> Any:
    return ((hEnd.time_us - hStart.time_us) / 1e3,)


@function
def cuStreamBeginCapture(hStream: Any, mode: CUstreamCaptureMode) -> None:
    device().capturing = []


@function
def cuStreamEndCapture(hStream: Any) -> Any:
    graph, device().capturing = device().capturing, None
    return (graph,)


@function
def cuGraphInstantiate(hGraph: Any, flags: int) -> Any:
    return (list(hGraph),)


@function
def cuGraphDestroy(hGraph: Any) -> None: ...


@function
def cuGraphExecDestroy(hGraphExec: Any) -> None: ...


@function
def cuGraphLaunch(hGraphExec: Any, hStream: Any) -> None:
    for work in hGraphExec:
        work()
