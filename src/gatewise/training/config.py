"""Everything that decides a training run besides its text. A checkpoint holds it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ..cells import Descriptor
from ..descriptors import GRUDescriptor, LSTMDescriptor, RNNActivation, SingleGateRNNDescriptor
from ..errors import ArgumentError

DESCRIPTORS: dict[str, type[Any]] = {"lstm": LSTMDescriptor, "gru": GRUDescriptor, "rnn": SingleGateRNNDescriptor}

# What a language model does not choose: it reads forwards, and the graph itself decides which results it needs.
_NOT_CHOSEN = ("reverse", "bidirectional", "training", "produce_cell")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A model and how it is trained."""

    cell: str = "lstm"
    layers: int = 1
    hidden: int = 128
    embedding: int = 64
    options: dict[str, str] = field(default_factory=dict)  # of the cell's descriptor, as text
    peephole: bool = False
    dropout: float = 0.0  # between layers, and before the first and after the last
    recurrent_dropout: float = 0.0  # one mask per chunk on the state inside the recurrent product
    batch: int = 8
    chunk: int = 128  # characters per step and row; gradients reach this far back
    steps: int = 15_000
    rate: float = 4e-3  # the highest learning rate; it rises to it and falls again
    clip: float = 1.0  # the largest length of a gradient
    every: int = 1500  # steps between measurements on held-out text
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cell not in DESCRIPTORS:
            raise ArgumentError(f"cell must be one of {', '.join(DESCRIPTORS)}, got {self.cell!r}")
        for name, low, high in (
            ("layers", 1, 3),
            ("hidden", 1, 1 << 14),
            ("embedding", 1, 1 << 14),
            ("batch", 1, 1 << 14),
            ("chunk", 1, 1 << 14),
            ("steps", 1, 1 << 40),
            ("every", 1, 1 << 40),
            ("seed", 0, (1 << 63) - 1),
        ):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ArgumentError(f"{name} must be a whole number from {low} to {high}, got {value!r}")
        for name in ("dropout", "recurrent_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be from 0 to below 1, got {getattr(self, name)!r}")
        for name in ("rate", "clip"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ArgumentError(f"{name} must be above 0, got {getattr(self, name)!r}")
        if self.peephole and self.cell != "lstm":
            raise ArgumentError(f"only an lstm has peepholes, the cell is {self.cell}")
        self.descriptor()

    def descriptor(self) -> Descriptor:
        """The cell's descriptor with the chosen options; a single-gate RNN's activation is tanh unless chosen."""
        kind = DESCRIPTORS[self.cell]
        known = {each.name: each.default for each in dataclasses.fields(kind) if each.name not in _NOT_CHOSEN}
        chosen: dict[str, Any] = {"activation": RNNActivation.TANH} if self.cell == "rnn" else {}
        for name, text in self.options.items():
            if name not in known:
                raise ArgumentError(f"{self.cell} has no option {name!r}; it has {', '.join(known)}")
            chosen[name] = _value(name, text, known[name])
        return kind(**chosen)  # type: ignore[no-any-return]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def _value(name: str, text: str, default: Any) -> Any:
    """The text of an option in the type of its default."""
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ArgumentError(f"{name} must be true or false, got {text!r}")
        return text == "true"
    if isinstance(default, RNNActivation):
        members = {member.name.lower(): member for member in RNNActivation}
        if text not in members:
            raise ArgumentError(f"{name} must be one of {', '.join(members)}, got {text!r}")
        return members[text]
    return text


def with_gates(cell: str, options: dict[str, str], activation: str) -> dict[str, str]:
    """The options with this activation on every gate that is a sigmoid by default and not chosen otherwise."""
    gates = [each.name for each in dataclasses.fields(DESCRIPTORS[cell]) if each.default is RNNActivation.SIGMOID]
    if not gates:
        raise ArgumentError(f"{cell} has no sigmoid gates")
    return {**dict.fromkeys(gates, activation), **options}
