"""The products over all steps at once: cuBLAS where it is found, a plain kernel of ours otherwise."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...device_arrays import CudaKind, DeviceArray, dtype_of
from . import driver
from .compiler import find_library
from .kernels import array_kernels

_TYPE = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType
_COMPUTE_32F, _COMPUTE_32F_PEDANTIC, _COMPUTE_64F, _COMPUTE_TF32 = 68, 69, 70, 77
_WORKSPACE = 32 << 20


@dataclass(frozen=True)
class Matrix:
    """A row-major matrix: where it starts and how far its rows are apart, in elements. `transposed` when it is used so."""

    pointer: int
    pitch: int
    transposed: bool = False


@lru_cache(maxsize=1)
def _cublas() -> ctypes.CDLL | None:
    library = find_library("libcublas.so.13", "libcublas.so.12")
    return library if library is not None and hasattr(library, "cublasGemmEx") else None


def library() -> str:
    return "cuBLAS" if _cublas() is not None else "a plain kernel (cuBLAS was not found)"


class Multiplier:
    """Products of one thread on one GPU."""

    def __init__(self, kind: CudaKind) -> None:
        self._kind = kind
        self._handle = ctypes.c_void_p()
        self._stream: int | None = None
        self._workspaces: dict[int, DeviceArray] = {}
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._one64, self._zero64 = ctypes.c_double(1.0), ctypes.c_double(0.0)
        cublas = _cublas()
        if cublas is not None and cublas.cublasCreate_v2(ctypes.byref(self._handle)):
            raise driver.CudaError("cuBLAS could not be started")

    @property
    def widens(self) -> bool:
        """Whether a 16-bit product can be kept in float32."""
        return _cublas() is not None

    def _use_stream(self, cublas: ctypes.CDLL, stream: int) -> None:
        if stream == self._stream:
            return
        cublas.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream))
        # Our own workspace: needed for CUDA graphs, and with it results do not depend on what else runs.
        if stream not in self._workspaces:
            self._workspaces[stream] = self._kind.empty((_WORKSPACE // 4,), dtype_of("float32"))
        workspace = self._workspaces[stream]
        cublas.cublasSetWorkspace_v2(self._handle, ctypes.c_void_p(workspace.pointer), ctypes.c_size_t(_WORKSPACE))
        self._stream = stream

    def __call__(
        self,
        stream: int,
        shape: tuple[int, int, int],
        a: Matrix,
        b: Matrix,
        c: Matrix,
        dtype: str,
        result_dtype: str,
        exact: bool,
    ) -> None:
        """c[m, n] = a[m, k] b[k, n] for shape (m, n, k)."""
        m, n, k = shape
        cublas = _cublas()
        if cublas is None:
            self._plain(stream, shape, a, b, c, dtype)
            return
        self._use_stream(cublas, stream)
        compute = _COMPUTE_32F
        one: Any = self._one
        zero: Any = self._zero
        if dtype == "float64":
            compute, one, zero = _COMPUTE_64F, self._one64, self._zero64
        elif dtype == "float32":
            compute = _COMPUTE_32F_PEDANTIC if exact else _COMPUTE_TF32
        # cuBLAS is column-major: it computes the transpose, c' = b' a'.
        code = cublas.cublasGemmEx(
            self._handle,
            1 if b.transposed else 0,
            1 if a.transposed else 0,
            n,
            m,
            k,
            ctypes.byref(one),
            ctypes.c_void_p(b.pointer),
            _TYPE[dtype],
            b.pitch,
            ctypes.c_void_p(a.pointer),
            _TYPE[dtype],
            a.pitch,
            ctypes.byref(zero),
            ctypes.c_void_p(c.pointer),
            _TYPE[result_dtype],
            c.pitch,
            compute,
            -1,
        )
        if code:
            raise driver.CudaError(f"cuBLAS: product of {m}x{k} and {k}x{n} failed (status {code})")

    def _plain(self, stream: int, shape: tuple[int, int, int], a: Matrix, b: Matrix, c: Matrix, dtype: str) -> None:
        m, n, k = shape
        a_i, a_k = (1, a.pitch) if a.transposed else (a.pitch, 1)
        b_k, b_j = (1, b.pitch) if b.transposed else (b.pitch, 1)
        arguments = driver.pointer_bytes(a.pointer, b.pointer, c.pointer, m, n, k, a_i, a_k, b_k, b_j, c.pitch, 0)
        grid = ((n + 63) // 64, (m + 63) // 64, 1)
        if grid[1] > 65535:  # the grid's limit: in parts
            half = (m // 2 + 63) // 64 * 64
            size = dtype_of(dtype).itemsize
            for start, rows in ((0, half), (half, m - half)):
                part_a = Matrix(a.pointer + start * a_i * size, a.pitch, a.transposed)
                part_c = Matrix(c.pointer + start * c.pitch * size, c.pitch)
                self._plain(stream, (rows, n, k), part_a, b, part_c, dtype)
            return
        array_kernels(self._kind.index, dtype)["multiply"](stream, grid, 256, *arguments)


_local = threading.local()


def multiplier(kind: CudaKind) -> Multiplier:
    """This thread's products for the kind: a cuBLAS handle is not shared between threads."""
    made: dict[tuple[str, int], Multiplier] = _local.__dict__.setdefault("made", {})
    key = (kind.name, kind.index)
    if key not in made:
        made[key] = Multiplier(kind)
    return made[key]
