"""Two tensors at a time: arithmetic, comparison, choice. Shapes broadcast; dtypes must be equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import DTypeError
from ..builder import Builder
from ..place import Place
from ..rules import Attributes, InputGradient, Results, no_gradient, rule
from ..shapes import BOOL, broadcast, broadcast_compare, broadcast_equal, broadcast_floating, need_equal
from ..tensor import Operation, Tensor, TensorLike


class Arithmetic(Builder):
    """Arithmetic, comparison and choice. An operand may be a tensor, a Python number or a NumPy array."""

    def _binary(self, kind: str, a: TensorLike, b: TensorLike, name: str | None) -> Tensor:
        return self._one(kind, self._tensors(kind, a, b), None, name)

    def addition(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        return self._binary("addition", a, b, name)

    def subtraction(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        return self._binary("subtraction", a, b, name)

    def multiplication(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        return self._binary("multiplication", a, b, name)

    def division(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        """The quotient of floating tensors."""
        return self._binary("division", a, b, name)

    def power(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        """`a` to the power of `b`, both floating."""
        return self._binary("power", a, b, name)

    def minimum(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        """The smaller of both; where they are equal each gets half of the gradient."""
        return self._binary("minimum", a, b, name)

    def maximum(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        """The larger of both; where they are equal each gets half of the gradient."""
        return self._binary("maximum", a, b, name)

    def equal(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        return self._binary("equal", a, b, name)

    def not_equal(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        return self._binary("not_equal", a, b, name)

    def less_than(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        return self._binary("less_than", a, b, name)

    def less_than_or_equal_to(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        return self._binary("less_than_or_equal_to", a, b, name)

    def greater_than(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        return self._binary("greater_than", a, b, name)

    def greater_than_or_equal_to(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        return self._binary("greater_than_or_equal_to", a, b, name)

    def select(self, predicate: TensorLike, true_value: TensorLike, false_value: TensorLike, name: str | None = None) -> Tensor:
        """`true_value` where the bool tensor `predicate` is true, `false_value` elsewhere."""
        chosen = self._tensors("select", true_value, false_value)
        return self._one("select", [self._tensor("select", predicate, BOOL), *chosen], None, name)

    def clamp(self, tensor: TensorLike, minimum: TensorLike, maximum: TensorLike, name: str | None = None) -> Tensor:
        """The nearest value from `minimum` to `maximum`, and the latter where they cross; only strictly between them does
        a gradient reach the tensor."""
        return self._one("clamp", self._tensors("clamp", tensor, minimum, maximum), None, name)


_Gradients = Sequence[InputGradient]


def _subtraction_gradient(operation: Operation, gradient: Tensor) -> _Gradients:
    return [gradient, lambda: -gradient]


def _multiplication_gradient(operation: Operation, gradient: Tensor) -> _Gradients:
    a, b = operation.inputs
    return [lambda: gradient * b, lambda: gradient * a]


def _division_gradient(operation: Operation, gradient: Tensor) -> _Gradients:
    _, b = operation.inputs
    return [lambda: gradient / b, lambda: -(gradient * operation.results[0] / b)]


def _power_gradient(operation: Operation, gradient: Tensor) -> _Gradients:
    a, b = operation.inputs
    graph, result = operation.graph, operation.results[0]

    def of_exponent() -> Tensor:
        logarithm = graph.logarithm(graph.select(graph.greater_than(a, 0.0), a, graph.ones_like(a)))
        return gradient * result * logarithm

    return [lambda: gradient * b * graph.power(a, b - 1.0), of_exponent]


rule(
    "addition",
    broadcast_equal,
    lambda place, attributes, a, b: a + b,
    lambda operation, gradient: [gradient, gradient],
    broadcasts=True,
)
rule("subtraction", broadcast_equal, lambda place, attributes, a, b: a - b, _subtraction_gradient, broadcasts=True)
rule("multiplication", broadcast_equal, lambda place, attributes, a, b: a * b, _multiplication_gradient, broadcasts=True)
rule("division", broadcast_floating, lambda place, attributes, a, b: a / b, _division_gradient, broadcasts=True)
rule("power", broadcast_floating, lambda place, attributes, a, b: a**b, _power_gradient, broadcasts=True)


def _extremum(kind: str, beats: Callable[[Any, Any], Any], evaluate: Callable[..., Any]) -> None:
    share = f"{kind}_share"

    def shares(place: Place, attributes: Attributes, a: Any, b: Any) -> Any:
        xp = place.xp
        one = place.full((), 1.0, a)
        return xp.where(beats(a, b), one, xp.where(a == b, one / 2, one * 0))

    def gradient(operation: Operation, gradient: Tensor) -> _Gradients:
        a, b = operation.inputs
        graph = operation.graph
        return [
            lambda: gradient * graph._one(share, [a, b]),
            lambda: gradient * graph._one(share, [b, a]),
        ]

    rule(kind, broadcast_equal, evaluate, gradient, broadcasts=True)
    rule(share, broadcast_equal, shares, no_gradient)


_extremum("minimum", lambda a, b: a < b, lambda place, attributes, a, b: place.xp.minimum(a, b))
_extremum("maximum", lambda a, b: a > b, lambda place, attributes, a, b: place.xp.maximum(a, b))

rule("equal", broadcast_compare, lambda place, attributes, a, b: a == b, no_gradient)
rule("not_equal", broadcast_compare, lambda place, attributes, a, b: a != b, no_gradient)
rule("less_than", broadcast_compare, lambda place, attributes, a, b: a < b, no_gradient)
rule("less_than_or_equal_to", broadcast_compare, lambda place, attributes, a, b: a <= b, no_gradient)
rule("greater_than", broadcast_compare, lambda place, attributes, a, b: a > b, no_gradient)
rule("greater_than_or_equal_to", broadcast_compare, lambda place, attributes, a, b: a >= b, no_gradient)


def _select_shape(attributes: Attributes, predicate: Any, a: Any, b: Any) -> Results:
    if predicate.dtype != BOOL:
        raise DTypeError(f"predicate must be bool, got {predicate.dtype.name} (a comparison makes one)")
    need_equal(a.dtype, b.dtype)
    return [(broadcast(predicate.shape, a.shape, b.shape), a.dtype)]


def _select_gradient(operation: Operation, gradient: Tensor) -> _Gradients:
    predicate = operation.inputs[0]
    graph = operation.graph
    return [
        None,
        lambda: graph.select(predicate, gradient, graph.zeros_like(gradient)),
        lambda: graph.select(predicate, graph.zeros_like(gradient), gradient),
    ]


rule(
    "select",
    _select_shape,
    lambda place, attributes, predicate, a, b: place.xp.where(predicate, a, b),
    _select_gradient,
    broadcasts=True,
)


def _clamp_shape(attributes: Attributes, source: Any, minimum: Any, maximum: Any) -> Results:
    broadcast_equal(attributes, source, minimum)
    need_equal(source.dtype, maximum.dtype)
    return [(broadcast(source.shape, minimum.shape, maximum.shape), source.dtype)]


def _clamp(place: Place, attributes: Attributes, source: Any, minimum: Any, maximum: Any) -> Any:
    return place.xp.minimum(place.xp.maximum(source, minimum), maximum)


def _clamp_gradient(operation: Operation, gradient: Tensor) -> _Gradients:
    source, minimum, maximum = operation.inputs
    graph = operation.graph
    below, above = graph.less_than(source, minimum), graph.greater_than(graph.maximum(source, minimum), maximum)

    def inside() -> Tensor:
        zeros = graph.zeros_like(gradient)
        kept = graph.select(graph.greater_than(source, minimum), gradient, zeros)
        return graph.select(graph.less_than(source, maximum), kept, zeros)

    def of_minimum() -> Tensor:
        zeros = graph.zeros_like(gradient)
        return graph.select(above, zeros, graph.select(below, gradient, zeros))

    return [inside, of_minimum, lambda: graph.select(above, gradient, graph.zeros_like(gradient))]


rule("clamp", _clamp_shape, _clamp, _clamp_gradient, broadcasts=True)
