"""The products over all steps at once: cuBLAS where it is found, a plain kernel of ours otherwise."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from ...device_arrays import dtype_of
from . import driver
from .compiler import find_library
from .kernels import array_kernels

_TYPE = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType
_COMPUTE_32F, _COMPUTE_32F_PEDANTIC, _COMPUTE_64F, _COMPUTE_TF32 = 68, 69, 70, 77
WORKSPACE = 32 << 20  # bytes that cuBLAS is given of the call's own memory


@dataclass(frozen=True)
class Matrix:
    """A row-major matrix: where it starts and how far its rows are apart, in elements. `transposed` when it is used so.
    `next` is how far it is to the next of several."""

    pointer: int
    pitch: int
    transposed: bool = False
    next: int = 0


@dataclass(frozen=True)
class Product:
    """c[m, n] = a[m, k] b[k, n], all but where the matrices are; or `count` of them, whose matrices a, b and c are `steps`
    elements apart."""

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
    count: int = 1
    steps: tuple[int, int, int] = (0, 0, 0)

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
    return find_library("libcublasLt.so.13", "libcublasLt.so.12")


def is_library() -> bool:
    """Whether there is cuBLAS."""
    return _cublas() is not None


def library() -> str:
    return "cuBLAS" if is_library() else "a plain kernel (cuBLAS was not found)"


def address() -> int:
    """Of the function a native tape calls; 0 without cuBLAS."""
    cublas = _cublas()
    return 0 if cublas is None else driver.address(cublas, "cublasLtMatmul")


def _ask(index: int, name: str, *given: Any) -> None:
    cublas = _cublas()
    assert cublas is not None
    with driver.active(index):
        code = getattr(cublas, name)(*given)
    if code:
        raise driver.CudaError(f"cuBLAS: {name} failed (status {code})")


@cache
def handle(index: int) -> int:
    """The cuBLASLt handle of a GPU. It has no state, and threads share it."""
    made = ctypes.c_void_p()
    _ask(index, "cublasLtCreate", ctypes.byref(made))
    return int(made.value or 0)


_TRANSPOSE_A, _TRANSPOSE_B = 3, 4  # cublasLtMatmulDescAttributes_t
_BATCH_COUNT, _BATCH_STEP = 5, 6  # cublasLtMatrixLayoutAttribute_t
_MOST_WORKSPACE, _ALIGNMENT_A = 1, 5  # cublasLtMatmulPreferenceAttributes_t; B, C and D follow A


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@dataclass(frozen=True)
class Planned:
    """What cuBLAS worked out for a product. The objects are never given back: tapes have their addresses."""

    objects: tuple[int, int, int, int]  # of the product, and of its column-major matrices
    algorithm: tuple[int, ...]


@cache
def planned(index: int, product: Product, alignments: tuple[int, int, int]) -> Planned:
    """For matrices b, a and c, which lie at multiples of so many bytes. cuBLAS is column-major: it computes the transpose,
    c' = b' a'."""
    p = product
    kind, result_kind, compute = p.types
    integer, large = ctypes.c_int, ctypes.c_uint64

    def made(name: str, *given: Any) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        _ask(index, name, ctypes.byref(found), *given)
        return found

    def set_to(what: str, thing: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _ask(index, f"cublasLt{what}SetAttribute", thing, attribute, ctypes.byref(value), size)

    def layout(of: int, rows: int, columns: int, pitch: int, step: int) -> ctypes.c_void_p:
        found = made("cublasLtMatrixLayoutCreate", of, large(rows), large(columns), ctypes.c_int64(pitch))
        if p.count > 1:
            set_to("MatrixLayout", found, _BATCH_COUNT, integer(p.count))
            set_to("MatrixLayout", found, _BATCH_STEP, ctypes.c_int64(step))
        return found

    description = made("cublasLtMatmulDescCreate", compute, _TYPE["float64" if p.dtype == "float64" else "float32"])
    set_to("MatmulDesc", description, _TRANSPOSE_A, integer(p.b_transposed))
    set_to("MatmulDesc", description, _TRANSPOSE_B, integer(p.a_transposed))
    layouts = (
        layout(kind, *((p.k, p.n) if p.b_transposed else (p.n, p.k)), p.b_pitch, p.steps[1]),
        layout(kind, *((p.m, p.k) if p.a_transposed else (p.k, p.m)), p.a_pitch, p.steps[0]),
        layout(result_kind, p.n, p.m, p.c_pitch, p.steps[2]),
    )
    preference = made("cublasLtMatmulPreferenceCreate")
    set_to("MatmulPreference", preference, _MOST_WORKSPACE, large(WORKSPACE))
    for place, alignment in enumerate((*alignments, alignments[2])):
        set_to("MatmulPreference", preference, _ALIGNMENT_A + place, ctypes.c_uint32(alignment))
    found, count = _Found(), ctypes.c_int()
    _ask(
        index, "cublasLtMatmulAlgoGetHeuristic", ctypes.c_void_p(handle(index)), description, *layouts, layouts[2], preference,
        1, ctypes.byref(found), ctypes.byref(count),
    )  # fmt: skip
    _ask(index, "cublasLtMatmulPreferenceDestroy", preference)
    if count.value == 0:
        raise driver.CudaError(f"cuBLAS has no way to multiply {p.m}x{p.k} and {p.k}x{p.n} matrices of {p.dtype}")
    a, b, c, d = (int(each.value or 0) for each in (description, *layouts))
    return Planned((a, b, c, d), tuple(found.algorithm))


def plain(index: int, product: Product, a: int, b: int, c: int) -> list[tuple[driver.Launch, list[tuple[int, ...]]]]:
    """The product by a kernel of ours: launches, each with its parameters."""
    p = product
    size, result_size = dtype_of(p.dtype).itemsize, dtype_of(p.result_dtype).itemsize
    if p.count > 1:
        one, (a_step, b_step, c_step) = replace(p, count=1), p.steps
        places = ((a + i * a_step * size, b + i * b_step * size, c + i * c_step * result_size) for i in range(p.count))
        return [launch for place in places for launch in plain(index, one, *place)]
    a_i, a_k = (1, p.a_pitch) if p.a_transposed else (p.a_pitch, 1)
    b_k, b_j = (1, p.b_pitch) if p.b_transposed else (p.b_pitch, 1)
    if p.m > 65535 * 64:  # the grid's limit: in parts
        half = (p.m // 2 + 63) // 64 * 64
        rest = a + half * a_i * size, b, c + half * p.c_pitch * result_size
        return plain(index, replace(p, m=half), a, b, c) + plain(index, replace(p, m=p.m - half), *rest)
    values = (a, b, c, p.m, p.n, p.k, a_i, a_k, b_k, b_j, p.c_pitch)
    grid = ((p.n + 63) // 64, (p.m + 63) // 64, 1)
    return [
        (driver.Launch(array_kernels(index, p.dtype, p.result_dtype)["multiply"], grid, 256), [(value,) for value in values])
    ]
