"""The reference as an engine: computes in float64, rounds to the call's dtype at the end."""

from __future__ import annotations

from typing import Any

from .. import reference
from ..problem import Problem

name = "reference"


def unavailable() -> str | None:
    return None


def supports() -> dict[str, str]:
    return {
        "operations": "all six, every option",
        "dtypes": "float32, float16, bfloat16, float64 (computes in float64)",
        "speed": "a plain NumPy loop, for checking",
    }


def forward(problem: Problem) -> tuple[Any, Any, Any]:
    state, cell, z_state = reference.forward(problem)
    return (
        state.astype(problem.dtype),
        None if cell is None else cell.astype(problem.dtype),
        z_state.astype(problem.dtype),
    )


def gradients(problem: Problem) -> dict[str, Any]:
    return {name: array.astype(problem.dtype) for name, array in reference.gradients(problem).items()}
