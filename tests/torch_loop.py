"""The formulas of docs/operations.md once more, as a torch loop for autograd. Shares nothing with gatewise.cells."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def _activation(code: int, x: Tensor) -> Tensor:
    if code == 0:
        return x
    if code == 1:
        return torch.relu(x)
    if code == 2:
        return torch.tanh(x)
    if code == 3:
        return torch.sigmoid(x)
    line = 0.2 * x + 0.5
    return torch.where((line > 0) & (line < 1), line, (line.detach() >= 1).to(line.dtype))


def _split(packed: Tensor, names: str) -> dict[str, Tensor]:
    """Gates by letter from the last axis."""
    return dict(zip(names, packed.chunk(len(names), -1), strict=True))


def _lstm_step(d: Any, names: str, x: Tensor, h: Tensor, c: Tensor, m: Tensor, a: dict[str, Any]) -> tuple[Any, ...]:
    sums = _split(x + (h * m) @ a["recurrent_weight"].T, names)
    if a["peephole"] is not None:
        p = _split(a["peephole"], names)
        seen_by_output = names if d.output_peephole == "previous" else names.replace("o", "")
        for gate in seen_by_output:
            sums[gate] = sums[gate] + p[gate] * c
    i = _activation(d.input_gate_activation, sums["i"])
    f = _activation(d.forget_gate_activation, sums["f"])
    z = _activation(d.cell_gate_activation, sums["z"])
    c_new = f * c + i * z
    if a["peephole"] is not None and d.output_peephole == "current":
        sums["o"] = sums["o"] + p["o"] * c_new
    o = _activation(d.output_gate_activation, sums["o"])
    gates = {"i": i, "f": f, "z": z, "o": o}
    return o * _activation(d.activation, c_new), c_new, torch.cat([gates[gate] for gate in names], -1)


def _gru_step(d: Any, names: str, x: Tensor, h: Tensor, c: Tensor, m: Tensor, a: dict[str, Any]) -> tuple[Any, ...]:
    xs = _split(x, names)
    R = dict(zip(names, a["recurrent_weight"].chunk(3, 0), strict=True))
    z = _activation(d.update_gate_activation, xs["z"] + (h * m) @ R["z"].T)
    r = _activation(d.reset_gate_activation, xs["r"] + (h * m) @ R["r"].T)
    if d.reset_after:
        product = (h * m) @ R["o"].T
        if a["secondary_bias"] is not None:
            product = product + a["secondary_bias"]
        o = _activation(d.output_gate_activation, xs["o"] + r * product)
    else:
        o = _activation(d.output_gate_activation, xs["o"] + (h * r * m) @ R["o"].T)
    gates = {"z": z, "r": r, "o": o}
    h_new = (1 - z) * h + z * o if d.flip_z else z * h + (1 - z) * o
    return h_new, c, torch.cat([gates[gate] for gate in names], -1)


def _single_step(d: Any, names: str, x: Tensor, h: Tensor, c: Tensor, m: Tensor, a: dict[str, Any]) -> tuple[Any, ...]:
    z = x + (h * m) @ a["recurrent_weight"].T
    return _activation(d.activation, z), c, z


def run(operation: str, d: Any, a: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """state, cell, z_state over all steps, and the final state and cell [N, D*H]."""
    if operation == "lstm":
        step, names = _lstm_step, "izfo" if d.forget_gate_last else "ifzo"
    elif operation == "gru":
        step, names = _gru_step, "rzo" if d.reset_gate_first else "zro"
    else:
        step, names = _single_step, "z"
    D = 2 if d.bidirectional else 1
    outs = [_direction(step, names, d, k, D, a) for k in range(D)]
    return tuple(torch.cat(parts, -1) for parts in zip(*outs, strict=True))  # type: ignore[return-value]


def _direction(step: Any, names: str, d: Any, k: int, D: int, a: dict[str, Any]) -> tuple[Tensor, ...]:
    T, N, _ = a["source"].shape
    H = a["recurrent_weight"].shape[-1]
    zeros = a["source"].new_zeros

    def half(name: str, axis: int) -> Any:
        return None if a.get(name) is None else a[name].chunk(D, axis)[k]

    mine = {
        "recurrent_weight": a["recurrent_weight"][k] if D == 2 else a["recurrent_weight"],
        "peephole": None if a.get("peephole") is None else (a["peephole"][k] if D == 2 else a["peephole"]),
        "secondary_bias": half("secondary_bias", 0),
    }
    weight, bias = half("input_weight", 0), half("bias", 0)
    xs = a["source"] @ weight.T if weight is not None else half("source", 2)
    if bias is not None:
        xs = xs + bias
    h = zeros((N, H)) if a.get("init_state") is None else half("init_state", -1).reshape(N, H)
    c = zeros((N, H)) if a.get("init_cell") is None else half("init_cell", -1).reshape(N, H)
    full = zeros((T, N, D * H)) + (1 if a.get("mask") is None else a["mask"])
    mask = full.chunk(D, -1)[k]
    states: list[Any] = [None] * T
    cells: list[Any] = [None] * T
    gates: list[Any] = [None] * T
    backwards = k == 1 or (d.reverse and not d.bidirectional)
    for t in reversed(range(T)) if backwards else range(T):
        before_h, before_c = h, c
        if a.get("resets") is not None:
            fresh = a["resets"][t][:, None]
            before_h, before_c = torch.where(fresh, 0.0, h), torch.where(fresh, 0.0, c)
        new_h, new_c, gate = step(d, names, xs[t], before_h, before_c, mask[t], mine)
        if a.get("lengths") is not None:
            active = (t < a["lengths"])[:, None]
            states[t], cells[t], gates[t] = (torch.where(active, value, 0.0) for value in (new_h, new_c, gate))
            h, c = torch.where(active, new_h, h), torch.where(active, new_c, c)
        else:
            states[t], cells[t], gates[t] = h, c, _ = new_h, new_c, gate
    return torch.stack(states), torch.stack(cells), torch.stack(gates), h, c
