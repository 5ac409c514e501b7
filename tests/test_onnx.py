"""Forward results against onnxruntime's LSTM, GRU and RNN, which run in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import gatewise
from gatewise import GRUDescriptor, LSTMDescriptor, RNNActivation, SingleGateRNNDescriptor
from peers import difference, from_order

T, N, I, H = 7, 4, 5, 6  # noqa: E741
BOUND = 2e-6  # of float32 results over seven steps; onnxruntime has its own rounding
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CELL = {"LSTM": "lstm", "GRU": "gru", "RNN": "single_gate_rnn"}
# ONNX's name of every activation, with its alpha and beta where it has them.
NAMES: dict[str, tuple[str, float | None, float | None]] = {
    "NONE": ("Affine", 1.0, 0.0),
    "RELU": ("Relu", None, None),
    "TANH": ("Tanh", None, None),
    "SIGMOID": ("Sigmoid", None, None),
    "HARD_SIGMOID": ("HardSigmoid", 0.2, 0.5),
}
DIRECTIONS = ("forward", "reverse", "bidirectional")
INPUTS = {
    "LSTM": ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    "GRU": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "RNN": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
}


def weights(kind: str, direction: str, seed: int) -> dict[str, np.ndarray]:
    """Every input of the ONNX operator."""
    random = np.random.default_rng(seed)
    D, G = (2 if direction == "bidirectional" else 1), GATES[kind]

    def make(*shape: int, scale: float = 1.0) -> np.ndarray:
        return random.uniform(-scale, scale, shape).astype(np.float32)

    return {
        "X": make(T, N, I),
        "W": make(D, G * H, I, scale=0.4),
        "R": make(D, G * H, H, scale=0.4),
        "B": make(D, 2 * G * H, scale=0.5),
        "sequence_lens": np.array([7, 1, 0, 4], np.int32),
        "initial_h": make(D, N, H),
        "initial_c": make(D, N, H),
        "P": make(D, 3 * H),
    }


def run_onnx(kind: str, direction: str, given: dict[str, np.ndarray], activations: list[str], **attributes: Any) -> list[Any]:
    """Y as [T, N, D*H] and the final states as [N, D*H]."""
    names = [NAMES[name] for name in activations] * (2 if direction == "bidirectional" else 1)
    attributes |= {"hidden_size": H, "direction": direction, "activations": [name for name, _, _ in names]}
    if any(alpha is not None for _, alpha, _ in names):
        attributes["activation_alpha"] = [alpha for _, alpha, _ in names if alpha is not None]
        attributes["activation_beta"] = [beta for _, _, beta in names if beta is not None]
    inputs = [name if name in given else "" for name in INPUTS[kind]]
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, outputs, **attributes)],
        kind,
        [helper.make_tensor_value_info(name, kinds[given[name].dtype], given[name].shape) for name in inputs if name],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * (4 if name == "Y" else 3)) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = session.run(None, {name: given[name] for name in inputs if name})
    return [found[0].transpose(0, 2, 1, 3).reshape(T, N, -1), *(np.concatenate(list(each), -1) for each in found[1:])]


def arguments(kind: str, given: dict[str, np.ndarray], reset_after: bool = False) -> dict[str, Any]:
    """The same call in this library's arguments."""
    cell, G = CELL[kind], GATES[kind]
    D = given["W"].shape[0]

    def pack(array: np.ndarray) -> list[np.ndarray]:
        return [from_order(part, cell, "onnx") for part in array]

    recurrent = pack(given["R"])
    call: dict[str, Any] = {
        "source": given["X"],
        "recurrent_weight": np.stack(recurrent) if D == 2 else recurrent[0],
        "input_weight": np.concatenate(pack(given["W"])),
    }
    if "B" in given:
        of_input, of_recurrent = pack(given["B"][:, : G * H]), pack(given["B"][:, G * H :])
        if reset_after:
            call["secondary_bias"] = np.concatenate([part[2 * H :].copy() for part in of_recurrent])
            for part in of_recurrent:
                part[2 * H :] = 0
        call["bias"] = np.concatenate([a + b for a, b in zip(of_input, of_recurrent, strict=True)])
    for ours, theirs in (("init_state", "initial_h"), ("init_cell", "initial_c")):
        if theirs in given and theirs in INPUTS[kind]:
            call[ours] = np.concatenate(list(given[theirs]), -1)
    if "P" in given and kind == "LSTM":
        of_gate = [np.split(part, 3) for part in given["P"]]  # i, o, f
        peepholes = [np.concatenate([i, f, np.zeros_like(i), o]) for i, o, f in of_gate]
        call["peephole"] = np.stack(peepholes) if D == 2 else peepholes[0]
    if "sequence_lens" in given:
        call["lengths"] = given["sequence_lens"]
    return call


