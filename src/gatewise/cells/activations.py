"""The five activations and their slopes.

A slope is a function of the activation's *result*: that is what z_state keeps, and it gives 0 at every kink.
Comparisons are written so that NaN passes through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HARD_SIGMOID_SLOPE = 0.2
HARD_SIGMOID_OFFSET = 0.5

# `ops` supplies tanh, sigmoid, and select(condition, a, b); values supply + - * and <.
Formula = Callable[[Any, Any], Any]


def _hard_sigmoid(ops: Any, x: Any) -> Any:
    line = HARD_SIGMOID_SLOPE * x + HARD_SIGMOID_OFFSET
    return ops.select(line < 0.0, 0.0, ops.select(line > 1.0, 1.0, line))


ACTIVATE: tuple[Formula, ...] = (
    lambda ops, x: x,
    lambda ops, x: ops.select(x < 0.0, 0.0, x),
    lambda ops, x: ops.tanh(x),
    lambda ops, x: ops.sigmoid(x),
    _hard_sigmoid,
)

SLOPE: tuple[Formula, ...] = (
    lambda ops, y: ops.ones_like(y),
    lambda ops, y: ops.select(y > 0.0, 1.0, 0.0),
    lambda ops, y: 1.0 - y * y,
    lambda ops, y: y * (1.0 - y),
    lambda ops, y: ops.select(y > 0.0, ops.select(y < 1.0, HARD_SIGMOID_SLOPE, 0.0), 0.0),
)

NAMES = ("none", "relu", "tanh", "sigmoid", "hard_sigmoid")
