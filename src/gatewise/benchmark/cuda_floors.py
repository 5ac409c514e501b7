"""The time below which a step cannot go on an H200: handing the state of one step to all who need it, and nothing else.

Measured on one H200 with kernels that only exchange. On the grid: a barrier over all 132 blocks and every block reading its
group's part of the state from L2. In clusters: every block writing its part into all blocks of its cluster, and one barrier of
the cluster. An exchange without a barrier, as gatewise's grid kernel has, can come out below. Neither multiplies anything: the
product with the input's weight is no part of it.
"""

from __future__ import annotations

from itertools import pairwise

from gatewise.engines.cuda.planner import Plan
from gatewise.engines.cuda.tiling import Tiling

MACHINE = "H200"
_SM_COUNT = 132
_KB = 1024
# Bytes of state of the whole batch: microseconds with the batch divided over 1, 2 and 4 groups of blocks.
_GRID_GROUPS = (1, 2, 4)
GRID: dict[int, tuple[float, ...]] = {
    0: (1.0, 1.0, 1.0),
    16 * _KB: (1.6, 1.3, 1.2),
    64 * _KB: (2.7, 1.9, 1.4),
    128 * _KB: (4.3, 2.6, 1.8),
    256 * _KB: (7.3, 4.3, 2.6),
}
# Bytes of state of a cluster: microseconds with 4, 8 and 16 blocks in it.
_CLUSTER_BLOCKS = (4, 8, 16)
CLUSTER: dict[int, tuple[float, ...]] = {
    0: (0.25, 0.25, 0.25),
    1 * _KB: (0.45, 0.52, 0.67),
    4 * _KB: (0.55, 0.62, 0.75),
    8 * _KB: (0.71, 0.81, 0.93),
    16 * _KB: (0.95, 1.1, 1.25),
    32 * _KB: (1.4, 1.9, 2.1),
}


def _between(table: dict[int, tuple[float, ...]], size: float, column: int) -> float | None:
    """On the straight line between the two measured sizes around this one; None beyond them."""
    sizes = list(table)
    for low, high in pairwise(sizes):
        if size <= high:
            share = (size - low) / (high - low)
            return table[low][column] + share * (table[high][column] - table[low][column])
    return None


def floor(plan: Plan, N: int, machine: str) -> float | None:
    """Microseconds of a forward step's exchange for N rows, cut as the plan cuts it.

    None where there is no exchange (one block holds R) or not all rows run at once, for sizes that were not measured, and on
    other machines.
    """
    tiling = plan.tiling
    if tiling is None or MACHINE not in machine or plan.family == "block" or tiling.groups * tiling.blocks > _SM_COUNT:
        return None
    if type(tiling) is Tiling and tiling.passes > 1:
        return None
    row_bytes = tiling.H * tiling.element_bytes
    if plan.family == "cluster":
        fitting = [i for i, blocks in enumerate(_CLUSTER_BLOCKS) if blocks <= tiling.blocks]
        one = _between(CLUSTER, -(-N // tiling.groups) * row_bytes, fitting[-1] if fitting else 0)
    else:
        column = max(i for i, groups in enumerate(_GRID_GROUPS) if groups <= tiling.groups)
        one = _between(GRID, N * row_bytes, column)
    return None if one is None else one * len(tiling.phases)
