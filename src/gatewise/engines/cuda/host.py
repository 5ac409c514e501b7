"""NumPy arrays on the CUDA engine, for `use_engine("cuda")` and `gatewise check`: copied to the GPU and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from ...device_arrays import CudaKind, DeviceArray, packed_strides
from ...problem import Problem
from . import driver


class HostKind(CudaKind):
    """Arrays of the host, with GPU memory of our own behind them. Uses the default stream and waits at the end."""

    name = "numpy"
    synchronises = True

    def read(self, operation: str, name: str, value: Any) -> Any:
        plain = np.ascontiguousarray(value).reshape(value.shape)
        memory = driver.Memory(plain.nbytes)
        driver.upload(memory.pointer, plain.ctypes.data, plain.nbytes)
        return DeviceArray(memory, self, memory.pointer, plain.shape, packed_strides(plain.shape), plain.dtype)

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Any]:
        return partial(driver.Memory, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)

    def pointer(self, value: Any) -> int:
        return int(value.pointer)

    def stream(self) -> int:
        return 0


_HOST = HostKind()


def is_host(problem: Problem) -> bool:
    return isinstance(problem.source, np.ndarray)


def uploaded(problem: Problem) -> Problem:
    """The same call with every array on the first GPU."""
    driver.activate(_HOST.index)
    arrays: dict[str, Any] = {
        field.name: _HOST.read("", field.name, value)
        for field in fields(problem)
        if isinstance(value := getattr(problem, field.name), np.ndarray)
    }
    return replace(problem, **arrays)


def downloaded(array: DeviceArray | None) -> Any:
    if array is None:
        return None
    result = np.empty(array.shape, array.dtype)
    driver.download(result.ctypes.data, array.pointer, result.nbytes)
    return result
