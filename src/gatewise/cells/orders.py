"""The one table of gate orders: the order in which each framework packs the gates of a cell.

Letters are this library's names. LSTM: i input, f forget, z cell gate (others say g or c), o output.
GRU: z update, r reset, o output gate (others say n or h).
"""

from __future__ import annotations

GATE_ORDERS: dict[tuple[str, str], str] = {
    ("lstm", "gatewise"): "ifzo",
    ("lstm", "gatewise, forget_gate_last"): "izfo",
    ("lstm", "pytorch"): "ifzo",
    ("lstm", "onnx"): "iofz",
    ("lstm", "keras"): "ifzo",
    ("lstm", "cudnn"): "ifzo",
    ("lstm", "mlx"): "ifzo",
    ("gru", "gatewise"): "zro",
    ("gru", "gatewise, reset_gate_first"): "rzo",
    ("gru", "pytorch"): "rzo",
    ("gru", "onnx"): "zro",
    ("gru", "keras"): "zro",
    ("gru", "cudnn"): "rzo",
    ("gru", "mlx"): "rzo",
}


def slots(cell: str, order: str) -> tuple[int, ...]:
    """Where each gate of the default order sits in `order`: `slots("lstm", "onnx") == (0, 2, 3, 1)`."""
    packed = GATE_ORDERS[cell, order]
    return tuple(packed.index(gate) for gate in GATE_ORDERS[cell, "gatewise"])
