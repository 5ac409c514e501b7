"""What a forward and a gradient call share: the GPU, the stream, plain contiguous arguments, scratch memory."""

from __future__ import annotations

from typing import Any

from ...device_arrays import DeviceArray, _dtype
from ...precision import is_highest
from ...problem import Problem
from . import driver, kernels
from .planner import Plan, choose, current_wish
from .products import Matrix, multiplier

_ALIGNMENT = 256


class Call:
    """One checked call on its GPU and stream."""

    def __init__(self, problem: Problem, backward: bool) -> None:
        self.problem = p = problem
        self.kind = p.source.kind
        self.index: int = self.kind.index
        driver.activate(self.index)
        self.stream = self.kind.stream()
        self.dtype = p.dtype.name
        self.exact = is_highest()
        self.rows = p.T * p.N
        self.multiply = multiplier(self.kind)
        self._kept: list[Any] = []
        self.plan: Plan = choose(
            p.cell, backward, p.N, p.H, p.D, self.dtype, self.exact, driver.device(self.index), current_wish()
        )
        self.HP = p.H if self.plan.tiling is None else self.plan.tiling.padded

    def empty(self, shape: tuple[int, ...], dtype: str | None = None) -> DeviceArray:
        made: DeviceArray = self.kind.empty(shape, self.problem.dtype if dtype is None else _dtype(dtype))
        self._kept.append(made)
        return made

    def plain(self, array: DeviceArray | None, lengths: bool = False) -> int:
        """Pointer to the array laid out without gaps, copied if it was not; null for None.

        With `lengths`, a copy of [T, N, ...] that is zero in the steps a row takes no part in.
        """
        if array is None:
            return 0
        if array.contiguous and not lengths:
            return array.pointer
        made = self.empty(array.shape)
        pad = 3 - len(array.shape)
        shape, strides = (1,) * pad + array.shape, (0,) * pad + array.strides
        p = self.problem
        limits = (p.lengths.pointer, p.lengths.dtype.itemsize, p.lengths.strides[0]) if lengths else (0, 0, 0)
        self.copy(array.pointer, made.pointer, shape, strides, (shape[1] * shape[2], shape[2]), limits)
        return made.pointer

    def copy(
        self,
        source: int,
        target: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        pitches: tuple[int, int],
        limits: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        if shape[0] * shape[1] * shape[2]:
            values = driver.pointer_bytes(source, target, *shape, *strides, *pitches, *limits)
            kernels.array_kernels(self.index, self.dtype)["copy"](self.stream, (1056, 1, 1), 256, *values)

    def macros(self, input_dtype: str | None = None) -> dict[str, str]:
        p = self.problem
        return kernels.macros(p.cell, p.activations, p.order, self.dtype, input_dtype or self.dtype, p.H, self.HP)

    def common_arguments(self) -> dict[str, int]:
        """The arguments forward and gradient calls both have."""
        p = self.problem
        values = {
            "T": p.T,
            "N": p.N,
            "D": p.D,
            "backwards": sum(1 << d for d, backwards in enumerate(p.backwards) if backwards),
            "peephole": self.plain(p.peephole),
            "secondary_bias": self.plain(p.secondary_bias),
            "init_state": self.plain(p.init_state),
            "init_cell": self.plain(p.init_cell),
            "recurrent_weight": self.plain(p.recurrent_weight),
        }
        if p.mask is not None:
            pad = 3 - len(p.mask.shape)
            strides = [0] * pad + [
                0 if length == 1 else stride for length, stride in zip(p.mask.shape, p.mask.strides, strict=True)
            ]
            values.update(mask=p.mask.pointer, mask_t=strides[0], mask_n=strides[1], mask_k=strides[2])
        if p.lengths is not None:
            values.update(
                lengths=p.lengths.pointer, lengths_size=p.lengths.dtype.itemsize, lengths_stride=p.lengths.strides[0]
            )
        if p.resets is not None:
            values.update(resets=p.resets.pointer, resets_t=p.resets.strides[0], resets_n=p.resets.strides[1])
        if self.plan.tiling is not None:
            values["weights"] = self.empty((self.plan.tiling.packed_bytes * p.D // 4,), "float32").pointer
        return values

    def product(
        self, shape: tuple[int, int, int], a: Matrix, b: Matrix, c: Matrix, result_dtype: str | None = None
    ) -> None:
        self.multiply(self.stream, shape, a, b, c, self.dtype, result_dtype or self.dtype, self.exact)

    def mark_empty(self, array: DeviceArray) -> None:
        """Fill an array of operands with the word that means `not written yet`."""
        driver.fill(array.pointer, 0xFFFFFFFF, array.size * array.dtype.itemsize // 4, self.stream)

    def finish(self) -> None:
        if self.kind.synchronises:
            driver.synchronise(self.stream)
