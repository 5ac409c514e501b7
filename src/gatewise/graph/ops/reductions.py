"""Sums, means, extremes and products over axes, and argmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...engines import ordinary
from ...errors import ArgumentError
from ..builder import Builder
from ..place import Place
from ..rules import Attributes, InputGradient, Results, no_gradient, rule
from ..shapes import INDEX, axes_of, axis_of, need_floating, same_number
from ..tensor import Operation, Shape, Tensor

Axes = Sequence[int] | int | None


class Reductions(Builder):
    """Reductions over `axes`, all of them if None; `keep_dims` leaves size 1 in their places."""

    def _reduction(self, kind: str, tensor: Tensor, axes: Axes, keep_dims: bool, name: str | None) -> Tensor:
        tensor = self._tensor(kind, tensor)
        with self._checking(kind, name):
            attributes = {"axes": axes_of(axes, tensor.rank), "keep_dims": bool(keep_dims)}
        return self._one(kind, [tensor], attributes, name)

    def reduction_sum(self, tensor: Tensor, axes: Axes = None, keep_dims: bool = False, name: str | None = None) -> Tensor:
        return self._reduction("reduction_sum", tensor, axes, keep_dims, name)

    def reduction_mean(self, tensor: Tensor, axes: Axes = None, keep_dims: bool = False, name: str | None = None) -> Tensor:
        return self._reduction("reduction_mean", tensor, axes, keep_dims, name)

    def reduction_maximum(self, tensor: Tensor, axes: Axes = None, keep_dims: bool = False, name: str | None = None) -> Tensor:
        """The largest value; equal ones share its gradient."""
        return self._reduction("reduction_maximum", tensor, axes, keep_dims, name)

    def reduction_minimum(self, tensor: Tensor, axes: Axes = None, keep_dims: bool = False, name: str | None = None) -> Tensor:
        """The smallest value; equal ones share its gradient."""
        return self._reduction("reduction_minimum", tensor, axes, keep_dims, name)

    def reduction_product(self, tensor: Tensor, axes: Axes = None, keep_dims: bool = False, name: str | None = None) -> Tensor:
        return self._reduction("reduction_product", tensor, axes, keep_dims, name)

    def argmax(self, tensor: Tensor, axis: int = -1, keep_dims: bool = False, name: str | None = None) -> Tensor:
        """Where the largest value is, the first of equal ones, int64."""
        with self._checking("argmax", name):
            attributes = {"axis": axis_of(axis, tensor.rank), "keep_dims": bool(keep_dims)}
        return self._one("argmax", [tensor], attributes, name)


def _reduced(shape: Shape, axes: tuple[int, ...], keep_dims: bool) -> Shape:
    if axes_of(axes, len(shape)) != axes:
        raise ArgumentError(f"axes must be distinct and in order, got {axes}")
    if keep_dims:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _shape(attributes: Attributes, source: Any) -> Results:
    same_number(attributes, source)
    return [(_reduced(source.shape, attributes["axes"], attributes["keep_dims"]), source.dtype)]


def _floating_shape(attributes: Attributes, source: Any) -> Results:
    need_floating(source.dtype)
    return _shape(attributes, source)


def _extreme_shape(attributes: Attributes, source: Any) -> Results:
    if any(source.shape[axis] == 0 for axis in attributes["axes"]):
        raise ArgumentError("has no values to choose from")
    return _shape(attributes, source)


def _kept(shape: tuple[int, ...], attributes: Attributes) -> tuple[int, ...]:
    return tuple(1 if axis in attributes["axes"] else size for axis, size in enumerate(shape))


def _number(shape: tuple[int, ...], attributes: Attributes) -> int:
    """How many elements go into each result."""
    return math.prod(shape[axis] for axis in attributes["axes"])


def _evaluate(place: Place, attributes: Attributes, source: Any, function: Callable[..., Any]) -> Any:
    if not attributes["axes"]:
        return place.copy(source)
    wide = place.widen(source)
    return place.like(function(wide, axis=attributes["axes"], keepdims=attributes["keep_dims"]), source)


def _sum(place: Place, attributes: Attributes, source: Any) -> Any:
    found = ordinary.sums(source, attributes["axes"]) if place.is_numpy else None
    if found is None:
        return _evaluate(place, attributes, source, place.xp.sum)
    return found.reshape(_kept(source.shape, attributes)) if attributes["keep_dims"] else found


def sum_of_squares(place: Place, attributes: Attributes, source: Any) -> Any:
    """`_sum` of the squares, in one pass where it is a large NumPy array."""
    found = ordinary.sums(source, attributes["axes"], squares=True) if place.is_numpy else None
    if found is None:
        wide = place.widen(source)
        return place.like(_sum(place, attributes, wide * wide), source)
    return found.reshape(_kept(source.shape, attributes)) if attributes["keep_dims"] else found


def _mean(place: Place, attributes: Attributes, source: Any) -> Any:
    wide = place.widen(source)
    total = place.xp.sum(wide, axis=attributes["axes"], keepdims=attributes["keep_dims"]) if attributes["axes"] else wide
    number = _number(tuple(source.shape), attributes)
    return place.like(total / number if number else total * float("nan"), source)


def _product(place: Place, attributes: Attributes, source: Any) -> Any:
    return _evaluate(place, attributes, source, place.xp.prod)


def _spread(place: Place, attributes: Attributes, gradient: Any, source: Any) -> Any:
    """The gradient of a sum or, with `mean`, of a mean: each element gets the whole of its result's, or its part."""
    shape = tuple(source.shape)
    number = _number(shape, attributes)
    if attributes["mean"] and number:
        gradient = place.like(place.widen(gradient) / number, gradient)
    return place.xp.broadcast_to(place.xp.reshape(gradient, _kept(shape, attributes)), shape)


