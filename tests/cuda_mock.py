"""A CUDA driver and cuBLAS that note what they are asked to do, and CPU tensors that pass for CUDA ones: the engine's host side
runs without a GPU. Nothing is computed."""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from gatewise import arrays, device_arrays, problem
from gatewise.engines import replay
from gatewise.engines.cuda import call, driver, kernels, products


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


_POINTER, _NUMBER, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
# The functions the native module calls by their addresses, with their arguments.
_NATIVE: dict[str, list[Any]] = {
    "cuCtxGetCurrent": [ctypes.POINTER(_POINTER)],
    "cuCtxSetCurrent": [_POINTER],
    "cuLaunchKernelEx": [ctypes.POINTER(_Config), _POINTER, ctypes.POINTER(_POINTER), _POINTER],
    "cuMemsetD8Async": [ctypes.c_uint64, ctypes.c_ubyte, _SIZE, _POINTER],
    "cuMemsetD32Async": [ctypes.c_uint64, ctypes.c_uint, _SIZE, _POINTER],
    "cublasLtMatmul": [*[_POINTER] * 14, _SIZE, _POINTER],
    "cuStreamIsCapturing": [_POINTER, ctypes.POINTER(_NUMBER)],
    "cuStreamCreate": [ctypes.POINTER(_POINTER), ctypes.c_uint],
    "cuStreamDestroy_v2": [_POINTER],
    "cuStreamBeginCapture_v2": [_POINTER, _NUMBER],
    "cuStreamEndCapture": [_POINTER, ctypes.POINTER(_POINTER)],
    "cuGraphInstantiateWithFlags": [ctypes.POINTER(_POINTER), _POINTER, ctypes.c_ulonglong],
    "cuGraphLaunch": [_POINTER, _POINTER],
    "cuGraphDestroy": [_POINTER],
    "cuGraphExecDestroy": [_POINTER],
}
# How many 8-byte parameters a kernel takes; the others take one row, `Arguments`, and these as many after it.
_WITHOUT_ROW = {"copy": 13, "multiply": 11}
_AFTER_ROW = {
    "column_sums": 2,
    "finish_sums": 5,
    "forward_step0": 1,
    "forward_step1": 1,
    "gradient_step0": 1,
    "gradient_step1": 1,
}


def _integers(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))


