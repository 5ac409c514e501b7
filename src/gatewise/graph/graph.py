"""`Graph`: symbolic tensors made by methods, then differentiated, run, compiled, looked at."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError, DTypeError, GatewiseError, ShapeError
from . import autodiff, ops
from .builder import Builder, as_array
from .executable import Executable
from .place import Place, check_feed, decide, dtype_of, is_array
from .plan import Observer, Plan
from .shapes import compatible, merged
from .tensor import Operation, ShapedType, Tensor, shape_text

if TYPE_CHECKING:
    from .profile import Profile

_PLANS = 64  # kept, the oldest dropped first


class Graph(
    ops.Data,
    ops.Recurrent,
    ops.Matrix,
    ops.Arithmetic,
    ops.Unary,
    ops.Activations,
    ops.SoftMax,
    ops.Reductions,
    ops.Shaping,
    ops.Pieces,
    ops.Indexing,
    ops.Random,
    ops.Optimizers,
    Builder,
):
    """A graph of operations. Its methods make tensors; `run` computes them where the fed arrays are.

    Operations run in the order they were made. Variables keep their values between runs; a run that fails changes none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[Operation, Any] = {}  # of the variables: immutable arrays, replaced when assigned
        self._moved: dict[tuple[Operation, Place], tuple[Any, Any]] = {}  # value and its copy in another place
        self._plans: dict[Any, Plan] = {}
        self._values_lock = threading.Lock()
        self._assigning = threading.RLock()  # held through runs that assign, so that none loses another's update
        self._run_number = 0

    @property
    def operations(self) -> list[Operation]:
        """All operations, in the order they were made."""
        return list(self._operations)

    @property
    def variables(self) -> list[Tensor]:
        """All variables, in the order they were made."""
        return [operation.results[0] for operation in self._values]

    @property
    def random_state(self) -> int:
        """How many runs have drawn random numbers: with the seeds, what the next run draws. Set it to draw again."""
        return self._run_number

    @random_state.setter
    def random_state(self, number: int) -> None:
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or not 0 <= number < 2**64:
            raise ArgumentError(f"random_state must be a whole number from 0 to 2**64 - 1, got {number!r}")
        self._run_number = int(number)

    def variable_values(self) -> dict[str, Any]:
        """The current value of every variable, by name, as NumPy copies."""
        from .place import to_numpy

        with self._values_lock:
            values = dict(self._values)
        return {operation.name: np.array(to_numpy(value)) for operation, value in values.items()}

    def set_variable_values(self, values: Mapping[str, Any]) -> None:
        """Give variables new values, by name; all of them or, if one does not fit, none."""
        by_name = {operation.name: operation for operation in self._values}
        found: dict[Operation, Any] = {}
        for name, value in values.items():
            if name not in by_name:
                raise ArgumentError(f"set_variable_values: there is no variable '{name}'")
            variable = by_name[name].results[0]
            array = as_array(value, None)
            if array.shape != variable.shape or array.dtype != variable.dtype:
                raise ShapeError(
                    f"set_variable_values: '{name}' is {ShapedType(variable.shape, variable.dtype)}, "
                    f"got {ShapedType(array.shape, array.dtype)}"
                )
            found[by_name[name]] = array
        with self._assigning, self._values_lock:
            self._values.update(found)

    def gradients(self, of: Tensor, with_respect_to: Sequence[Tensor], name: str | None = None) -> dict[Tensor, Tensor]:
        """For each tensor the gradient of `of`, or of the sum of its elements."""
        wanted = list(with_respect_to)
        for tensor in (of, *wanted):
            self._own(tensor, "gradients")
        with self._made_for(f"{name or 'gradients'}/"):
            return autodiff.gradients(of, wanted)

    def run(
        self,
        feeds: Mapping[Tensor, Any] | None = None,
        targets: Sequence[Tensor] = (),
        operations: Sequence[Operation] = (),
    ) -> dict[Tensor, Any]:
        """Compute `targets` and run `operations`, with arrays for the placeholders; the results are where the feeds are."""
        given = {tensor: (None, array) for tensor, array in (feeds or {}).items()}
        targets = list(targets)
        return dict(zip(targets, self._run("run", given, targets, operations), strict=True))

    def compile(
        self,
        feeds: Mapping[Tensor, ShapedType] | None = None,
        targets: Sequence[Tensor] = (),
        operations: Sequence[Operation] = (),
    ) -> Executable:
        """Check the graph with these shapes and make an executable of it."""
        feeds = dict(feeds or {})
        for tensor, kind in feeds.items():
            self._placeholder(tensor, "compile")
            if not isinstance(kind, ShapedType):
                raise DTypeError(f"compile: {tensor!r} needs a ShapedType, got {kind!r}")
            self._fits("compile", tensor, None, kind.shape, kind.dtype)
        targets, operations = list(targets), list(operations)
        plan = self._plan("compile", targets, operations, decide([], []))
        self._need_all("compile", plan, feeds)
        plan.check([merged(tensor.shape, feeds[tensor].shape) for tensor in plan.placeholders])
        return Executable(self, feeds, targets, operations)

    def profile(
        self, feeds: Mapping[Tensor, Any] | None = None, targets: Sequence[Tensor] = (), operations: Sequence[Operation] = ()
    ) -> Profile:
        """Run once without keeping assignments, and tell for each operation how long it took and what it made."""
        from .profile import Profile

        profile = Profile()
        given = {tensor: (None, array) for tensor, array in (feeds or {}).items()}
        self._run("profile", given, list(targets), operations, profile.observe)
        return profile

    def __str__(self) -> str:
        from .drawing import table

        return table(self)

    def __repr__(self) -> str:
        return f"<Graph of {len(self._operations)} operations>"

    def _repr_svg_(self) -> str:
        from .drawing import svg

        return svg(self)

    # Running

    def _run(
        self,
        caller: str,
        feeds: Mapping[Tensor, tuple[ShapedType | None, Any]],
        targets: Sequence[Tensor],
        operations: Sequence[Operation],
        observe: Observer | None = None,
    ) -> list[Any]:
        """The arrays of the targets. A feed comes with the type it was compiled for, if any."""
        arrays: dict[Tensor, Any] = {}
        for tensor, (kind, value) in feeds.items():
            self._placeholder(tensor, caller)
            arrays[tensor] = self._feed(caller, tensor, kind, value)
        place = decide(list(arrays.values()), [] if arrays else list(self._values.values()))
        plan = self._plan(caller, targets, operations, place)
        self._need_all(caller, plan, arrays)
        fed = [arrays[tensor] for tensor in plan.placeholders]
        shapes = tuple([tuple(array.shape) for array in fed])
        if shapes not in plan.checked:
            plan.check(shapes)
        fed = [place.move(array) for array in fed]
        if not plan.assigns:
            return self._execute(plan, fed, observe)[0]
        with self._assigning:
            results, pending = self._execute(plan, fed, observe)
            if observe is None:
                with self._values_lock:
                    self._values.update(pending)
            return results

    def _execute(self, plan: Plan, fed: list[Any], observe: Observer | None) -> tuple[list[Any], dict[Operation, Any]]:
        with self._values_lock:
            values = [self._values[operation] for operation in plan.variables]
            number = self._run_number
            self._run_number += plan.random
        values = [self._here(operation, value, plan.place) for operation, value in zip(plan.variables, values, strict=True)]
        try:
            return plan.run(fed, values, number, observe)
        except BaseException:
            with self._values_lock:
                if plan.random and self._run_number == number + 1:
                    self._run_number = number
            raise

    def _here(self, operation: Operation, value: Any, place: Place) -> Any:
        """A variable's value where the run computes; copied there once per value."""
        if place.is_numpy and isinstance(value, np.ndarray):
            return value
        known = self._moved.get((operation, place))
        if known is None or known[0] is not value:
            known = self._moved[operation, place] = value, place.move(value)
        return known[1]

    def _plan(self, caller: str, targets: Sequence[Tensor], operations: Sequence[Operation], place: Place) -> Plan:
        key = tuple(targets), tuple(operations), place
        plan = self._plans.get(key)
        if plan is None:
            for tensor in targets:
                self._own(tensor, caller)
            for operation in operations:
                if not isinstance(operation, Operation) or operation.graph is not self:
                    raise DTypeError(f"{caller}: {operation!r} is not an operation of this graph")
            with self._lock:
                plan = Plan(targets, operations, place)
                while len(self._plans) >= _PLANS:
                    self._plans.pop(next(iter(self._plans)))
                self._plans[key] = plan
        return plan

    def _own(self, tensor: Any, caller: str) -> None:
        if not isinstance(tensor, Tensor) or tensor.operation.graph is not self:
            raise DTypeError(f"{caller}: {tensor!r} is not a tensor of this graph")

    def _placeholder(self, tensor: Any, caller: str) -> None:
        self._own(tensor, caller)
        if tensor.operation.kind != "placeholder":
            raise ArgumentError(f"{caller}: only placeholders can be fed, not {tensor!r}")

    def _feed(self, caller: str, tensor: Tensor, kind: ShapedType | None, value: Any) -> Any:
        if type(value) is not np.ndarray:
            try:
                if not is_array(value):
                    value = as_array(value, tensor.dtype)
                check_feed(value)
            except GatewiseError as error:
                raise type(error)(f"{caller}: the feed of '{tensor.name}' {error}") from None
        self._fits(caller, tensor, kind, value.shape, dtype_of(value))
        return value

    def _fits(self, caller: str, tensor: Tensor, kind: ShapedType | None, shape: Any, dtype: Any) -> None:
        for wanted in (tensor,) if kind is None else (tensor, kind):
            if dtype == wanted.dtype and shape == wanted.shape:
                continue
            if dtype != wanted.dtype:
                raise DTypeError(f"{caller}: '{tensor.name}' is {wanted.dtype.name}, got {dtype.name}{_made(tensor)}")
            if not compatible(shape, wanted.shape):
                raise ShapeError(
                    f"{caller}: '{tensor.name}' is {shape_text(wanted.shape)}, got {shape_text(tuple(shape))}{_made(tensor)}"
                )

    def _need_all(self, caller: str, plan: Plan, feeds: Mapping[Tensor, Any]) -> None:
        for tensor in plan.placeholders:
            if tensor not in feeds:
                raise ArgumentError(f"{caller}: placeholder '{tensor.name}' needs a feed{_made(tensor)}")


def _made(tensor: Tensor) -> str:
    file, line = tensor.operation.line
    return f" (made at {file}:{line})"
