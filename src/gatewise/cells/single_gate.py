"""Single-gate RNN: the state is the activation of one gate, whose value before the activation is kept."""

from __future__ import annotations

from .cell import Cell, Phase, Values


def _forward(v: Values) -> None:
    z = v.x[0] + v.u[0]
    v.gate = [z]
    v.h_next = v.activate(0, z)


def _gradient(v: Values) -> None:
    y = v.activate(0, v.gate[0])
    v.du = v.dx = [v.dh * v.slope(0, y) + v.dgate[0]]
    v.h_prev = 0.0


def _restore(v: Values) -> None:
    v.h_next = v.activate(0, v.gate[0])


SINGLE_GATE = Cell(
    name="SingleGate",
    operation="single_gate_rnn",
    gates=("z",),
    activations=("activation",),
    default_activations=(1,),
    phases=(Phase((0,), _forward, _gradient),),
    restore=_restore,
)
