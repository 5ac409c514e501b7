"""One LSTM training step, forward and all gradients, in gatewise and as the NumPy loop one would write.

    python examples/demo.py

Options that other libraries send to a slow path are as fast here as the plain layer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import gatewise
from gatewise import LSTMDescriptor, RNNActivation

T, N, I, H = 50, 16, 64, 128  # noqa: E741  steps, rows, features, units
Array = Any


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def hard_sigmoid(x: Array) -> Array:
    return np.clip(np.float32(0.2) * x + np.float32(0.5), 0, 1)


def sigmoid_slope(y: Array) -> Array:
    return y * (1 - y)


def hard_sigmoid_slope(y: Array) -> Array:
    return np.where((y > 0) & (y < 1), np.float32(0.2), np.float32(0))


def numpy_step(x: Array, R: Array, W: Array, b: Array, mask: Array, p: Array, hard: bool) -> list[Array]:
    """State and the gradients of source, weights, bias and peephole, for a loss that is the sum of all states."""
    gate, slope = (hard_sigmoid, hard_sigmoid_slope) if hard else (sigmoid, sigmoid_slope)
    state, cell = np.zeros((T + 1, N, H), np.float32), np.zeros((T + 1, N, H), np.float32)
    gates = np.zeros((T, 4, N, H), np.float32)
    peephole = p.reshape(4, 1, H)
    for t in range(T):
        sums = (x[t] @ W.T + b + (state[t] * mask[t]) @ R.T).reshape(N, 4, H).swapaxes(0, 1) + peephole * cell[t]
        i, f, z, o = gates[t] = gate(sums[0]), gate(sums[1]), np.tanh(sums[2]), gate(sums[3])
        cell[t + 1] = f * cell[t] + i * z
        state[t + 1] = o * np.tanh(cell[t + 1])

    dx, dR, dW = np.zeros_like(x), np.zeros_like(R), np.zeros_like(W)
    db, dp = np.zeros_like(b), np.zeros((4, H), np.float32)
    dh, dc = np.zeros((N, H), np.float32), np.zeros((N, H), np.float32)
    for t in reversed(range(T)):
        i, f, z, o = gates[t]
        dh = dh + 1
        y = np.tanh(cell[t + 1])
        dc = dc + dh * o * (1 - y * y)
        d = np.stack([dc * z * slope(i), dc * cell[t] * slope(f), dc * i * (1 - z * z), dh * y * slope(o)])
        dc = dc * f + (d * peephole).sum(0)
        dp += (d * cell[t]).sum(1)
        packed = d.swapaxes(0, 1).reshape(N, 4 * H)
        dh = (packed @ R) * mask[t]
        dx[t] = packed @ W
        dR += packed.T @ (state[t] * mask[t])
        dW += packed.T @ x[t]
        db += packed.sum(0)
    return [state[1:], dx, dR, dW, db, dp.reshape(-1)]


def gatewise_step(x: Array, R: Array, W: Array, b: Array, mask: Array | None, p: Array | None, hard: bool) -> list[Array]:
    activation = RNNActivation.HARD_SIGMOID if hard else RNNActivation.SIGMOID
    descriptor = LSTMDescriptor(
        training=True,
        input_gate_activation=activation,
        forget_gate_activation=activation,
        output_gate_activation=activation,
    )
    more = {"input_weight": W, "bias": b, "mask": mask, "peephole": p, "descriptor": descriptor}
    state, cell, z_state = gatewise.lstm(x, R, **more)
    return [state, *gatewise.lstm_gradients(x, R, np.ones_like(state), z_state, cell, **more)]


def milliseconds(step: Callable[[], Any]) -> float:
    """The median of a few runs after a first one."""
    step()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main() -> None:
    random = np.random.default_rng(0)

    def make(*shape: int) -> Array:
        return random.uniform(-0.2, 0.2, shape).astype(np.float32)

    x, R, W, b, p = make(T, N, I), make(4 * H, H), make(4 * H, I), make(4 * H), make(4 * H)
    mask = (random.random((T, N, H)) < 0.8).astype(np.float32) / np.float32(0.8)
    table = Table(
        "LSTM", "NumPy loop", "gatewise", "faster", "largest difference", title=f"one training step, T={T} N={N} I={I} H={H}"
    )
    for name, with_peephole, with_mask, hard in (
        ("plain", False, False, False),
        ("peephole", True, False, False),
        ("mask", False, True, False),
        ("hard sigmoid", False, False, True),
        ("peephole, mask, hard sigmoid", True, True, True),
    ):
        loop_mask, loop_p = mask if with_mask else np.ones_like(mask), p if with_peephole else np.zeros_like(p)
        ours = gatewise_step(x, R, W, b, mask if with_mask else None, p if with_peephole else None, hard)
        theirs = numpy_step(x, R, W, b, loop_mask, loop_p, hard)
        difference = max(float(np.abs(a - c).max() / np.abs(c).max()) for a, c in zip(ours, theirs[: len(ours)], strict=True))
        fast = milliseconds(
            lambda m=mask if with_mask else None, q=p if with_peephole else None, k=hard: gatewise_step(x, R, W, b, m, q, k)
        )
        slow = milliseconds(lambda m=loop_mask, q=loop_p, k=hard: numpy_step(x, R, W, b, m, q, k))
        table.add_row(name, f"{slow:.1f} ms", f"{fast:.1f} ms", f"{slow / fast:.1f}×", f"{difference:.1e}")
    console = Console()
    console.print(table)
    console.print("Largest difference: over the states and every gradient, relative to each array's scale; all in float32.")


if __name__ == "__main__":
    main()
