"""The error function, which the array API standard lacks: W. J. Cody's rational approximations of 1969."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

# numerator and denominator by falling power, in x² for small |x|, in |x| for middle ones, in 1/x² for large ones
_SMALL = (
    (1.85777706184603153e-1, 3.16112374387056560e00, 1.13864154151050156e02, 3.77485237685302021e02, 3.20937758913846947e03),
    (1.0, 2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03, 2.84423683343917062e03),
)
_MIDDLE = (
    (
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594e00,
        6.61191906371416295e01,
        2.98635138197400131e02,
        8.81952221241769090e02,
        1.71204761263407058e03,
        2.05107837782607147e03,
        1.23033935479799725e03,
    ),
    (
        1.0,
        1.57449261107098347e01,
        1.17693950891312499e02,
        5.37181101862009858e02,
        1.62138957456669019e03,
        3.29079923573345963e03,
        4.36261909014324716e03,
        3.43936767414372164e03,
        1.23033935480374942e03,
    ),
)
_LARGE = (
    (
        1.63153871373020978e-2,
        3.05326634961232344e-1,
        3.60344899949804439e-1,
        1.25781726111229246e-1,
        1.60837851487422766e-2,
        6.58749161529837803e-4,
    ),
    (
        1.0,
        2.56852019228982242e00,
        1.87295284992346725e00,
        5.27905102951428412e-1,
        6.05183413124413191e-2,
        2.33520497626869185e-3,
    ),
)
_TO_MIDDLE, _TO_LARGE = 0.46875, 4.0


def _polynomial(coefficients: Sequence[float], x: Any) -> Any:
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


def _ratio(pair: tuple[Sequence[float], Sequence[float]], x: Any) -> Any:
    return _polynomial(pair[0], x) / _polynomial(pair[1], x)


def error_function(xp: Any, x: Any) -> Any:
    """erf(x), to about the last bit of float64."""
    size = xp.abs(x)
    square = size * size
    small = x * _ratio(_SMALL, square)
    middle_size = xp.where(size < _TO_LARGE, size, size * 0 + _TO_LARGE)
    middle = 1.0 - xp.exp(-middle_size * middle_size) * _ratio(_MIDDLE, middle_size)
    large_size = xp.where(size > _TO_LARGE, size, size * 0 + _TO_LARGE)
    inverse = 1.0 / (large_size * large_size)
    tail = (1.0 / math.sqrt(math.pi) - inverse * _ratio(_LARGE, inverse)) / large_size
    large = 1.0 - xp.exp(-large_size * large_size) * tail
    beyond = xp.sign(x) * xp.where(size <= _TO_LARGE, middle, large)
    return xp.where(size <= _TO_MIDDLE, small, beyond)
