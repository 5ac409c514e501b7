"""Arithmetic on shapes with unknown sizes, and the shape rules that many operations share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, DTypeError, ShapeError
from .rules import Attributes, Results
from .tensor import FLOATING, DType, Shape, shape_text

INDEX = np.dtype(np.int64)  # the dtype of argmax and of shape queries
BOOL = np.dtype(np.bool_)


def axis_of(axis: Any, rank: int, what: str = "axis") -> int:
    """The axis counted from the front."""
    if not isinstance(axis, (int, np.integer)) or isinstance(axis, bool):
        raise DTypeError(f"{what} must be a whole number, got {axis!r}")
    if not -rank <= axis < rank:
        raise ArgumentError(f"{what} must be from {-rank} to {rank - 1} for a tensor of rank {rank}, got {axis}")
    return int(axis) % rank


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Distinct axes counted from the front, in order; None means all of them."""
    if axes is None:
        return tuple(range(rank))
    if isinstance(axes, (int, np.integer)):
        axes = (axes,)
    found = sorted(axis_of(axis, rank, "axes") for axis in axes)
    if len(set(found)) != len(found):
        raise ArgumentError(f"axes must be distinct, got {tuple(axes)}")
    return tuple(found)


def broadcast(*shapes: Shape) -> Shape:
    """The shape they broadcast to. An unknown size against a known one above 1 can only be that one."""
    rank = max(len(shape) for shape in shapes)
    result: list[int | None] = []
    for place in range(rank):
        sizes = {shape[place - rank + len(shape)] for shape in shapes if place >= rank - len(shape)} - {1}
        known = sizes - {None}
        if len(known) > 1:
            raise ShapeError("shapes " + " and ".join(shape_text(shape) for shape in shapes) + " do not broadcast")
        result.append(known.pop() if known else None if sizes else 1)
    return tuple(result)


def compatible(given: Sequence[int | None], expected: Sequence[int | None]) -> bool:
    """Whether both could be the same shape."""
    return len(given) == len(expected) and all(a == b or a is None or b is None for a, b in zip(given, expected, strict=True))


def merged(a: Shape, b: Shape) -> Shape:
    """What is known of a shape from two compatible descriptions of it."""
    return tuple(x if y is None else y for x, y in zip(a, b, strict=True))


def count(shape: Shape) -> int | None:
    """The number of elements; None if a size is unknown."""
    return None if None in shape else math.prod(shape)  # type: ignore[arg-type]


def known(shape: Shape) -> bool:
    return None not in shape


def need_floating(dtype: DType) -> None:
    if dtype.name not in FLOATING:
        raise DTypeError(f"needs a floating dtype, got {dtype.name} (cast it)")


def need_equal(*dtypes: DType) -> None:
    if any(dtype != dtypes[0] for dtype in dtypes):
        raise DTypeError(f"needs equal dtypes, got {' and '.join(dtype.name for dtype in dtypes)} (cast one of them)")


# The shape rules that many operations share.


def same(attributes: Attributes, source: Any, *others: Any) -> Results:
    """The result is like the first input."""
    return [(source.shape, source.dtype)]


def same_number(attributes: Attributes, source: Any) -> Results:
    if source.dtype == BOOL:
        raise DTypeError("needs numbers, got bool (cast it)")
    return [(source.shape, source.dtype)]


def same_floating(attributes: Attributes, source: Any, *others: Any) -> Results:
    """The result is like the first input, and all inputs are floating, equal in dtype and shape."""
    need_floating(source.dtype)
    shape = source.shape
    for other in others:
        need_equal(source.dtype, other.dtype)
        if not compatible(shape, other.shape):
            raise ShapeError(f"needs equal shapes, got {shape_text(shape)} and {shape_text(other.shape)}")
        shape = merged(shape, other.shape)
    return [(shape, source.dtype)]


def broadcast_equal(attributes: Attributes, a: Any, b: Any) -> Results:
    """Two inputs of one number dtype that broadcast."""
    need_equal(a.dtype, b.dtype)
    if a.dtype == BOOL:
        raise DTypeError("needs numbers, got bool (cast it)")
    return [(broadcast(a.shape, b.shape), a.dtype)]


def broadcast_floating(attributes: Attributes, a: Any, b: Any) -> Results:
    need_floating(a.dtype)
    return broadcast_equal(attributes, a, b)


def broadcast_compare(attributes: Attributes, a: Any, b: Any) -> Results:
    need_equal(a.dtype, b.dtype)
    return [(broadcast(a.shape, b.shape), BOOL)]
