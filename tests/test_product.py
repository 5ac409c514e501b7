"""The native matrix product: any strides, both dtypes, the same bits for every number of threads."""

from __future__ import annotations

import numpy as np
import pytest

import gatewise
from gatewise.engines import cpu


def arrangements(matrix: np.ndarray) -> list[np.ndarray]:
    """The same numbers in memory orders that a product may meet."""
    spread = np.zeros((2 * matrix.shape[0], 3 * matrix.shape[1]), matrix.dtype)
    spread[::2, ::3] = matrix
    misaligned = np.frombuffer(b"\0" + matrix.tobytes(), np.uint8)[1:].view(matrix.dtype).reshape(matrix.shape)
    return [matrix, np.asfortranarray(matrix), spread[::2, ::3], matrix[::-1].copy()[::-1], misaligned]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("M", "K", "N"), [(1, 1, 1), (7, 300, 33), (64, 257, 99), (130, 40, 513), (3, 520, 17)])
def test_product_is_numpys_in_every_arrangement_and_number_of_threads(dtype: type, M: int, K: int, N: int) -> None:
    random = np.random.default_rng(M * K * N)
    a, b = random.standard_normal((M, K)).astype(dtype), random.standard_normal((K, N)).astype(dtype)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    tolerance = 8 * K**0.5 * np.finfo(dtype).eps
    before = gatewise.get_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            gatewise.set_threads(threads)
            for left in arrangements(a):
                for right in arrangements(b):
                    result = np.full((M, N), np.nan, dtype)
                    cpu._native.product(cpu._strided(left), cpu._strided(right), result)
                    found.append(result)
    finally:
        gatewise.set_threads(before)
    assert np.abs(found[0] - expected).max() <= tolerance * np.abs(expected).max()
    for result in found:
        np.testing.assert_array_equal(result, found[0])


def test_nan_stays_in_its_row() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((40, 90)).astype(np.float32), random.standard_normal((90, 50)).astype(np.float32)
    clean = cpu.product(a, b)
    a[5, 3] = np.nan
    broken = cpu.product(a, b)
    assert np.isnan(broken[5]).all()
    np.testing.assert_array_equal(np.delete(broken, 5, 0), np.delete(clean, 5, 0))


def test_misfits_are_refused() -> None:
    a, b = np.zeros((4, 5), np.float32), np.zeros((6, 7), np.float32)
    for left, right, result in (
        (a, b, np.zeros((4, 7), np.float32)),
        (a, b[:5], np.zeros((4, 6), np.float32)),
        (a, b[:5].astype(np.float64), np.zeros((4, 7), np.float32)),
        (a[:, :0], b[:0], np.zeros((4, 7), np.float32)),
        (a.astype(np.float16), b[:5].astype(np.float16), np.zeros((4, 7), np.float16)),
    ):
        with pytest.raises(ValueError, match="malformed product"):
            cpu._native.product(left, right, result)
