"""Pairs of operations that one pass computes: the second reads what the first made, nobody else does, and both are done at
once without writing down what is between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .ops.matrix import product_plus_row
from .ops.optimizers import scaled_adam
from .ops.reductions import sum_of_squares
from .place import Place
from .rules import Attributes
from .tensor import Operation

_GRADIENT = 9  # among the inputs of adam


@dataclass(frozen=True, slots=True)
class Fusion:
    """`evaluate` gets the inputs of the first operation, then those of the second without the one between them."""

    first: str
    second: str
    place: int | None  # of the first's result among the second's inputs; None: any
    fits: Callable[[Operation, Operation, int], bool]
    evaluate: Callable[..., Any]


def _row_is_added(product: Operation, addition: Operation, place: int) -> bool:
    other, columns = addition.inputs[1 - place].shape, product.results[0].shape[-1]
    return columns is not None and other == (columns,) and product.inputs[1].rank == 2


def _by_a_number(multiplication: Operation, adam: Operation, place: int) -> bool:
    a, b = multiplication.inputs
    return b.shape == () and a.shape == multiplication.results[0].shape and len(adam.inputs) == _GRADIENT + 1


def _adam(place: Place, attributes: Attributes, gradient: Any, scale: Any, *inputs: Any) -> tuple[Any, ...]:
    return scaled_adam(place, scale, (*inputs, gradient))


_FUSIONS = (
    Fusion("matrix_multiplication", "addition", None, _row_is_added, product_plus_row),
    Fusion("square", "reduction_sum", 0, lambda square, total, place: True, sum_of_squares),
    Fusion("multiplication", "adam", _GRADIENT, _by_a_number, _adam),
)
_BY_SECOND = {fusion.second: fusion for fusion in _FUSIONS}


def fusion_of(second: Operation, makers: Sequence[Operation | None]) -> tuple[Fusion, int] | None:
    """How `second` is fused with one of its inputs' makers (None where it may not be), and which input that is."""
    fusion = _BY_SECOND.get(second.kind)
    if fusion is None:
        return None
    for place, first in enumerate(makers):
        if first is None or first.kind != fusion.first or fusion.place not in (None, place):
            continue
        if fusion.fits(first, second, place):
            return fusion, place
    return None
