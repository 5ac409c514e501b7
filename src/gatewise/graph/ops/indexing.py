"""Taking elements by number, and its opposite: adding elements up at numbered places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engines import ordinary
from ...errors import ArgumentError, DTypeError, ShapeError
from ..builder import Builder
from ..place import Place
from ..rules import Attributes, InputGradient, Results, no_gradient, rule
from ..shapes import axis_of, compatible
from ..tensor import INTEGER, Operation, Shape, Tensor, TensorLike, as_dtype, as_shape, shape_text


class Indexing(Builder):
    """gather, gather_nd, one_hot, and the scatter that is gather's gradient. Indices count from 0."""

    def gather(
        self, tensor: TensorLike, indices: TensorLike, axis: int = 0, batch_dimensions: int = 0, name: str | None = None
    ) -> Tensor:
        """The slices of `tensor` along `axis` that `indices` names.

        The result is `tensor.shape[:axis] + indices.shape[batch_dimensions:] + tensor.shape[axis + 1:]`; the first
        `batch_dimensions` axes of both go together. An index out of range is an error.
        """
        tensor = self._tensor("gather", tensor)
        with self._checking("gather", name):
            attributes = {"axis": axis_of(axis, tensor.rank), "batch_dimensions": _batch(batch_dimensions)}
        return self._one("gather", [tensor, self._tensor("gather", indices)], attributes, name)

    def gather_nd(self, tensor: TensorLike, indices: TensorLike, batch_dimensions: int = 0, name: str | None = None) -> Tensor:
        """The slices of `tensor` whose leading indices are the rows of `indices`.

        The result is `indices.shape[:-1] + tensor.shape[batch_dimensions + indices.shape[-1]:]`.
        """
        with self._checking("gather_nd", name):
            attributes = {"batch_dimensions": _batch(batch_dimensions)}
        inputs = [self._tensor("gather_nd", tensor), self._tensor("gather_nd", indices)]
        return self._one("gather_nd", inputs, attributes, name)

    def one_hot(
        self, indices: TensorLike, depth: int, axis: int = -1, dtype: Any = np.float32, name: str | None = None
    ) -> Tensor:
        """1 at the index along a new axis of size `depth`, 0 elsewhere; all 0 for an index out of range."""
        indices = self._tensor("one_hot", indices)
        with self._checking("one_hot", name):
            if not isinstance(depth, (int, np.integer)) or isinstance(depth, bool) or depth < 0:
                raise ArgumentError(f"depth must be a whole number of at least 0, got {depth!r}")
            attributes = {"depth": int(depth), "axis": axis_of(axis, indices.rank + 1), "dtype": as_dtype(dtype)}
        return self._one("one_hot", [indices], attributes, name)

    def scatter(
        self,
        updates: TensorLike,
        indices: TensorLike,
        size: int,
        axis: int = 0,
        batch_dimensions: int = 0,
        name: str | None = None,
    ) -> Tensor:
        """Zeros of `size` along `axis` to which each slice of `updates` is added at its index: gather, backwards."""
        updates, indices = self._tensor("scatter", updates), self._tensor("scatter", indices)
        with self._checking("scatter", name):
            if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 0:
                raise ArgumentError(f"size must be a whole number of at least 0, got {size!r}")
            batch = _batch(batch_dimensions)
            axis = axis_of(axis, updates.rank - (indices.rank - batch) + 1)
            attributes = {"size": int(size), "axis": axis, "batch_dimensions": batch}
        return self._one("scatter", [updates, indices], attributes, name)


def _batch(number: Any) -> int:
    if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < 0:
        raise ArgumentError(f"batch_dimensions must be a whole number of at least 0, got {number!r}")
    return int(number)


def _need_indices(indices: Any) -> None:
    if indices.dtype.name not in INTEGER:
        raise DTypeError(f"indices must be whole numbers, got {indices.dtype.name}")


def _checked(place: Place, indices: Any, size: int) -> Any:
    """The indices as int64; an error if one is out of range, for what it would read is not ours."""
    if math.prod(indices.shape):
        low, high = int(place.xp.min(indices)), int(place.xp.max(indices))
        if low < 0 or high >= size:
            raise ArgumentError(f"index {low if low < 0 else high} is out of range for size {size}")
    return place.xp.astype(indices, place.xp.int64, copy=False)


