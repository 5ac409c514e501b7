"""Softmax, the cross entropy after a softmax, and their gradient operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...engines import ordinary
from ...errors import ArgumentError, DTypeError, ShapeError
from ..builder import Builder
from ..place import Place, dtype_of
from ..rules import Attributes, InputGradient, Results, rule
from ..shapes import axis_of, compatible, need_equal, need_floating, same_floating
from ..tensor import INTEGER, DType, Operation, Shape, Tensor, shape_text
from .indexing import one_hot

_REDUCTIONS = ("none", "sum", "mean")


class SoftMax(Builder):
    """Softmax and the cross entropy after it."""

    def soft_max(self, tensor: Tensor, axis: int = -1, name: str | None = None) -> Tensor:
        return self._one("soft_max", [tensor], self._axis("soft_max", tensor, axis, name), name)

    def soft_max_gradient(self, gradient: Tensor, source: Tensor, axis: int = -1, name: str | None = None) -> Tensor:
        """The gradient of soft_max's source, from the gradient of its result."""
        attributes = {**self._axis("soft_max_gradient", source, axis, name), "from_result": False}
        return self._one("soft_max_gradient", [gradient, source], attributes, name)

    def soft_max_cross_entropy(
        self, source: Tensor, labels: Tensor, axis: int = -1, reduction: str = "none", name: str | None = None
    ) -> Tensor:
        """`-sum(labels log soft_max(source))` along the axis.

        `labels` holds a probability for every class, like `source`; or whole numbers, the classes themselves, without
        the axis. `reduction` "none" leaves one loss per row, "sum" and "mean" are over all rows.
        """
        kind = "soft_max_cross_entropy"
        inputs, attributes = self._cross_entropy(kind, source, labels, axis, reduction, name)
        return self._one(kind, inputs, {**attributes, "keep": False}, name)

    def soft_max_cross_entropy_gradient(
        self, gradient: Tensor, source: Tensor, labels: Tensor, axis: int = -1, reduction: str = "none", name: str | None = None
    ) -> Tensor:
        """The gradient of soft_max_cross_entropy's source, from the gradient of its result."""
        kind = "soft_max_cross_entropy_gradient"
        inputs, attributes = self._cross_entropy(kind, source, labels, axis, reduction, name)
        return self._one(
            kind, [self._tensor(kind, gradient, source.dtype), *inputs], {**attributes, "from_result": False}, name
        )

    def _axis(self, kind: str, source: Tensor, axis: int, name: str | None) -> Attributes:
        with self._checking(kind, name):
            return {"axis": axis_of(axis, source.rank)}

    def _cross_entropy(
        self, kind: str, source: Tensor, labels: Tensor, axis: int, reduction: str, name: str | None
    ) -> tuple[list[Tensor], Attributes]:
        attributes = self._axis(kind, source, axis, name)
        labels = self._tensor(kind, labels, source.dtype)
        if reduction not in _REDUCTIONS:
            raise self._refuse(
                kind, ArgumentError(f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}"), name
            )
        if labels.dtype.name in INTEGER:
            depth = source.shape[attributes["axis"]]
            if depth is None:
                raise self._refuse(kind, ShapeError("whole-number labels need a known number of classes"), name)
            if labels.rank != source.rank - 1:
                raise self._refuse(
                    kind,
                    ShapeError(
                        f"whole-number labels must be {source.rank - 1} axes, source's without the classes; got {labels.rank}"
                    ),
                    name,
                )
        return [source, labels], {**attributes, "reduction": reduction}


def _exponentials(place: Place, x: Any, axis: int) -> tuple[Any, Any, Any]:
    """x less its maximum, the exponentials of that, and their sum along the axis."""
    xp = place.xp
    shifted = x - xp.max(x, axis=axis, keepdims=True)
    exponentials = xp.exp(shifted)
    return shifted, exponentials, xp.sum(exponentials, axis=axis, keepdims=True)


def soft_max(place: Place, x: Any, axis: int) -> Any:
    if math.prod(x.shape) == 0:
        return place.zeros(tuple(x.shape), x)
    _, exponentials, total = _exponentials(place, x, axis)
    return exponentials / total


