"""The texts of the errors. Each names the operation and the argument, what was expected and what came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gatewise
from gatewise import (
    ArgumentError,
    DTypeError,
    GatewiseError,
    GRUDescriptor,
    LSTMDescriptor,
    RNNActivation,
    ShapeError,
    SingleGateRNNDescriptor,
    UnsupportedError,
)

T, N, I, H = 5, 3, 32, 64  # noqa: E741


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def valid(operation: str, D: int = 1) -> dict[str, Any]:
    """A call with every argument the operation has."""
    cell = operation.removesuffix("_gradients")
    G = {"lstm": 4, "gru": 3, "single_gate_rnn": 1}[cell]
    call: dict[str, Any] = {
        "source": zeros(T, N, I),
        "recurrent_weight": zeros(2, G * H, H) if D == 2 else zeros(G * H, H),
        "input_weight": zeros(D * G * H, I),
        "bias": zeros(D * G * H),
        "init_state": zeros(N, D * H),
        "mask": zeros(T, N, D * H),
        "lengths": np.full(N, T),
        "resets": np.zeros((T, N), bool),
    }
    two = {"bidirectional": D == 2}
    if cell == "lstm":
        call |= {"init_cell": zeros(N, D * H), "peephole": zeros(2, 4 * H) if D == 2 else zeros(4 * H)}
        call["descriptor"] = LSTMDescriptor(**two)
    elif cell == "gru":
        call |= {"secondary_bias": zeros(D * H), "descriptor": GRUDescriptor(reset_after=True, **two)}
    else:
        call["descriptor"] = SingleGateRNNDescriptor(**two)
    if operation != cell:
        call |= {"source_gradient": zeros(T, N, D * H), "z_state": zeros(T, N, D * G * H), "state_gradient": zeros(N, D * H)}
        call |= {"cell_output_fwd": zeros(T, N, D * H), "cell_gradient": zeros(N, D * H)} if cell == "lstm" else {}
        call |= {"output_fwd": zeros(T, N, D * H)} if cell == "gru" else {}
    return call


OPERATIONS = [name + suffix for name in ("lstm", "gru", "single_gate_rnn") for suffix in ("", "_gradients")]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("D", [1, 2])
def test_the_valid_calls_are_valid(operation: str, D: int) -> None:
    assert getattr(gatewise, operation)(**valid(operation, D))


# operation, directions, what is changed, the error, its text
TABLE: list[tuple[str, int, dict[str, Any], type[Exception], str]] = [
    # the example of the contract
    (
        "lstm",
        1,
        {"recurrent_weight": zeros(64, 256)},
        ShapeError,
        "lstm: recurrent_weight must be [4·H, H] = [256, 64], got [64, 256] (did you pass its transpose?)",
    ),
    # shapes
    ("lstm", 1, {"source": zeros(T, I)}, ShapeError, "lstm: source must be [T, N, I], of rank 3, got [5, 32]"),
    ("lstm", 1, {"source": zeros(T, N, 33)}, ShapeError, "lstm: input_weight must be [4·H, I] = [256, 33], got [256, 32]"),
    (
        "lstm",
        1,
        {"recurrent_weight": zeros(256, 63)},
        ShapeError,
        "lstm: recurrent_weight must be [4·H, H] = [252, 63], got [256, 63]",
    ),
    (
        "lstm",
        1,
        {"recurrent_weight": zeros(2, 256, 64)},
        ShapeError,
        "lstm: recurrent_weight must be [4·H, H], of rank 2, got [2, 256, 64] "
        "(two directions: set bidirectional=True in the descriptor)",
    ),
    (
        "lstm",
        2,
        {"recurrent_weight": zeros(256, 64)},
        ShapeError,
        "lstm: recurrent_weight must be [2, 4·H, H], of rank 3, got [256, 64] "
        "(bidirectional stacks the forward and the backward weight)",
    ),
    ("lstm", 1, {"recurrent_weight": zeros(0, 0)}, ShapeError, "lstm: recurrent_weight must have H of at least 1, got [0, 0]"),
    (
        "lstm",
        1,
        {"input_weight": zeros(32, 256)},
        ShapeError,
        "lstm: input_weight must be [4·H, I] = [256, 32], got [32, 256] (did you pass its transpose?)",
    ),
    (
        "lstm",
        1,
        {"input_weight": None},
        ShapeError,
        "lstm: source must be [T, N, 4·H] = [5, 3, 256], got [5, 3, 32] (there is no input_weight)",
    ),
    (
        "gru",
        2,
        {"input_weight": None},
        ShapeError,
        "gru: source must be [T, N, 2·3·H] = [5, 3, 384], got [5, 3, 32] (there is no input_weight)",
    ),
    ("lstm", 1, {"bias": zeros(64)}, ShapeError, "lstm: bias must be [4·H] = [256], got [64]"),
    ("lstm", 2, {"bias": zeros(256)}, ShapeError, "lstm: bias must be [2·4·H] = [512], got [256]"),
    ("single_gate_rnn", 1, {"bias": zeros(65)}, ShapeError, "single_gate_rnn: bias must be [H] = [64], got [65]"),
    ("lstm", 1, {"init_state": zeros(64, 3)}, ShapeError, "lstm: init_state must be [N, H] = [3, 64], got [64, 3]"),
    ("lstm", 1, {"init_cell": zeros(1, 3, 63)}, ShapeError, "lstm: init_cell must be [N, H] = [3, 64], got [1, 3, 63]"),
    (
        "lstm",
        2,
        {"init_state": zeros(2, 3, 64)},
        ShapeError,
        "lstm: init_state must be [N, 2·H] = [3, 128], got [2, 3, 64] (the two directions side by side, not stacked)",
    ),
    ("lstm", 1, {"mask": zeros(5, 2, 64)}, ShapeError, "lstm: mask must broadcast to [T, N, H] = [5, 3, 64], got [5, 2, 64]"),
    (
        "lstm",
        2,
        {"mask": zeros(5, 3, 64)},
        ShapeError,
        "lstm: mask must broadcast to [T, N, 2·H] = [5, 3, 128], got [5, 3, 64]",
    ),
    (
        "lstm",
        1,
        {"mask": zeros(1, 5, 3, 64)},
        ShapeError,
        "lstm: mask must broadcast to [T, N, H] = [5, 3, 64], got [1, 5, 3, 64]",
    ),
    ("lstm", 1, {"peephole": zeros(192)}, ShapeError, "lstm: peephole must be [4·H] = [256], got [192]"),
    ("lstm", 2, {"peephole": zeros(512)}, ShapeError, "lstm: peephole must be [2, 4·H] = [2, 256], got [512]"),
    ("gru", 1, {"secondary_bias": zeros(192)}, ShapeError, "gru: secondary_bias must be [H] = [64], got [192]"),
    ("gru", 2, {"secondary_bias": zeros(64)}, ShapeError, "gru: secondary_bias must be [2·H] = [128], got [64]"),
    ("lstm", 1, {"lengths": np.full(4, 5)}, ShapeError, "lstm: lengths must be [N] = [3], got [4]"),
    ("lstm", 1, {"resets": np.zeros((3, 5), bool)}, ShapeError, "lstm: resets must be [T, N] = [5, 3], got [3, 5]"),
    # shapes of gradient calls
    (
        "lstm_gradients",
        1,
        {"z_state": zeros(5, 3, 64)},
        ShapeError,
        "lstm_gradients: z_state must be [T, N, 4·H] = [5, 3, 256], got [5, 3, 64] "
        "(the last result of lstm with training=True in the descriptor)",
    ),
    (
        "gru_gradients",
        2,
        {"output_fwd": zeros(5, 3, 64)},
        ShapeError,
        "gru_gradients: output_fwd must be [T, N, 2·H] = [5, 3, 128], got [5, 3, 64] (the first result of gru)",
    ),
    (
        "lstm_gradients",
        1,
        {"cell_output_fwd": zeros(4, 3, 64)},
        ShapeError,
        "lstm_gradients: cell_output_fwd must be [T, N, H] = [5, 3, 64], got [4, 3, 64] "
        "(the second result of lstm with training=True)",
    ),
    (
        "single_gate_rnn_gradients",
        1,
        {"source_gradient": zeros(5, 3, 1)},
        ShapeError,
        "single_gate_rnn_gradients: source_gradient must be [T, N, H] = [5, 3, 64], got [5, 3, 1] "
        "(the gradient of single_gate_rnn's first result)",
    ),
    (
        "lstm_gradients",
        1,
        {"state_gradient": zeros(3, 65)},
        ShapeError,
        "lstm_gradients: state_gradient must be [N, H] = [3, 64], got [3, 65]",
    ),
    (
        "lstm_gradients",
        2,
        {"cell_gradient": zeros(3, 64)},
        ShapeError,
        "lstm_gradients: cell_gradient must be [N, 2·H] = [3, 128], got [3, 64]",
    ),
    # missing, surplus and out of range
    ("lstm", 1, {"source": None}, ArgumentError, "lstm: source is missing"),
    ("gru", 1, {"recurrent_weight": None}, ArgumentError, "gru: recurrent_weight is missing"),
    (
        "lstm_gradients",
        1,
        {"z_state": None},
        ArgumentError,
        "lstm_gradients: z_state is missing: the last result of lstm with training=True in the descriptor",
    ),
    (
        "lstm_gradients",
        1,
        {"source_gradient": None},
        ArgumentError,
        "lstm_gradients: source_gradient is missing: the gradient of lstm's first result",
    ),
    ("gru_gradients", 1, {"output_fwd": None}, ArgumentError, "gru_gradients: output_fwd is missing: the first result of gru"),
    (
        "lstm_gradients",
        1,
        {"cell_output_fwd": None},
        ArgumentError,
        "lstm_gradients: cell_output_fwd is missing: the second result of lstm with training=True",
    ),
    (
        "gru",
        1,
        {"descriptor": None},
        ArgumentError,
        "gru: secondary_bias has a meaning only with reset_after=True in the descriptor, which is False "
        "(leave secondary_bias out, or set reset_after)",
    ),
    ("lstm", 1, {"lengths": np.array([5, -1, 0])}, ArgumentError, "lstm: lengths must each be from 0 to T = 5, got -1"),
    ("lstm", 1, {"lengths": np.array([5, 6, 7])}, ArgumentError, "lstm: lengths must each be from 0 to T = 5, got 6"),
    (
        "lstm",
        1,
        {"lengths": np.full(3, 2**64 - 1, np.uint64)},
        ArgumentError,
        "lstm: lengths must each be from 0 to T = 5, got 18446744073709551615",
    ),
    # dtypes and types
    (
        "lstm",
        1,
        {"source": np.zeros((T, N, I), int)},
        DTypeError,
        "lstm: source must be float32, float16, bfloat16 or float64, got int64",
    ),
    (
        "lstm",
        1,
        {"source": zeros(T, N, I).astype(">f4")},
        DTypeError,
        "lstm: source must be float32, float16, bfloat16 or float64, got >f4",
    ),
    (
        "lstm",
        1,
        {"bias": np.zeros(256)},
        DTypeError,
        "lstm: bias must be float32 like source, got float64 (all floating arguments of a call share one dtype)",
    ),
    ("lstm", 1, {"lengths": np.full(3, 5.0)}, DTypeError, "lstm: lengths must be an integer array, got float64"),
    ("lstm", 1, {"lengths": np.full(3, True)}, DTypeError, "lstm: lengths must be an integer array, got bool"),
    (
        "lstm",
        1,
        {"resets": np.zeros((T, N), np.int8)},
        DTypeError,
        "lstm: resets must be a bool array, got int8 (compare it with 0 to make one)",
    ),
    (
        "lstm",
        1,
        {"bias": [0.0] * 256},
        DTypeError,
        "lstm: bias must be an array (NumPy, or any with DLPack), got list (numpy.asarray makes one)",
    ),
    (
        "lstm",
        1,
        {"source": 1.0},
        DTypeError,
        "lstm: source must be an array (NumPy, or any with DLPack), got float (numpy.asarray makes one)",
    ),
    (
        "lstm",
        1,
        {"descriptor": SingleGateRNNDescriptor()},
        DTypeError,
        f"lstm: descriptor must be a LSTMDescriptor, got {SingleGateRNNDescriptor()!r} of type SingleGateRNNDescriptor",
    ),
    ("gru", 1, {"descriptor": "gru"}, DTypeError, "gru: descriptor must be a GRUDescriptor, got 'gru' of type str"),
]


@pytest.mark.parametrize(("operation", "D", "changed", "error", "text"), TABLE, ids=[row[-1][:60] for row in TABLE])
def test_message(operation: str, D: int, changed: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(GatewiseError) as raised:
        getattr(gatewise, operation)(**valid(operation, D) | changed)
    assert str(raised.value) == text
    assert type(raised.value) is error


DESCRIPTORS: list[tuple[type, dict[str, Any], type[Exception], str]] = [
    (LSTMDescriptor, {"training": 1}, DTypeError, "LSTMDescriptor: training must be True or False, got 1 of type int"),
    (GRUDescriptor, {"flip_z": None}, DTypeError, "GRUDescriptor: flip_z must be True or False, got None of type NoneType"),
    (
        SingleGateRNNDescriptor,
        {"activation": "tanh"},
        DTypeError,
        "SingleGateRNNDescriptor: activation must be one of RNNActivation.NONE, RNNActivation.RELU, RNNActivation.TANH, "
        "RNNActivation.SIGMOID, RNNActivation.HARD_SIGMOID, got 'tanh' of type str",
    ),
    (
        LSTMDescriptor,
        {"output_peephole": "next"},
        ArgumentError,
        "LSTMDescriptor: output_peephole must be 'previous' or 'current', got 'next'",
    ),
    (
        LSTMDescriptor,
        {"output_peephole": True},
        DTypeError,
        "LSTMDescriptor: output_peephole must be 'previous' or 'current', got True of type bool",
    ),
]


@pytest.mark.parametrize(("kind", "fields", "error", "text"), DESCRIPTORS)
def test_descriptor_message(kind: type, fields: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        kind(**fields)
    assert str(raised.value) == text


def test_descriptors_are_plain_data() -> None:
    import copy
    import pickle

    one = LSTMDescriptor(training=True, activation=RNNActivation.RELU)
    assert one == LSTMDescriptor(training=True, activation=RNNActivation.RELU)
    assert one != LSTMDescriptor(training=True)
    assert copy.deepcopy(one) == one == pickle.loads(pickle.dumps(one)) == copy.copy(one)
    assert len({one, copy.copy(one)}) == 1
    with pytest.raises(TypeError):
        LSTMDescriptor(True)  # type: ignore[misc]
    assert [activation.value for activation in RNNActivation] == [0, 1, 2, 3, 4]


def test_error_classes() -> None:
    """Each is also the built-in error that a caller would expect."""
    assert issubclass(ShapeError, ValueError)
    assert issubclass(DTypeError, TypeError)
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(UnsupportedError, NotImplementedError)
    for error in (ShapeError, DTypeError, ArgumentError, UnsupportedError):
        assert issubclass(error, GatewiseError)


def test_unknown_engine() -> None:
    with (
        pytest.raises(ArgumentError, match=r"use_engine: name must be one of cpu, reference.*, got 'gpu'"),
        gatewise.use_engine("gpu"),
    ):
        pass
    with pytest.raises(GatewiseError), gatewise.use_engine([]):  # type: ignore[arg-type]
        pass
