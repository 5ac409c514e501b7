"""A forward call: project the input, then run the steps."""

from __future__ import annotations

from typing import Any

from ...problem import Problem
from .call import Call
from .products import Matrix
from .steps import Steps


def forward(problem: Problem) -> tuple[Any, Any, Any]:
    call = Call(problem, backward=False)
    p = call.problem
    wants_cell = p.cell.has_cell and (p.descriptor.training or getattr(p.descriptor, "produce_cell", False))
    state = call.result((p.T, p.N, p.D * p.H))
    cell = call.result((p.T, p.N, p.D * p.H)) if wants_cell else None
    z_state = call.result((p.T, p.N, p.D * p.G * p.H)) if p.descriptor.training else None
    if call.rows:
        values = call.common_arguments()
        values["bias"] = call.plain(p.bias)
        values["state"] = state.pointer
        values["cell"] = 0 if cell is None else cell.pointer
        values["z_state"] = 0 if z_state is None else z_state.pointer
        input_dtype = _project(call, values)
        _run_steps(call, values, input_dtype)
    call.finish()
    return state, cell, z_state


def _project(call: Call, values: dict[str, int]) -> str:
    """Sets x, [T, N, D, G, H]; returns its dtype."""
    p = call.problem
    width = p.D * p.G * p.H
    if p.input_weight is None:
        values["x"] = call.plain(p.source)
        return call.dtype
    dtype = call.sum_dtype
    x = values["x"] = call.scratch(call.rows * width, dtype)
    if p.I == 0:
        call.clear(x, call.rows * width * (4 if dtype == "float32" else p.dtype.itemsize))
        return dtype
    call.product(
        (call.rows, width, p.I),
        Matrix(call.plain(p.source), p.I),
        Matrix(call.plain(p.input_weight), p.I, transposed=True),
        Matrix(x, width),
        dtype,
    )
    return dtype


def _run_steps(call: Call, values: dict[str, int], input_dtype: str) -> None:
    p, tiling = call.problem, call.plan.tiling
    if tiling is not None:
        call.run_persistent(values, input_dtype)
        return
    width = p.N * p.D * p.H
    for phase in range(len(p.cell.phases)):
        values[f"operand{phase}"] = call.scratch(width)
    steps = Steps(call, values, input_dtype)
    steps.launch("forward_start")
    for step in range(p.T):
        for phase in range(len(p.cell.phases)):
            steps.forward_product(phase)
            steps.launch(f"forward_step{phase}", step)
