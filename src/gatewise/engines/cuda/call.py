"""What a forward and a gradient call share: the GPU, plain contiguous arguments, scratch memory.

Nothing is done before the call finishes: until then it is noted on a tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from ...device_arrays import DeviceArray, dtype_of, packed_strides
from ...precision import is_highest
from ...problem import Problem
from . import driver, kernels, products
from .planner import Plan, choose, current_wish
from .products import Matrix, Product
from .tape import Pointer, Tape
from .wide_tiling import WideTiling

_MOST_PREPARED = 1024
_GIVEN_AS = {"cell_output": "cell_output_fwd", "output": "output_fwd"}  # fields of a problem not named as its argument
_Made = TypeVar("_Made")


@lru_cache(maxsize=64)
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # NumPy works it out every time


def _integer_type(dtype: np.dtype[Any]) -> int:
    """How the kernels number integer types: bytes, plus 16 if unsigned."""
    return dtype.itemsize + (16 if dtype.kind == "u" else 0)


class Prepared:
    """What calls of the same kind and sizes share: the plan, and what was made for it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.packed_bytes = 0 if plan.tiling is None else plan.tiling.packed_bytes
        self.HP = None if plan.tiling is None else plan.tiling.padded
        self._made: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], _Made]) -> _Made:
        """`make()`, the first time it is asked for."""
        if key not in self._made:
            self._made[key] = make()
        found: _Made = self._made[key]
        return found


_prepared: dict[Any, Prepared] = {}


