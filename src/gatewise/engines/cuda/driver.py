"""The CUDA driver by ctypes: devices, modules, launches, memory sets. No CUDA toolkit and no framework is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from ...errors import GatewiseError, UnsupportedError
from .compiler import find_library


class CudaError(GatewiseError, RuntimeError):
    """The CUDA driver reported an error."""


_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 8, 14  # CUfunction_attribute
_SM_COUNT, _SHARED_LIMIT, _MAJOR, _MINOR, _COOPERATIVE_LAUNCH = 16, 97, 75, 76, 95  # CUdevice_attribute


@lru_cache(maxsize=1)
def _cuda() -> ctypes.CDLL:
    library = find_library("libcuda.so.1")
    if library is None:
        raise UnsupportedError("no NVIDIA driver (libcuda.so.1) is installed")
    code = library.cuInit(0)
    if code:
        raise UnsupportedError(f"the NVIDIA driver cannot start (error {code})")
    return library


def _error(code: int, what: str) -> CudaError:
    text = ctypes.c_char_p()
    _cuda().cuGetErrorString(code, ctypes.byref(text))
    return CudaError(f"CUDA: {what}: {(text.value or b'unknown error').decode()} (error {code})")


def _check(code: int, what: str) -> None:
    if code:
        raise _error(code, what)


@lru_cache(maxsize=1)
def unavailable() -> str | None:
    """Why no GPU can be used, or None."""
    try:
        library = _cuda()
    except UnsupportedError as error:
        return str(error)
    count = ctypes.c_int()
    if library.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return "the NVIDIA driver finds no GPU"
    return None


@dataclass(frozen=True)
class Device:
    """What the planner needs to know of a GPU."""

    sm_count: int
    shared_limit: int  # bytes of shared memory a block may have
    major: int
    minor: int
    cooperative: bool = True

    @property
    def architecture(self) -> str:
        return f"sm_{self.major}{self.minor}"


H200 = Device(132, 232448, 9, 0)
A100 = Device(108, 166912, 8, 0)


@lru_cache(maxsize=64)
def device(index: int) -> Device:
    def attribute(number: int) -> int:
        value = ctypes.c_int()
        _check(_cuda().cuDeviceGetAttribute(ctypes.byref(value), number, index), "device attribute")
        return value.value

    return Device(
        attribute(_SM_COUNT),
        attribute(_SHARED_LIMIT),
        attribute(_MAJOR),
        attribute(_MINOR),
        bool(attribute(_COOPERATIVE_LAUNCH)),
    )


@lru_cache(maxsize=64)
def primary_context(index: int) -> int:
    context = ctypes.c_void_p()
    _check(_cuda().cuDevicePrimaryCtxRetain(ctypes.byref(context), index), "context")
    return int(context.value or 0)


@contextmanager
def active(index: int) -> Iterator[None]:
    """Inside, the GPU's primary context, the one every framework uses, is current in this thread."""
    wanted, before = primary_context(index), ctypes.c_void_p()
    _check(_cuda().cuCtxGetCurrent(ctypes.byref(before)), "context")
    if before.value == wanted:
        yield
        return
    _check(_cuda().cuCtxSetCurrent(ctypes.c_void_p(wanted)), "context")
    try:
        yield
    finally:
        if before.value is not None:
            _check(_cuda().cuCtxSetCurrent(before), "context")


class Module:
    """A cubin loaded on one GPU."""

    def __init__(self, cubin: bytes) -> None:
        self._handle = ctypes.c_void_p()
        _check(_cuda().cuModuleLoadData(ctypes.byref(self._handle), cubin), "loading a kernel")
        self._functions: dict[str, ctypes.c_void_p] = {}

    def __getitem__(self, name: str) -> ctypes.c_void_p:
        """A kernel."""
        if name not in self._functions:
            handle = ctypes.c_void_p()
            _check(_cuda().cuModuleGetFunction(ctypes.byref(handle), self._handle, name.encode()), f"finding {name}")
            self._functions[name] = handle
        return self._functions[name]


@dataclass(frozen=True)
class Launch:
    """A kernel with everything about its launch but the stream and the arguments."""

    kernel: ctypes.c_void_p
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int = 0
    cooperative: bool = False
    cluster: int = 1

    def __post_init__(self) -> None:
        if self.shared_bytes > 48 * 1024:
            _check(_cuda().cuFuncSetAttribute(self.kernel, _MAX_DYNAMIC_SHARED, self.shared_bytes), "shared memory limit")
        if self.cluster > 8:
            _check(_cuda().cuFuncSetAttribute(self.kernel, _NON_PORTABLE_CLUSTER, 1), "cluster size")

    @property
    def function(self) -> int:
        return int(self.kernel.value or 0)


def address(library: ctypes.CDLL, name: str) -> int:
    """Of a function."""
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)


# What a native tape calls, in its order; cublasLtMatmul comes between the two.
_CALLED = ("cuCtxGetCurrent", "cuCtxSetCurrent", "cuLaunchKernelEx", "cuMemsetD8Async", "cuMemsetD32Async")
_CALLED_FOR_GRAPHS = (
    "cuStreamIsCapturing", "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamBeginCapture_v2", "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphDestroy", "cuGraphExecDestroy",
)  # fmt: skip


def addresses(matmul: int) -> list[int]:
    """Of the functions a native tape calls."""
    first, last = ([address(_cuda(), name) for name in names] for names in (_CALLED, _CALLED_FOR_GRAPHS))
    return [*first, matmul, *last]


def failed(of_cublas: bool, code: int, what: str) -> CudaError:
    """The error for what a native tape could not do."""
    return CudaError(f"cuBLAS: {what} failed (status {code})") if of_cublas else _error(code, what)


class Memory:
    """A piece of a GPU's memory, freed with this object; for callers that bring none of their own."""

    def __init__(self, size: int) -> None:
        self._pointer = ctypes.c_uint64()
        if size:
            _check(_cuda().cuMemAllocAsync(ctypes.byref(self._pointer), ctypes.c_size_t(size), None), "taking memory")
        self.pointer = int(self._pointer.value)

    def __del__(self) -> None:
        if self._pointer.value:
            _cuda().cuMemFreeAsync(self._pointer, None)


def upload(pointer: int, source: int, size: int) -> None:
    """Copy from the host; complete when it returns."""
    if size:
        _check(_cuda().cuMemcpyHtoD_v2(ctypes.c_uint64(pointer), ctypes.c_void_p(source), ctypes.c_size_t(size)), "copying")


def download(target: int, pointer: int, size: int) -> None:
    """Copy to the host, after everything on the default stream; complete when it returns."""
    if size:
        _check(_cuda().cuMemcpyDtoH_v2(ctypes.c_void_p(target), ctypes.c_uint64(pointer), ctypes.c_size_t(size)), "copying")


def synchronise(stream: int) -> None:
    _check(_cuda().cuStreamSynchronize(ctypes.c_void_p(stream)), "waiting")
