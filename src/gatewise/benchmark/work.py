"""The arrays of one piece of work, in gatewise's layout. Every rival gets these same values in its own layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .shapes import GATES, PLAIN, Shape, Variant

Array = np.ndarray[Any, Any]


@dataclass
class Work:
    """One cell at one shape. `arguments` are the arrays of the call, by gatewise's names.

    Gate order is that of PyTorch (LSTM i, f, z, o; GRU r, z, o); `secondary_bias` is there for the reset-after GRU only.
    """

    cell: str
    shape: Shape
    variant: Variant
    arguments: dict[str, Array]
    output_gradient: Array = field(repr=False)  # [T, N, D·H]

    def per_direction(self, name: str) -> Array:
        """`recurrent_weight` [D, G·H, H], `input_weight` [D, G·H, I], `bias` [D, G·H] or `secondary_bias` [D, H]."""
        array = self.arguments[name]
        D = self.shape.D
        if name == "recurrent_weight":
            return array.reshape(D, -1, self.shape.H)
        return array.reshape(D, array.shape[0] // D, *array.shape[1:])

    def initial(self, name: str) -> Array:
        """`init_state` or `init_cell` as [D, N, H], contiguous."""
        shape = self.shape
        return np.ascontiguousarray(self.arguments[name].reshape(shape.N, shape.D, shape.H).swapaxes(0, 1))


def make_work(cell: str, shape: Shape, variant: Variant | None = None, seed: int = 0) -> Work:
    """Random float32 arrays; weights drawn as PyTorch's modules draw theirs, so that nothing saturates."""
    variant = variant or PLAIN[cell]
    T, N, H, D = shape.T, shape.N, shape.H, shape.D
    rows = D * GATES[cell] * H
    random = np.random.default_rng(seed)
    bound = 1.0 / np.sqrt(H)

    def uniform(*size: int) -> Array:
        return random.uniform(-bound, bound, size).astype(np.float32)

    def normal(*size: int) -> Array:
        return random.standard_normal(size, np.float32)

    recurrent = uniform(rows, H)
    arguments = {
        "source": normal(T, N, shape.I),
        "recurrent_weight": recurrent.reshape(D, rows // D, H) if shape.bidirectional else recurrent,
        "input_weight": uniform(rows, shape.I),
        "bias": uniform(rows),
        "init_state": 0.1 * normal(N, D * H),
    }
    if cell == "lstm":
        arguments["init_cell"] = 0.1 * normal(N, D * H)
    if cell == "gru" and not variant.reset_before:
        arguments["secondary_bias"] = uniform(D * H)
    output_gradient = normal(T, N, D * H)
    if variant.peephole:
        arguments["peephole"] = uniform(rows)
    if variant.mask:  # a value for every step, row and unit: the form with the most to read
        arguments["mask"] = (random.random((T, N, D * H)) < 0.75).astype(np.float32) / np.float32(0.75)
    if variant.lengths:  # from half to all of the steps, and one full row
        arguments["lengths"] = random.integers((T + 1) // 2, T + 1, N)
        arguments["lengths"][0] = T
    if variant.resets:
        arguments["resets"] = random.random((T, N)) < 0.02
    return Work(cell, shape, variant, arguments, output_gradient)
