"""The matrix product, batched like NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engines import ordinary
from ...errors import ShapeError
from ..builder import Builder
from ..place import Place, dtype_of
from ..rules import Attributes, InputGradient, Results, rule
from ..shapes import broadcast, need_equal, need_floating
from ..tensor import Operation, Tensor, TensorLike, shape_text


class Matrix(Builder):
    """The matrix product."""

    def matrix_multiplication(self, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
        """`[..., M, K] @ [..., K, N]`; leading axes broadcast."""
        return self._one("matrix_multiplication", self._tensors("matrix_multiplication", a, b), None, name)


def _shape(attributes: Attributes, a: Any, b: Any) -> Results:
    need_floating(a.dtype)
    need_equal(a.dtype, b.dtype)
    both = f"{shape_text(a.shape)} and {shape_text(b.shape)}"
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise ShapeError(f"needs two tensors of rank 2 or more, got {both}")
    if a.shape[-1] != b.shape[-2] and None not in (a.shape[-1], b.shape[-2]):
        raise ShapeError(f"the inner sizes {a.shape[-1]} and {b.shape[-2]} of {both} differ")
    return [((*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)]


def _product(place: Place, attributes: Attributes, a: Any, b: Any, row: Any = None) -> Any:
    """One large product where only `a` has leading axes; plus a row if there is one."""
    xp = place.xp
    if place.is_numpy and a.dtype.itemsize == 2:
        return _product(place, attributes, place.widen(a), place.widen(b)).astype(a.dtype)
    if len(b.shape) == 2 and len(a.shape) > 2 and a.shape[-1]:
        flat = _product(place, attributes, xp.reshape(a, (-1, a.shape[-1])), b, row)
        return xp.reshape(flat, (*a.shape[:-1], b.shape[-1]))
    found = ordinary.product(a, b, row) if place.is_numpy and len(a.shape) == len(b.shape) == 2 else None
    if found is not None:
        return found
    return xp.matmul(a, b) if row is None else xp.matmul(a, b) + row


def product_plus_row(place: Place, attributes: Attributes, a: Any, b: Any, row: Any) -> Any:
    if dtype_of(a).itemsize == 2:  # each is rounded by itself
        return _product(place, attributes, a, b) + row
    return _product(place, attributes, a, b, row)


def _summed_product(place: Place, attributes: Attributes, a: Any, gradient: Any) -> Any:
    """The gradient of a `b` without leading axes: aᵀ gradient, summed over all of them in one product."""
    xp = place.xp
    flat_a = xp.reshape(a, (-1, a.shape[-1])) if a.shape[-1] else place.zeros((0, 0), a)
    flat_gradient = (
        xp.reshape(gradient, (-1, gradient.shape[-1])) if gradient.shape[-1] else place.zeros((flat_a.shape[0], 0), a)
    )
    return _product(place, attributes, flat_a.T, flat_gradient)


def _gradient(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    a, b = operation.inputs
    graph = operation.graph

    def of_b() -> Tensor:
        if b.rank == 2 and a.rank > 2:
            return graph._one("summed_product", [a, gradient])
        return graph.matrix_multiplication(_transposed(a), gradient)

    return [lambda: graph.matrix_multiplication(gradient, _transposed(b)), of_b]


def _transposed(tensor: Tensor) -> Tensor:
    axes = list(range(tensor.rank))
    return tensor.graph.transpose(tensor, [*axes[:-2], axes[-1], axes[-2]])


def _summed_gradient(operation: Operation, gradient: Tensor) -> Sequence[InputGradient]:
    a, incoming = operation.inputs
    graph = operation.graph
    return [
        lambda: graph.matrix_multiplication(incoming, _transposed(gradient)),
        lambda: graph.matrix_multiplication(a, gradient),
    ]


rule("matrix_multiplication", _shape, _product, _gradient, broadcasts=True)
rule(
    "summed_product",
    lambda attributes, a, gradient: [((a.shape[-1], gradient.shape[-1]), a.dtype)],
    _summed_product,
    _summed_gradient,
)