class Library:
    """Both libraries. `calls` has a row for each launch, product and memory set: its name and arguments, in which a
    pointer into an array that the engine made is told as the array's name and the place in it. `fail` names a function
    and the code it is to give."""

    def __init__(self, kind: Kind) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fail: tuple[str, int] = ("", 0)
        self.contexts: dict[int, int] = {}  # of threads
        self._kind = kind
        self._functions: dict[int, str] = {}
        self._objects: dict[int, list[Any]] = {}  # of cuBLAS: what is known of each
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._made:
            act = getattr(type(self), f"_{name}", _succeed).__get__(self)
            prototype = _NATIVE.get(name)
            self._made[name] = act if prototype is None else ctypes.CFUNCTYPE(_NUMBER, *prototype)(self._guarded(name, act))
        return self._made[name]

    def _guarded(self, name: str, act: Callable[..., int]) -> Callable[..., int]:
        """An exception cannot pass through the native module: it becomes an error code."""

        def guarded(*given: Any) -> int:
            if name == self.fail[0]:
                return self.fail[1]
            try:
                return act(*given)
            except Exception:
                traceback.print_exc()
                return 999

        return guarded

    def _cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"not today"
        return 0

    def _cuDevicePrimaryCtxRetain(self, context: Any, index: int) -> int:
        context._obj.value = 50 + index
        return 0

    def _cuCtxGetCurrent(self, context: Any) -> int:
        target = context.contents if hasattr(context, "contents") else context._obj
        target.value = self.contexts.get(threading.get_ident())
        return 0

    def _cuCtxSetCurrent(self, context: Any) -> int:
        self.contexts[threading.get_ident()] = context if isinstance(context, int) else context.value
        return 0

    def _cuStreamIsCapturing(self, stream: int, found: Any) -> int:
        found[0] = 1  # so that every launch is seen; graphs are tested with the native tape
        return 0

    def _cuModuleGetFunction(self, handle: Any, module: Any, name: bytes) -> int:
        number = len(self._functions) + 1
        self._functions[number] = name.decode()
        handle._obj.value = number
        return 0

    def _cuLaunchKernelEx(self, config: Any, function: int, parameters: Any, extra: Any) -> int:
        c = config.contents
        grid, block = tuple(c.grid), tuple(c.block)
        assert all(grid), "an empty grid"
        assert self.contexts[threading.get_ident()] == 50
        attributes = [(c.attributes[k].id, *c.attributes[k].value[:3]) for k in range(c.count)]
        name = self._functions[function]
        values: list[Any] = []
        if name in _WITHOUT_ROW:
            count = _WITHOUT_ROW[name]
        else:
            values += _integers(parameters[0], len(kernels.FIELDS))
            count = 1 + _AFTER_ROW.get(name, 0)
        for place in range(0 if name in _WITHOUT_ROW else 1, count):
            values += _integers(parameters[place], 1)
        launch = (name, grid, block, c.shared_bytes, *attributes, c.stream)
        self.calls.append((*launch, *map(self._kind.place, values)))
        return 0

    def _cuMemsetD32Async(self, pointer: int, word: int, words: int, stream: int) -> int:
        assert pointer
        self.calls.append(("fill", self._kind.place(pointer), word, words, stream))
        return 0

    def _cuMemsetD8Async(self, pointer: int, byte: int, size: int, stream: int) -> int:
        assert pointer
        self.calls.append(("clear", self._kind.place(pointer), byte, size, stream))
        return 0

    def _create(self, made: Any, *given: Any) -> int:
        made._obj.value = 1000 + len(self._objects)
        self._objects[made._obj.value] = [getattr(each, "value", each) for each in given]
        return 0

    _cublasLtCreate = _create  # noqa: N815  the library's names
    _cublasLtMatmulDescCreate = _create  # noqa: N815
    _cublasLtMatrixLayoutCreate = _create  # noqa: N815
    _cublasLtMatmulPreferenceCreate = _create  # noqa: N815

    def _set(self, thing: Any, attribute: int, value: Any, size: Any) -> int:
        assert ctypes.sizeof(value._obj) == size.value
        self._objects[thing.value].append((attribute, value._obj.value))
        return 0

    _cublasLtMatmulDescSetAttribute = _set  # noqa: N815
    _cublasLtMatmulPreferenceSetAttribute = _set  # noqa: N815

    def _cublasLtMatmulAlgoGetHeuristic(self, *given: Any) -> int:
        preference, wanted, found, count = given[6:]
        assert wanted == 1
        found._obj.algorithm[0] = preference.value
        count._obj.value = 1
        return 0

    def _cublasLtMatmul(self, handle: int, *given: Any) -> int:
        description, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace, size, stream = given
        assert all((a, b, c, handle in self._objects))
        assert (c, c_layout) == (d, d_layout)
        known = [self._objects[each] for each in (description, a_layout, b_layout, c_layout, _integers(algorithm, 1)[0])]
        double = known[0][0] == products._COMPUTE_64F
        factors = [(ctypes.c_double if double else ctypes.c_float).from_address(each).value for each in (alpha, beta)]
        assert factors == [1, 0]
        self.calls.append(("product", stream, *map(self._kind.place, (workspace, a, b, c)), size, known))
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

    def maker(self, shape: tuple[int, ...], dtype: Any) -> Callable[[], Any]:
        make = super().maker(shape, dtype)

        def noted() -> Any:
            made = make()
            results = sum(name != "scratch" for name, _, _ in self.allocated)
            name = "scratch" if dtype == "uint8" else f"result {results}"
            self.allocated.append((name, made.data_ptr(), made.data_ptr() + made.nbytes))
            return made

        return noted

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
        driver.primary_context.cache_clear()
        products.handle.cache_clear()
        products.planned.cache_clear()
        yield library, kind
    finally:
        for stop in reversed(stack):
            stop()
        driver.primary_context.cache_clear()
        products.handle.cache_clear()
        products.planned.cache_clear()


assert arrays is problem.arrays
