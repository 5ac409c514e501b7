"""How a persistent kernel is cut (native/cuda/tiles.cuh) and what that takes of a multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from ...cells import Cell

WARPS = 8
THREADS = 32 * WARPS
_BUSY_BYTES = 300 << 10  # that all blocks together read of each other's results in a product

_Placed = TypeVar("_Placed", bound="Tiling")


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def piece_rows_for(N: int) -> int:
    """8, as many as a warp reads at once; with fewer rows in all, memory for 8 of them would be wasted at every step."""
    return min(8, 1 << (N - 1).bit_length())


@dataclass(frozen=True)
class Tiling:
    """One way to cut a call. `held` and `shared` are per phase, as in the kernel."""

    cell: Cell
    backward: bool
    H: int
    element_bytes: int
    units: int
    warps_m: int
    column_tiles: int
    on_chip: bool
    passes: int
    groups: int  # of `blocks` blocks, for each direction
    folded: bool = False  # warps add up their sums in two steps, which takes less shared memory
    piece_rows: int = 8  # that lie together where blocks hand each other operands through device memory
    held: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()

    threads: ClassVar[int] = THREADS
    registers: ClassVar[int] = 240  # of a thread, that its weights and the estimate below may fill

    @property
    def family(self) -> str:
        if not self.on_chip:
            return "grid"
        return "block" if self.blocks == 1 else "cluster"

    @property
    def source(self) -> str:
        """The file in native/cuda."""
        return "persistent_gradient.cu" if self.backward else "persistent_forward.cu"

    @property
    def cooperative(self) -> bool:
        return not self.on_chip

    @property
    def cluster(self) -> int:
        return self.blocks if self.on_chip else 1

    @property
    def blocks(self) -> int:
        return ceil_div(self.H, self.units)

    @property
    def warps_k(self) -> int:
        return WARPS // self.warps_m

    @property
    def padded(self) -> int:
        return self.blocks * self.units

    @property
    def pass_rows(self) -> int:
        return 8 * self.column_tiles

    def k(self, phase: int) -> int:
        return (len(self.cell.phases[phase].gates) if self.backward else 1) * self.padded

    def tiles(self, phase: int) -> int:
        per_warp = self.units // 16 // self.warps_m
        return per_warp if self.backward else per_warp * len(self.cell.phases[phase].gates)

    def chunks(self, phase: int) -> int:
        """64-byte chunks of the sums that each warp adds up."""
        return ceil_div(ceil_div(self.k(phase) * self.element_bytes, 64), self.warps_k)

    def streamed(self, phase: int) -> int:
        return self.chunks(phase) - self.held[phase] - self.shared[phase]

    @property
    def phases(self) -> range:
        return range(len(self.cell.phases))

    @property
    def pairs(self) -> int:
        """Pairs of points a thread works on in a pass."""
        tiles = self.units // 16 * self.column_tiles
        return tiles * 2 // self.warps_m if self.warps_k == 1 else ceil_div(tiles * 64, THREADS)

    def working_registers(self) -> int:
        """Registers of a thread, by estimate, without the weights it holds."""
        depth = {1: 4, 2: 2}.get(self.column_tiles, 1)
        sums = max(self.tiles(phase) for phase in self.phases) * self.column_tiles * 4
        stages = 3 if self.column_tiles >= 3 else 2
        operands = stages * depth * self.column_tiles * 4
        if self.passes > 1 and not self.on_chip:  # the next pass's are in flight meanwhile
            operands += (stages - 1) * depth * self.column_tiles * 4 // 2
        gates = len(self.cell.gates)
        points = self.pairs * 2 * (gates + (8 if self.backward else 4))
        return (56 if self.backward else 40) + sums + operands + points + (4 if self.folded else 0)

    def placed(self: _Placed, shared_limit: int) -> _Placed:
        """With weights in registers first, then shared memory; the rest is streamed."""
        room = max(0, self.registers - self.working_registers())
        held = []
        for phase in self.phases:
            count = min(self.chunks(phase), room // (self.tiles(phase) * 8))
            held.append(count)
            room -= count * self.tiles(phase) * 8
        made = replace(self, held=tuple(held), shared=(0,) * len(held))
        left = shared_limit - made.shared_bytes
        shared = []
        for phase in self.phases:
            count = min(made.streamed(phase), max(0, left) // made.weight_bytes(phase))
            shared.append(count)
            left -= count * made.weight_bytes(phase)
        return replace(made, shared=tuple(shared))

    def weight_bytes(self, phase: int) -> int:
        """Of one chunk of every warp."""
        return THREADS * self.tiles(phase) * 2 * 16

    def reduction_bytes(self) -> int:
        if self.warps_k == 1:
            return 0
        parts = WARPS // 2 if self.folded else 2 * WARPS
        return parts * max(self.tiles(phase) for phase in self.phases) * self.column_tiles * 512

    def exchange_bytes(self) -> int:
        """Shared memory of the on-chip exchange."""
        if not self.on_chip:
            return 0
        total = 0
        for phase in self.phases:
            pitch = ceil_div(self.k(phase) * self.element_bytes, 64) * 64
            total += 2 * self.passes * self.pass_rows * (pitch if pitch % 128 == 64 else pitch + 64)
        return total

    def exchanged_words(self, N: int, directions: int) -> int:
        """That blocks hand each other through device memory in a step: whole pieces, of `piece_rows` rows and a chunk."""
        chunks = sum(ceil_div(self.k(phase) * self.element_bytes, 64) for phase in self.phases)
        return 16 * self.piece_rows * chunks * ceil_div(N, self.piece_rows) * directions

    def carry_bytes(self) -> int:
        if self.folded and self.pairs == 1:  # in registers
            return 0
        return self.passes * self.pairs * THREADS * 2 * (2 if self.cell.has_cell else 1) * 4

    @property
    def shared_bytes(self) -> int:
        weights = sum(self.weight_bytes(phase) * self.shared[phase] for phase in self.phases)
        lengths = 4 * self.passes * self.pass_rows
        return weights + self.reduction_bytes() + lengths + self.carry_bytes() + self.exchange_bytes()

    @property
    def packed_bytes(self) -> int:
        """Of the weights of one direction in the order the tensor cores take them."""
        return self.blocks * sum(self.weight_bytes(phase) * self.chunks(phase) for phase in self.phases)

    def macros(self) -> dict[str, str]:
        return {
            "GATEWISE_BACKWARD": str(int(self.backward)),
            "GATEWISE_UNITS": str(self.units),
            "GATEWISE_BLOCKS": str(self.blocks),
            "GATEWISE_WARPS_M": str(self.warps_m),
            "GATEWISE_WARPS_K": str(self.warps_k),
            "GATEWISE_COLUMN_TILES": str(self.column_tiles),
            "GATEWISE_PASSES": str(self.passes),
            "GATEWISE_EXCHANGE_ON_CHIP": str(int(self.on_chip)),
            "GATEWISE_FOLDED": str(int(self.folded)),
            "GATEWISE_PIECE_ROWS": str(self.piece_rows),
            "GATEWISE_HELD_CHUNKS": ",".join(map(str, self.held)),
            "GATEWISE_SHARED_CHUNKS": ",".join(map(str, self.shared)),
        }

    def __str__(self) -> str:
        kept = ", ".join(
            f"{self.held[phase]} chunks in registers, {self.shared[phase]} in shared memory, {self.streamed(phase)} from L2"
            for phase in self.phases
        )
        return (
            f"{self.groups} groups of {self.blocks} blocks per direction, {self.units} units each, "
            f"{self.passes} passes of {self.pass_rows} rows; warps {self.warps_m} x {self.warps_k}; weights of a warp: {kept}"
            f"{'; sums added up in two steps' if self.folded else ''}"
        )

    def look_after(self, N: int, directions: int) -> int:
        """Cycles after handing on when a block first looks for what others handed on, as measured on an H200: looking too
        early costs a second trip to L2 and slows the writers down. Where little is read, looking all the time is fastest."""
        read = N * self.blocks * directions * max(self.k(phase) for phase in self.phases) * self.element_bytes
        if self.on_chip or read < _BUSY_BYTES:
            return 0
        return 1200 if self.column_tiles > 1 else 750 if self.backward else 400

    def operand_bytes(self) -> int:
        """What a block reads of others' results in a step."""
        rows = self.passes * self.pass_rows
        return sum(rows * self.k(phase) * self.element_bytes * self.warps_m for phase in self.phases)
