"""A forward call: project the input, then run the steps."""

from __future__ import annotations

from typing import Any

from ...problem import Problem
from . import driver, kernels
from .call import Call
from .products import Matrix


def forward(problem: Problem) -> tuple[Any, Any, Any]:
    p = problem
    call = Call(p, backward=False)
    wants_cell = p.cell.has_cell and (p.descriptor.training or getattr(p.descriptor, "produce_cell", False))
    state = call.empty((p.T, p.N, p.D * p.H))
    cell = call.empty((p.T, p.N, p.D * p.H)) if wants_cell else None
    z_state = call.empty((p.T, p.N, p.D * p.G * p.H)) if p.descriptor.training else None
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
    dtype = "float32" if call.dtype in ("float16", "bfloat16") and call.multiply.widens else call.dtype
    x = call.empty((call.rows, width), dtype)
    values["x"] = x.pointer
    if p.I == 0:
        driver.clear(x.pointer, x.size * x.dtype.itemsize, call.stream)
        return dtype
    call.product(
        (call.rows, width, p.I),
        Matrix(call.plain(p.source), p.I),
        Matrix(call.plain(p.input_weight), p.I, transposed=True),
        Matrix(x.pointer, width),
        dtype,
    )
    return dtype


def _run_steps(call: Call, values: dict[str, int], input_dtype: str) -> None:
    p, tiling = call.problem, call.plan.tiling
    exchanged = tiling is None or not tiling.on_chip  # on the chip the operands never reach device memory
    if exchanged:
        for phase in range(len(p.cell.phases)):
            operand = call.empty((p.T, p.N, p.D, call.HP))
            values[f"operand{phase}"] = operand.pointer
            if tiling is not None:
                call.mark_empty(operand)
    given = call.macros(input_dtype)
    if tiling is not None:
        loaded = kernels.module(call.index, "persistent_forward.cu", given | kernels.tiling_macros(tiling, kernels.options(p, backward=False)))
        kernels.launch_persistent(loaded, call.stream, tiling, p.D, kernels.arguments(values))
        return
    planes = 2 + p.G
    carry_dtype = "float64" if call.dtype == "float64" else "float32"
    values["carry"] = call.empty((planes, p.N, p.D, p.H), carry_dtype).pointer
    loaded = kernels.module(call.index, "steps.cu", given)
    packed = kernels.arguments(values)
    grid = ((p.H + 15) // 16, (p.N + 15) // 16, p.D)
    loaded["forward_start"](call.stream, grid, 256, packed)
    for step in range(p.T):
        for phase in range(len(p.cell.phases)):
            loaded[f"forward_step{phase}"](call.stream, grid, 256, packed, *driver.pointer_bytes(step))
