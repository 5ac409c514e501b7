"""GRU: z, r, o gates, in both reset forms and with the update gate either way round."""

from __future__ import annotations

from .cell import Cell, Phase, Values

_Z, _R, _O = range(3)


def _blend(flip_z: bool, z: object, old: object, new: object) -> object:
    """The next state: the update gate keeps the old value, or takes the new one when flipped."""
    keep, take = (1.0 - z, z) if flip_z else (z, 1.0 - z)  # type: ignore[operator]
    return keep * old + take * new  # type: ignore[operator]


def _blend_gradient(flip_z: bool, v: Values) -> tuple[object, object, object]:
    """Gradients of z, of the old state and of the new value through `_blend`."""
    z, _, o = v.gate
    if flip_z:
        return v.dh * (o - v.h), v.dh * (1.0 - z), v.dh * z
    return v.dh * (v.h - o), v.dh * z, v.dh * (1.0 - z)


# Reset after: one phase.


def _after_forward(flip_z: bool, v: Values) -> None:
    z = v.activate(_Z, v.x[_Z] + v.u[_Z])
    r = v.activate(_R, v.x[_R] + v.u[_R])
    o = v.activate(_O, v.x[_O] + r * (v.u[_O] + v.b2))
    v.gate = [z, r, o]
    v.h_next = _blend(flip_z, z, v.h, o)


def _after_gradient(flip_z: bool, v: Values) -> None:
    z, r, o = v.gate
    dz, v.h_prev, do = _blend_gradient(flip_z, v)
    dx_o = (do + v.dgate[_O]) * v.slope(_O, o)
    du_z = (dz + v.dgate[_Z]) * v.slope(_Z, z)
    du_r = (dx_o * v.q + v.dgate[_R]) * v.slope(_R, r)
    v.du = [du_z, du_r, dx_o * r]
    v.dx = [du_z, du_r, dx_o]


# Reset before: z and r first, then the output gate's product with h * r * m.


def _before_forward_gates(v: Values) -> None:
    z = v.activate(_Z, v.x[_Z] + v.u[_Z])
    r = v.activate(_R, v.x[_R] + v.u[_R])
    v.gate[_Z], v.gate[_R] = z, r
    v.operand = v.h * r * v.m


def _before_forward_output(flip_z: bool, v: Values) -> None:
    o = v.activate(_O, v.x[_O] + v.u[_O])
    v.gate[_O] = o
    v.h_next = _blend(flip_z, v.gate[_Z], v.h, o)


def _before_gradient_output(flip_z: bool, v: Values) -> None:
    _, v.h_prev, do = _blend_gradient(flip_z, v)
    v.du[_O] = v.dx[_O] = (do + v.dgate[_O]) * v.slope(_O, v.gate[_O])


def _before_gradient_gates(flip_z: bool, v: Values) -> None:
    z, r, _ = v.gate
    dz, h_prev, _ = _blend_gradient(flip_z, v)
    masked = v.e * v.m
    v.du[_Z] = v.dx[_Z] = (dz + v.dgate[_Z]) * v.slope(_Z, z)
    v.du[_R] = v.dx[_R] = (masked * v.h + v.dgate[_R]) * v.slope(_R, r)
    v.h_prev = h_prev + masked * r
    v.operand = v.h * r * v.m


def _cell(name: str, reset_after: bool, flip_z: bool) -> Cell:
    if reset_after:
        phases: tuple[Phase, ...] = (
            Phase((_Z, _R, _O), lambda v: _after_forward(flip_z, v), lambda v: _after_gradient(flip_z, v)),
        )
    else:
        phases = (
            Phase((_Z, _R), _before_forward_gates, lambda v: _before_gradient_gates(flip_z, v)),
            Phase((_O,), lambda v: _before_forward_output(flip_z, v), lambda v: _before_gradient_output(flip_z, v)),
        )
    return Cell(
        name=name,
        operation="gru",
        gates=("z", "r", "o"),
        activations=("update_gate_activation", "reset_gate_activation", "output_gate_activation"),
        default_activations=(3, 3, 2),
        phases=phases,
        needs_product=reset_after,
        dx_differs=reset_after,
    )


GRU_BEFORE = _cell("GruBefore", False, False)
GRU_BEFORE_FLIPPED = _cell("GruBeforeFlipped", False, True)
GRU_AFTER = _cell("GruAfter", True, False)
GRU_AFTER_FLIPPED = _cell("GruAfterFlipped", True, True)
