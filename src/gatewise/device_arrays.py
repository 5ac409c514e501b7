"""CUDA arrays of any framework: read without a copy, results made by the caller's framework on the caller's stream.

Frameworks are recognised by the arrays they made; gatewise never imports one first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .arrays import Kind, bfloat16
from .errors import DTypeError, UnsupportedError

ALIGNMENT = 16  # bytes, of arrays that are used where they are; others are copied


@dataclass(slots=True)
class DeviceArray:
    """A strided array in the memory of one GPU. `owner` is the framework's array and keeps the memory alive."""

    owner: Any
    kind: CudaKind
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        size = 1
        for length in self.shape:
            size *= length
        return size

    @property
    def aligned(self) -> bool:
        return self.pointer % ALIGNMENT == 0

    @property
    def contiguous(self) -> bool:
        expected = 1
        for length, stride in zip(self.shape[::-1], self.strides[::-1], strict=True):
            if length != 1 and stride != expected:
                return False
            expected *= length
        return True


@lru_cache(maxsize=64)
def dtype_of(name: str) -> np.dtype[Any]:
    return bfloat16() if name == "bfloat16" else np.dtype(name)


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in shape[::-1]:
        strides.append(step)
        step *= length
    return tuple(strides[::-1])


class CudaKind(Kind):
    """One framework on one GPU."""

    device = "cuda"
    index: int = 0  # of the GPU
    replays = False  # `layouts` can tell calls apart
    synchronises = False  # the framework keeps its stream to itself, so a call ends with a wait

    def read(self, operation: str, name: str, value: Any) -> Any:
        raise NotImplementedError

    def wrap(self, result: Any) -> Any:
        return result.owner

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Any]:
        """Makes new arrays of the framework."""
        raise NotImplementedError

    def layouts(self, given: dict[str, Any]) -> Hashable:
        """What of a call's arguments decides how it runs: those with the same can take each other's place. None if an
        argument needs a closer look."""
        return None

    pointer: Callable[[Any], int]  # of an array of the framework: a result, or an argument of a call with known layouts

    def stream(self) -> int:
        """The caller's current stream, as the driver's handle."""
        raise NotImplementedError

    def _elsewhere(self, operation: str, name: str, where: str) -> UnsupportedError:
        return UnsupportedError(
            f"{operation}: {name} is on {where}, source on cuda:{self.index} (all arrays of a call must be on one device)"
        )


class _TorchCuda(CudaKind):
    name = "torch"
    replays = True

    def __init__(self, index: int) -> None:
        torch = sys.modules["torch"]
        self.index = index
        self._torch = torch
        self._device = torch.device("cuda", index)
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._strided = torch.strided
        floating = ("float32", "float16", "bfloat16", "float64", "bool")
        integers = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
        self._names = {getattr(torch, each): dtype_of(each) for each in floating + integers if hasattr(torch, each)}
        self._dtypes = {value: key for key, value in self._names.items()}
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self.pointer = torch.Tensor.data_ptr

    def read(self, operation: str, name: str, value: Any) -> Any:
        torch = self._torch
        if not isinstance(value, torch.Tensor):
            raise self._elsewhere(operation, name, f"a {type(value).__name__}")
        if value.device != self._device:
            raise self._elsewhere(operation, name, str(value.device))
        if value.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                f"{operation}: {name} requires grad, which an eager operation would lose "
                "(call it on .detach()ed tensors or under torch.no_grad(), and use the _gradients operation)"
            )
        if value.layout != torch.strided or value.is_conj() or value.is_neg():
            raise DTypeError(f"{operation}: {name} cannot be read as a plain array (make it .contiguous() and dense)")
        dtype = self._names.get(value.dtype)
        if dtype is None:
            raise DTypeError(f"{operation}: {name} has dtype {value.dtype}, which no operation takes")
        return DeviceArray(value, self, value.data_ptr(), tuple(value.shape), value.stride(), dtype)

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Any]:
        # Takes half the time of torch.empty, which has several forms to choose from. Strides of empty arrays are as there.
        strides = packed_strides(tuple(max(length, 1) for length in shape))
        return partial(self._torch.empty_strided, shape, strides, dtype=self._dtypes[dtype], device=self._device)

    def layouts(self, given: dict[str, Any]) -> Hashable:
        plain, strided, follows_gradients = self._plain, self._strided, self._torch.is_grad_enabled
        found: list[Any] = []
        for name, value in given.items():  # in the operation's order
            if value is None or name == "descriptor":
                found.append(None)
            elif (
                type(value) not in plain
                or value.is_neg()
                or value.layout is not strided
                or (value.requires_grad and follows_gradients())
            ):
                return None
            else:
                found += value.shape, value.stride(), value.dtype, value.device
        return tuple(found)

    def stream(self) -> int:
        if self._raw_stream is not None:
            return self._raw_stream(self.index)  # type: ignore[no-any-return]
        return int(self._torch.cuda.current_stream(self._device).cuda_stream)


