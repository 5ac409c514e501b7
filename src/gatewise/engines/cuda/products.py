"""The products over all steps at once: cuBLAS where it is found, a plain kernel of ours otherwise."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ...device_arrays import CudaKind, dtype_of
from . import driver
from .compiler import find_library
from .kernels import array_kernels

_TYPE = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType
_COMPUTE_32F, _COMPUTE_32F_PEDANTIC, _COMPUTE_64F, _COMPUTE_TF32 = 68, 69, 70, 77
WORKSPACE = 32 << 20  # bytes that cuBLAS is given


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

    @cached_property
    def kinds(self) -> tuple[int, int, int]:
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
    if library is None or not hasattr(library, "cublasGemmEx"):
        return None
    number, pointer = ctypes.c_int, ctypes.c_void_p
    library.cublasGemmEx.argtypes = [
        pointer, number, number, number, number, number, pointer, pointer, number, number, pointer, number, number,
        pointer, pointer, number, number, number, number,
    ]  # fmt: skip
    return library


def library() -> str:
    return "cuBLAS" if _cublas() is not None else "a plain kernel (cuBLAS was not found)"


class Multiplier:
    """Products of one thread on one GPU."""

    def __init__(self, kind: CudaKind) -> None:
        self._index = kind.index
        self._handle = ctypes.c_void_p()
        self._set_up: tuple[int, int] | None = None  # stream and workspace
        self._narrow = ctypes.pointer(ctypes.c_float(1.0)), ctypes.pointer(ctypes.c_float(0.0))
        self._wide = ctypes.pointer(ctypes.c_double(1.0)), ctypes.pointer(ctypes.c_double(0.0))
        cublas = _cublas()
        if cublas is not None and cublas.cublasCreate_v2(ctypes.byref(self._handle)):
            raise driver.CudaError("cuBLAS could not be started")

    @property
    def is_library(self) -> bool:
        """Whether there is cuBLAS, which needs a workspace."""
        return _cublas() is not None

    def _use(self, cublas: ctypes.CDLL, stream: int, workspace: int) -> None:
        if (stream, workspace) == self._set_up:
            return
        # The stream first: setting it takes the workspace away.
        for code in (
            cublas.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream)),
            cublas.cublasSetWorkspace_v2(self._handle, ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE)),
        ):
            if code:
                raise driver.CudaError(f"cuBLAS: setting stream and workspace failed (status {code})")
        self._set_up = stream, workspace

    def __call__(self, stream: int, product: Product, a: int, b: int, c: int, workspace: int) -> None:
        """c = a b, from their pointers. `workspace` is WORKSPACE bytes of the call's own memory: cuBLAS's one per stream
        would be shared by all graphs captured on that stream, which may run at the same time."""
        cublas = _cublas()
        if cublas is None:
            self._plain(stream, product, a, b, c)
            return
        self._use(cublas, stream, workspace)
        one, zero = self._wide if product.dtype == "float64" else self._narrow
        p = product
        kind, result_kind, compute = p.kinds
        # cuBLAS is column-major: it computes the transpose, c' = b' a'.
        code = cublas.cublasGemmEx(
            self._handle, p.b_transposed, p.a_transposed, p.n, p.m, p.k, one, b, kind, p.b_pitch, a, kind, p.a_pitch,
            zero, c, result_kind, p.c_pitch, compute, -1,
        )  # fmt: skip
        if code:
            raise driver.CudaError(f"cuBLAS: product of {p.m}x{p.k} and {p.k}x{p.n} failed (status {code})")

    def _plain(self, stream: int, product: Product, a: int, b: int, c: int) -> None:
        p = product
        a_i, a_k = (1, p.a_pitch) if p.a_transposed else (p.a_pitch, 1)
        b_k, b_j = (1, p.b_pitch) if p.b_transposed else (p.b_pitch, 1)
        if p.m > 65535 * 64:  # the grid's limit: in parts
            half = (p.m // 2 + 63) // 64 * 64
            a_rest, c_rest = half * a_i * dtype_of(p.dtype).itemsize, half * p.c_pitch * dtype_of(p.result_dtype).itemsize
            self._plain(stream, replace(p, m=half), a, b, c)
            self._plain(stream, replace(p, m=p.m - half), a + a_rest, b, c + c_rest)
            return
        grid = ((p.n + 63) // 64, (p.m + 63) // 64, 1)
        values = (a, b, c, p.m, p.n, p.k, a_i, a_k, b_k, b_j, p.c_pitch)
        launch = driver.Launch(array_kernels(self._index, p.dtype, p.result_dtype)["multiply"], grid, 256)
        launch(stream, *[driver.pack((value,)) for value in values])


_local = threading.local()


def multiplier(kind: CudaKind) -> Multiplier:
    """This thread's products for the kind: a cuBLAS handle is not shared between threads."""
    made: dict[tuple[str, int], Multiplier] = _local.__dict__.setdefault("made", {})
    key = (kind.name, kind.index)
    if key not in made:
        made[key] = Multiplier(kind)
    return made[key]
