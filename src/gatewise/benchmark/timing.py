"""Timing by turns: A, B, C, A, B, C, … so that a change of the machine's speed meets every entry alike."""

from __future__ import annotations

import gc
import importlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gatewise

# Every library's worker threads spin a while after a call, PyTorch's for some 7 ms, OpenBLAS's for 100, and whoever comes
# next pays for it. So each turn waits until this process uses no CPU time, but no longer than anyone should spin, then makes
# one call that wakes the library's own threads and is not timed (for long calls that makes no difference).
_REST_SECONDS = 0.012  # longer than the kernel's tick, at which it books the time of running threads
_REST_AT_MOST_SECONDS = 0.15
_TURN_SECONDS = 0.04  # a turn goes on for this long, so a measurement has few turns and waits, whatever the first calls took


@dataclass(frozen=True)
class Effort:
    """How long to measure: at least so many rounds and seconds per entry, unless the limit comes first."""

    rounds: int = 11
    seconds: float = 0.5
    at_most_seconds: float = 10.0


FULL = Effort()
QUICK = Effort(rounds=3, seconds=0.05, at_most_seconds=2.0)


@dataclass(frozen=True)
class Timing:
    """Seconds per call in every round: median and quartiles."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high

    def over(self, other: Timing) -> float:
        """How many times as long as the other: the median over the rounds. The turns of a round are moments apart, so that a
        slow spell of the machine meets both or neither."""
        return statistics.median(a / b for a, b in zip(self.samples, other.samples, strict=True))


def take_turns(entries: dict[str, Callable[[], Any]], effort: Effort = FULL) -> dict[str, Timing]:
    """Time the entries by turns. Each has been called before; the first calls here are still warm-up."""
    samples: dict[str, list[float]] = {name: [] for name in entries}
    spent = dict.fromkeys(entries, 0.0)
    rounds = 0
    with _without_garbage_collection():
        while True:
            for name, call in entries.items():
                taken, calls = _turn(call, short=not samples[name] or samples[name][-1] < _TURN_SECONDS)
                samples[name].append(taken / calls)
                spent[name] += taken
            rounds += 1
            if (rounds >= effort.rounds and min(spent.values()) >= effort.seconds) or (
                rounds >= 3 and max(spent.values()) >= effort.at_most_seconds
            ):
                return {name: Timing(tuple(values)) for name, values in samples.items()}


def _turn(call: Callable[[], Any], short: bool) -> tuple[float, int]:
    """Seconds of one turn, and how many calls they were."""
    rest()
    if short:
        call()
    calls = 0
    start = time.perf_counter()
    while True:
        call()
        calls += 1
        taken = time.perf_counter() - start
        if taken >= _TURN_SECONDS:
            return taken, calls


def rest() -> None:
    """Wait until no thread of this process runs, or for as long as anyone should spin."""
    end = time.perf_counter() + _REST_AT_MOST_SECONDS - _REST_SECONDS
    while time.perf_counter() < end:
        wall, used = time.perf_counter(), time.process_time()
        time.sleep(_REST_SECONDS)
        if time.process_time() - used < 0.2 * (time.perf_counter() - wall):
            return


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def available_cpus() -> int:
    """The CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def same_threads(threads: int) -> Iterator[None]:
    """gatewise and PyTorch on this many threads inside the block. ONNX Runtime takes the number with each session."""
    from .rivals import missing

    before = gatewise.get_threads()
    gatewise.set_threads(threads)
    torch: Any = importlib.import_module("torch") if missing("torch") is None else None
    torch_before = torch.get_num_threads() if torch else 0
    if torch:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        gatewise.set_threads(before)
        if torch:
            torch.set_num_threads(torch_before)
