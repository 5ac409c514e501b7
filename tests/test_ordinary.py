"""What the native engine does for graphs besides recurrent layers: held to NumPy, the same bits for any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gatewise
from gatewise.engines import cpu, ordinary


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
    row = random.standard_normal(N).astype(dtype)
    before = gatewise.get_threads()
    found, with_row = [], []
    try:
        for threads in (1, 2, 3):
            gatewise.set_threads(threads)
            for left in arrangements(a):
                for right in arrangements(b):
                    result = np.full((M, N), np.nan, dtype)
                    cpu._native.product(ordinary.strided(left), ordinary.strided(right), result)
                    found.append(result)
            result = np.full((M, N), np.nan, dtype)
            cpu._native.product(a, b, result, row)
            with_row.append(result)
    finally:
        gatewise.set_threads(before)
    assert np.abs(found[0] - expected).max() <= tolerance * np.abs(expected).max()
    for result in found:
        np.testing.assert_array_equal(result, found[0])
    assert np.abs(with_row[0] - expected - row).max() <= tolerance * np.abs(expected + row).max()
    for result in with_row:
        np.testing.assert_array_equal(result, with_row[0])


def test_nan_stays_in_its_row() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((40, 90)).astype(np.float32), random.standard_normal((90, 50)).astype(np.float32)
    clean = ordinary.product(a, b)
    a[5, 3] = np.nan
    broken = ordinary.product(a, b)
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
    for row in (np.zeros(6, np.float32), np.zeros(7)):
        with pytest.raises(ValueError, match="malformed product"):
            cpu._native.product(a, b[:5], np.zeros((4, 7), np.float32), row)


def on_threads(compute: Callable[[], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """The results with three threads, after a check that one and two give the same bits."""
    before = gatewise.get_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            gatewise.set_threads(threads)
            found.append(compute())
    finally:
        gatewise.set_threads(before)
    for results in found:
        for result, other in zip(results, found[-1], strict=True):
            np.testing.assert_array_equal(result, other)
    return found[-1]


@pytest.mark.parametrize(("M", "C"), [(1, 1031), (400, 3), (300, 98), (257, 64)])
def test_cross_entropy(M: int, C: int) -> None:
    random = np.random.default_rng(C)
    source = (8 * random.standard_normal((M, C)) - 1000).astype(np.float32)
    labels = random.integers(0, C, M)
    source[0, 1 - labels[0] % 2] = -np.inf  # an impossible class, not the row's own
    losses, soft_max = on_threads(lambda: ordinary.cross_entropy(source, labels, True))  # type: ignore[arg-type,return-value]
    wide = source.astype(np.float64)
    exponentials = np.exp(wide - wide.max(axis=1, keepdims=True))
    expected = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(soft_max, expected, rtol=2e-5, atol=1e-37)
    assert soft_max[0, 1 - labels[0] % 2] == 0
    np.testing.assert_allclose(losses, -np.log(expected[np.arange(M), labels]), rtol=2e-5, atol=2e-6)
    expected[np.arange(M), labels] -= 1
    gradients = random.standard_normal(M).astype(np.float32)
    for given in (gradients, gradients[0]):
        (found,) = on_threads(lambda given=given: (ordinary.cross_entropy_gradient(soft_max, labels, given),))
        np.testing.assert_allclose(found, expected * np.reshape(given, (-1, 1)), rtol=2e-5, atol=1e-6)


def test_cross_entropy_of_nan_and_inf() -> None:
    source = np.zeros((400, 5), np.float32)
    source[1, 2], source[2, 3] = np.nan, np.inf
    losses, soft_max = ordinary.cross_entropy(source, np.zeros(400, np.int64), True)  # type: ignore[misc]
    assert np.isnan(losses[1:3]).all()
    assert np.isnan(soft_max[1]).all()
    np.testing.assert_allclose(np.delete(losses, (1, 2)), np.log(5), rtol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (1024,), (37, 41), (130, 517)])
def test_adam(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(np.float32) for _ in range(4)]
    arrays[2] **= 2
    found = on_threads(lambda: ordinary.adam(0.9, 0.99, 1e-8, 1e-3, 0.7, arrays))  # type: ignore[arg-type,return-value]
    values, momentum, velocity, gradient = (array.astype(np.float64) for array in arrays)
    gradient *= 0.7
    momentum = 0.9 * momentum + 0.1 * gradient
    velocity = 0.99 * velocity + 0.01 * gradient**2
    for result, expected in zip(
        found, (values - 1e-3 * momentum / (np.sqrt(velocity) + 1e-8), momentum, velocity), strict=True
    ):
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("width", [3, 16, 70])
def test_add_rows(width: int) -> None:
    random = np.random.default_rng(width)
    rows, index = random.standard_normal((700, width)).astype(np.float32), random.integers(0, 40, 700)
    expected = np.zeros((41, width))
    np.add.at(expected, index, rows.astype(np.float64))
    (found,) = on_threads(lambda: (ordinary.add_rows(rows, index, 41),))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_])
def test_take_rows(dtype: type) -> None:
    random = np.random.default_rng(0)
    source, index = random.integers(0, 9, (30, 4, 7)).astype(dtype), random.integers(0, 30, (250, 6))
    for numbers in (index, index.astype(np.uint8), index[::2]):
        (found,) = on_threads(lambda numbers=numbers: (ordinary.take_rows(source, numbers),))
        np.testing.assert_array_equal(found, source[numbers])


@pytest.mark.parametrize("shape", [(1,), (5,), (70, 1), (300, 98), (31, 40, 33), (10_007,)])
def test_sums(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    source = random.standard_normal(shape).astype(np.float32)
    wide = source.astype(np.float64)
    for number in range(1, len(shape) + 1):
        axes = tuple(range(number))
        for squares, expected in ((False, wide.sum(axis=axes)), (True, (wide**2).sum(axis=axes))):
            (found,) = on_threads(lambda axes=axes, squares=squares: (ordinary.sums(source, axes, squares),))
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * source.size**0.5)
    assert ordinary.sums(source, (len(shape),)) is None, "only the first axes are summed"


def test_numbers_out_of_range_are_refused() -> None:
    source, losses = np.zeros(20, np.float32), np.full(4, 7, np.float32)
    for numbers in ([0, 1, 5, 2], [0, -1, 2, 2]):
        index = np.array(numbers)
        assert not cpu._native.cross_entropy(source, index, 5, losses, None)
        assert not cpu._native.cross_entropy_gradient(source, index, 5, losses, np.zeros(20, np.float32))
        assert not cpu._native.add_rows(source, index, 5, np.zeros(20, np.float32))
        assert not cpu._native.take_rows(source, index, 5, np.zeros(20, np.float32))
    assert (losses == 7).all()


def test_sizes_that_differ_are_refused() -> None:
    source, losses, index = np.zeros(20, np.float32), np.zeros(4, np.float32), np.zeros(3, np.int64)
    calls: list[Callable[[], object]] = [
        lambda: cpu._native.cross_entropy(source, index, 5, losses, None),
        lambda: cpu._native.cross_entropy_gradient(source, index, 5, losses, source.copy()),
        lambda: cpu._native.add_rows(source, index, 5, source.copy()),
        lambda: cpu._native.take_rows(source, index, 5, source.copy()),
        lambda: cpu._native.take_rows(source, index, 5, np.zeros(15)),
        lambda: cpu._native.sums(source, False, np.zeros(3, np.float32)),
        lambda: cpu._native.adam(0.9, 0.99, 1e-8, 1e-3, 1.0, [source] * 4, [np.zeros(19, np.float32)] * 3),
        lambda: cpu._native.adam(0.9, 0.99, 1e-8, 1e-3, 1.0, [source] * 4, [source.copy()] * 2),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="sizes differ"):
            call()


def test_kept_memory_is_used_again_by_arrays_of_its_size_alone() -> None:
    with ordinary.KeptMemory():
        first = np.full(100_000, 7, np.float32)
        address = first.ctypes.data
        assert address % 64 == 0
        smaller = np.zeros(50_000, np.float32)
        del first
        again, zeros = np.empty(100_000, np.float32), np.zeros(100_000, np.float32)
    assert again.ctypes.data == address
    assert not zeros.any()
    assert not smaller.any()
    again.resize(300_000, refcheck=False)
    again.resize(10, refcheck=False)
    assert (again == 7).all()
    outside = np.empty(100_000, np.float32)
    del again, zeros
    with ordinary.KeptMemory():
        assert np.empty(100_000, np.float32).ctypes.data != outside.ctypes.data


def test_kept_memory_has_a_limit() -> None:
    most = cpu._native.most_kept_bytes()
    assert 0 < most <= 2**30
    with ordinary.KeptMemory():
        blocks = [np.empty(most // 8, np.uint8) for _ in range(12)]  # never touched
        del blocks[:4]
        assert cpu._native.kept_bytes() >= most // 3
        del blocks
    assert cpu._native.kept_bytes() <= most


def test_kept_memory_gives_way_when_nobody_wants_it() -> None:
    def address(array: np.ndarray) -> int:
        return array.ctypes.data

    large = cpu._native.most_kept_bytes() * 5 // 8
    with ordinary.KeptMemory():
        for _ in range(300):  # whatever other tests left is old now
            np.empty(20_000, np.uint8)
        first, second = np.empty(large, np.uint8), np.empty(large, np.uint8)
        kept = address(first)
        del first, second  # there is room for one
        again, other = np.empty(large, np.uint8), np.empty(large, np.uint8)
        assert address(again) == kept
        del again  # kept; then it lies for a long time
        for _ in range(300):
            np.empty(20_000, np.uint8)
        wanted = address(other)
        del other
        assert address(np.empty(large, np.uint8)) == wanted
