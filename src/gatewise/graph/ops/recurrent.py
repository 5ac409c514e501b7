"""The six recurrent operations. They run on the engines; here are their shapes and how they are differentiated.

A forward operation always has every result its training form has; the method hands out those the descriptor asks for.
What is computed is decided when the graph runs: z_state and the cell only if something uses them. So a gradient adds
training results to the forward operation, which still runs once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np

from ... import operations
from ...cells import Descriptor
from ...descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from ...errors import DTypeError, GatewiseError, ShapeError, UnsupportedError
from ...problem import make_problem
from ..builder import Builder
from ..place import Place
from ..rules import Attributes, InputGradient, Results, rule
from ..tensor import Operation, Shape, Tensor, shape_text

_DESCRIPTORS: dict[str, type[Any]] = {"lstm": LSTMDescriptor, "gru": GRUDescriptor, "single_gate_rnn": SingleGateRNNDescriptor}
_GATES = {"lstm": 4, "gru": 3, "single_gate_rnn": 1}


def _arguments(operation: str) -> tuple[str, ...]:
    """The arrays that an eager operation takes."""
    return tuple(name for name in signature(getattr(operations, operation)).parameters if name != "descriptor")


_FORWARD = {kind: _arguments(kind) for kind in _DESCRIPTORS}
_GRADIENTS = {kind: (*_arguments(f"{kind}_gradients"), "z_state_gradient") for kind in _DESCRIPTORS}
_GRADIENTS["lstm"] += ("cell_sequence_gradient",)  # these two are of results that the eager operations take no gradient of

_EVERY_STEP = ("source", "resets", "source_gradient", "z_state", "cell_output_fwd", "output_fwd")  # [T, N, ...]
_PER_ROW = ("init_state", "init_cell", "state_gradient", "cell_gradient")  # [N, H]


class Recurrent(Builder):
    """The operations of `gatewise.lstm` and its five companions, on tensors: same arguments, same results."""

    def lstm(
        self,
        source: Tensor,
        recurrent_weight: Tensor,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        init_cell: Tensor | None = None,
        mask: Tensor | None = None,
        peephole: Tensor | None = None,
        *,
        descriptor: LSTMDescriptor | None = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """`[state]`, `[state, cell]` with produce_cell, `[state, cell, z_state]` with training."""
        state, cell, z_state = self._recurrent("lstm", descriptor, name, locals()).results
        if descriptor is not None and descriptor.training:
            return [state, cell, z_state]
        return [state, cell] if descriptor is not None and descriptor.produce_cell else [state]

    def lstm_gradients(
        self,
        source: Tensor,
        recurrent_weight: Tensor,
        source_gradient: Tensor,
        z_state: Tensor,
        cell_output_fwd: Tensor,
        *,
        state_gradient: Tensor | None = None,
        cell_gradient: Tensor | None = None,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        init_cell: Tensor | None = None,
        mask: Tensor | None = None,
        peephole: Tensor | None = None,
        descriptor: LSTMDescriptor | None = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """The gradients of source, recurrent_weight, input_weight, bias, peephole, init_state, init_cell, if given."""
        return list(self._recurrent("lstm_gradients", descriptor, name, locals()).results)

    def gru(
        self,
        source: Tensor,
        recurrent_weight: Tensor,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        mask: Tensor | None = None,
        secondary_bias: Tensor | None = None,
        *,
        descriptor: GRUDescriptor | None = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """`[state]`, `[state, z_state]` with training."""
        results = self._recurrent("gru", descriptor, name, locals()).results
        return list(results if descriptor is not None and descriptor.training else results[:1])

    def gru_gradients(
        self,
        source: Tensor,
        recurrent_weight: Tensor,
        source_gradient: Tensor,
        z_state: Tensor,
        output_fwd: Tensor,
        *,
        state_gradient: Tensor | None = None,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        mask: Tensor | None = None,
        secondary_bias: Tensor | None = None,
        descriptor: GRUDescriptor | None = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """The gradients of source, recurrent_weight, input_weight, bias, init_state and secondary_bias, if given."""
        return list(self._recurrent("gru_gradients", descriptor, name, locals()).results)

    def single_gate_rnn(
        self,
        source: Tensor,
        recurrent_weight: Tensor,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        descriptor: SingleGateRNNDescriptor | None = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """`[state]`, `[state, z_state]` with training."""
        results = self._recurrent("single_gate_rnn", descriptor, name, locals()).results
        return list(results if descriptor is not None and descriptor.training else results[:1])

    def single_gate_rnn_gradients(
        self,
        source: Tensor,
        recurrent_weight: Tensor,
        source_gradient: Tensor,
        z_state: Tensor,
        *,
        state_gradient: Tensor | None = None,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
        init_state: Tensor | None = None,
        mask: Tensor | None = None,
        descriptor: SingleGateRNNDescriptor | None = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """The gradients of source, recurrent_weight, input_weight, bias and init_state, if given."""
        return list(self._recurrent("single_gate_rnn_gradients", descriptor, name, locals()).results)

    def _recurrent(self, kind: str, descriptor: Descriptor | None, name: str | None, given: dict[str, Any]) -> Operation:
        forward = kind.removesuffix("_gradients")
        names = _FORWARD[forward] if kind == forward else _GRADIENTS[forward]
        used = [each for each in names if given.get(each) is not None]
        dtype = given["source"].dtype if isinstance(given["source"], Tensor) else None
        inputs = [self._tensor(kind, given[each], dtype) for each in used]
        default = _DESCRIPTORS[forward]
        if descriptor is None:
            descriptor = default()
        elif type(descriptor) is not default:
            error = DTypeError(
                f"descriptor must be a {default.__name__}, got {descriptor!r} of type {type(descriptor).__name__}"
            )
            raise self._refuse(kind, error, name)
        return self._add(kind, inputs, {"arguments": tuple(used), "descriptor": descriptor}, name)


class _Shapes:
    """The arguments of a call whose T and N may be unknown, as empty arrays that the eager checks can look at."""

    # Stand-ins for unknown sizes; they are written as ? in messages.
    UNKNOWN_T, UNKNOWN_N = 7919, 7907

    def __init__(self, kind: str, attributes: Attributes, inputs: tuple[Any, ...]) -> None:
        self.kind = kind
        self.forward = kind.removesuffix("_gradients")
        self.descriptor: Descriptor = attributes["descriptor"]
        names = (_FORWARD if kind == self.forward else _GRADIENTS)[self.forward]
        arguments = attributes["arguments"]
        if len(arguments) != len(inputs) or len(set(arguments)) != len(arguments) or not set(arguments) <= set(names):
            raise GatewiseError(f"does not take the arguments {', '.join(map(str, arguments))}")
        self.given = dict(zip(arguments, inputs, strict=True))
        steps, rows = dict.fromkeys(_EVERY_STEP, 0), dict.fromkeys(_EVERY_STEP, 1)
        self.T = self._find(self.UNKNOWN_T, {**steps, "mask": -3})
        self.N = self._find(self.UNKNOWN_N, {**rows, **dict.fromkeys(_PER_ROW, -2), "lengths": 0, "mask": -2})

    def _find(self, unknown: int, places: dict[str, int]) -> int:
        """The first known size among the arguments' axes named by `places`."""
        for name, axis in places.items():
            shape = self.given[name].shape if name in self.given else ()
            broadcast = name == "mask" and -len(shape) <= axis and shape[axis] == 1
            if -len(shape) <= axis < len(shape) and shape[axis] is not None and not broadcast:
                return int(shape[axis])
        return unknown

    def stand_in(self, name: str) -> Any:
        """A zero-stride array of the argument's shape, unknown sizes filled with what they should be."""
        if name not in self.given:
            return None
        shape = self.given[name].shape
        if None in shape:
            expected = self._expected(name)
            if len(expected) < len(shape):
                expected = (1,) * (len(shape) - len(expected)) + expected
            expected = expected[len(expected) - len(shape) :]
            shape = tuple(wanted if size is None else size for size, wanted in zip(shape, expected, strict=True))
        return np.broadcast_to(np.zeros((), self.given[name].dtype), shape)

    def _expected(self, name: str) -> tuple[int, ...]:
        weight = self.given["recurrent_weight"].shape if "recurrent_weight" in self.given else ()
        if not weight or None in weight:
            raise ShapeError(f"recurrent_weight must have known sizes, got {shape_text(weight)}")
        units = int(weight[-1]) * (2 if self.descriptor.bidirectional else 1)
        gates = _GATES[self.forward] * units
        if name == "lengths":
            return (self.N,)
        if name == "resets":
            return (self.T, self.N)
        if name == "source":
            weight = self.given["input_weight"].shape if "input_weight" in self.given else (gates,)
            return (self.T, self.N, gates if weight[-1] is None else weight[-1])
        if name in ("z_state", "z_state_gradient"):
            return (self.T, self.N, gates)
        if name in ("input_weight", "bias", "peephole", "secondary_bias"):
            raise ShapeError(f"{name} must have known sizes, got {shape_text(self.given[name].shape)}")
        return (self.T, self.N, units)  # states of every step and, counted from the back, of one

    def check(self) -> Results:
        """The shapes of all results; the same errors as from the eager operation."""
        names = (_FORWARD if self.kind == self.forward else _GRADIENTS)[self.forward]
        arguments = {name: self.stand_in(name) for name in names}
        try:
            problem, _ = make_problem(
                self.kind, _DESCRIPTORS[self.forward], self.descriptor, arguments, gradient=self.kind != self.forward
            )
        except GatewiseError as error:
            text = str(error)
            for number in (self.UNKNOWN_T, self.UNKNOWN_N):
                text = text.replace(str(number), "?")
            raise type(error)(text) from None
        dtype = np.dtype(problem.dtype)
        if self.kind != self.forward:
            order = operations._GRADIENT_ORDER[self.forward]
            return [(self.given[name].shape, dtype) for name in order if name in self.given]
        steps: Shape = (
            None if problem.T == self.UNKNOWN_T else problem.T,
            None if problem.N == self.UNKNOWN_N else problem.N,
        )
        state = (*steps, problem.D * problem.H), dtype
        z_state = (*steps, problem.D * problem.G * problem.H), dtype
        return [state, state, z_state] if problem.cell.has_cell else [state, z_state]


