"""One step of an optimizer: new values from old ones and a gradient. Assigning them is the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engines import ordinary
from ...errors import ShapeError
from ..builder import Builder
from ..place import Place
from ..rules import Attributes, Results, rule
from ..shapes import compatible, merged, need_equal, need_floating
from ..tensor import Shape, Tensor, TensorLike, shape_text

_EXACT = np.dtype(np.float64)  # of rates given as Python numbers


class Optimizers(Builder):
    """Steps of stochastic gradient descent and Adam. Rates and powers are numbers or scalar tensors."""

    def stochastic_gradient_descent(
        self, learning_rate: TensorLike, values: Tensor, gradient: Tensor, name: str | None = None
    ) -> Tensor:
        """`values - learning_rate gradient`."""
        kind = "stochastic_gradient_descent"
        rate = self._tensor(kind, learning_rate, _EXACT)
        return self._one(kind, [rate, values, self._tensor(kind, gradient, values.dtype)], None, name)

    def adam(
        self,
        learning_rate: TensorLike,
        beta1: TensorLike,
        beta2: TensorLike,
        epsilon: TensorLike,
        beta1_power: TensorLike,
        beta2_power: TensorLike,
        values: Tensor,
        momentum: Tensor,
        velocity: Tensor,
        gradient: Tensor,
        maximum_velocity: Tensor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """New values, momentum and velocity; with `maximum_velocity` (AMSGrad) its new value too.

            momentum ← beta1 momentum + (1 - beta1) gradient
            velocity ← beta2 velocity + (1 - beta2) gradient²
            values   ← values - learning_rate √(1 - beta2_power) / (1 - beta1_power) · momentum / (√velocity + epsilon)

        `beta1_power` and `beta2_power` are the betas to the power of the step's number, counted from 1. PyTorch adds
        its epsilon after the correction: for its very numbers give `epsilon √(1 - beta2_power)`.
        """
        scalars = [learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power]
        inputs = [self._tensor("adam", scalar, _EXACT) for scalar in scalars]
        inputs += [self._tensor("adam", each, values.dtype) for each in (values, momentum, velocity, gradient)]
        if maximum_velocity is not None:
            inputs.append(maximum_velocity)
        return list(self._add("adam", inputs, None, name).results)


def _checked(scalars: tuple[Any, ...], like: tuple[Any, ...]) -> tuple[Shape, Any]:
    """The shape and dtype that `like` share; the others are floating numbers, of higher precision if the caller likes."""
    shape = like[0].shape
    need_floating(like[0].dtype)
    need_equal(*(each.dtype for each in like))
    for scalar in scalars:
        need_floating(scalar.dtype)
        if scalar.shape != ():
            raise ShapeError(f"rates and powers must be numbers, got a tensor {shape_text(scalar.shape)}")
    for each in like:
        if not compatible(shape, each.shape):
            raise ShapeError(f"values are {shape_text(shape)}, what goes with them {shape_text(each.shape)}")
        shape = merged(shape, each.shape)
    return shape, like[0].dtype


def _descent_shape(attributes: Attributes, rate: Any, values: Any, gradient: Any) -> Results:
    return [_checked((rate,), (values, gradient))]


def _adam_shape(attributes: Attributes, *inputs: Any) -> Results:
    result = _checked(inputs[:6], inputs[6:])
    return [result] * (len(inputs) - 7)


def _scalar(place: Place, scalar: Any) -> Any:
    """A Python number; on a GPU the array, in its own precision, so that nobody has to wait for it."""
    return float(scalar) if place.on_cpu else scalar


def _factor(place: Place, number: Any, like: Any) -> Any:
    """A scalar as something that multiplies `like` without changing its dtype."""
    return number if isinstance(number, float) else place.xp.astype(number, like.dtype)


def _descent(place: Place, attributes: Attributes, rate: Any, values: Any, gradient: Any) -> Any:
    wide = place.widen(values)
    return place.like(wide - place.widen(gradient) * _factor(place, _scalar(place, rate), wide), values)


def _adam(place: Place, attributes: Attributes, *inputs: Any) -> tuple[Any, ...]:
    return scaled_adam(place, None, inputs)


def scaled_adam(place: Place, scale: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Adam's step, the gradient first multiplied by a scalar if there is one. Without maximum_velocity there may be the four
    arrays of several variables."""
    rate, beta1, beta2, epsilon, beta1_power, beta2_power = [_scalar(place, scalar) for scalar in inputs[:6]]
    step = rate * (1.0 - beta2_power) ** 0.5 / (1.0 - beta1_power)
    arrays = inputs[6:]
    number = 5 if len(arrays) == 5 else 4
    if place.is_numpy and number == 4:
        found = ordinary.adam(beta1, beta2, epsilon, step, 1.0 if scale is None else float(scale), arrays)
        if found is not None:
            return found
    results: list[Any] = []
    for first in range(0, len(arrays), number):
        values, momentum, velocity, gradient, *maximum = [place.widen(array) for array in arrays[first : first + number]]
        take1, keep2, take2, small, length = [
            _factor(place, factor, values) for factor in (1.0 - beta1, beta2, 1.0 - beta2, epsilon, step)
        ]
        if scale is not None:
            gradient = gradient * place.like(scale, gradient)
        momentum = momentum + (gradient - momentum) * take1
        velocity = velocity * keep2 + gradient * gradient * take2
        used = place.xp.maximum(maximum[0], velocity) if maximum else velocity
        values = values - momentum / (place.xp.sqrt(used) + small) * length
        new = (values, momentum, velocity, used) if maximum else (values, momentum, velocity)
        results += [place.like(result, arrays[first]) for result in new]
    return tuple(results)


rule(
    "stochastic_gradient_descent",
    _descent_shape,
    _descent,
    None,
)
rule("adam", _adam_shape, _adam, None, several=True)
