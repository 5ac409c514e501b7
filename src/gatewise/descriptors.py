"""The three descriptors: plain, frozen, keyword-only data classes that are checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, Literal

from .errors import ArgumentError, DTypeError


class RNNActivation(IntEnum):
    """The activation of a gate or of the cell value."""

    NONE = 0
    RELU = 1
    TANH = 2
    SIGMOID = 3
    HARD_SIGMOID = 4

    __hash__ = int.__hash__  # faster than its name's: descriptors are looked up at every call


class _Descriptor:
    operation: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(field.default, RNNActivation):
                self._check_activation(field.name, value)
            elif isinstance(field.default, bool) and type(value) is not bool:
                raise DTypeError(
                    f"{type(self).__name__}: {field.name} must be True or False, got {value!r} of type {type(value).__name__}"
                )

    def _check_activation(self, name: str, value: Any) -> None:
        if isinstance(value, RNNActivation):
            return
        members = ", ".join(f"RNNActivation.{member.name}" for member in RNNActivation)
        raise DTypeError(
            f"{type(self).__name__}: {name} must be one of {members}, got {value!r} of type {type(value).__name__}"
        )


@dataclass(frozen=True, kw_only=True)
class LSTMDescriptor(_Descriptor):
    """How an LSTM runs. `activation` is applied to the cell value; the others each to their gate.

    `output_peephole="current"` lets the output gate see the new cell value, as ONNX and oneDNN do.
    `reverse` is ignored when `bidirectional` is set.
    """

    operation: ClassVar[str] = "lstm"
    reverse: bool = False
    bidirectional: bool = False
    produce_cell: bool = False
    training: bool = False
    forget_gate_last: bool = False
    input_gate_activation: RNNActivation = RNNActivation.SIGMOID
    forget_gate_activation: RNNActivation = RNNActivation.SIGMOID
    cell_gate_activation: RNNActivation = RNNActivation.TANH
    output_gate_activation: RNNActivation = RNNActivation.SIGMOID
    activation: RNNActivation = RNNActivation.TANH
    output_peephole: Literal["previous", "current"] = "previous"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.output_peephole, str):
            raise DTypeError(
                "LSTMDescriptor: output_peephole must be 'previous' or 'current', "
                f"got {self.output_peephole!r} of type {type(self.output_peephole).__name__}"
            )
        if self.output_peephole not in ("previous", "current"):
            raise ArgumentError(
                f"LSTMDescriptor: output_peephole must be 'previous' or 'current', got {self.output_peephole!r}"
            )


@dataclass(frozen=True, kw_only=True)
class GRUDescriptor(_Descriptor):
    """How a GRU runs.

    `reset_after` multiplies the reset gate after the recurrent product instead of before it;
    `flip_z` makes the update gate weigh the new value instead of the old one.
    `reverse` is ignored when `bidirectional` is set.
    """

    operation: ClassVar[str] = "gru"
    reverse: bool = False
    bidirectional: bool = False
    training: bool = False
    reset_gate_first: bool = False
    reset_after: bool = False
    flip_z: bool = False
    update_gate_activation: RNNActivation = RNNActivation.SIGMOID
    reset_gate_activation: RNNActivation = RNNActivation.SIGMOID
    output_gate_activation: RNNActivation = RNNActivation.TANH


@dataclass(frozen=True, kw_only=True)
class SingleGateRNNDescriptor(_Descriptor):
    """How a single-gate RNN runs. `reverse` is ignored when `bidirectional` is set."""

    operation: ClassVar[str] = "single_gate_rnn"
    reverse: bool = False
    bidirectional: bool = False
    training: bool = False
    activation: RNNActivation = RNNActivation.RELU
