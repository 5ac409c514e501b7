"""A call that was made before is run without checks: it must give the same bits, and be refused where it has to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gatewise
from gatewise import GRUDescriptor, LSTMDescriptor, operations
from gatewise.engines import cpu
from gatewise.errors import ArgumentError, DTypeError, GatewiseError, ShapeError

T, N, I, H = 3, 2, 5, 4  # noqa: E741


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that were checked, in order: calls that were known are not among them."""
    seen: list[str] = []
    make = operations.make_problem

    def counting(operation: str, *others: Any, **options: Any) -> Any:
        seen.append(operation)
        return make(operation, *others, **options)

    monkeypatch.setattr(operations, "make_problem", counting)
    return seen


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def lstm_arguments(H: int = H, dtype: Any = np.float32, seed: int = 0) -> dict[str, Any]:
    shapes = {"source": (T, N, I), "recurrent_weight": (4 * H, H), "input_weight": (4 * H, I), "bias": (4 * H,)}
    return {name: numbers(*shape, dtype=dtype, seed=seed) for name, shape in shapes.items()}


def same(first: list[Any], second: list[Any]) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


def expected(function: Callable[..., list[Any]], *arguments: Any, **named: Any) -> list[Any]:
    """The results of the same call when nothing is known of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "again", lambda *_: None)
        return function(*arguments, **named)


def test_the_second_call_is_not_checked(checks: list[str]) -> None:
    H = 6  # a size no other test has
    gatewise.lstm(**lstm_arguments(H))
    again = lstm_arguments(H, seed=1)
    results = gatewise.lstm(**again)
    assert checks == ["lstm"]
    same(results, expected(gatewise.lstm, **again))


def test_an_equal_descriptor_is_enough(checks: list[str]) -> None:
    given = lstm_arguments(H=7)
    for _ in range(3):
        gatewise.lstm(**given, descriptor=LSTMDescriptor(training=True))
    assert checks == ["lstm"]
    assert len(gatewise.lstm(**given, descriptor=LSTMDescriptor(produce_cell=True))) == 2
    assert len(gatewise.lstm(**given)) == 1
    reverse = gatewise.lstm(**given, descriptor=LSTMDescriptor(reverse=True))
    assert not np.array_equal(reverse[0], gatewise.lstm(**given)[0])


def test_gradients_come_in_their_order(checks: list[str]) -> None:
    given = lstm_arguments(H=9) | {"peephole": numbers(36), "init_state": numbers(N, 9), "init_cell": numbers(N, 9)}
    descriptor = LSTMDescriptor(training=True)
    for seed in range(3):
        given["source"] = numbers(T, N, I, seed=seed)
        state, cell, z_state = gatewise.lstm(**given, descriptor=descriptor)
        results = gatewise.lstm_gradients(
            **given, source_gradient=state, z_state=z_state, cell_output_fwd=cell, descriptor=descriptor
        )
        assert [a.shape for a in results] == [(T, N, I), (36, 9), (36, I), (36,), (36,), (N, 9), (N, 9)]
        wanted = expected(
            gatewise.lstm_gradients,
            **given,
            source_gradient=state,
            z_state=z_state,
            cell_output_fwd=cell,
            descriptor=descriptor,
        )
        same(results, wanted)
    assert checks == ["lstm"] + ["lstm_gradients"] * 4  # three times for what was expected


def test_arguments_of_one_shape_are_told_apart() -> None:
    given = lstm_arguments(H=10)
    bias, peephole = given.pop("bias"), numbers(40, seed=5)
    with_bias = gatewise.lstm(**given, bias=bias)
    with_peephole = gatewise.lstm(**given, peephole=peephole)
    for _ in range(2):
        same(gatewise.lstm(**given, bias=bias), with_bias)
        same(gatewise.lstm(**given, peephole=peephole), with_peephole)


def test_lengths_are_looked_at_every_time() -> None:
    given = lstm_arguments(H=11)
    for lengths in ([3, 1], [0, 2], [3, 1]):
        named = given | {"lengths": np.array(lengths)}
        same(gatewise.lstm(**named), expected(gatewise.lstm, **named))
    for wrong in ([3, 4], [-1, 2]):
        with pytest.raises(ArgumentError, match="lengths must each be from 0 to T = 3"):
            gatewise.lstm(**given, lengths=np.array(wrong))
    for dtype in (np.int32, np.uint64, np.int8):
        named = given | {"lengths": np.array([1, 3], dtype)}
        for _ in range(2):
            same(gatewise.lstm(**named), expected(gatewise.lstm, **(given | {"lengths": np.array([1, 3])})))


def test_other_layouts_of_the_same_values() -> None:
    given = lstm_arguments(H=12)
    wanted = gatewise.lstm(**given)
    given["source"].flags.writeable = False
    unaligned = np.frombuffer(b"x" + given["bias"].tobytes(), np.float32, offset=1)
    assert not unaligned.flags.aligned
    wide = np.zeros((T, N, 2 * I), np.float32)
    wide[:, :, ::2] = given["source"]
    for changed in (
        {},
        {"source": np.asfortranarray(given["source"])},
        {"source": wide[:, :, ::2]},
        {"source": given["source"][::-1][::-1]},
        {"recurrent_weight": np.ascontiguousarray(given["recurrent_weight"].T).T},
        {"bias": unaligned},
        {"bias": given["bias"].view(np.recarray)},
    ):
        for _ in range(2):
            same(gatewise.lstm(**(given | changed)), wanted)


def test_wrong_calls_are_refused_as_before() -> None:
    given = lstm_arguments(H=13)
    for _ in range(2):
        gatewise.lstm(**given)
    swapped = given["bias"].astype(given["bias"].dtype.newbyteorder())
    descriptor = LSTMDescriptor()
    gatewise.lstm(**given, descriptor=descriptor)
    wrong: list[tuple[type[GatewiseError], dict[str, Any]]] = [
        (DTypeError, {"bias": given["bias"].astype(np.float64)}),
        (DTypeError, {"bias": swapped}),
        (DTypeError, {"bias": given["bias"].view(np.int32)}),
        (ShapeError, {"bias": given["bias"][:-1]}),
        (DTypeError, {"bias": np.ma.masked_array(given["bias"])}),
        (DTypeError, {"mask": descriptor, "descriptor": descriptor}),
        (DTypeError, {"descriptor": GRUDescriptor()}),
        (DTypeError, {"descriptor": 3}),
    ]
    for error, changed in wrong:
        for _ in range(2):
            with pytest.raises(error):
                gatewise.lstm(**(given | changed))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_other_dtypes(checks: list[str], dtype: Any) -> None:
    given = lstm_arguments(H=14, dtype=dtype)
    results = [gatewise.lstm(**given) for _ in range(3)]
    assert checks == ["lstm"]
    for result in results:
        same(result, expected(gatewise.lstm, **given))


def test_dtypes_of_one_size_are_told_apart() -> None:
    for _ in range(3):
        for dtype in (np.float16, ml_dtypes.bfloat16):
            given = lstm_arguments(H=16, dtype=dtype)
            same(gatewise.lstm(**given), expected(gatewise.lstm, **given))


def test_a_chosen_engine_is_used() -> None:
    given = lstm_arguments(H=15)
    fast = [gatewise.lstm(**given) for _ in range(2)][1]
    with gatewise.use_engine("reference"):
        exact = gatewise.lstm(**given)
    assert not np.array_equal(fast[0], exact[0])


def test_many_layouts() -> None:
    for steps in range(1, 1100):
        gatewise.single_gate_rnn(np.ones((steps, 1, 1), np.float32), np.ones((1, 1), np.float32))
    source = np.ones((7, 1, 1), np.float32)
    assert gatewise.single_gate_rnn(source, np.ones((1, 1), np.float32))[0].tolist() == [[[n]] for n in range(1, 8)]
