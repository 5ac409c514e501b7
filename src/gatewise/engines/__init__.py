"""The engines: who runs a checked call. An engine has `name`, `unavailable()`, `supports()`, `forward` and `gradients`.

`forward(problem)` gives (state, cell or None, z_state or None); `gradients(problem)` gives the gradients by argument
name. Both take and give arrays where the problem's arrays are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from ..errors import ArgumentError, UnsupportedError
from ..problem import Problem
from . import cpu, cuda, reference


class Engine(Protocol):
    """What every engine module offers."""

    name: str

    def unavailable(self) -> str | None:
        """Why this engine cannot run here, or None if it can."""

    def supports(self) -> dict[str, str]:
        """What the engine runs, for people: a few rows of name and text."""

    def forward(self, problem: Problem) -> tuple[Any, Any, Any]: ...

    def gradients(self, problem: Problem) -> dict[str, Any]: ...


ENGINES: dict[str, Engine] = {"cpu": cpu, "cuda": cuda, "reference": reference}
_BY_DEVICE = {"cpu": "cpu", "cuda": "cuda"}
_chosen: ContextVar[str | None] = ContextVar("gatewise_engine", default=None)
chosen = _chosen.get  # the engine chosen by `use_engine`; every call asks, so it is no function of our own


@contextmanager
def use_engine(name: str) -> Iterator[None]:
    """Run the eager operations called inside the `with` block on the named engine.

    `with gatewise.use_engine("reference"):` computes in NumPy float64 and rounds once, at the end.
    """
    if not isinstance(name, str) or name not in ENGINES:
        raise ArgumentError(f"use_engine: name must be one of {', '.join(ENGINES)}, got {name!r}")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def engine_for(operation: str, device: str) -> Engine:
    """The engine chosen by `use_engine`, else the one for arrays on this device."""
    engine = ENGINES[_chosen.get() or _BY_DEVICE[device]]
    reason = engine.unavailable()
    if reason is not None:
        raise UnsupportedError(f"{operation}: the {engine.name} engine cannot run here: {reason}")
    return engine
