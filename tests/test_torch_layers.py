"""Forward results and gradients against torch.nn.LSTM, GRU and RNN in float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import gatewise
from gatewise import GRUDescriptor, LSTMDescriptor, RNNActivation, SingleGateRNNDescriptor
from peers import difference, from_order

T, N, I, H = 6, 3, 5, 4  # noqa: E741
BOUND = 1e-12

FORWARD = {"lstm": gatewise.lstm, "gru": gatewise.gru, "single_gate_rnn": gatewise.single_gate_rnn}
GRADIENTS = {
    "lstm": gatewise.lstm_gradients,
    "gru": gatewise.gru_gradients,
    "single_gate_rnn": gatewise.single_gate_rnn_gradients,
}


def make_layer(cell: str, bidirectional: bool, activation: str) -> torch.nn.RNNBase:
    torch.manual_seed(7)
    if cell == "single_gate_rnn":
        return torch.nn.RNN(I, H, nonlinearity=activation, bidirectional=bidirectional, dtype=torch.float64)
    kind = torch.nn.LSTM if cell == "lstm" else torch.nn.GRU
    return kind(I, H, bidirectional=bidirectional, dtype=torch.float64)


def convert(cell: str, layer: torch.nn.RNNBase, gradient: bool) -> dict[str, np.ndarray]:
    """A layer's weights, or their gradients, as this library's arguments."""
    parts: dict[str, list[np.ndarray]] = {"recurrent_weight": [], "input_weight": [], "bias": [], "secondary_bias": []}
    for suffix in ("", "_reverse")[: 2 if layer.bidirectional else 1]:

        def get(name: str, suffix: str = suffix) -> np.ndarray:
            parameter = getattr(layer, f"{name}_l0{suffix}")
            return from_order((parameter.grad if gradient else parameter.detach()).numpy(), cell, "pytorch")

        input_bias, recurrent_bias = get("bias_ih"), get("bias_hh")
        parts["recurrent_weight"].append(get("weight_hh"))
        parts["input_weight"].append(get("weight_ih"))
        if cell == "gru":
            parts["secondary_bias"].append(recurrent_bias[2 * H :])
            recurrent_bias = np.concatenate([recurrent_bias[: 2 * H], np.zeros(H)])
        # The two biases are added, so each has the gradient of the sum.
        parts["bias"].append(input_bias if gradient else input_bias + recurrent_bias)
    packed = {name: np.concatenate(arrays) for name, arrays in parts.items() if arrays}
    if layer.bidirectional:
        packed["recurrent_weight"] = np.stack(parts["recurrent_weight"])
    return packed


def make_descriptor(cell: str, bidirectional: bool, activation: str) -> Any:
    if cell == "lstm":
        return LSTMDescriptor(bidirectional=bidirectional, training=True)
    if cell == "gru":
        return GRUDescriptor(bidirectional=bidirectional, training=True, reset_after=True)
    return SingleGateRNNDescriptor(bidirectional=bidirectional, training=True, activation=RNNActivation[activation.upper()])


def side_by_side(stacked: torch.Tensor) -> np.ndarray:
    """[D, N, H] as [N, D*H]."""
    return np.concatenate(list(stacked.detach().numpy()), -1)


CELLS = [("lstm", "tanh"), ("gru", "tanh"), ("single_gate_rnn", "tanh"), ("single_gate_rnn", "relu")]


@pytest.mark.parametrize(("cell", "activation"), CELLS)
@pytest.mark.parametrize(("bidirectional", "initial"), list(product((False, True), repeat=2)))
@pytest.mark.parametrize("loss", ["sequence", "final", "both"])
def test_equals_torch_layer(any_engine: str, cell: str, activation: str, bidirectional: bool, initial: bool, loss: str) -> None:
    layer = make_layer(cell, bidirectional, activation)
    descriptor = make_descriptor(cell, bidirectional, activation)
    D = 2 if bidirectional else 1
    source = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    start = [torch.randn(D, N, H, dtype=torch.float64, requires_grad=True) for _ in range(2 if cell == "lstm" else 1)]
    state, final = layer(source, (tuple(start) if cell == "lstm" else start[0]) if initial else None)
    final_state, final_cell = final if cell == "lstm" else (final, None)

    arguments = convert(cell, layer, gradient=False)
    if initial:
        arguments |= dict(zip(("init_state", "init_cell"), map(side_by_side, start), strict=False))
    x = source.detach().numpy()
    with gatewise.use_engine(any_engine):
        results = FORWARD[cell](x, **arguments, descriptor=descriptor)
    assert difference(results[0], state.detach().numpy()) < BOUND
    ends = results[0].reshape(T, N, D, H)
    ends = np.concatenate([ends[0 if k else -1, :, k] for k in range(D)], -1)
    assert difference(ends, side_by_side(final_state)) < BOUND

    weights = {name: torch.randn(value.shape, dtype=torch.float64) for name, value in (("state", state), ("h", final_state))}
    if cell == "lstm":
        weights["c"] = torch.randn(final_cell.shape, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    given: dict[str, Any] = {"source_gradient": np.zeros((T, N, D * H))}
    if loss != "final":
        total = total + (state * weights["state"]).sum()
        given["source_gradient"] = weights["state"].numpy()
    if loss != "sequence":
        total = total + (final_state * weights["h"]).sum()
        given["state_gradient"] = side_by_side(weights["h"])
        if cell == "lstm":
            total = total + (final_cell * weights["c"]).sum()
            given["cell_gradient"] = side_by_side(weights["c"])
    total.backward()
    if cell == "lstm":
        given["cell_output_fwd"] = results[1]
    if cell == "gru":
        given["output_fwd"] = results[0]
    with gatewise.use_engine(any_engine):
        found = GRADIENTS[cell](x, **arguments, **given, z_state=results[-1], descriptor=descriptor)

    expected = {"source": source.grad.numpy(), **convert(cell, layer, gradient=True)}
    if initial:
        expected |= {name: side_by_side(each.grad) for name, each in zip(("init_state", "init_cell"), start, strict=False)}
    order = ("source", "recurrent_weight", "input_weight", "bias", "init_state", "init_cell", "secondary_bias")
    wanted = [(name, expected[name]) for name in order if name in expected]
    assert len(found) == len(wanted)
    for (name, want), have in zip(wanted, found, strict=True):
        assert difference(have, want) < BOUND, name


def test_packed_sequences_equal_lengths(any_engine: str) -> None:
    """torch's ragged batches: outputs past a row's end are 0, the backward direction starts at the row's end."""
    layer = make_layer("lstm", True, "tanh")
    lengths = torch.tensor([6, 2, 4])
    source = torch.randn(T, N, I, dtype=torch.float64)
    packed = torch.nn.utils.rnn.pack_padded_sequence(source, lengths, enforce_sorted=False)
    state = torch.nn.utils.rnn.pad_packed_sequence(layer(packed)[0])[0].detach().numpy()
    with gatewise.use_engine(any_engine):
        descriptor = LSTMDescriptor(bidirectional=True)
        found = gatewise.lstm(source.numpy(), **convert("lstm", layer, False), descriptor=descriptor, lengths=lengths.numpy())
    assert difference(found[0], state) < BOUND


def test_gate_order_flags(any_engine: str) -> None:
    """forget_gate_last and reset_gate_first only rename rows: permuted weights give the same states."""
    layer = make_layer("gru", False, "tanh")
    x = torch.randn(T, N, I, dtype=torch.float64).numpy()
    with gatewise.use_engine(any_engine):
        plain = gatewise.gru(x, **convert("gru", layer, False), descriptor=GRUDescriptor(reset_after=True))[0]
        packed = convert("gru", layer, False)
        for name in ("recurrent_weight", "input_weight", "bias"):
            z, r, o = np.split(packed[name], 3)
            packed[name] = np.concatenate([r, z, o])
        descriptor = GRUDescriptor(reset_after=True, reset_gate_first=True)
        assert np.array_equal(gatewise.gru(x, **packed, descriptor=descriptor)[0], plain)

        layer = make_layer("lstm", False, "tanh")
        packed = convert("lstm", layer, False)
        plain = gatewise.lstm(x, **packed)[0]
        for name in packed:
            i, f, z, o = np.split(packed[name], 4)
            packed[name] = np.concatenate([i, z, f, o])
        assert np.array_equal(gatewise.lstm(x, **packed, descriptor=LSTMDescriptor(forget_gate_last=True))[0], plain)
