"""The libraries that are measured, gatewise included: one small adapter each, all with the same few methods."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..work import Array, Work


class UnableError(Exception):
    """This rival cannot do this piece of work; the text says why."""


@dataclass
class Prepared:
    """A piece of work ready to run: `call` is what is timed, `results` names what it returned.

    Names are `state` and `gradient of ARGUMENT`; arrays are in gatewise's layout, so that rivals can be compared.
    """

    call: Callable[[], Any]
    results: Callable[[Any], dict[str, Array]]


class Rival(Protocol):
    """What an adapter offers."""

    name: str
    modes: tuple[str, ...]

    def unavailable(self) -> str | None:
        """Why this rival cannot run here, or None if it can."""

    def version(self) -> str: ...

    def prepare(self, work: Work, mode: str, threads: int) -> Prepared:
        """Everything that a user does once and not per call. Raises `UnableError` with a reason."""


def missing(*modules: str) -> str | None:
    """Why a rival that needs these modules cannot run, or None if all are installed."""
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    return f"{' and '.join(absent)} not installed (pip install 'gatewise[rivals]')" if absent else None


def standard_rivals() -> tuple[Rival, ...]:
    """gatewise first, in both its ways, then whoever it is measured against at the standard shapes."""
    from .gatewise_operations import GatewiseConstants, GatewiseOperations
    from .onnx_runtime import OnnxRuntime
    from .torch_modules import TorchModules

    return GatewiseOperations(), GatewiseConstants(), TorchModules(), OnnxRuntime()


def loop_rivals() -> tuple[Rival, ...]:
    """Whoever gatewise is measured against for the variants: loops a user would write."""
    from .torch_loop import TorchLoop

    return TorchLoop(compiled=False), TorchLoop(compiled=True)
