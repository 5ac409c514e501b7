"""Where values come from and where they are kept: placeholders, constants, variables; casts, shapes and order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engines import ordinary
from ...errors import ArgumentError, DTypeError, ShapeError
from ..builder import Builder, as_array
from ..place import Place
from ..rules import Attributes, InputGradient, Results, no_gradient, rule
from ..shapes import INDEX, axis_of, broadcast, compatible, same
from ..tensor import FLOATING, Operation, Tensor, as_dtype, as_shape, shape_text

if TYPE_CHECKING:
    pass


class Data(Builder):
    """Placeholders, constants, variables, casts, shape queries and control dependencies."""

    def placeholder(self, shape: Sequence[int | None], dtype: Any = np.float32, name: str | None = None) -> Tensor:
        """A tensor fed at each run. None stands for a size that may differ from run to run."""
        with self._checking("placeholder", name):
            attributes = {"shape": as_shape(shape), "dtype": as_dtype(dtype)}
        return self._one("placeholder", [], attributes, name)

    def constant(self, value: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """A fixed array; a copy is kept. Python floats become float32 unless `dtype` says otherwise."""
        return self._constant(value, dtype, name)

    def variable(self, value: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """A tensor that keeps its value between runs. Used as a tensor it is its value at the start of the run."""
        with self._checking("variable", name):
            array = as_array(value, dtype)
        operation = self._add("variable", [], {"shape": array.shape, "dtype": array.dtype}, name)
        self._values[operation] = array
        return operation.results[0]

    def read_variable(self, variable: Tensor, name: str | None = None) -> Tensor:
        """The variable's value at this point: after every assignment of the same run that was made before it."""
        self._need_variable("read_variable", variable)
        return self._one("read_variable", [variable], {}, name)

    def assign(self, variable: Tensor, value: Any, name: str | None = None) -> Operation:
        """Give the variable a new value, kept when the whole run has succeeded. Run it through `operations=`."""
        self._need_variable("assign", variable)
        return self._add("assign", [variable, self._tensor("assign", value, variable.dtype)], {}, name)

    def cast(self, tensor: Tensor, dtype: Any, name: str | None = None) -> Tensor:
        with self._checking("cast", name):
            attributes = {"dtype": as_dtype(dtype)}
        return self._one("cast", [self._tensor("cast", tensor)], attributes, name)

    def shape_of(self, tensor: Tensor, name: str | None = None) -> Tensor:
        """The sizes of the tensor, int64 `[rank]`."""
        return self._one("shape_of", [tensor], {}, name)

    def dimension_size(self, tensor: Tensor, axis: int, name: str | None = None) -> Tensor:
        """One size of the tensor, an int64 scalar."""
        with self._checking("dimension_size", name):
            attributes = {"axis": axis_of(axis, tensor.rank)}
        return self._one("dimension_size", [tensor], attributes, name)

    @contextmanager
    def control_dependency(self, operations: Sequence[Operation | Tensor], name: str | None = None) -> Iterator[None]:
        """Operations made inside the `with` block run only after `operations`, and make those run."""
        found = []
        for item in operations:
            operation = item.operation if isinstance(item, Tensor) else item
            if not isinstance(operation, Operation) or operation.graph is not self:
                raise self._refuse("control_dependency", DTypeError(f"{item!r} is not an operation of this graph"), name)
            found.append(operation)
        before = self._control
        self._control = tuple(dict.fromkeys((*before, *found)))
        try:
            yield
        finally:
            self._control = before

    def zeros_like(self, tensor: Tensor, name: str | None = None) -> Tensor:
        return self._one("filled_like", [tensor], {"value": 0.0}, name)

    def ones_like(self, tensor: Tensor, name: str | None = None) -> Tensor:
        return self._one("filled_like", [tensor], {"value": 1.0}, name)

    # The values of the variables, kept by the graph.
    _values: dict[Operation, Any]

    def _need_variable(self, kind: str, variable: Tensor) -> None:
        if not isinstance(variable, Tensor) or variable.operation.kind != "variable":
            raise self._refuse(kind, ArgumentError(f"needs a variable of this graph, got {variable!r}"))


def _declared(attributes: Attributes) -> Results:
    return [(as_shape(attributes["shape"]), as_dtype(attributes["dtype"]))]


def _never(place: Place, attributes: Attributes, *arrays: Any) -> Any:
    raise AssertionError("the executor handles this operation itself")


