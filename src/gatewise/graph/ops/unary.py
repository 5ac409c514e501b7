"""One tensor, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..builder import Builder
from ..rules import InputGradient, rule
from ..shapes import same_floating, same_number
from ..tensor import Operation, Tensor, TensorLike


class Unary(Builder):
    """Functions of one tensor, element by element."""

    def _unary(self, kind: str, tensor: TensorLike, name: str | None) -> Tensor:
        return self._one(kind, [self._tensor(kind, tensor)], None, name)

    def negative(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        return self._unary("negative", tensor, name)

    def absolute(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        """Its derivative at 0 is 0."""
        return self._unary("absolute", tensor, name)

    def exponent(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        """e to the power of the tensor."""
        return self._unary("exponent", tensor, name)

    def logarithm(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        """The natural logarithm."""
        return self._unary("logarithm", tensor, name)

    def square(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        return self._unary("square", tensor, name)

    def square_root(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        return self._unary("square_root", tensor, name)

    def reciprocal(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        return self._unary("reciprocal", tensor, name)

    def sign(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        """-1, 0 or 1; its derivative is 0."""
        return self._unary("sign", tensor, name)


def _rule(
    kind: str, evaluate: Callable[[Any, Any], Any], gradient: Callable[[Operation, Tensor], Tensor], floating: bool
) -> None:
    def gradients(operation: Operation, incoming: Tensor) -> Sequence[InputGradient]:
        return [lambda: gradient(operation, incoming)]

    shape = same_floating if floating else same_number
    rule(kind, shape, lambda place, attributes, x: place.like(evaluate(place.xp, place.widen(x)), x), gradients)


_rule("negative", lambda xp, x: -x, lambda operation, g: -g, False)
_rule("absolute", lambda xp, x: xp.abs(x), lambda operation, g: g * g.graph.sign(operation.inputs[0]), False)
_rule("exponent", lambda xp, x: xp.exp(x), lambda operation, g: g * operation.results[0], True)
_rule("logarithm", lambda xp, x: xp.log(x), lambda operation, g: g / operation.inputs[0], True)
_rule("square", lambda xp, x: x * x, lambda operation, g: g * operation.inputs[0] * 2, False)
_rule("square_root", lambda xp, x: xp.sqrt(x), lambda operation, g: g / operation.results[0] * 0.5, True)
_rule("reciprocal", lambda xp, x: 1.0 / x, lambda operation, g: -(g * g.graph.square(operation.results[0])), True)
_rule("sign", lambda xp, x: xp.sign(x), lambda operation, g: g.graph.zeros_like(g), False)
