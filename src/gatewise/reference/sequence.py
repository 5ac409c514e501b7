"""The sequence loop: THE SPEC. Slow and plain; every engine is held to what this computes.

Runs in float64, or in complex128 when an argument is complex (complex-step differentiation in the tests).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ..cells.activations import ACTIVATE, SLOPE
from ..problem import Problem

Array = np.ndarray[Any, Any]


class _Ops:
    """The functions the activations are written with, on NumPy arrays."""

    tanh = staticmethod(np.tanh)
    select = staticmethod(np.where)
    ones_like = staticmethod(np.ones_like)

    @staticmethod
    def sigmoid(x: Array) -> Array:
        return np.asarray(1.0 / (1.0 + np.exp(-x)))


class _Direction:
    """One direction of a problem: its slice of every argument, gates in the cell's own order, all in float64."""

    def __init__(self, problem: Problem, number: int) -> None:
        p = problem
        T, N, H, G, D = p.T, p.N, p.H, p.G, p.D
        self.problem = p
        self.number = number
        order = list(p.order)
        self.steps = list(range(T))[:: -1 if p.backwards[number] else 1]

        def gated(array: Any, *after: int) -> Array:
            """[..., D*G*H, after] as this direction's [..., G, H, after]."""
            leading = array.shape[: array.ndim - 1 - len(after)]
            packed = _wide(array).reshape(*leading, D, G, H, *after)
            axis = len(leading)
            mine: Array = packed.take(number, axis).take(order, axis)
            return mine

        def unit(array: Any, *leading: int) -> Array:
            mine: Array = _wide(array).reshape(*leading, D, H).take(number, len(leading))
            return mine

        self.R = gated(_wide(p.recurrent_weight).reshape(D * G * H, H), H)
        self.W = None if p.input_weight is None else gated(p.input_weight, p.I)
        self.x = _wide(p.source)
        self.projected = gated(p.source) if self.W is None else np.einsum("tni,ghi->tngh", self.x, self.W)
        if p.bias is not None:
            self.projected = self.projected + gated(p.bias)
        self.h0 = np.zeros((N, H)) if p.init_state is None else unit(p.init_state, N)
        self.c0 = np.zeros((N, H)) if p.init_cell is None else unit(p.init_cell, N)
        mask = np.ones(1) if p.mask is None else _wide(p.mask)
        self.mask = unit(np.broadcast_to(mask, (T, N, D * H)), T, N)
        self.peephole = gated(p.peephole.reshape(-1)) if p.peephole is not None else np.zeros((G, H))
        self.b2 = np.zeros(H) if p.secondary_bias is None else unit(p.secondary_bias)
        steps = np.arange(T)[:, None, None]
        self.active = np.ones((T, N, 1), bool) if p.lengths is None else steps < np.asarray(p.lengths)[None, :, None]
        self.reset = np.zeros((T, N, 1), bool) if p.resets is None else np.asarray(p.resets)[:, :, None]
        self.gated, self.unit = gated, unit

    def values(self, t: int, h: Array, c: Array) -> SimpleNamespace:
        """The cell's inputs at step t: state and cell before it, mask and peephole."""
        p = self.problem
        return SimpleNamespace(
            activate=lambda k, x: ACTIVATE[p.activations[k]](_Ops, x),
            slope=lambda k, y: SLOPE[p.activations[k]](_Ops, y),
            x=self.projected[t].swapaxes(0, 1),
            u=[None] * p.G,
            gate=[None] * p.G,
            du=[None] * p.G,
            dx=[None] * p.G,
            p=self.peephole,
            h=np.where(self.reset[t], 0.0, h),
            c=np.where(self.reset[t], 0.0, c),
            m=self.mask[t],
            b2=self.b2,
        )


def _wide(array: Any) -> Array:
    given: Array = np.asarray(array)
    return given if given.dtype.kind == "c" else given.astype(np.float64)


def forward(problem: Problem) -> tuple[Array, Array | None, Array]:
    """State, cell (None for cells without one) and z_state, each over all steps."""
    p = problem
    work = _work_dtype(p)
    state = np.zeros((p.T, p.N, p.D, p.H), work)
    cell = np.zeros((p.T, p.N, p.D, p.H), work)
    z_state = np.zeros((p.T, p.N, p.D, p.G, p.H), work)
    with np.errstate(all="ignore"):
        for number in range(p.D):
            run = _Direction(p, number)
            h, c = run.h0, run.c0
            for t in run.steps:
                v = run.values(t, h, c)
                v.operand = v.h * v.m
                for phase in p.cell.phases:
                    for g in phase.gates:
                        v.u[g] = v.operand @ run.R[g].T
                    phase.forward(v)
                active = run.active[t]
                h = np.where(active, v.h_next, h)
                state[t, :, number] = np.where(active, v.h_next, 0.0)
                if p.cell.has_cell:
                    c = np.where(active, v.c_next, c)
                    cell[t, :, number] = np.where(active, v.c_next, 0.0)
                for g, slot in enumerate(p.order):
                    z_state[t, :, number, slot] = np.where(active, v.gate[g], 0.0)
    flat = (p.T, p.N, p.D * p.H)
    return state.reshape(flat), cell.reshape(flat) if p.cell.has_cell else None, z_state.reshape(p.T, p.N, p.D * p.G * p.H)


