"""What a graph is made of: operations, the tensors they produce, and the shaped types that describe tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from ..arrays import bfloat16
from ..errors import ArgumentError, DTypeError, ShapeError

if TYPE_CHECKING:
    from .graph import Graph
    from .rules import Rule

DType: TypeAlias = "np.dtype[Any]"
Shape: TypeAlias = tuple[int | None, ...]  # None: a size known only when the graph runs

FLOATING = frozenset(("float16", "bfloat16", "float32", "float64"))
INTEGER = frozenset(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"))
_DTYPES = FLOATING | INTEGER | {"bool"}
_FLOAT32 = np.dtype(np.float32)


def as_dtype(value: Any) -> DType:
    """The NumPy dtype meant by `value`; only those a graph computes with."""
    if isinstance(value, str) and value == "bfloat16":
        return bfloat16()
    try:
        dtype: DType = np.dtype(value)
    except TypeError as error:
        raise DTypeError(f"dtype must be a NumPy dtype, got {value!r}") from error
    if dtype.name not in _DTYPES or not dtype.isnative:
        raise DTypeError(f"dtype must be one of {', '.join(sorted(_DTYPES))}, got {dtype}")
    return dtype


def as_shape(value: Any) -> Shape:
    """A tuple of sizes, each a number of at least 0 or None."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ShapeError(f"a shape must be a sequence of sizes, got {value!r}")
    sizes: list[int | None] = []
    for size in value:
        if size is None:
            sizes.append(None)
        elif isinstance(size, (int, np.integer)) and not isinstance(size, bool) and size >= 0:
            sizes.append(int(size))
        else:
            raise ShapeError(f"a size must be a whole number of at least 0, or None where it is unknown; got {size!r}")
    return tuple(sizes)


def shape_text(shape: Shape) -> str:
    """`[?, 8, 128]`: a question mark for every unknown size."""
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


@dataclass(frozen=True, slots=True)
class ShapedType:
    """A shape, None for every size that is unknown, and a dtype."""

    shape: Shape
    dtype: DType = _FLOAT32

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", as_shape(self.shape))
        object.__setattr__(self, "dtype", as_dtype(self.dtype))

    def __str__(self) -> str:
        return f"{self.dtype.name}{shape_text(self.shape)}"


class Operation:
    """One step of a graph. Operations are numbered in the order they were made, which is also the order they run in."""

    __slots__ = ("attributes", "control", "graph", "inputs", "line", "name", "number", "results", "rule")

    def __init__(
        self,
        graph: Graph,
        rule: Rule,
        number: int,
        name: str,
        inputs: tuple[Tensor, ...],
        attributes: dict[str, Any],
        control: tuple[Operation, ...],
        line: tuple[str, int],
    ) -> None:
        self.graph = graph
        self.rule = rule
        self.number = number
        self.name = name
        self.inputs = inputs
        self.attributes = attributes
        self.control = control  # operations that have to run before this one
        self.line = line  # of the user's code: file and line number
        self.results: tuple[Tensor, ...] = ()

    @property
    def kind(self) -> str:
        """What it does: `addition`, `lstm`, ..."""
        return self.rule.kind

    def __repr__(self) -> str:
        return f"<Operation {self.name!r}: {self.kind}>"


class Tensor:
    """A value of a graph that has not been computed yet: one result of an operation."""

    __slots__ = ("dtype", "index", "operation", "shape")
    __array_ufunc__ = None  # so that `array + tensor` asks the tensor

    def __init__(self, operation: Operation, index: int, shape: Shape, dtype: DType) -> None:
        self.operation = operation
        self.index = index
        self.shape = shape
        self.dtype = dtype

    @property
    def graph(self) -> Graph:
        return self.operation.graph

    @property
    def name(self) -> str:
        return f"{self.operation.name}:{self.index}" if self.index else self.operation.name

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r}: {self.dtype.name}{shape_text(self.shape)}>"

    def __bool__(self) -> bool:
        raise ArgumentError(f"{self!r} has no value until the graph runs, so it cannot decide an `if`")

    def __len__(self) -> int:
        if not self.shape or self.shape[0] is None:
            raise ShapeError(f"{self!r} has no known length")
        return self.shape[0]

    def __iter__(self) -> Any:
        raise ArgumentError(f"{self!r} cannot be looped over (split or slice it)")

    def __add__(self, other: TensorLike) -> Tensor:
        return self.graph.addition(self, other)

    def __radd__(self, other: TensorLike) -> Tensor:
        return self.graph.addition(other, self)

    def __sub__(self, other: TensorLike) -> Tensor:
        return self.graph.subtraction(self, other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        return self.graph.subtraction(other, self)

    def __mul__(self, other: TensorLike) -> Tensor:
        return self.graph.multiplication(self, other)

    def __rmul__(self, other: TensorLike) -> Tensor:
        return self.graph.multiplication(other, self)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return self.graph.division(self, other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return self.graph.division(other, self)

    def __matmul__(self, other: TensorLike) -> Tensor:
        return self.graph.matrix_multiplication(self, other)

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return self.graph.matrix_multiplication(other, self)

    def __neg__(self) -> Tensor:
        return self.graph.negative(self)

    def __getitem__(self, key: Any) -> Tensor:
        """Slices, whole numbers (which drop their axis), `...` and None (a new axis), as in NumPy."""
        parts = list(key) if isinstance(key, tuple) else [key]
        given = sum(1 for part in parts if part is not None and part is not Ellipsis)
        if given > self.rank:
            raise ShapeError(f"{self!r} has {self.rank} axes, too few for {given} indices")
        if parts.count(Ellipsis) > 1:
            raise ArgumentError(f"{self!r}: only one ... may be used")
        place = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
        parts[place : place + 1] = [slice(None)] * (self.rank - given)

        starts: list[int | None] = []
        ends: list[int | None] = []
        strides: list[int] = []
        dropped: list[int] = []
        added: list[int] = []
        kept = 0  # axes of the result so far
        for part in parts:
            if part is None:
                added.append(kept)
                kept += 1
            elif isinstance(part, slice):
                starts.append(part.start)
                ends.append(part.stop)
                strides.append(1 if part.step is None else part.step)
                kept += 1
            elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
                axis, number = len(starts), int(part)
                size = self.shape[axis]
                if size is not None and not -size <= number < size:
                    raise ArgumentError(f"{self!r}: index {number} is out of range for axis {axis}")
                dropped.append(axis)
                starts.append(number)
                ends.append(None if number == -1 else number + 1)
                strides.append(1)
            else:
                raise DTypeError(f"{self!r}: an index must be a whole number, a slice, ... or None; got {part!r}")
        graph, result = self.graph, self
        if any(part is not None and part != slice(None) for part in parts):
            result = graph.slice(result, starts, ends, strides)
        if dropped:
            result = graph.squeeze(result, dropped)
        if added:
            result = graph.expand_dims(result, added)
        return result


TensorLike: TypeAlias = Union[Tensor, float, int, bool, "np.ndarray[Any, Any]", "np.generic"]
