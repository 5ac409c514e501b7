"""How the wide persistent kernel is cut (native/cuda/wide.cuh) and what that takes of a multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...cells import Cell
from .driver import Device
from .tiling import ceil_div

_STRIP = 64
_RING = 4  # strips on their way or being multiplied
HELD = 28  # fragments of weights a thread has registers for
_FRAGMENT_BYTES = 2048
# Fitted to 13 ways to cut an LSTM on an H200, in microseconds for a step.
_STEP, _ROW, _STRIP_TIME, _MORE_PARTS = 1.0, 0.014, 0.21, 0.07  # for the exchange, a row, a strip; units divided: a strip
_READ = 0.033  # for a million bytes that all blocks together read from L2
_FLOPS = 1.5e-9  # for a flop of the input's product, which the other families' predictions include, for I = H


@dataclass(frozen=True)
class WideTiling:
    """One way to cut a forward call."""

    cell: Cell
    H: int
    divides_k: bool
    rows: int
    groups: int  # of `blocks` blocks, for each direction
    held: int = 0

    family = "wide"
    source = "wide_forward.cu"
    cooperative = True
    cluster = 1
    threads = 384
    element_bytes = 2

    @property
    def phases(self) -> range:
        return range(1)

    @property
    def units(self) -> int:
        return 16 if self.divides_k else 32

    @property
    def strips(self) -> int:
        return ceil_div(self.H, _STRIP)

    @property
    def padded(self) -> int:
        return self.strips * _STRIP

    @property
    def blocks(self) -> int:
        return self.padded // self.units

    @property
    def fragments(self) -> int:
        """Of a warp group's weights."""
        return self.strips * (2 if self.divides_k else 4)

    @property
    def shared_bytes(self) -> int:
        weights = 2 * (self.fragments - self.held) * _FRAGMENT_BYTES
        sums = (2 if self.divides_k else 1) * self.rows * (4 * self.units + 4) * 4
        return weights + _RING * (_STRIP * self.rows * 2 + 16) + sums + 4 * self.rows

    @property
    def packed_bytes(self) -> int:
        """Of the weights of one direction in the order the tensor cores take them."""
        return self.blocks * 2 * self.fragments * _FRAGMENT_BYTES

    def counters(self, directions: int) -> int:
        """Of blocks that handed on."""
        return self.groups * directions * self.blocks

    def exchange_bytes(self, directions: int) -> int:
        return 2 * self.groups * directions * self.padded * self.rows * 2

    def macros(self) -> dict[str, str]:
        return {
            "GATEWISE_WIDE": "1",
            "GATEWISE_DIVIDES_K": str(int(self.divides_k)),
            "GATEWISE_ROWS": str(self.rows),
            "GATEWISE_RING": str(_RING),
            "GATEWISE_HELD": str(self.held),
        }

    def __str__(self) -> str:
        return (
            f"{self.groups} groups of {self.blocks} blocks per direction, {self.units} units each, {self.rows} rows; warp "
            f"groups divide the {'sums' if self.divides_k else 'units'}; weights of a warp group: {self.held} fragments in "
            f"registers, {self.fragments - self.held} in shared memory"
        )

    def predict(self, N: int, directions: int) -> float:
        """Microseconds per step, by estimate."""
        strips = self.strips * (_STRIP_TIME + (0.0 if self.divides_k else _MORE_PARTS))
        read = self.groups * directions * self.blocks * self.rows * self.padded * 2 / 1e6
        flops = 2 * N * directions * len(self.cell.gates) * self.H * self.H
        return _STEP + _ROW * self.rows + strips + _READ * read + _FLOPS * flops


def candidates(cell: Cell, N: int, H: int, directions: int, device: Device) -> list[WideTiling]:
    """The ways that fit, with as few weights in registers as possible: the instructions take them slower from there. Cells with
    a second product in a step, or with one gate, are left to the other kernels."""
    found: list[WideTiling] = []
    if device.major != 9 or not device.cooperative or len(cell.phases) > 1 or len(cell.gates) < 3:
        return found
    for divides_k in (False, True):
        for rows in (16, 32, 64):
            tiling = WideTiling(cell, H, divides_k, rows, ceil_div(N, rows))
            excess = tiling.shared_bytes - device.shared_limit
            tiling = replace(tiling, held=max(0, ceil_div(excess, 2 * _FRAGMENT_BYTES)))
            if tiling.held <= min(HELD, tiling.fragments) and tiling.counters(directions) <= device.sm_count:
                found.append(tiling)
    return found
