"""`Problem`: one checked call, in the form every engine takes. Building one is where all argument checks are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import arrays
from .cells import Cell, Descriptor, activations_of, cell_of, order_of
from .errors import ArgumentError, DTypeError, ShapeError

Array = Any  # a NumPy array, or what another engine's `arrays` kind hands out; has .shape and .dtype

_FLOATING = frozenset(np.dtype(name) for name in ("float32", "float16", "float64"))  # and bfloat16, which is not NumPy's own


@dataclass(slots=True)
class Problem:
    """A call whose arguments have been checked. Arrays are None where they were not given."""

    operation: str
    cell: Cell
    descriptor: Descriptor
    T: int
    N: int
    I: int  # noqa: E741  the field's own letter
    H: int
    dtype: np.dtype[Any]
    source: Array
    recurrent_weight: Array
    input_weight: Array = None
    bias: Array = None
    init_state: Array = None
    init_cell: Array = None
    mask: Array = None  # in the shape it was given; broadcasts to [T, N, D*H]
    peephole: Array = None
    secondary_bias: Array = None
    lengths: Array = None
    resets: Array = None
    # gradient calls only
    source_gradient: Array = None
    state_gradient: Array = None
    cell_gradient: Array = None
    z_state: Array = None
    cell_output: Array = None
    output: Array = None
    # gradients of the cell result at every step and of z_state: only the graph's differentiation asks for them
    cell_sequence_gradient: Array = None
    z_state_gradient: Array = None
    # set by an engine that can: runs the call again on other arguments of the same layout, given by name; None if it cannot
    again: Callable[[dict[str, Any]], list[Any] | None] | None = None
    # or: notes the call under its operation, descriptor and arguments, so that the engine knows it when it comes again
    note: Callable[[str, Any, dict[str, Any]], None] | None = None

    @property
    def D(self) -> int:
        """Number of directions."""
        return 2 if self.descriptor.bidirectional else 1

    @property
    def G(self) -> int:
        """Number of gates."""
        return len(self.cell.gates)

    @property
    def backwards(self) -> tuple[bool, ...]:
        """For each direction, whether it runs from the last step to the first."""
        return (False, True) if self.descriptor.bidirectional else (self.descriptor.reverse,)

    @property
    def activations(self) -> tuple[int, ...]:
        return activations_of(self.descriptor)

    @property
    def order(self) -> tuple[int, ...]:
        """The packed slot of each of the cell's gates."""
        return order_of(self.descriptor)


