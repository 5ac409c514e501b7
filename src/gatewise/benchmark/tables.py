"""A report as tables: built once, printed for a terminal or as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .measure import SCHEMA, Report
from .shapes import CONSTANT, OURS

_MISSING = "–"
_OF_CONSTANT = "constant × better"


@dataclass
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    words: int  # how many of the first columns are text; the rest are numbers


def check(report: Any) -> Report:
    """The report, or ValueError if this is not one that this version can read."""
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise ValueError(f"not a gatewise benchmark report of schema {SCHEMA}")
    return report


def heading(report: Report) -> list[str]:
    """What it was measured on, in a few lines."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"{machine['cpu']}, {machine['cpus']} CPUs, {report['threads']} threads, {report['dtype']}",
        f"instructions: {' '.join(machine['instructions'])}",
        f"{machine['system']}, Python {machine['python']}, {versions}",
    ]
    rates = report["sgemm_flops_per_second"]
    if rates:
        each = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in rates.items())
        lines.append(f"the limit is a matrix product at {max(rates.values()) / 1e9:.0f} GFLOP/s ({each})")
    trips = [f"{seconds * 1e9:.0f} ns" for seconds in report.get("round_trip_seconds", []) if seconds]
    if trips:
        lines.append(f"a cache line goes to another thread and back in {', at the end in '.join(trips)}")
    return lines


def tables(report: Report) -> list[Table]:
    """Every table that has rows."""
    built = [
        *_standard(report),
        _summary(report),
        *_variants(report),
        _linearity(report),
        _memory(report),
    ]
    return [table for table in built if table.rows]


def summary(report: Report) -> list[dict[str, Any]]:
    """Per cell and mode: the geometric mean and the least ratio to each rival and to the better one of each shape."""
    found = []
    for cell, mode in _cells_and_modes(report["standard"]):
        rows = [row for row in report["standard"] if (row["cell"], row["mode"]) == (cell, mode)]
        ratios: dict[str, list[tuple[float, str]]] = {}
        for row in rows:
            for name, ratio in row["ratio"].items():
                ratios.setdefault(name, []).append((ratio, shape_of(row)))
            for name, key in (("better rival", "ratio"), (_OF_CONSTANT, "constant_ratio")):
                ratio = _over_better(row.get(key))
                if ratio is not None:
                    ratios.setdefault(name, []).append((ratio, shape_of(row)))
        entry: dict[str, Any] = {"cell": cell, "mode": mode, "shapes": len(rows)}
        entry["times_limit"] = _geometric_mean(row["times_limit"][OURS] for row in rows)
        entry["ratio"] = {
            name: {
                "geometric_mean": _geometric_mean(ratio for ratio, _ in pairs),
                "least": min(pairs)[0],
                "least_at": min(pairs)[1],
            }
            for name, pairs in ratios.items()
        }
        found.append(entry)
    return found


def _over_better(ratio: dict[str, float] | None) -> float | None:
    """How many times as fast as the better of the rivals."""
    return min(ratio.values()) if ratio else None


def shape_of(row: dict[str, Any]) -> str:
    return f"{row['T']},{row['N']},{row['I']},{row['H']}" + (" bi" if row["bidirectional"] else "")


def rivals_in(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Whoever has a ratio in some row, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row["ratio"]))


def _standard(report: Report) -> Iterator[Table]:
    for cell, mode in _cells_and_modes(report["standard"]):
        rows = [row for row in report["standard"] if (row["cell"], row["mode"]) == (cell, mode)]
        rivals = rivals_in(rows)
        constant = [CONSTANT] if any(row.get("constant_ratio") for row in rows) else []
        timed = (OURS, *constant, *rivals)
        columns = ["T,N,I,H", *timed, *(f"× {name}" for name in rivals), *(_OF_CONSTANT for _ in constant), "/ limit"]
        cells = [
            [
                shape_of(row),
                *(_time(row["seconds"].get(name)) for name in timed),
                *(_ratio(row["ratio"].get(name)) for name in rivals),
                *(_ratio(_over_better(row.get("constant_ratio"))) for _ in constant),
                _ratio(row["times_limit"][OURS]),
            ]
            for row in rows
        ]
        yield Table(f"{_CELL_NAMES[cell]}, {_MODE_NAMES[mode]}", columns, cells, words=1)


