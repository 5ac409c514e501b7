"""The CUDA engine: all six operations on arrays in a GPU's memory, in kernels compiled for the call and kept.

`plan` says how a call would run. No other module of gatewise needs CUDA, and importing this one needs no GPU.
"""

from __future__ import annotations

from typing import Any

from ...problem import Problem
from .. import cpu
from . import driver
from .planner import Plan, choose, current_wish

name = "cuda"

__all__ = ["forward", "gradients", "name", "plan", "supports", "unavailable"]


def unavailable() -> str | None:
    return driver.unavailable() or cpu.unavailable()  # which is there if the native module is


def supports() -> dict[str, str]:
    from .products import library

    rows = {
        "operations": "all six, every option",
        "dtypes": "float32 (tf32 products unless use_precision('highest')), float16, bfloat16, float64",
        "arrays": "torch, CuPy and JAX arrays on an NVIDIA GPU; NumPy arrays under use_engine('cuda'), copied there and back",
        "products over all steps": library(),
    }
    if unavailable() is None:
        found = driver.device(0)
        rows["GPU 0"] = f"{found.architecture}, {found.sm_count} multiprocessors"
    return rows


def forward(problem: Problem) -> tuple[Any, Any, Any]:
    from . import host, run_forward

    with driver.active(host.gpu_of(problem)):
        return host.forward(problem) if host.is_host(problem) else run_forward.forward(problem)


def gradients(problem: Problem) -> dict[str, Any]:
    from . import host, run_gradient

    with driver.active(host.gpu_of(problem)):
        return host.gradients(problem) if host.is_host(problem) else run_gradient.gradients(problem)


def plan(problem: Problem, backward: bool = False, exact: bool = False, device: driver.Device | None = None) -> Plan:
    """How the call would run on a GPU: on this machine's first one, unless another is described."""
    p = problem
    return choose(p.cell, backward, p.N, p.H, p.D, p.dtype.name, exact, device or driver.device(0), current_wish())
