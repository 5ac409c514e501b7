"""What a graph costs: building and differentiating 10,000 operations, and a small training step against the same
step written by hand with the eager operations and NumPy.

    python benchmarks/graph_overhead.py

Times are of the calling thread, with one thread everywhere, the two steps by turns. Nothing else should be running.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import time

import numpy as np

import gatewise
from gatewise import Graph, LSTMDescriptor

T, N, H, CLASSES = 128, 8, 128, 64
RATE = np.float32(0.1)


def large_graph() -> None:
    start = time.perf_counter()
    graph = Graph()
    x, weight = graph.placeholder([4, 4]), graph.variable(np.ones((4, 4), np.float32))
    y = x
    while len(graph.operations) < 10_000:
        for _ in range(100):
            y = graph.tanh(y * weight + x)
    built = time.perf_counter()
    number = len(graph.operations)
    gradient = graph.gradients(graph.reduction_sum(y), [weight])[weight]
    differentiated = time.perf_counter()
    graph.run({x: np.ones((4, 4), np.float32)}, [gradient])
    print(f"{number} operations: built in {built - start:.3f} s, differentiated in {differentiated - built:.3f} s,", end=" ")
    print(f"first run {time.perf_counter() - differentiated:.3f} s")


def small_step() -> None:
    rng = np.random.default_rng(0)
    shapes = ((4 * H, H), (4 * H, H), (4 * H,), (H, CLASSES), (CLASSES,))
    values = [(rng.standard_normal(shape) * 0.1).astype(np.float32) for shape in shapes]
    source = rng.standard_normal((T, N, H)).astype(np.float32)
    classes = rng.integers(0, CLASSES, (T, N))

    graph = Graph()
    x, labels = graph.placeholder(source.shape), graph.placeholder(classes.shape, np.int64)
    variables = [graph.variable(value) for value in values]
    recurrent, inputs, bias, weight, offset = variables
    (state,) = graph.lstm(x, recurrent, inputs, bias)
    loss = graph.soft_max_cross_entropy(state @ weight + offset, labels, reduction="mean")
    gradients = graph.gradients(loss, variables)
    updates = [graph.assign(each, graph.stochastic_gradient_descent(RATE, each, gradients[each])) for each in variables]
    feeds = {x: source, labels: classes}

    def by_hand() -> np.ndarray:
        recurrent, inputs, bias, weight, offset = values
        descriptor = LSTMDescriptor(training=True)
        state, cell, z_state = gatewise.lstm(source, recurrent, inputs, bias, descriptor=descriptor)
        flat = state.reshape(-1, H)
        scores = flat @ weight + offset
        scores -= scores.max(-1, keepdims=True)
        exponentials = np.exp(scores)
        total = exponentials.sum(-1, keepdims=True)
        wanted = (classes.reshape(-1, 1) == np.arange(CLASSES)).astype(np.float32)
        loss = (wanted * (np.log(total) - scores)).sum(-1).mean()
        d_scores = (exponentials / total - wanted) * np.float32(1 / (T * N))
        d_state = (d_scores @ weight.T).reshape(T, N, H)
        _, d_recurrent, d_inputs, d_bias = gatewise.lstm_gradients(
            source, recurrent, d_state, z_state, cell, input_weight=inputs, bias=bias, descriptor=descriptor
        )
        steps = (d_recurrent, d_inputs, d_bias, flat.T @ d_scores, d_scores.sum(0))
        values[:] = [value - RATE * step for value, step in zip(values, steps, strict=True)]
        return loss

    times: dict[str, list[float]] = {"hand": [], "graph": []}
    losses: dict[str, float] = {}
    for number in range(220):
        for name, step in (("hand", by_hand), ("graph", lambda: graph.run(feeds, [loss], updates)[loss])):
            start = time.thread_time()
            found = step()
            if number >= 20:  # the first ones warm up
                times[name].append(time.thread_time() - start)
            losses[name] = float(found)
    assert abs(losses["hand"] - losses["graph"]) < 1e-4, losses
    hand, built = (float(np.median(times[name])) for name in ("hand", "graph"))
    print(f"T {T}, N {N}, H {H}: by hand {hand * 1e3:.3f} ms, graph {built * 1e3:.3f} ms, {built / hand - 1:+.1%}")


if __name__ == "__main__":
    gatewise.set_threads(1)
    large_graph()
    small_step()
