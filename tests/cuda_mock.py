"""A CUDA driver and cuBLAS that note what they are asked to do, and CPU tensors that pass for CUDA ones: the engine's host side
runs without a GPU. Nothing is computed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from gatewise import arrays, device_arrays, problem
from gatewise.engines import replay
from gatewise.engines.cuda import call, driver, kernels, products


class Library:
    """Both libraries. `calls` has a row for each launch, product and memory set: its name and arguments, in which a
    pointer into an array that the engine made is told as the array's name and the place in it."""

    def __init__(self, kind: Kind) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._kind = kind
        self._functions: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "cuGetErrorString":
            raise AttributeError(name)
        return mock.Mock(side_effect=getattr(type(self), f"_{name}", _succeed).__get__(self))

    def _cuModuleGetFunction(self, handle: Any, module: Any, name: bytes) -> int:
        number = len(self._functions) + 1
        self._functions[number] = name.decode()
        handle._obj.value = number
        return 0

    def _cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: Any) -> int:
        assert all(parameter is not None for parameter in parameters)
        grid = tuple(config._obj.grid)
        assert all(grid), "an empty grid"
        name = self._functions[function.value]
        values: list[Any] = []
        for place, address in enumerate(ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[: len(parameters)]):
            count = len(kernels.FIELDS) if place == 0 and name not in ("copy", "multiply") else 1
            values += (ctypes.c_int64 * count).from_address(address)
        self.calls.append((name, grid, config._obj.stream, *map(self._kind.place, values)))
        return 0

    def _cuMemsetD32Async(self, pointer: int, word: int, words: int, stream: int) -> int:
        assert pointer
        self.calls.append(("fill", self._kind.place(pointer), word, words, stream))
        return 0

    def _cuMemsetD8Async(self, pointer: int, byte: int, size: int, stream: int) -> int:
        assert pointer
        self.calls.append(("clear", self._kind.place(pointer), byte, size, stream))
        return 0

    def _cublasGemmEx(self, *given: Any) -> int:
        handle, pointers = given[0], {7, 10, 14}
        assert handle is not None
        assert all(given[place] for place in pointers)
        self.calls.append(("product", *(self._kind.place(each) for each in given if isinstance(each, int))))
        return 0

    def names(self) -> list[str]:
        return [each[0] for each in self.calls]


def _succeed(library: Library, *given: Any) -> int:
    return 0


class Kind(device_arrays._TorchCuda):
    """CPU tensors as if they were on a GPU. `allocated` has the arrays made: name, first and last address."""

    def __init__(self) -> None:
        super().__init__(0)
        self._device = torch.device("cpu")
        self.allocated: list[tuple[str, int, int]] = []

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> tuple[Any, int]:
        made, pointer = super().allocate(shape, dtype)
        results = sum(name != "scratch" for name, _, _ in self.allocated)
        name = "scratch" if dtype == "uint8" else f"result {results}"
        self.allocated.append((name, pointer, pointer + made.nbytes))
        return made, pointer

    def place(self, value: int) -> Any:
        for name, first, last in reversed(self.allocated):  # freed memory may have been given out again
            if first <= value < last:
                return name, value - first
        return value

    def stream(self) -> int:
        return 7


@contextmanager
def gpu(device: driver.Device = driver.H200) -> Iterator[tuple[Library, Kind]]:
    """Inside, torch tensors run on a GPU that is not there."""
    kind = Kind()
    library = Library(kind)
    changes: dict[Any, dict[str, Any]] = {
        driver: {"_cuda": lambda: library, "unavailable": lambda: None, "device": lambda index: device},
        products: {"_cublas": lambda: library},
        kernels: {"cubin": lambda *_: b"", "_modules": {}},
        call: {"_prepared": {}},
        replay: {"_known": {}, "replaying_kind": lambda value: kind},
        problem.arrays: {"kind_of": lambda *_: kind},
    }
    stack: list[Callable[[], Any]] = []
    try:
        for module, values in changes.items():
            for name, value in values.items():
                patch = mock.patch.object(module, name, value)
                patch.start()
                stack.append(patch.stop)
        driver._primary_context.cache_clear()
        products._local.__dict__.clear()
        yield library, kind
    finally:
        for stop in reversed(stack):
            stop()
        driver._primary_context.cache_clear()
        products._local.__dict__.clear()


assert arrays is problem.arrays
