"""Runs the measurements and fills a report: a plain dictionary, written as JSON and read again by `tables` and `plot`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from gatewise.engines.cpu import round_trip_seconds

from . import machine, memory, timing
from .limit import sgemm_flops_per_second
from .rivals import Prepared, Rival, UnableError, loop_rivals, standard_rivals
from .shapes import (
    CELLS,
    CONSTANT,
    LINEARITY,
    MEMORY,
    MODES,
    PLAIN,
    STANDARD,
    VARIANTS,
    VARIANTS_SHAPES,
    Shape,
    Variant,
    flops,
)
from .timing import Effort, Timing, take_turns
from .work import Array, Work, make_work

SCHEMA = 1

# Rivals must agree before they are timed: ‖a − b‖ ≤ this · ‖b‖ for every result. It guards against timing different
# computations, so it is loose: a relu whose argument rounds to the other side of 0 may change a whole row of a gradient.
AGREEMENT = 1e-3

# A run whose matrix product ended this much faster or slower than it began was on a machine that changed.
_DRIFT = 0.05

# Above this share of the machine's CPU time, other programs have spoilt the run.
_OTHERS = 0.03

Report = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    threads: int
    shapes: tuple[Shape, ...] = STANDARD
    cells: tuple[str, ...] = CELLS
    modes: tuple[str, ...] = MODES
    standard: bool = True
    variants: bool = True
    linearity: bool = False
    memory: bool = False
    effort: Effort = timing.FULL
    variants_shapes: tuple[Shape, ...] = VARIANTS_SHAPES
    linearity_shapes: tuple[Shape, ...] = LINEARITY
    memory_shapes: tuple[Shape, ...] = MEMORY
    rivals: tuple[Rival, ...] = field(default_factory=standard_rivals)  # gatewise first
    loops: tuple[Rival, ...] = field(default_factory=loop_rivals)


@dataclass(frozen=True)
class Case:
    """One measurement: what it is called in the progress bar, and what adds its rows to the report."""

    label: str
    run: Callable[[], None]


def new_report(settings: Settings) -> Report:
    """A report with everything but rows. Raises RuntimeError where gatewise itself cannot run."""
    gatewise_itself = settings.rivals[0]
    reason = gatewise_itself.unavailable()
    if reason:
        raise RuntimeError(reason)
    asked = [*settings.rivals, *(settings.loops if settings.variants else ())]
    reasons = {rival.name: rival.unavailable() for rival in asked}
    return {
        "schema": SCHEMA,
        "device": "cpu",
        "dtype": "float32",
        "threads": settings.threads,
        "machine": machine.describe(),
        "rivals": {rival.name: rival.version() for rival in asked if reasons[rival.name] is None},
        "notes": [f"{name} is not measured: {reason}" for name, reason in reasons.items() if reason],
        "disagreements": [],
        "others_share": None,
        "sgemm_flops_per_second": None,
        "round_trip_seconds": [],
        "standard": [],
        "variants": [],
        "linearity": [],
        "memory": [],
    }


def cases(settings: Settings, report: Report) -> list[Case]:
    """All measurements in order. Each adds to the report, so that a run that is stopped keeps what it has."""

    def case(label: str, measure: Callable[..., None], *what: Any) -> Case:
        return Case(label, partial(measure, settings, report, *what))

    cells, modes = settings.cells, settings.modes
    found = [case("matrix product", _measure_limit)]
    if settings.standard:
        found += [
            case(f"{cell} {shape} {mode}", _measure_standard, cell, shape, mode)
            for shape, cell, mode in product(settings.shapes, cells, modes)
        ]
    if settings.variants:
        found += [
            case(f"{variant.cell} {variant.name} {shape} {mode}", _measure_variant, variant, shape, mode)
            for shape, variant, mode in product(settings.variants_shapes, VARIANTS, modes)
            if variant.cell in cells
        ]
    if settings.linearity:
        found += [case(f"{cell} linearity {mode}", _measure_linearity, cell, mode) for cell, mode in product(cells, modes)]
    if settings.memory:
        found += [
            case(f"{cell} {shape} memory", _measure_memory, cell, shape)
            for shape, cell in product(settings.memory_shapes, cells)
        ]
    return [*found, case("matrix product again", _check_drift)]


def run(settings: Settings, report: Report, on_case: Callable[[str], None] = lambda label: None) -> None:
    """Run all cases, telling `on_case` each one's label as it begins."""
    with timing.same_threads(settings.threads), _watching_others(report):
        for case in cases(settings, report):
            on_case(case.label)
            case.run()


@contextmanager
def _watching_others(report: Report) -> Iterator[None]:
    """Reports what share of the machine other programs took meanwhile."""
    began, before = time.perf_counter(), machine.others_cpu_seconds()
    try:
        yield
    finally:
        after = machine.others_cpu_seconds()
        if before is not None and after is not None:
            share = (after - before) / ((time.perf_counter() - began) * (os.cpu_count() or 1))
            report["others_share"] = share
            if share > _OTHERS:
                _note(
                    report, f"other programs used {share:.0%} of the machine's CPU time meanwhile: measure again without them"
                )


def _note(report: Report, text: str) -> None:
    if text not in report["notes"]:
        report["notes"].append(text)


def _measure_limit(settings: Settings, report: Report) -> None:
    report["sgemm_flops_per_second"] = sgemm_flops_per_second(settings.threads)
    _measure_round_trip(report)


def _measure_round_trip(report: Report) -> None:
    timing.rest()
    trials = [seconds for _ in range(5) if (seconds := round_trip_seconds())]  # the first wakes the other thread
    report["round_trip_seconds"].append(min(trials, default=None))


