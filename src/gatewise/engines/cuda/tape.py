"""What a call does on the GPU, worked out before any of it is done, to do at once and again on other arrays of the same layout.

A call notes its launches, products and memory sets on a `Tape`. Pointers among their arguments are `Pointer`s: they know the
argument, result or piece of scratch memory they point into, which need not be there yet. The tape is run by the native module
(native/replay), which puts in where the arrays of that run are. It holds no memory, and many threads may run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

import numpy as np

from ... import _native
from ...device_arrays import ALIGNMENT, CudaKind, dtype_of
from . import driver, products

_MOST_ENTRIES = 4096  # of a tape that is kept: a call with more (a launch for each step) is not worth the memory
_SCRATCH_ALIGNMENT = 256
_SCRATCH = 0  # the number of its region; those of the arguments follow, then those of the results


class Pointer(int):
    """How far into a region: an argument, a result or the scratch memory."""

    region: int

    def __new__(cls, region: int, offset: int = 0) -> Pointer:
        made = super().__new__(cls, offset)
        made.region = region
        return made

    def __add__(self, more: int) -> Pointer:
        return Pointer(self.region, int(self) + more)


def _place(pointer: int) -> tuple[int, int]:
    assert isinstance(pointer, Pointer)
    return pointer.region, int(pointer)


class Tape:
    """The doings of one call, in order, on arguments of these names."""

    def __init__(self, kind: CudaKind, names: Sequence[str]) -> None:
        self._kind = kind
        self._names = names
        self._makers: list[Callable[[], Any]] = []  # of results
        self._scratch = 0
        self._multiplies = False
        self._entries = 0
        self._rows: dict[int, tuple[Sequence[int], int]] = {}  # by id: the row, kept so that no other has it; its number
        self._native = _native.Tape(driver.addresses(products.address()), driver.primary_context(kind.index))

    def argument(self, number: int) -> Pointer:
        return Pointer(1 + number)

    def result(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Pointer:
        self._makers.append(self._kind.maker(shape, dtype))
        return Pointer(len(self._names) + len(self._makers))

    def scratch(self, size: int) -> Pointer:
        """Memory that lives as long as the call."""
        start = self._scratch
        self._scratch += -(-size // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
        return Pointer(_SCRATCH, start)

    def launch(self, launch: driver.Launch, *rows: Sequence[int]) -> None:
        """Launch with these kernel parameters, each a row of 64-bit integers. Launches may share a row."""
        self._entries += 1
        self._native.launch(
            launch.function,
            launch.grid,
            launch.threads,
            launch.shared_bytes,
            launch.cooperative,
            launch.cluster,
            [self._row(row) for row in rows],
        )

    def _row(self, values: Sequence[int]) -> int:
        found = self._rows.get(id(values))
        if found is None:
            moving = [(i, *_place(value)) for i, value in enumerate(values) if isinstance(value, Pointer)]
            found = self._rows[id(values)] = values, self._native.row(values, moving)
        return found[1]

    def product(self, product: products.Product, a: int, b: int, c: int) -> None:
        self._entries += 1
        if not self._multiplies:
            self._multiplies = True
            self._native.workspace(_place(self.scratch(products.WORKSPACE)), products.WORKSPACE)
        p, places = product, (_place(b), _place(a), _place(c))
        sizes = dtype_of(p.dtype).itemsize, dtype_of(p.dtype).itemsize, dtype_of(p.result_dtype).itemsize
        steps = p.steps[1], p.steps[0], p.steps[2]
        alignments = tuple(
            gcd(offset, step * size, ALIGNMENT) for (_, offset), step, size in zip(places, steps, sizes, strict=True)
        )
        found = products.planned(self._kind.index, p, alignments)
        self._native.product(found.objects, found.algorithm, (p.n, p.m, p.k), p.dtype == "float64", places)

    def set_bytes(self, value: int, pointer: int, count: int) -> None:
        if count:
            self._entries += 1
            self._native.set(False, value, _place(pointer), count)

    def set_words(self, value: int, pointer: int, count: int) -> None:
        """As `set_bytes`, for words of 4 bytes."""
        if count:
            self._entries += 1
            self._native.set(True, value, _place(pointer), count)

    def close(self) -> None:
        """Nothing more is noted."""
        self._make_scratch = self._kind.maker((self._scratch,), dtype_of("uint8"))
        self._handle = products.handle(self._kind.index) if self._multiplies else 0
        self._rows.clear()

    @property
    def is_worth_keeping(self) -> bool:
        return self._kind.replays and self._entries <= _MOST_ENTRIES

    def run(self, given: dict[str, Any]) -> list[Any] | None:
        """The call on these arguments; the results in the order they were noted. None if one is not aligned."""
        pointer = self._kind.pointer
        arguments = [pointer(given[name]) for name in self._names]
        bits = 0
        for each in arguments:
            bits |= each
        return None if bits % ALIGNMENT else self.run_on(arguments)

    def run_on(self, arguments: list[int]) -> list[Any]:
        """The same, by the arguments' pointers."""
        kind = self._kind
        pointer = kind.pointer
        scratch = self._make_scratch()  # lives until everything is on the stream
        results = [make() for make in self._makers]
        bases = [pointer(scratch), *arguments, *map(pointer, results)]
        stream = kind.stream()
        failure = self._native.run(bases, stream, self._handle)
        if failure is not None:
            raise driver.failed(*failure)
        if kind.synchronises:
            driver.synchronise(stream)
        return results
