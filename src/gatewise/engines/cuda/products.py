"""The products over all steps at once: cuBLAS where it is found, a plain kernel of ours otherwise."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, replace
from functools import lru_cache

from ...device_arrays import dtype_of
from . import driver
from .compiler import find_library
from .kernels import array_kernels

_TYPE = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType
_COMPUTE_32F, _COMPUTE_32F_PEDANTIC, _COMPUTE_64F, _COMPUTE_TF32 = 68, 69, 70, 77
# Bytes that cuBLAS is given of the call's own memory: its one per stream would be shared by all graphs captured on that stream,
# which may run at the same time.
WORKSPACE = 32 << 20


@dataclass(frozen=True)
class Matrix:
    """A row-major matrix: where it starts and how far its rows are apart, in elements. `transposed` when it is used so."""

    pointer: int
    pitch: int
    transposed: bool = False


@dataclass(frozen=True)
class Product:
    """c[m, n] = a[m, k] b[k, n], all but where the matrices are."""

    m: int
    n: int
    k: int
    a_pitch: int
    a_transposed: bool
    b_pitch: int
    b_transposed: bool
    c_pitch: int
    dtype: str
    result_dtype: str
    exact: bool

    @property
    def types(self) -> tuple[int, int, int]:
        """The factors' and the result's cudaDataType, and cublasComputeType_t."""
        return _TYPE[self.dtype], _TYPE[self.result_dtype], self._compute

    @property
    def _compute(self) -> int:
        if self.dtype == "float64":
            return _COMPUTE_64F
        if self.dtype == "float32":
            return _COMPUTE_32F_PEDANTIC if self.exact else _COMPUTE_TF32
        return _COMPUTE_32F


@lru_cache(maxsize=1)
def _cublas() -> ctypes.CDLL | None:
    library = find_library("libcublas.so.13", "libcublas.so.12")
    return library if library is not None and hasattr(library, "cublasGemmEx") else None


def is_library() -> bool:
    """Whether there is cuBLAS, which can keep a 16-bit product in float32."""
    return _cublas() is not None


def library() -> str:
    return "cuBLAS" if is_library() else "a plain kernel (cuBLAS was not found)"


def addresses() -> list[int]:
    """Of the functions a native tape calls, in its order; zeros without cuBLAS."""
    cublas = _cublas()
    names = ("cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasGemmEx")
    return [0 if cublas is None else driver.address(cublas, name) for name in names]


class _Handles(threading.local):
    def __init__(self) -> None:
        self.made: dict[int, int] = {}  # by GPU


_handles = _Handles()


def handle(index: int) -> int:
    """This thread's cuBLAS handle for the GPU: threads do not share them."""
    found = _handles.made.get(index)
    if found is None:
        cublas, made = _cublas(), ctypes.c_void_p()
        assert cublas is not None
        with driver.active(index):
            code = cublas.cublasCreate_v2(ctypes.byref(made))
        if code:
            raise driver.CudaError(f"cuBLAS could not be started (status {code})")
        found = _handles.made[index] = int(made.value or 0)
    return found


def plain(index: int, product: Product, a: int, b: int, c: int) -> list[tuple[driver.Launch, list[tuple[int, ...]]]]:
    """The product by a kernel of ours: launches, each with its parameters."""
    p = product
    a_i, a_k = (1, p.a_pitch) if p.a_transposed else (p.a_pitch, 1)
    b_k, b_j = (1, p.b_pitch) if p.b_transposed else (p.b_pitch, 1)
    if p.m > 65535 * 64:  # the grid's limit: in parts
        half = (p.m // 2 + 63) // 64 * 64
        rest = a + half * a_i * dtype_of(p.dtype).itemsize, b, c + half * p.c_pitch * dtype_of(p.result_dtype).itemsize
        return plain(index, replace(p, m=half), a, b, c) + plain(index, replace(p, m=p.m - half), *rest)
    values = (a, b, c, p.m, p.n, p.k, a_i, a_k, b_k, b_j, p.c_pitch)
    grid = ((p.n + 63) // 64, (p.m + 63) // 64, 1)
    return [
        (driver.Launch(array_kernels(index, p.dtype, p.result_dtype)["multiply"], grid, 256), [(value,) for value in values])
    ]
