"""A small model with operations of every family in it, trained for some steps: the same numbers on every kind of array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gatewise
from gatewise import Graph, LSTMDescriptor, Operation, Tensor
from gatewise.checking import tolerance
from gatewise.graph.place import dtype_of, to_numpy

T, N, E, F, H, C = 7, 4, 6, 3, 5, 9  # steps, rows, embedding, other features, units, classes
STEPS = 3


class Whole:
    """The graph, what it is fed, what it gives and what it assigns."""

    def __init__(self, dtype: type) -> None:
        self.dtype = np.dtype(dtype)
        self.graph = Graph()
        self.random = np.random.default_rng(0)
        graph = self.graph
        self.text = graph.placeholder([None, N], np.int64, name="text")
        self.numbers = graph.placeholder([None, N, F], dtype, name="numbers")
        self.lengths = graph.placeholder([N], np.int64, name="lengths")
        self.rate = graph.placeholder([], np.float64, name="rate")
        self.targets: dict[str, Tensor] = {}
        scores = self._read(self._features())
        loss = graph.soft_max_cross_entropy(scores, self.text, reduction="mean") + self._penalty(scores)
        self.targets["loss"] = loss
        self._pieces(scores)
        self.operations = self._updates(loss)

    def _weight(self, name: str, *shape: int) -> Tensor:
        return self.graph.variable((self.random.standard_normal(shape) * 0.4).astype(self.dtype), name=name)

    def _features(self) -> Tensor:
        graph = self.graph
        words = graph.dropout(graph.gather(self._weight("embedding", C, E), self.text), 0.25)
        scaled = (self.numbers - 0.5) / graph.constant([1.0, 2.0, 3.0], self.dtype)
        return graph.concat([words, graph.reverse(scaled, [-1])], axis=-1)

    def _read(self, source: Tensor) -> Tensor:
        """Two bidirectional layers, then a dense one; the first has peepholes."""
        width = E + F
        for layer in range(2):
            given = {
                "recurrent_weight": self._weight(f"recurrent{layer}", 2, 4 * H, H),
                "input_weight": self._weight(f"input{layer}", 8 * H, width),
                "bias": self._weight(f"bias{layer}", 8 * H),
            }
            if layer == 0:
                given["peephole"] = self._weight("peephole", 2, 4 * H)
            descriptor = LSTMDescriptor(bidirectional=True, produce_cell=True)
            source, cell = self.graph.lstm(source, lengths=self.lengths, descriptor=descriptor, **given)
            width = 2 * H
            self.targets[f"state{layer}"], self.targets[f"cell{layer}"] = source, cell
        return source @ self._weight("output", 2 * H, C) + self._weight("output_bias", C)

    def _penalty(self, scores: Tensor) -> Tensor:
        """Every function of one tensor and every reduction, made small."""
        graph = self.graph
        parts = [
            graph.relu(scores), graph.leaky_relu(scores), graph.tanh(scores), graph.sigmoid(scores), graph.softplus(scores),
            graph.gelu(scores), graph.soft_max(scores), graph.absolute(scores), graph.exponent(-graph.square(scores)),
            graph.logarithm(graph.square(scores) + 1.0), graph.square_root(graph.square(scores) + 0.5),
            graph.reciprocal(graph.exponent(scores) + 1.0), graph.power(graph.sigmoid(scores), 1.5),
            graph.clamp(scores, -0.3, 0.4), graph.minimum(scores, graph.maximum(scores * 0.5, 0.1)),
            graph.select(graph.greater_than(scores, 0.1), scores, graph.sign(scores)),
        ]  # fmt: skip
        total = graph.reduction_mean(parts[0])
        for part in parts[1:]:
            total = total + graph.reduction_mean(part)
        flat = graph.reduction_sum(graph.square(scores), [0, 1])
        total = total + graph.reduction_product(graph.sigmoid(flat) + 0.5)
        total = total + graph.reduction_maximum(flat) - graph.reduction_minimum(flat)
        return total * 0.01

    def _pieces(self, scores: Tensor) -> None:
        """What only moves elements about, counts and compares."""
        graph = self.graph
        first, rest = scores[0], scores[1:, ::2]
        rows = graph.constant([[0, 1], [3, 8], [2, 2]])
        a, b = graph.split(first, [4, C - 4], axis=1)
        found = {
            "rest": rest,
            "turned": graph.transpose(scores, [2, 0, 1]),
            "padded": graph.pad(first, [1, 0], [0, 2], 0.5),
            "tiled": graph.tile(graph.expand_dims(first, 0), [2, 1, 3]),
            "joined": graph.stack([a, b[:, :4]], axis=1),
            "flat": graph.reshape(first, [-1]),
            "wide": graph.broadcast(graph.squeeze(first[:1], 0), [3, C]),
            "picked": graph.gather_nd(first, rows),
            "columns": graph.gather(scores, graph.constant([4, 0, 4]), axis=2),
            "added": graph.scatter(first, graph.constant([1, 0, 1, 3]), 6),
            "hot": graph.one_hot(self.text, C, dtype=self.dtype),
            "best": graph.argmax(scores),
            "sizes": graph.shape_of(scores),
            "length": graph.dimension_size(scores, 0),
            "equal": graph.equal(graph.cast(scores * 10.0, np.int32), graph.constant(0, np.int32)),
            "order": graph.less_than_or_equal_to(first, graph.zeros_like(first)),
            "noise": graph.random_tensor([5], "normal", 3),
            "ones": graph.ones_like(scores),
        }
        self.targets |= found

    def _updates(self, loss: Tensor) -> list[Operation]:
        """Adam with a clipped gradient, but plain descent for one weight; a counter that is read after it was assigned."""
        graph = self.graph
        weights = graph.variables
        gradients = graph.gradients(loss, weights)
        self.targets |= {f"gradient of {weight.name}": gradients[weight] for weight in weights}
        total = graph.reduction_sum(graph.square(gradients[weights[0]]))
        for weight in weights[1:]:
            total = total + graph.reduction_sum(graph.square(gradients[weight]))
        shorten = graph.minimum(0.5 / graph.square_root(total), 1.0)
        powers = [graph.variable(np.float64(1.0), name=f"power{number}") for number in (1, 2)]
        new = [powers[0] * 0.9, powers[1] * 0.99]
        updates = [graph.assign(power, value) for power, value in zip(powers, new, strict=True)]
        self.targets["read"] = graph.read_variable(powers[0])
        for weight in weights[1:]:
            moments = [graph.variable(np.zeros(weight.shape, self.dtype)) for _ in range(2)]  # type: ignore[arg-type]
            found = graph.adam(self.rate, 0.9, 0.99, 1e-2, *new, weight, *moments, gradients[weight] * shorten)
            updates += [graph.assign(*pair) for pair in zip((weight, *moments), found, strict=True)]
        plain = graph.stochastic_gradient_descent(self.rate, weights[0], gradients[weights[0]])
        return [*updates, graph.assign(weights[0], plain)]

    def train(self, convert: Callable[[np.ndarray], Any], kind: type) -> tuple[list[dict[str, np.ndarray]], dict[str, Any]]:
        """Every target of every step, then the variables."""
        random = np.random.default_rng(1)
        steps = []
        for _ in range(STEPS):
            feeds = {
                self.text: convert(random.integers(0, C, (T, N))),
                self.numbers: convert(random.standard_normal((T, N, F)).astype(self.dtype)),
                self.lengths: convert(np.array([T, 3, T, 1])),
                self.rate: np.float64(0.05),  # NumPy feeds follow the others
            }
            with gatewise.use_precision("highest"):
                found = self.graph.run(feeds, list(self.targets.values()), self.operations)
            for name, target in self.targets.items():
                assert isinstance(found[target], kind), f"{name} is a {type(found[target])}"
                assert dtype_of(found[target]) == target.dtype, name
            steps.append({name: to_numpy(found[target]) for name, target in self.targets.items()})
        return steps, self.graph.variable_values()


def check_whole(dtype: type, convert: Callable[[np.ndarray], Any], kind: type) -> None:
    """The model on one kind of array, held to NumPy."""
    expected, expected_variables = Whole(dtype).train(lambda array: array, np.ndarray)
    found, variables = Whole(dtype).train(convert, kind)
    limit = tolerance(np.dtype(dtype).name, T * STEPS)
    for number, (mine, theirs) in enumerate(zip([*found, variables], [*expected, expected_variables], strict=True)):
        for name, wanted in theirs.items():
            if wanted.dtype.kind != "f":
                np.testing.assert_array_equal(mine[name], wanted, err_msg=f"{name} of step {number}")
                continue
            assert mine[name].shape == wanted.shape, name
            allowed = limit * max(1.0, float(np.abs(wanted).max()))
            difference = float(np.abs(mine[name] - wanted).max())
            assert difference <= allowed, f"{name} of step {number} differs by {difference:.3g}, allowed {allowed:.3g}"
