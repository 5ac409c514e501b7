"""Operations that are better done at once. Pairs: the second reads what the first made, nobody else does, and one pass does
both without writing down what is between them. Batches: steps of the same kind one after the other, one call for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .ops.matrix import product_plus_row
from .ops.optimizers import scaled_adam
from .ops.reductions import sum_of_squares
from .place import Place
from .rules import RULES, Attributes
from .tensor import Operation

_GRADIENT = 9  # among the inputs of adam


@dataclass(frozen=True, slots=True)
class Fusion:
    """`evaluate` gets what `arrange` makes of the first operation's inputs and of the second's without the one between."""

    first: str
    second: str
    place: int | None  # of the first's result among the second's inputs; None: any
    fits: Callable[[Operation, Operation, int], bool]
    evaluate: Callable[..., Any]
    arrange: Callable[[tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = lambda first, second: (*first, *second)


def _row_is_added(product: Operation, addition: Operation, place: int) -> bool:
    other, columns = addition.inputs[1 - place].shape, product.results[0].shape[-1]
    return columns is not None and other == (columns,) and product.inputs[1].rank == 2


def _by_a_number(multiplication: Operation, adam: Operation, place: int) -> bool:
    a, b = multiplication.inputs
    return b.shape == () and a.shape == multiplication.results[0].shape and len(adam.inputs) == _GRADIENT + 1


def _adam(place: Place, attributes: Attributes, scale: Any, *inputs: Any) -> tuple[Any, ...]:
    return scaled_adam(place, scale, inputs)


_FUSIONS = (
    Fusion("matrix_multiplication", "addition", None, _row_is_added, product_plus_row),
    Fusion("square", "reduction_sum", 0, lambda square, total, place: True, sum_of_squares),
    Fusion("multiplication", "adam", _GRADIENT, _by_a_number, _adam, lambda first, second: (first[1], *second, first[0])),
)
# Of steps evaluated like this: how many inputs a batch has in common, and how many each of its steps has besides.
BATCHES = {_adam: (7, 4), RULES["adam"].evaluate: (6, 4)}
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
