"""What a call did on the GPU, to do it again on other arrays of the same layout without working it out again.

While a call runs for the first time, its `Tape` notes every launch, product and memory set. Pointers among their arguments
are `Pointer`s: integers that know from which argument, result or piece of scratch memory they come and how far into it
they point. So the tape can put in the pointers of later arrays. It holds no memory itself, and many threads may run it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...device_arrays import CudaKind, dtype_of
from . import driver
from .products import Product, multiplier

_MOST_ENTRIES = 64  # a call with more (a launch for each step) gains nothing worth the memory
_SCRATCH = "scratch memory"


class Pointer(int):
    """An address in a named region: an argument, a result (by its number) or the scratch memory."""

    region: str | int
    offset: int

    def __new__(cls, value: int, region: str | int, offset: int = 0) -> Pointer:
        made = super().__new__(cls, value)
        made.region, made.offset = region, offset
        return made

    def __add__(self, more: int) -> Pointer:
        return Pointer(int(self) + more, self.region, self.offset + more)


class _Row:
    """Integers to pack, some of them pointers."""

    def __init__(self, values: Sequence[int], place: dict[str | int, int]) -> None:
        self.values = [int(value) for value in values]
        self.moving = [(i, place[v.region], v.offset) for i, v in enumerate(values) if isinstance(v, Pointer)]
        self.pack = struct.Struct(f"<{len(self.values)}q").pack

    def packed(self, bases: list[int]) -> bytes:
        values = self.values[:]
        for i, region, offset in self.moving:
            values[i] = bases[region] + offset
        return self.pack(*values)


class Tape:
    """The doings of one call, in order."""

    def __init__(self, kind: CudaKind) -> None:
        self._kind = kind
        self._entries: list[tuple[Any, ...]] = []
        self._results: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
        self._scratch = 0
        self._regions: dict[str | int, int] = {}

    def result(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        """Note a result; its region."""
        self._results.append((shape, dtype))
        return len(self._results) - 1

    def scratch(self, pointer: int, offset: int, size: int) -> Pointer:
        self._scratch = max(self._scratch, offset + size)
        return Pointer(pointer, _SCRATCH, offset)

    def launch(self, launch: driver.Launch, rows: tuple[Sequence[int], ...]) -> None:
        self._note(launch, rows)

    def product(self, product: Product, pointers: tuple[int, ...]) -> None:
        self._note(product, pointers)

    def set(self, how: Callable[[int, int, int], None], pointer: int, size: int) -> None:
        """`how(pointer, size, stream)` sets memory."""
        self._note(how, pointer, size)

    def _note(self, *entry: Any) -> None:
        if len(self._entries) <= _MOST_ENTRIES:
            self._entries.append(entry)

    def close(self) -> bool:
        """Put the entries into the form `run` takes; whether the tape can be kept."""
        if not self._kind.replays or len(self._entries) > _MOST_ENTRIES:
            return False
        found = {pointer.region for entry in self._entries for pointer in _pointers(entry) if isinstance(pointer.region, str)}
        self._names = sorted(found - {_SCRATCH})
        regions: list[str | int] = [*self._names, *range(len(self._results)), _SCRATCH]
        place = {region: number for number, region in enumerate(regions)}
        self._rows: list[_Row] = []
        numbers: dict[int, int] = {}  # of rows; launches that share one share its packing

        def row(values: Sequence[int]) -> int:
            if id(values) not in numbers:
                numbers[id(values)] = len(self._rows)
                self._rows.append(_Row(values, place))
            return numbers[id(values)]

        def at(pointer: int) -> tuple[int, int]:
            assert isinstance(pointer, Pointer)
            return place[pointer.region], pointer.offset

        steps: list[tuple[Any, ...]] = []
        for what, *rest in self._entries:
            if isinstance(what, driver.Launch):
                steps.append((0, what, [row(values) for values in rest[0]]))
            elif isinstance(what, Product):
                steps.append((1, what, [at(pointer) for pointer in rest[0]]))
            else:
                steps.append((2, what, (*at(rest[0]), rest[1])))
        self._steps = steps
        self._entries = []
        return True

    def run(self, given: dict[str, Any]) -> list[Any]:
        """The call again, on these arguments; the results in the order they were noted."""
        kind = self._kind
        driver.activate(kind.index)
        stream = kind.stream()
        bases = [kind.pointer(given[name]) for name in self._names]
        results = []
        for shape, dtype in self._results:
            owner, pointer = kind.allocate(shape, dtype)
            results.append(owner)
            bases.append(pointer)
        scratch, pointer = kind.allocate((self._scratch,), _BYTE)  # lives until everything is on the stream
        bases.append(pointer)
        rows = [row.packed(bases) for row in self._rows]
        for code, what, rest in self._steps:
            if code == 0:
                what(stream, *[rows[number] for number in rest])
            elif code == 1:
                multiplier(kind)(stream, what, *[bases[region] + offset for region, offset in rest])
            else:
                what(bases[rest[0]] + rest[1], rest[2], stream)
        del scratch
        return results


_BYTE = dtype_of("uint8")


def _pointers(entry: Any) -> list[Pointer]:
    if isinstance(entry, Pointer):
        return [entry]
    if isinstance(entry, (tuple, list)):
        return [pointer for part in entry for pointer in _pointers(part)]
    return []