def _soft_max(place: Place, attributes: Attributes, source: Any) -> Any:
    return place.like(soft_max(place, place.widen(source), attributes["axis"]), source)


def _soft_max_gradient(place: Place, attributes: Attributes, gradient: Any, seen: Any) -> Any:
    axis = attributes["axis"]
    wide, y = place.widen(gradient), place.widen(seen)
    if not attributes["from_result"]:
        y = soft_max(place, y, axis)
    return place.like(y * (wide - place.xp.sum(wide * y, axis=axis, keepdims=True)), gradient)


def _soft_max_shape(attributes: Attributes, source: Any, *others: Any) -> Results:
    axis_of(attributes["axis"], len(source.shape))
    return same_floating(attributes, source, *others)


def _soft_max_gradients(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    attributes = {**operation.attributes, "from_result": True}
    return [lambda: operation.graph._one("soft_max_gradient", [gradient, operation.results[0]], attributes)]


rule("soft_max", _soft_max_shape, _soft_max, _soft_max_gradients, fields={"axis": int})
rule("soft_max_gradient", _soft_max_shape, _soft_max_gradient, None, fields={"axis": int, "from_result": bool})


# The cross entropy has a second result, the softmax itself, computed for its gradient alone.


def _checked_loss(attributes: Attributes, source: Any, labels: Any) -> tuple[Shape, DType]:
    need_floating(source.dtype)
    axis = axis_of(attributes["axis"], len(source.shape))
    rows = source.shape[:axis] + source.shape[axis + 1 :]
    if labels.dtype.name in INTEGER:
        if not compatible(rows, labels.shape):
            raise ShapeError(f"whole-number labels must be {shape_text(rows)}, got {shape_text(labels.shape)}")
    else:
        need_equal(source.dtype, labels.dtype)
        if not compatible(source.shape, labels.shape):
            raise ShapeError(f"labels must be like source {shape_text(source.shape)}, got {shape_text(labels.shape)}")
    if attributes["reduction"] not in _REDUCTIONS:
        raise ArgumentError(f"reduction must be one of {', '.join(_REDUCTIONS)}, got {attributes['reduction']!r}")
    return (rows if attributes["reduction"] == "none" else ()), source.dtype


def _loss_shape(attributes: Attributes, source: Any, labels: Any) -> Results:
    return [_checked_loss(attributes, source, labels), (source.shape, source.dtype)]


def _loss_gradient_shape(attributes: Attributes, gradient: Any, source: Any, labels: Any) -> Results:
    shape, dtype = _checked_loss(attributes, source, labels)
    if gradient.dtype != dtype:
        raise DTypeError(f"gradient must be {dtype.name} like source, got {gradient.dtype.name}")
    if not compatible(gradient.shape, shape):
        raise ShapeError(f"gradient must be {shape_text(shape)} like the loss, got {shape_text(gradient.shape)}")
    return [(source.shape, source.dtype)]


def _native_classes(place: Place, labels: Any, axis: int, shape: tuple[int, ...]) -> bool:
    """Whether the labels are NumPy whole numbers that name classes of the last axis: a case with fewer passes."""
    return place.is_numpy and labels.dtype.kind in "iu" and axis == len(shape) - 1


def _dense(place: Place, labels: Any, axis: int, source: Any) -> Any:
    """Labels with a probability for every class."""
    if dtype_of(labels).name not in INTEGER:
        return labels
    return one_hot(place, {"depth": source.shape[axis], "axis": axis, "dtype": dtype_of(source)}, labels)


def _loss(place: Place, attributes: Attributes, source: Any, labels: Any) -> tuple[Any, Any]:
    keep, reduction = attributes["keep"], attributes["reduction"]
    rows, y = _losses(place, attributes["axis"], keep, place.widen(source), labels, source)
    if reduction != "none":
        total = place.xp.sum(rows)
        rows = total / max(math.prod(rows.shape), 1) if reduction == "mean" else total
    return place.like(rows, source), place.like(y, source) if keep else None


def _losses(place: Place, axis: int, keep: bool, wide: Any, labels: Any, source: Any) -> tuple[Any, Any]:
    """The loss of every row and, if it is to be kept, the softmax, in float32 or better."""
    xp = place.xp
    if _native_classes(place, labels, axis, wide.shape):
        found = ordinary.cross_entropy(wide, labels, keep)
        if found is not None:
            return found
    if math.prod(wide.shape) == 0:
        return place.zeros((*wide.shape[:axis], *wide.shape[axis + 1 :]), wide), wide
    wide_labels = place.widen(_dense(place, labels, axis, source))
    shifted, exponentials, total = _exponentials(place, wide, axis)
    unlikely = xp.log(total) - shifted
    rows = xp.sum(wide_labels * unlikely, axis=axis)
    if not place.on_cpu or bool(xp.any(xp.isnan(rows))):
        # a label of 0 takes nothing, even from an impossible class
        rows = xp.sum(xp.where(wide_labels == 0, place.full((), 0.0, wide), wide_labels * unlikely), axis=axis)
    return rows, exponentials / total if keep else None


def _spread(place: Place, attributes: Attributes, gradient: Any, like: Any) -> Any:
    """The loss's gradient, with the axis of the classes put back and the mean's division done."""
    axis = attributes["axis"]
    if attributes["reduction"] == "none":
        return place.xp.expand_dims(gradient, axis=axis)
    if attributes["reduction"] == "mean":
        return gradient / max(math.prod((*like.shape[:axis], *like.shape[axis + 1 :])), 1)
    return gradient


def _loss_gradient(place: Place, attributes: Attributes, gradient: Any, seen: Any, labels: Any) -> Any:
    axis, y = attributes["axis"], place.widen(seen)
    if not attributes["from_result"]:
        y = soft_max(place, y, axis)
    if _native_classes(place, labels, axis, seen.shape):
        spread = _spread(place, attributes, place.widen(gradient), seen)
        found = ordinary.cross_entropy_gradient(y, labels, spread)
        if found is not None:
            return place.like(found, seen)
    wide_labels = place.widen(_dense(place, labels, axis, seen))
    total = place.xp.sum(wide_labels, axis=axis, keepdims=True)
    return place.like((y * total - wide_labels) * _spread(place, attributes, place.widen(gradient), seen), seen)


def _label_gradient(place: Place, attributes: Attributes, gradient: Any, source: Any, labels: Any) -> Any:
    wide = place.widen(source)
    if math.prod(wide.shape) == 0:
        return place.zeros(tuple(source.shape), source)
    shifted, _, total = _exponentials(place, wide, attributes["axis"])
    spread = _spread(place, attributes, place.widen(gradient), source)
    return place.like((place.xp.log(total) - shifted) * spread, source)


def _loss_gradients(operation: Operation, gradient: Tensor | None, of_soft_max: Tensor | None) -> Sequence[InputGradient]:
    assert gradient is not None and of_soft_max is None, "the softmax is not handed out"  # noqa: PT018
    (source, labels), graph = operation.inputs, operation.graph
    attributes = {name: operation.attributes[name] for name in ("axis", "reduction")}
    seen = [gradient, operation.results[1], labels]
    return [
        lambda: graph._one("soft_max_cross_entropy_gradient", seen, {**attributes, "from_result": True}),
        lambda: graph._one("soft_max_cross_entropy_label_gradient", [gradient, source, labels], dict(attributes)),
    ]


_FIELDS = {"axis": int, "reduction": str}
rule(
    "soft_max_cross_entropy",
    _loss_shape,
    _loss,
    _loss_gradients,
    fields={**_FIELDS, "keep": bool},
    several=True,
    specialise=lambda attributes, used: {**attributes, "keep": used[1]},
)
_GRADIENT_FIELDS = {**_FIELDS, "from_result": bool}
rule("soft_max_cross_entropy_gradient", _loss_gradient_shape, _loss_gradient, None, fields=_GRADIENT_FIELDS)
rule("soft_max_cross_entropy_label_gradient", _loss_gradient_shape, _label_gradient, None, fields=_FIELDS)