def _check_drift(settings: Settings, report: Report) -> None:
    _measure_round_trip(report)
    before = max(report["sgemm_flops_per_second"].values())
    after = max(sgemm_flops_per_second(settings.threads).values())
    if abs(after / before - 1) > _DRIFT:
        _note(
            report,
            f"the matrix product ran at {before / 1e9:.0f} GFLOP/s at the start and at {after / 1e9:.0f} at the end: "
            "the machine was not quiet, measure again",
        )


def _measure_standard(settings: Settings, report: Report, cell: str, shape: Shape, mode: str) -> None:
    work = make_work(cell, shape)
    entries = _agreeing(report, work, mode, _prepared(report, settings, settings.rivals, work, mode))
    timings = take_turns({name: entry.call for name, entry in entries.items()}, settings.effort)
    count = flops(cell, shape, mode)
    limit = count / max(report["sgemm_flops_per_second"].values())
    row = {"cell": cell, "mode": mode, **_shape_row(shape), "flops": count, **_timed(timings)}
    row["times_limit"] = {name: found.median / limit for name, found in timings.items()}
    if CONSTANT in timings:
        row["constant_ratio"] = {name: timings[name].over(timings[CONSTANT]) for name in row["ratio"]}
    report["standard"].append(row)


def _measure_variant(settings: Settings, report: Report, variant: Variant, shape: Shape, mode: str) -> None:
    ours = settings.rivals[:1]
    work = make_work(variant.cell, shape, variant)
    entries = _agreeing(report, work, mode, _prepared(report, settings, (*ours, *settings.loops), work, mode))
    plain = make_work(variant.cell, shape, PLAIN[variant.cell])
    entries["plain"] = ours[0].prepare(plain, mode, settings.threads)
    entries["plain"].call()
    timings = take_turns({name: entry.call for name, entry in entries.items()}, settings.effort)
    row = {"variant": variant.name, "cell": variant.cell, "mode": mode, **_shape_row(shape)}
    row.update(_timed(timings))
    row["cost"] = timings[ours[0].name].over(timings["plain"])
    del row["ratio"]["plain"]
    report["variants"].append(row)


def _measure_linearity(settings: Settings, report: Report, cell: str, mode: str) -> None:
    ours = settings.rivals[0]
    entries = {}
    for shape in settings.linearity_shapes:
        entries[str(shape)] = ours.prepare(make_work(cell, shape), mode, settings.threads).call
    timings = take_turns(entries, settings.effort)
    first = settings.linearity_shapes[0]
    for shape in settings.linearity_shapes:
        timing = timings[str(shape)]
        relative = timing.over(timings[str(first)]) * first.T / shape.T
        row = {"cell": cell, "mode": mode, **_shape_row(shape), "seconds_per_step": timing.median / shape.T}
        report["linearity"].append(row | {"relative": relative})


def _measure_memory(settings: Settings, report: Report, cell: str, shape: Shape) -> None:
    reason = memory.unavailable()
    if reason:
        _note(report, reason)
        return
    report["memory"].extend(_shape_row(shape) | row for row in memory.measure(cell, shape, settings.threads))


def _shape_row(shape: Shape) -> dict[str, Any]:
    return {"T": shape.T, "N": shape.N, "I": shape.I, "H": shape.H, "bidirectional": shape.bidirectional}


def _timed(timings: dict[str, Timing]) -> dict[str, Any]:
    """Seconds of every entry and how many times as long as the first, which is gatewise's, each of the rivals' takes."""
    first, *others = timings
    return {
        "seconds": {name: found.median for name, found in timings.items()},
        "quartiles": {name: list(found.quartiles) for name, found in timings.items()},
        "rounds": len(timings[first].samples),
        "ratio": {name: timings[name].over(timings[first]) for name in others if name != CONSTANT},
    }


def _prepared(report: Report, settings: Settings, rivals: Iterable[Rival], work: Work, mode: str) -> dict[str, Prepared]:
    """The rivals that are here and can do this work. Why one that is here cannot is noted."""
    found = {}
    for rival in rivals:
        if mode in rival.modes and rival.unavailable() is None:
            try:
                found[rival.name] = rival.prepare(work, mode, settings.threads)
            except UnableError as reason:
                _note(report, f"{rival.name} is not measured for {work.cell} {work.variant.name} {mode}: {reason}")
    return found


def _agreeing(report: Report, work: Work, mode: str, entries: dict[str, Prepared]) -> dict[str, Prepared]:
    """The first entry and those that compute the same as it; each one that does not is reported and left out."""
    results = {name: entry.results(entry.call()) for name, entry in entries.items()}
    first, *others = entries
    agreeing = {first: entries[first]}
    for name in others:
        worst, distance = _furthest(results[first], results[name])
        if distance <= AGREEMENT:
            agreeing[name] = entries[name]
        else:
            what = f"{work.cell} {work.variant.name} {work.shape} {mode}"
            report["disagreements"].append(f"{what}: {worst} of {name} is {distance:.1e} away from {first}'s: not timed")
    return agreeing


def _furthest(ours: dict[str, Array], theirs: dict[str, Array]) -> tuple[str, float]:
    """The result in which they differ most, and by how much of its length. NaN counts as infinitely far."""
    distances = {}
    for name, expected in theirs.items():
        if ours[name].shape != expected.shape:
            return f"{name} {list(expected.shape)}, ours {list(ours[name].shape)},", math.inf
        difference = np.linalg.norm((ours[name] - expected).ravel())
        distance = float(difference / max(float(np.linalg.norm(expected.ravel())), 1e-30))
        distances[name] = math.inf if math.isnan(distance) else distance
    return max(distances.items(), key=lambda item: item[1])
