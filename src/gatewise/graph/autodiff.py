"""Differentiation: the rules of the table, walked from the target back to what it was made of."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ArgumentError, DTypeError, UnsupportedError
from .ops.data import sum_like
from .tensor import FLOATING, Operation, Tensor


def gradients(of: Tensor, with_respect_to: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Append the operations that compute the gradient of `of` (of its sum, if it is no scalar) for each tensor."""
    graph = of.graph
    wanted = dict.fromkeys(with_respect_to)
    if of.dtype.name not in FLOATING:
        raise DTypeError(f"gradients: {of!r} is not floating, so it cannot be differentiated")
    path = _between(of, wanted)
    collected: dict[Tensor, list[Tensor]] = {of: [graph.ones_like(of)]}
    found: dict[Tensor, Tensor] = {}
    for operation in reversed(path):
        incoming: list[Tensor | None] = []
        for result in operation.results:
            total = _total(collected.pop(result, []))
            incoming.append(total)
            if result in wanted and total is not None:
                found[result] = total
        if not any(gradient is not None for gradient in incoming):
            continue
        needed = [tensor.operation in path.needed and tensor.dtype.name in FLOATING for tensor in operation.inputs]
        if not any(needed):
            continue
        if operation.rule.gradient is None:
            raise UnsupportedError(
                f"gradients: {operation.kind} '{operation.name}' has no gradient "
                f"(made at {operation.line[0]}:{operation.line[1]})"
            )
        entries = operation.rule.gradient(operation, *incoming)
        for tensor, entry, is_needed in zip(operation.inputs, entries, needed, strict=True):
            if entry is None or not is_needed:
                continue
            gradient = entry if isinstance(entry, Tensor) else entry()
            if operation.rule.broadcasts:
                gradient = sum_like(gradient, tensor)
            collected.setdefault(tensor, []).append(gradient)
    for tensor in wanted:
        if tensor not in found:
            raise ArgumentError(f"gradients: {of!r} does not depend on {tensor!r}, or only through operations without a slope")
    return found


class _Path(list[Operation]):
    """The operations to walk, in the order they were made, and those among them that depend on a wanted tensor."""

    needed: set[Operation]


def _between(of: Tensor, wanted: dict[Tensor, None]) -> _Path:
    reached: set[Operation] = set()
    waiting = [of.operation]
    while waiting:
        operation = waiting.pop()
        if operation not in reached:
            reached.add(operation)
            waiting.extend(tensor.operation for tensor in operation.inputs)
    sources = {tensor.operation for tensor in wanted}
    path = _Path()
    path.needed = set()
    for operation in sorted(reached, key=lambda operation: operation.number):
        if operation in sources or any(tensor.operation in path.needed for tensor in operation.inputs):
            path.needed.add(operation)
            path.append(operation)
    return path


def _total(parts: list[Tensor]) -> Tensor | None:
    if not parts:
        return None
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
