"""Chooses how a call runs: which kernel family, how it is cut, over how many blocks; and says why.

Families: `block`, R in one multiprocessor; `cluster`, R over a cluster, the state through distributed shared memory;
`grid`, R over the whole chip, the state through L2; these three are one kernel. `relay`, like the grid, with two halves of
the rows that take turns. `wide`, for steps with much work, with the warp group instructions of sm_90. `steps`, launches and
products for every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache

from ...cells import Cell
from . import relay_tiling, wide_tiling
from .driver import Device
from .kernels import ELEMENT_BYTES
from .products import is_library, library
from .relay_tiling import RelayTiling
from .tiling import WARPS, Tiling, ceil_div, piece_rows_for
from .wide_tiling import WideTiling

# Fitted to about 350 measured ways to cut an LSTM on an H200, so that the best predicted is within a few percent of
# the best measured. They are there to rank, and absorb what the model leaves out; no single one is a property of the chip.
_CLOCK = 1.75e3  # cycles per microsecond
_L2_BYTES = 35e3  # a multiprocessor reads per microsecond of operands from L2
_STREAM_BYTES = 25e3  # ... of weights
_SHARED_BYTES = 290e3  # ... from shared memory
_NOT_HIDDEN = {2: 0.6, 4: 0.0}  # part of that which the products do not hide, by the size of an element
_MMA_CYCLES = 10.5  # of a quarter of a multiprocessor for one tensor core instruction
_GRID, _CLUSTER = 0.36, 1.2  # microseconds for an exchange through L2 and within a cluster
_PER_BLOCK = 0.0093  # ... and for each block that takes part
_PASS = 0.44  # ... for a pass, however little it does
_FOLD = 0.5  # ... for sums that are added up in two steps
_POINTS = 0.38  # ... for a pair of points of every thread
_ALL = (0.86, 0.74)  # of all that, forward and for gradients
_CLUSTERS = {1: 1.0, 2: 0.98, 4: 0.91, 8: 0.91, 16: 0.85}  # share of the chip that clusters of a size can fill
# What makes such a prediction for the grid comparable with those of the kernels below, by whether it is for gradients, fitted
# to about 30 calls each: microseconds of a step; of a predicted one; for 10^9 flops of the input's product in 16 bits, for
# I = H; for a million gates of units of rows.
_IN_CALL = {False: (0.11, 0.56, 1.33, 4.4), True: (1.04, 0.55, 0.0, 4.2)}
# The steps family, fitted to calls it was measured on beside the others, by whether they are gradients and the
# size of an element: microseconds of the launches and products of a phase, however little they do; for a million gates of
# units of rows; for a million bytes of R; for 10^9 flops.
_STEPS = {
    (False, 2): (4.4, 3.6, 0.144, 1.1),
    (False, 4): (4.4, 3.6, 0.144, 7.9),
    (True, 2): (5.2, 0.0, 0.043, 1.5),
    (True, 4): (6.9, 0.0, 0.26, 7.9),
}


FAMILIES = ("block", "cluster", "grid", "relay", "wide", "steps")


@dataclass(frozen=True)
class Wish:
    """What a test or a measurement wants instead of the fastest plan: a family, its candidate number `pick`, and
    weights kept out of registers and shared memory (`starve`; of the wide kernel, out of shared memory)."""

    family: str | None = None
    pick: int | None = None
    starve: bool = False


_wish: ContextVar[Wish] = ContextVar("gatewise_cuda_wish", default=Wish())  # noqa: B039  it is frozen


@contextmanager
def wish(family: str | None = None, pick: int | None = None, starve: bool = False) -> Iterator[None]:
    """Take another plan than the fastest inside the `with` block."""
    token = _wish.set(Wish(family, pick, starve))
    try:
        yield
    finally:
        _wish.reset(token)


def current_wish() -> Wish:
    return _wish.get()


@dataclass(frozen=True)
class Plan:
    """How a call runs. `tiling` is None for the per-step kernels."""

    family: str
    reason: str
    tiling: Tiling | WideTiling | None = None
    microseconds: float = 0.0  # predicted, per step

    @property
    def explanation(self) -> str:
        t = self.tiling
        if t is None:
            return f"{self.family}: {self.reason}"
        return (
            f"{self.family}: {self.reason}; {t}; {t.shared_bytes // 1024} KB of shared memory; "
            f"predicted {self.microseconds:.2f} us per step"
        )


def _latency(tiling: Tiling) -> float:
    """From the end of a block's work in a step to the others' hearing of it."""
    if tiling.on_chip and tiling.blocks == 1:
        return 0.05
    return (_CLUSTER if tiling.on_chip else _GRID) + _PER_BLOCK * tiling.blocks


def predict(tiling: Tiling, directions: int, device: Device) -> float:
    """Microseconds per step, by estimate, to rank the ways to cut a call."""
    operands = tiling.operand_bytes() / (_SHARED_BYTES if tiling.on_chip else _L2_BYTES)
    products = weights = 0.0
    for phase in tiling.phases:
        instructions = tiling.tiles(phase) * tiling.chunks(phase) * 2 * tiling.column_tiles * WARPS / 4
        products += instructions * _MMA_CYCLES / _CLOCK
        weights += tiling.weight_bytes(phase) * (tiling.shared[phase] / _SHARED_BYTES + tiling.streamed(phase) / _STREAM_BYTES)
    # Both halves: once written, once read. Folded, the same bytes in a quarter of the memory, and another barrier.
    reduction = tiling.reduction_bytes() * (4 if tiling.folded else 1) / _SHARED_BYTES + (_FOLD if tiling.folded else 0.0)
    reduction *= len(tiling.phases)
    points = _POINTS * tiling.pairs * len(tiling.phases)
    from_shared = sum(tiling.weight_bytes(phase) * tiling.shared[phase] for phase in tiling.phases) / _SHARED_BYTES
    products = max(products, weights) + _NOT_HIDDEN[tiling.element_bytes] * from_shared
    work = operands / tiling.passes + products + reduction + points + _PASS * len(tiling.phases)
    one = _latency(tiling) * len(tiling.phases) + work * tiling.passes
    room = device.sm_count * (_CLUSTERS[tiling.blocks] if tiling.on_chip else 1.0)
    return _ALL[tiling.backward] * one * ceil_div(tiling.groups * tiling.blocks * directions, int(room))


def _fastest(found: list[Tiling | WideTiling], N: int, directions: int, device: Device) -> tuple[float, Tiling | WideTiling]:
    """The way that is predicted to be the fastest, and its microseconds per step."""
    timed: list[tuple[float, Tiling | WideTiling]] = [(t.predict(N, directions), t) for t in found if isinstance(t, WideTiling)]
    turns = [(t.predict(N, directions), t) for t in found if isinstance(t, RelayTiling)]
    ranked = [(predict(t, directions, device), t) for t in found if type(t) is Tiling]
    if ranked:
        alone, tiling = min(ranked, key=lambda pair: pair[0])
        if tiling.on_chip:  # there is little to wait for, and nothing to gain by taking turns
            turns = []
        else:
            step, share, flops, units = _IN_CALL[tiling.backward]
            gates = N * directions * len(tiling.cell.gates) * tiling.H
            alone = step + share * alone + (flops * 1e-9 * tiling.element_bytes * tiling.H + units * 1e-6) * gates
            # Nor is there where both halves have room side by side.
            turns = [(time, t) for time, t in turns if 2 * t.groups * t.blocks * directions > device.sm_count]
        timed.append((alone, tiling))
    return min([*timed, *turns], key=lambda pair: pair[0])


def predict_steps(cell: Cell, backward: bool, N: int, H: int, directions: int, element_bytes: int) -> float:
    """Microseconds per step of the steps family, by estimate."""
    gates = len(cell.gates) * H * directions
    phase, units, weights, flops = _STEPS[backward, element_bytes]
    return (
        phase * len(cell.phases)
        + units * N * gates / 1e6
        + weights * gates * H * element_bytes / 1e6
        + flops * 2 * N * gates * H / 1e9
    )


def _candidates(
    cell: Cell, backward: bool, N: int, H: int, directions: int, element_bytes: int, device: Device
) -> list[Tiling]:
    found = []
    tiles_of_rows = ceil_div(N, 8)
    for unit_tiles in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16):
        blocks = ceil_div(H, 16 * unit_tiles)
        if unit_tiles > 1 and blocks == ceil_div(H, 16 * (unit_tiles - 1)):
            continue
        for on_chip in (False, True):
            if on_chip and (blocks not in _CLUSTERS or (blocks > 1 and device.major < 9)):
                continue
            share = _CLUSTERS[blocks] if on_chip else 1.0
            most = int(device.sm_count * share) // (blocks * directions)
            if most == 0 or (not on_chip and not device.cooperative):
                continue
            for warps_m in (1, 2, 4, 8):
                if unit_tiles % warps_m:
                    continue
                for column_tiles in (1, 2, 3, 4, 6, 8):
                    per_group = ceil_div(tiles_of_rows, most)
                    if column_tiles > per_group > 1 or (per_group == 1 and column_tiles > 1):
                        continue
                    passes = ceil_div(per_group, column_tiles)
                    groups = ceil_div(tiles_of_rows, passes * column_tiles)
                    # Worth it only where the sums take much memory.
                    may_fold = not on_chip and passes == 1 and warps_m < WARPS and column_tiles > 1
                    for folded in (False, True) if may_fold else (False,):
                        tiling = Tiling(
                            cell, backward, H, element_bytes, 16 * unit_tiles, warps_m, column_tiles, on_chip, passes, groups,
                            folded, 8 if on_chip else piece_rows_for(N),
                        )  # fmt: skip
                        if tiling.working_registers() > tiling.registers:
                            continue
                        tiling = tiling.placed(device.shared_limit)
                        if tiling.shared_bytes <= device.shared_limit:
                            found.append(tiling)
    return found


@lru_cache(maxsize=1024)
def choose(
    cell: Cell, backward: bool, N: int, H: int, directions: int, dtype: str, exact: bool, device: Device, wanted: Wish
) -> Plan:
    """The plan for the forward or the gradient part of a call."""
    if N == 0:
        return Plan("steps", "there are no rows")
    if dtype == "float64" or (dtype == "float32" and exact):
        return Plan("steps", f"{dtype} products are exact, which the tensor cores' are not")
    if device.major < 8:
        return Plan("steps", f"{device.architecture} lacks the tensor core instructions of the persistent kernels")
    if N * directions * len(cell.gates) * (H + 256) >= 2**31:
        return Plan("steps", "one step is larger than the persistent kernels count to")
    if wanted.family == "steps":
        return Plan("steps", "asked for")
    found: list[Tiling | WideTiling] = [*_candidates(cell, backward, N, H, directions, ELEMENT_BYTES[dtype], device)]
    if not backward:
        found += relay_tiling.candidates(cell, N, H, directions, ELEMENT_BYTES[dtype], device)
    if dtype != "float32":
        found += wide_tiling.candidates(cell, backward, N, H, directions, device)
    found = [tiling for tiling in found if wanted.family in (None, tiling.family)]
    if not found:
        return Plan("steps", f"no persistent kernel fits H = {H}, N = {N} on this GPU")
    if wanted.pick is not None:
        found = [found[wanted.pick % len(found)]]
    if wanted.starve:
        found = [_starved(tiling) for tiling in found]
    time, tiling = _fastest(found, N, directions, device)
    if wanted == Wish() and is_library():
        steps = predict_steps(cell, backward, N, H, directions, ELEMENT_BYTES[dtype])
        # The steps family's model was fitted beside `predict`; forward, calls with many rows are slower.
        alone = predict(tiling, directions, device) if type(tiling) is Tiling else time
        slower = alone if backward else max(time, alone)
        others = [tiling for tiling in found if type(tiling) is not Tiling]
        if steps < slower and type(tiling) is Tiling and others:
            time, tiling = _fastest(others, N, directions, device)
            slower = time
        if steps < slower:
            return Plan("steps", f"a step has so much work that it pays to leave its products to {library()}", None, steps)
    reasons = {
        "block": "all of R fits one multiprocessor",
        "cluster": "R fits a cluster of multiprocessors",
        "grid": "R is spread over the chip",
        "relay": "R is spread over the chip, and two halves of the rows take turns",
        "wide": "R is spread over the chip, and a step has much work",
    }
    return Plan(tiling.family, reasons[tiling.family], tiling, time)


def _starved(tiling: Tiling | WideTiling) -> Tiling | WideTiling:
    if isinstance(tiling, WideTiling):  # which takes what registers hold last
        return replace(tiling, held=min(tiling.fragments, wide_tiling.HELD))
    held, shared = (tuple(min(1, count) for count in counts) for counts in (tiling.held, tiling.shared))
    return replace(tiling, held=held, shared=shared)
