"""Calls that have been checked and run before: the same call on other arrays needs neither checks nor plans again.

Nearly all checks look at the layout of the arguments and not at their values; so a call whose operation, descriptor,
settings and layouts were seen before is run again from what the engine noted. On a GPU that is `Problem.again`, found here;
calls on NumPy arrays are found by the native module, where finding one takes about as long as a few lines of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from ..device_arrays import replaying_kind
from ..precision import is_highest
from ..problem import Problem
from . import chosen, cpu
from .cuda.planner import current_wish

Again = Callable[[dict[str, Any]], list[Any] | None]  # None: this call is to be worked out all the same
_MOST = 1024
_ON_HOST, _ON_GPU = (None, "cpu"), (None, "cuda")  # engines that may have been chosen
_known: dict[Hashable, Again] = {}


def again(operation: str, descriptor: Any, given: dict[str, Any]) -> tuple[list[Any] | None, Hashable]:
    """The results of a call that was made before, or None; and under what to `keep` it then."""
    engine = chosen()
    if engine in _ON_HOST and isinstance(given["source"], np.ndarray):
        return cpu.again(operation, descriptor, given), None
    key = _key_of(operation, descriptor, given) if engine in _ON_GPU else None
    if key is None:
        return None, None
    try:
        known = _known.get(key)
    except TypeError:  # not a descriptor, and not hashable: the checks will say so
        return None, None
    return None if known is None else known(given), key


def _key_of(operation: str, descriptor: Any, given: dict[str, Any]) -> Hashable:
    """What decides how a call on a GPU runs, or None if it is to be checked every time."""
    kind = replaying_kind(given["source"])
    layouts = None if kind is None else kind.layouts(given)
    return None if layouts is None else (operation, descriptor, is_highest(), current_wish(), layouts)


def keep(key: Hashable, problem: Problem, descriptor: Any, given: dict[str, Any]) -> None:
    """Note a call that has been run, with its descriptor and arguments as they were given."""
    if problem.note is not None:
        problem.note(problem.operation, descriptor, given)
    if key is None or problem.again is None:
        return
    if len(_known) >= _MOST:
        _known.clear()
    _known[key] = problem.again
