"""How the wide persistent kernels are cut (native/cuda/wide.cuh) and what that takes of a multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...cells import Cell
from .driver import Device
from .tiling import ceil_div

_STRIP = 64
_RING = 4  # strips on their way or being multiplied
HELD = 28  # fragments of weights a thread has registers for
_FRAGMENT_BYTES = 2048
_TILES = 8  # of a block, 16 rows of weights each
# Fitted to 32 ways to cut an LSTM or a GRU on an H200, forward and for gradients: microseconds of a step; for a row; for
# a row of a strip; where sums are divided; for a gate of 4 points of every thread; for a million bytes all blocks read of L2.
_TIMES = {False: (2.3, 0.0, 0.00225, 1.45, 0.084, 0.038), True: (3.65, 0.0038, 0.0013, 0.0, 0.136, 0.053)}
_FLOPS = 1.5e-9  # for a flop of the input's product, which the other families' predictions include, for I = H


@dataclass(frozen=True)
class WideTiling:
    """One way to cut a call."""

    cell: Cell
    backward: bool
    H: int
    parts: int  # blocks that divide the sums of a slice
    rows: int
    groups: int  # of `blocks` blocks, for each direction
    held: int = 0

    family = "wide"
    cooperative = True
    cluster = 1
    threads = 384
    element_bytes = 2

    @property
    def source(self) -> str:
        return "wide_gradient.cu" if self.backward else "wide_forward.cu"

    @property
    def phases(self) -> range:
        return range(1)

    @property
    def slice(self) -> int:
        """Units whose sums are made by the same blocks."""
        return 128 if self.backward else 32

    @property
    def units(self) -> int:
        return self.slice // self.parts

    @property
    def padded(self) -> int:
        step = max(self.slice, 1 if self.backward else _STRIP * self.parts)
        return ceil_div(self.H, step) * step

    @property
    def blocks(self) -> int:
        return self.padded // self.units

    @property
    def k(self) -> int:
        """Length of a block's sums."""
        return (len(self.cell.gates) if self.backward else 1) * self.padded // self.parts

    @property
    def fits(self) -> bool:
        """Whether every block has whole strips to multiply, and every thread the same number of points: 4, or 8."""
        return self.k % _STRIP == 0 and self.units * self.rows in (1024, 2048)

    @property
    def fragments(self) -> int:
        """Of a warp group's weights."""
        return self.k // 16

    @property
    def shared_bytes(self) -> int:
        weights = 2 * (self.fragments - self.held) * _FRAGMENT_BYTES
        sums = self._block_sums * 4 if self.parts == 1 else 0
        constants = (2 * len(self.cell.gates) + 1) * self.units * 2
        return weights + _RING * (_STRIP * self.rows * 2 + 16) + sums + constants + 4 * self.rows

    @property
    def packed_bytes(self) -> int:
        """Of the weights of one direction in the order the tensor cores take them."""
        return self.blocks * 2 * self.fragments * _FRAGMENT_BYTES

    def counters(self, directions: int) -> int:
        """Of blocks that handed on a part of the operands."""
        return self.groups * directions * self.parts

    def exchange_bytes(self, directions: int) -> int:
        return 2 * self.groups * directions * self.parts * self.k * self.rows * 2

    @property
    def _block_sums(self) -> int:
        return _TILES * 16 * self.rows

    def sum_words(self, directions: int) -> int:
        """Of the parts of sums that blocks send each other."""
        return 2 * self.groups * directions * self.blocks * self._block_sums

    def macros(self) -> dict[str, str]:
        return {
            "GATEWISE_HOPPER": "1",
            "GATEWISE_BACKWARD": str(int(self.backward)),
            "GATEWISE_PARTS": str(self.parts),
            "GATEWISE_ROWS": str(self.rows),
            "GATEWISE_RING": str(_RING),
            "GATEWISE_HELD": str(self.held),
        }

    def __str__(self) -> str:
        return (
            f"{self.groups} groups of {self.blocks} blocks per direction, {self.units} units each, {self.rows} rows; "
            f"{self.parts} blocks divide a sum; weights of a warp group: {self.held} fragments in registers, "
            f"{self.fragments - self.held} in shared memory"
        )

    def predict(self, N: int, directions: int) -> float:
        """Microseconds per step, by estimate."""
        step, row, strip_row, divided, gate, megabyte = _TIMES[self.backward]
        gates = len(self.cell.gates)
        read = self.groups * directions * self.blocks * self.rows * self.k * 2 / 1e6
        flops = 0 if self.backward else 2 * N * directions * gates * self.H * self.H
        return (
            step
            + row * self.rows
            + strip_row * (self.k // _STRIP) * self.rows
            + (divided if self.parts > 1 else 0.0)
            + gate * gates * (self.units * self.rows // 1024)
            + megabyte * read
            + _FLOPS * flops
        )


def candidates(cell: Cell, backward: bool, N: int, H: int, directions: int, device: Device) -> list[WideTiling]:
    """The ways that fit, with as few weights in registers as possible: the instructions take them slower from there. Cells with
    a second product in a step, or with one gate, are left to the other kernels."""
    found: list[WideTiling] = []
    if device.major != 9 or not device.cooperative or len(cell.phases) > 1 or len(cell.gates) < 3:
        return found
    for parts in (2, 4, 8) if backward else (1, 2):
        for rows in (32, 64):
            tiling = WideTiling(cell, backward, H, parts, rows, ceil_div(N, rows))
            excess = tiling.shared_bytes - device.shared_limit
            tiling = replace(tiling, held=max(0, ceil_div(excess, 2 * _FRAGMENT_BYTES)))
            blocks = tiling.groups * tiling.blocks * directions
            if tiling.fits and tiling.held <= min(HELD, tiling.fragments) and blocks <= device.sm_count:
                found.append(tiling)
    return found
