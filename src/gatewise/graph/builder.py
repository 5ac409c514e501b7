"""How operations enter a graph: names, lines of user code, control dependencies, shape checks."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import arrays
from ..errors import ArgumentError, DTypeError, GatewiseError
from .rules import RULES
from .tensor import FLOATING, DType, Operation, Tensor, TensorLike, as_dtype

if TYPE_CHECKING:
    from .graph import Graph

# Frames that are not the user's: ours, and those between ours where a `with` block of ours is entered or left.
_OURS = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep, contextlib.__file__)


def user_line() -> tuple[str, int]:
    """File and line of the innermost call that is not gatewise's own."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_OURS) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def located(error: GatewiseError, kind: str, name: str, line: tuple[str, int]) -> GatewiseError:
    """The same error, saying which operation it is about and which line made that."""
    subject = kind if name in ("", kind) else f"{kind} '{name}'"
    text = str(error).removeprefix(f"{kind}: ")
    return type(error)(f"{subject}: {text} (made at {line[0]}:{line[1]})")


class Builder:
    """The part of a graph that the families of operations build on."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._names: dict[str, int] = {}  # a name and how often it was asked for
        self._control: tuple[Operation, ...] = ()
        self._scope = ""
        self._line: tuple[str, int] | None = None  # set while many operations are made for one line
        self._lock = threading.RLock()

    def _add(
        self, kind: str, inputs: Sequence[Tensor], attributes: dict[str, Any] | None = None, name: str | None = None
    ) -> Operation:
        """Append an operation whose inputs are tensors of this graph and whose attributes are clean."""
        rule = RULES[kind]
        attributes = attributes or {}
        line = self._line or user_line()
        for tensor in inputs:
            if tensor.operation.graph is not self:
                raise located(ArgumentError(f"{tensor!r} belongs to another graph"), kind, name or kind, line)
        try:
            results = rule.shape(attributes, *inputs)
        except GatewiseError as error:
            raise located(error, kind, name or kind, line) from None
        with self._lock:
            operation = Operation(
                cast("Graph", self),
                rule,
                len(self._operations),
                self._unique(name, kind, line),
                tuple(inputs),
                attributes,
                self._control,
                line,
            )
            operation.results = tuple(Tensor(operation, place, *result) for place, result in enumerate(results))
            self._operations.append(operation)
        return operation

    def _one(
        self, kind: str, inputs: Sequence[Tensor], attributes: dict[str, Any] | None = None, name: str | None = None
    ) -> Tensor:
        return self._add(kind, inputs, attributes, name).results[0]

    def _unique(self, name: str | None, kind: str, line: tuple[str, int]) -> str:
        if name is not None and (not isinstance(name, str) or not name):
            raise located(DTypeError(f"name must be a text or None, got {name!r}"), kind, "", line)
        wanted = self._scope + (name or kind)
        found = wanted
        while found in self._names:
            number = self._names[wanted] = self._names[wanted] + 1
            found = f"{wanted}_{number}"
        self._names[found] = 0
        return found

    def _refuse(self, kind: str, error: GatewiseError, name: str | None = None) -> GatewiseError:
        """An error about an operation that could not be made."""
        return located(error, kind, name or kind, self._line or user_line())

    @contextmanager
    def _checking(self, kind: str, name: str | None) -> Iterator[None]:
        """Names the operation and the line in errors about its arguments."""
        try:
            yield
        except GatewiseError as error:
            raise self._refuse(kind, error, name) from None

    @contextmanager
    def _made_for(self, scope: str) -> Iterator[None]:
        """Operations made inside belong to the line that called us, and their names start with `scope`."""
        before = self._scope, self._line
        self._scope, self._line = scope, self._line or user_line()
        try:
            yield
        finally:
            self._scope, self._line = before

    def _tensor(self, kind: str, value: TensorLike, dtype: DType | None = None) -> Tensor:
        """The argument of an operation as a tensor; a Python number takes `dtype`, that of the tensors beside it."""
        if isinstance(value, Tensor):
            return value
        if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic):  # np.float64 is a float too
            if dtype is not None and isinstance(value, float) and dtype.name not in FLOATING:
                raise self._refuse(kind, DTypeError(f"the number {value!r} does not fit a tensor of {dtype.name} (cast it)"))
            return self._constant(value, dtype)
        if isinstance(value, (np.ndarray, np.generic)):
            return self._constant(np.asarray(value), None)
        raise self._refuse(kind, DTypeError(f"needs a tensor, a number or a NumPy array, got {type(value).__name__}"))

    def _tensors(self, kind: str, *values: TensorLike) -> list[Tensor]:
        """The arguments as tensors; Python numbers take the dtype of the first tensor or array among them."""
        if all(type(value) is Tensor for value in values):
            return list(cast("tuple[Tensor, ...]", values))
        dtype = next((value.dtype for value in values if isinstance(value, (Tensor, np.ndarray, np.generic))), None)
        return [self._tensor(kind, value, dtype) for value in values]

    def _constant(self, value: Any, dtype: DType | None, name: str | None = None) -> Tensor:
        with self._checking("constant", name):
            array = as_array(value, dtype)
        return self._one("constant", [], {"value": array}, name)


def as_array(value: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """A read-only NumPy copy. Python floats become float32, as the default of a placeholder is."""
    if dtype is not None:
        dtype = as_dtype(dtype)
    if isinstance(value, np.generic):  # before Python's numbers: np.float64 is one
        array = np.array(value)
    elif isinstance(value, (bool, int, float, list, tuple)):
        try:
            array = np.array(value)
            if dtype is None and array.dtype == np.float64:
                dtype = np.dtype(np.float32)
            array = array if dtype is None else array.astype(dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise DTypeError(f"{value!r} cannot be made an array: {error}") from error
    else:
        array = np.array(arrays.NUMPY.read("constant", "value", value))
    if dtype is not None and array.dtype != dtype:
        array = array.astype(dtype)
    as_dtype(array.dtype)
    array.flags.writeable = False
    return array
