"""The table of operations: for each kind its shape rule, its evaluation and its gradient. This table is what a legal
graph is: a loaded file may contain nothing else.

    shape(attributes, *inputs) -> [(shape, dtype), ...]
        one pair for every result. Inputs have .shape and .dtype; sizes may be None. Raises GatewiseErrors without the
        operation's name; the builder adds it, and the line that made the operation.
    evaluate(place, attributes, *arrays) -> array, or a tuple of arrays where `several`
        with clean inputs, on the arrays' own namespace `place.xp`. Never writes into its arguments.
    gradient(operation, *result_gradients) -> one entry per input
        a tensor, a function that makes one (called only when that input's gradient is needed), or None where no
        gradient flows. A result that got no gradient is None. Where the operation `broadcasts`, the walk sums over the
        stretched axes. The rule itself is None where differentiating is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from .tensor import DType, Operation, Shape, Tensor

if TYPE_CHECKING:
    pass

Attributes: TypeAlias = dict[str, Any]
Results: TypeAlias = "list[tuple[Shape, DType]]"
InputGradient: TypeAlias = "Tensor | Callable[[], Tensor] | None"
ShapeRule: TypeAlias = "Callable[..., Results]"
GradientRule: TypeAlias = "Callable[..., Sequence[InputGradient]]"


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One kind of operation."""

    kind: str
    shape: ShapeRule
    evaluate: Callable[..., Any]
    gradient: GradientRule | None = None
    fields: dict[str, type | tuple[type, ...]] = field(default_factory=dict)  # attributes and their types, for loading
    several: bool = False  # evaluate gives a tuple
    view: bool = False  # a result may share memory with an input, or outlives the run
    broadcasts: bool = False  # inputs may be stretched: their gradients are summed over the axes that were
    of_shape: bool = False  # the result depends on the shapes of the inputs alone
    pure: bool = True  # equal inputs give equal results: may be merged and folded
    prepares: tuple[str, ...] = ()  # arguments that are worth preparing where they are constants
    # From attributes and, for each result, whether anybody uses it: the attributes to evaluate with.
    specialise: Callable[[Attributes, tuple[bool, ...]], Attributes] | None = None


RULES: dict[str, Rule] = {}


def rule(kind: str, shape: ShapeRule, evaluate: Callable[..., Any], gradient: GradientRule | None, **options: Any) -> None:
    """Enter a kind of operation into the table."""
    assert kind not in RULES, kind
    RULES[kind] = Rule(kind, shape, evaluate, gradient, **options)


def no_gradient(operation: Operation, *result_gradients: Tensor | None) -> Sequence[InputGradient]:
    """The rule of operations whose results do not change smoothly: comparisons, argmax, shapes."""
    return [None] * len(operation.inputs)
