"""Parts of tensors and tensors made of parts: slice, concat, split, stack, pad, tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import ArgumentError, DTypeError, ShapeError
from ..builder import Builder
from ..place import Place
from ..rules import Attributes, InputGradient, Results, rule
from ..shapes import axis_of, compatible, known, merged, need_equal
from ..tensor import FLOATING, Operation, Shape, Tensor, TensorLike, shape_text

Bounds = Sequence[int | None]


class Pieces(Builder):
    """Taking tensors apart and putting them together."""

    def slice(
        self, tensor: TensorLike, starts: Bounds, ends: Bounds, strides: Sequence[int] | None = None, name: str | None = None
    ) -> Tensor:
        """The part from `starts` to `ends`, one of each per axis, read as in Python: None is the edge, -1 the last."""
        tensor = self._tensor("slice", tensor)
        strides = [1] * tensor.rank if strides is None else strides
        with self._checking("slice", name):
            attributes = {
                "starts": _whole("starts", starts, tensor.rank, True),
                "ends": _whole("ends", ends, tensor.rank, True),
                "strides": _whole("strides", strides, tensor.rank, False),
            }
        return self._one("slice", [tensor], attributes, name)

    def concat(self, tensors: Sequence[TensorLike], axis: int, name: str | None = None) -> Tensor:
        """The tensors one after the other along an axis."""
        inputs = self._list("concat", tensors, name)
        with self._checking("concat", name):
            attributes = {"axis": axis_of(axis, inputs[0].rank)}
        return self._one("concat", inputs, attributes, name)

    def split(self, tensor: TensorLike, parts: int | Sequence[int], axis: int, name: str | None = None) -> list[Tensor]:
        """`parts` equal parts along the axis, or parts of these sizes."""
        tensor = self._tensor("split", tensor)
        with self._checking("split", name):
            axis = axis_of(axis, tensor.rank)
            if isinstance(parts, (int, np.integer)) and not isinstance(parts, bool):
                size = tensor.shape[axis]
                if size is None:
                    raise ShapeError(f"a known size of axis {axis} is needed to make {parts} equal parts")
                if parts < 1 or size % parts:
                    raise ArgumentError(f"size {size} of axis {axis} does not make {parts} equal parts")
                sizes: Sequence[int] = [size // int(parts)] * int(parts)
            elif isinstance(parts, Sequence):
                sizes = parts
            else:
                raise DTypeError(f"parts must be a whole number or a sequence of sizes, got {parts!r}")
            attributes = {"sizes": _whole("parts", sizes, len(sizes), False), "axis": axis}
        return list(self._add("split", [tensor], attributes, name).results)

    def stack(self, tensors: Sequence[TensorLike], axis: int = 0, name: str | None = None) -> Tensor:
        """Tensors of one shape along a new axis."""
        inputs = self._list("stack", tensors, name)
        with self._checking("stack", name):
            attributes = {"axis": axis_of(axis, inputs[0].rank + 1)}
        return self._one("stack", inputs, attributes, name)

    def pad(
        self, tensor: TensorLike, before: Sequence[int], after: Sequence[int], value: float = 0.0, name: str | None = None
    ) -> Tensor:
        """`value` added around the tensor: `before[k]` and `after[k]` elements at the ends of axis k."""
        tensor = self._tensor("pad", tensor)
        with self._checking("pad", name):
            attributes = {
                "before": _whole("before", before, tensor.rank, False),
                "after": _whole("after", after, tensor.rank, False),
                "value": float(value),
            }
        return self._one("pad", [tensor], attributes, name)

    def tile(self, tensor: TensorLike, multiples: Sequence[int], name: str | None = None) -> Tensor:
        """The tensor repeated `multiples[k]` times along axis k."""
        tensor = self._tensor("tile", tensor)
        with self._checking("tile", name):
            attributes = {"multiples": _whole("multiples", multiples, tensor.rank, False)}
        return self._one("tile", [tensor], attributes, name)

    def _list(self, kind: str, tensors: Sequence[TensorLike], name: str | None) -> list[Tensor]:
        if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence) or not tensors:
            raise self._refuse(kind, ArgumentError(f"needs a list of at least one tensor, got {tensors!r}"), name)
        return self._tensors(kind, *tensors)


def _whole(what: str, values: Any, number: int, none_allowed: bool) -> tuple[Any, ...]:
    """Whole numbers, one per axis."""
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != number:
        raise ArgumentError(f"{what} must be a sequence of {number} numbers, got {values!r}")
    for value in values:
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole and not (value is None and none_allowed):
            raise DTypeError(f"{what} must be whole numbers, got {value!r}")
    return tuple(None if value is None else int(value) for value in values)


def _sizes(attributes: Attributes, what: str, rank: int) -> tuple[int, ...]:
    """An attribute of sizes of at least 0, one per axis."""
    found = _whole(what, attributes[what], rank, False)
    if any(size < 0 for size in found):
        raise ArgumentError(f"{what} must be at least 0, got {list(found)}")
    return found


# slice


def _slices(attributes: Attributes, rank: int) -> list[slice]:
    bounds = [_whole(what, attributes[what], rank, what != "strides") for what in ("starts", "ends", "strides")]
    if 0 in bounds[2]:
        raise ArgumentError("strides must not be 0")
    return [slice(*three) for three in zip(*bounds, strict=True)]


def _slice_shape(attributes: Attributes, source: Any) -> Results:
    sizes: list[int | None] = []
    for size, part in zip(source.shape, _slices(attributes, len(source.shape)), strict=True):
        if size is None:
            sizes.append(None)
        else:
            sizes.append(len(range(*part.indices(size))))
    return [(tuple(sizes), source.dtype)]


def _key(attributes: Attributes, shape: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """Forward slices within bounds, and the axes to reverse after taking them."""
    return _key_of(attributes["starts"], attributes["ends"], attributes["strides"], shape)


@lru_cache(4096)
def _key_of(*bounds_and_shape: tuple[Any, ...]) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    key: list[slice] = []
    reverse: list[int] = []
    for axis, (start, end, stride, size) in enumerate(zip(*bounds_and_shape, strict=True)):
        places = range(*slice(start, end, stride).indices(size))
        if places.step < 0:
            places = places[::-1]
            reverse.append(axis)
        key.append(slice(places[0], places[-1] + 1, places.step) if places else slice(0, 0, 1))
    return tuple(key), tuple(reverse)


def _slice(place: Place, attributes: Attributes, source: Any) -> Any:
    key, reverse = _key(attributes, tuple(source.shape))
    taken = source[key]
    return place.xp.flip(taken, axis=reverse) if reverse else taken


def _unslice(place: Place, attributes: Attributes, gradient: Any, source: Any) -> Any:
    key, reverse = _key(attributes, tuple(source.shape))
    if reverse:
        gradient = place.xp.flip(gradient, axis=reverse)
    return place.put(place.zeros(tuple(source.shape), gradient), key, gradient)


def _unslice_shape(attributes: Attributes, gradient: Any, source: Any) -> Results:
    ((shape, _),) = _slice_shape(attributes, source)
    if not compatible(shape, gradient.shape):
        raise ShapeError(f"the gradient must be {shape_text(shape)}, got {shape_text(gradient.shape)}")
    return [(source.shape, gradient.dtype)]


_BOUNDS = {"starts": tuple, "ends": tuple, "strides": tuple}
rule(
    "slice",
    _slice_shape,
    _slice,
    lambda operation, gradient: [
        lambda: operation.graph._one("slice_gradient", [gradient, operation.inputs[0]], dict(operation.attributes))
    ],
    fields=_BOUNDS,
    view=True,
)
rule(
    "slice_gradient",
    _unslice_shape,
    _unslice,
    lambda operation, gradient: [lambda: operation.graph._one("slice", [gradient], dict(operation.attributes)), None],
    fields=_BOUNDS,
)


# concat and split


def _concat_shape(attributes: Attributes, *sources: Any) -> Results:
    if not sources:
        raise ArgumentError("needs at least one tensor")
    need_equal(*(source.dtype for source in sources))
    axis = axis_of(attributes["axis"], len(sources[0].shape))
    total: int | None = 0
    shape: Shape = sources[0].shape
    for source in sources:
        others = (*source.shape[:axis], shape[axis], *source.shape[axis + 1 :]) if len(source.shape) > axis else source.shape
        if not compatible(others, shape):
            raise ShapeError(
                "tensors " + ", ".join(shape_text(each.shape) for each in sources) + f" do not join along axis {axis}"
            )
        shape = merged(shape, others)
        size = source.shape[axis]
        total = None if total is None or size is None else total + size
    return [((*shape[:axis], total, *shape[axis + 1 :]), sources[0].dtype)]


def _concat_gradient(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    graph, axis = operation.graph, operation.attributes["axis"]
    sizes = [tensor.shape[axis] for tensor in operation.inputs]
    if known(tuple(sizes)):
        parts = graph.split(gradient, sizes, axis)
        return list(parts)

    def part(place: int) -> Tensor:
        return graph._one("concat_part", [gradient, *operation.inputs], {"axis": axis, "part": place})

    return [lambda place=place: part(place) for place in range(len(sizes))]  # type: ignore[misc]


def _concat_part_shape(attributes: Attributes, gradient: Any, *sources: Any) -> Results:
    axis_of(attributes["axis"], len(gradient.shape))
    axis_of(attributes["part"], len(sources), "part")
    return [(sources[attributes["part"]].shape, gradient.dtype)]


def _concat_part(place: Place, attributes: Attributes, gradient: Any, *sources: Any) -> Any:
    axis, part = attributes["axis"], attributes["part"]
    start = sum(source.shape[axis] for source in sources[:part])
    return gradient[_along(len(gradient.shape), axis, start, start + sources[part].shape[axis])]


def _along(rank: int, axis: int, start: int, end: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, end), *(slice(None),) * (rank - axis - 1))


rule(
    "concat",
    _concat_shape,
    lambda place, attributes, *sources: place.xp.concat(sources, axis=attributes["axis"]),
    _concat_gradient,
    fields={"axis": int},
)
rule("concat_part", _concat_part_shape, _concat_part, None, fields={"axis": int, "part": int}, view=True)


def _split_shape(attributes: Attributes, source: Any) -> Results:
    axis = axis_of(attributes["axis"], len(source.shape))
    sizes = _sizes(attributes, "sizes", len(attributes["sizes"]))
    if not sizes:
        raise ArgumentError("needs at least one part")
    if source.shape[axis] not in (None, sum(sizes)):
        raise ShapeError(f"parts {list(sizes)} do not add up to size {source.shape[axis]} of axis {axis}")
    return [((*source.shape[:axis], size, *source.shape[axis + 1 :]), source.dtype) for size in sizes]


def _split(place: Place, attributes: Attributes, source: Any) -> tuple[Any, ...]:
    axis, start, parts = attributes["axis"], 0, []
    for size in attributes["sizes"]:
        parts.append(source[_along(len(source.shape), axis, start, start + size)])
        start += size
    return tuple(parts)


def _split_gradient(operation: Operation, *gradients: Tensor | None) -> Sequence[InputGradient]:
    graph = operation.graph

    def joined() -> Tensor:
        parts = [
            graph.zeros_like(result) if gradient is None else gradient
            for result, gradient in zip(operation.results, gradients, strict=True)
        ]
        return graph.concat(parts, operation.attributes["axis"])

    return [joined]


rule("split", _split_shape, _split, _split_gradient, fields={"sizes": tuple, "axis": int}, several=True, view=True)


# stack


def _stack_shape(attributes: Attributes, *sources: Any) -> Results:
    if not sources:
        raise ArgumentError("needs at least one tensor")
    need_equal(*(source.dtype for source in sources))
    shape: Shape = sources[0].shape
    for source in sources:
        if not compatible(source.shape, shape):
            raise ShapeError("tensors must have one shape, got " + ", ".join(shape_text(each.shape) for each in sources))
        shape = merged(shape, source.shape)
    axis = axis_of(attributes["axis"], len(shape) + 1)
    return [((*shape[:axis], len(sources), *shape[axis:]), sources[0].dtype)]


def _stack_gradient(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    axis = operation.attributes["axis"]
    index = [slice(None)] * axis

    def part(place: int) -> Tensor:
        return gradient[(*index, place)]

    return [lambda place=place: part(place) for place in range(len(operation.inputs))]  # type: ignore[misc]


rule(
    "stack",
    _stack_shape,
    lambda place, attributes, *sources: place.xp.stack(sources, axis=attributes["axis"]),
    _stack_gradient,
    fields={"axis": int},
)


# pad and tile


def _pad_shape(attributes: Attributes, source: Any) -> Results:
    rank = len(source.shape)
    before, after = _sizes(attributes, "before", rank), _sizes(attributes, "after", rank)
    if source.dtype.name not in FLOATING and not attributes["value"].is_integer():
        raise DTypeError(f"value {attributes['value']} does not fit {source.dtype.name}")
    sizes = [None if size is None else size + a + b for size, a, b in zip(source.shape, before, after, strict=True)]
    return [(tuple(sizes), source.dtype)]


def _pad(place: Place, attributes: Attributes, source: Any) -> Any:
    shape = tuple(source.shape)
    before, after = attributes["before"], attributes["after"]
    whole = tuple(size + a + b for size, a, b in zip(shape, before, after, strict=True))
    padded = place.full(whole, attributes["value"], source)
    return place.put(padded, tuple(slice(a, a + size) for size, a in zip(shape, before, strict=True)), source)


def _pad_gradient(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    before, after = operation.attributes["before"], operation.attributes["after"]
    ends = [None if size == 0 else -size for size in after]
    return [lambda: operation.graph.slice(gradient, before, ends)]


rule("pad", _pad_shape, _pad, _pad_gradient, fields={"before": tuple, "after": tuple, "value": float})


def _tile_shape(attributes: Attributes, source: Any) -> Results:
    multiples = _sizes(attributes, "multiples", len(source.shape))
    sizes = [None if size is None else size * number for size, number in zip(source.shape, multiples, strict=True)]
    return [(tuple(sizes), source.dtype)]


def _untile(place: Place, attributes: Attributes, gradient: Any, source: Any) -> Any:
    """The sum over the repetitions."""
    pairs = [size for pair in zip(attributes["multiples"], source.shape, strict=True) for size in pair]
    if math.prod(pairs) == 0:
        return place.zeros(tuple(source.shape), source)
    apart = place.widen(place.xp.reshape(gradient, tuple(pairs)))
    axes = tuple(range(0, len(pairs), 2))
    return place.like(place.xp.sum(apart, axis=axes) if axes else place.copy(apart), source)


rule(
    "tile",
    _tile_shape,
    lambda place, attributes, source: place.xp.tile(source, attributes["multiples"]),
    lambda operation, gradient: [
        lambda: operation.graph._one("tile_gradient", [gradient, operation.inputs[0]], dict(operation.attributes))
    ],
    fields={"multiples": tuple},
)
rule(
    "tile_gradient",
    lambda attributes, gradient, source: [(source.shape, gradient.dtype)],
    _untile,
    None,
    fields={"multiples": tuple},
)
