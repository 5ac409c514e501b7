"""The cells: the only place with gate maths. Everything else, in Python, C++ and CUDA, is generic over `Cell`."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

from ..descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from .cell import Cell, Phase
from .gru import GRU_AFTER, GRU_AFTER_FLIPPED, GRU_BEFORE, GRU_BEFORE_FLIPPED
from .lstm import LSTM, LSTM_PEEPHOLE, LSTM_PEEPHOLE_CURRENT
from .orders import GATE_ORDERS, slots
from .single_gate import SINGLE_GATE

__all__ = ["CELLS", "GATE_ORDERS", "Cell", "Descriptor", "Phase", "activations_of", "cell_of", "order_of", "slots"]

Descriptor: TypeAlias = LSTMDescriptor | GRUDescriptor | SingleGateRNNDescriptor

# Native code numbers the cells by their place in this list.
CELLS: tuple[Cell, ...] = (
    SINGLE_GATE,
    LSTM,
    LSTM_PEEPHOLE,
    LSTM_PEEPHOLE_CURRENT,
    GRU_BEFORE,
    GRU_BEFORE_FLIPPED,
    GRU_AFTER,
    GRU_AFTER_FLIPPED,
)


def cell_of(descriptor: Descriptor, peephole: bool = False) -> Cell:
    """The structural variant a descriptor asks for."""
    if isinstance(descriptor, LSTMDescriptor):
        if not peephole:
            return LSTM
        return LSTM_PEEPHOLE_CURRENT if descriptor.output_peephole == "current" else LSTM_PEEPHOLE
    if isinstance(descriptor, GRUDescriptor):
        if descriptor.reset_after:
            return GRU_AFTER_FLIPPED if descriptor.flip_z else GRU_AFTER
        return GRU_BEFORE_FLIPPED if descriptor.flip_z else GRU_BEFORE
    return SINGLE_GATE


@lru_cache(maxsize=256)
def activations_of(descriptor: Descriptor) -> tuple[int, ...]:
    """The descriptor's activation codes, in the order the cell's maths numbers them."""
    return tuple(int(getattr(descriptor, field)) for field in cell_of(descriptor).activations)


@lru_cache(maxsize=256)
def order_of(descriptor: Descriptor) -> tuple[int, ...]:
    """The packed slot of each of the cell's gates."""
    if isinstance(descriptor, LSTMDescriptor):
        return slots("lstm", "gatewise, forget_gate_last" if descriptor.forget_gate_last else "gatewise")
    if isinstance(descriptor, GRUDescriptor):
        return slots("gru", "gatewise, reset_gate_first" if descriptor.reset_gate_first else "gatewise")
    return (0,)
