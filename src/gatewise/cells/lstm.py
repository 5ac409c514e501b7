"""LSTM: i, f, z, o gates, with an optional peephole on all four."""

from __future__ import annotations

from typing import Any

from .cell import Cell, Phase, Values

_I, _F, _Z, _O, _CELL = range(5)


def _forward(peephole: bool, output_sees_new_cell: bool, v: Values) -> None:
    def gate(g: int, c: Any) -> Any:
        before = v.x[g] + v.u[g]
        return v.activate(g, before + v.p[g] * c if peephole else before)

    i, f, z = gate(_I, v.c), gate(_F, v.c), gate(_Z, v.c)
    v.c_next = f * v.c + i * z
    o = gate(_O, v.c_next if output_sees_new_cell else v.c)
    v.h_next = o * v.activate(_CELL, v.c_next)
    v.gate = [i, f, z, o]


def _gradient(peephole: bool, output_sees_new_cell: bool, v: Values) -> None:
    i, f, z, o = v.gate
    y = v.activate(_CELL, v.c_next)
    du_o = (v.dh * y + v.dgate[_O]) * v.slope(_O, o)
    dc = v.dc + v.dh * o * v.slope(_CELL, y)
    if output_sees_new_cell:
        dc = dc + du_o * v.p[_O]
    du_i = (dc * z + v.dgate[_I]) * v.slope(_I, i)
    du_f = (dc * v.c + v.dgate[_F]) * v.slope(_F, f)
    du_z = (dc * i + v.dgate[_Z]) * v.slope(_Z, z)
    c_prev = dc * f
    if peephole:
        c_prev = c_prev + du_i * v.p[_I] + du_f * v.p[_F] + du_z * v.p[_Z]
        if not output_sees_new_cell:
            c_prev = c_prev + du_o * v.p[_O]
    v.c_prev = c_prev
    v.h_prev = 0.0
    v.du = v.dx = [du_i, du_f, du_z, du_o]


def _restore(v: Values) -> None:
    v.h_next = v.gate[_O] * v.activate(_CELL, v.c_next)


def _cell(name: str, peephole: bool, output_sees_new_cell: bool) -> Cell:
    return Cell(
        name=name,
        operation="lstm",
        gates=("i", "f", "z", "o"),
        activations=(
            "input_gate_activation",
            "forget_gate_activation",
            "cell_gate_activation",
            "output_gate_activation",
            "activation",
        ),
        default_activations=(3, 3, 2, 3, 2),
        phases=(
            Phase(
                (_I, _F, _Z, _O),
                lambda v: _forward(peephole, output_sees_new_cell, v),
                lambda v: _gradient(peephole, output_sees_new_cell, v),
            ),
        ),
        restore=_restore,
        has_cell=True,
        peephole=peephole,
        output_sees_new_cell=output_sees_new_cell,
    )


LSTM = _cell("Lstm", False, False)
LSTM_PEEPHOLE = _cell("LstmPeephole", True, False)
LSTM_PEEPHOLE_CURRENT = _cell("LstmPeepholeCurrent", True, True)
