"""Weights of other frameworks in this library's packing, through the one table of gate orders."""

from __future__ import annotations

import numpy as np

from gatewise.cells import slots


def from_order(packed: np.ndarray, cell: str, order: str) -> np.ndarray:
    """A [G*H, ...] array in a framework's gate order, in gatewise's."""
    if cell == "single_gate_rnn":
        return packed
    places = slots(cell, order)
    gates = np.split(packed, len(places))
    return np.concatenate([gates[place] for place in places])


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, relative to the wanted array's scale."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max(initial=0.0) / max(np.abs(wanted).max(initial=0.0), 1e-300))
