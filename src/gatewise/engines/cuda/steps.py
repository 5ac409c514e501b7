"""The per-step family: launches for the pointwise maths of a step (native/cuda/steps.cu), products in between."""

from __future__ import annotations

from ...problem import Problem
from . import driver, kernels
from .call import Call
from .products import Matrix
from .tiling import ceil_div

_THREADS = 256  # of a block, in native/cuda/steps.cu


class Steps:
    """The launches and products of one call; adds the memory they share to `values`."""

    def __init__(self, call: Call, values: dict[str, int], input_dtype: str | None = None) -> None:
        self._call = call
        self._values = values
        p = call.problem
        self._cut = kernels.StepsCut(p.cell, p.N, p.H, p.D, call.backward)
        macros = call.macros(input_dtype) | self._cut.macros(call.options)
        self._module = call.prepared.once(("steps", input_dtype), lambda: kernels.module(call.index, "steps.cu", macros))
        plane = p.N * p.D * p.H
        values["carry"] = call.scratch((2 if call.backward else 2 + p.G) * plane, call.sum_dtype)
        values["sums"] = call.scratch(self._sum_planes * plane, call.sum_dtype)
        self._grid = (ceil_div(plane, _THREADS), 1, 1)
        self._row = kernels.arguments(values)

    def launch(self, name: str, *numbers: int) -> None:
        launch = self._call.prepared.once((name, self._module), lambda: driver.Launch(self._module[name], self._grid, _THREADS))
        self._call.launch(launch, self._row, *[(number,) for number in numbers])

    def forward_product(self, phase: int) -> None:
        """The phase's operand with R's rows of its gates."""
        call, p = self._call, self._call.problem
        size, wide = p.dtype.itemsize, _size(call.sum_dtype)
        first, gates = _gates(p, phase)
        for d in range(p.D):
            row = (d * p.G + first) * p.H
            call.product(
                (p.N, gates * p.H, p.H),
                Matrix(self._values[f"operand{phase}"] + d * p.H * size, p.D * p.H),
                Matrix(self._values["recurrent_weight"] + row * p.H * size, p.H, transposed=True),
                Matrix(self._values["sums"] + row * wide, p.D * p.G * p.H),
                call.sum_dtype,
            )

    @property
    def _sum_planes(self) -> int:
        """Planes of [N, D, H] that a product's sums take."""
        p = self._call.problem
        if not self._call.backward:
            return p.G
        return max(_gates(p, phase)[1] for phase in range(len(p.cell.phases))) if self._cut.split else 1

    def gradient_product(self, phase: int, step: int) -> None:
        """The gradients of the phase's gates at a step with R's rows of its gates; a plane for each gate if it is split."""
        call, p = self._call, self._call.problem
        size, wide = p.dtype.itemsize, _size(call.sum_dtype)
        first, gates = _gates(p, phase)
        parts = gates if self._cut.split else 1
        length = gates * p.H // parts
        for d in range(p.D):
            row = (d * p.G + first) * p.H
            t = p.T - 1 - step if p.backwards[d] else step
            call.product(
                (p.N, p.H, length),
                Matrix(self._values["du"] + (t * p.N * p.D * p.G * p.H + row) * size, p.D * p.G * p.H, next=length),
                Matrix(self._values["recurrent_weight"] + row * p.H * size, p.H, next=length * p.H),
                Matrix(self._values["sums"] + d * p.H * wide, p.D * p.H, next=p.N * p.D * p.H),
                call.sum_dtype,
                parts,
            )


def _gates(p: Problem, phase: int) -> tuple[int, int]:
    """A phase's gates are neighbours in every order: the place of the first, and how many."""
    slots = [p.order[gate] for gate in p.cell.phases[phase].gates]
    return min(slots), len(slots)


def _size(dtype: str) -> int:
    return 8 if dtype == "float64" else 4
