"""What a graph's training step does besides recurrent layers, for NumPy arrays on the native engine's threads.

Each function gives None where the native module is not built, the arrays are not float32 (float64 for the product), or the
work is too small to be worth the call: then the graph computes it with NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

try:
    from .. import _native
except ImportError:  # a source tree that was not built; the engine says so
    _native = None  # type: ignore[assignment]

_LARGE_PRODUCT = 1 << 16  # multiplications; below it NumPy's own product uses one thread, and less time
_LARGE = 1 << 10  # elements


@contextmanager
def kept_memory() -> Iterator[None]:
    """NumPy arrays made inside lie in memory that is kept, when one dies, for the next: fresh memory is slow at first touch."""
    if _native is None:
        yield
        return
    before = _native.use_kept_memory()
    try:
        yield
    finally:
        _native.use_memory(before)


def product(a: Any, b: Any) -> Any:
    """The product of two matrices. A second library's team of threads would spin beside ours for a while after each."""
    if _native is None or a.shape[0] * a.shape[1] * b.shape[1] < _LARGE_PRODUCT or a.dtype.name not in ("float32", "float64"):
        return None
    result = np.empty((a.shape[0], b.shape[1]), a.dtype)
    _native.product(strided(a), strided(b), result)
    return result


def strided(matrix: Any) -> Any:
    """The matrix itself if its elements lie whole and aligned, else a copy."""
    size = matrix.itemsize
    plain = matrix.flags.aligned and matrix.strides[0] % size == 0 and matrix.strides[1] % size == 0
    return matrix if plain else matrix.copy()


def cross_entropy(source: Any, labels: Any, keep: bool) -> tuple[Any, Any] | None:
    """Losses `[M]` for logits `[..., C]` and classes `[M]` that are known to be in range; the softmax if it is to be kept."""
    if _native is None or source.dtype != np.float32 or source.size < _LARGE:
        return None
    losses = np.empty(labels.size, np.float32)
    soft_max = np.empty(source.shape, np.float32) if keep else None
    _native.cross_entropy(_flat(source), labels, source.shape[-1], losses, None if soft_max is None else soft_max.reshape(-1))
    return losses, soft_max


def adam(beta1: float, beta2: float, epsilon: float, step: float, arrays: list[Any]) -> tuple[Any, ...] | None:
    """New values, momentum and velocity from those and the gradient; `step` is the learning rate with both corrections."""
    if _native is None or arrays[0].dtype != np.float32 or arrays[0].size < _LARGE:
        return None
    results = tuple([np.empty(arrays[0].shape, np.float32) for _ in range(3)])
    _native.adam(beta1, beta2, epsilon, step, *map(_flat, arrays), *[result.reshape(-1) for result in results])
    return results


def add_rows(updates: Any, indices: Any, rows: int) -> Any:
    """`[rows, width]`: the sums of the updates `[M, width]` by their indices `[M]`, which are known to be in range."""
    if _native is None or updates.dtype != np.float32 or updates.size < _LARGE:
        return None
    result = np.zeros((rows, updates.shape[1]), np.float32)
    _native.add_rows(_flat(updates), np.ascontiguousarray(indices, np.int64), updates.shape[1], result.reshape(-1))
    return result


def _flat(array: Any) -> Any:
    array = np.ascontiguousarray(array)
    return (array if array.flags.aligned else array.copy()).reshape(-1)
