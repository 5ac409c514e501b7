"""Calls that have been checked and run before: the same call on other arrays needs neither checks nor plans again.

Nearly all checks look at the layout of the arguments and not at their values; so a call whose operation, descriptor,
settings and layouts were seen before is run again from what the engine noted. On a GPU that is `Problem.again`, found here;
calls on NumPy arrays are found by the native module, where finding one takes about as long as a few lines of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from ..arrays import replaying_kind
from ..precision import is_highest
from ..problem import Problem
from . import chosen, cpu
from .cuda.planner import current_wish

Again = Callable[[dict[str, Any]], list[Any]]
_MOST = 1024
_known: dict[Hashable, Again] = {}


def on_host(operation: str, descriptor: Any, given: dict[str, Any]) -> list[Any] | None:
    """The results of a call on NumPy arrays that the CPU engine knows; None for any other."""
    return cpu.again(operation, descriptor, given) if chosen() in (None, "cpu") else None


def key_of(operation: str, descriptor: Any, given: dict[str, Any]) -> Hashable:
    """What decides how the call runs, or None if it is to be checked every time."""
    kind = replaying_kind(given["source"])
    if kind is None or chosen() not in (None, "cuda"):
        return None
    parts: list[Any] = [operation, descriptor, is_highest(), current_wish()]
    for name, value in given.items():
        if value is not None and name != "descriptor":
            found = kind.signature(value)
            if found is None:
                return None
            parts += name, found
    return tuple(parts)


def find(key: Hashable) -> Again | None:
    if key is None:
        return None
    try:
        return _known.get(key)
    except TypeError:  # not a descriptor, and not hashable: the checks will say so
        return None


def keep(key: Hashable, problem: Problem, descriptor: Any, given: dict[str, Any]) -> None:
    """Note a call that has been run, with its descriptor and arguments as they were given."""
    if problem.note is not None:
        problem.note(problem.operation, descriptor, given)
    if key is None or problem.again is None:
        return
    if len(_known) >= _MOST:
        _known.clear()
    _known[key] = problem.again
