"""What a cell is: its gates, and for each phase the pointwise maths, forward and gradient.

A phase is an operand made from the state, one product of that operand with some gates' rows of the recurrent
weight R, and pointwise maths on what the product gave. Time, batch, threads, masks, lengths and directions are the
business of the drivers; they know a cell only through this class.

The maths is a plain Python function over a `Values` object whose fields may be NumPy arrays (the reference), tracer
symbols (the C++/CUDA headers) or any framework's arrays. It uses + - *, `v.activate(k, x)`, `v.slope(k, y)` and
nothing else. It reads and writes these fields; a field indexed by gate uses the cell's own gate order:

    forward    x[g]     x W^T + b of gate g at this step
               u[g]     product of the phase's operand with gate g's rows of R
               h, c     previous state and cell            m  recurrent mask at this step
               p[g]     peephole weight                    b2 secondary bias (GRU, reset after)
      writes   gate[g]  what z_state holds                 operand  the next phase's operand, unless it is the last
               h_next, c_next
    gradient   gate[g], h, c, m, p, b2 as above            c_next  the cell this step made
               dgate[g] gradient that arrives at gate[g] itself (zero unless z_state was used)
               dh, dc   gradient that arrives at h_next and c_next
               q        recurrent product of the output gate plus b2 (only where `needs_product`)
               e        gradient of the later phase's operand (only in a phase before the last)
      writes   du[g]    gradient of u[g]                   dx[g]  gradient of x[g]
               h_prev   what reaches the previous state directly; the driver adds m * (du R)
               c_prev   what reaches the previous cell
               operand  as forward, again, where a cell has several phases
    restore    gate[g], c_next as above
      writes   h_next   the state, for cells whose gradient is not handed the states
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Values = Any  # an object with the fields described above
Maths = Callable[[Values], None]


@dataclass(frozen=True)
class Phase:
    """One product with R and the pointwise maths around it; `gates` are consecutive in the cell's gate order."""

    gates: tuple[int, ...]
    forward: Maths
    gradient: Maths


@dataclass(frozen=True)
class Cell:
    """A cell in one structural variant (peephole or not, reset before or after, ...)."""

    name: str  # of the emitted C++ type
    operation: str
    gates: tuple[str, ...]
    activations: tuple[str, ...]  # descriptor fields, in the order `activate` and `slope` number them
    default_activations: tuple[int, ...]
    phases: tuple[Phase, ...]
    restore: Maths | None = None
    has_cell: bool = False
    peephole: bool = False
    needs_product: bool = False  # the gradient needs q, recomputed by the driver
    dx_differs: bool = False  # dx[g] is not du[g] for some gate
    output_sees_new_cell: bool = False  # the output gate's peephole multiplies c_next
