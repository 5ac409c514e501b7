"""Compiling ahead: which kernels a call needs, and many of them at once. Needs no GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from ...cells import Descriptor, activations_of, cell_of, order_of
from . import kernels
from .compiler import cubin
from .driver import Device
from .planner import Wish, choose

Job = tuple[str, dict[str, str]]  # source file and macros


def jobs(
    descriptor: Descriptor,
    dtype: str,
    N: int,
    H: int,
    device: Device,
    *,
    gradient: bool = True,
    peephole: bool = False,
    input_weight: bool = True,
    options: int = 1,
    exact: bool = False,
    wanted: Wish | None = None,
) -> list[Job]:
    """The kernels of a call. `options` as `kernels.options` numbers them; 1 is a call with a bias and nothing else."""
    cell = cell_of(descriptor, peephole)
    directions = 2 if descriptor.bidirectional else 1
    found: list[Job] = [("arrays.cu", kernels.array_macros(dtype))]
    for backward in (False, True) if gradient else (False,):
        plan = choose(cell, backward, N, H, directions, dtype, exact, device, wanted or Wish())
        padded = H if plan.tiling is None else plan.tiling.padded
        widened = input_weight and not backward and dtype in ("float16", "bfloat16")
        common = kernels.macros(
            cell, activations_of(descriptor), order_of(descriptor), dtype, "float32" if widened else dtype, H, padded
        )
        taken = options & (0b111110 if backward else 0b001111)
        if plan.tiling is None:
            found.append(("steps.cu", common | kernels.StepsCut(cell, N, H, directions, backward).macros(taken)))
        else:
            found.append((plan.tiling.source, common | kernels.tiling_macros(plan.tiling, taken)))
        if backward:
            found.append(("around.cu", common))
    return found


def _compile(job: tuple[str, dict[str, str], str]) -> str | None:
    file, macros, architecture = job
    try:
        cubin(file, macros, architecture)
    except Exception as error:  # told to the caller, who knows which of many it was
        return f"{file} with {macros}: {error}"
    return None


def compile_all(wanted: Iterable[Job], architecture: str, processes: int | None = None) -> tuple[int, list[str]]:
    """Compile each kernel once into the cache, several at a time; how many there are, and what went wrong."""
    unique = {repr(job): (*job, architecture) for job in wanted}
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        errors = [error for error in pool.map(_compile, unique.values()) if error is not None]
    return len(unique), errors
