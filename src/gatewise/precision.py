"""How float32 is multiplied where the hardware offers less exact, faster products (CUDA: tf32)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import ArgumentError

_PRECISIONS = ("default", "highest")
_chosen: ContextVar[str] = ContextVar("gatewise_precision", default="default")


@contextmanager
def use_precision(precision: str) -> Iterator[None]:
    """Multiply float32 exactly inside the `with` block: `with gatewise.use_precision("highest"):`.

    "default" lets a GPU round the factors of float32 products to tf32, as cuDNN does. CPUs always multiply exactly.
    """
    if precision not in _PRECISIONS:
        raise ArgumentError(f"use_precision: precision must be one of {', '.join(_PRECISIONS)}, got {precision!r}")
    token = _chosen.set(precision)
    try:
        yield
    finally:
        _chosen.reset(token)


def is_highest() -> bool:
    return _chosen.get() == "highest"