def _numbers(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"


def shape_error(
    operation: str, name: str, letters: str, expected: tuple[int, ...], given: tuple[int, ...], hint: str = ""
) -> ShapeError:
    """`lstm: bias must be [4·H] = [256], got [64] (hint)`."""
    suffix = f" ({hint})" if hint else ""
    return ShapeError(f"{operation}: {name} must be {letters} = {_numbers(expected)}, got {_numbers(given)}{suffix}")


class _Checker:
    """Checks the arguments of one call against each other and gathers them into a `Problem`."""

    def __init__(self, operation: str, descriptor: Descriptor, kind: arrays.Kind) -> None:
        self.operation = operation
        self.descriptor = descriptor
        self.kind = kind
        self.dtype: np.dtype[Any] | None = None
        self.two = descriptor.bidirectional

    def floating(self, name: str, value: Any) -> Array:
        """The argument as a floating array of the call's one dtype, its shape not checked yet."""
        array = self.kind.read(self.operation, name, value)
        if self.dtype is None:
            if array.dtype not in _FLOATING and array.dtype.name != "bfloat16":
                raise DTypeError(f"{self.operation}: {name} must be float32, float16, bfloat16 or float64, got {array.dtype}")
            self.dtype = array.dtype
        elif array.dtype != self.dtype:
            raise DTypeError(
                f"{self.operation}: {name} must be {self.dtype} like source, got {array.dtype} "
                "(all floating arguments of a call share one dtype)"
            )
        return array

    def exact(self, name: str, value: Any, letters: str, expected: tuple[int, ...], hint: str = "") -> Array:
        """The argument as a floating array of exactly this shape; None stays None."""
        if value is None:
            return None
        array = self.floating(name, value)
        if array.shape != expected:
            if not hint and len(expected) == 2 and array.shape == expected[::-1]:
                hint = "did you pass its transpose?"
            raise shape_error(self.operation, name, letters, expected, array.shape, hint)
        return array

    def required(self, name: str, value: Any, letters: str, expected: tuple[int, ...], hint: str) -> Array:
        if value is None:
            raise ArgumentError(f"{self.operation}: {name} is missing: {hint}")
        return self.exact(name, value, letters, expected, hint)

    def hidden_size(self, recurrent_weight: Array, gates: int) -> int:
        shape = recurrent_weight.shape
        rows = f"{gates}·H" if gates > 1 else "H"
        letters = f"[2, {rows}, H]" if self.two else f"[{rows}, H]"
        rank = 3 if self.two else 2
        if len(shape) != rank:
            hint = ""
            if len(shape) == 3 and shape[0] == 2:
                hint = "two directions: set bidirectional=True in the descriptor"
            elif self.two and len(shape) == 2:
                hint = "bidirectional stacks the forward and the backward weight"
            suffix = f" ({hint})" if hint else ""
            raise ShapeError(
                f"{self.operation}: recurrent_weight must be {letters}, of rank {rank}, got {_numbers(shape)}{suffix}"
            )
        hidden = shape[-1]
        transposed = gates > 1 and shape[-2] * gates == shape[-1]
        if transposed:
            hidden = shape[-2]
        expected = (2, gates * hidden, hidden) if self.two else (gates * hidden, hidden)
        if shape != expected:
            hint = "did you pass its transpose?" if transposed else ""
            raise shape_error(self.operation, "recurrent_weight", letters, expected, shape, hint)
        if hidden == 0:
            raise ShapeError(f"{self.operation}: recurrent_weight must have H of at least 1, got {_numbers(shape)}")
        return int(hidden)

    def per_row(self, name: str, value: Any, N: int, H: int) -> Array:
        """An initial state or a final gradient: [N, H], also [1, N, H]; [N, 2H] when bidirectional."""
        if value is None:
            return None
        array = self.floating(name, value)
        if self.two:
            if array.shape != (N, 2 * H):
                hint = "the two directions side by side, not stacked" if array.shape == (2, N, H) else ""
                raise shape_error(self.operation, name, "[N, 2·H]", (N, 2 * H), array.shape, hint)
        elif array.shape not in ((N, H), (1, N, H)):
            raise shape_error(self.operation, name, "[N, H]", (N, H), array.shape)
        return array

    def mask(self, value: Any, T: int, N: int, width: int) -> Array:
        if value is None:
            return None
        array = self.floating("mask", value)
        full = (T, N, width)
        shape = array.shape
        if len(shape) > 3 or any(a not in (1, b) for a, b in zip(shape[::-1], full[::-1], strict=False)):
            letters = "[T, N, 2·H]" if self.two else "[T, N, H]"
            raise ShapeError(f"{self.operation}: mask must broadcast to {letters} = {_numbers(full)}, got {_numbers(shape)}")
        return array

    def lengths(self, value: Any, T: int, N: int) -> Array:
        if value is None:
            return None
        array = self.kind.read(self.operation, "lengths", value)
        if array.dtype.kind not in "iu":
            raise DTypeError(f"{self.operation}: lengths must be an integer array, got {array.dtype}")
        if array.shape != (N,):
            raise shape_error(self.operation, "lengths", "[N]", (N,), array.shape)
        if isinstance(array, np.ndarray) and N and (int(array.min()) < 0 or int(array.max()) > T):
            worst = array[(array < 0) | (array > T)][0]
            raise ArgumentError(f"{self.operation}: lengths must each be from 0 to T = {T}, got {worst}")
        return array

    def resets(self, value: Any, T: int, N: int) -> Array:
        if value is None:
            return None
        array = self.kind.read(self.operation, "resets", value)
        if array.dtype.kind != "b":
            raise DTypeError(
                f"{self.operation}: resets must be a bool array, got {array.dtype} (compare it with 0 to make one)"
            )
        if array.shape != (T, N):
            raise shape_error(self.operation, "resets", "[T, N]", (T, N), array.shape)
        return array


def make_problem(
    operation: str,
    default: type[Any],
    descriptor: Any,
    given: dict[str, Any],
    gradient: bool,
) -> tuple[Problem, arrays.Kind]:
    """Check a call's arguments (`given`, by name, None where absent) and gather them into a `Problem`."""
    if descriptor is None:
        descriptor = default()
    elif type(descriptor) is not default:
        raise DTypeError(
            f"{operation}: descriptor must be a {default.__name__}, got {descriptor!r} of type {type(descriptor).__name__}"
        )
    for name in ("source", "recurrent_weight"):
        if given[name] is None:
            raise ArgumentError(f"{operation}: {name} is missing")
    kind = arrays.kind_of(operation, "source", given["source"])
    check = _Checker(operation, descriptor, kind)
    cell = cell_of(descriptor, given.get("peephole") is not None)
    G = len(cell.gates)
    D = 2 if descriptor.bidirectional else 1
    d = "2·" if D == 2 else ""
    rows = f"{d}{G}·H" if D * G > 1 else "H"

    source = check.floating("source", given["source"])
    if len(source.shape) != 3:
        raise ShapeError(f"{operation}: source must be [T, N, I], of rank 3, got {_numbers(source.shape)}")
    T, N, I = (int(size) for size in source.shape)  # noqa: E741
    recurrent_weight = check.floating("recurrent_weight", given["recurrent_weight"])
    H = check.hidden_size(recurrent_weight, G)
    input_weight = check.exact("input_weight", given["input_weight"], f"[{rows}, I]", (D * G * H, I))
    if input_weight is None and I != D * G * H:
        raise shape_error(operation, "source", f"[T, N, {rows}]", (T, N, D * G * H), source.shape, "there is no input_weight")
    problem = Problem(
        operation=operation,
        cell=cell,
        descriptor=descriptor,
        T=T,
        N=N,
        I=I,
        H=H,
        dtype=source.dtype,
        source=source,
        recurrent_weight=recurrent_weight,
        input_weight=input_weight,
        bias=check.exact("bias", given["bias"], f"[{rows}]", (D * G * H,)),
        init_state=check.per_row("init_state", given["init_state"], N, H),
        mask=check.mask(given["mask"], T, N, D * H),
        lengths=check.lengths(given["lengths"], T, N),
        resets=check.resets(given["resets"], T, N),
    )
    if cell.has_cell:
        problem.init_cell = check.per_row("init_cell", given["init_cell"], N, H)
        shape = ("[2, 4·H]", (2, 4 * H)) if D == 2 else ("[4·H]", (4 * H,))
        problem.peephole = check.exact("peephole", given["peephole"], *shape)
    secondary_bias = given.get("secondary_bias")
    if secondary_bias is not None:
        if not descriptor.reset_after:
            raise ArgumentError(
                f"{operation}: secondary_bias has a meaning only with reset_after=True in the descriptor, "
                "which is False (leave secondary_bias out, or set reset_after)"
            )
        problem.secondary_bias = check.exact("secondary_bias", secondary_bias, f"[{d}H]", (D * H,))
    if gradient:
        _gradient_arguments(check, problem, given, rows, d)
    return problem, kind


def _gradient_arguments(check: _Checker, problem: Problem, given: dict[str, Any], rows: str, d: str) -> None:
    T, N, H, width = problem.T, problem.N, problem.H, problem.D * problem.H
    forward = problem.operation.removesuffix("_gradients")
    problem.source_gradient = check.required(
        "source_gradient", given["source_gradient"], f"[T, N, {d}H]", (T, N, width), f"the gradient of {forward}'s first result"
    )
    problem.z_state = check.required(
        "z_state",
        given["z_state"],
        f"[T, N, {rows}]",
        (T, N, problem.G * width),
        f"the last result of {forward} with training=True in the descriptor",
    )
    problem.state_gradient = check.per_row("state_gradient", given["state_gradient"], N, H)
    shape = f"[T, N, {d}H]", (T, N, width)
    if problem.cell.has_cell:
        problem.cell_output = check.required(
            "cell_output_fwd", given["cell_output_fwd"], *shape, f"the second result of {forward} with training=True"
        )
        problem.cell_gradient = check.per_row("cell_gradient", given["cell_gradient"], N, H)
        problem.cell_sequence_gradient = check.exact("cell_sequence_gradient", given.get("cell_sequence_gradient"), *shape)
    elif problem.cell.restore is None:
        problem.output = check.required("output_fwd", given["output_fwd"], *shape, f"the first result of {forward}")
    problem.z_state_gradient = check.exact(
        "z_state_gradient", given.get("z_state_gradient"), f"[T, N, {rows}]", (T, N, problem.G * width)
    )