def _with_batch(place: Place, flat: Any, batch: int, size: int) -> Any:
    """Indices `[batch, M]` into `size` rows each, as `[batch * M]` indices into all of them."""
    xp = place.xp
    flat = xp.reshape(flat, (batch, -1)) if batch and math.prod(flat.shape) else xp.reshape(flat, (batch, 0))
    if batch != 1:
        flat = flat + xp.reshape(place.arange(batch) * size, (batch, 1))
    return xp.reshape(flat, (-1,))


def add_up(place: Place, updates: Any, indices: Any, rows: int) -> Any:
    """`[rows, width]`: row r is the sum of the updates `[M, width]` whose index `[M]` is r, in a fixed order."""
    xp = place.xp
    if not math.prod(updates.shape):
        return place.zeros((rows, updates.shape[1]), updates)
    if place.is_torch and updates.device.type == "cpu":  # one thread adds in order; on a GPU the order would vary
        return place.zeros((rows, updates.shape[1]), updates).index_add_(0, indices, updates)
    wide = place.widen(updates)
    if place.is_numpy:
        found = ordinary.add_rows(wide, indices, rows)
        if found is not None:
            return place.like(found, updates)
        order = np.argsort(indices, kind="stable")
        ordered = indices[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        result = np.zeros((rows, wide.shape[1]), wide.dtype)
        result[ordered[starts]] = np.add.reduceat(wide[order], starts, axis=0)
        return place.like(result, updates)
    # Sort, sum within runs of equal indices by doubling steps, then let each row pick the end of its run.
    order = xp.argsort(indices, stable=True)
    ordered, sums = xp.take(indices, order, axis=0), xp.take(wide, order, axis=0)
    step = 1
    while step < indices.shape[0]:
        same = xp.astype(ordered[step:] == ordered[:-step], sums.dtype)[:, None]
        sums = xp.concat([sums[:step, :], sums[step:, :] + same * sums[:-step, :]], axis=0)
        step *= 2
    wanted = place.arange(rows)
    last = xp.searchsorted(ordered, wanted, side="right") - 1
    found = xp.astype(last, xp.int64) * xp.astype(last >= 0, xp.int64)
    present = xp.astype(xp.take(ordered, found, axis=0) == wanted, sums.dtype)[:, None]
    return place.like(xp.take(sums, found, axis=0) * present, updates)


# gather and scatter see the tensor as [batch, outer, size, inner] and the indices as [batch, M]


def _gather_shape(attributes: Attributes, source: Any, indices: Any) -> Results:
    _need_indices(indices)
    axis, batch = axis_of(attributes["axis"], len(source.shape)), _batch(attributes["batch_dimensions"])
    if batch > axis or batch > len(indices.shape):
        raise ArgumentError(f"batch_dimensions must be at most the axis and the rank of indices, got {batch}")
    if not compatible(source.shape[:batch], indices.shape[:batch]):
        raise ShapeError(f"the first {batch} axes of {shape_text(source.shape)} and {shape_text(indices.shape)} differ")
    return [(source.shape[:axis] + indices.shape[batch:] + source.shape[axis + 1 :], source.dtype)]


def _gather(place: Place, attributes: Attributes, source: Any, indices: Any) -> Any:
    xp, axis, batch = place.xp, attributes["axis"], attributes["batch_dimensions"]
    shape = tuple(source.shape)
    result = (*shape[:axis], *indices.shape[batch:], *shape[axis + 1 :])
    if axis == 0 and place.is_numpy:
        found = ordinary.take_rows(source, indices)
        if found is not None:
            return found
    indices = _checked(place, indices, shape[axis])
    if not math.prod(result):
        return place.zeros(result, source)
    if batch == 0:
        return xp.reshape(xp.take(source, xp.reshape(indices, (-1,)), axis=axis), result)
    batches, outer, inner = math.prod(shape[:batch]), math.prod(shape[batch:axis]), math.prod(shape[axis + 1 :])
    rows = xp.reshape(source, (batches, outer, shape[axis], inner))
    rows = xp.reshape(xp.permute_dims(rows, (0, 2, 1, 3)), (batches * shape[axis], outer * inner))
    taken = xp.take(rows, _with_batch(place, indices, batches, shape[axis]), axis=0)
    taken = xp.reshape(taken, (batches, -1, outer, inner))
    return xp.reshape(xp.permute_dims(taken, (0, 2, 1, 3)), result)


def _scatter(place: Place, attributes: Attributes, updates: Any, indices: Any, size: int | None = None) -> Any:
    xp, axis, batch = place.xp, attributes["axis"], attributes["batch_dimensions"]
    size = attributes["size"] if size is None else size
    shape, middle = tuple(updates.shape), len(indices.shape) - batch
    result = (*shape[:axis], size, *shape[axis + middle :])
    if axis == 0 and place.is_numpy and math.prod(shape):
        inner = math.prod(shape[middle:])
        found = ordinary.add_rows(place.widen(updates).reshape(-1, inner), indices, size)
        if found is not None:
            return place.like(found.reshape(result), updates)
    indices = _checked(place, indices, size)
    if not math.prod(shape):
        return place.zeros(result, updates)
    batches, outer = math.prod(shape[:batch]), math.prod(shape[batch:axis])
    inner = math.prod(shape[axis + middle :])
    rows = xp.permute_dims(xp.reshape(updates, (batches, outer, -1, inner)), (0, 2, 1, 3))
    rows = xp.reshape(rows, (-1, outer * inner))
    total = add_up(place, rows, _with_batch(place, indices, batches, size), batches * size)
    total = xp.permute_dims(xp.reshape(total, (batches, size, outer, inner)), (0, 2, 1, 3))
    return xp.reshape(total, result)


def _scatter_shape(attributes: Attributes, updates: Any, indices: Any) -> Results:
    _need_indices(indices)
    batch = _batch(attributes["batch_dimensions"])
    middle = indices.shape[batch:]
    axis = axis_of(attributes["axis"], len(updates.shape) - len(middle) + 1)
    if batch > axis or batch > len(indices.shape):
        raise ArgumentError(f"batch_dimensions must be at most the axis and the rank of indices, got {batch}")
    if not compatible(updates.shape[axis : axis + len(middle)], middle) or not compatible(
        updates.shape[:batch], indices.shape[:batch]
    ):
        raise ShapeError(f"updates {shape_text(updates.shape)} do not fit indices {shape_text(indices.shape)} at axis {axis}")
    (size,) = as_shape((attributes["size"],))
    return [((*updates.shape[:axis], size, *updates.shape[axis + len(middle) :]), updates.dtype)]


def _gather_gradient(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    source, indices = operation.inputs
    graph, attributes = operation.graph, operation.attributes
    size = source.shape[attributes["axis"]]

    def of_source() -> Tensor:
        if size is None:
            return graph._one("scatter_like", [gradient, indices, source], dict(attributes))
        return graph._one("scatter", [gradient, indices], {"size": size, **attributes})

    return [of_source, None]


_FIELDS = {"axis": int, "batch_dimensions": int}
rule("gather", _gather_shape, _gather, _gather_gradient, fields=_FIELDS)
rule(
    "scatter",
    _scatter_shape,
    _scatter,
    lambda operation, gradient: [
        lambda: operation.graph.gather(
            gradient, operation.inputs[1], operation.attributes["axis"], operation.attributes["batch_dimensions"]
        ),
        None,
    ],
    fields={"size": int, **_FIELDS},
)
rule(
    "scatter_like",
    lambda attributes, updates, indices, source: [(source.shape, updates.dtype)],
    lambda place, attributes, updates, indices, source: _scatter(
        place, attributes, updates, indices, source.shape[attributes["axis"]]
    ),
    None,
    fields=_FIELDS,
)


# gather_nd sees the tensor as [rows, inner], its indexed leading axes as one


def _leading(attributes: Attributes, shape: Shape, indices: Shape) -> int:
    """How many leading axes of the tensor are named: the batch and those that a row of indices names."""
    last = indices[-1] if indices else None
    if last is None:
        raise ShapeError(f"indices must have a last axis of known size, got {shape_text(indices)}")
    leading = _batch(attributes["batch_dimensions"]) + last
    if leading > len(shape) or attributes["batch_dimensions"] >= len(indices):
        raise ShapeError(f"indices {shape_text(indices)} name {leading} axes of a tensor {shape_text(shape)}")
    return leading


def _gather_nd_shape(attributes: Attributes, source: Any, indices: Any) -> Results:
    _need_indices(indices)
    leading = _leading(attributes, source.shape, indices.shape)
    batch = attributes["batch_dimensions"]
    if not compatible(source.shape[:batch], indices.shape[:batch]):
        raise ShapeError(f"the first {batch} axes of {shape_text(source.shape)} and {shape_text(indices.shape)} differ")
    return [(indices.shape[:-1] + source.shape[leading:], source.dtype)]


def _rows(place: Place, attributes: Attributes, shape: tuple[int, ...], indices: Any) -> tuple[Any, int, int]:
    """The row of every index, how many rows there are, and how wide they are."""
    leading = _leading(attributes, shape, tuple(indices.shape))
    batch = attributes["batch_dimensions"]
    batches = math.prod(shape[:batch])
    flat = place.arange(1)[0] * 0
    for number, size in enumerate(shape[batch:leading]):
        flat = flat * size + _checked(place, indices[..., number], size)
    flat = place.xp.broadcast_to(flat, tuple(indices.shape[:-1]))
    within = math.prod(shape[batch:leading])
    return _with_batch(place, flat, batches, within), batches * within, math.prod(shape[leading:])


def _gather_nd(place: Place, attributes: Attributes, source: Any, indices: Any) -> Any:
    xp, shape = place.xp, tuple(source.shape)
    rows, number, width = _rows(place, attributes, shape, indices)
    result = (*indices.shape[:-1], *shape[_leading(attributes, shape, tuple(indices.shape)) :])
    if not math.prod(result):
        return place.zeros(result, source)
    return xp.reshape(xp.take(xp.reshape(source, (number, width)), rows, axis=0), result)


def _scatter_nd_like(place: Place, attributes: Attributes, updates: Any, indices: Any, source: Any) -> Any:
    rows, number, width = _rows(place, attributes, tuple(source.shape), indices)
    flat = place.xp.reshape(updates, (rows.shape[0], width)) if math.prod(updates.shape) else place.zeros((0, width), updates)
    return place.xp.reshape(add_up(place, flat, rows, number), tuple(source.shape))


rule(
    "gather_nd",
    _gather_nd_shape,
    _gather_nd,
    lambda operation, gradient: [
        lambda: operation.graph._one(
            "scatter_nd_like", [gradient, operation.inputs[1], operation.inputs[0]], dict(operation.attributes)
        ),
        None,
    ],
    fields={"batch_dimensions": int},
)
rule(
    "scatter_nd_like",
    lambda attributes, updates, indices, source: [(source.shape, updates.dtype)],
    _scatter_nd_like,
    None,
    fields={"batch_dimensions": int},
)


def _one_hot_shape(attributes: Attributes, indices: Any) -> Results:
    _need_indices(indices)
    axis = axis_of(attributes["axis"], len(indices.shape) + 1)
    (depth,) = as_shape((attributes["depth"],))
    return [((*indices.shape[:axis], depth, *indices.shape[axis:]), as_dtype(attributes["dtype"]))]


def one_hot(place: Place, attributes: Attributes, indices: Any) -> Any:
    xp, axis = place.xp, attributes["axis"]
    classes = xp.astype(place.arange(attributes["depth"]), indices.dtype, copy=False)
    shape = [1] * (len(indices.shape) + 1)
    shape[axis] = attributes["depth"]
    return place.cast(xp.expand_dims(indices, axis=axis) == xp.reshape(classes, tuple(shape)), attributes["dtype"])


rule("one_hot", _one_hot_shape, one_hot, no_gradient, fields={"depth": int, "axis": int, "dtype": np.dtype})
