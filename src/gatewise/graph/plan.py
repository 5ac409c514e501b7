"""A plan: what one combination of targets and operations has to run, in which order, and when results are let go."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engines.cpu import unchanging
from ..engines.ordinary import KeptMemory
from ..errors import GatewiseError
from .builder import located
from .fusion import BATCHES, fusion_of
from .place import RUN_NUMBER, Place, numpy_place
from .rules import Attributes
from .tensor import Operation, Shape, ShapedType, Tensor

_FOLDED_BYTES = 1 << 20  # a folded constant may be this large, or as large as what it was made of
_KEY_BYTES = 4096  # constants up to this size are compared by value

_ONE, _SEVERAL, _READ, _ASSIGN = range(4)
_RANDOM = ("random_tensor", "dropout_mask")

Observer = Callable[[Operation, float, Sequence[Any]], None]


def _raised_in(operation: Operation, error: Exception) -> GatewiseError:
    """The error with the operation that was running and the line that made it."""
    known = error if isinstance(error, GatewiseError) else GatewiseError(str(error) or type(error).__name__)
    return located(known, operation.kind, operation.name, operation.line)


def needed(targets: Sequence[Tensor], operations: Sequence[Operation]) -> list[Operation]:
    """Everything that has to run, in the order it was made."""
    found: set[Operation] = set()
    waiting = [*(tensor.operation for tensor in targets), *operations]
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting.extend(tensor.operation for tensor in operation.inputs)
            waiting.extend(operation.control)
    return sorted(found, key=lambda operation: operation.number)


def _comparable(value: Any) -> Any:
    """An attribute in a form that equal attributes share."""
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape, value.tobytes()) if value.nbytes <= _KEY_BYTES else id(value)
    return value


@dataclass(slots=True)
class Step:
    """One operation of a plan. Slots number the values of a run; -1 is a result nobody uses."""

    mode: int
    operation: Operation
    evaluate: Callable[..., Any]
    attributes: Attributes
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    copy: bool = False  # of an assigned value that something else may share
    frees: tuple[int, ...] = ()  # slots used here for the last time


def _prepared_inputs(step: Step) -> list[int]:
    """The slots of the arguments that the operation prepares where they are constants."""
    wanted = step.operation.rule.prepares
    if not wanted:
        return []
    return [slot for name, slot in zip(step.attributes["arguments"], step.inputs, strict=True) if name in wanted]


class Plan:
    """Made once for (targets, operations, place), then run as often as wanted, by several threads at once."""

    def __init__(self, targets: Sequence[Tensor], operations: Sequence[Operation], place: Place) -> None:
        self.place = place
        self.steps: list[Step] = []
        self.placeholders: dict[Tensor, int] = {}
        self.variables: dict[Operation, int] = {}
        self.checked: set[tuple[Shape, ...]] = set()
        self._slots: dict[Tensor, int] = {}  # several tensors may share a slot: equal operations are merged
        self._constants: dict[int, np.ndarray[Any, Any]] = {}
        self._number = 0
        self._schedule(needed(targets, operations))
        self._targets = [self._slots[tensor] for tensor in targets]
        self._inferred = [(step.operation, step.inputs, step.results) for step in self.steps]
        asked_for = {*operations, *[before for step in self.steps for before in step.operation.control]}
        self._drop_unused(asked_for)
        if place.is_numpy:
            self._fuse(asked_for)
            self._batch()
        self._finish(targets)
        self.random = any(step.operation.kind in _RANDOM for step in self.steps)
        self.assigns = any(step.mode == _ASSIGN for step in self.steps)

    def _new_slots(self, tensors: Iterable[Tensor]) -> tuple[int, ...]:
        slots = []
        for tensor in tensors:
            self._slots[tensor] = self._number
            slots.append(self._number)
            self._number += 1
        return tuple(slots)

    def _schedule(self, operations: list[Operation]) -> None:
        """Number the values, merge equal operations, fold constants, and list the steps that remain."""
        seen: dict[Any, Operation] = {}
        for operation in operations:
            rule = operation.rule
            if rule.kind == "placeholder":
                (self.placeholders[operation.results[0]],) = self._new_slots(operation.results)
                continue
            if rule.kind == "variable":
                (self.variables[operation],) = self._new_slots(operation.results)
                continue
            inputs = tuple([self._slots[tensor] for tensor in operation.inputs])
            if rule.pure and not operation.control:
                key = (rule.kind, inputs, *map(_comparable, operation.attributes.values()))
                twin = seen.setdefault(key, operation)
                if twin is not operation:
                    for mine, its in zip(operation.results, twin.results, strict=True):
                        self._slots[mine] = self._slots[its]
                    continue
                if not rule.several and self._fold(operation, inputs):
                    continue
            mode = _SEVERAL if rule.several else {"read_variable": _READ, "assign": _ASSIGN}.get(rule.kind, _ONE)
            results = self._new_slots(operation.results)
            self.steps.append(Step(mode, operation, rule.evaluate, operation.attributes, inputs, results))

    def _fold(self, operation: Operation, inputs: tuple[int, ...]) -> bool:
        """Compute an operation of constants, or of known shapes alone, now, unless its result is large."""
        constants = self._constants
        (result,) = operation.results
        if operation.rule.of_shape and all(None not in tensor.shape for tensor in operation.inputs):
            arrays = [np.broadcast_to(np.zeros((), tensor.dtype), tensor.shape) for tensor in operation.inputs]  # type: ignore[arg-type]
            most = _FOLDED_BYTES
        elif all(slot in constants for slot in inputs):
            arrays = [constants[slot] for slot in inputs]
            most = max(_FOLDED_BYTES, sum(array.nbytes for array in arrays))
        else:
            return False
        if None in result.shape:
            return False
        size = math.prod(result.shape) * result.dtype.itemsize  # type: ignore[arg-type]
        if operation.kind != "constant" and size > most:
            return False
        try:
            with np.errstate(all="ignore"):
                value = np.asarray(operation.rule.evaluate(numpy_place(), operation.attributes, *arrays))
        except MemoryError:
            raise
        except Exception as error:
            raise _raised_in(operation, error) from error
        (slot,) = self._new_slots(operation.results)
        constants[slot] = value
        return True

    def _drop_unused(self, asked_for: set[Operation]) -> None:
        """Leave out what only the shapes were needed of: they are folded."""
        used = set(self._targets)
        kept: list[Step] = []
        for step in reversed(self.steps):
            operation = step.operation
            if not operation.rule.pure or operation in asked_for or not used.isdisjoint(step.results):
                used.update(step.inputs)
                kept.append(step)
        self.steps = kept[::-1]

    def _fuse(self, asked_for: set[Operation]) -> None:
        """Join pairs of steps that one pass computes, where nobody else uses what is between them."""
        uses = Counter(self._targets)
        for step in self.steps:
            uses.update(step.inputs)
        makers = {step.results[0]: step for step in self.steps if step.mode == _ONE and step.operation not in asked_for}
        gone: set[int] = set()
        for step in self.steps:
            found = [makers.get(slot) if uses[slot] == 1 else None for slot in step.inputs]
            fusion = fusion_of(step.operation, [None if maker is None else maker.operation for maker in found])
            if fusion is not None:
                step.evaluate = fusion[0].evaluate
                between = step.inputs[fusion[1]]
                others = tuple([slot for slot in step.inputs if slot != between])
                step.inputs = fusion[0].arrange(makers.pop(between).inputs, others)
                gone.add(between)
                makers.pop(step.results[0], None)  # it is no longer the operation that fusions know
        self.steps = [step for step in self.steps if not step.results or step.results[0] not in gone]

    def _batch(self) -> None:
        """Join steps of one kind that follow each other. Assignments wait for the end, unless something reads between them."""
        if not any(step.mode == _READ for step in self.steps):
            self.steps.sort(key=lambda step: step.mode == _ASSIGN)
        joined: list[Step] = []
        for step in self.steps:
            before = joined[-1] if joined else step
            shared, own = BATCHES.get(step.evaluate, (0, 0))
            alike = own and before.evaluate is step.evaluate and before.inputs[:shared] == step.inputs[:shared]
            whole = alike and len(step.inputs) == shared + own and (len(before.inputs) - shared) % own == 0
            if joined and whole and set(before.results).isdisjoint(step.inputs):
                before.inputs += step.inputs[shared:]
                before.results += step.results
            else:
                joined.append(step)
        self.steps = joined

    def _finish(self, targets: Sequence[Tensor]) -> None:
        """Decide what is computed and kept: unused results, last uses, copies."""
        constants = set(self._constants)
        used = set(self._targets)
        for step in self.steps:
            used.update(step.inputs)
        last: dict[int, Step] = {}
        views = set(constants) | set(self.placeholders.values()) | set(self.variables.values())
        assigned: set[int] = set()
        for step in self.steps:
            if step.operation.rule.view:
                views.update(step.results)
            if step.mode == _ASSIGN:
                step.copy = step.inputs[1] in views
                assigned.add(step.inputs[1])
            for slot in step.inputs:
                last[slot] = step
            flags = tuple([slot in used for slot in step.results])
            if step.operation.rule.specialise is not None:
                step.attributes = step.operation.rule.specialise(step.attributes, flags)
            step.results = tuple([slot if flag else -1 for slot, flag in zip(step.results, flags, strict=True)])
        kept = set(self._targets) | constants
        for slot, step in last.items():
            if slot not in kept:
                step.frees = (*step.frees, slot)
        # The caller may write into what he is handed: copy what the graph, a variable or another target still needs.
        self.copies = [
            slot in views or slot in assigned or slot in self._targets[:number] for number, slot in enumerate(self._targets)
        ]
        self._template: list[Any] = [None] * (self._number + 1)  # the last is for what nobody uses
        prepared = {slot for step in self.steps for slot in _prepared_inputs(step)}
        for slot, value in self._constants.items():
            if slot in used:
                ready = self.place.is_numpy and slot in prepared
                self._template[slot] = unchanging(value) if ready else self.place.move(value)

    def check(self, feeds: Sequence[Shape]) -> None:
        """Infer every shape again with those of the feeds, so that a misfit is found before any work."""
        types: dict[int, Any] = dict(self._constants)
        for (tensor, slot), shape in zip(self.placeholders.items(), feeds, strict=True):
            types[slot] = ShapedType(shape, tensor.dtype)
        for operation, slot in self.variables.items():
            types[slot] = operation.results[0]
        for operation, inputs, results in self._inferred:
            try:
                found = operation.rule.shape(operation.attributes, *[types[slot] for slot in inputs])
            except GatewiseError as error:
                raise located(error, operation.kind, operation.name, operation.line) from None
            for slot, result in zip(results, found, strict=True):
                types[slot] = ShapedType(*result)
        if len(self.checked) > 1000:
            self.checked.clear()
        self.checked.add(tuple(feeds))

    def run(
        self, feeds: Sequence[Any], variables: Sequence[Any], number: int, observe: Observer | None = None
    ) -> tuple[list[Any], dict[Operation, Any]]:
        """The targets' arrays, and the new values of assigned variables, which nobody has seen yet.

        `feeds` are in the order of `placeholders`, `variables` in the order of `variables`, all of them here.
        """
        slots = self._template.copy()
        for slot, array in zip(self.placeholders.values(), feeds, strict=True):
            slots[slot] = array
        for slot, array in zip(self.variables.values(), variables, strict=True):
            slots[slot] = array
        pending: dict[Operation, Any] = {}
        token = RUN_NUMBER.set(number) if self.random else None
        step: Step | None = None
        place = self.place
        try:
            with KeptMemory(), np.errstate(all="ignore"):
                for step in self.steps:
                    start = 0.0 if observe is None else time.perf_counter()
                    mode, results = step.mode, step.results
                    if mode == _ONE:
                        slots[results[0]] = step.evaluate(place, step.attributes, *[slots[slot] for slot in step.inputs])
                    elif mode == _SEVERAL:
                        values = step.evaluate(place, step.attributes, *[slots[slot] for slot in step.inputs])
                        for slot, value in zip(results, values, strict=True):
                            if slot >= 0:
                                slots[slot] = value
                        del values
                    elif mode == _READ:
                        (slot,) = step.inputs
                        slots[results[0]] = pending.get(step.operation.inputs[0].operation, slots[slot])
                    else:
                        value = slots[step.inputs[1]]
                        pending[step.operation.inputs[0].operation] = place.copy(value) if step.copy else value
                    if observe is not None:
                        observe(step.operation, start, [slots[slot] for slot in results if slot >= 0])
                    for slot in step.frees:
                        slots[slot] = None
        except MemoryError:
            raise
        except Exception as error:
            if step is None:
                raise
            raise _raised_in(step.operation, error) from error
        finally:
            if token is not None:
                RUN_NUMBER.reset(token)
        found = [slots[slot] for slot in self._targets]
        return [self._own(array, copy) for array, copy in zip(found, self.copies, strict=True)], pending

    def _own(self, array: Any, copy: bool) -> Any:
        if copy:
            return self.place.copy(array)
        return np.asarray(array) if self.place.is_numpy else array
