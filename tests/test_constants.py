"""Weights that never change: what was packed of them is used again, and no call gives other results for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gatewise
from gatewise import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from gatewise.engines import cpu
from graph_helper import assert_close

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]
WEIGHTS = ("recurrent_weight", "input_weight")
CASES = {
    "lstm": (gatewise.lstm, LSTMDescriptor(), 4),
    "lstm last": (gatewise.lstm, LSTMDescriptor(forget_gate_last=True, produce_cell=True), 4),
    "lstm both": (gatewise.lstm, LSTMDescriptor(bidirectional=True, training=True), 4),
    "gru": (gatewise.gru, GRUDescriptor(reset_after=True), 3),
    "gru before": (gatewise.gru, GRUDescriptor(reset_gate_first=True), 3),
    "single": (gatewise.single_gate_rnn, SingleGateRNNDescriptor(reverse=True), 1),
}


def arguments(case: str, T: int, N: int, I: int, H: int, dtype: Any = np.float32) -> dict[str, Any]:  # noqa: E741
    _, descriptor, gates = CASES[case]
    D = 2 if descriptor.bidirectional else 1
    random = np.random.default_rng([T, N, I, H])
    shapes = {
        "source": (T, N, I),
        "recurrent_weight": (2, gates * H, H) if D == 2 else (gates * H, H),
        "input_weight": (D * gates * H, I),
        "bias": (D * gates * H,),
    }
    return {name: random.uniform(-0.5, 0.5, shape).astype(dtype) for name, shape in shapes.items()}


def constants(given: dict[str, Any]) -> dict[str, Any]:
    return {name: gatewise.constant(value) if name in WEIGHTS else value for name, value in given.items()}


def owner(array: Any) -> Any:
    while isinstance(array, np.ndarray):
        array = array.base
    return array


def same(first: list[Any], second: list[Any]) -> None:
    assert [array.tobytes() for array in first] == [array.tobytes() for array in second]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nobody_can_write_to_one(dtype: Any) -> None:
    original = np.arange(12.0).reshape(3, 4).astype(dtype)
    made = gatewise.constant(original)
    assert type(made) is np.ndarray
    assert (made.dtype, made.shape) == (original.dtype, original.shape)
    expected = original.copy()
    original[:] = 0
    assert (made == expected).all()
    for view in (made, made.base, made[1:], made.view(np.uint8), np.asarray(owner(made))):
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
    copy = made.copy()
    copy[0, 0] = 7
    assert (made == expected).all()


def test_what_may_be_one() -> None:
    torch = pytest.importorskip("torch")
    assert (gatewise.constant(torch.ones(2, 3)) == np.ones((2, 3))).all()
    strided = np.arange(12.0).reshape(3, 4).T[::2]
    assert (gatewise.constant(strided) == strided).all()
    assert gatewise.constant(np.zeros((0, 4))).shape == (0, 4)
    assert gatewise.constant(np.array(3.0)).shape == ()
    for wrong, text in ((np.ones(3, int), "got int64"), ([1.0], "must be an array"), (np.array([None]), "got object")):
        with pytest.raises(gatewise.DTypeError, match=text):
            gatewise.constant(wrong)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same(case: str, dtype: Any) -> None:
    function, descriptor, _ = CASES[case]
    for shape in ((9, 4, 5, 8), (7, 5, 20, 40), (4, 30, 3, 17), (300, 1, 16, 33)):
        given = arguments(case, *shape, dtype=dtype)
        kept = constants(given)
        expected = function(**given, descriptor=descriptor)
        for _ in range(3):
            same(function(**kept, descriptor=descriptor), expected)
        assert [owner(kept[name]).kept > 0 for name in WEIGHTS] == [True, True]


@pytest.mark.parametrize("case", CASES)
def test_few_rows(case: str) -> None:
    """A call of few rows does not pack a weight that may change, so its sums may have another order."""
    function, descriptor, _ = CASES[case]
    for shape in ((1, 1, 5, 8), (1, 8, 33, 40), (2, 3, 7, 17), (9, 2, 5, 8), (4, 8, 20, 40)):
        given = arguments(case, *shape)
        kept = constants(given)
        first = function(**kept, descriptor=descriptor)
        assert owner(kept["recurrent_weight"]).kept > 0
        same(function(**kept, descriptor=descriptor), first)
        with gatewise.use_engine("reference"):
            expected = function(**given, descriptor=descriptor)
        for a, b in zip(first, expected, strict=True):
            assert_close(a, b, T=shape[0])


def test_one_weight_in_many_calls() -> None:
    """Different rows, gate orders, cells and instruction sets need different panels of the same numbers."""
    given = arguments("gru", 40, 7, 24, 24)
    kept = constants(given)
    native = cpu._native
    before = native.instruction_set()
    try:
        for _ in range(2):
            for name in native.instruction_sets():
                native.use_instruction_set(name)
                for rows in (1, 2, 7):
                    for options in ({}, {"reset_after": True}, {"reset_gate_first": True}):
                        source = given["source"][:, :rows].copy()
                        descriptor = GRUDescriptor(**options)
                        expected = gatewise.gru(**{**given, "source": source}, descriptor=descriptor)
                        same(gatewise.gru(**{**kept, "source": source}, descriptor=descriptor), expected)
    finally:
        native.use_instruction_set(before)
    assert 0 < owner(kept["recurrent_weight"]).kept <= 4  # the oldest gave way


def test_a_part_of_one_is_none() -> None:
    given = arguments("lstm", 30, 3, 12, 6)
    whole = {name: gatewise.constant(np.concatenate([given[name], 2 * given[name]])) for name in WEIGHTS}
    for half in (slice(0, 24), slice(24, 48)):
        parts = {name: array[half] for name, array in whole.items()}
        same(gatewise.lstm(**{**given, **parts}), gatewise.lstm(**{**given, **{k: v.copy() for k, v in parts.items()}}))
    assert owner(whole["recurrent_weight"]).kept == 0


def test_the_same_memory_in_another_shape() -> None:
    """[4·H, I] with H 4 and I 8, and with H 8 and I 4: the same bytes, packed differently."""
    weight = gatewise.constant(np.linspace(-1, 1, 128, dtype=np.float32).reshape(16, 8))
    for H, I in ((4, 8), (8, 4), (4, 8)):  # noqa: E741
        given = arguments("lstm", 30, 3, I, H)
        given["input_weight"] = np.asarray(weight).reshape(4 * H, I)
        same(gatewise.lstm(**given), gatewise.lstm(**{**given, "input_weight": given["input_weight"].copy()}))


def test_only_one_of_the_two() -> None:
    for name in WEIGHTS:
        for T in (1, 9, 40):
            given = arguments("lstm", T, 2, 12, 20)
            kept = {**given, name: gatewise.constant(given[name])}
            (first,), (expected,) = gatewise.lstm(**kept), gatewise.lstm(**given)
            assert owner(kept[name]).kept > 0
            same(gatewise.lstm(**kept), [first])
            assert_close(first, expected, T=T)
            if T == 40:
                same([first], [expected])


def test_without_an_input_weight() -> None:
    given = arguments("lstm", 30, 2, 80, 20)
    del given["input_weight"]
    same(gatewise.lstm(**constants(given)), gatewise.lstm(**given))


def test_gradients_take_them_too() -> None:
    descriptor = LSTMDescriptor(training=True)
    given = arguments("lstm", 20, 3, 12, 20)
    kept = constants(given)

    def step(given: dict[str, Any]) -> list[Any]:
        state, cell, z_state = gatewise.lstm(**given, descriptor=descriptor)
        saved = {"z_state": z_state, "cell_output_fwd": cell, "source_gradient": np.ones_like(state)}
        return gatewise.lstm_gradients(**given, **saved, descriptor=descriptor)

    for _ in range(2):
        same(step(kept), step(given))


def test_several_threads_at_once() -> None:
    given = arguments("lstm", 20, 4, 64, 96)
    expected = gatewise.lstm(**given)
    for _ in range(20):
        kept = constants(given)
        with ThreadPoolExecutor(4) as pool:
            for results in pool.map(lambda _, kept=kept: gatewise.lstm(**kept), range(8)):
                same(results, expected)
        assert owner(kept["recurrent_weight"]).kept <= 4


def test_other_arrays_beside_them() -> None:
    torch = pytest.importorskip("torch")
    given = arguments("lstm", 20, 3, 12, 20)
    kept = constants(given)
    (found,) = gatewise.lstm(torch.from_numpy(given["source"]), *[kept[name] for name in WEIGHTS], kept["bias"])
    same([found.numpy()], gatewise.lstm(**given))


def test_a_graph_prepares_its_constants() -> None:
    given = arguments("lstm", 20, 3, 12, 20)
    graph = gatewise.Graph()
    source = graph.placeholder(given["source"].shape)
    twice = {name: graph.constant(0.5 * given[name]) * 2.0 for name in WEIGHTS}  # folded
    for weights in ({name: graph.constant(given[name]) for name in WEIGHTS}, twice):
        (state, *_) = graph.lstm(source, **weights, bias=given["bias"])
        executable = graph.compile({source: gatewise.ShapedType(given["source"].shape, np.float32)}, [state])
        for _ in range(2):
            same(executable.run([given["source"]]), gatewise.lstm(**given))
        (plan,) = [plan for key, plan in graph._plans.items() if key[0] == (state,)]
        assert [owner(value).kept for value in plan._template if isinstance(owner(value), cpu._native.Constant)] == [1, 1]
    (result,) = graph.run({}, [weights["recurrent_weight"]]).values()
    result[:] = 0  # a caller may write into what he is handed
    same(executable.run([given["source"]]), gatewise.lstm(**given))
