"""Prints tables.h, the tables behind the vector functions of maths.h: `python native/cpu/tables.py > native/cpu/tables.h`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

SCALE = 3.25  # places in the table of tanh: the exponent and two bits of 2 + SCALE * |x|, which is below 32
DEGREE = 5
LANES = 16


def powers() -> list[int]:
    """The bits of 2^(j/16), less those that a sum of sixteenths moved into the exponent's place adds to the mantissa."""
    return [int(np.float32(2 ** (j / LANES)).view(np.int32)) - (j << 19) for j in range(LANES)]


def tanh_table() -> np.ndarray:
    """For each interval its centre and the coefficients of tanh(centre + b) by powers of b, from the constant on."""
    places = [2.0**octave * (1 + quarter / 4) for octave in range(1, 5) for quarter in range(4)] + [32.0]
    edges = (np.array(places) - 2) / SCALE
    table = np.zeros((DEGREE + 2, LANES))
    for j, (low, high) in enumerate(pairwise(edges)):
        if j == 0:  # relative to x, so that small numbers are as exact as others
            fit = Chebyshev.interpolate(lambda b: np.tanh(b) / b, DEGREE - 1, domain=[low, high])
            table[2:, j] = fit.convert(kind=Polynomial).coef
            continue
        # Of the numbers around the middle, one whose tanh hardly needs rounding.
        middle = np.float32((low + high) / 2)
        centres = (middle + np.arange(-3700, 3701, 37) * np.spacing(middle)).astype(np.float32).astype(np.float64)
        rounded = np.abs(np.tanh(centres) - np.tanh(centres).astype(np.float32))
        centre = table[0, j] = centres[rounded.argmin()]
        fit = Chebyshev.interpolate(lambda b, centre=centre: np.tanh(centre + b), DEGREE, domain=[low - centre, high - centre])
        table[1:, j] = fit.convert(kind=Polynomial).coef
    return table.astype(np.float32)


def rows(values: Iterable[str], count: int = 4) -> Iterator[str]:
    each = list(values)
    for first in range(0, len(each), count):
        yield "    " + ", ".join(each[first : first + count]) + ","


def header() -> str:
    lines = [
        "// Printed by tables.py, which says what is in them. Do not edit.",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        "namespace gatewise {",
        "",
        f"alignas(64) constexpr int32_t powers[{LANES}] = {{",
        *rows((hex(value) for value in powers()), 8),
        "};",
        f"constexpr float tanh_scale = {SCALE}f;",
        f"alignas(64) constexpr float tanh_table[{DEGREE + 2}][{LANES}] = {{",
    ]
    for row in tanh_table():
        lines += ["  {", *rows(f"{value!s}f" for value in row), "  },"]
    return "\n".join([*lines, "};", "", "}  // namespace gatewise", ""])


if __name__ == "__main__":
    print(header(), end="")
