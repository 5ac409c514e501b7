"""The same elements in another shape or order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ArgumentError, DTypeError, ShapeError
from ..builder import Builder
from ..place import Place, to_numpy
from ..rules import Attributes, InputGradient, Results, rule
from ..shapes import axes_of, axis_of, compatible, count, known
from ..shapes import broadcast as broadcast_shapes
from ..tensor import INTEGER, Operation, Shape, Tensor, TensorLike, as_shape, shape_text


class Shaping(Builder):
    """Reshaping, transposing, adding and removing axes, repeating by broadcast, reversing."""

    def reshape(self, tensor: TensorLike, shape: Sequence[int] | Tensor, name: str | None = None) -> Tensor:
        """The elements in a new shape. One size may be -1; a whole-number tensor gives sizes known only at the run."""
        tensor = self._tensor("reshape", tensor)
        if isinstance(shape, Tensor):
            return self._one("reshape_to", [tensor, shape], {}, name)
        with self._checking("reshape", name):
            if not isinstance(shape, Sequence) or not all(
                isinstance(size, (int, np.integer)) and not isinstance(size, bool) for size in shape
            ):
                raise DTypeError(f"shape must be whole numbers or a tensor of them, got {shape!r}")
            attributes = {"shape": tuple(int(size) for size in shape)}
        return self._one("reshape", [tensor], attributes, name)

    def transpose(self, tensor: TensorLike, permutation: Sequence[int] | None = None, name: str | None = None) -> Tensor:
        """Axis k of the result is axis `permutation[k]` of the tensor; None reverses all axes."""
        tensor = self._tensor("transpose", tensor)
        if permutation is None:
            permutation = range(tensor.rank)[::-1]
        with self._checking("transpose", name):
            attributes = {"permutation": tuple(axis_of(axis, tensor.rank, "permutation") for axis in permutation)}
        return self._one("transpose", [tensor], attributes, name)

    def squeeze(self, tensor: Tensor, axes: Sequence[int] | int | None = None, name: str | None = None) -> Tensor:
        """Without these axes, whose sizes must be 1; None: without every axis of size 1."""
        if axes is None:
            axes = [axis for axis, size in enumerate(tensor.shape) if size == 1]
        with self._checking("squeeze", name):
            attributes = {"axes": axes_of(axes, tensor.rank)}
        return self._one("squeeze", [tensor], attributes, name)

    def expand_dims(self, tensor: Tensor, axes: Sequence[int] | int, name: str | None = None) -> Tensor:
        """With new axes of size 1, at these places of the result."""
        number = 1 if isinstance(axes, (int, np.integer)) else len(axes)
        with self._checking("expand_dims", name):
            attributes = {"axes": axes_of(axes, tensor.rank + number)}
        return self._one("expand_dims", [tensor], attributes, name)

    def broadcast(self, tensor: TensorLike, shape: Sequence[int], name: str | None = None) -> Tensor:
        with self._checking("broadcast", name):
            attributes = {"shape": as_shape(shape)}
        return self._one("broadcast", [self._tensor("broadcast", tensor)], attributes, name)

    def reverse(self, tensor: Tensor, axes: Sequence[int] | int | None = None, name: str | None = None) -> Tensor:
        """The elements in the opposite order along these axes; None: along all."""
        with self._checking("reverse", name):
            attributes = {"axes": axes_of(axes, tensor.rank)}
        return self._one("reverse", [tensor], attributes, name)


def _reshape_shape(attributes: Attributes, source: Any) -> Results:
    wanted = attributes["shape"]
    if any(not isinstance(size, int) or size < -1 for size in wanted) or wanted.count(-1) > 1:
        raise ShapeError(f"shape must be sizes of at least 0, one of which may be -1; got {list(wanted)}")
    total = count(source.shape)
    rest = count(tuple(size for size in wanted if size != -1))
    assert rest is not None
    if total is None:
        return [(tuple(None if size == -1 else size for size in wanted), source.dtype)]
    if -1 in wanted:
        if rest == 0 or total % rest:
            raise ShapeError(f"{shape_text(source.shape)} does not fill {list(wanted)}")
    elif total != rest:
        raise ShapeError(f"{shape_text(source.shape)} has {total} elements, {list(wanted)} has {rest}")
    return [(tuple(total // rest if size == -1 else size for size in wanted), source.dtype)]


def reshape_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """The tensor in the shape the reference has when the graph runs."""
    if known(reference.shape):
        return tensor.graph.reshape(tensor, reference.shape)  # type: ignore[arg-type]
    return tensor.graph._one("reshape_like", [tensor, reference])


def _reshape_like_shape(attributes: Attributes, source: Any, reference: Any) -> Results:
    given, wanted = count(source.shape), count(reference.shape)
    if given is not None and wanted is not None and given != wanted:
        raise ShapeError(f"{shape_text(source.shape)} does not fill {shape_text(reference.shape)}")
    return [(reference.shape, source.dtype)]


def _reshape_gradient(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    none: list[InputGradient] = [None] * (len(operation.inputs) - 1)
    return [lambda: reshape_like(gradient, operation.inputs[0]), *none]


def _reshape_to_shape(attributes: Attributes, source: Any, shape: Any) -> Results:
    if shape.dtype.name not in INTEGER:
        raise DTypeError(f"shape must be whole numbers, got {shape.dtype.name}")
    if len(shape.shape) != 1 or shape.shape[0] is None:
        raise ShapeError(f"shape must be a tensor [rank] of known rank, got {shape_text(shape.shape)}")
    return [((None,) * shape.shape[0], source.dtype)]


def _reshape_to(place: Place, attributes: Attributes, source: Any, shape: Any) -> Any:
    sizes = tuple(int(size) for size in to_numpy(shape))
    _reshape_shape({"shape": sizes}, source)
    return place.xp.reshape(source, sizes)


rule(
    "reshape",
    _reshape_shape,
    lambda place, attributes, source: place.xp.reshape(source, attributes["shape"]),
    _reshape_gradient,
    fields={"shape": tuple},
    view=True,
)
rule("reshape_to", _reshape_to_shape, _reshape_to, _reshape_gradient, view=True)
rule(
    "reshape_like",
    _reshape_like_shape,
    lambda place, attributes, source, reference: place.xp.reshape(source, tuple(reference.shape)),
    _reshape_gradient,
    view=True,
)


def _transpose_shape(attributes: Attributes, source: Any) -> Results:
    permutation = attributes["permutation"]
    if sorted(permutation) != list(range(len(source.shape))):
        raise ArgumentError(f"permutation must name each of the {len(source.shape)} axes once, got {list(permutation)}")
    return [(tuple(source.shape[axis] for axis in permutation), source.dtype)]


def _transpose_gradient(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    permutation = operation.attributes["permutation"]
    back = sorted(range(len(permutation)), key=permutation.__getitem__)
    return [lambda: operation.graph.transpose(gradient, back)]


rule(
    "transpose",
    _transpose_shape,
    lambda place, attributes, source: place.xp.permute_dims(source, attributes["permutation"]),
    _transpose_gradient,
    fields={"permutation": tuple},
    view=True,
)


def _squeeze_shape(attributes: Attributes, source: Any) -> Results:
    axes = axes_of(attributes["axes"], len(source.shape))
    for axis in axes:
        if source.shape[axis] not in (1, None):
            raise ShapeError(f"axis {axis} of {shape_text(source.shape)} must have size 1")
    return [(tuple(size for axis, size in enumerate(source.shape) if axis not in axes), source.dtype)]


def _expanded(shape: Shape, axes: Sequence[int]) -> Shape:
    axes = axes_of(tuple(axes), len(shape) + len(axes))
    sizes = iter(shape)
    return tuple(1 if axis in axes else next(sizes) for axis in range(len(shape) + len(axes)))


def _expand(place: Place, attributes: Attributes, source: Any) -> Any:
    return place.xp.reshape(source, _expanded(tuple(source.shape), attributes["axes"]))


rule(
    "squeeze",
    _squeeze_shape,
    lambda place, attributes, source: place.xp.squeeze(source, axis=attributes["axes"]) if attributes["axes"] else source,
    lambda operation, gradient: [lambda: operation.graph.expand_dims(gradient, operation.attributes["axes"])],
    fields={"axes": tuple},
    view=True,
)
rule(
    "expand_dims",
    lambda attributes, source: [(_expanded(source.shape, attributes["axes"]), source.dtype)],
    _expand,
    lambda operation, gradient: [lambda: operation.graph.squeeze(gradient, operation.attributes["axes"])],
    fields={"axes": tuple},
    view=True,
)


def _broadcast_shape(attributes: Attributes, source: Any) -> Results:
    wanted = as_shape(attributes["shape"])
    if not known(wanted):
        raise ShapeError(f"shape must be known, got {shape_text(wanted)}")
    if len(source.shape) > len(wanted) or not compatible(broadcast_shapes(source.shape, wanted), wanted):
        raise ShapeError(f"{shape_text(source.shape)} does not broadcast to {shape_text(wanted)}")
    return [(wanted, source.dtype)]


rule(
    "broadcast",
    _broadcast_shape,
    lambda place, attributes, source: place.xp.broadcast_to(source, attributes["shape"]),
    lambda operation, gradient: [gradient],
    fields={"shape": tuple},
    view=True,
    broadcasts=True,
)


def _reverse_shape(attributes: Attributes, source: Any) -> Results:
    axes_of(attributes["axes"], len(source.shape))
    return [(source.shape, source.dtype)]


rule(
    "reverse",
    _reverse_shape,
    lambda place, attributes, source: place.xp.flip(source, axis=attributes["axes"]) if attributes["axes"] else source,
    lambda operation, gradient: [lambda: operation.graph.reverse(gradient, operation.attributes["axes"])],
    fields={"axes": tuple},
    view=True,
)