class Call:
    """One checked call on its GPU. The arrays of its `problem` have pointers for the tape."""

    def __init__(self, problem: Problem, backward: bool) -> None:
        p = problem
        self.kind = p.source.kind
        self.index: int = self.kind.index
        self.dtype = _name(p.dtype)
        self.sum_dtype = "float64" if self.dtype == "float64" else "float32"
        self.exact = is_highest()
        self.backward = backward
        self.rows = p.T * p.N
        self.options = kernels.options(p, backward)
        key = (
            p.cell.name, p.activations, p.order, backward, p.T, p.N, p.I, p.H, p.D, self.dtype, self.exact, self.index,
            self.options, p.input_weight is None, current_wish(),
        )  # fmt: skip
        prepared = _prepared.get(key)
        if prepared is None:
            if len(_prepared) >= _MOST_PREPARED:
                _prepared.clear()
            device = driver.device(self.index)
            plan = choose(p.cell, backward, p.N, p.H, p.D, self.dtype, self.exact, device, current_wish())
            prepared = _prepared[key] = Prepared(plan)
        self.prepared = prepared
        self.plan = prepared.plan
        self.HP: int = prepared.HP or p.H
        self._given = problem
        self._results: list[DeviceArray] = []
        arrays = {field.name: getattr(p, field.name) for field in fields(p)}
        arrays = {name: array for name, array in arrays.items() if isinstance(array, DeviceArray)}
        self._arguments = [array.pointer for array in arrays.values()]
        self.tape = Tape(self.kind, [_GIVEN_AS.get(name, name) for name in arrays])
        self._crooked = {k + 1 for k, array in enumerate(arrays.values()) if not array.aligned}  # regions of the tape
        places = {name: replace(array, pointer=self.tape.argument(k)) for k, (name, array) in enumerate(arrays.items())}
        self.problem = replace(p, **places)

    def scratch(self, count: int, dtype: str | None = None) -> int:
        """Pointer to memory for `count` elements that lives as long as the call."""
        return self.tape.scratch(count * (self.problem.dtype if dtype is None else dtype_of(dtype)).itemsize)

    def result(self, shape: tuple[int, ...]) -> DeviceArray:
        """An array that is there when the call has finished."""
        dtype = self.problem.dtype
        made = DeviceArray(None, self.kind, self.tape.result(shape, dtype), shape, packed_strides(shape), dtype)
        self._results.append(made)
        return made

    def launch(self, launch: driver.Launch, *rows: Sequence[int]) -> None:
        """Launch with these kernel parameters, each a row of 64-bit integers."""
        self.tape.launch(launch, *rows)

    def clear(self, pointer: int, size: int) -> None:
        """Set `size` bytes to zero."""
        self.tape.set_bytes(0, pointer, size)

    def plain(self, array: DeviceArray | None, lengths: bool = False) -> int:
        """Pointer to the array laid out without gaps and aligned, copied if it was not; null for None.

        With `lengths`, a copy of [T, N, ...] that is zero in the steps a row takes no part in.
        """
        if array is None:
            return 0
        assert isinstance(array.pointer, Pointer)
        if array.contiguous and array.pointer.region not in self._crooked and not lengths:
            return array.pointer
        made = self.scratch(array.size)
        pad = 3 - len(array.shape)
        shape, strides = (1,) * pad + array.shape, (0,) * pad + array.strides
        p = self.problem
        limits = (p.lengths.pointer, _integer_type(p.lengths.dtype), p.lengths.strides[0]) if lengths else (0, 0, 0)
        self.copy(array.pointer, made, shape, strides, (shape[1] * shape[2], shape[2]), limits)
        return made

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
            values = (source, target, *shape, *strides, *pitches, *limits)
            launch = driver.Launch(kernels.array_kernels(self.index, self.dtype)["copy"], (kernels.BLOCKS, 1, 1), 256)
            self.launch(launch, *[(value,) for value in values])

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
                lengths=p.lengths.pointer, lengths_type=_integer_type(p.lengths.dtype), lengths_stride=p.lengths.strides[0]
            )
        if p.resets is not None:
            values.update(resets=p.resets.pointer, resets_t=p.resets.strides[0], resets_n=p.resets.strides[1])
        if self.plan.tiling is not None:
            values["weights"] = self.scratch(self.prepared.packed_bytes * p.D, "uint8")
        return values

    def product(
        self,
        shape: tuple[int, int, int],
        a: Matrix,
        b: Matrix,
        c: Matrix,
        result_dtype: str | None = None,
        count: int = 1,
    ) -> None:
        """c[m, n] = a[m, k] b[k, n]; `count` of them side by side."""
        m, n, k = shape
        product = Product(
            m, n, k, a.pitch, a.transposed, b.pitch, b.transposed, c.pitch, self.dtype, result_dtype or self.dtype, self.exact,
            count, (a.next, b.next, c.next) if count > 1 else (0, 0, 0),
        )  # fmt: skip
        pointers = a.pointer, b.pointer, c.pointer
        if products.is_library():
            self.tape.product(product, *pointers)
            return
        for launch, rows in products.plain(self.index, product, *pointers):
            self.launch(launch, *rows)

    def _mark_empty(self, pointer: int, words: int) -> None:
        """Fill memory with the word that means `not written yet` (native/cuda/words.cuh)."""
        self.tape.set_words(0xFFFFFFFF, pointer, words)

    def run_persistent(self, values: dict[str, int], input_dtype: str | None = None) -> None:
        """Pack the weights and run all steps."""
        p, tiling = self.problem, self.plan.tiling
        assert tiling is not None
        if isinstance(tiling, WideTiling):
            values["exchange"] = self.scratch(tiling.exchange_bytes(p.D), "uint8")
            counters = tiling.counters(p.D)
            values["counters"] = self.scratch(counters, "uint32")
            self.clear(values["counters"], 4 * counters)
            if tiling.parts > 1:
                words = tiling.sum_words(p.D)
                values["parts"] = self.scratch(words, "uint32")
                self._mark_empty(values["parts"], words)
        elif not tiling.on_chip:
            values["look_after"] = tiling.look_after(p.N, p.D)
            words = p.T * tiling.exchanged_words(p.N, p.D)
            values["exchange"] = self.scratch(words, "uint32")
            self._mark_empty(values["exchange"], words)

        def launches() -> tuple[driver.Launch, driver.Launch]:
            given = self.macros(input_dtype) | kernels.tiling_macros(tiling, self.options)
            loaded = kernels.module(self.index, tiling.source, given)
            return kernels.persistent_launches(loaded, tiling, p.D)

        pack, run = self.prepared.once((tiling.source, input_dtype), launches)
        row = kernels.arguments(values)
        self.launch(pack, row)
        self.launch(run, row)

    def finish(self) -> None:
        """Do all that was noted."""
        self.tape.close()
        if self.tape.is_worth_keeping and not self._crooked:
            self._given.again = self.tape.run
        for array, owner in zip(self._results, self.tape.run_on(self._arguments), strict=True):
            array.owner, array.pointer = owner, self.kind.pointer(owner)