def _summary(report: Report) -> Table:
    rows = []
    for entry in summary(report):
        for name, found in entry["ratio"].items():
            rows.append(
                [
                    entry["cell"],
                    entry["mode"],
                    name,
                    _ratio(found["geometric_mean"]),
                    _ratio(found["least"]),
                    found["least_at"],
                    _ratio(entry["times_limit"]),
                ]
            )
    columns = ["cell", "mode", "against", "geometric mean", "least", "at", "/ limit"]
    return Table(
        "All shapes: ratio of times (above 1: gatewise is faster) and mean multiple of the limit", columns, rows, words=3
    )


def _variants(report: Report) -> list[Table]:
    by_shape: dict[str, list[dict[str, Any]]] = {}
    for row in report["variants"]:
        by_shape.setdefault(shape_of(row), []).append(row)
    return [_variants_at(shape, rows) for shape, rows in by_shape.items()]


def _variants_at(shape: str, measured: list[dict[str, Any]]) -> Table:
    loops = rivals_in(measured)
    rows = [
        [
            row["cell"],
            row["variant"],
            row["mode"],
            _time(row["seconds"][OURS]),
            _time(row["seconds"]["plain"]),
            *(_time(row["seconds"].get(name)) for name in loops),
            _ratio(row["cost"]),
            *(_ratio(row["ratio"].get(name)) for name in loops),
        ]
        for row in measured
    ]
    columns = ["cell", "variant", "mode", OURS, "plain", *loops, "cost / plain", *(f"× {name}" for name in loops)]
    return Table(f"Variants at T,N,I,H = {shape}", columns, rows, words=3)


def _linearity(report: Report) -> Table:
    rows = [
        [row["cell"], row["mode"], shape_of(row), _time(row["seconds_per_step"]), f"{row['relative']:.3f}"]
        for row in report["linearity"]
    ]
    return Table("Linear in T", ["cell", "mode", "T,N,I,H", "per step", "/ least T"], rows, words=3)


def _memory(report: Report) -> Table:
    rows = []
    for row in report["memory"]:
        allowed = row["z_state_bytes"] + row["packed_weight_bytes"]
        sizes = [_megabytes(row["extra_bytes"]), _megabytes(row["z_state_bytes"]), _megabytes(row["packed_weight_bytes"])]
        rows.append([row["cell"], row["call"], shape_of(row), *sizes, f"{row['extra_bytes'] / allowed:.2f}"])
    columns = ["cell", "call", "T,N,I,H", "extra MB", "z_state MB", "weights MB", "extra / (z_state + weights)"]
    return Table("Peak memory beyond arguments and results", columns, rows, words=3)


_CELL_NAMES = {"lstm": "LSTM", "gru": "GRU", "single": "single-gate RNN"}
_MODE_NAMES = {"forward": "forward", "training": "training step (forward and all gradients)"}


def _cells_and_modes(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Cell by cell, forward before training, whatever the order in which they were measured."""
    found = {(row["cell"], row["mode"]) for row in rows}
    return [(cell, mode) for cell in _CELL_NAMES for mode in _MODE_NAMES if (cell, mode) in found]


def _geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def _time(seconds: float | None) -> str:
    if seconds is None:
        return _MISSING
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def _ratio(value: float | None) -> str:
    return _MISSING if value is None else _three_digits(value)


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f}"


def markdown(report: Report) -> str:
    """The whole report for a document."""
    parts = ["\n".join(f"- {line}" for line in [*heading(report), *report["notes"], *report["disagreements"]])]
    for table in tables(report):
        rules = ["---"] * table.words + ["---:"] * (len(table.columns) - table.words)
        lines = [f"### {table.title}", ""]
        lines += ["| " + " | ".join(cells) + " |" for cells in (table.columns, rules, *table.rows)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def print_report(report: Report, console: Any) -> None:
    """The whole report for a terminal: `console` is rich's."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable

    for line in heading(report):
        console.print(line, highlight=False, markup=False)
    for table in tables(report):
        shown = RichTable(box=SIMPLE_HEAD, padding=0, show_edge=False)
        for number, column in enumerate(table.columns):
            # To fit 80 columns headings break between words; so do texts, where they must, but never a number and its unit.
            heading_words = column.replace("onnxruntime", "onnx runtime").split()
            width = max(len(text) for text in (*heading_words, *(row[number] for row in table.rows)))
            is_text = number < table.words
            shown.add_column(" ".join(heading_words), justify="left" if is_text else "right", width=None if is_text else width)
        for row in table.rows:
            shown.add_row(*row)
        console.print(f"\n{table.title}", style="bold", highlight=False)
        console.print(shown)
    for note in report["notes"]:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False)
    for text in report["disagreements"]:
        console.print(f"DISAGREEMENT: {text}", style="bold red", highlight=False, markup=False)
