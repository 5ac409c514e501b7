"""Forward results against the Keras 3 layers."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest

import gatewise
from gatewise import GRUDescriptor, LSTMDescriptor, RNNActivation, SingleGateRNNDescriptor
from peers import difference, from_order

# Keras reads its own variables in a way that NumPy 2 warns about.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

keras.config.set_floatx("float64")
BOUND = 1e-6  # Keras' torch backend multiplies float64 matrices in float32

T, N, I, H = 6, 3, 5, 4  # noqa: E741
CODES = {"linear": RNNActivation.NONE, "relu": RNNActivation.RELU, "tanh": RNNActivation.TANH, "sigmoid": RNNActivation.SIGMOID}
CELL = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "single_gate_rnn"}


def make_layer(kind: str, **options: Any) -> Any:
    layer = getattr(keras.layers, kind)(H, return_sequences=True, return_state=True, **options)
    layer.build((N, T, I))
    random = np.random.default_rng(5)
    layer.set_weights([random.uniform(-0.6, 0.6, weight.shape) for weight in layer.get_weights()])
    return layer


def arguments(kind: str, layer: Any) -> dict[str, np.ndarray]:
    """A layer's weights as this library's arguments; Keras keeps them as [in, G*H]."""
    kernel, recurrent, bias = layer.get_weights()

    def pack(array: np.ndarray) -> np.ndarray:
        return from_order(np.ascontiguousarray(array.T), CELL[kind], "keras")

    call = {"input_weight": pack(kernel), "recurrent_weight": pack(recurrent)}
    if bias.ndim == 2:  # GRU with reset_after: one of the input product, one of the recurrent product
        of_input, of_recurrent = pack(bias[0]), pack(bias[1])
        call["secondary_bias"] = of_recurrent[2 * H :].copy()
        of_recurrent[2 * H :] = 0
        call["bias"] = of_input + of_recurrent
    else:
        call["bias"] = pack(bias)
    return call


def run(layer: Any, source: np.ndarray, *initial: np.ndarray) -> list[np.ndarray]:
    """The layer's states as [T, N, H], then its final states."""
    given = {"initial_state": [keras.ops.convert_to_tensor(each) for each in initial]} if initial else {}
    results = layer(keras.ops.convert_to_tensor(source.transpose(1, 0, 2)), **given)
    sequence, *final = [keras.ops.convert_to_numpy(result) for result in results]
    return [sequence.transpose(1, 0, 2), *final]


def descriptor(kind: str, activation: str, recurrent_activation: str, **flags: bool) -> Any:
    inner, gates = CODES[activation], CODES[recurrent_activation]
    if kind == "LSTM":
        return LSTMDescriptor(
            produce_cell=True,
            input_gate_activation=gates,
            forget_gate_activation=gates,
            output_gate_activation=gates,
            cell_gate_activation=inner,
            activation=inner,
            **flags,
        )
    if kind == "GRU":
        return GRUDescriptor(update_gate_activation=gates, reset_gate_activation=gates, output_gate_activation=inner, **flags)
    return SingleGateRNNDescriptor(activation=inner, **flags)


OPERATION = {"LSTM": gatewise.lstm, "GRU": gatewise.gru, "SimpleRNN": gatewise.single_gate_rnn}
FORMS = [("LSTM", {}), ("GRU", {"reset_after": True}), ("GRU", {"reset_after": False}), ("SimpleRNN", {})]


@pytest.mark.parametrize(("kind", "options"), FORMS)
@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize(("activation", "gates"), [("tanh", "sigmoid"), ("relu", "sigmoid"), ("linear", "tanh")])
def test_layer(
    any_engine: str, kind: str, options: dict[str, bool], go_backwards: bool, initial: bool, activation: str, gates: str
) -> None:
    chosen: dict[str, Any] = {"activation": activation, "go_backwards": go_backwards, **options}
    if kind != "SimpleRNN":
        chosen["recurrent_activation"] = gates
    layer = make_layer(kind, **chosen)
    random = np.random.default_rng(6)
    source = random.uniform(-1, 1, (T, N, I))
    start = [random.uniform(-1, 1, (N, H)) for _ in range(2 if kind == "LSTM" else 1)] if initial else []
    sequence, *final = run(layer, source, *start)
    if go_backwards:
        sequence = sequence[::-1]  # Keras gives them in the order of travel
    call: dict[str, Any] = arguments(kind, layer) | dict(zip(("init_state", "init_cell"), start, strict=False))
    with gatewise.use_engine(any_engine):
        found = OPERATION[kind](source, **call, descriptor=descriptor(kind, activation, gates, reverse=go_backwards, **options))
    assert difference(found[0], sequence) < BOUND
    end = 0 if go_backwards else -1
    for have, want in zip(found, final, strict=True):
        assert difference(have[end], want) < BOUND


@pytest.mark.parametrize(("kind", "options"), FORMS)
def test_bidirectional(any_engine: str, kind: str, options: dict[str, bool]) -> None:
    layer = keras.layers.Bidirectional(getattr(keras.layers, kind)(H, return_sequences=True, **options), merge_mode="concat")
    layer.build((N, T, I))
    random = np.random.default_rng(8)
    layer.set_weights([random.uniform(-0.6, 0.6, weight.shape) for weight in layer.get_weights()])
    source = random.uniform(-1, 1, (T, N, I))
    wanted = keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor(source.transpose(1, 0, 2)))).transpose(1, 0, 2)
    halves = [arguments(kind, half) for half in (layer.forward_layer, layer.backward_layer)]
    call = {name: np.concatenate([half[name] for half in halves]) for name in halves[0]}
    call["recurrent_weight"] = np.stack([half["recurrent_weight"] for half in halves])
    gates = "sigmoid"
    with gatewise.use_engine(any_engine):
        found = OPERATION[kind](source, **call, descriptor=descriptor(kind, "tanh", gates, bidirectional=True, **options))
    assert difference(found[0], wanted) < BOUND


def test_mask_of_the_layer_equals_lengths(any_engine: str) -> None:
    layer = make_layer("LSTM", zero_output_for_mask=True)
    source = np.random.default_rng(9).uniform(-1, 1, (T, N, I))
    lengths = np.array([6, 2, 4])
    mask = np.arange(T)[None, :] < lengths[:, None]
    results = layer(keras.ops.convert_to_tensor(source.transpose(1, 0, 2)), mask=keras.ops.convert_to_tensor(mask))
    wanted = keras.ops.convert_to_numpy(results[0]).transpose(1, 0, 2)
    with gatewise.use_engine(any_engine):
        found = gatewise.lstm(source, **arguments("LSTM", layer), lengths=lengths)
    assert difference(found[0], wanted) < BOUND
