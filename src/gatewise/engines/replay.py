"""Calls that have been checked and run before: the same call on other arrays needs neither checks nor plans again.

All checks of a call on a GPU look at the layout of its arguments and never at their values; so a call whose operation,
descriptor, settings and layouts were seen before is run again from what the engine noted (`Problem.again`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from ..device_arrays import replaying_kind
from ..precision import is_highest
from ..problem import Problem
from . import chosen
from .cuda.planner import current_wish

Again = Callable[[dict[str, Any]], list[Any] | None]  # None: this call is to be worked out all the same
_MOST = 1024
_REPLAYING = (None, "cuda")  # engines
_known: dict[Hashable, Again] = {}


def key_of(operation: str, descriptor: Any, given: dict[str, Any]) -> Hashable:
    """What decides how the call runs, or None if it is to be checked every time."""
    kind = replaying_kind(given["source"])
    if kind is None or chosen() not in _REPLAYING:
        return None
    layouts = kind.layouts(given)
    return None if layouts is None else (operation, descriptor, is_highest(), current_wish(), layouts)


def again(key: Hashable, given: dict[str, Any]) -> list[Any] | None:
    """The results of a call with this key, if it was made before."""
    if key is None:
        return None
    try:
        known = _known.get(key)
    except TypeError:  # not a descriptor, and not hashable: the checks will say so
        return None
    return None if known is None else known(given)


def keep(key: Hashable, problem: Problem) -> None:
    if key is None or problem.again is None:
        return
    if len(_known) >= _MOST:
        _known.clear()
    _known[key] = problem.again
