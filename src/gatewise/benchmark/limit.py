"""The limit: how fast this machine multiplies large float32 matrices, by the better of PyTorch and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .rivals import missing
from .timing import Effort, available_cpus, take_turns

_SIZE = 1024
_EFFORT = Effort(rounds=9, seconds=0.05, at_most_seconds=2.0)


def sgemm_flops_per_second(threads: int, size: int = _SIZE) -> dict[str, float]:
    """Flops per second of a square matrix product, by library."""
    a = np.random.default_rng(0).standard_normal((size, size), np.float32)
    b = np.ascontiguousarray(a.T)
    products: dict[str, Callable[[], Any]] = {}
    if missing("torch") is None:
        import torch

        left, right, result = torch.from_numpy(a), torch.from_numpy(b), torch.empty(size, size)
        products["torch"] = lambda: torch.mm(left, right, out=result)
    # NumPy's threads cannot be set from here: it takes part where it uses the same number by itself
    if threads == available_cpus() or not products:
        out = np.empty((size, size), np.float32)
        products["numpy"] = lambda: np.matmul(a, b, out=out)
    return {name: 2 * size**3 / timing.median for name, timing in take_turns(products, _EFFORT).items()}