class _Cupy(CudaKind):
    name = "cupy"

    def __init__(self, index: int) -> None:
        self.index = index
        self._cupy = sys.modules["cupy"]
        self.pointer = lambda value: int(value.data.ptr)

    def read(self, operation: str, name: str, value: Any) -> Any:
        if not isinstance(value, self._cupy.ndarray):
            raise self._elsewhere(operation, name, f"a {type(value).__name__}")
        if value.device.id != self.index:
            raise self._elsewhere(operation, name, f"cuda:{value.device.id}")
        size = value.itemsize
        if any(stride % size for stride in value.strides):
            raise DTypeError(f"{operation}: {name} has strides that are no multiples of its element size")
        strides = tuple(stride // size for stride in value.strides)
        return DeviceArray(value, self, int(value.data.ptr), tuple(value.shape), strides, value.dtype)

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Any]:
        def make() -> Any:
            with self._cupy.cuda.Device(self.index):
                return self._cupy.empty(shape, dtype)

        return make

    def stream(self) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)


class _JaxCuda(CudaKind):
    """JAX has no current stream to share: inputs are waited for, and so is the call."""

    name = "jax"
    synchronises = True

    def __init__(self, index: int, device: Any) -> None:
        self.index = index
        self._jax = sys.modules["jax"]
        self._device = device
        self.pointer = lambda value: int(value.unsafe_buffer_pointer()) if value.size else 0

    def read(self, operation: str, name: str, value: Any) -> Any:
        jax = self._jax
        if isinstance(value, jax.core.Tracer):
            raise UnsupportedError(
                f"{operation}: {name} is being traced by JAX; the eager operations need arrays with values "
                "(call them outside jit, grad and vmap)"
            )
        if not isinstance(value, jax.Array) or value.devices() != {self._device}:
            raise self._elsewhere(operation, name, "another device")
        value.block_until_ready()
        shape = tuple(value.shape)
        return DeviceArray(value, self, value.unsafe_buffer_pointer(), shape, packed_strides(shape), np.dtype(value.dtype))

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Any]:
        def make() -> Any:
            with self._jax.default_device(self._device):
                return self._jax.numpy.zeros(shape, dtype).block_until_ready()

        return make

    def stream(self) -> int:
        return 0


@lru_cache(maxsize=64)
def torch_kind(index: int) -> CudaKind:
    return _TorchCuda(index)


@lru_cache(maxsize=64)
def cupy_kind(index: int) -> CudaKind:
    return _Cupy(index)


@lru_cache(maxsize=64)
def jax_kind(device: Any) -> CudaKind:
    return _JaxCuda(int(device.local_hardware_id), device)


def replaying_kind(value: Any) -> CudaKind | None:
    """The kind of a `source` whose calls can be run again from what was noted of the first; None for all others."""
    if type(value) is np.ndarray:
        return None
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or not value.is_cuda:
        return None
    return torch_kind(value.get_device())