def _specialise(attributes: Attributes, used: tuple[bool, ...]) -> Attributes:
    """Ask for z_state and the cell only where something uses them."""
    descriptor = attributes["descriptor"]
    changes = {"training": used[-1]}
    if isinstance(descriptor, LSTMDescriptor):
        changes["produce_cell"] = used[1]
    return {**attributes, "descriptor": replace(descriptor, **changes)}


def _forward(kind: str) -> Any:
    absent = dict.fromkeys(_FORWARD[kind])
    default = _DESCRIPTORS[kind]

    def evaluate(place: Place, attributes: Attributes, *arrays: Any) -> tuple[Any, ...]:
        given = {**absent, **dict(zip(attributes["arguments"], arrays, strict=True))}
        descriptor = attributes["descriptor"]
        results = operations._forward(kind, default, descriptor, given)
        if kind == "lstm":
            return (*results, None, None)[:3]
        return (*results, None)[:2]

    return evaluate


def _backward(kind: str) -> Any:
    absent = dict.fromkeys(_GRADIENTS[kind])
    default = _DESCRIPTORS[kind]

    def evaluate(place: Place, attributes: Attributes, *arrays: Any) -> tuple[Any, ...]:
        given = {**absent, **dict(zip(attributes["arguments"], arrays, strict=True))}
        return tuple(operations._gradients(f"{kind}_gradients", default, attributes["descriptor"], given))

    return evaluate