def gradients(problem: Problem) -> dict[str, Array]:
    """The gradient of every floating argument that was given, by name, each in its argument's shape."""
    p = problem
    totals = {
        name: np.zeros(getattr(p, name).shape, _work_dtype(p))
        for name in (
            "source",
            "recurrent_weight",
            "input_weight",
            "bias",
            "peephole",
            "init_state",
            "init_cell",
            "secondary_bias",
        )
        if getattr(p, name) is not None
    }
    if p.T:
        with np.errstate(all="ignore"):
            for number in range(p.D):
                _direction_gradients(_Direction(p, number), totals)
    return totals


def _direction_gradients(run: _Direction, totals: dict[str, Array]) -> None:
    p, number = run.problem, run.number
    T, N, H, G, D = p.T, p.N, p.H, p.G, p.D
    order = list(p.order)
    gates = run.gated(p.z_state).transpose(2, 0, 1, 3)  # [G, T, N, H]
    dgates = np.zeros((G, T, N, H)) if p.z_state_gradient is None else run.gated(p.z_state_gradient).transpose(2, 0, 1, 3)
    cells = np.zeros((T, N, H)) if p.cell_output is None else run.unit(p.cell_output, T, N)
    dcells = np.zeros((T, N, H)) if p.cell_sequence_gradient is None else run.unit(p.cell_sequence_gradient, T, N)
    dstates = run.unit(p.source_gradient, T, N)
    if p.output is not None:
        states = run.unit(p.output, T, N)
    else:
        v = run.values(0, run.h0, run.c0)
        v.gate, v.c_next = gates, cells
        assert p.cell.restore is not None
        p.cell.restore(v)
        states = v.h_next
    dh = np.zeros((N, H)) if p.state_gradient is None else run.unit(p.state_gradient, N)
    dc = np.zeros((N, H)) if p.cell_gradient is None else run.unit(p.cell_gradient, N)
    dprojected = np.zeros((T, N, G, H), dh.dtype)
    dR, dp, db2 = np.zeros((G, H, H)), np.zeros((G, H)), np.zeros(H)

    for place in range(T - 1, -1, -1):
        t = run.steps[place]
        active, reset = run.active[t], run.reset[t]
        before = run.steps[place - 1] if place else None
        came = np.zeros((N, 1), bool) if before is None else run.active[before]  # else the row starts here
        v = run.values(t, np.where(came, states[before or 0], run.h0), np.where(came, cells[before or 0], run.c0))
        v.gate, v.dgate, v.c_next = list(gates[:, t]), dgates[:, t], cells[t]
        v.dh, v.dc = dh + dstates[t], dc + dcells[t]
        operands = {0: v.h * v.m}
        if p.cell.needs_product:
            v.q = operands[0] @ run.R[-1].T + run.b2
        for k in range(len(p.cell.phases) - 1, -1, -1):
            phase = p.cell.phases[k]
            phase.gradient(v)
            v.e = sum(v.du[g] @ run.R[g] for g in phase.gates)
        if len(p.cell.phases) == 2:
            operands[1] = v.operand
        dh = np.where(active, np.where(reset, 0.0, v.h_prev + v.e * v.m), dh)
        if p.cell.has_cell:
            dc = np.where(active, np.where(reset, 0.0, v.c_prev), dc)
        du = np.where(active, np.stack(v.du), 0.0)
        dprojected[t] = np.where(active, np.stack(v.dx), 0.0).swapaxes(0, 1)
        for k, phase in enumerate(p.cell.phases):
            operand = np.where(active, operands[k], 0.0)
            for g in phase.gates:
                dR[g] += du[g].T @ operand
        for g in range(G):
            seen = cells[t] if p.cell.output_sees_new_cell and g == G - 1 else v.c
            dp[g] += (du[g] * np.where(active, seen, 0.0)).sum(0)
        db2 += du[-1].sum(0)

    packed = dprojected[:, :, np.argsort(order)]  # back to the caller's gate order
    if run.W is None:
        totals["source"].reshape(T, N, D, G, H)[:, :, number] += packed
    else:
        totals["source"] += np.einsum("tngh,ghi->tni", dprojected, run.W)
        x = np.where(run.active, run.x, 0.0)
        totals["input_weight"].reshape(D, G, H, p.I)[number] = np.einsum("tngh,tni->ghi", packed, x)
    back = np.argsort(order)
    totals["recurrent_weight"].reshape(D, G, H, H)[number] = dR[back]
    if p.bias is not None:
        totals["bias"].reshape(D, G, H)[number] = packed.sum((0, 1))
    if p.peephole is not None:
        totals["peephole"].reshape(D, G, H)[number] = dp[back]
    if p.init_state is not None:
        totals["init_state"].reshape(N, D, H)[:, number] = dh
    if p.init_cell is not None:
        totals["init_cell"].reshape(N, D, H)[:, number] = dc
    if p.secondary_bias is not None:
        totals["secondary_bias"].reshape(D, H)[number] = db2


def _work_dtype(p: Problem) -> np.dtype[Any]:
    given = (getattr(p, name) for name in p.__slots__)
    is_complex = any(isinstance(array, np.ndarray) and array.dtype.kind == "c" for array in given)
    return np.dtype(np.complex128 if is_complex else np.float64)
