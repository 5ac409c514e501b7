"""NumPy arrays on the CUDA engine, for `use_engine("cuda")` and `gatewise check`: copied to the GPU and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from ...device_arrays import CudaKind, DeviceArray, packed_strides
from ...problem import Problem
from . import driver, run_forward, run_gradient


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


def gpu_of(problem: Problem) -> int:
    """The number of the GPU that runs the call."""
    return _HOST.index if is_host(problem) else int(problem.source.kind.index)


def _uploaded(problem: Problem) -> Problem:
    """The same call with every array on the first GPU."""
    arrays: dict[str, Any] = {
        field.name: _HOST.read("", field.name, value)
        for field in fields(problem)
        if isinstance(value := getattr(problem, field.name), np.ndarray)
    }
    return replace(problem, **arrays)


def _downloaded(array: DeviceArray | None) -> Any:
    if array is None:
        return None
    result = np.empty(array.shape, array.dtype)
    driver.download(result.ctypes.data, array.pointer, result.nbytes)
    return result


def forward(problem: Problem) -> tuple[Any, Any, Any]:
    state, cell, z_state = run_forward.forward(_uploaded(problem))
    return _downloaded(state), _downloaded(cell), _downloaded(z_state)


def gradients(problem: Problem) -> dict[str, Any]:
    return {name: _downloaded(array) for name, array in run_gradient.gradients(_uploaded(problem)).items()}