def _gradient(operation: Operation, *gradients: Tensor | None) -> Sequence[InputGradient]:
    """Emit the explicit gradient operation, which reads the training results of this one."""
    graph, kind = operation.graph, operation.kind
    arguments = operation.attributes["arguments"]
    results = operation.results
    given: dict[str, Any] = dict(zip(arguments, operation.inputs, strict=True))
    given["source_gradient"] = graph.zeros_like(results[0]) if gradients[0] is None else gradients[0]
    given["z_state"] = results[-1]
    given["z_state_gradient"] = gradients[-1]
    if kind == "lstm":
        given["cell_output_fwd"] = results[1]
        given["cell_sequence_gradient"] = gradients[1]
    elif kind == "gru":
        given["output_fwd"] = results[0]
    found = graph._recurrent(f"{kind}_gradients", operation.attributes["descriptor"], None, given)
    order = [name for name in operations._GRADIENT_ORDER[kind] if name in arguments]
    by_name = dict(zip(order, found.results, strict=True))

    def refuse() -> Tensor:
        raise UnsupportedError(f"{operation.kind} '{operation.name}' has no gradient for its mask")

    return [by_name.get(name, refuse if name == "mask" else None) for name in arguments]


for _kind in _DESCRIPTORS:

    def _shape(attributes: Attributes, *inputs: Any, kind: str = _kind) -> Results:
        return _Shapes(kind, attributes, inputs).check()

    def _gradients_shape(attributes: Attributes, *inputs: Any, kind: str = _kind) -> Results:
        return _Shapes(f"{kind}_gradients", attributes, inputs).check()

    _fields = {"arguments": tuple, "descriptor": _DESCRIPTORS[_kind]}
    _prepares = ("recurrent_weight", "input_weight")
    rule(_kind, _shape, _forward(_kind), _gradient, fields=_fields, several=True, prepares=_prepares, specialise=_specialise)
    rule(f"{_kind}_gradients", _gradients_shape, _backward(_kind), None, fields=_fields, several=True)
