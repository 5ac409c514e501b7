"""The language model as a graph: embedding, recurrent layers, softmax; its gradients and Adam's steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..descriptors import GRUDescriptor, LSTMDescriptor
from ..graph import Graph, Operation, ShapedType, Tensor
from .config import Config

Array = Any

_OPERATIONS = {"lstm": "lstm", "gru": "gru", "rnn": "single_gate_rnn"}
_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_BETA1, _BETA2, _EPSILON = 0.9, 0.99, 1e-8


class LanguageModel:
    """One graph with three uses, each compiled once.

    `learn`: characters `[chunk + 1, batch]`, learning rate, 1 to carry the state on or 0 to begin anew → loss.
        The state after the chunk, the weights and Adam's moments are variables, which it assigns.
    `measure`: characters `[T, N]`, those that follow, and a state per layer → loss, the states after. No dropout.
    `read`: characters `[T, 1]` and a state per layer → logits, the top layer's gates, the states after. No dropout.
    """

    def __init__(self, config: Config, characters: int) -> None:
        self.config = config
        self.characters = characters
        self.graph = Graph()
        self.weights = self._make_weights(np.random.default_rng(config.seed))
        self._learn = self._build_learn()
        self._build_reading()

    @property
    def carried(self) -> list[str]:
        """The names of what a layer hands on: its state, and an LSTM's cell."""
        return ["state", "cell"] if self.config.cell == "lstm" else ["state"]

    def learn(self, text: Array, rate: float, carry: bool) -> np.float32:
        """One step of training; the mean loss per character before it, in bits."""
        (loss,) = self._learn.run([text, np.float64(rate), np.float32(carry)])
        return np.float32(loss[()] / np.float32(np.log(2)))

    def measure(self, text: Array, rows: int, length: int = 256) -> float:
        """Bits per character over a long text, read in `rows` pieces at once."""
        columns = (len(text) - 1) // rows
        text = np.stack([text[row * columns : (row + 1) * columns + 1] for row in range(rows)], axis=1)
        states = self.zero_states(rows)
        total, seen = 0.0, 0
        for start in range(0, columns, length):
            following = text[start + 1 : start + length + 1]
            loss, *states = self._measure.run([text[start : start + len(following)], following, *states])
            total += float(loss)
            seen += following.size
        return total / seen / float(np.log(2))

    def read(self, text: Array, states: Sequence[Array] | None = None) -> tuple[Array, list[Array], Array]:
        """Logits `[T, characters]` after each character, the states, and the top layer's gates `[T, G·H]`."""
        states = self.zero_states(1) if states is None else states
        logits, gates, *states = self._read.run([np.asarray(text, np.int64).reshape(-1, 1), *states])
        return logits, list(states), gates

    def zero_states(self, rows: int) -> list[Array]:
        number = self.config.layers * len(self.carried)
        return [np.zeros((rows, self.config.hidden), np.float32) for _ in range(number)]

    # Building

    def _make_weights(self, random: np.random.Generator) -> dict[str, Tensor]:
        config, graph = self.config, self.graph
        H, gates = config.hidden, _GATES[config.cell]
        descriptor = config.descriptor()
        made: dict[str, Tensor] = {}

        def uniform(name: str, *shape: int, reach: float) -> None:
            made[name] = graph.variable(random.uniform(-reach, reach, shape).astype(np.float32), name=name)

        def filled(name: str, *parts: Array) -> None:
            made[name] = graph.variable(np.concatenate(parts).astype(np.float32), name=name)

        uniform("embedding", self.characters, config.embedding, reach=0.5)
        width = config.embedding
        for layer in range(config.layers):
            uniform(f"layer{layer}/input_weight", gates * H, width, reach=width**-0.5)
            uniform(f"layer{layer}/recurrent_weight", gates * H, H, reach=H**-0.5)
            bias = np.zeros((gates, H))
            if isinstance(descriptor, LSTMDescriptor):
                bias[2 if descriptor.forget_gate_last else 1] = 1.0  # remember, until something says otherwise
            filled(f"layer{layer}/bias", *bias)
            if config.peephole:
                filled(f"layer{layer}/peephole", np.zeros(gates * H))
            if isinstance(descriptor, GRUDescriptor) and descriptor.reset_after:
                filled(f"layer{layer}/secondary_bias", np.zeros(H))
            width = H
        uniform("output_weight", H, self.characters, reach=H**-0.5)
        filled("output_bias", np.zeros(self.characters))
        return made

    def _layers(
        self, text: Tensor, states: Sequence[Tensor], masks: Sequence[Tensor | None], dropout: float
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Logits `[T, N, characters]`, the states after the last step, the top layer's gates."""
        graph, config = self.graph, self.config
        operation: Callable[..., list[Tensor]] = getattr(graph, _OPERATIONS[config.cell])
        descriptor: Any = replace(config.descriptor(), training=True)
        source = graph.gather(self.weights["embedding"], text)
        after: list[Tensor] = []
        per_layer = len(self.carried)
        for layer in range(config.layers):
            given: dict[str, Any] = {
                name: self.weights[f"layer{layer}/{name}"]
                for name in ("recurrent_weight", "input_weight", "bias", "peephole", "secondary_bias")
                if f"layer{layer}/{name}" in self.weights
            }
            before = states[layer * per_layer : (layer + 1) * per_layer]
            given.update(zip(("init_state", "init_cell"), before, strict=False))
            if dropout:
                source = graph.dropout(source, dropout)
            *results, gates = operation(source, mask=masks[layer], descriptor=descriptor, **given)
            source = results[0]
            after += [result[-1] for result in results]
        if dropout:
            source = graph.dropout(source, dropout)
        return source @ self.weights["output_weight"] + self.weights["output_bias"], after, gates

    def _build_learn(self) -> Any:
        graph, config = self.graph, self.config
        shape = config.batch, config.hidden
        text = graph.placeholder((config.chunk + 1, config.batch), np.int64, name="text")
        rate = graph.placeholder((), np.float64, name="rate")
        carry = graph.placeholder((), np.float32, name="carry")
        kept = [
            graph.variable(np.zeros(shape, np.float32), name=f"carried/layer{layer}/{name}")
            for layer in range(config.layers)
            for name in self.carried
        ]
        masks: list[Tensor | None] = [None] * config.layers
        if config.recurrent_dropout:
            ones = graph.constant(np.ones((1, *shape), np.float32))
            masks = [graph.dropout(ones, config.recurrent_dropout) for _ in masks]
        before = [variable * carry for variable in kept]
        logits, after, _ = self._layers(text[:-1], before, masks, config.dropout)
        loss = graph.soft_max_cross_entropy(logits, text[1:], reduction="mean", name="loss")
        assignments = [graph.assign(variable, value) for variable, value in zip(kept, after, strict=True)]
        assignments += self._adam(loss, rate)
        return graph.compile(_kinds(text, rate, carry), [loss], assignments)

    def _adam(self, loss: Tensor, rate: Tensor) -> list[Operation]:
        """The assignments of one step of Adam, the gradient first shortened to at most `clip`."""
        graph = self.graph
        weights = list(self.weights.values())
        gradients = graph.gradients(loss, weights)
        squares = [graph.reduction_sum(graph.square(gradients[weight])) for weight in weights]
        total = squares[0]
        for square in squares[1:]:
            total = total + square
        shorten = graph.minimum(self.config.clip / graph.square_root(total + 1e-12), 1.0)
        powers = [graph.variable(1.0, np.float64, name=name) for name in ("adam/beta1_power", "adam/beta2_power")]
        power1, power2 = powers[0] * _BETA1, powers[1] * _BETA2
        assignments = [graph.assign(powers[0], power1), graph.assign(powers[1], power2)]
        for weight in weights:
            zeros = np.zeros(tuple(size or 0 for size in weight.shape), np.float32)
            momentum = graph.variable(zeros, name=f"adam/{weight.name}/momentum")
            velocity = graph.variable(zeros, name=f"adam/{weight.name}/velocity")
            gradient = gradients[weight] * shorten
            results = graph.adam(rate, _BETA1, _BETA2, _EPSILON, power1, power2, weight, momentum, velocity, gradient)
            for variable, value in zip((weight, momentum, velocity), results, strict=True):
                assignments.append(graph.assign(variable, value))
        return assignments

    def _build_reading(self) -> None:
        graph, config = self.graph, self.config
        text = graph.placeholder((None, None), np.int64, name="reading/text")
        following = graph.placeholder((None, None), np.int64, name="reading/following")
        states = [
            graph.placeholder((None, config.hidden), name=f"reading/layer{layer}/{name}")
            for layer in range(config.layers)
            for name in self.carried
        ]
        logits, after, gates = self._layers(text, states, [None] * config.layers, 0.0)
        loss = graph.soft_max_cross_entropy(logits, following, reduction="sum")
        self._measure = graph.compile(_kinds(text, following, *states), [loss, *after])
        self._read = graph.compile(_kinds(text, *states), [logits[:, 0], gates[:, 0], *after])


def _kinds(*tensors: Tensor) -> dict[Tensor, ShapedType]:
    """The tensors as feeds of an executable."""
    return {tensor: ShapedType(tensor.shape, tensor.dtype) for tensor in tensors}
