"""How the relay kernel is cut (native/cuda/relay_forward.cu): some warps multiply, others do the maths, and the two passes over
the rows of a block take turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...cells import Cell
from .driver import Device
from .tiling import THREADS, Tiling, ceil_div, piece_rows_for

_MATHS_THREADS = 128  # for each half of the rows
_LOOK_AFTER = 700  # cycles: between handing on and looking for what others handed on
# Fitted to 120 ways to cut an LSTM or a GRU on an H200: microseconds of a step; for a million bytes of weights in shared
# memory; of sums there; that all blocks read of L2; for a gate of a pair of points of every thread; for 10^9 flops of the
# input's product in 16 bits, for I = H.
_TIMES = (0.45, 5.0, 7.5, 0.1, 0.2, 1.6)


@dataclass(frozen=True)
class RelayTiling(Tiling):
    """One way to cut a forward call."""

    threads: ClassVar[int] = THREADS + 2 * _MATHS_THREADS
    registers: ClassVar[int] = 160  # of a thread that multiplies

    @property
    def family(self) -> str:
        return "relay"

    @property
    def source(self) -> str:
        return "relay_forward.cu"

    def working_registers(self) -> int:
        return 40 + (self.tiles(0) + self.chunks(0)) * self.column_tiles * 4

    def reduction_bytes(self) -> int:
        return super().reduction_bytes() // 2  # one buffer

    @property
    def shared_bytes(self) -> int:
        return self.weight_bytes(0) * self.shared[0] + self.reduction_bytes() + 5 * 8 + 2 * 4  # barriers and clocks

    def macros(self) -> dict[str, str]:
        return super().macros() | {"GATEWISE_HOPPER": "1", "GATEWISE_MATHS_THREADS": str(_MATHS_THREADS)}

    def look_after(self, N: int, directions: int) -> int:
        return _LOOK_AFTER

    def predict(self, N: int, directions: int) -> float:
        """Microseconds per step, by estimate."""
        step, weights, sums, read, gate, flops = _TIMES
        gates = len(self.cell.gates)
        pairs = ceil_div(self.units // 16 * self.column_tiles * 64, _MATHS_THREADS)
        return (
            step
            + (weights * self.weight_bytes(0) * self.shared[0] + sums * self.reduction_bytes()) / 1e6
            + read * self.groups * directions * self.blocks * self.operand_bytes() / 1e6
            + gate * gates * pairs
            + flops * 1e-9 * self.element_bytes * N * directions * gates * self.H * self.H
        )


def candidates(cell: Cell, N: int, H: int, directions: int, element_bytes: int, device: Device) -> list[RelayTiling]:
    """The ways that fit and keep R on the chip. Cells with a second product in a step, or with one gate, are left to the other
    kernels."""
    found: list[RelayTiling] = []
    if device.major != 9 or not device.cooperative or len(cell.phases) > 1 or len(cell.gates) < 3:
        return found
    for units in (16, 32, 48, 64):
        for column_tiles in (1, 2):
            groups = ceil_div(N, 16 * column_tiles)
            tiling = RelayTiling(
                cell, False, H, element_bytes, units, 1, column_tiles, False, 2, groups, piece_rows=piece_rows_for(N)
            )
            if tiling.working_registers() > tiling.registers or tiling.blocks * groups * directions > device.sm_count:
                continue
            tiling = tiling.placed(device.shared_limit)
            if tiling.streamed(0) == 0 and tiling.shared_bytes <= device.shared_limit:
                found.append(tiling)
    return found