def _through(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    return [gradient]


def _assign_shape(attributes: Attributes, variable: Any, value: Any) -> Results:
    if not compatible(value.shape, variable.shape):
        raise ShapeError(f"the variable is {shape_text(variable.shape)}, the value {shape_text(value.shape)}")
    if value.dtype != variable.dtype:
        raise DTypeError(f"the variable is {variable.dtype.name}, the value {value.dtype.name} (cast it)")
    return []


_SHAPED = {"shape": tuple, "dtype": np.dtype}
rule("placeholder", _declared, _never, no_gradient, fields=_SHAPED, view=True, pure=False)
rule("variable", _declared, _never, no_gradient, fields=_SHAPED, view=True, pure=False)
rule("read_variable", same, _never, _through, view=True, pure=False)
rule("assign", _assign_shape, _never, None, pure=False)
rule(
    "constant",
    lambda attributes: [(attributes["value"].shape, as_dtype(attributes["value"].dtype))],
    lambda place, attributes: place.move(attributes["value"]),
    no_gradient,
    fields={"value": np.ndarray},
    view=True,
)


def _cast_gradient(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    (source,) = operation.inputs
    if source.dtype.name not in FLOATING or gradient.dtype.name not in FLOATING:
        return [None]
    return [lambda: gradient.graph.cast(gradient, source.dtype)]


rule(
    "cast",
    lambda attributes, source: [(source.shape, as_dtype(attributes["dtype"]))],
    lambda place, attributes, source: place.cast(source, attributes["dtype"]),
    _cast_gradient,
    fields={"dtype": np.dtype},
    view=True,
)

rule(
    "shape_of",
    lambda attributes, source: [((len(source.shape),), INDEX)],
    lambda place, attributes, source: place.xp.asarray(list(source.shape), dtype=place.xp.int64, device=place.device),
    no_gradient,
    of_shape=True,
)


def _dimension_shape(attributes: Attributes, source: Any) -> Results:
    axis_of(attributes["axis"], len(source.shape))
    return [((), INDEX)]


rule(
    "dimension_size",
    _dimension_shape,
    lambda place, attributes, source: place.xp.asarray(
        source.shape[attributes["axis"]], dtype=place.xp.int64, device=place.device
    ),
    no_gradient,
    fields={"axis": int},
    of_shape=True,
)

rule(
    "filled_like",
    same,
    lambda place, attributes, source: place.full(tuple(source.shape), attributes["value"], source),
    no_gradient,
    fields={"value": float},
    of_shape=True,
)


# What the differentiation needs besides: sums over broadcast axes, shapes known only when the graph runs.


def sum_to(place: Place, array: Any, shape: tuple[int, ...]) -> Any:
    """Sum over the axes that broadcasting added or stretched."""
    if tuple(array.shape) == shape:
        return array
    xp = place.xp
    added = len(array.shape) - len(shape)
    axes = tuple(range(added)) + tuple(
        axis + added for axis, size in enumerate(shape) if size == 1 and array.shape[axis + added] != 1
    )
    total = ordinary.sums(array, axes) if axes and place.is_numpy else None
    if total is None:
        total = xp.sum(place.widen(array), axis=axes, keepdims=True) if axes else array
    return xp.reshape(place.like(total, array), shape)


def _sum_like_shape(attributes: Attributes, source: Any, reference: Any) -> Results:
    if not compatible(broadcast(source.shape, reference.shape), source.shape):
        raise ShapeError(f"{shape_text(source.shape)} does not sum to {shape_text(reference.shape)}")
    return [(reference.shape, source.dtype)]


rule(
    "sum_like",
    _sum_like_shape,
    lambda place, attributes, source, reference: sum_to(place, source, tuple(reference.shape)),
    lambda operation, gradient: [lambda: broadcast_like(gradient, operation.inputs[0]), None],
    view=True,
)


def _broadcast_like_shape(attributes: Attributes, source: Any, reference: Any) -> Results:
    if not compatible(broadcast(source.shape, reference.shape), reference.shape):
        raise ShapeError(f"{shape_text(source.shape)} does not broadcast to {shape_text(reference.shape)}")
    return [(reference.shape, source.dtype)]


rule(
    "broadcast_like",
    _broadcast_like_shape,
    lambda place, attributes, source, reference: place.xp.broadcast_to(source, tuple(reference.shape)),
    lambda operation, gradient: [gradient, None],
    view=True,
    broadcasts=True,
)


def broadcast_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """The tensor broadcast to the shape the reference has when the graph runs."""
    return tensor.graph._one("broadcast_like", [tensor, reference])


def sum_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """The tensor summed over the axes along which the reference was broadcast; itself where there are none."""
    if tensor.shape == reference.shape and None not in tensor.shape:
        return tensor
    return tensor.graph._one("sum_like", [tensor, reference])
