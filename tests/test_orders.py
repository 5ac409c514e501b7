"""The one table of gate orders. That PyTorch's, ONNX's and Keras' rows are right is shown by the tests of those layers."""

from __future__ import annotations

import pytest

from gatewise import GRUDescriptor, LSTMDescriptor
from gatewise.cells import GATE_ORDERS, cell_of, order_of, slots


def test_every_order_is_a_permutation() -> None:
    for (cell, _), order in GATE_ORDERS.items():
        assert sorted(order) == sorted(GATE_ORDERS[cell, "gatewise"])


@pytest.mark.parametrize(
    ("cell", "order", "places"),
    [
        ("lstm", "onnx", (0, 2, 3, 1)),
        ("lstm", "gatewise, forget_gate_last", (0, 2, 1, 3)),
        ("gru", "pytorch", (1, 0, 2)),
        ("gru", "cudnn", (1, 0, 2)),
        ("gru", "mlx", (1, 0, 2)),
        ("gru", "keras", (0, 1, 2)),
    ],
)
def test_slots(cell: str, order: str, places: tuple[int, ...]) -> None:
    assert slots(cell, order) == places


def test_every_framework_has_both_cells() -> None:
    for framework in ("gatewise", "pytorch", "onnx", "keras", "cudnn", "mlx"):
        assert {cell for cell, name in GATE_ORDERS if name == framework} == {"lstm", "gru"}


def test_descriptors_choose_their_order() -> None:
    assert order_of(LSTMDescriptor()) == (0, 1, 2, 3)
    assert order_of(LSTMDescriptor(forget_gate_last=True)) == (0, 2, 1, 3)
    assert order_of(GRUDescriptor(reset_gate_first=True)) == (1, 0, 2)
    assert "".join(cell_of(LSTMDescriptor()).gates) == GATE_ORDERS["lstm", "gatewise"]
    assert "".join(cell_of(GRUDescriptor()).gates) == GATE_ORDERS["gru", "gatewise"]
