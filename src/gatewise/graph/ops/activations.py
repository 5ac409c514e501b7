"""Activations and their gradient operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..builder import Builder
from ..place import Place, is_narrow
from ..rules import Attributes, InputGradient, rule
from ..shapes import same_floating
from ..tensor import Operation, Tensor, TensorLike
from .error_function import error_function


class Activations(Builder):
    """Activations. Each `..._gradient` operation takes the incoming gradient and the activation's source."""

    def _activation(self, kind: str, tensor: TensorLike, name: str | None, **attributes: Any) -> Tensor:
        return self._one(kind, [self._tensor(kind, tensor)], attributes, name)

    def _activation_gradient(self, kind: str, gradient: Tensor, source: Tensor, name: str | None, **attributes: Any) -> Tensor:
        kind = f"{kind}_gradient"
        return self._one(kind, self._tensors(kind, gradient, source), attributes, name)

    def relu(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        """`max(x, 0)`; its derivative at 0 is 0."""
        return self._activation("relu", tensor, name)

    def relu_gradient(self, gradient: Tensor, source: Tensor, name: str | None = None) -> Tensor:
        return self._activation_gradient("relu", gradient, source, name)

    def leaky_relu(self, tensor: TensorLike, alpha: float = 0.01, name: str | None = None) -> Tensor:
        """`x` above 0, `alpha x` elsewhere."""
        return self._activation("leaky_relu", tensor, name, alpha=float(alpha))

    def leaky_relu_gradient(self, gradient: Tensor, source: Tensor, alpha: float = 0.01, name: str | None = None) -> Tensor:
        return self._activation_gradient("leaky_relu", gradient, source, name, alpha=float(alpha))

    def tanh(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        return self._activation("tanh", tensor, name)

    def tanh_gradient(self, gradient: Tensor, source: Tensor, name: str | None = None) -> Tensor:
        return self._activation_gradient("tanh", gradient, source, name, from_result=False)

    def sigmoid(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        return self._activation("sigmoid", tensor, name)

    def sigmoid_gradient(self, gradient: Tensor, source: Tensor, name: str | None = None) -> Tensor:
        return self._activation_gradient("sigmoid", gradient, source, name, from_result=False)

    def softplus(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        """`log(1 + exp(x))`, without overflow."""
        return self._activation("softplus", tensor, name)

    def softplus_gradient(self, gradient: Tensor, source: Tensor, name: str | None = None) -> Tensor:
        return self._activation_gradient("softplus", gradient, source, name)

    def gelu(self, tensor: TensorLike, name: str | None = None) -> Tensor:
        """`x` times the normal distribution function of `x`, exactly, not the tanh approximation."""
        return self._activation("gelu", tensor, name)

    def gelu_gradient(self, gradient: Tensor, source: Tensor, name: str | None = None) -> Tensor:
        return self._activation_gradient("gelu", gradient, source, name)


def _sigmoid(xp: Any, x: Any) -> Any:
    return 1.0 / (1.0 + xp.exp(-x))


def _relu(place: Place, attributes: Attributes, x: Any) -> Any:
    zero = place.full((), 0.0, x)
    return place.xp.where(x <= zero, zero, x)  # a NaN stays


def _relu_gradient(place: Place, attributes: Attributes, gradient: Any, x: Any) -> Any:
    return place.xp.where(x > 0, gradient, place.full((), 0.0, gradient))


def _leaky_relu(place: Place, attributes: Attributes, x: Any) -> Any:
    return place.xp.where(x > 0, x, x * attributes["alpha"])


def _leaky_relu_gradient(place: Place, attributes: Attributes, gradient: Any, x: Any) -> Any:
    return place.xp.where(x > 0, gradient, gradient * attributes["alpha"])


def _tanh_gradient(place: Place, attributes: Attributes, gradient: Any, x: Any) -> Any:
    y = x if attributes["from_result"] else place.xp.tanh(x)
    return gradient * (1.0 - y * y)


def _sigmoid_gradient(place: Place, attributes: Attributes, gradient: Any, x: Any) -> Any:
    y = x if attributes["from_result"] else _sigmoid(place.xp, x)
    return gradient * (y * (1.0 - y))


def _softplus(place: Place, attributes: Attributes, x: Any) -> Any:
    xp = place.xp
    return xp.maximum(x, place.full((), 0.0, x)) + xp.log1p(xp.exp(-xp.abs(x)))


def _normal_distribution(place: Place, x: Any) -> Any:
    return 0.5 * (1.0 + error_function(place.xp, x * math.sqrt(0.5)))


def _gelu(place: Place, attributes: Attributes, x: Any) -> Any:
    return x * _normal_distribution(place, x)


def _gelu_gradient(place: Place, attributes: Attributes, gradient: Any, x: Any) -> Any:
    density = place.xp.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
    return gradient * (_normal_distribution(place, x) + x * density)


def _rules(
    kind: str,
    evaluate: Callable[..., Any],
    gradient: Callable[..., Any],
    fields: dict[str, Any] | None = None,
    from_result: bool = False,
) -> None:
    """The rules of an activation and of its gradient operation, which reads the result again where that is cheaper."""
    gradient_kind = f"{kind}_gradient"

    def gradients(operation: Operation, incoming: Tensor) -> Sequence[InputGradient]:
        seen = operation.results[0] if from_result else operation.inputs[0]
        attributes = {**operation.attributes, "from_result": True} if from_result else operation.attributes
        return [lambda: operation.graph._one(gradient_kind, [incoming, seen], dict(attributes))]

    rule(kind, same_floating, _in_float32(evaluate), gradients, fields=fields or {})
    gradient_fields = {**(fields or {}), **({"from_result": bool} if from_result else {})}
    rule(gradient_kind, same_floating, _in_float32(gradient), None, fields=gradient_fields)


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function computed in float32 where its arrays are narrower."""

    def evaluate(place: Place, attributes: Attributes, *arrays: Any) -> Any:
        if not is_narrow(arrays[0]):
            return function(place, attributes, *arrays)
        return place.like(function(place, attributes, *[place.widen(array) for array in arrays]), arrays[0])

    return evaluate


_rules("relu", _relu, _relu_gradient)
_rules("leaky_relu", _leaky_relu, _leaky_relu_gradient, {"alpha": float})
_rules("tanh", lambda place, attributes, x: place.xp.tanh(x), _tanh_gradient, from_result=True)
_rules("sigmoid", lambda place, attributes, x: _sigmoid(place.xp, x), _sigmoid_gradient, from_result=True)
_rules("softplus", _softplus, lambda place, attributes, gradient, x: gradient * _sigmoid(place.xp, x))
_rules("gelu", _gelu, _gelu_gradient)
