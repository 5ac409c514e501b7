"""What a graph's training step does besides recurrent layers, for NumPy arrays on the native engine's threads.

Each function gives None where the native module is not built, the arrays are not float32 (float64 for the product), or the
work is too small to be worth the call: then the graph computes it with NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import plain

try:
    from .. import _native
except ImportError:  # a source tree that was not built; the engine says so
    _native = None  # type: ignore[assignment]

_FLOAT32, _INT64 = np.dtype(np.float32), np.dtype(np.int64)
_PRODUCTS = (_FLOAT32, np.dtype(np.float64))
_LARGE_PRODUCT = 1 << 16  # multiplications; below it NumPy's own product uses one thread, and less time
_LARGE = 1 << 10  # elements


class KeptMemory:
    """NumPy arrays made inside lie in memory that is kept, when one dies, for the next: fresh memory is slow at first touch."""

    def __enter__(self) -> None:
        self._before = None if _native is None else _native.use_kept_memory()

    def __exit__(self, *error: object) -> None:
        if _native is not None:
            _native.use_memory(self._before)


def product(a: Any, b: Any, row: Any = None) -> Any:
    """The product of two matrices, plus a row if one is given. A second library's team of threads would spin beside ours for
    a while after each."""
    if _native is None or a.shape[0] * a.shape[1] * b.shape[1] < _LARGE_PRODUCT or a.dtype not in _PRODUCTS:
        return None
    result = np.empty((a.shape[0], b.shape[1]), a.dtype)
    _native.product(strided(a), strided(b), result, None if row is None else plain(row))
    return result


def strided(matrix: Any) -> Any:
    """The matrix itself if its elements lie whole and aligned, else a copy."""
    size = matrix.itemsize
    plain = matrix.flags.aligned and matrix.strides[0] % size == 0 and matrix.strides[1] % size == 0
    return matrix if plain else matrix.copy()


def cross_entropy(source: Any, labels: Any, keep: bool) -> tuple[Any, Any] | None:
    """Losses for logits `[..., C]` and classes `[...]`, all of which have to be in range; the softmax if it is to be kept."""
    if _native is None or source.dtype != _FLOAT32 or source.size < _LARGE:
        return None
    losses = np.empty(labels.shape, _FLOAT32)
    soft_max = np.empty(source.shape, _FLOAT32) if keep else None
    fits = _native.cross_entropy(plain(source), _numbers(labels), source.shape[-1], losses, soft_max)
    return (losses, soft_max) if fits else None


def cross_entropy_gradient(soft_max: Any, labels: Any, gradients: Any) -> Any:
    """The gradient of the logits: from that of each loss `[...]`, or of all `[]`. The classes have to be in range."""
    if _native is None or soft_max.dtype != _FLOAT32 or soft_max.size < _LARGE:
        return None
    result = np.empty(soft_max.shape, _FLOAT32)
    fits = _native.cross_entropy_gradient(
        plain(soft_max), _numbers(labels), soft_max.shape[-1], plain(np.asarray(gradients)), result
    )
    return result if fits else None


def adam(
    beta1: float, beta2: float, epsilon: float, step: float, scale: float, arrays: Sequence[Any]
) -> tuple[Any, ...] | None:
    """New values, momentum and velocity from those and the gradient, which is multiplied by `scale`, of one variable after the
    other; `step` is the learning rate with both corrections."""
    if _native is None or any(array.dtype != _FLOAT32 for array in arrays[::4]):
        return None
    results = [np.empty(array.shape, _FLOAT32) for array in arrays[::4] for _ in range(3)]
    _native.adam(beta1, beta2, epsilon, step, scale, [plain(array) for array in arrays], results)
    return tuple(results)


def add_rows(updates: Any, indices: Any, rows: int) -> Any:
    """`[rows, width]`: the sums of the updates `[M, width]` by their indices `[M]`, all of which have to be in range."""
    if _native is None or updates.dtype != _FLOAT32 or updates.size < _LARGE:
        return None
    result = np.zeros((rows, updates.shape[1]), _FLOAT32)
    return result if _native.add_rows(plain(updates), _numbers(indices), updates.shape[1], result) else None


def take_rows(source: Any, indices: Any) -> Any:
    """`[*indices.shape, *source.shape[1:]]`: the rows of `source` with these numbers, all of which have to be in range."""
    if _native is None or source.dtype.isbuiltin != 1 or not source.size or not indices.size:
        return None
    result = np.empty((*indices.shape, *source.shape[1:]), source.dtype)
    return result if _native.take_rows(plain(source), _numbers(indices), source[0].size, result) else None


def sums(source: Any, axes: tuple[int, ...], squares: bool = False) -> Any:
    """The sums over the first axes, or those of the squares."""
    rest = source.shape[len(axes) :]
    if _native is None or source.dtype != _FLOAT32 or not source.size or axes != tuple(range(len(axes))):
        return None
    result = np.empty(rest, _FLOAT32)
    _native.sums(plain(source), squares, result)
    return result


def _numbers(array: Any) -> Any:
    return plain(array if array.dtype == _INT64 else array.astype(_INT64))
