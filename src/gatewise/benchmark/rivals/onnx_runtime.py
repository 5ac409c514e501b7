"""ONNX Runtime's LSTM, GRU and RNN operators on the CPU. Inference only."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..work import Array, Work
from . import Prepared, UnableError, missing

_OPSET = 17
_IR_VERSION = 8

# the work's gates in ONNX's order: LSTM i, o, f, c from i, f, z, o; GRU z, r, h from r, z, o
_ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "single": (0,)}
_OPERATOR = {"lstm": "LSTM", "gru": "GRU", "single": "RNN"}


def _weights(work: Work) -> dict[str, Array]:
    order = list(_ORDER[work.cell])
    D, H = work.shape.D, work.shape.H

    def reordered(array: Array) -> Array:
        gates = array.reshape(D, len(order), H, *array.shape[2:])
        return np.ascontiguousarray(gates[:, order].reshape(array.shape))

    input_bias = reordered(work.per_direction("bias"))
    recurrent_bias = np.zeros_like(input_bias)
    if work.cell == "gru":
        recurrent_bias[:, 2 * H :] = work.per_direction("secondary_bias")
    return {
        "W": reordered(work.per_direction("input_weight")),
        "R": reordered(work.per_direction("recurrent_weight")),
        "B": np.concatenate([input_bias, recurrent_bias], axis=1),
    }


def _model(work: Work) -> bytes:
    """A model of one operator with the weights inside, as an exporter would write it."""
    from onnx import TensorProto, helper, numpy_helper

    shape = work.shape
    starts = ["initial_h", "initial_c"] if work.cell == "lstm" else ["initial_h"]
    options: dict[str, Any] = {"hidden_size": shape.H}
    if shape.bidirectional:
        options["direction"] = "bidirectional"
    if work.cell == "gru":
        options["linear_before_reset"] = 1
    if work.cell == "single":
        options["activations"] = ["Relu"] * shape.D
    node = helper.make_node(_OPERATOR[work.cell], ["X", "W", "R", "B", "", *starts], ["Y"], **options)

    def value(name: str, *size: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, size)

    graph = helper.make_graph(
        [node],
        "rnn",
        [value("X", shape.T, shape.N, shape.I), *(value(name, shape.D, shape.N, shape.H) for name in starts)],
        [value("Y", shape.T, shape.D, shape.N, shape.H)],
        [numpy_helper.from_array(array, name) for name, array in _weights(work).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    return bytes(model.SerializeToString())


class OnnxRuntime:
    name = "onnxruntime"
    modes: tuple[str, ...] = ("forward",)

    def unavailable(self) -> str | None:
        return missing("onnx", "onnxruntime")

    def version(self) -> str:
        import onnxruntime

        return str(onnxruntime.__version__)

    def prepare(self, work: Work, mode: str, threads: int) -> Prepared:
        import onnxruntime

        if mode != "forward" or work.variant.name != "plain":
            raise UnableError("measured for plain inference only")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(_model(work), options, providers=["CPUExecutionProvider"])
        feeds = {"X": work.arguments["source"], "initial_h": work.initial("init_state")}
        if work.cell == "lstm":
            feeds["initial_c"] = work.initial("init_cell")

        def results(raw: Any) -> dict[str, Array]:
            T, D, N, H = raw[0].shape
            return {"state": raw[0].swapaxes(1, 2).reshape(T, N, D * H)}

        return Prepared(lambda: session.run(["Y"], feeds), results)