def flags(direction: str) -> dict[str, bool]:
    return {"reverse": direction == "reverse", "bidirectional": direction == "bidirectional"}


def leave_out(given: dict[str, np.ndarray], what: str) -> dict[str, np.ndarray]:
    """All inputs, none of the optional ones, or all but the named one."""
    if what == "optional":
        return {name: given[name] for name in ("X", "W", "R")}
    return {name: array for name, array in given.items() if name != what}


def check(engine: str, operation: Any, call: dict[str, Any], descriptor: Any, wanted: list[Any]) -> None:
    with gatewise.use_engine(engine):
        found = operation(**call, descriptor=descriptor)
    assert difference(found[0], wanted[0]) < BOUND
    # The final state: the carried one for a row without steps, else where its direction ends.
    lengths = call.get("lengths", np.full(N, T))
    backwards = (False, True) if descriptor.bidirectional else (descriptor.reverse,)
    for sequence, initial, end in zip(found, ("init_state", "init_cell"), wanted[1:], strict=False):
        steps = sequence.reshape(T, N, len(backwards), H)
        for n, length in enumerate(lengths):
            if length == 0:
                continue  # ONNX does not say what a row without steps ends with
            ends = np.concatenate([steps[0 if back else length - 1, n, k] for k, back in enumerate(backwards)])
            assert difference(ends, end[n]) < 10 * BOUND, initial


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("missing", ["nothing", "optional", "P", "sequence_lens"])
@pytest.mark.parametrize("forms", [("SIGMOID", "TANH", "TANH"), ("HARD_SIGMOID", "RELU", "NONE"), ("TANH", "NONE", "SIGMOID")])
def test_lstm(any_engine: str, direction: str, missing: str, forms: tuple[str, str, str]) -> None:
    given = leave_out(weights("LSTM", direction, 1), missing)
    gates, cell_gate, cell = (RNNActivation[name] for name in forms)
    descriptor = LSTMDescriptor(
        produce_cell=True,
        output_peephole="current",
        input_gate_activation=gates,
        forget_gate_activation=gates,
        output_gate_activation=gates,
        cell_gate_activation=cell_gate,
        activation=cell,
        **flags(direction),
    )
    check(any_engine, gatewise.lstm, arguments("LSTM", given), descriptor, run_onnx("LSTM", direction, given, list(forms)))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("missing", ["nothing", "optional", "sequence_lens"])
@pytest.mark.parametrize("reset_after", [False, True])
@pytest.mark.parametrize("forms", [("SIGMOID", "TANH"), ("HARD_SIGMOID", "RELU"), ("SIGMOID", "NONE")])
def test_gru(any_engine: str, direction: str, missing: str, reset_after: bool, forms: tuple[str, str]) -> None:
    given = leave_out(weights("GRU", direction, 2), missing)
    gates, output = (RNNActivation[name] for name in forms)
    descriptor = GRUDescriptor(
        reset_after=reset_after,
        update_gate_activation=gates,
        reset_gate_activation=gates,
        output_gate_activation=output,
        **flags(direction),
    )
    wanted = run_onnx("GRU", direction, given, list(forms), linear_before_reset=int(reset_after))
    check(any_engine, gatewise.gru, arguments("GRU", given, reset_after), descriptor, wanted)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("missing", ["nothing", "optional", "sequence_lens"])
@pytest.mark.parametrize("form", list(NAMES))
def test_single_gate_rnn(any_engine: str, direction: str, missing: str, form: str) -> None:
    given = leave_out(weights("RNN", direction, 3), missing)
    descriptor = SingleGateRNNDescriptor(activation=RNNActivation[form], **flags(direction))
    check(any_engine, gatewise.single_gate_rnn, arguments("RNN", given), descriptor, run_onnx("RNN", direction, given, [form]))