def _spread_gradients(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    graph, attributes = operation.graph, operation.attributes
    reduction = graph.reduction_mean if attributes["mean"] else graph.reduction_sum
    return [lambda: reduction(gradient, attributes["axes"], attributes["keep_dims"]), None]


def _extreme_gradient(place: Place, attributes: Attributes, gradient: Any, source: Any, result: Any) -> Any:
    xp = place.xp
    kept = _kept(tuple(source.shape), attributes)
    chosen = xp.astype(source == xp.reshape(result, kept), place.widen(source).dtype)
    shares = chosen / xp.sum(chosen, axis=attributes["axes"], keepdims=True) if attributes["axes"] else chosen
    return place.like(shares * xp.reshape(place.widen(gradient), kept), source)


def _product_gradient(place: Place, attributes: Attributes, gradient: Any, source: Any) -> Any:
    """The product of all the others, also where some are zero."""
    xp, axes = place.xp, attributes["axes"]
    wide = place.widen(source)
    incoming = xp.reshape(place.widen(gradient), _kept(tuple(source.shape), attributes))
    if not axes:
        return place.copy(gradient)
    zero = wide == 0
    one = place.full((), 1.0, wide)
    zeros = xp.sum(xp.astype(zero, wide.dtype), axis=axes, keepdims=True)
    without_zeros = xp.prod(xp.where(zero, one, wide), axis=axes, keepdims=True)
    beside_zero = xp.where(zeros == 1, xp.where(zero, without_zeros, one * 0), one * 0)
    others = xp.where(zeros == 0, without_zeros / xp.where(zero, one, wide), beside_zero)
    return place.like(others * incoming, source)


def _like_source(attributes: Attributes, gradient: Any, source: Any, *others: Any) -> Results:
    ((expected, _),) = _shape(attributes, source)
    if len(gradient.shape) != len(expected):
        raise ArgumentError("the gradient must be like the reduction's result")
    return [(source.shape, source.dtype)]


def _gradient_by(kind: str, with_result: bool = False, **more: Any) -> Callable[..., Sequence[InputGradient]]:
    def gradients(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
        inputs = [gradient, operation.inputs[0], *(operation.results if with_result else ())]
        return [lambda: operation.graph._one(kind, inputs, {**operation.attributes, **more})]

    return gradients


_FIELDS = {"axes": tuple, "keep_dims": bool}
rule("reduction_sum", _shape, _sum, _gradient_by("reduction_spread", mean=False), fields=_FIELDS)
rule("reduction_mean", _floating_shape, _mean, _gradient_by("reduction_spread", mean=True), fields=_FIELDS)
rule("reduction_product", _shape, _product, _gradient_by("reduction_product_gradient"), fields=_FIELDS)
rule("reduction_spread", _like_source, _spread, _spread_gradients, fields={**_FIELDS, "mean": bool}, view=True)
rule("reduction_product_gradient", _like_source, _product_gradient, None, fields=_FIELDS)
rule("reduction_extreme_gradient", _like_source, _extreme_gradient, None, fields=_FIELDS)
for _kind, _function in (("reduction_maximum", "max"), ("reduction_minimum", "min")):

    def _extreme(place: Place, attributes: Attributes, source: Any, function: str = _function) -> Any:
        return _evaluate(place, attributes, source, getattr(place.xp, function))

    rule(_kind, _extreme_shape, _extreme, _gradient_by("reduction_extreme_gradient", with_result=True), fields=_FIELDS)


def _argmax_shape(attributes: Attributes, source: Any) -> Results:
    same_number(attributes, source)
    axis = axis_of(attributes["axis"], len(source.shape))
    if source.shape[axis] == 0:
        raise ArgumentError("has no values to choose from")
    return [(_reduced(source.shape, (axis,), attributes["keep_dims"]), INDEX)]


def _argmax(place: Place, attributes: Attributes, source: Any) -> Any:
    found = place.xp.argmax(source, axis=attributes["axis"], keepdims=attributes["keep_dims"])
    return place.xp.astype(found, place.xp.int64, copy=False)


rule("argmax", _argmax_shape, _argmax, no_gradient, fields={"axis": int, "keep_dims": bool})
