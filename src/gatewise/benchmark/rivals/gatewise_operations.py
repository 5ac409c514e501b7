"""gatewise's own eager operations, on NumPy arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gatewise
from gatewise import GRUDescriptor, LSTMDescriptor, RNNActivation, SingleGateRNNDescriptor
from gatewise.engines import engine_for

from ..shapes import CONSTANT, MODES, OURS
from ..work import Array, Work
from . import Prepared

# the order in which the gradient operations return them
_GRADIENTS = (
    "source",
    "recurrent_weight",
    "input_weight",
    "bias",
    "peephole",
    "init_state",
    "init_cell",
    "secondary_bias",
)


def operation_of(cell: str) -> str:
    return "single_gate_rnn" if cell == "single" else cell


def saved_of(cell: str, results: list[Array]) -> dict[str, Array]:
    """The results of a training call under the names by which the gradient operation takes them."""
    saved = {"z_state": results[-1]}
    if cell == "lstm":
        saved["cell_output_fwd"] = results[1]
    elif cell == "gru":
        saved["output_fwd"] = results[0]
    return saved


def descriptor_of(work: Work, training: bool) -> Any:
    variant = work.variant
    sigmoid = RNNActivation.HARD_SIGMOID if variant.hard_sigmoid else RNNActivation.SIGMOID
    common: dict[str, Any] = {"bidirectional": work.shape.bidirectional, "training": training}
    if work.cell == "lstm":
        return LSTMDescriptor(
            input_gate_activation=sigmoid, forget_gate_activation=sigmoid, output_gate_activation=sigmoid, **common
        )
    if work.cell == "gru":
        return GRUDescriptor(
            reset_gate_first=True,
            reset_after=not variant.reset_before,
            update_gate_activation=sigmoid,
            reset_gate_activation=sigmoid,
            **common,
        )
    return SingleGateRNNDescriptor(**common)


class GatewiseOperations:
    name: str = OURS
    modes: tuple[str, ...] = MODES

    def unavailable(self) -> str | None:
        try:
            engine_for("bench", "cpu")
        except gatewise.UnsupportedError as error:
            return str(error)
        return None

    def version(self) -> str:
        return gatewise.__version__

    def prepare(self, work: Work, mode: str, threads: int) -> Prepared:
        name = operation_of(work.cell)
        forward = getattr(gatewise, name)
        gradients = getattr(gatewise, f"{name}_gradients")
        training = mode == "training"
        arguments: dict[str, Any] = {**work.arguments, "descriptor": descriptor_of(work, training)}
        if not training:
            return Prepared(lambda: forward(**arguments), lambda raw: {"state": raw[0]})

        def step() -> tuple[Array, list[Array]]:
            results = forward(**arguments)
            saved = saved_of(work.cell, results)
            return results[0], gradients(**arguments, **saved, source_gradient=work.output_gradient)

        given = [name for name in _GRADIENTS if name in work.arguments]

        def results(raw: Any) -> dict[str, Array]:
            state, found = raw
            named = {f"gradient of {name}": array for name, array in zip(given, found, strict=True)}
            return {"state": state, **named}

        return Prepared(step, results)


class GatewiseConstants(GatewiseOperations):
    """The same calls with weights that never change, as ONNX Runtime has them inside its model."""

    name = CONSTANT
    modes: tuple[str, ...] = ("forward",)

    def prepare(self, work: Work, mode: str, threads: int) -> Prepared:
        weights = {name: gatewise.constant(work.arguments[name]) for name in ("recurrent_weight", "input_weight")}
        return super().prepare(replace(work, arguments={**work.arguments, **weights}), mode, threads)
